"""Gangs that run with fewer members than they need, and since when."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec
from msgspec.structs import replace

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


class BrokenGang(msgspec.Struct, frozen=True):
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
        there = (pod for name in now for pod in self._handle.snapshot.pods_on(name))
        self._ending = frozenset(pod.gang for pod in there if is_deleted(pod))
        changed, self._changed = self._changed, {}
        for key in {**changed, **dict.fromkeys(self._broken)}:
            found = self._read(key)
            self._broken.pop(key, None)
            if found is not None:
                self._broken[key] = found
        return list(self._broken.values())

    def _node_changed(self, name: str) -> None:
        for pod in self._handle.snapshot.pods_on(name):
            self._note(pod, True)

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
        bound = [pod for pod, _ in members.bound.values()]
        waiting = list(members.pending.values())
        if self._is_left(key, (*bound, *waiting)):
            return None
        if known is not None and members.gang is not None and not bound and not waiting:
            # Its controller makes others soon, or it is gone.
            soon = self._handle.unix_time < known.since + _UNTIL_MADE
            return replace(known, left=(), members=()) if soon else None
        # Of one that lost all nodes, those that wait for others say so.
        counts = bool(bound) or known is not None or any(map(_says, waiting))
        mine = all(map(self._handle.schedules, (*bound, *waiting)))
        has_any = bool(bound or waiting) and counts
        if members.gang is None or not has_any or not mine or members.count_ended("Succeeded"):
            self._complete.pop(key, None)
            self._says_for.pop(key, None)
            return None
        if key in self._handle.snapshot.objects(KaiPodGroup):
            return None
        return self._count(key, members.gang, bound, waiting)

    def _is_left(self, key: str, there: Iterable[PodInfo]) -> bool:
        """Tell whether a gang still has members from when it was left to its queue."""
        if key not in self._left:
            return False
        if not self._left[key].isdisjoint(pod.uid for pod in there):
            return True
        del self._left[key]
        return False

    def _count(
        self, key: str, gang: Gang, bound: Sequence[PodInfo], waiting: Sequence[PodInfo]
    ) -> BrokenGang | None:
        """Count the members of a gang of ours, and return it if it was complete and is no more."""
        # A member that has had notice runs until it goes.
        left = sorted((pod for pod in bound if not is_deleted(pod)), key=rank_order)
        # A member on its way to a node that it was given is as good as there.
        placed = self._handle.snapshot.placed
        coming = [pod for pod in waiting if pod.key in placed]
        run = [pod for pod in left if placed[pod.key][1] not in self._lost]
        if len(bound) + len(coming) >= gang.min_member:
            # Those that end, or are on a lost node, tell that it was complete.
            self._complete[key] = gang.min_member
        why = _lacks(gang, run + coming)
        if not why:
            self._says_for.pop(key, None)
            self._write([pod for pod in (*left, *waiting) if _says(pod)], None)
            return None
        known, said = self._broken.get(key), any(map(_says, (*left, *waiting)))
        was_complete = said or self._complete.get(key, 0) >= gang.min_member
        if known is None and not was_complete:
            return None
        since = known.since if known is not None else self._since((*left, *waiting))
        if not said:
            self._say(key, run or left or sorted(waiting, key=rank_order), since)
        ending = key in self._ending and len(left) + len(waiting) < gang.min_member
        free_since = since
        if known is not None:
            was_ending = known.ending and not ending
            free_since = self._handle.unix_time if was_ending else known.free_since
        return BrokenGang(key, gang.title, left, left or waiting, why, since, ending, free_since)

    def _say(self, key: str, here: Sequence[PodInfo], since: float) -> None:
        """Write that a gang is broken on the first of these members, once."""
        # The one that said so may have gone, and a restart would know nothing.
        if here and self._says_for.get(key) not in {pod.uid for pod in here}:
            self._says_for[key] = here[0].uid
            self._write(here[:1], since)

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
