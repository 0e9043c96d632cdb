"""Fields and annotations that would change where pods go, and that bayplan does not honour.

They belong to controllers whose work the embedded cluster does. Whoever writes one gets a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

__all__ = ["Unhonoured", "unhonoured"]

Path = tuple[str, ...]

_EACH = "*"
"""In a path: each entry of a list."""
_JOBSET = "alpha.jobset.sigs.k8s.io/"
_ALONE = (
    "its Jobs may share domains; in its pod templates, podAffinity and podAntiAffinity by the "
    "label jobset.sigs.k8s.io/job-key keep them apart"
)
_ONE_BY_ONE = (
    'its pods are placed one by one; the annotation bayplan.dev/gang: "true" makes them a gang'
)
_QUEUE = "label its pod templates with the queue"
_PRIORITY = "name the class as priorityClassName of its pod templates"
_META = ("metadata", "annotations")
_REPLICATED = ("spec", "replicatedJobs", _EACH, "template")
_JOBSET_PLACES = (_META, (*_REPLICATED, *_META), (*_REPLICATED, "spec", "template", *_META))
_POLICY = ("spec", "runPolicy", "schedulingPolicy")
_RAY: Mapping[Path, str] = {
    ("metadata", "labels", "ray.io/priority-class-name"): _PRIORITY,
    ("metadata", "labels", "volcano.sh/queue-name"): _QUEUE,
    ("metadata", "labels", "yunikorn.apache.org/queue"): _QUEUE,
}
_WITHOUT_EFFECT: Mapping[str, Mapping[Path, str]] = {
    "jobset.x-k8s.io/JobSet": {
        (*place, f"{_JOBSET}{name}"): _ALONE
        for place in _JOBSET_PLACES
        for name in ("exclusive-topology", "node-selector")
    },
    "kubeflow.org/PyTorchJob": {
        (*_POLICY, "scheduleTimeoutSeconds"): "a gang waits until it fits",
    },
    "ray.io/RayCluster": _RAY,
    "ray.io/RayJob": _RAY,
    "batch.volcano.sh/Job": {
        ("spec", "tasks", _EACH, "dependsOn"): "all tasks start at once",
        ("spec", "tasks", _EACH, "topologyPolicy"): "nodes are chosen without a NUMA policy",
    },
    "batch/Job": {("spec", "scheduling"): _ONE_BY_ONE},
}


class Unhonoured(msgspec.Struct, frozen=True):
    """A value without effect: the steps to it, its path in words, and what happens instead."""

    steps: tuple[str | int, ...]
    path: str
    instead: str


def unhonoured(group: str, kind: str, content: Mapping[str, Any]) -> Iterator[Unhonoured]:
    """Yield what an object says that has no effect here."""
    for path, instead in _WITHOUT_EFFECT.get(f"{group}/{kind}", {}).items():
        for steps in _found(content, path):
            yield Unhonoured(steps, _text(path), instead)


def _found(
    value: Any, path: Sequence[str], steps: tuple[str | int, ...] = ()
) -> Iterator[tuple[str | int, ...]]:
    """Yield the steps to all values that a path names."""
    if not path:
        if value not in (None, "", "false", False):
            yield steps
        return
    first, rest = path[0], path[1:]
    if first == _EACH:
        for place, one in enumerate(value if isinstance(value, list) else ()):
            yield from _found(one, rest, (*steps, place))
    elif isinstance(value, dict) and first in value:
        yield from _found(value[first], rest, (*steps, first))


def _text(path: Path) -> str:
    """Return a path as notes write it: ``$.spec.tasks[].dependsOn``."""
    parts = ["$"]
    for step in path:
        parts.append("[]" if step == _EACH else f'["{step}"]' if "/" in step else f".{step}")
    return "".join(parts)
