"""What a pod requests of its GPUs, from its annotations and those of its Job."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import msgspec
from msgspec.structs import replace

from bayplan import PodInfo
from bayplan.api.gpus import GpuRequest
from bayplan.dialects import gpu_topology, hami
from bayplan.topology.machine.model import Machine
from bayplan_plugins.gpus.jobs import job_of
from bayplan_plugins.gpus.resources import gpu_count

__all__ = [
    "PodGpuRequest",
    "annotations_naming_gpus",
    "asks_more_than_a_number",
    "claim_request_of",
    "eligible_gpus",
    "has_hard_constraints",
    "names_gpus",
    "pod_request_of",
    "weaker_requests",
]


class PodGpuRequest(msgspec.Struct, frozen=True, dict=True):
    """How many GPUs a pod requests, how they are to be chosen, and the job it belongs to.

    ``multi_node`` says that the job has, or will have, pods on other nodes.
    """

    count: int
    options: GpuRequest
    job: str = ""
    multi_node: bool = False

    @cached_property
    def of_any_job(self) -> PodGpuRequest:
        """The same request without its job: what nodes tell apart on their own."""
        return PodGpuRequest(self.count, self.options, "", self.multi_node)


def pod_request_of(pod: PodInfo) -> PodGpuRequest | None:
    """Return what a pod requests of ``nvidia.com/gpu``; None without GPUs."""
    if not pod.facts.wants_devices:
        return None
    count = gpu_count(pod.requests)
    if not count:
        return None
    options = _options(pod)
    return PodGpuRequest(count, options, job_of(pod), options.spans_nodes or pod.gang is not None)


def claim_request_of(pod: PodInfo) -> GpuRequest | None:
    """Return what a pod's annotations require of the GPUs of its claims; None for nothing."""
    if not pod.spec.resource_claims or not pod.annotations:
        return None
    options = _options(pod)
    asked = (
        options.prefer_nvlink,
        options.prefer_numa,
        options.require_nvlink,
        options.require_numa,
        options.min_bandwidth,
        options.problem,
    )
    return options if any(asked) else None


def _options(pod: PodInfo) -> GpuRequest:
    """Read HAMi's annotations and those of gpu.topology/, which win."""
    annotations = pod.annotations
    theirs = hami.gpu_request_of(annotations) or gpu_topology.PLAIN
    return gpu_topology.gpu_request_of(annotations, theirs) or theirs


def has_hard_constraints(options: GpuRequest) -> bool:
    """Tell whether the request has constraints that need a node whose machine is known."""
    asked = (options.require_nvlink, options.require_numa, options.min_bandwidth)
    return any(asked) or names_gpus(options)


def asks_more_than_a_number(options: GpuRequest) -> bool:
    """Tell whether a node may be refused or preferred though nobody's machine is known."""
    return options.spans_nodes or has_hard_constraints(options) or bool(options.problem)


def names_gpus(options: GpuRequest) -> bool:
    """Tell whether certain GPUs are named, which nodes of one shape do not share."""
    return any(_names(options))


def _names(options: GpuRequest) -> tuple[object, ...]:
    return (options.uuids, options.not_uuids, options.models, options.not_models)


def annotations_naming_gpus(options: GpuRequest) -> str:
    """Return the annotations that say which GPUs may be used, joined by commas."""
    weaker = weaker_requests(options)
    return ", ".join(name for name, other in weaker if _names(other) != _names(options))


def eligible_gpus(machine: Machine, options: GpuRequest) -> tuple[int, ...]:
    """Return the usable GPUs that the pod may have by their uuid and model."""
    if not names_gpus(options):
        return machine.usable
    found = []
    for gpu in (machine.gpus[index] for index in machine.usable):
        model = gpu.model.upper()
        if options.uuids and gpu.uuid not in options.uuids:
            continue
        if options.models and not any(name.upper() in model for name in options.models):
            continue
        if gpu.uuid in options.not_uuids or any(n.upper() in model for n in options.not_models):
            continue
        found.append(gpu.index)
    return tuple(found)


def weaker_requests(options: GpuRequest) -> Iterator[tuple[str, GpuRequest]]:
    """Yield the request without one of its constraints, each with that constraint's annotation."""
    if options.min_bandwidth:
        name = f"gpu.topology/min-bandwidth {options.min_bandwidth:g}"
        yield name, replace(options, min_bandwidth=0.0)
    if options.require_nvlink:
        yield "gpu.topology/require-nvlink", replace(options, require_nvlink=False)
    if options.require_numa:
        yield "nvidia.com/numa-bind", replace(options, require_numa=False)
    if options.uuids:
        yield "nvidia.com/use-gpuuuid", replace(options, uuids=frozenset())
    if options.not_uuids:
        yield "nvidia.com/nouse-gpuuuid", replace(options, not_uuids=frozenset())
    if options.models:
        yield "nvidia.com/use-gputype", replace(options, models=())
    if options.not_models:
        yield "nvidia.com/nouse-gputype", replace(options, not_models=())
