"""What KAI says of its pod groups: why one does not fit, and when it started."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bayplan.api import KaiPodGroup
from bayplan.api.gang import Gang
from bayplan.api.podgroup import LAST_START, SchedulingCondition, UnschedulableReason
from bayplan.api.times import rfc3339, seconds_of
from bayplan.cluster.protocol import Event
from bayplan.gangs.directory import GangMembers
from bayplan.plugin.base import Eviction
from bayplan.snapshot import PodInfo

__all__ = [
    "eviction_event",
    "last_start",
    "not_ready",
    "scheduling_conditions",
]


_TYPE, _REASON = "UnschedulableOnNodePool", "Unschedulable"
_NO_NODES = "PodSchedulingErrors"
_POOL_LABEL, _DEFAULT_POOL = "kai.scheduler/node-pool", "default"

_NOT_READY = "Job is not ready for scheduling."

_STALE = "stalegangeviction"
"""The action without a unit that waits for the nodes."""

Conditions = tuple[SchedulingCondition, ...]


def eviction_event(group: str, eviction: Eviction) -> Event:
    """Return the event that tells a group, by key, of an eviction."""
    evictor = eviction.unit.partition(",")[0]
    annotations = {
        "num-evicted-pods": str(eviction.together),
        "evictor-action-type": eviction.action if evictor else _STALE,
    }
    if evictor:
        namespace, _, name = evictor.partition("/")
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
    if members.bound or not message or not_ready(members):
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


def not_ready(members: GangMembers) -> str:
    """Return what KAI says of a group that has too few pods to be tried, "" if it has enough.

    Pods behind scheduling gates do not count. Of sub-groups that contain others, as many have to be
    ready as the group needs.
    """
    gang = members.gang
    if gang is None or gang.problem is not None or not members.pending:
        return ""
    everyone = [*members.pending.values(), *(pod for pod, _ in members.bound.values())]
    pods = [pod for pod in everyone if not pod.terminating]
    if not gang.sub_groups:
        lack = _lack(gang.min_member, pods, "")
        return f"{_NOT_READY} {lack}" if lack else ""
    ready, lacks = _parts_ready(gang, "", pods)
    return "" if ready else " ".join([_NOT_READY, *lacks])


def _parts_ready(gang: Gang, parent: str, pods: Sequence[PodInfo]) -> tuple[bool, list[str]]:
    """Tell whether enough sub-groups of a parent are ready, and what pod sets in it wait for."""
    children = [one for one in gang.sub_groups if one.parent == parent]
    count, lacks = 0, []
    for one in children:
        if any(other.parent == one.name for other in gang.sub_groups):
            ready, below = _parts_ready(gang, one.name, pods)
            lacks += below
        else:
            own = [pod for pod in pods if one.selector.matches(pod.labels)]
            lack = _lack(one.size, own, f" for SubGroup {one.name}")
            ready = not lack
            lacks += [f"{lack}."] if lack else []
        count += ready
    return count >= max((one.min_groups for one in children), default=0), lacks


def _lack(least: int, pods: Sequence[PodInfo], whose: str) -> str:
    gated = sum(bool(pod.spec.scheduling_gates) for pod in pods)
    if len(pods) - gated >= least:
        return ""
    return f"Waiting for {least} pods{whose}, currently {len(pods)} exist, {gated} are gated"


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
