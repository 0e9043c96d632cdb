"""What a pod asks of its GPUs, from its annotations and those that it has from its Job."""

from __future__ import annotations

from dataclasses import dataclass

from bayplan import PodInfo
from bayplan.api.gpus import GpuRequest
from bayplan.dialects import gpu_topology, hami
from bayplan_plugins.gpu_topology.resources import gpu_count

__all__ = ["PodWish", "claim_wish_of", "job_of", "wish_of"]


@dataclass(frozen=True)
class PodWish:
    """How many GPUs a pod asks for, how they are to be chosen, and the job it is a part of.

    ``multi_node`` says that the job has pods on other nodes, or is to have them.
    """

    count: int
    wish: GpuRequest
    job: str = ""
    multi_node: bool = False


def job_of(pod: PodInfo) -> str:
    """Return the name of what a pod is a part of: its gang, or its controller; "" for neither."""
    if pod.gang is not None:
        return pod.gang
    for owner in pod.pod.metadata.owner_references:
        if owner.controller:
            return f"{pod.namespace}/{owner.kind}/{owner.name}"
    return ""


def wish_of(pod: PodInfo) -> PodWish | None:
    """Return what a pod asks for; None without GPUs."""
    if not pod.facts.wants_devices:
        return None
    count = gpu_count(pod.requests)
    if not count:
        return None
    wish = _of(pod)
    return PodWish(count, wish, job_of(pod), wish.spans_nodes or pod.gang is not None)


def claim_wish_of(pod: PodInfo) -> GpuRequest | None:
    """Return what a pod's annotations ask of the GPUs of its claims; None for nothing."""
    if not pod.spec.resource_claims or not pod.annotations:
        return None
    wish = _of(pod)
    asks = (
        wish.prefer_nvlink,
        wish.prefer_numa,
        wish.require_nvlink,
        wish.require_numa,
        wish.min_bandwidth,
        wish.problem,
    )
    return wish if any(asks) else None


def _of(pod: PodInfo) -> GpuRequest:
    """Read the ecosystems' annotations; what those of gpu.topology/ say wins."""
    theirs = hami.gpu_request_of(pod.annotations) or gpu_topology.PLAIN
    return gpu_topology.gpu_request_of(pod.annotations, theirs) or theirs
