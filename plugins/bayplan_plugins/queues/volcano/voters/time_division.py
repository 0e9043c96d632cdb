"""Volcano's plugin tdm: nodes that are lent to batch jobs in certain hours only."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from bayplan import Overdue, PodInfo
from bayplan.inputs.durations import parse_duration
from bayplan_plugins.queues.volcano.jobs import Job
from bayplan_plugins.queues.volcano.session import Session
from bayplan_plugins.queues.volcano.voters.base import Voter

__all__ = ["TimeDivision"]

_ZONE_LABEL = "volcano.sh/revocable-zone"
_ZONE_ARGUMENT = "tdm.revocable-zone."
_PERIOD_ARGUMENT = "tdm.evict.period"
_PREEMPTABLE = "volcano.sh/preemptable"
_MAX_UNAVAILABLE = "volcano.sh/jdb-max-unavailable"
_MIN_AVAILABLE = "volcano.sh/jdb-min-available"
_HOURS = re.compile(r"(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})")
_PERIOD = 60.0
_DAY = 24 * 60


class TimeDivision(Voter):
    """Evicts the pods that opted in from revocable nodes outside of their zone's hours.

    Hours are in UTC; those that end before they start end on the next day.
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

    def job_order(self, job: Job, pods: Iterable[PodInfo]) -> tuple[float, ...]:
        """Put jobs that did not opt in first."""
        some = (*job.placed.values(), *pods)
        return (float(any(_opted_in(pod) for pod in some)),)

    def victims(self) -> Overdue | None:
        """Return the pods that have to leave, once in each period."""
        handle = self.session.handle
        if handle.now < self._last + self._period:
            return Overdue(again=self._last + self._period)
        found = [pod for job in self._jobs() for pod in self._of(job)]
        if not found:
            at = self._next_end()
            return None if at is None else Overdue(again=at)
        self._last = handle.now
        reason = "its node is revocable, and the hours of its zone are over"
        return Overdue([(pod, reason) for pod in found], handle.now + self._period)

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
        hours = self._zones[zone]
        if hours is None:
            return False
        start, end = hours
        at = datetime.fromtimestamp(self.session.handle.unix_time, UTC)
        minute = at.hour * 60 + at.minute + at.second / 60
        return start <= minute < end or start <= minute + _DAY < end

    def _next_end(self) -> float | None:
        """Return when the first zone closes that has such pods now, in the scheduler's seconds."""
        handle = self.session.handle
        placed = handle.snapshot.placed
        running = (pod for job in self._jobs() for pod in job.placed.values() if _opted_in(pod))
        zones = {self._zone(placed[pod.key][1]) for pod in running}
        hours = [self._zones[zone] for zone in zones if zone in self._zones and self._is_open(zone)]
        minute = handle.unix_time / 60 % _DAY
        left = [(one[1] - minute) % _DAY for one in hours if one is not None]
        return handle.now + 60 * min(left) if left else None

    def _zone(self, node: str) -> str:
        found = self.session.handle.snapshot.node(node)
        return found.metadata.labels.get(_ZONE_LABEL, "") if found is not None else ""

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
    return "true" in (pod.annotations.get(_PREEMPTABLE), pod.labels.get(_PREEMPTABLE))


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
