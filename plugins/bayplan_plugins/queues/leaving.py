"""Pods that are about to leave their nodes: what they hold is as good as free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from bayplan import Handle, PodInfo
from bayplan.dialects.kai.shares import GPU, GpuShareRequest
from bayplan.dialects.progress import GOING_AT
from bayplan.dialects.reading import timestamp
from bayplan.dialects.tensor_fusion import side_of
from bayplan.plugin.hookspecs import IntColumn
from bayplan.snapshot import NodeTable, Snapshot
from bayplan_plugins.gpus.namespace_use import NamespaceUse
from bayplan_plugins.gpus.vendors.kai.requests import known_share

__all__ = ["LeavingPods", "free_now", "give_back", "is_stuck", "leaving_pods"]

_STUCK_AFTER = 60.0
"""Seconds beyond its grace period after which a pod that has not ended counts as stuck."""


def is_stuck(handle: Handle, pod: PodInfo) -> bool:
    """Tell whether a terminating pod should have ended long ago."""
    meta = pod.pod.metadata
    if meta.deletion_timestamp is None:
        return handle.unix_time > timestamp(meta.annotations.get(GOING_AT)) + _STUCK_AFTER
    grace = meta.deletion_grace_period_seconds or 0
    return handle.unix_time > timestamp(meta.deletion_timestamp) + grace + _STUCK_AFTER


class _TerminatingPods:
    """The placed pods that are terminating, with their nodes, by key; follows the snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.pods = {key: pair for key, pair in snapshot.placed.items() if pair[0].terminating}
        snapshot.on_pod(self._moved)

    def _moved(self, pod: PodInfo, node: str, placed: bool) -> None:
        if placed and pod.terminating:
            self.pods[pod.key] = pod, node
        elif not placed:
            self.pods.pop(pod.key, None)


def leaving_pods(handle: Handle) -> list[tuple[PodInfo, str]]:
    """Return the pods that are terminating and not stuck, with their nodes, by key."""
    known = handle.snapshot.shared(_TerminatingPods, _TerminatingPods)
    return [pair for _, pair in sorted(known.pods.items()) if not is_stuck(handle, pair[0])]


def free_now(table: NodeTable) -> dict[str, IntColumn]:
    """Return what each node row has free, by resource; "pods" are places for pods."""
    names = {"pods", *table.used_columns, *table.allocatable_columns}
    return {name: table.allocatable(name) - table.used(name) for name in names}


def give_back(
    free: Mapping[str, IntColumn],
    row_of: Mapping[str, int],
    pods: Iterable[tuple[PodInfo, str]],
    sign: int = 1,
) -> None:
    """Add what pods hold of their nodes to what is free there; with a sign of -1, take it."""
    for pod, node in pods:
        row = row_of.get(node)
        if row is None:
            continue
        free["pods"][row] += sign
        for name, amount in pod.requests.items():
            if name in free:
                free[name][row] += sign * amount
        share = known_share(pod) if sign > 0 else None
        if isinstance(share, GpuShareRequest) and GPU in free:
            # Each of its GPUs may become free as a whole.
            free[GPU][row] += share.devices


class LeavingPods:
    """Leaving pods, and which of them matter to whom.

    What the pods of many evictions leave is mostly taken already, by nominated nodes. A search
    takes only those off their nodes that leave something for the pods it places.

    :param pods: the leaving pods with their nodes.
    :param later: what each node has free once they have left, see :func:`give_back`.
    """

    def __init__(
        self,
        handle: Handle,
        pods: Sequence[tuple[PodInfo, str]],
        later: Mapping[str, IntColumn],
    ) -> None:
        row_of = handle.snapshot.nodes.row_of
        known = [(pod, node) for pod, node in pods if node in row_of]
        self._pods = [pod for pod, _ in known]
        self._on: dict[str, list[int]] = {}
        for index, (_, node) in enumerate(known):
            self._on.setdefault(node, []).append(index)
        rows = np.array([row_of[node] for _, node in known], np.intp)
        table = handle.snapshot.nodes
        self._free = {name: column[rows] for name, column in later.items()}
        self._offered = {name: table.allocatable(name)[rows] > 0 for name in later}
        limited = handle.snapshot.shared(NamespaceUse, NamespaceUse).limited
        self._beyond = np.array(
            [_reaches_beyond(pod) or pod.namespace in limited for pod in self._pods], bool
        )

    def on(self, nodes: Iterable[str]) -> list[PodInfo]:
        """Return those on some nodes, by name."""
        found = (self._on.get(node, ()) for node in dict.fromkeys(nodes))
        return [self._pods[index] for indices in found for index in indices]

    def helping(self, asking: Iterable[PodInfo]) -> list[PodInfo]:
        """Return the pods without which a node, if no other pod goes, may take an asking pod.

        :returns: also those that may keep pods off other nodes than their own.
        """
        kinds = {pod.facts: pod for pod in asking}.values()
        if any(_reaches_beyond(pod) for pod in kinds):
            return list(self._pods)
        helps = self._beyond.copy()
        for pod in kinds:
            helps |= self._fits(pod)
        return [self._pods[index] for index in np.flatnonzero(helps).tolist()]

    def _fits(self, pod: PodInfo) -> npt.NDArray[np.bool_]:
        """Tell of each leaving pod whether its node takes another one by its amounts."""
        fits = self._free["pods"] > 0
        for name, need in pod.requests.items():
            # What a node does not offer as an amount may come from device classes.
            if name in self._free:
                fits &= (self._free[name] >= need) | ~self._offered[name]
        return fits


def _reaches_beyond(pod: PodInfo) -> bool:
    """Tell whether a pod may matter on other nodes than its own."""
    spec = pod.pod.spec
    return bool(
        pod.terms
        or side_of(pod.pod) is not None
        or pod.facts.uses_claims
        or spec.resource_claims
        or spec.topology_spread_constraints
    )
