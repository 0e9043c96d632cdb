"""What plain Kubernetes objects say about jobs."""

from __future__ import annotations

from bayplan.api import Pod

__all__ = ["rank_of"]

_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
_POD_INDEX = "apps.kubernetes.io/pod-index"


def rank_of(pod: Pod) -> int | None:
    """Return the completion index of an Indexed Job's pod, or the ordinal of a StatefulSet's."""
    meta = pod.metadata
    text = meta.annotations.get(_COMPLETION_INDEX) or meta.labels.get(_POD_INDEX)
    return int(text) if text is not None and text.isdecimal() else None
