"""When a node counts as too busy: after some rounds in a row, and then for a while.

Rules: Koordinator v1.8 (pkg/descheduler/utils/anomaly).
"""

from __future__ import annotations

import msgspec

from bayplan.inputs.durations import parse_duration
from bayplan_plugins.low_node_load.args import AnomalyArgs

__all__ = ["Detectors"]


class _Detector(msgspec.Struct):
    """What is known of a node; times are by the clock of the scheduler."""

    abnormal: int = 0
    normal: int = 0
    until: float | None = None
    """Until when it counts as too busy; None if it does not."""
    marked: float = 0.0

    def reset(self) -> None:
        self.abnormal = self.normal = 0
        self.until = None


class Detectors:
    """The detectors of all nodes, by name.

    :param keep: seconds after which a node that was not too busy meanwhile is forgotten.
    """

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self._known: dict[str, _Detector] = {}

    def is_abnormal(self, name: str, condition: AnomalyArgs, now: float) -> bool:
        """Mark a node as too busy in this round; tell whether it counts as such."""
        if condition.consecutive_abnormalities == 1:
            return True
        own = self._known.get(name)
        if own is None or own.marked + self._keep < now:
            own = self._known[name] = _Detector()
        own.marked = now
        if own.until is not None and own.until < now:
            own.reset()
        own.abnormal, own.normal = own.abnormal + 1, 0
        if own.until is None and own.abnormal > condition.consecutive_abnormalities:
            own.reset()
            own.until = now + parse_duration(condition.timeout)
        return own.until is not None

    def mark_normal(self, name: str, condition: AnomalyArgs) -> None:
        """Mark a node as not too busy in this round."""
        own = self._known.get(name)
        if own is None:
            return
        own.abnormal, own.normal = 0, own.normal + 1
        if own.until is not None and own.normal > condition.consecutive_normalities:
            own.reset()

    def reset(self, name: str) -> None:
        """Let a node begin again: what made it too busy has gone."""
        self._known.pop(name, None)
