"""Which pods of an elastic job are placed next, and which go first when it has to shrink."""

from __future__ import annotations

from collections.abc import Sequence

from bayplan import PodInfo
from bayplan_plugins.queues.kai.jobs import Job, Part, has_surplus, pod_order

__all__ = ["next_pods", "next_victims"]


def next_pods(part: Part) -> list[PodInfo]:
    """Return the pods of a job, or of a part of it, that are placed together next.

    First what the minimum lacks; then, one part at a time, one pod more or all that a further
    sub-group needs.
    """
    if not part.children:
        lacking = max(1, part.least - part.count)
        return list(part.pending[:lacking]) if len(part.pending) >= lacking else []
    children = sorted(part.children, key=_turn)
    if part.satisfied:
        return next((pods for pods in map(next_pods, children) if pods), [])
    pods: list[PodInfo] = []
    lacking = part.least - part.count
    for child in children:
        own = next_pods(child) if lacking and not child.satisfied else []
        pods += own
        lacking -= bool(own)
    return pods


def _turn(part: Part) -> tuple[bool, float]:
    """Sort key of parts: those that lack something first, then those with the least in excess."""
    if not part.satisfied:
        return False, 0.0
    return True, part.count / max(1, part.least)


def next_victims(job: Job) -> list[PodInfo]:
    """Return the pods that go together next.

    The last surplus pod, the innermost first; or a sub-group that is not needed; or all.
    """
    return list(_surplus(job.whole)) or sorted(job.pods, key=pod_order, reverse=True)


def _surplus(part: Part) -> Sequence[PodInfo]:
    if not part.children:
        return part.active[-1:] if part.count > part.least else ()
    if not part.count:
        return ()
    children = sorted(part.children, key=_turn, reverse=True)
    if has_surplus(part):
        deeper = next((pods for pods in map(_surplus, children) if pods), ())
        if deeper:
            return deeper
    if part.count > part.least:
        for child in children:
            pods = [pod for one in child.sets for pod in one.active]
            if pods:
                return pods
    return ()
