"""The ``gpu.topology/`` annotations of pods and Jobs.

``policy`` is a preference: if nvlink or single-numa cannot be met, it is given up and recorded.
``require-nvlink`` and ``min-bandwidth`` are never given up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from bayplan.api import ApiObject, Job, Pod
from bayplan.api.gang import Gang, Membership
from bayplan.api.gpus import GpuRequest, NodeOrder
from bayplan.dialects.reading import is_index
from bayplan.errors import did_you_mean

__all__ = ["MEMBERS_BY", "NAME", "PLAIN", "PREFIX", "gang_of", "gpu_request_of", "membership_of"]

NAME = "gpu.topology"
PREFIX = "gpu.topology/"
PLAIN = GpuRequest()
_POLICIES = ("best-effort", "nvlink", "single-numa", "spread")
_NODE_ORDERS: tuple[NodeOrder, ...] = ("pack", "spread", "best-fit")
_WORDS: Mapping[str, tuple[str, ...]] = {
    "policy": _POLICIES,
    "multi-node-policy": _NODE_ORDERS,
}
_OF_NODES = ("multi-node-policy", "max-nodes", "min-gpus-per-node")
MEMBERS_BY = frozenset(f"{PREFIX}{name}" for name in _OF_NODES)
"""The names without any of which, as label or annotation, no pod is in a gang or has a rank."""
_OUTPUTS = ("bandwidth", "ring-order", "relaxed")
"""The annotations that bayplan writes itself when it binds a pod."""


def gpu_request_of(annotations: Mapping[str, str], base: GpuRequest = PLAIN) -> GpuRequest | None:
    """Return the GPU request of a pod's annotations on top of ``base``, None without any.

    A bad annotation yields a request with a ``problem``.
    """
    own = {
        key.removeprefix(PREFIX): value.strip()
        for key, value in annotations.items()
        if key.startswith(PREFIX)
    }
    asked = {name: value for name, value in own.items() if name not in _OUTPUTS}
    if not asked:
        return None
    request = base
    for name, value in asked.items():
        read = _READERS.get(name)
        if read is None:
            near = did_you_mean(name, _READERS)
            return GpuRequest(problem=f"there is no annotation {PREFIX}{name}{near}")
        try:
            request = read(request, value)
        except ValueError as exc:
            near = did_you_mean(value[:40], _WORDS.get(name, ()))
            return GpuRequest(problem=f'annotation {PREFIX}{name}: {exc}, got "{value[:40]}"{near}')
    return request


def membership_of(pod: Pod, inherited: Mapping[str, str]) -> Membership | None:
    """Return the gang of a pod whose own or Job's annotations say how nodes are chosen."""
    if not _spans_nodes(inherited) and not _spans_nodes(pod.metadata.annotations):
        return None
    for owner in pod.metadata.owner_references:
        if owner.controller and owner.kind == "Job":
            return Membership(f"{pod.metadata.namespace}/{owner.name}")
    return None


def gang_of(obj: ApiObject) -> Gang | None:
    """Return the gang of a Job that says how its nodes are chosen: all its parallel pods."""
    if not isinstance(obj, Job):
        return None
    if not any(
        _spans_nodes(meta.annotations) for meta in (obj.metadata, obj.spec.template.metadata)
    ):
        return None
    count = obj.spec.parallelism
    if obj.spec.completions is not None:
        count = min(count, obj.spec.completions)
    return Gang(f"{obj.metadata.namespace}/{obj.metadata.name}", max(1, count))


def _spans_nodes(annotations: Mapping[str, str]) -> bool:
    return any(f"{PREFIX}{name}" in annotations for name in _OF_NODES)


def _policy(request: GpuRequest, value: str) -> GpuRequest:
    if value not in _POLICIES:
        raise ValueError(f"expected one of {', '.join(_POLICIES)}")
    return replace(
        request,
        policy="spread" if value == "spread" else "ring",
        prefer_nvlink=value == "nvlink",
        prefer_numa=value == "single-numa",
    )


def _min_bandwidth(request: GpuRequest, value: str) -> GpuRequest:
    expected = "expected a number of GB/s above 0"
    try:
        number = float(value)
    except ValueError:
        raise ValueError(expected) from None
    if not math.isfinite(number) or number <= 0:
        raise ValueError(expected)
    return replace(request, min_bandwidth=number)


def _require_nvlink(request: GpuRequest, value: str) -> GpuRequest:
    if value not in ("true", "false"):
        raise ValueError('expected "true" or "false"')
    return replace(request, require_nvlink=value == "true")


def _node_order(request: GpuRequest, value: str) -> GpuRequest:
    for order in _NODE_ORDERS:
        if value == order:
            return replace(request, node_order=order)
    raise ValueError(f"expected one of {', '.join(_NODE_ORDERS)}")


def _count(value: str) -> int:
    if not is_index(value) or int(value) < 1:
        raise ValueError("expected a whole number of 1 or more")
    return int(value)


_READERS: Mapping[str, Callable[[GpuRequest, str], GpuRequest]] = {
    "policy": _policy,
    "min-bandwidth": _min_bandwidth,
    "require-nvlink": _require_nvlink,
    "multi-node-policy": _node_order,
    "max-nodes": lambda request, value: replace(request, max_nodes=_count(value)),
    "min-gpus-per-node": lambda request, value: replace(request, min_gpus_per_node=_count(value)),
}
