"""NodeVolumeLimits: a CSI driver attaches a limited number of volumes to a node."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping

import numpy as np

from bayplan import (
    SKIP,
    Args,
    ClusterEvent,
    Handle,
    NodeView,
    Plugin,
    PodInfo,
    Reads,
    Reject,
    Remedy,
    hookimpl,
)
from bayplan.plugin.hookspecs import IntColumn
from bayplan_plugins.shared.volumes.attachments import Attachments, CsiVolume
from bayplan_plugins.shared.volumes.lookup import used_by

__all__ = ["NodeVolumeLimits"]

_REASON = "node(s) exceed max volume count"


class NodeVolumeLimits(Plugin[Args]):
    """Refuse nodes whose CSINode allows no more volumes of a driver.

    A volume counts once per node, however many pods use it there. A claim without a volume counts
    for its class's provisioner.
    """

    reads = Reads.NODE | Reads.PODS
    requeue_on = ClusterEvent.NODE_ADDED | ClusterEvent.POD_REMOVED | ClusterEvent.OBJECT_CHANGED

    def __init__(self, args: Args, handle: Handle) -> None:
        super().__init__(args, handle)
        self._attachments = handle.snapshot.shared(Attachments, Attachments)

    @hookimpl
    def concerns(self, pod: PodInfo) -> bool:
        """Concern pods with volumes that are claims."""
        return pod.facts.uses_claims

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by the number of new volumes per driver, and by the volumes in use somewhere."""
        if not pod.facts.uses_claims:
            return None
        key: list[Hashable] = []
        for driver, volumes in self._limited(pod).items():
            known = frozenset(one for one in volumes if self._attachments.nodes_of(one))
            key.append((driver, len(volumes) - len(known), known))
        return tuple(key)

    @hookimpl
    def requeue_hint(self, event: ClusterEvent, subject: PodInfo | None) -> bool:
        """A removed pod helps only if it used volumes."""
        gone = subject if event is ClusterEvent.POD_REMOVED else None
        return gone is None or gone.facts.uses_claims

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> object:
        """Skip pods without volumes of a driver that has a limit."""
        return None if pod.facts.uses_claims and self._limited(pod) else SKIP

    def _limited(self, pod: PodInfo) -> dict[str, set[CsiVolume]]:
        """Return the pod's volumes by driver, for drivers with a limit on some node."""
        found: dict[str, set[CsiVolume]] = {}
        for volume in self._attachments.volumes_of(pod):
            if self._attachments.is_limited(volume.driver):
                found.setdefault(volume.driver, set()).add(volume)
        return found

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes where too many volumes would have to be attached."""
        full = np.zeros(len(nodes), dtype=np.bool_)
        for driver, volumes in self._limited(pod).items():
            full |= nodes.pick(self._excess(driver, volumes) > 0)
        yield Reject(full, _REASON)

    def _excess(self, driver: str, volumes: set[CsiVolume]) -> IntColumn:
        """Return, per row, by how many volumes of a driver the limit would be exceeded."""
        held = self._attachments
        new = np.full(len(self.handle.snapshot.nodes), len(volumes), dtype=np.int64)
        rows = self.handle.snapshot.nodes.row_of
        for volume in volumes:
            for node in held.nodes_of(volume):
                if node in rows:
                    new[rows[node]] -= 1
        excess = held.used(driver) + new - held.limit(driver)
        return np.where(new > 0, np.maximum(excess, 0), 0)

    @hookimpl
    def slots(self, pod: PodInfo, nodes: NodeView) -> IntColumn:
        """Divide what is left of each limit by the volumes that equal pods do not share."""
        bound = np.full(len(nodes), np.iinfo(np.int64).max, dtype=np.int64)
        for driver, own in self._own(pod).items():
            left = self._attachments.limit(driver) - self._attachments.used(driver)
            bound = np.minimum(bound, nodes.pick(np.maximum(left, 0) // own))
        return bound

    def _own(self, pod: PodInfo) -> Mapping[str, int]:
        """Return, by limited driver, how many volumes each pod of this kind has of its own."""
        found: dict[str, int] = {}
        for used in used_by(pod):
            volume = self._attachments.volume_of(pod, used) if used.ephemeral else None
            if volume is not None and self._attachments.is_limited(volume.driver):
                found[volume.driver] = found.get(volume.driver, 0) + 1
        return found

    @hookimpl
    def remedies(self, pod: PodInfo, nodes: NodeView) -> Iterable[Remedy]:
        """Suggest fewer volumes on nodes where only one driver's limit is exceeded."""
        excess = {
            driver: nodes.pick(self._excess(driver, volumes))
            for driver, volumes in self._limited(pod).items()
        }
        full = sum((column > 0).astype(np.int64) for column in excess.values())
        for driver, column in excess.items():
            for place in np.flatnonzero((column > 0) & (full == 1)).tolist():
                count, row = int(column[place]), nodes.row_at(place)
                what = f"{count} volume{'s'[: count > 1]} of {driver} fewer"
                verb = "was" if count == 1 else "were"
                text = f"would fit on {nodes.table.names[row]} if {what} {verb} in use there"
                yield Remedy(text, row, float(count), frees=True)
