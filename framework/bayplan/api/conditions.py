"""Times of conditions in statuses: the API server requires them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

__all__ = ["stamped", "without_times"]


def without_times(status: Any) -> Any:
    """Return a status whose conditions have no times, to compare what it says."""
    conditions = getattr(status, "conditions", ())
    if not conditions:
        return status
    plain = (replace(one, last_transition_time=None) for one in conditions)
    return replace(status, conditions=tuple(plain))


def stamped(status: Any, before: Any, now: str) -> Any:
    """Return a status whose conditions say since when they hold; those that do are kept.

    :param before: the status that it replaces, whose time stays while a condition's status does.
    :param now: the present time, RFC 3339.
    """
    conditions = getattr(status, "conditions", ())
    if not conditions:
        return status
    known = getattr(before, "conditions", ())
    since = {(one.type, one.status): one.last_transition_time for one in known}
    conditions = (
        replace(
            one,
            last_transition_time=one.last_transition_time
            or since.get((one.type, one.status))
            or now,
        )
        for one in conditions
    )
    return replace(status, conditions=tuple(conditions))
