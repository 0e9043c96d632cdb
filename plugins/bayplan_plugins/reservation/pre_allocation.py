"""Which running pods a reservation takes over, so that what they use is reserved once they go.

Rules: Koordinator v1.8 (pkg/scheduler/plugins/reservation). Pods with devices, CPUs of their own or
a reservation already are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from bayplan import Args, PodInfo
from bayplan.api import Reservation
from bayplan.dialects.koordinator.cpu_sets import RESOURCE_STATUS
from bayplan.dialects.koordinator.reservations import (
    affinity_of,
    allocated_by,
    exact_match_of,
    is_reserve_pod,
    matches_exactly,
    may_use,
    restricted_names,
)
from bayplan.snapshot import Snapshot
from bayplan_plugins.reservation.matching import filled

__all__ = ["Adoption", "PreAllocationArgs", "adoptions", "unsupported"]

_UNSUPPORTED = "node(s) reservation pre allocation is unsupported with current attributes"
_NO_CLUSTER_MODE = "reservation requires cluster mode pre-allocation which is disabled"
_DEVICES = "scheduling.koordinator.sh/device-allocated"
_DIGITS = 18


class PreAllocationArgs(Args):
    """How reservations with ``preAllocation`` find pods.

    In the mode ``Cluster`` of their policy, which has to be on, they take pods whose label
    ``clusterLabelKey`` is "true", the highest number in ``clusterPriorityAnnotationKey`` first.
    With ``preferNoPreAllocatedPods`` a node with room for all comes first.
    """

    enable_cluster_mode: bool = False
    cluster_label_key: str = "pod.koordinator.sh/is-pre-allocatable"
    cluster_priority_annotation_key: str = "pod.koordinator.sh/pre-allocatable-priority"
    prefer_no_pre_allocated_pods: bool = False


class Adoption(msgspec.Struct, frozen=True):
    """A node, and the pods on it that a reservation would take over."""

    node: str
    pods: tuple[PodInfo, ...]

    def left(self, reserved: Mapping[str, int]) -> dict[str, int]:
        """Return what the pods leave of the reservation, by resource."""
        used = [pod.requests for pod in self.pods]
        return {
            name: max(0, amount - sum(one.get(name, 0) for one in used))
            for name, amount in reserved.items()
        }


def unsupported(found: Reservation, args: PreAllocationArgs) -> str:
    """Return why a reservation takes over no pods, "" if it may."""
    if found.spec.allocate_policy != "Restricted":
        return _UNSUPPORTED
    if _is_clusterwide(found) and not args.enable_cluster_mode:
        return _NO_CLUSTER_MODE
    return ""


def adoptions(
    found: Reservation, reserved: Mapping[str, int], snapshot: Snapshot, args: PreAllocationArgs
) -> list[Adoption]:
    """Return the nodes where pods may be taken over so that all fits, the fullest first.

    :param reserved: what is to be reserved.
    """
    by_node: dict[str, list[PodInfo]] = {}
    for pod, node in snapshot.placed.values():
        if node in snapshot.nodes.row_of and _may_go_over(pod, found, reserved, args):
            by_node.setdefault(node, []).append(pod)
    made = []
    for node, pods in by_node.items():
        ordered = sorted(pods, key=lambda pod: _order(pod, found, reserved, args))
        chosen = _chosen(found, reserved, _free(snapshot, node, reserved), ordered)
        if chosen:
            made.append(Adoption(node, tuple(chosen)))
    return sorted(made, key=lambda one: (-_fill(reserved, one.pods), one.node))


def _is_clusterwide(found: Reservation) -> bool:
    policy = found.spec.pre_allocation_policy
    return policy is not None and policy.mode == "Cluster"


def _may_go_over(
    pod: PodInfo, found: Reservation, reserved: Mapping[str, int], args: PreAllocationArgs
) -> bool:
    notes = pod.pod.metadata.annotations
    if pod.terminating or is_reserve_pod(notes) or allocated_by(notes):
        return False
    if pod.facts.wants_devices or _DEVICES in notes or RESOURCE_STATUS in notes:
        return False
    names = restricted_names(found, reserved)
    if not pod.requests or any(pod.requests.get(n, 0) > reserved.get(n, 0) for n in names):
        return False
    if _is_clusterwide(found):
        return pod.labels.get(args.cluster_label_key) == "true"
    try:
        exact = exact_match_of(notes)
        return may_use(pod.pod, found, affinity_of(notes)) and matches_exactly(
            pod.requests, reserved, exact
        )
    except ValueError:
        return False


def _order(
    pod: PodInfo, found: Reservation, reserved: Mapping[str, int], args: PreAllocationArgs
) -> tuple[object, ...]:
    if not _is_clusterwide(found):
        return (-_fill(reserved, [pod]), pod.key)
    text = pod.pod.metadata.annotations.get(args.cluster_priority_annotation_key, "")
    digits = text.removeprefix("-")
    usable = digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS
    return (-int(text) if usable else 0, pod.key)


def _fill(reserved: Mapping[str, int], pods: Iterable[PodInfo]) -> int:
    total: dict[str, int] = {}
    for pod in pods:
        for name, amount in pod.requests.items():
            total[name] = total.get(name, 0) + amount
    return filled(reserved, {}, total)


def _free(snapshot: Snapshot, node: str, reserved: Mapping[str, int]) -> Mapping[str, int]:
    table = snapshot.nodes
    row = table.row_of[node]
    return {name: int(table.allocatable(name)[row] - table.used(name)[row]) for name in reserved}


def _chosen(
    found: Reservation,
    reserved: Mapping[str, int],
    free: Mapping[str, int],
    pods: Sequence[PodInfo],
) -> Sequence[PodInfo]:
    """Return the pods to take over: one, or the first of them with which all fits; none if none."""
    policy = found.spec.pre_allocation_policy
    if policy is None or not policy.enable_multiple:
        return next(([pod] for pod in pods if _fits(reserved, free, [pod])), [])
    names = restricted_names(found, reserved)
    taken: list[PodInfo] = []
    for pod in pods:
        if all(sum(_amounts([*taken, pod], name)) <= reserved[name] for name in names):
            taken.append(pod)
            if _fits(reserved, free, taken):
                return taken
    return []


def _fits(reserved: Mapping[str, int], free: Mapping[str, int], pods: Sequence[PodInfo]) -> bool:
    return all(
        amount - min(amount, sum(_amounts(pods, name))) <= free[name]
        for name, amount in reserved.items()
    )


def _amounts(pods: Iterable[PodInfo], name: str) -> Iterator[int]:
    return (pod.requests.get(name, 0) for pod in pods)
