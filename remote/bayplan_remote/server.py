"""The server: gRPC with mutual TLS, and a deadline for every call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import grpc

from bayplan.errors import BayplanError
from bayplan_remote.certificates import Certificates
from bayplan_remote.limits import Limits
from bayplan_remote.operations import TYPES, Array
from bayplan_remote.proto import remote_gpu_pb2 as messages
from bayplan_remote.sessions import Exhausted, NoHandle, NoSession, Session, Sessions

__all__ = ["SERVICE", "RemoteGpuServer"]

SERVICE = "bayplan.remote.v1.RemoteGpu"
_OVERHEAD = 64 * 1024
"""Bytes of a message beside its data."""
_DEVICE = "CPU (numpy)"
_END_SECONDS, _LOOK_SECONDS = 5.0, 0.01
"""For how long a server that stops waits for its sessions to end, and how often it looks."""
_KINDS = {dtype: kind for kind, dtype in TYPES.items()}
_CODES: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (NoSession, grpc.StatusCode.UNAUTHENTICATED),
    (NoHandle, grpc.StatusCode.NOT_FOUND),
    (Exhausted, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (TimeoutError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (MemoryError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (ValueError, grpc.StatusCode.INVALID_ARGUMENT),
)
Call = Callable[[Session, Any, float], Any]


class RemoteGpuServer:
    """Serves clients whose certificates the authority has signed.

    :param address: ``host:port``; port 0 takes a free one, which ``port`` tells.
    :raises InputError: when a certificate cannot be used.
    :raises BayplanError: when the address cannot be used.
    """

    def __init__(
        self, address: str, certificates: Certificates, limits: Limits | None = None
    ) -> None:
        self.limits = limits or Limits()
        self.sessions = Sessions(self.limits)
        most = self.limits.chunk + _OVERHEAD
        self._server = grpc.server(
            ThreadPoolExecutor(self.limits.sessions * (1 + self.limits.calls)),
            options=[
                ("grpc.max_receive_message_length", most),
                ("grpc.max_send_message_length", most),
                # A client whose machine is gone does not say goodbye.
                ("grpc.keepalive_time_ms", 10_000),
                ("grpc.keepalive_timeout_ms", 5_000),
                ("grpc.http2.ping_timeout_ms", 5_000),
                ("grpc.so_reuseport", 0),
            ],
        )
        self._server.add_generic_rpc_handlers((self._handlers(),))
        credentials = certificates.for_server()
        try:
            self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError as exc:
            raise BayplanError(f"{address}: cannot listen: {exc}") from None
        if not self.port:
            raise BayplanError(f"{address}: cannot listen")

    def start(self) -> None:
        """Serve in the background."""
        self._server.start()

    def stop(self, grace: float = 0.0) -> None:
        """End all sessions, after ``grace`` seconds for calls that run."""
        self._server.stop(grace).wait()
        # A stream that has ended ends its session in a thread of its own, a moment later.
        until = time.monotonic() + _END_SECONDS
        while len(self.sessions) and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)

    # Calls -----------------------------------------------------------------------------------

    def _handlers(self) -> grpc.GenericRpcHandler:
        calls: dict[str, tuple[Any, Call]] = {
            "Malloc": (messages.MallocRequest, _malloc),
            "Free": (messages.FreeRequest, _free),
            "CopyToDevice": (messages.CopyToDeviceRequest, _copy_to_device),
            "CopyToHost": (messages.CopyToHostRequest, _copy_to_host),
            "LaunchKernel": (messages.LaunchKernelRequest, _launch_kernel),
            "Synchronize": (messages.SynchronizeRequest, _synchronize),
            "CreateTensor": (messages.CreateTensorRequest, _create_tensor),
            "TensorOp": (messages.TensorOpRequest, _tensor_op),
            "ModelForward": (messages.ModelForwardRequest, _model_forward),
        }
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.unary_unary_rpc_method_handler(
                self._answering(call),
                request_deserializer=request.FromString,
                response_serializer=_serialized,
            )
            for name, (request, call) in calls.items()
        }
        methods["Connect"] = grpc.unary_stream_rpc_method_handler(
            self._connect,
            request_deserializer=messages.ConnectRequest.FromString,
            response_serializer=_serialized,
        )
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _answering(self, call: Call) -> Callable[[Any, grpc.ServicerContext], Any]:
        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            left: float | None = context.time_remaining()
            if left is None or left > self.limits.seconds:
                most = self.limits.seconds
                text = f"a deadline of at most {most:g} s is required"
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
            try:
                session = self.sessions.find(request.session, _identity(context))
                with session.answering():
                    return call(session, request, left)
            except tuple(kind for kind, _ in _CODES) as exc:
                _refuse(context, exc)

        return answer

    def _connect(
        self, request: messages.ConnectRequest, context: grpc.ServicerContext
    ) -> Iterator[messages.SessionState]:
        try:
            session = self.sessions.open(_identity(context))
        except Exhausted as exc:
            _refuse(context, exc)
        gone = threading.Event()
        try:
            if context.add_callback(gone.set):
                yield messages.SessionState(
                    session=session.token,
                    most_bytes=self.limits.bytes,
                    chunk_bytes=self.limits.chunk,
                    device=_DEVICE,
                )
                gone.wait()
        finally:
            self.sessions.close(session)


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _identity(context: grpc.ServicerContext) -> object:
    """Return who calls, as the certificate says."""
    return tuple(context.auth_context().get("x509_pem_cert", ()))


def _refuse(context: grpc.ServicerContext, exc: Exception) -> NoReturn:
    code = next(code for kind, code in _CODES if isinstance(exc, kind))
    context.abort(code, str(exc) or type(exc).__name__)
    raise AssertionError("abort raises")


# The methods -------------------------------------------------------------------------------


def _malloc(session: Session, request: messages.MallocRequest, left: float) -> Any:
    return messages.Handle(id=session.make(lambda: session.malloc(request.bytes), left))


def _free(session: Session, request: messages.FreeRequest, left: float) -> Any:
    session.run(lambda: session.free(request.id), left)
    return messages.Done()


def _copy_to_device(session: Session, request: messages.CopyToDeviceRequest, left: float) -> Any:
    session.run(lambda: session.write(request.id, request.offset, request.data), left)
    return messages.Done()


def _copy_to_host(session: Session, request: messages.CopyToHostRequest, left: float) -> Any:
    data = session.run(lambda: session.read(request.id, request.offset, request.bytes), left)
    return messages.Chunk(data=data)


def _launch_kernel(session: Session, request: messages.LaunchKernelRequest, left: float) -> Any:
    session.launch(request.kernel, request.first, request.second, request.factor, request.count)
    return messages.Done()


def _synchronize(session: Session, request: messages.SynchronizeRequest, left: float) -> Any:
    session.run(session.synchronize, left)
    return messages.Done()


def _create_tensor(session: Session, request: messages.CreateTensorRequest, left: float) -> Any:
    handle = session.make(lambda: session.create(request.type, request.shape), left)
    return messages.Tensor(id=handle, type=request.type, shape=request.shape)


def _tensor_op(session: Session, request: messages.TensorOpRequest, left: float) -> Any:
    made = session.make(lambda: session.operate(request.operation, request.operands), left)
    return _tensor(made, session.tensor(made))


def _model_forward(session: Session, request: messages.ModelForwardRequest, left: float) -> Any:
    layers = [(one.weight, one.bias, one.activation) for one in request.layers]

    made = session.make(lambda: session.forward(request.input, layers), left)
    return _tensor(made, session.tensor(made))


def _tensor(handle: int, array: Array) -> messages.Tensor:
    return messages.Tensor(id=handle, type=_KINDS[array.dtype], shape=array.shape)
