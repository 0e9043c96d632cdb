"""What plain Kubernetes objects say about jobs."""

from __future__ import annotations

from bayplan.api import Pod

__all__ = ["is_index", "rank_of"]

_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
_POD_INDEX = "apps.kubernetes.io/pod-index"


def rank_of(pod: Pod) -> int | None:
    """Return the completion index of an Indexed Job's pod, or the ordinal of a StatefulSet's."""
    meta = pod.metadata
    text = meta.annotations.get(_COMPLETION_INDEX) or meta.labels.get(_POD_INDEX)
    return int(text) if text is not None and is_index(text) else None


def is_index(text: str) -> bool:
    """Tell whether a text is a number from 0 to nine digits."""
    return text.isascii() and text.isdecimal() and len(text) <= 9
