"""What a server computes, with numpy: kernels on buffers, operations on tensors, models.

Every function checks its operands first: shapes and types come from the network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from bayplan_remote.limits import Limits
from bayplan_remote.proto import remote_gpu_pb2 as messages

__all__ = [
    "TYPES",
    "Array",
    "Dense",
    "apply",
    "bytes_of",
    "checked_shape",
    "forward",
    "forward_bytes",
    "result_bytes",
    "run_kernel",
]

Array = npt.NDArray[Any]
TYPES: Mapping[Any, np.dtype[Any]] = {
    messages.TYPE_FLOAT32: np.dtype("<f4"),
    messages.TYPE_FLOAT64: np.dtype("<f8"),
    messages.TYPE_INT64: np.dtype("<i8"),
}
_FLOAT = np.dtype("<f4")
_OPERANDS: Mapping[Any, int] = {
    messages.OPERATION_ADD: 2,
    messages.OPERATION_SUBTRACT: 2,
    messages.OPERATION_MULTIPLY: 2,
    messages.OPERATION_MATMUL: 2,
    messages.OPERATION_RELU: 1,
    messages.OPERATION_SUM: 1,
}


class Dense(msgspec.Struct, frozen=True):
    """A layer of a model: ``activation(x @ weight + bias)``."""

    weight: Array
    bias: Array | None
    activation: int


def bytes_of(array: Array) -> Array:
    """Return the bytes of a buffer or tensor, as a view."""
    return array.reshape(-1).view(np.uint8)


def checked_shape(kind: int, shape: Sequence[int], limits: Limits) -> int:
    """Return the bytes of a tensor of this type and shape.

    :raises ValueError: for an unknown type, too many dimensions, or more bytes than a session has.
    """
    if kind not in TYPES:
        raise ValueError(f"type: expected one of {', '.join(map(str, TYPES))}, got {kind}")
    if len(shape) > limits.dimensions:
        raise ValueError(f"shape: expected {limits.dimensions} dimensions at most")
    size = math.prod(shape) * TYPES[kind].itemsize
    if size > limits.bytes or max(shape, default=0) > limits.bytes:
        raise ValueError(f"shape: expected {limits.bytes} bytes at most")
    return size


def run_kernel(kernel: int, first: Array, second: Array | None, factor: float, count: int) -> None:
    """Run a kernel on the first ``count`` floats of buffers.

    :raises ValueError: for an unknown kernel, or a buffer that is too short.
    """
    target = _floats(first, count, "first")
    if kernel == messages.KERNEL_FILL:
        target[:] = factor
    elif kernel == messages.KERNEL_SCALE:
        target *= np.float32(factor)
    elif kernel == messages.KERNEL_AXPY:
        if second is None:
            raise ValueError("second: expected a buffer")
        target += np.float32(factor) * _floats(second, count, "second")
    else:
        raise ValueError(f"kernel: expected 1, 2 or 3, got {kernel}")


def _floats(buffer: Array, count: int, name: str) -> Array:
    content = bytes_of(buffer)
    if count * _FLOAT.itemsize > len(content):
        raise ValueError(f"{name}: expected {count} floats, it has {len(content) // 4}")
    return content[: count * _FLOAT.itemsize].view(_FLOAT)


# Tensors -----------------------------------------------------------------------------------


def result_bytes(operation: int, operands: Sequence[Array]) -> int:
    """Return the bytes of what an operation returns.

    :raises ValueError: when the operands do not suit it.
    """
    if operation not in _OPERANDS:
        known = ", ".join(map(str, _OPERANDS))
        raise ValueError(f"operation: expected one of {known}, got {operation}")
    if len(operands) != _OPERANDS[operation]:
        raise ValueError(f"operands: expected {_OPERANDS[operation]}, got {len(operands)}")
    first = operands[0]
    if any(one.dtype != first.dtype for one in operands):
        raise ValueError("operands: expected tensors of one type")
    if operation == messages.OPERATION_SUM:
        return first.itemsize
    if operation == messages.OPERATION_MATMUL:
        rows, columns = _matrices(first, operands[1])
        return rows * columns * first.itemsize
    if any(one.shape != first.shape for one in operands):
        raise ValueError("operands: expected tensors of one shape")
    return first.nbytes


def _matrices(first: Array, second: Array) -> tuple[int, int]:
    if first.ndim != 2 or second.ndim != 2 or first.shape[1] != second.shape[0]:
        raise ValueError(f"operands: expected (n, k) and (k, m), got {first.shape}, {second.shape}")
    return first.shape[0], second.shape[1]


def apply(operation: int, operands: Sequence[Array]) -> Array:
    """Return the result of an operation whose operands ``result_bytes`` has checked."""
    first = operands[0]
    with np.errstate(all="ignore"):
        if operation == messages.OPERATION_ADD:
            found = first + operands[1]
        elif operation == messages.OPERATION_SUBTRACT:
            found = first - operands[1]
        elif operation == messages.OPERATION_MULTIPLY:
            found = first * operands[1]
        elif operation == messages.OPERATION_MATMUL:
            found = first @ operands[1]
        elif operation == messages.OPERATION_RELU:
            found = np.maximum(first, first.dtype.type(0))
        else:
            found = first.sum(dtype=first.dtype).reshape(())
    return np.ascontiguousarray(found).reshape(found.shape)


# Models ------------------------------------------------------------------------------------


def forward_bytes(given: Array, layers: Sequence[Dense]) -> int:
    """Return the bytes of the largest output of a model's layers.

    :raises ValueError: naming the layer that does not suit the one before.
    """
    if given.ndim != 2 or given.dtype.kind != "f":
        raise ValueError("input: expected floats of shape (batch, in)")
    batch, width = given.shape
    most = given.nbytes
    for number, layer in enumerate(layers):
        weight, bias = layer.weight, layer.bias
        if weight.dtype != given.dtype or weight.ndim != 2 or weight.shape[0] != width:
            raise ValueError(
                f"layers[{number}].weight: expected ({width}, out) of the input's type"
            )
        width = weight.shape[1]
        if bias is not None and (bias.dtype != given.dtype or bias.shape != (width,)):
            raise ValueError(f"layers[{number}].bias: expected ({width},) of the input's type")
        if layer.activation not in messages.Activation.values():
            raise ValueError(f"layers[{number}].activation: got {layer.activation}")
        most = max(most, batch * width * given.itemsize)
    return most


def forward(given: Array, layers: Sequence[Dense]) -> Array:
    """Return the output of a model that ``forward_bytes`` has checked."""
    found = given
    with np.errstate(all="ignore"):
        for layer in layers:
            found = found @ layer.weight
            if layer.bias is not None:
                found += layer.bias
            if layer.activation == messages.ACTIVATION_RELU:
                np.maximum(found, 0, out=found)
            elif layer.activation == messages.ACTIVATION_SOFTMAX and found.shape[1]:
                found -= found.max(axis=1, keepdims=True)
                np.exp(found, out=found)
                found /= found.sum(axis=1, keepdims=True)
    return found.copy() if found is given else found
