"""The client library: arrays go to a worker's GPU and come back."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import grpc
import msgspec
import numpy as np

from bayplan.errors import BayplanError
from bayplan_remote.certificates import Certificates
from bayplan_remote.operations import TYPES, Array
from bayplan_remote.proto import remote_gpu_pb2 as messages

__all__ = ["Buffer", "RemoteError", "RemoteGpu", "RemoteLayer", "RemoteTensor"]

_SERVICE = "/bayplan.remote.v1.RemoteGpu/"
_OVERHEAD = 64 * 1024
_KINDS = {dtype: kind for kind, dtype in TYPES.items()}


class RemoteError(BayplanError):
    """A call failed; ``code`` is gRPC's, such as NOT_FOUND."""

    def __init__(self, method: str, code: str, details: str) -> None:
        super().__init__(f"{method}: {code}: {details}")
        self.code = code


class Buffer(msgspec.Struct, frozen=True):
    """Memory on the worker."""

    id: int
    bytes: int


class RemoteTensor(msgspec.Struct, frozen=True):
    """A tensor on the worker."""

    id: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Its size."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class RemoteLayer(msgspec.Struct, frozen=True):
    """A layer of a model: ``activation(x @ weight + bias)``; "none", "relu" or "softmax"."""

    weight: RemoteTensor
    bias: RemoteTensor | None = None
    activation: str = "none"


class RemoteGpu:
    """A session with a worker; what it holds there is freed when it ends.

    ::

        with RemoteGpu("10.0.0.7:50051", certificates) as gpu:
            weight = gpu.tensor(array)
            found = gpu.to_host(gpu.forward(gpu.tensor(batch), [RemoteLayer(weight)]))

    :param timeout: seconds that each call may take.
    :raises InputError: when a certificate cannot be used.
    :raises RemoteError: when the worker does not answer, or is not the authority's.
    """

    def __init__(self, address: str, certificates: Certificates, timeout: float = 10.0) -> None:
        self._timeout = timeout
        self._channel = grpc.secure_channel(
            address,
            certificates.for_client(),
            options=[
                ("grpc.max_receive_message_length", 4 * 1024 * 1024 + _OVERHEAD),
                ("grpc.enable_retries", 0),
            ],
        )
        self._methods: dict[str, Any] = {}
        self._session = b""
        self._chunk = 0
        self.device = ""
        try:
            self._connect()
        except BaseException:
            self._channel.close()
            raise

    def _connect(self) -> None:
        connect = self._channel.unary_stream(
            f"{_SERVICE}Connect",
            request_serializer=messages.ConnectRequest.SerializeToString,
            response_deserializer=messages.SessionState.FromString,
        )
        # The call itself has no deadline: it lasts as long as the session. To ask the channel
        # whether it is ready starts a thread of gRPC's that fails when the channel is closed.
        self._stream = connect(messages.ConnectRequest(), wait_for_ready=True)
        patience = threading.Timer(self._timeout, self._stream.cancel)
        patience.start()
        try:
            state = next(self._stream)
        except grpc.RpcError as exc:
            if exc.code() is grpc.StatusCode.CANCELLED:
                text = "no worker of this authority answers"
                raise RemoteError("Connect", "UNAVAILABLE", text) from None
            raise _failed("Connect", exc) from None
        finally:
            patience.cancel()
        self._session, self._chunk, self.device = state.session, state.chunk_bytes, state.device

    def __enter__(self) -> RemoteGpu:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the session; the worker frees what it holds."""
        self._stream.cancel()
        self._channel.close()

    def _call(self, method: str, request: Any, answer: Any) -> Any:
        if method not in self._methods:
            self._methods[method] = self._channel.unary_unary(
                f"{_SERVICE}{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )
        try:
            return self._methods[method](request, timeout=self._timeout)
        except grpc.RpcError as exc:
            raise _failed(method, exc) from None

    # Memory ----------------------------------------------------------------------------------

    def malloc(self, size: int) -> Buffer:
        """Return a new buffer of so many bytes, all zero.

        :raises RemoteError: when there is too little left.
        """
        request = messages.MallocRequest(session=self._session, bytes=size)
        return Buffer(self._call("Malloc", request, messages.Handle).id, size)

    def free(self, held: Buffer | RemoteTensor) -> None:
        """Free a buffer or tensor.

        :raises RemoteError: when it is freed already.
        """
        request = messages.FreeRequest(session=self._session, id=held.id)
        self._call("Free", request, messages.Done)

    def copy_to_device(self, held: Buffer | RemoteTensor, data: bytes | Array) -> None:
        """Copy data to the start of a buffer or tensor, in pieces.

        :raises RemoteError: when it does not fit.
        """
        content = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
        for offset in range(0, len(content), self._chunk):
            request = messages.CopyToDeviceRequest(
                session=self._session,
                id=held.id,
                offset=offset,
                data=content[offset : offset + self._chunk],
            )
            self._call("CopyToDevice", request, messages.Done)

    def copy_to_host(self, held: Buffer | RemoteTensor) -> bytes:
        """Return the content of a buffer or tensor.

        :raises RemoteError: when it is freed already.
        """
        parts = []
        for offset in range(0, held.bytes, self._chunk):
            size = min(self._chunk, held.bytes - offset)
            request = messages.CopyToHostRequest(
                session=self._session, id=held.id, offset=offset, bytes=size
            )
            parts.append(self._call("CopyToHost", request, messages.Chunk).data)
        return b"".join(parts)

    # Computing -------------------------------------------------------------------------------

    def launch(
        self, kernel: str, first: Buffer, factor: float, count: int, second: Buffer | None = None
    ) -> None:
        """Launch a kernel ("fill", "scale" or "axpy") on ``count`` floats; does not wait for it.

        :raises RemoteError: when too many kernels wait already.
        """
        request = messages.LaunchKernelRequest(
            session=self._session,
            kernel=_named(messages.Kernel, "KERNEL", kernel),
            first=first.id,
            second=second.id if second is not None else 0,
            factor=factor,
            count=count,
        )
        self._call("LaunchKernel", request, messages.Done)

    def synchronize(self) -> None:
        """Wait for all kernels.

        :raises RemoteError: what went wrong first in one of them.
        """
        self._call("Synchronize", messages.SynchronizeRequest(session=self._session), messages.Done)

    def tensor(self, array: Array) -> RemoteTensor:
        """Return a new tensor with the content of an array.

        :raises RemoteError: when there is too little left.
        :raises ValueError: for an array of another type than float32, float64 and int64.
        """
        kind = _KINDS.get(array.dtype.newbyteorder("<"))
        if kind is None:
            raise ValueError(f"expected float32, float64 or int64, got {array.dtype}")
        request = messages.CreateTensorRequest(session=self._session, type=kind, shape=array.shape)
        made = _tensor(self._call("CreateTensor", request, messages.Tensor))
        self.copy_to_device(made, array.astype(made.dtype, copy=False))
        return made

    def to_host(self, tensor: RemoteTensor) -> Array:
        """Return the content of a tensor.

        :raises RemoteError: when it is freed already.
        """
        data = self.copy_to_host(tensor)
        return np.frombuffer(data, dtype=tensor.dtype).reshape(tensor.shape).copy()

    def op(self, operation: str, *operands: RemoteTensor) -> RemoteTensor:
        """Return the result of "add", "subtract", "multiply", "matmul", "relu" or "sum".

        :raises RemoteError: when the operands do not suit.
        """
        request = messages.TensorOpRequest(
            session=self._session,
            operation=_named(messages.Operation, "OPERATION", operation),
            operands=[one.id for one in operands],
        )
        return _tensor(self._call("TensorOp", request, messages.Tensor))

    def forward(self, given: RemoteTensor, layers: Sequence[RemoteLayer]) -> RemoteTensor:
        """Return the output of a model for a batch.

        :raises RemoteError: when the layers do not suit.
        """
        request = messages.ModelForwardRequest(
            session=self._session,
            input=given.id,
            layers=[
                messages.Layer(
                    weight=one.weight.id,
                    bias=one.bias.id if one.bias is not None else 0,
                    activation=_named(messages.Activation, "ACTIVATION", one.activation),
                )
                for one in layers
            ],
        )
        return _tensor(self._call("ModelForward", request, messages.Tensor))


def _tensor(message: messages.Tensor) -> RemoteTensor:
    return RemoteTensor(message.id, TYPES[message.type], tuple(message.shape))


def _named(kind: Any, prefix: str, name: str) -> Any:
    full = f"{prefix}_{name.upper()}"
    names = list(kind.keys())
    if full not in names:
        known = ", ".join(one.removeprefix(f"{prefix}_").lower() for one in names)
        raise ValueError(f"expected one of {known}, got {name}")
    return kind.Value(full)


def _failed(method: str, exc: grpc.RpcError) -> RemoteError:
    code, details = "UNKNOWN", ""
    if isinstance(exc, grpc.Call):
        code, details = exc.code().name, exc.details() or ""
    return RemoteError(method, code, details)
