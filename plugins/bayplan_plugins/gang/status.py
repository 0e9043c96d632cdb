"""The status of pod groups: phases, conditions and events, in the words of their systems.

Koordinator's and scheduler-plugins' phases, Volcano's phase with an ``Unschedulable`` condition,
KAI's conditions, Grove's phase and ``Scheduled``, Kubernetes' ``PodGroupScheduled``,
``PodGroupInitiallyScheduled`` in 1.37. What a
system's API does not have is not written: an API server would leave it out, and the status would
never be what it should be.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

import msgspec

from bayplan import Eviction, Handle, PodInfo
from bayplan.api import (
    ApiObject,
    KaiPodGroup,
    NativePodGroup,
    PodGroup,
    SchedulerPluginsPodGroup,
    VolcanoPodGroup,
    kind_of,
)
from bayplan.api.conditions import without_times
from bayplan.api.operated import PodGang, PodGangStatus
from bayplan.api.podgroup import (
    LAST_EVICTION,
    LAST_START,
    ConditionedStatus,
    GroupCondition,
    KaiPodGroupStatus,
    NativePodGroupStatus,
    PodGroupStatus,
    SchedulerPluginsPodGroupStatus,
    UnschedulableReason,
)
from bayplan.api.times import rfc3339
from bayplan.cluster.protocol import Event, PatchAnnotations, PatchStatus
from bayplan.gangs.completeness import has_minimum
from bayplan.gangs.directory import GangMembers
from bayplan.plugin.decision import NODES_LACK, NOT_READY
from bayplan_plugins.gang.grove import pod_gang_status
from bayplan_plugins.gang.kai import eviction_event, last_start, not_ready, scheduling_conditions
from bayplan_plugins.gang.lacks import Lack, Lacks

__all__ = ["GroupStatuses", "Write", "phase_of"]

Write = PatchStatus | PatchAnnotations | Event
_Status = (
    PodGroupStatus
    | SchedulerPluginsPodGroupStatus
    | ConditionedStatus
    | KaiPodGroupStatus
    | NativePodGroupStatus
    | PodGangStatus
)

_GROUPS: tuple[type[Any], ...] = (
    PodGroup,
    SchedulerPluginsPodGroup,
    VolcanoPodGroup,
    KaiPodGroup,
    NativePodGroup,
    PodGang,
)
_INQUEUE = "Inqueue"
_INITIALLY = "PodGroupInitiallyScheduled"
_BEING_MADE = "being made"
"""What is recorded in the place of texts that count the pods there are."""
_REPLACED_WITHIN = 2.0
"""Seconds in which controllers make members again; only then a group that runs lacks them."""


class _Recorded(msgspec.Struct):
    """What was recorded of a gang: the last event, its start, and its last eviction (RFC 3339)."""

    message: str = ""
    started: bool = False
    evicted: str = ""


class GroupStatuses:
    """Knows what the objects of gangs should say, and what was recorded of them."""

    def __init__(self, handle: Handle, lacks: Lacks) -> None:
        self._handle = handle
        self._lacks = lacks
        self._recorded: WeakKeyDictionary[GangMembers, _Recorded] = WeakKeyDictionary()
        self._lacking: dict[str, float] = {}
        """When Volcano's groups that run began to lack members, by key."""

    def of(self, members: GangMembers, why: str) -> Iterator[Write]:
        """Yield what the objects of a gang do not say yet.

        :param why: what keeps the gang pending, "" for nothing.
        """
        gang = members.gang
        if gang is None:
            self._recorded.pop(members, None)
            return
        if not _runs_short(members):
            self._lacking.pop(gang.key, None)
        message = gang.problem or (why if members.pending else "") or self._lack(members)
        for type_ in _GROUPS:
            group: ApiObject | None = self._handle.snapshot.objects(type_).get(gang.key)
            if group is None:
                continue
            status = self._status(group, gang.key, members, message)
            if status != without_times(getattr(group, "status", None)):
                yield PatchStatus(type_, gang.key, status)
            yield from self._events(group, gang.key, members, message)
            if isinstance(group, KaiPodGroup):
                yield from self._start(gang.key, group, members)

    @property
    def lacking(self) -> list[str]:
        """The groups, by key, that have lacked members for so long that their phase says so."""
        groups = self._handle.snapshot.objects(VolcanoPodGroup)
        due = [key for key in self._lacking if self._is_short(key)]
        return [key for key in due if key in groups and groups[key].status.phase != "Unknown"]

    @property
    def next_lack(self) -> float | None:
        """When the next group will have lacked members for that long, in seconds; None if none."""
        times = (since + _REPLACED_WITHIN for since in self._lacking.values())
        return min((at for at in times if at > self._handle.now), default=None)

    def _lack(self, members: GangMembers) -> str:
        gang = members.gang
        if gang is None or not self._is_short(gang.key):
            return ""
        return f"{members.present} members exist of the {gang.min_member} that it needs to run"

    def _is_short(self, key: str) -> bool:
        since = self._lacking.get(key)
        return since is not None and self._handle.now >= since + _REPLACED_WITHIN

    def of_eviction(self, pod: PodInfo, eviction: Eviction) -> Iterator[Write]:
        """Yield what tells a KAI pod group that one of its members was evicted."""
        key = pod.gang
        if key is None or key not in self._handle.snapshot.objects(KaiPodGroup):
            return
        yield eviction_event(key, eviction)
        recorded, now = self._record(self._handle.gang(key)), rfc3339(self._handle.unix_time)
        if recorded.evicted != now:
            recorded.evicted = now
            yield PatchAnnotations(KaiPodGroup, key, {LAST_EVICTION: now})

    def _record(self, members: GangMembers) -> _Recorded:
        return self._recorded.setdefault(members, _Recorded())

    def _status(self, group: ApiObject, key: str, members: GangMembers, message: str) -> _Status:
        if isinstance(group, SchedulerPluginsPodGroup):
            return SchedulerPluginsPodGroupStatus(
                phase_of(members),
                members.running,
                members.count_ended("Succeeded"),
                members.count_ended("Failed"),
            )
        if isinstance(group, PodGroup):
            return PodGroupStatus(
                phase_of(members),
                len(members.bound),
                members.running,
                members.count_ended("Succeeded"),
                members.count_ended("Failed"),
            )
        if isinstance(group, PodGang):
            return pod_gang_status(group, members, message, self._waits(members) is None)
        if isinstance(group, NativePodGroup):
            return _native(group, members, message, self._waits(members) is None)
        assert isinstance(group, VolcanoPodGroup | KaiPodGroup)
        if isinstance(group, KaiPodGroup):
            now = rfc3339(self._handle.unix_time)
            refusal = partial(self._refusal, members)
            found = scheduling_conditions(group, members, message, refusal, now)
            return KaiPodGroupStatus((_condition(members, message, len(members.bound)),), found)
        if _runs_short(members):
            self._lacking.setdefault(key, self._handle.now)
        return _volcano(members, message, self._is_inqueue(key, group), self._is_short(key))

    def _is_inqueue(self, key: str, group: VolcanoPodGroup) -> bool:
        """Tell whether a group is in phase Inqueue, also where the watch does not show it yet."""
        phase, queueing = group.status.phase, self._handle.queueing
        if phase in ("", "Pending") and queueing is not None:
            return queueing.is_admitted(key)
        return phase == _INQUEUE

    def _refusal(self, members: GangMembers) -> UnschedulableReason | None:
        """Return why the queue of a pending gang does not take it, None if it does."""
        queueing = self._handle.queueing
        if queueing is None:
            return None
        return queueing.unschedulable_reason(self._handle.unit(list(members.pending.values())))

    def _events(
        self, group: ApiObject, key: str, members: GangMembers, message: str
    ) -> Iterator[Event]:
        """Yield an event of what keeps a group pending, once for each message.

        That its pods are still being made is no warning, and but for KAI is said once.
        """
        lack = self._waits(members) if message else None
        waits = not_ready(members) if isinstance(group, KaiPodGroup) else ""
        passing = bool(waits) or (lack is not None and lack.passing)
        text, recorded = waits or message, self._record(members)
        mark = _BEING_MADE if passing and not waits else text
        is_new, recorded.message = mark != recorded.message, mark
        if not text or not is_new:
            return
        gang = members.gang
        wrong = gang is not None and gang.problem is not None
        type_, reason = "Warning", "Invalid" if wrong else "Unschedulable"
        if passing:
            type_, reason = "Normal", "NotReady"
        yield Event(key, type_, reason, text, about=kind_of(group).name)

    def _waits(self, members: GangMembers) -> Lack | None:
        """Return what keeps a gang with pending members from being tried, None for nothing."""
        gang = members.gang
        if gang is None or gang.problem is not None or not members.pending:
            return None
        return self._lacks.of(gang)

    def _start(
        self, key: str, group: KaiPodGroup, members: GangMembers
    ) -> Iterator[PatchAnnotations]:
        """Yield when a group started, once for each time that it has."""
        recorded = self._record(members)
        if all(info.terminating for info, _ in members.bound.values()):
            recorded.started = False
        elif not recorded.started:
            recorded.started = True
            since = last_start(group, members, self._handle.unix_time)
            if since is not None:
                yield PatchAnnotations(KaiPodGroup, key, {LAST_START: since})


def phase_of(members: GangMembers) -> str:
    """Return a gang's phase in Koordinator's terms."""
    gang = members.gang
    if gang is None:
        return "Pending"
    succeeded, failed = members.count_ended("Succeeded"), members.count_ended("Failed")
    if has_minimum(gang, succeeded):
        return "Finished"
    # Who reads that a gang ran takes its members one by one: those that end ran before.
    running = sum(
        pod.pod.status.phase == "Running" and not pod.terminating
        for pod, _ in members.bound.values()
    )
    if failed and has_minimum(gang, failed + running + succeeded):
        return "Failed"
    if has_minimum(gang, running + succeeded):
        return "Running"
    if has_minimum(gang, members.staying):
        return "Scheduled"
    if members.bound:
        return "Scheduling"
    if has_minimum(gang, len(members.pending)):
        return "PreScheduling"
    return "Pending"


def _native(
    group: NativePodGroup, members: GangMembers, message: str, tried: bool
) -> NativePodGroupStatus:
    """Return the status of a group of Kubernetes'; ``tried`` tells whether all it needs exists."""
    assert members.gang is not None, "checked by the caller"
    type_ = _INITIALLY if _is_of_1_37(group) else "PodGroupScheduled"
    known = {one.type: one.status for one in group.status.conditions}
    if has_minimum(members.gang, len(members.bound)):
        condition = GroupCondition(type_, "True", "Scheduled")
    elif message and (type_, known.get(type_)) != (_INITIALLY, "True"):
        reason = NODES_LACK if tried else NOT_READY
        condition = GroupCondition(type_, "False", reason, message)
    else:
        return cast(NativePodGroupStatus, without_times(group.status))
    return NativePodGroupStatus((condition,))


def _is_of_1_37(group: NativePodGroup) -> bool:
    """Tell whether a group has what only Kubernetes 1.37 knows, whose condition never goes back."""
    spec = group.spec
    return (
        spec.workload_ref is not None
        or bool(spec.parent_composite_pod_group_name)
        or isinstance(spec.disruption_mode, dict)
        or any(one.type == _INITIALLY for one in group.status.conditions)
    )


def _runs_short(members: GangMembers) -> bool:
    """Tell whether a gang runs without all the members that it needs, and nobody has made them."""
    gang = members.gang
    there = members.present + len(members.ended)
    return gang is not None and members.running > 0 and not has_minimum(gang, there)


def _volcano(
    members: GangMembers, message: str, inqueue: bool, is_short: bool
) -> ConditionedStatus:
    succeeded, failed = members.count_ended("Succeeded"), members.count_ended("Failed")
    condition = _condition(members, message, len(members.bound) + succeeded + failed)
    phase = _volcano_phase(members, message, inqueue, is_short)
    return ConditionedStatus(phase, (condition,), members.running, succeeded, failed)


def _volcano_phase(members: GangMembers, message: str, inqueue: bool, is_short: bool) -> str:
    """Return a group's phase as volcano-sh/volcano does, whose members end and leave one by one.

    A group that runs and lacks members is not admitted again for them, which a full cluster would
    not allow: it keeps the phase Running, or Unknown where they find no place or nobody makes them
    (``is_short``), for which jobs may have policies.
    """
    gang = members.gang
    assert gang is not None, "checked by the caller"
    ended = len(members.ended)
    if has_minimum(gang, len(members.bound) + ended):
        return "Running" if members.bound or not ended else "Completed"
    if members.running and message and (is_short or not _runs_short(members)):
        return "Unknown"
    if inqueue:
        return _INQUEUE
    return "Running" if members.running else "Pending"


def _condition(members: GangMembers, message: str, scheduled: int) -> GroupCondition:
    gang = members.gang
    assert gang is not None, "checked by the caller"
    complete = has_minimum(gang, scheduled)
    if complete or not message:
        return GroupCondition("Scheduled", "True" if complete else "False")
    reason = "NotEnoughResources" if has_minimum(gang, members.present) else "NotEnoughTasks"
    return GroupCondition("Unschedulable", "True", reason, message)
