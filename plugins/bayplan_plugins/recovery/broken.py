"""Gangs that run with fewer members than they need, and since when."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from bayplan import Handle, PodInfo
from bayplan.api import KaiPodGroup, Pod
from bayplan.api.gang import Gang
from bayplan.api.times import rfc3339
from bayplan.cluster.protocol import PatchFields, annotation_field
from bayplan.dialects.reading import timestamp
from bayplan.gangs.completeness import missing_role, rank_order

__all__ = ["BROKEN_SINCE", "BrokenGang", "BrokenGangs", "is_deleted"]

_UNTIL_MADE = 120.0
"""Seconds in which a gang without any members gets others."""
BROKEN_SINCE = "bayplan.dev/broken-since"
"""On the first member that is left of a gang below its minimum: since when, in RFC 3339."""


@dataclass(frozen=True)
class BrokenGang:
    """A gang with too few members: those that hold nodes, why, and since when (seconds, 1970).

    ``members`` are these, or those that wait for nodes if none is left. ``ending`` says that a
    member is missing that still ends on a node that is lost: its controller cannot make it again
    before it is gone. ``free_since`` is since when none does.
    """

    key: str
    title: str
    left: Sequence[PodInfo]
    members: Sequence[PodInfo]
    why: str
    since: float
    ending: bool
    free_since: float


class BrokenGangs:
    """Follows the members of gangs. Groups of KAI are left to its own action for stale gangs."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._changed: dict[str, None] = {}
        self._broken: dict[str, BrokenGang] = {}
        self._says_for: dict[str, str] = {}
        """The member, by uid, on which it was written that its gang is broken."""
        self._complete: dict[str, int] = {}
        """The minimum for which each gang was complete: one that is raised breaks nothing."""
        self._left: dict[str, frozenset[str]] = {}
        """The members, by uid, of gangs that their queues have taken back, until they are gone."""
        self._lost: frozenset[str] = frozenset()
        self._ending: frozenset[str | None] = frozenset()
        """The gangs with a member that ends on a lost node, which they may not count any more."""
        handle.snapshot.on_living(self._note)
        handle.snapshot.on_pod(self._placed)
        for pod in handle.snapshot.living.values():
            self._note(pod, True)

    def _note(self, pod: PodInfo, added: bool) -> None:
        if pod.gang is not None:
            self._changed[pod.gang] = None

    def _placed(self, pod: PodInfo, node: str, placed: bool) -> None:
        # A gang is complete once its members have nodes, which no new version of them tells; those
        # that a trial leaves there are placed in it.
        if placed:
            self._note(pod, True)

    def look(self, lost: Collection[str]) -> Sequence[BrokenGang]:
        """Return the gangs that are below their minimum.

        :param lost: the nodes on which nothing runs any more.
        """
        now = frozenset(lost)
        for name in now ^ self._lost:
            self._node_changed(name)
        self._lost = now
        there = (pod for name in now for pod in self._on(name))
        self._ending = frozenset(pod.gang for pod in there if is_deleted(pod))
        changed, self._changed = self._changed, {}
        for key in {**changed, **dict.fromkeys(self._broken)}:
            found = self._read(key)
            self._broken.pop(key, None)
            if found is not None:
                self._broken[key] = found
        return list(self._broken.values())

    def _node_changed(self, name: str) -> None:
        for pod in self._on(name):
            self._note(pod, True)

    def _on(self, node: str) -> Iterable[PodInfo]:
        table = self._handle.snapshot.nodes
        row = table.row_of.get(node)
        return table.pods[row].values() if row is not None else ()

    def __len__(self) -> int:
        """Return how many gangs were broken at the last look."""
        return len(self._broken)

    def leave(self, key: str) -> None:
        """Leave a gang to its queue, which ends its members: it begins with others."""
        members = self._handle.gang(key)
        bound = (pod for pod, _ in members.bound.values())
        self._left[key] = frozenset(pod.uid for pod in (*bound, *members.pending.values()))
        for known in (self._broken, self._complete, self._says_for):
            known.pop(key, None)

    def _read(self, key: str) -> BrokenGang | None:
        """Return a gang if it is broken."""
        members, known = self._handle.gang(key), self._broken.get(key)
        gang, bound = members.gang, members.bound.values()
        waiting = list(members.pending.values())
        if key in self._left:
            there = {pod.uid for pod in (*(pod for pod, _ in bound), *waiting)}
            if not there.isdisjoint(self._left[key]):
                return None
            del self._left[key]
        # Of one that lost all nodes, those that wait for others say so.
        is_known = known is not None or any(map(_says, waiting))
        if known is not None and gang is not None and not bound and not waiting:
            # Its controller makes others soon, or it is gone.
            soon = self._handle.unix_time < known.since + _UNTIL_MADE
            return replace(known, left=(), members=()) if soon else None
        mine = all(map(self._handle.schedules, (*(pod for pod, _ in bound), *waiting)))
        has_any = bool(bound) or (bool(waiting) and is_known)
        if gang is None or not has_any or not mine or members.count_ended("Succeeded"):
            self._complete.pop(key, None)
            self._says_for.pop(key, None)
            return None
        if key in self._handle.snapshot.objects(KaiPodGroup):
            return None
        # A member that has had notice runs until it goes.
        left = sorted((pod for pod, _ in bound if not is_deleted(pod)), key=rank_order)
        # A member on its way to a node that it was given is as good as there.
        placed = self._handle.snapshot.placed
        coming = [pod for name, pod in members.pending.items() if name in placed]
        run = [pod for pod in left if placed[pod.key][1] not in self._lost]
        why = _lacks(gang, run + coming)
        if len(bound) + len(coming) >= gang.min_member:
            # Those that end, or are on a lost node, tell that it was complete.
            self._complete[key] = gang.min_member
        if not why:
            self._says_for.pop(key, None)
            self._write([pod for pod in (*left, *waiting) if _says(pod)], None)
            return None
        said = any(map(_says, (*left, *waiting)))
        was_complete = said or self._complete.get(key, 0) >= gang.min_member
        if not (known is not None or was_complete):
            return None
        here = run or left or sorted(waiting, key=rank_order)
        since = known.since if known is not None else self._since((*left, *waiting))
        if here and not said and self._says_for.get(key) not in {pod.uid for pod in here}:
            # The one that said so may have gone, and a restart would know nothing.
            self._says_for[key] = here[0].uid
            self._write(here[:1], since)
        ending = key in self._ending and len(left) + len(members.pending) < gang.min_member
        free_since = since
        if known is not None:
            now = self._handle.unix_time
            free_since = now if known.ending and not ending else known.free_since
        members_now = left or waiting
        return BrokenGang(key, gang.title, left, members_now, why, since, ending, free_since)

    def _since(self, left: Sequence[PodInfo]) -> float:
        """Return since when a gang is broken, as a process before this one wrote it, or now."""
        stated = [timestamp(pod.annotations[BROKEN_SINCE]) for pod in left if _says(pod)]
        now = self._handle.unix_time
        return min((at for at in stated if 0 < at <= now), default=now)

    def _write(self, pods: Sequence[PodInfo], since: float | None) -> None:
        text = rfc3339(since) if since is not None else None
        for pod in pods:
            fields = annotation_field(pod.annotations, BROKEN_SINCE, text)
            # Through the status, which bayplan may write anyway, as notices of evictions.
            self._handle.submit(PatchFields(Pod, pod.key, pod.uid, fields, "status"))


def _lacks(gang: Gang, here: Sequence[PodInfo]) -> str:
    """Return what a gang with these members lacks, "" for nothing."""
    if len(here) < gang.min_member:
        return f"{len(here)} of the {gang.min_member} members that it needs are left"
    role = missing_role(gang, here)
    if role is not None:
        return f"{role[1]} of the {role[2]} members of role {role[0]} that it needs are left"
    return ""


def is_deleted(pod: PodInfo) -> bool:
    """Tell whether a pod ends now; one that has only had notice still works."""
    return pod.pod.metadata.deletion_timestamp is not None


def _says(pod: PodInfo) -> bool:
    return BROKEN_SINCE in pod.annotations
