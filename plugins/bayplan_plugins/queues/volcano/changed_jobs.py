"""Which jobs changed: their pod groups, their pods, or where those are."""

from __future__ import annotations

from bayplan import PodInfo
from bayplan.api import VolcanoPodGroup
from bayplan.snapshot import Snapshot

__all__ = ["ChangedJobs"]


class ChangedJobs:
    """The keys of jobs of which anything changed since one reader last took them.

    ``version`` changes with any of them. All that are there at first are new.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._keys: set[str] = set()
        self.version = 0
        for group in snapshot.objects(VolcanoPodGroup).values():
            self._group_changed(None, group)
        for pod in snapshot.living.values():
            self._mark(pod)
        snapshot.on_living(lambda pod, _: self._mark(pod))
        snapshot.on_pod(lambda pod, _, __: self._mark(pod))
        snapshot.on_object(VolcanoPodGroup, self._group_changed)

    def take(self) -> set[str]:
        """Return the keys, once."""
        keys, self._keys = self._keys, set()
        return keys

    def _mark(self, pod: PodInfo) -> None:
        self._keys.add(pod.gang or pod.key)
        self.version += 1

    def _group_changed(self, old: VolcanoPodGroup | None, new: VolcanoPodGroup | None) -> None:
        group = new or old
        if group is not None:
            self._keys.add(f"{group.metadata.namespace}/{group.metadata.name}")
            self.version += 1
