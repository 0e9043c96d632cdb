"""The free volumes of one storage class, and from where they can be reached."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from bayplan.api import PersistentVolume
from bayplan.api.pod import NodeSelector
from bayplan.api.volumes import ClaimNeeds, size_of
from bayplan.naming import natural_key
from bayplan.plugin.hookspecs import BoolColumn, IntColumn
from bayplan_plugins.shared.volumes.labels import LabelRows

__all__ = ["NO_VOLUME", "VolumeTable"]

Rows = npt.NDArray[np.intp]
NO_VOLUME = -1


class VolumeTable:
    """Volumes as columns, sorted by size, then by name; a volume's place is its index.

    Volumes with equal node affinity form a group, of which only the first free one matters.
    """

    def __init__(self, labels: LabelRows) -> None:
        self._labels = labels
        self._known: dict[str, PersistentVolume] = {}
        self._free_names: set[str] = set()
        self._stale = False
        self.volumes: list[PersistentVolume] = []
        self._index: dict[str, int] = {}
        self._free: BoolColumn = np.zeros(0, dtype=np.bool_)
        self._group: IntColumn = np.zeros(0, dtype=np.int64)
        self._selectors: list[NodeSelector | None] = []
        self._members: list[Rows] = []
        self._suiting: dict[ClaimNeeds, BoolColumn] = {}
        self._reach: tuple[object, Rows, IntColumn] | None = None

    # Changes ---------------------------------------------------------------------------------

    def offer(self, volume: PersistentVolume) -> None:
        """Add a volume that any claim may take."""
        name = volume.metadata.name
        known = self._known.get(name)
        if known is None or not _alike(known, volume):
            self._known[name] = volume
            self._stale = True
        self.set_free(name, True)

    def set_free(self, name: str, free: bool) -> None:
        """Record whether a volume can be taken; volumes that were never offered are ignored."""
        if free and name in self._known:
            self._free_names.add(name)
        else:
            self._free_names.discard(name)
        if name in self._index and not self._stale:
            self._free[self._index[name]] = free

    def drop(self, name: str) -> None:
        """Remove a volume that is gone."""
        self.set_free(name, False)
        if self._known.pop(name, None) is not None:
            self._stale = True

    def _refresh(self) -> None:
        if not self._stale:
            return
        self._known = {name: self._known[name] for name in self._known if name in self._free_names}
        self.volumes = sorted(
            self._known.values(), key=lambda v: (size_of(v), natural_key(v.metadata.name))
        )
        self._index = {v.metadata.name: place for place, v in enumerate(self.volumes)}
        self._free = np.ones(len(self.volumes), dtype=np.bool_)
        groups: dict[NodeSelector | None, int] = {}
        codes = [groups.setdefault(v.affinity, len(groups)) for v in self.volumes]
        self._group = np.array(codes, dtype=np.int64)
        self._selectors = list(groups)
        order = np.argsort(self._group, kind="stable")
        starts = np.searchsorted(self._group[order], np.arange(len(groups) + 1))
        self._members = [order[starts[g] : starts[g + 1]] for g in range(len(groups))]
        self._suiting.clear()
        self._reach = None
        self._stale = False

    # Questions -------------------------------------------------------------------------------

    def first(self, needs: ClaimNeeds, nodes: int) -> IntColumn:
        """Return, per node row, the place of the first volume for a claim, or NO_VOLUME."""
        self._refresh()
        beyond = len(self.volumes)
        places = np.flatnonzero(self._suitable(needs))
        of_group = np.full(len(self._selectors), beyond, dtype=np.int64)
        np.minimum.at(of_group, self._group[places], places)
        rows, groups = self._reached()
        column = np.full(nodes, beyond, dtype=np.int64)
        np.minimum.at(column, rows, of_group[groups])
        return np.where(column < beyond, column, NO_VOLUME)

    def first_on(self, needs: ClaimNeeds, row: int, but: Collection[int]) -> int:
        """Return the place of the first volume for a claim on a row, ``but`` some; or NO_VOLUME."""
        self._refresh()
        suitable = self._suitable(needs)
        rows, groups = self._reached()
        low, high = np.searchsorted(rows, [row, row + 1])
        best = NO_VOLUME
        for group in groups[low:high]:
            members = self._members[group]
            for place in members[suitable[members]].tolist():
                if place not in but:
                    best = place if best == NO_VOLUME else min(best, place)
                    break
        return best

    def _suitable(self, needs: ClaimNeeds) -> BoolColumn:
        kept = self._suiting.get(needs)
        if kept is None:
            kept = np.array([needs.are_met_by(v) for v in self.volumes], dtype=np.bool_)
            self._suiting[needs] = kept
        return kept & self._free

    def _reached(self) -> tuple[Rows, IntColumn]:
        """Return pairs of a node row and a group that it reaches, sorted by row."""
        if self._reach is None or self._reach[0] != self._labels.version:
            parts = [self._labels.selected(selector) for selector in self._selectors]
            sizes = np.array([len(part) for part in parts], dtype=np.intp)
            rows = np.concatenate([np.zeros(0, dtype=np.intp), *parts])
            groups = np.repeat(np.arange(len(parts)), sizes)
            order = np.argsort(rows, kind="stable")
            self._reach = (self._labels.version, rows[order], groups[order])
        return self._reach[1], self._reach[2]


def _alike(one: PersistentVolume, other: PersistentVolume) -> bool:
    """Tell whether two versions of a volume serve the same claims."""
    same_labels = one.metadata.labels == other.metadata.labels
    same_class = one.metadata.annotations == other.metadata.annotations
    freed = (replace(v.spec, claim_ref=None) for v in (one, other))
    return same_labels and same_class and next(freed) == next(freed)
