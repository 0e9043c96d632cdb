"""HAMi: the annotations of pods about the choice of GPUs.

Names as in Project-HAMi/HAMi (pkg/device/nvidia, pkg/scheduler/policy).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from bayplan.api.gpus import GpuRequest
from bayplan.errors import did_you_mean

__all__ = ["gpu_request_of"]

_GPU_POLICY = "hami.io/gpu-scheduler-policy"
_NODE_POLICY = "hami.io/node-scheduler-policy"
_GPU_POLICIES = ("binpack", "spread", "topology-aware", "mutex", "numa")
_NODE_POLICIES = ("binpack", "spread")
_LISTS: Mapping[str, Callable[[GpuRequest, list[str]], GpuRequest]] = {
    "nvidia.com/use-gpuuuid": lambda request, words: replace(request, uuids=frozenset(words)),
    "nvidia.com/nouse-gpuuuid": lambda request, words: replace(request, not_uuids=frozenset(words)),
    "nvidia.com/use-gputype": lambda request, words: replace(request, models=tuple(words)),
    "nvidia.com/nouse-gputype": lambda request, words: replace(request, not_models=tuple(words)),
}
_NUMA_BIND = "nvidia.com/numa-bind"
_AWARE = "topology-aware"
_NAMES = (_GPU_POLICY, _NODE_POLICY, _NUMA_BIND, *_LISTS)


def gpu_request_of(annotations: Mapping[str, str]) -> GpuRequest | None:
    """Return the GPU request of a pod's annotations, None without any.

    Of several GPU policies, topology-aware counts, else the first that orders GPUs. mutex has no
    effect because GPUs are never shared here. A bad annotation yields a request with a ``problem``.
    """
    if not any(name in annotations for name in _NAMES):
        return None
    try:
        return _read(annotations)
    except ValueError as exc:
        return GpuRequest(problem=str(exc))


def _read(annotations: Mapping[str, str]) -> GpuRequest:
    request = GpuRequest()
    named = _words(annotations.get(_GPU_POLICY, ""))
    for name in named:
        _check(_GPU_POLICY, name, _GPU_POLICIES)
    order = [name for name in named if name != "mutex"]
    if order:
        policy = {
            "topology-aware": "topology-aware",
            "binpack": "ring",
            "spread": "spread",
            "numa": "pack",
        }
        # The list may hold filters and sort keys; topology-aware decides wherever it stands.
        request = replace(request, policy=policy["topology-aware" if _AWARE in order else order[0]])
    for name in _words(annotations.get(_NODE_POLICY, "")):
        _check(_NODE_POLICY, name, _NODE_POLICIES)
        request = replace(request, node_order="pack" if name == "binpack" else "spread")
    if annotations.get(_NUMA_BIND, "false") not in ("true", "false"):
        raise ValueError(
            f'annotation {_NUMA_BIND}: expected "true" or "false", '
            f'got "{annotations[_NUMA_BIND][:40]}"'
        )
    if annotations.get(_NUMA_BIND) == "true":
        request = replace(request, require_numa=True)
    for key, read in _LISTS.items():
        words = _words(annotations.get(key, ""))
        if words:
            request = read(request, words)
    return request


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _check(key: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        near = did_you_mean(name, known)
        raise ValueError(
            f'annotation {key}: expected some of {", ".join(known)}, got "{name[:40]}"{near}'
        )
