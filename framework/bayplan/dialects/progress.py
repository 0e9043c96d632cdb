"""What workloads say of their progress, so that evictions take what loses least."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bayplan.api.pod import Pod

__all__ = [
    "CHECKPOINTED",
    "CHECKPOINTED_AT",
    "CHECKPOINT_SECONDS",
    "EVICTION_NOTICE",
    "GOING_AT",
    "LONGEST_NOTICE",
    "MIN_RUNTIME",
    "checkpointed_at",
    "min_runtime",
    "notice_wanted",
    "without_progress",
]

CHECKPOINTED_AT = "bayplan.dev/checkpointed-at"
"""On a pod: when its work was saved last, in RFC 3339; whoever writes checkpoints sets it."""
CHECKPOINTED = "bayplan.dev/Checkpointed"
"""The same as a condition of the pod: its last transition is when its work was saved last."""
CHECKPOINT_SECONDS = "bayplan.dev/checkpoint-seconds"
"""On a pod: how long it takes to save its work, so that it is given that time before it goes."""
GOING_AT = "bayplan.dev/going-at"
"""On a pod: when it goes, in RFC 3339: because it is evicted, or because its job shrinks."""
EVICTION_NOTICE = "bayplan.dev/eviction-notice"
"""On a pod that is evicted at ``GOING_AT``, or as soon as its work is saved: why."""
MIN_RUNTIME = "bayplan.dev/min-runtime"
"""On a pod: for how many seconds from its start nobody's work is worth its eviction."""
_NAMES = (CHECKPOINTED_AT, "bayplan.io/checkpointed-at")
_SECONDS = (CHECKPOINT_SECONDS, "bayplan.io/checkpoint-seconds")
_MIN_RUNTIMES = (MIN_RUNTIME, "bayplan.io/min-runtime")
LONGEST_NOTICE = 3600.0
_LONGEST_PROTECTION = 3600.0


def checkpointed_at(pod: Pod) -> str:
    """Return when a pod's work was saved last, as its annotation or else its condition has it.

    It is "" if nobody says so.
    """
    annotations = pod.metadata.annotations
    for name in _NAMES:
        if name in annotations:
            return annotations[name]
    for one in pod.status.conditions:
        if one.type == CHECKPOINTED and one.status == "True":
            return one.last_transition_time or ""
    return ""


def without_progress(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """Return annotations without those of progress, which change often and place nothing."""
    if not any(name in annotations for name in _NAMES):
        return annotations
    return {name: text for name, text in annotations.items() if name not in _NAMES}


def notice_wanted(annotations: Mapping[str, str]) -> float:
    """Return for how many seconds a pod wants to know that it goes: an hour at most, 0 for none."""
    return _seconds(annotations, _SECONDS, LONGEST_NOTICE)


def min_runtime(annotations: Mapping[str, str]) -> float:
    """Return for how many seconds a pod has to run first: an hour at most, 0 for none.

    More than that would be a priority of its own.
    """
    return _seconds(annotations, _MIN_RUNTIMES, _LONGEST_PROTECTION)


def _seconds(annotations: Mapping[str, str], names: Sequence[str], most: float) -> float:
    text = next((annotations[name] for name in names if name in annotations), "")
    if not text:
        return 0.0
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return min(seconds, most) if math.isfinite(seconds) and seconds > 0 else 0.0
