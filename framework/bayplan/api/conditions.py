"""Times of conditions in statuses: the API server requires them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from bayplan.api.meta import Condition
from bayplan.api.times import rfc3339

__all__ = ["set_condition", "stamped", "without_times"]


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


def set_condition(
    conditions: Iterable[Condition], new: Condition, now: float, generation: int | None
) -> tuple[Condition, ...]:
    """Return conditions with one set; its time changes only when its status does.

    :param now: seconds since 1970.
    :param generation: the generation of the object that the condition tells about.
    """
    kept = list(conditions)
    new = replace(new, observed_generation=generation)
    for index, old in enumerate(kept):
        if old.type == new.type:
            same = old.status == new.status and old.last_transition_time is not None
            at = old.last_transition_time if same else rfc3339(now)
            kept[index] = replace(new, last_transition_time=at)
            return tuple(kept)
    return (*kept, replace(new, last_transition_time=rfc3339(now)))
