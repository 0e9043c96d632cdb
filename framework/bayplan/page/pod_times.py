"""When a pod was created, got its node and ended, as its object says.

The page may be opened long after that, or the scheduler started: what was first seen now did not
happen now.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from bayplan.api import Pod
from bayplan.dialects.reading import timestamp

__all__ = ["PodTimes"]

_JUST_NOW = 2.0
"""Objects state whole seconds: what is this young happened when it was seen."""


class PodTimes(msgspec.Struct, frozen=True, gc=False):
    """Turns what objects state into seconds of the cluster, which may be negative.

    :param now: seconds of the cluster.
    :param unix_time: the same time in seconds since 1970.
    """

    now: float
    unix_time: float

    def created(self, pod: Pod) -> float:
        """Return when a pod was created."""
        return self._seen([pod.metadata.creation_timestamp])

    def bound(self, pod: Pod) -> float:
        """Return when a pod got its node."""
        reported = (one for one in pod.status.conditions if one.type == "PodScheduled")
        stated = [one.last_transition_time for one in reported if one.status == "True"]
        return max(self.created(pod), self._seen([*stated, pod.status.start_time]))

    def ended(self, pod: Pod) -> float:
        """Return when the last container of a pod ended."""
        states = (one.state.terminated for one in pod.status.container_statuses)
        ends = [one.finished_at for one in states if one is not None and one.finished_at]
        return max(self.bound(pod), self._seen([max(ends, key=timestamp)] if ends else []))

    def _seen(self, stated: Iterable[str | None]) -> float:
        """Return the first time that is stated; now, if none is or it is about now."""
        first = next((found for text in stated if (found := timestamp(text))), self.unix_time)
        age = self.unix_time - first
        return self.now if age < _JUST_NOW else self.now - age
