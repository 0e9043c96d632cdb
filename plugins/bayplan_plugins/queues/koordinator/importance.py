"""The order in which pods of a quota give way: the lowest priority first, then the youngest."""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.api import Pod

__all__ = ["by_importance", "priority_of"]


def priority_of(pod: Pod) -> int:
    """Return a pod's priority, 0 if it has none."""
    return pod.spec.priority or 0


def by_importance(pods: Iterable[Pod]) -> list[Pod]:
    """Return pods in order: the highest priority first, then the oldest start, then by name."""
    return sorted(pods, key=lambda pod: (-priority_of(pod), pod.status.start_time or "~", pod.key))
