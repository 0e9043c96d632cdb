"""What a pod asks of CPUs of its own, and what that is on a node."""

from __future__ import annotations

import msgspec

from bayplan import PodInfo, Refusal
from bayplan.dialects.koordinator.cpu_sets import (
    RESOURCE_SPEC,
    BindPolicy,
    ExclusivePolicy,
    ResourceSpec,
    may_have_cpu_set,
    resource_spec_of,
)
from bayplan_plugins.cpu_sets.nodes import NodeCpus

__all__ = ["NOT_WHOLE", "PARTS_OF_CORES", "CpuNeed", "CpuRequest", "CpuRequests", "need_on"]

_MOST_KEPT = 8192
NOT_WHOLE = "the requested CPUs must be integer"
_NO_TOPOLOGY = "node(s) invalid CPU Topology"
_CONFLICT = "node(s) cpu bind policy conflicts with pod's required cpu bind policy"
PARTS_OF_CORES = "node(s) requested cpus not multiple cpus per core"


class CpuRequest(msgspec.Struct, frozen=True):
    """What a pod requests, in milli-CPU, and what it asks of the choice of its CPUs.

    ``owns`` says that its class gets CPUs of its own on every node; others get some where the node
    demands it. ``problem`` is what is wrong with its annotation.
    """

    milli: int
    spec: ResourceSpec
    owns: bool
    problem: str = ""


class CpuRequests:
    """The requests of pods; kept, as many hooks ask for them."""

    def __init__(self) -> None:
        self._known: dict[int, CpuRequest] = {}

    def of(self, pod: PodInfo) -> CpuRequest:
        """Return what a pod requests."""
        found = self._known.get(pod.serial)
        if found is None:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            found = self._known[pod.serial] = _read(pod)
        return found


def _read(pod: PodInfo) -> CpuRequest:
    milli = pod.facts.requests.get("cpu", 0)
    owns = may_have_cpu_set(pod.pod) and milli > 0
    annotations = pod.pod.metadata.annotations
    if not owns and RESOURCE_SPEC not in annotations:
        return CpuRequest(milli, ResourceSpec(), owns)
    try:
        spec = resource_spec_of(annotations)
    except ValueError as exc:
        return CpuRequest(milli, ResourceSpec(), owns, str(exc) if owns else "")
    policy = spec.required or spec.preferred
    return CpuRequest(milli, spec, owns and policy != "ConstrainedBurst")


class CpuNeed(msgspec.Struct, frozen=True):
    """How many CPUs a pod gets on a node, by which policies; ``required`` ones are kept exactly."""

    count: int
    bind: BindPolicy
    required: bool
    exclusive: ExclusivePolicy


def need_on(
    request: CpuRequest, node: NodeCpus | None, default: BindPolicy
) -> CpuNeed | Refusal | None:
    """Return what a pod gets on a node, None if it gets no CPUs of its own, or why it may not come.

    :param node: None where nothing is known of its CPUs.
    :param default: the bind policy of pods that leave it open.
    """
    of_node = node.bind if node is not None else ""
    if not request.milli or not (request.owns or of_node):
        return None
    if request.milli % 1000:
        return Refusal((NOT_WHOLE,), resolvable=False)
    if node is None or not node.topology.per_core:
        return Refusal((_NO_TOPOLOGY,), resolvable=False)
    own = _named(request.spec.required, default) if request.owns else ""
    if own and of_node and own != of_node:
        return Refusal((_CONFLICT,), resolvable=False)
    required = own or of_node
    count = request.milli // 1000
    if required == "FullPCPUs" and count % node.topology.per_core:
        return Refusal((PARTS_OF_CORES,), resolvable=False)
    preferred = _named(request.spec.preferred, default) or default
    exclusive = request.spec.exclusive if request.owns else ""
    return CpuNeed(count, required or preferred, bool(required), exclusive)


def _named(policy: BindPolicy, default: BindPolicy) -> BindPolicy:
    return default if policy == "Default" else policy
