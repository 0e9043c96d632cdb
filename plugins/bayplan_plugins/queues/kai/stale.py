"""Stale gangs: some members are gone for good, and the others hold nodes for nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bayplan import Handle, Overdue, PodInfo
from bayplan.api import KaiPodGroup
from bayplan.api.object_key import object_key
from bayplan.api.podgroup import STALE_SINCE
from bayplan.api.times import rfc3339
from bayplan.cluster.protocol import Event, PatchAnnotations
from bayplan.dialects.kai.queues import seconds_of
from bayplan.dialects.reading import timestamp
from bayplan.gangs.directory import GangMembers
from bayplan_plugins.queues.kai.jobs import Part, whole_of
from bayplan_plugins.queues.kai.texts import stale_job_text, stale_text

__all__ = ["StaleGangs"]


class StaleGangs:
    """Finds gangs below their minimum, and evicts them after a grace period.

    Only those are looked at that may have changed, and those that are stale.

    :param grace: in seconds, for gangs that state none of their own; negative for never.
    """

    def __init__(self, handle: Handle, grace: float) -> None:
        self._handle = handle
        self._grace = grace
        self._since: dict[str, float] = {}
        self._reported: set[str] = set()
        """The groups that say they are stale."""
        self._texts: dict[str, str] = {}
        """What groups that are stale were reported last, by key."""
        self._changed: set[str] = set()
        """Groups that may have changed since they were looked at."""
        snapshot = handle.snapshot
        snapshot.on_object(KaiPodGroup, self._group_changed)
        self._pods = (
            snapshot.on_pod(lambda pod, node, placed: self._pod_changed(pod)),
            snapshot.on_living(lambda pod, added: self._pod_changed(pod)),
        )
        snapshot.on_ended(lambda pod, there: self._pod_changed(pod))
        self._listen()

    @property
    def _groups(self) -> Mapping[str, KaiPodGroup]:
        return self._handle.snapshot.objects(KaiPodGroup)

    def _listen(self) -> None:
        for one in self._pods:
            one.listens = bool(self._groups)

    def _group_changed(self, old: KaiPodGroup | None, new: KaiPodGroup | None) -> None:
        if new is not None:
            self._changed.add(object_key(new))
        elif old is not None:
            key = object_key(old)
            self._changed.discard(key)
            self._forget(key)
        self._listen()

    def _pod_changed(self, pod: PodInfo) -> None:
        # In trials, too: what was placed in one may stay.
        if pod.gang is not None and pod.gang in self._groups:
            self._changed.add(pod.gang)

    def overdue(self) -> Overdue | None:
        """Return the pods of gangs that have been stale for too long."""
        now = self._handle.unix_time
        victims: list[tuple[PodInfo, str]] = []
        times: list[float] = []
        looked, self._changed = self._changed.union(self._since), set()
        for key in sorted(looked):
            group = self._groups.get(key)
            if group is None:
                continue
            members = self._handle.gang(key)
            stated = timestamp(group.metadata.annotations.get(STALE_SINCE))
            (self._reported.add if stated else self._reported.discard)(key)
            whole = self._stale_part(members)
            if whole is None:
                self._forget(key)
                continue
            if key not in self._since and stated:
                # It was reported by a scheduler before this one.
                self._texts[key] = stale_job_text(whole)
            since = self._since.setdefault(key, stated or now)
            self._tell(key, whole)
            own = seconds_of(group.spec.staleness_grace_period)
            grace = self._grace if own is None else own
            if grace < 0:
                continue
            if now < since + grace:
                times.append(since + grace - now + self._handle.now)
                continue
            victims += [(pod, stale_text(pod, whole)) for pod, _ in members.bound.values()]
        if not victims and not times:
            return None
        # What is left of such a gang does not work: it has nothing to save.
        at_once = frozenset(pod.key for pod, _ in victims)
        return Overdue(victims, min(times, default=None), at_once=at_once)

    def annotations(self) -> Iterator[PatchAnnotations]:
        """Yield since when groups are stale, and that others are so no more."""
        for key, since in self._since.items():
            yield PatchAnnotations(KaiPodGroup, key, {STALE_SINCE: rfc3339(since)})
        for key in self._reported - self._since.keys():
            yield PatchAnnotations(KaiPodGroup, key, {STALE_SINCE: None})

    def _stale_part(self, members: GangMembers) -> Part | None:
        """Return a gang if members run, none has succeeded, and too few have a node; else None.

        Members count for which a node is nominated: they come once the evicted pods there end.
        """
        if members.gang is None or not members.bound or members.count_ended("Succeeded"):
            return None
        placed = self._handle.snapshot.placed
        here = [pod for pod, _ in members.bound.values()]
        here += [pod for key, pod in members.pending.items() if key in placed]
        whole = whole_of(members.gang, here, ())
        return None if whole.satisfied else whole

    def _forget(self, key: str) -> None:
        self._since.pop(key, None)
        self._texts.pop(key, None)
        if key not in self._groups:
            self._reported.discard(key)

    def _tell(self, key: str, whole: Part) -> None:
        """Record an event of how many pods a stale group has, once for each number."""
        text = stale_job_text(whole)
        if self._texts.get(key) != text:
            self._texts[key] = text
            self._handle.submit(Event(key, "Normal", "StaleJob", text, about="PodGroup"))
