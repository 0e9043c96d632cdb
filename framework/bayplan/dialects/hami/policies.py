"""HAMi: the annotations of pods about the choice of GPUs.

Names as in Project-HAMi/HAMi (pkg/device/nvidia, pkg/scheduler/policy).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from msgspec.structs import replace

from bayplan.api.gpus import GpuRequest
from bayplan.dialects.hami.systems import HAMI, System
from bayplan.errors import did_you_mean

__all__ = [
    "GPU_POLICIES",
    "NODE_POLICIES",
    "GpuOptions",
    "Weights",
    "gpu_option_names",
    "gpu_options_of",
    "gpu_request_of",
    "policy_words",
]

_GPU_POLICY = "hami.io/gpu-scheduler-policy"
_NODE_POLICY = "hami.io/node-scheduler-policy"
_WEIGHTS = "hami.io/device-scoring-weights"
_USE_TYPES = "nvidia.com/use-gputype"
_NOT_TYPES = "nvidia.com/nouse-gputype"
GPU_POLICIES = ("binpack", "spread", "topology-aware", "mutex", "numa")
NODE_POLICIES = ("binpack", "spread")
_MODES = ("hami-core", "mig", "mps")
_MOST_WEIGHT = 2**31 - 1
_LISTS: Mapping[str, Callable[[GpuRequest, list[str]], GpuRequest]] = {
    "nvidia.com/use-gpuuuid": lambda request, words: replace(request, uuids=frozenset(words)),
    "nvidia.com/nouse-gpuuuid": lambda request, words: replace(request, not_uuids=frozenset(words)),
    _USE_TYPES: lambda request, words: replace(request, models=tuple(words)),
    _NOT_TYPES: lambda request, words: replace(request, not_models=tuple(words)),
}
_NUMA_BIND = "nvidia.com/numa-bind"
_BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}
"""What Go takes for a truth value."""
_AWARE = "topology-aware"
_NAMES = frozenset((_GPU_POLICY, _NODE_POLICY, _NUMA_BIND, *_LISTS))


def gpu_request_of(annotations: Mapping[str, str]) -> GpuRequest | None:
    """Return the GPU request of a pod's annotations, None without any.

    Of several GPU policies, topology-aware counts, else the first that orders GPUs. mutex has no
    effect because GPUs are never shared here. A bad annotation yields a request with a ``problem``.
    """
    if _NAMES.isdisjoint(annotations):
        return None
    try:
        return _read(annotations)
    except ValueError as exc:
        return GpuRequest(problem=str(exc))


def _read(annotations: Mapping[str, str]) -> GpuRequest:
    request = GpuRequest()
    named = _words(annotations.get(_GPU_POLICY, ""))
    for name in named:
        _check(_GPU_POLICY, name, GPU_POLICIES)
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
        _check(_NODE_POLICY, name, NODE_POLICIES)
        request = replace(request, node_order="pack" if name == "binpack" else "spread")
    if _binds_numa(annotations):
        request = replace(request, require_numa=True)
    for key, read in _LISTS.items():
        words = _words(annotations.get(key, ""))
        if words:
            request = read(request, words)
    return request


# Shares of GPUs ------------------------------------------------------------------------------


class Weights(msgspec.Struct, frozen=True):
    """How much a GPU's slots, compute and memory count in its score."""

    slot: int = 1
    core: int = 1
    memory: int = 1


class GpuOptions(msgspec.Struct, frozen=True):
    """Which GPUs a pod may have shares of, and in which order they are tried.

    ``uuids`` is None if any GPU will do; none will if it is empty. ``modes`` are empty if any
    mode will do. ``policy`` are the words of the GPU policy in the order written, ``node_policy``
    is one word; each is empty for the default.
    """

    models: tuple[str, ...] = ()
    not_models: tuple[str, ...] = ()
    uuids: frozenset[str] | None = None
    not_uuids: frozenset[str] = frozenset()
    numa_bind: bool = False
    modes: tuple[str, ...] = ()
    policy: tuple[str, ...] = ()
    node_policy: str = ""
    weights: Weights = Weights()


def gpu_option_names(system: System = HAMI) -> frozenset[str]:
    """Return the names of the annotations that say which GPUs a pod may have shares of."""
    keys = system.annotations
    both = {keys.mode, keys.use_uuids, keys.not_uuids, _USE_TYPES, _NOT_TYPES}
    own = {_GPU_POLICY, _NODE_POLICY, _NUMA_BIND, _WEIGHTS} if system is HAMI else set()
    return frozenset(both | own)


def gpu_options_of(annotations: Mapping[str, str], system: System = HAMI) -> GpuOptions:
    """Return the options of a pod's annotations.

    :raises ValueError: for a value that HAMi does not know, naming the annotation.
    """
    keys = system.annotations
    modes = _words(annotations.get(keys.mode, ""))
    for mode in modes:
        _check(keys.mode, mode, _MODES)
    options = GpuOptions(
        tuple(_words(annotations.get(_USE_TYPES, ""))),
        tuple(_words(annotations.get(_NOT_TYPES, ""))),
        frozenset(_words(annotations[keys.use_uuids])) if keys.use_uuids in annotations else None,
        frozenset(_words(annotations.get(keys.not_uuids, ""))),
        modes=tuple(modes),
    )
    if system is not HAMI:
        return options
    return replace(
        options,
        numa_bind=_binds_numa(annotations),
        policy=policy_words(_GPU_POLICY, annotations.get(_GPU_POLICY, ""), GPU_POLICIES),
        node_policy=_one_policy(annotations.get(_NODE_POLICY, "")),
        weights=_weights(annotations[_WEIGHTS]) if _WEIGHTS in annotations else Weights(),
    )


def policy_words(name: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the policies of a list, each once, in the order written.

    :param name: the annotation or setting, for the message.
    :raises ValueError: for a policy that is not known.
    """
    words = tuple(dict.fromkeys(_words(text)))
    for word in words:
        _check(name, word, known)
    return words


def _one_policy(text: str) -> str:
    words = policy_words(_NODE_POLICY, text, NODE_POLICIES)
    return words[-1] if words else ""


def _weights(text: str) -> Weights:
    expected = f'annotation {_WEIGHTS}: expected "slot=1,core=1,memory=1"'
    found: dict[str, int] = {}
    for part in text[:200].split(","):
        name, _, value = map(str.strip, part.partition("="))
        number = int(value) if value.isascii() and value.isdigit() and len(value) < 11 else -1
        if name not in Weights.__annotations__ or name in found or not 0 <= number <= _MOST_WEIGHT:
            raise ValueError(f'{expected}, got "{text[:60]}"')
        found[name] = number
    if len(found) < 3 or not any(found.values()):
        raise ValueError(f'{expected}, each of them, and one above 0, got "{text[:60]}"')
    return Weights(**found)


# Parsing --------------------------------------------------------------------------------------


def _binds_numa(annotations: Mapping[str, str]) -> bool:
    text = annotations.get(_NUMA_BIND, "false")
    if text not in _BOOLEANS:
        raise ValueError(f'annotation {_NUMA_BIND}: expected "true" or "false", got "{text[:40]}"')
    return _BOOLEANS[text]


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _check(key: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        near = did_you_mean(name, known)
        raise ValueError(
            f'annotation {key}: expected some of {", ".join(known)}, got "{name[:40]}"{near}'
        )
