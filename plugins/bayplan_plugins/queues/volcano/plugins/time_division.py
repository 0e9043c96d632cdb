"""Volcano's plugin tdm: nodes that are lent to batch jobs in certain hours only."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

from bayplan import NodeView, Overdue, PodInfo, Reject
from bayplan.inputs.durations import parse_duration
from bayplan_plugins.queues.volcano.jobs import Job
from bayplan_plugins.queues.volcano.plugins.base import VolcanoPlugin
from bayplan_plugins.queues.volcano.session import Claimant, Session, Victim

__all__ = ["ZONE_LABEL", "TimeDivision", "may_use_lent_nodes", "merged"]

ZONE_LABEL = "volcano.sh/revocable-zone"
"""Of nodes that are lent; as an annotation of pods it says whether they may use such nodes."""
_ZONE_ARGUMENT = "tdm.revocable-zone."
_PERIOD_ARGUMENT = "tdm.evict.period"
_PREEMPTABLE = "volcano.sh/preemptable"
_MAX_UNAVAILABLE = "volcano.sh/jdb-max-unavailable"
_MIN_AVAILABLE = "volcano.sh/jdb-min-available"
_HOURS = re.compile(r"(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})")
_PERIOD = 60.0
_DAY = 24 * 60
_CLOSED = "node(s) were lent at other hours only"
_KEPT = "node(s) were lent to revocable pods only"


class TimeDivision(VolcanoPlugin):
    """Lends revocable nodes to the pods that opted in, in the hours of their zone only.

    Pods that opted in have to leave at the end of the hours. Hours are in UTC; those that end
    before they start end on the next day. A zone without hours is never open.
    """

    def __init__(self, session: Session, arguments: Mapping[str, Any], hierarchical: bool) -> None:
        super().__init__(session, arguments, hierarchical)
        self._zones = {
            name.removeprefix(_ZONE_ARGUMENT): _minutes(str(text))
            for name, text in arguments.items()
            if name.startswith(_ZONE_ARGUMENT)
        }
        self._period = _PERIOD
        if _PERIOD_ARGUMENT in arguments:
            self._period = parse_duration(str(arguments[_PERIOD_ARGUMENT]))
        self._last = -math.inf
        self._were_open: frozenset[str] = frozenset()

    def node_kind(self, pod: PodInfo) -> Hashable:
        """Tell apart the pods that may use revocable nodes, and which of these."""
        return tuple(zone for zone in self._zones if self._is_open(zone)), may_use_lent_nodes(pod)

    def refused_nodes(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse revocable nodes outside of their zone's hours, and to pods that did not opt in."""
        zones = nodes.label(ZONE_LABEL)
        lent = zones.where(bool(zone) for zone in zones.values)
        is_open = zones.where(self._is_open(zone) for zone in zones.values)
        yield Reject(lent & ~is_open, _CLOSED, resolvable=False)
        if not may_use_lent_nodes(pod):
            yield Reject(lent, _KEPT, resolvable=False)

    def job_order(self, job: Job, pods: Iterable[PodInfo]) -> tuple[float, ...]:
        """Put jobs that did not opt in first."""
        some = (*job.placed.values(), *pods)
        return (float(any(_opted_in(pod) for pod in some)),)

    def starving(self, job: Job, pending: int) -> bool:
        """Tell whether a job that did not opt in has pods that wait; others ask for no room."""
        group = self.session.jobs.group(job.key)
        meta = group.metadata if group is not None else None
        if meta is not None and _is_true(_either(_PREEMPTABLE, meta.annotations, meta.labels)):
            return False
        return pending > 0 and not any(_opted_in(pod) for pod in job.placed.values())

    def preemptable(self, claimant: Claimant, victim: Victim) -> bool:
        """Take pods that opted in from nodes that are not lent, as many as their job's budget says.

        Pods that opted in themselves, or may use lent nodes, take nobody's place.
        """
        if any(_opted_in(pod) or may_use_lent_nodes(pod) for pod in claimant.pods):
            return False
        placed = self.session.handle.snapshot.placed
        return all(
            _opted_in(pod) and pod.key in placed and not self._zone(placed[pod.key][1])
            for pod in victim.pods
        ) and len(victim.pods) <= self._budget(victim.job)

    def victims(self) -> Overdue | None:
        """Return the pods that have to leave, once in each period, and when hours start or end.

        Jobs that wait are tried again once a zone opens.
        """
        handle = self.session.handle
        zones = self._zones_of_nodes()
        are_open = frozenset(zone for zone in zones if self._is_open(zone))
        opened, self._were_open = bool(are_open - self._were_open), are_open
        times = [self._next_change(zone) for zone in zones]
        found: list[PodInfo] = []
        if handle.now < self._last + self._period:
            times.append(self._last + self._period)
        else:
            found = [pod for job in self._jobs() for pod in self._of(job)]
        if found:
            self._last = handle.now
            times.append(handle.now + self._period)
        if not times and not opened:
            return None
        reason = "its node is revocable, and the hours of its zone are over"
        return Overdue([(pod, reason) for pod in found], min(times, default=None), opened)

    def _jobs(self) -> list[Job]:
        return list(self.session.jobs.with_pods())

    def _of(self, job: Job) -> list[PodInfo]:
        """Return a job's pods on nodes that are revoked now, as many as its budget allows."""
        placed = self.session.handle.snapshot.placed
        leaving = [
            pod
            for pod in job.placed.values()
            if _opted_in(pod) and self._revoked(placed[pod.key][1])
        ]
        leaving.sort(key=lambda pod: pod.key, reverse=True)
        return leaving[: self._budget(job)] if leaving else []

    def _revoked(self, node: str) -> bool:
        zone = self._zone(node)
        return zone in self._zones and not self._is_open(zone)

    def _is_open(self, zone: str) -> bool:
        hours = self._zones.get(zone)
        if hours is None:
            return False
        start, end = hours
        minute = self._minute()
        return start <= minute < end or start <= minute + _DAY < end

    def _minute(self) -> float:
        """Return the present time in minutes of the day."""
        return self.session.handle.unix_time / 60 % _DAY

    def _zones_of_nodes(self) -> list[str]:
        """Return the zones with hours that any node is in."""
        values = self.session.handle.snapshot.nodes.label(ZONE_LABEL).values
        return [zone for zone in values if self._zones.get(zone) is not None]

    def _next_change(self, zone: str) -> float:
        """Return when a zone opens or closes next, in the scheduler's seconds."""
        hours, minute = self._zones[zone], self._minute()
        assert hours is not None, "the caller names zones with hours"
        left = min((at - minute) % _DAY or _DAY for at in hours)
        return self.session.handle.now + 60 * left

    def _zone(self, node: str) -> str:
        found = self.session.handle.snapshot.node(node)
        return found.metadata.labels.get(ZONE_LABEL, "") if found is not None else ""

    def _budget(self, job: Job) -> int:
        """Return how many pods of a job may go at once: by its disruption budget, else one."""
        group = self.session.jobs.group(job.key)
        stated = group.metadata.annotations if group is not None else {}
        gang = self.session.handle.gang(job.key)
        total = max(gang.present, len(job.placed))
        running = len(job.placed)
        if _MAX_UNAVAILABLE in stated:
            return max(0, _count(stated[_MAX_UNAVAILABLE], total) - (total - running))
        if _MIN_AVAILABLE in stated:
            return max(0, running - _count(stated[_MIN_AVAILABLE], total))
        return 1


def _opted_in(pod: PodInfo) -> bool:
    """Tell whether a pod may be evicted: as its annotation says, or else its label."""
    return _is_true(_either(_PREEMPTABLE, pod.annotations, pod.labels))


def _either(key: str, annotations: Mapping[str, str], labels: Mapping[str, str]) -> str | None:
    return annotations.get(key, labels.get(key))


def may_use_lent_nodes(pod: PodInfo) -> bool:
    """Tell whether a pod may use revocable nodes: it says so, or its annotation that it may go."""
    zones = pod.annotations.get(ZONE_LABEL)
    return _is_true(pod.annotations.get(_PREEMPTABLE)) if zones is None else zones == "*"


def _is_true(text: str | None) -> bool:
    """Read a truth value as Go does."""
    return text in ("1", "t", "T", "true", "TRUE", "True")


def _minutes(text: str) -> tuple[int, int] | None:
    """Return when hours start and end, in minutes of the day; None for what cannot be read."""
    found = _HOURS.fullmatch(text.replace(" ", ""))
    if found is None:
        return None
    hours = [int(part) for part in found.groups()]
    start, end = hours[0] * 60 + hours[1], hours[2] * 60 + hours[3]
    return start, end if end > start else end + _DAY


def _count(text: str, total: int) -> int:
    """Return a number, or a percentage of a total, rounded up; 1 for what cannot be read."""
    number, percent = text.removesuffix("%"), text.endswith("%")
    if not number.isdigit():
        return 1
    return math.ceil(int(number) * total / 100) if percent else int(number)


def merged(found: Iterator[Overdue]) -> Overdue | None:
    """Return what several plugins want to evict, and the first time to ask again."""
    all_found = list(found)
    if not all_found:
        return None
    victims = [pair for one in all_found for pair in one.victims]
    times = [one.again for one in all_found if one.again is not None]
    return Overdue(victims, min(times, default=None), any(one.waited for one in all_found))
