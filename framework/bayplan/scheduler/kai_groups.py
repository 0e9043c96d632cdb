"""What KAI says of its pod groups: why one does not fit, and when it started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bayplan.api import KaiPodGroup
from bayplan.api.podgroup import LAST_START, SchedulingCondition, UnschedulableReason
from bayplan.api.times import rfc3339, seconds_of
from bayplan.cluster.protocol import Event
from bayplan.gangs.completeness import has_minimum
from bayplan.gangs.directory import GangMembers

__all__ = [
    "GroupEviction",
    "eviction_event",
    "last_start",
    "scheduling_conditions",
]


_TYPE, _REASON = "UnschedulableOnNodePool", "Unschedulable"
_NO_NODES = "PodSchedulingErrors"
_POOL_LABEL, _DEFAULT_POOL = "kai.scheduler/node-pool", "default"

_STALE = "stalegangeviction"
"""The action without a unit that waits for the nodes."""

Conditions = tuple[SchedulingCondition, ...]


@dataclass(frozen=True)
class GroupEviction:
    """A member of a group that was evicted: in which way, one of how many, and what it was told.

    ``evictor`` is the key of the pod group, or pod, that gets its place; "" for none.
    """

    action: str
    together: int
    message: str
    evictor: str = ""


def eviction_event(group: str, eviction: GroupEviction) -> Event:
    """Return the event that tells a group, by key, of an eviction."""
    annotations = {
        "num-evicted-pods": str(eviction.together),
        "evictor-action-type": eviction.action if eviction.evictor else _STALE,
    }
    if eviction.evictor:
        namespace, _, name = eviction.evictor.partition("/")
        annotations["evictor-pod-group-name"] = name
        annotations["evictor-pod-group-namespace"] = namespace
    message = eviction.message
    return Event(group, "Normal", "Evict", message, about="PodGroup", annotations=annotations)


def scheduling_conditions(
    group: KaiPodGroup,
    members: GangMembers,
    message: str,
    refusal: Callable[[], UnschedulableReason | None],
    now: str,
) -> Conditions:
    """Return the conditions that a group should have.

    They stay as they are while any member has a node or members are missing, and go once none is
    pending and all bindings are confirmed. The latest is the last; there is one for each pool.

    :param message: what keeps the group pending, "" for nothing.
    :param refusal: returns why the group's queue does not take it, None if it does.
    :param now: the present time, RFC 3339.
    """
    before = group.status.scheduling_conditions
    if not members.pending:
        confirmed = all(info.pod.spec.node_name for info, _ in members.bound.values())
        return () if confirmed else before
    if members.bound or not message or not _is_ready(members):
        return before
    pool = group.metadata.labels.get(_POOL_LABEL) or _DEFAULT_POOL
    last = before[-1] if before else None
    if last is not None and _content(last) == (_TYPE, pool, _REASON, message, "True"):
        return before
    made = SchedulingCondition(
        _TYPE,
        pool,
        _REASON,
        message,
        (refusal() or UnschedulableReason(_NO_NODES, message),),
        str(_number(last) + 1),
        now,
        "True",
    )
    return (*(one for one in before if one.node_pool != pool), made)


def _is_ready(members: GangMembers) -> bool:
    gang = members.gang
    return gang is not None and (gang.problem is not None or has_minimum(gang, members.present))


def _content(condition: SchedulingCondition) -> tuple[str, ...]:
    one = condition
    return one.type, one.node_pool, one.reason, one.message, one.status


def _number(last: SchedulingCondition | None) -> int:
    text = last.transition_id if last is not None else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def last_start(group: KaiPodGroup, members: GangMembers, now: float) -> str | None:
    """Return when a group that holds nodes got the first if it does not say so yet, RFC 3339.

    :param now: the present time, in seconds since 1970.
    """
    pods = [info.pod for info, _ in members.bound.values() if not info.terminating]
    said = seconds_of(group.metadata.annotations.get(LAST_START))
    if said and any(said >= seconds_of(pod.metadata.creation_timestamp) for pod in pods):
        return None
    found = [c for pod in pods for c in pod.status.conditions if c.type == "PodScheduled"]
    since = [seconds_of(one.last_transition_time) for one in found if one.status == "True"]
    return rfc3339(min((at for at in since if at), default=now))
