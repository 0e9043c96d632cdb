"""Sessions: what each client holds, and the order in which its calls are run."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

import numpy as np

from bayplan.errors import BayplanError
from bayplan_remote.limits import Limits
from bayplan_remote.operations import (
    TYPES,
    Array,
    Dense,
    apply,
    bytes_of,
    checked_shape,
    forward,
    forward_bytes,
    result_bytes,
    run_kernel,
)

__all__ = ["Exhausted", "NoHandle", "NoSession", "Session", "Sessions"]

T = TypeVar("T")
_TOKEN = 32
_BUFFER = np.dtype(np.uint8)


class NoSession(BayplanError):
    """A call names a session that is not open, or is another client's."""


class NoHandle(BayplanError):
    """A call names a buffer or tensor that the session does not have."""


class Exhausted(BayplanError):
    """A session, or the server, has reached one of its limits."""


class Session:
    """One client's memory. Its calls run one after another, in the order in which they came.

    :param identity: the client, as its certificate names it.
    """

    def __init__(self, identity: object, limits: Limits) -> None:
        self.token = secrets.token_bytes(_TOKEN)
        self.identity = identity
        self._limits = limits
        self._numbers = itertools.count(1)
        self._memory: dict[int, Array] = {}
        self._used = 0
        self._launched = threading.BoundedSemaphore(limits.launches)
        self._calls = threading.BoundedSemaphore(limits.calls)
        self._failure: Exception | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="session")

    @property
    def used(self) -> int:
        """The bytes of all buffers and tensors."""
        return self._used

    def close(self) -> None:
        """Free everything; calls that wait are given up."""
        self._worker.shutdown(wait=False, cancel_futures=True)
        self._memory = {}
        self._used = 0

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Answer a call within the block.

        :raises Exhausted: when too many are being answered already.
        """
        if not self._calls.acquire(blocking=False):
            raise Exhausted(f"{self._limits.calls} calls of the session wait already")
        try:
            yield
        finally:
            self._calls.release()

    def run(self, work: Callable[[], T], seconds: float) -> T:
        """Run some work after all that came before.

        :raises TimeoutError: when it is not done in time; what has not begun never will.
        :raises NoSession: when the session is closed.
        """
        return self._result(self._submit(work), seconds)

    def make(self, work: Callable[[], int], seconds: float) -> int:
        """Run some work that returns a new handle; what is made too late is freed.

        :raises TimeoutError: when it is not done in time.
        :raises NoSession: when the session is closed.
        """
        future = self._submit(work)
        try:
            return self._result(future, seconds)
        except TimeoutError:
            if not future.cancelled():
                # It runs before this, so that nobody knows of what it makes.
                with suppress(NoSession):
                    self._submit(lambda: self._discard(future))
            raise

    def _result(self, future: Future[T], seconds: float) -> T:
        try:
            return future.result(seconds)
        except LateError:
            future.cancel()
            raise TimeoutError("the deadline is over") from None

    def _discard(self, late: Future[int]) -> None:
        if late.exception() is None:
            self.free(late.result())

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        try:
            return self._worker.submit(work)
        except RuntimeError:
            raise NoSession("the session is closed") from None

    # Memory: these run in the worker ---------------------------------------------------------

    def malloc(self, size: int) -> int:
        """Return the handle of a new buffer of zeros.

        :raises Exhausted: when the session has too little left.
        """
        self._check_room(size)
        return self._keep(np.zeros(size, dtype=_BUFFER))

    def free(self, handle: int) -> None:
        """Free a buffer or tensor.

        :raises NoHandle: when the session does not have it.
        """
        self._used -= self._get(handle).nbytes
        del self._memory[handle]

    def write(self, handle: int, offset: int, data: bytes) -> None:
        """Copy data to a buffer or tensor.

        :raises NoHandle: when the session does not have it.
        :raises ValueError: when the data would not fit.
        """
        content = bytes_of(self._get(handle))
        if offset + len(data) > len(content):
            raise ValueError(f"offset: expected data within {len(content)} bytes")
        content[offset : offset + len(data)] = np.frombuffer(data, dtype=np.uint8)

    def read(self, handle: int, offset: int, size: int) -> bytes:
        """Return data of a buffer or tensor.

        :raises NoHandle: when the session does not have it.
        :raises ValueError: when it is smaller.
        """
        content = bytes_of(self._get(handle))
        if offset + size > len(content) or size > self._limits.chunk:
            most = min(len(content), self._limits.chunk)
            raise ValueError(f"bytes: expected {most} at most, within {len(content)} bytes")
        return content[offset : offset + size].tobytes()

    def _get(self, handle: int) -> Array:
        found = self._memory.get(handle)
        if found is None:
            raise NoHandle(f"handle {handle} is not one of this session")
        return found

    def _check_room(self, size: int) -> None:
        left = self._limits.bytes - self._used
        if size > left:
            raise Exhausted(f"{size} bytes requested, the session has {left} left")
        if len(self._memory) >= self._limits.handles:
            raise Exhausted(f"the session has {self._limits.handles} buffers and tensors already")

    def _keep(self, array: Array) -> int:
        handle = next(self._numbers)
        self._memory[handle] = array
        self._used += array.nbytes
        return handle

    # Computing: these run in the worker, but launch ------------------------------------------

    def launch(self, kernel: int, first: int, second: int, factor: float, count: int) -> None:
        """Run a kernel after all that came before; ``synchronize`` reports what goes wrong.

        :raises Exhausted: when too many kernels wait already.
        """
        if not self._launched.acquire(blocking=False):
            raise Exhausted(f"{self._limits.launches} kernels wait already")
        try:
            self._submit(partial(self._run_kernel, kernel, first, second, factor, count))
        except NoSession:
            self._launched.release()
            raise

    def _run_kernel(self, kernel: int, first: int, second: int, factor: float, count: int) -> None:
        try:
            other = self._buffer(second) if second else None
            run_kernel(kernel, self._buffer(first), other, factor, count)
        except (ValueError, NoHandle) as exc:
            self._failure = self._failure or exc
        finally:
            self._launched.release()

    def synchronize(self) -> None:
        """Raise what went wrong first in a kernel since the last time."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def create(self, kind: int, shape: Sequence[int]) -> int:
        """Return the handle of a new tensor of zeros.

        :raises ValueError: for a type or shape that cannot be.
        :raises Exhausted: when the session has too little left.
        """
        self._check_room(checked_shape(kind, shape, self._limits))
        return self._keep(np.zeros(tuple(shape), dtype=TYPES[kind]))

    def tensor(self, handle: int) -> Array:
        """Return a tensor.

        :raises NoHandle: when the session does not have it.
        :raises ValueError: when it is a buffer.
        """
        found = self._get(handle)
        if found.dtype == _BUFFER:
            raise ValueError(f"handle {handle}: expected a tensor, it is a buffer")
        return found

    def _buffer(self, handle: int) -> Array:
        found = self._get(handle)
        if found.dtype != _BUFFER:
            raise ValueError(f"handle {handle}: expected a buffer, it is a tensor")
        return found

    def operate(self, operation: int, operands: Sequence[int]) -> int:
        """Return the handle of an operation's result.

        :raises NoHandle: when the session does not have an operand.
        :raises ValueError: when the operands do not suit.
        :raises Exhausted: when the session has too little left for the result.
        """
        arrays = [self.tensor(one) for one in operands]
        self._check_room(result_bytes(operation, arrays))
        return self._keep(apply(operation, arrays))

    def forward(self, given: int, layers: Sequence[tuple[int, int, int]]) -> int:
        """Return the handle of a model's output.

        :param layers: for each layer the handles of weight and bias (0: none), and the activation.
        :raises NoHandle: when the session does not have a tensor.
        :raises ValueError: when the tensors do not suit.
        :raises Exhausted: when the session has too little left for two outputs of a layer.
        """
        if len(layers) > self._limits.layers:
            raise ValueError(f"layers: expected {self._limits.layers} at most, got {len(layers)}")
        dense = [
            Dense(self.tensor(weight), self.tensor(bias) if bias else None, activation)
            for weight, bias, activation in layers
        ]
        array = self.tensor(given)
        self._check_room(2 * forward_bytes(array, dense))
        return self._keep(forward(array, dense))


class Sessions:
    """The open sessions of a server."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: dict[bytes, Session] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def used(self) -> int:
        """The bytes that all sessions hold."""
        with self._lock:
            return sum(one.used for one in self._open.values())

    def open(self, identity: object) -> Session:
        """Open a session.

        :raises Exhausted: when there are too many.
        """
        with self._lock:
            if len(self._open) >= self._limits.sessions:
                raise Exhausted(f"the server has {self._limits.sessions} sessions already")
            session = Session(identity, self._limits)
            self._open[session.token] = session
            return session

    def find(self, token: bytes, identity: object) -> Session:
        """Return a client's session.

        :raises NoSession: when it is not open, or is another client's.
        """
        with self._lock:
            found = self._open.get(token)
        if found is None or found.identity != identity:
            raise NoSession("there is no such session")
        return found

    def close(self, session: Session) -> None:
        """Close a session and free what it holds."""
        with self._lock:
            self._open.pop(session.token, None)
        session.close()
