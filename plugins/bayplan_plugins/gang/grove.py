"""What a PodGang of Grove says: how far it is, and why it has no nodes."""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.api.gang import SubGroup
from bayplan.api.meta import Condition
from bayplan.api.operated import PodGang, PodGangStatus
from bayplan.gangs.completeness import has_minimum
from bayplan.gangs.directory import GangMembers
from bayplan.plugin.decision import NODES_LACK, NOT_READY
from bayplan.snapshot import PodInfo

__all__ = ["pod_gang_status"]

_TYPE, _DONE = "Scheduled", "Scheduled"
_REASONS = (_DONE, NODES_LACK, NOT_READY)


def pod_gang_status(
    group: PodGang, members: GangMembers, message: str, tried: bool
) -> PodGangStatus:
    """Return the status of a PodGang; that of one whose condition others write stays as it is.

    :param message: what keeps it pending, "" for nothing; :param tried: whether all it needs
        exists.
    """
    before = group.status
    others = [replace(one, last_transition_time=None) for one in before.conditions]
    known = next((one for one in others if one.type == _TYPE), None)
    if known is not None and known.reason not in _REASONS:
        return replace(before, conditions=tuple(others))
    bound = [info for info, _ in members.bound.values()]
    running = [info for info in bound if info.pod.status.phase == "Running"]
    scheduled = _has_all(members, bound)
    if scheduled:
        own = Condition(_TYPE, "True", _DONE, "all pods that it needs have nodes")
    elif message:
        own = Condition(_TYPE, "False", NODES_LACK if tried else NOT_READY, message)
    else:
        own = known or Condition(_TYPE, "False", NOT_READY, "waits for its pods")
    generation = group.metadata.generation
    own = replace(own, observed_generation=generation)
    phase = "Pending"
    if scheduled:
        phase = "Running" if _has_all(members, running) else "Starting"
    kept = (one for one in others if one.type != _TYPE)
    return replace(before, phase=phase, conditions=(*kept, own))


def _has_all(members: GangMembers, pods: list[PodInfo]) -> bool:
    """Tell whether some members are as many as each pod group needs."""
    gang = members.gang
    assert gang is not None, "checked by the caller"
    parents = {one.parent for one in gang.sub_groups}
    leaves = [one for one in gang.sub_groups if one.name not in parents]
    enough = all(_count(one, pods) >= one.size for one in leaves)
    return bool(pods) and enough and has_minimum(gang, len(pods))


def _count(part: SubGroup, pods: list[PodInfo]) -> int:
    return sum(part.selector.matches(pod.labels) for pod in pods)
