"""The pod groups that wait to be admitted, in kinds that get the same answer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

import msgspec

from bayplan.api import VolcanoPodGroup
from bayplan.snapshot import Snapshot

__all__ = ["WaitingGroups", "WaitingKind", "waits"]

_WAITING = ("", "Pending")


def waits(group: VolcanoPodGroup) -> bool:
    """Tell whether a pod group has not been admitted yet."""
    return group.status.phase in _WAITING


class WaitingKind(msgspec.Struct, eq=False):
    """Groups, by key, of one queue and namespace that ask for the same.

    ``why`` says why they are not admitted, None before anybody asked and where one is. Events have
    said so, in the words ``reported``, of all groups but those ``unreported``.
    """

    queue: str
    groups: dict[str, None] = msgspec.field(default_factory=dict)
    why: str | None = None
    reported: str = ""
    unreported: set[str] = msgspec.field(default_factory=set)


class WaitingGroups:
    """Follows the groups that wait.

    :param apart: tells groups apart that do not get the same answer for another reason.
    """

    def __init__(self, snapshot: Snapshot, apart: Callable[[VolcanoPodGroup], Hashable]) -> None:
        self._apart = apart
        self._kinds: dict[Hashable, WaitingKind] = {}
        self._name_of: dict[str, Hashable] = {}
        for group in snapshot.objects(VolcanoPodGroup).values():
            self._changed(None, group)
        snapshot.on_object(VolcanoPodGroup, self._changed)

    @property
    def kinds(self) -> Mapping[Hashable, WaitingKind]:
        """All kinds that any group is of."""
        return self._kinds

    def kind_of(self, key: str) -> WaitingKind | None:
        """Return the kind of a group by key, None where it does not wait."""
        return self._kinds.get(self._name_of.get(key))

    def _changed(self, old: VolcanoPodGroup | None, new: VolcanoPodGroup | None) -> None:
        if old is not None:
            self._leave(f"{old.metadata.namespace}/{old.metadata.name}")
        if new is not None and waits(new):
            self._enter(new)

    def _enter(self, group: VolcanoPodGroup) -> None:
        meta, spec = group.metadata, group.spec
        key = f"{meta.namespace}/{meta.name}"
        asks = tuple(sorted((name, amount.text) for name, amount in spec.min_resources.items()))
        name = (spec.queue, meta.namespace, asks, self._apart(group))
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kinds[name] = WaitingKind(spec.queue)
        kind.groups[key] = None
        kind.unreported.add(key)
        self._name_of[key] = name

    def _leave(self, key: str) -> None:
        name = self._name_of.pop(key, None)
        kind = self._kinds.get(name)
        if kind is None:
            return
        del kind.groups[key]
        kind.unreported.discard(key)
        if not kind.groups:
            del self._kinds[name]
