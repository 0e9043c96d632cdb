"""Shares of GPUs in TensorFusion's words: what pods ask for, and what they got.

Compute is stated in TFLOPS, which count as a part of what a GPU has, or in percent of a GPU;
memory as a quantity in bytes. Names as in NexusGPU/tensor-fusion (pkg/constants, webhook).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

import msgspec

from bayplan.api import Pod
from bayplan.api.quantity import Quantity
from bayplan.dialects.reading import is_index
from bayplan.dialects.tensor_fusion import PREFIX, side_of

__all__ = ["ANNOTATIONS", "GPU_IDS", "TensorFusionShare", "assigned_gpus", "share_of"]

GPU_IDS = f"{PREFIX}gpu-ids"
"""The annotation of a bound pod with the names of its GPU objects, separated by commas."""
_TFLOPS, _VRAM = "tflops", "vram"
_PERCENT = "compute-percent"
_SHARES = (f"{_TFLOPS}-request", f"{_TFLOPS}-limit", f"{_VRAM}-request", f"{_VRAM}-limit")
_PERCENTS = (f"{_PERCENT}-request", f"{_PERCENT}-limit")
_DEDICATED = "dedicated-gpu"
_ASKING = (*_SHARES, *_PERCENTS, _DEDICATED)
ANNOTATIONS = frozenset(
    f"{PREFIX}{name}"
    for name in (
        *_ASKING,
        "gpu-count",
        "gpu-indices",
        "gpu-model",
        "gpupool",
        "is-local-gpu",
        "isolation",
        "qos",
        "vendor",
    )
)
"""The annotations that say what a pod asks for."""
_QOS = ("low", "medium", "high", "critical")
_ISOLATION = ("shared", "soft", "hard")
_TEXT = re.compile(r"[A-Za-z0-9]([A-Za-z0-9 ._/+-]{0,126}[A-Za-z0-9])?", re.ASCII)
_MOST_GPUS = 64
_MOST_TFLOPS = 10**6
_MOST_BYTES = 1 << 50
_SHOWN = 40


class TensorFusionShare(msgspec.Struct, frozen=True):
    """What a pod asks for of each of ``count`` GPUs.

    ``tflops`` or ``percent`` of compute, ``vram`` in bytes; all of it if ``whole``. The other
    fields say which GPUs will do; empty ones do not matter. ``word`` is an annotation that asks.
    """

    tflops: Fraction = Fraction(0)
    percent: Fraction = Fraction(0)
    vram: int = 0
    count: int = 1
    whole: bool = False
    model: str = ""
    pool: str = ""
    vendor: str = ""
    indices: tuple[int, ...] = ()
    word: str = ""

    @property
    def takes_any(self) -> bool:
        """Whether any GPU with enough left will do."""
        return not (self.tflops or self.model or self.pool or self.vendor or self.indices)


def share_of(pod: Pod) -> TensorFusionShare | None:
    """Return the share that a pod asks for; None for clients, whose workers ask, and for others.

    :raises ValueError: naming the annotation and what was expected.
    """
    annotations = pod.metadata.annotations
    word = next((name for name in _ASKING if f"{PREFIX}{name}" in annotations), None)
    if word is None or side_of(pod) == "client":
        return None
    given = {
        name.removeprefix(PREFIX): text
        for name, text in annotations.items()
        if name.startswith(PREFIX)
    }
    amounts = {
        name: _amount(given, name, _MOST_BYTES if name.startswith(_VRAM) else _MOST_TFLOPS)
        for name in _SHARES
    }
    percents = {name: _amount(given, name, 100) for name in _PERCENTS}
    tflops = amounts[f"{_TFLOPS}-request"] or amounts[f"{_TFLOPS}-limit"]
    vram = amounts[f"{_VRAM}-request"] or amounts[f"{_VRAM}-limit"]
    percent = percents[f"{_PERCENT}-request"]
    if not percent and not tflops:
        percent = percents[f"{_PERCENT}-limit"]
    if percent and f"{_TFLOPS}-request" in given:
        first, second = f"{PREFIX}{_TFLOPS}-request", f"{PREFIX}{_PERCENT}-request"
        raise ValueError(f"annotations {first} and {second}: expected one of them")
    _one_of(given, "qos", _QOS)
    _one_of(given, "isolation", _ISOLATION)
    indices = _indices(given)
    whole = _one_of(given, _DEDICATED, ("true", "false")) == "true"
    if whole and not given.get("gpu-model"):
        raise ValueError(f"annotation {PREFIX}{_DEDICATED}: expected {PREFIX}gpu-model beside it")
    if not (whole or tflops or percent or vram):
        raise ValueError(f"annotation {PREFIX}{word}: expected an amount above 0 of something")
    return TensorFusionShare(
        Fraction(0) if whole else tflops,
        Fraction(100) if whole else percent,
        -(-vram.numerator // vram.denominator),
        len(indices) or _count(given),
        whole,
        _text(given, "gpu-model"),
        _text(given, "gpupool"),
        _text(given, "vendor"),
        indices,
        f"{PREFIX}{word}",
    )


def _amount(given: Mapping[str, str], name: str, most: int) -> Fraction:
    text = given.get(name)
    if text is None:
        return Fraction(0)
    try:
        found = Quantity(text).amount
    except ValueError:
        found = Fraction(-1)
    if not 0 <= found <= most:
        raise _unexpected(name, f"a quantity from 0 to {most}", text)
    return found


def _count(given: Mapping[str, str]) -> int:
    text = given.get("gpu-count", "1")
    if not is_index(text) or not 1 <= int(text) <= _MOST_GPUS:
        raise _unexpected("gpu-count", f"a whole number from 1 to {_MOST_GPUS}", text)
    return int(text)


def _indices(given: Mapping[str, str]) -> tuple[int, ...]:
    text = given.get("gpu-indices", "")
    if not text:
        return ()
    parts = text.split(",") if len(text) < 1000 else [""]
    if not all(map(is_index, parts)) or len(set(map(int, parts))) != len(parts):
        raise _unexpected("gpu-indices", "different numbers separated by commas", text)
    return tuple(sorted(map(int, parts)))


def _one_of(given: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    text = given.get(name, "")
    if text and text not in known:
        raise _unexpected(name, f"one of {', '.join(known)}", text)
    return text


def _text(given: Mapping[str, str], name: str) -> str:
    text = given.get(name, "")
    if text and not _TEXT.fullmatch(text):
        raise _unexpected(name, "a name", text)
    return text


def _unexpected(name: str, expected: str, text: str) -> ValueError:
    return ValueError(f'annotation {PREFIX}{name}: expected {expected}, got "{text[:_SHOWN]}"')


def assigned_gpus(pod: Pod) -> tuple[str, ...]:
    """Return the names of the GPU objects that a pod got; empty if it does not say.

    :raises ValueError: when the annotation is not a list of different names.
    """
    text = pod.metadata.annotations.get(GPU_IDS)
    if text is None:
        return ()
    names = tuple(text.split(",")) if len(text) < _MOST_GPUS * 254 else ("",)
    sound = len(names) <= _MOST_GPUS and len(set(names)) == len(names)
    if not sound or not all(_TEXT.fullmatch(name) for name in names):
        raise _unexpected("gpu-ids", "different names of GPUs separated by commas", text)
    return names
