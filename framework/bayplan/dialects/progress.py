"""What workloads say of their progress, so that evictions take what loses least."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CHECKPOINTED_AT", "checkpointed_at", "without_progress"]

CHECKPOINTED_AT = "bayplan.dev/checkpointed-at"
"""On a pod: when its work was saved last, in RFC 3339; whoever writes checkpoints sets it."""
_NAMES = (CHECKPOINTED_AT, "bayplan.io/checkpointed-at")


def checkpointed_at(annotations: Mapping[str, str]) -> str:
    """Return when a pod's work was saved last, "" if nobody says so."""
    return next((annotations[name] for name in _NAMES if name in annotations), "")


def without_progress(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """Return annotations without those of progress, which change often and place nothing."""
    if not any(name in annotations for name in _NAMES):
        return annotations
    return {name: text for name, text in annotations.items() if name not in _NAMES}
