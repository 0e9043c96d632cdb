"""Times of conditions in the status of a pod group: the API server requires them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from bayplan.api.podgroup import ConditionedStatus, NativePodGroupStatus

__all__ = ["stamped", "without_times"]

_Conditioned = ConditionedStatus | NativePodGroupStatus


def without_times(status: Any) -> Any:
    """Return a status whose conditions have no times, to compare what it says."""
    if not isinstance(status, _Conditioned):
        return status
    conditions = (replace(one, last_transition_time=None) for one in status.conditions)
    return replace(status, conditions=tuple(conditions))


def stamped(status: Any, before: Any, now: str) -> Any:
    """Return a status whose conditions say since when they hold.

    :param before: the status that it replaces, whose time stays while a condition's status does.
    :param now: the present time, RFC 3339.
    """
    if not isinstance(status, _Conditioned):
        return status
    known = before.conditions if isinstance(before, _Conditioned) else ()
    since = {(one.type, one.status): one.last_transition_time for one in known}
    conditions = (
        replace(one, last_transition_time=since.get((one.type, one.status)) or now)
        for one in status.conditions
    )
    return replace(status, conditions=tuple(conditions))
