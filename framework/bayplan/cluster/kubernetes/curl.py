"""HTTP requests by libcurl in an asyncio loop.

The only module of the framework that uses libcurl. A request costs half the CPU time that it costs
with a client in Python. libcurl asks the loop to watch its sockets and to keep its one timer
(https://curl.se/libcurl/c/libcurl-multi.html, "multi_socket").
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pycurl

from bayplan.cluster.kubernetes.credentials import Endpoint, Tls

__all__ = ["Answer", "Connections", "TransferFailed"]

_CONNECT_SECONDS = 10
_AGENT = "bayplan"


class Answer(msgspec.Struct, frozen=True):
    """A server's answer; ``retry_after`` is the header's text, "" without one."""

    status: int
    body: bytes
    retry_after: str = ""


class TransferFailed(Exception):
    """No answer, or not all of it; ``sent`` says that the server may have got the request."""

    def __init__(self, why: str, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


class Connections:
    """Persistent connections to one server.

    :param endpoint: the server's address and TLS settings.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._base, self._connect_to, self._host = _route(endpoint)
        self._loop = asyncio.get_running_loop()
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch_socket)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._timer: asyncio.Handle | None = None
        self._under_way: dict[pycurl.Curl, asyncio.Future[None]] = {}
        self._idle: dict[str, list[pycurl.Curl]] = {}
        self.closed = False

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Sequence[str],
        silence: float,
        seconds: float | None = None,
    ) -> Answer:
        """Send a request; return the answer, whatever its status.

        :param headers: lines such as "Accept: text/plain".
        :param silence: seconds without a byte after which the request fails.
        :param seconds: for how long the request may take; None for as long as bytes come.
        :raises TransferFailed: without a whole answer.
        """
        idle = self._idle.setdefault(method if body is None else f"{method} with body", [])
        handle = idle.pop() if idle else self._handle(method)
        handle.setopt(pycurl.URL, self._base + path)
        handle.setopt(pycurl.HTTPHEADER, [*headers, *self._host])
        if body is not None:
            handle.setopt(pycurl.POSTFIELDS, body)
        handle.setopt(pycurl.LOW_SPEED_TIME, int(silence))
        handle.setopt(pycurl.TIMEOUT_MS, int(seconds * 1000) if seconds is not None else 0)
        content: list[bytes] = []
        lines: list[bytes] = []
        handle.setopt(pycurl.WRITEFUNCTION, content.append)
        handle.setopt(pycurl.HEADERFUNCTION, lines.append)
        await self._perform(handle)
        status = handle.getinfo(pycurl.RESPONSE_CODE)
        idle.append(handle)
        retry_after = "" if status < 300 else _header(lines, b"retry-after")
        return Answer(status, b"".join(content), retry_after)

    async def stream(
        self, path: str, headers: Sequence[str], silence: float
    ) -> AsyncGenerator[Answer | bytes, None]:
        """Send a GET; yield the answer's status as soon as it is known, then what comes.

        :param silence: seconds without a byte after which the stream ends, as if the server had
            ended it.
        :raises TransferFailed: when it cannot start, or breaks.
        """
        handle = self._handle("GET")
        handle.setopt(pycurl.URL, self._base + path)
        handle.setopt(pycurl.HTTPHEADER, [*headers, *self._host])
        stream = _Stream(handle, self._loop, silence)
        performing = asyncio.ensure_future(self._perform(handle))
        performing.add_done_callback(lambda _: stream.end())
        begun = False
        try:
            async for item in stream.items():
                begun = True
                yield item
            if performing.done():
                await performing
            elif not begun:
                raise TransferFailed("no answer in time", True)
        finally:
            stream.stop()
            performing.cancel()

    def close(self) -> None:
        """Close all connections; requests under way fail."""
        self.closed = True
        for handle in list(self._under_way):
            self._end(handle, TransferFailed("the connection was closed", True))
        self._idle.clear()
        self._multi.close()
        if self._timer is not None:
            self._timer.cancel()

    # Handles ---------------------------------------------------------------------------------

    def _handle(self, method: str) -> pycurl.Curl:
        endpoint = self._endpoint
        handle = pycurl.Curl()
        options: dict[int, Any] = {
            pycurl.CUSTOMREQUEST: method,
            pycurl.USERAGENT: _AGENT,
            pycurl.NOSIGNAL: 1,
            pycurl.TCP_NODELAY: 1,
            pycurl.PROTOCOLS: pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS,
            pycurl.CONNECTTIMEOUT: _CONNECT_SECONDS,
            pycurl.LOW_SPEED_LIMIT: 1,
            pycurl.HTTP_VERSION: pycurl.CURL_HTTP_VERSION_1_1,
            # An empty text also keeps libcurl from reading the environment.
            pycurl.PROXY: endpoint.proxy or "",
        }
        if method == "GET":
            options[pycurl.ACCEPT_ENCODING] = "gzip"
        if self._connect_to:
            options[pycurl.CONNECT_TO] = self._connect_to
        if endpoint.tls is not None:
            options |= _tls_options(endpoint.tls)
        for option, value in options.items():
            handle.setopt(option, value)
        return handle

    async def _perform(self, handle: pycurl.Curl) -> None:
        if self.closed:
            raise TransferFailed("the connection was closed", False)
        finished: asyncio.Future[None] = self._loop.create_future()
        self._under_way[handle] = finished
        self._multi.add_handle(handle)
        try:
            await finished
        finally:
            if handle in self._under_way:
                # Cancelled: libcurl closes a connection that waits for an answer.
                self._end(handle)

    def _end(self, handle: pycurl.Curl, error: TransferFailed | None = None) -> None:
        """Take a request from libcurl; tell whoever waits for it."""
        finished = self._under_way.pop(handle)
        self._multi.remove_handle(handle)
        if finished.done():
            return
        if error is None:
            finished.set_result(None)
        else:
            finished.set_exception(error)

    # The loop --------------------------------------------------------------------------------

    def _watch_socket(self, what: int, socket: int, _multi: object, _data: object) -> None:
        loop = self._loop
        if what in (pycurl.POLL_IN, pycurl.POLL_INOUT):
            loop.add_reader(socket, self._act, socket, pycurl.CSELECT_IN)
        else:
            loop.remove_reader(socket)
        if what in (pycurl.POLL_OUT, pycurl.POLL_INOUT):
            loop.add_writer(socket, self._act, socket, pycurl.CSELECT_OUT)
        else:
            loop.remove_writer(socket)

    def _set_timer(self, milliseconds: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if milliseconds == 0:
            self._timer = self._loop.call_soon(self._time_out)
        elif milliseconds > 0:
            self._timer = self._loop.call_later(milliseconds / 1000, self._time_out)

    def _time_out(self) -> None:
        self._timer = None
        self._act(pycurl.SOCKET_TIMEOUT, 0)
        self._keep_timer()

    def _keep_timer(self) -> None:
        """Set the timer again: libcurl names a time once, and by its clock it may not have come."""
        if self._timer is None and not self.closed:
            self._set_timer(self._multi.timeout())

    def _act(self, socket: int, what: int) -> None:
        """Let libcurl do what it can do now, and finish the requests that are answered."""
        if self.closed:
            return
        self._multi.socket_action(socket, what)
        left = 1
        while left:
            left, answered, failed = self._multi.info_read()
            for handle in answered:
                self._end(handle)
            for handle, code, why in failed:
                self._end(handle, _failure(handle, code, why))


class _Stream:
    """What comes on a connection, until it ends or has been silent for too long."""

    def __init__(
        self, handle: pycurl.Curl, loop: asyncio.AbstractEventLoop, silence: float
    ) -> None:
        self._handle = handle
        self._loop = loop
        self._silence = silence
        self._headers: list[bytes] = []
        self._come: asyncio.Queue[Answer | bytes | None] = asyncio.Queue()
        self._last = loop.time()
        self._timer = loop.call_later(silence, self._look)
        handle.setopt(pycurl.WRITEFUNCTION, self._write)
        handle.setopt(pycurl.HEADERFUNCTION, self._header)

    async def items(self) -> AsyncGenerator[Answer | bytes, None]:
        """Yield the answer's status, then what comes."""
        while (item := await self._come.get()) is not None:
            yield item

    def end(self) -> None:
        """End after what has come until now."""
        self._come.put_nowait(None)

    def stop(self) -> None:
        """Watch the silence no longer."""
        self._timer.cancel()

    # libcurl tells nothing about a transfer while it is in one of these callbacks.
    def _header(self, line: bytes) -> None:
        self._headers.append(line)
        if not line.strip():
            self._loop.call_soon(self._begin, self._headers)
            self._headers = []

    def _write(self, part: bytes) -> None:
        self._loop.call_soon(self._put, part)

    def _begin(self, headers: list[bytes]) -> None:
        status = self._handle.getinfo(pycurl.RESPONSE_CODE)
        # 0: a proxy has answered, not the server yet.
        if status >= 200:
            self._put(Answer(status, b"", _header(headers, b"retry-after")))

    def _put(self, item: Answer | bytes) -> None:
        self._last = self._loop.time()
        self._come.put_nowait(item)

    def _look(self) -> None:
        left = self._last + self._silence - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self.end()


def _failure(handle: pycurl.Curl, code: int, why: str) -> TransferFailed:
    sent = handle.getinfo(pycurl.REQUEST_SIZE) > 0
    timed_out = code == pycurl.E_OPERATION_TIMEDOUT
    return TransferFailed("no answer in time" if timed_out else why, sent)


def _route(endpoint: Endpoint) -> tuple[str, list[str], list[str]]:
    """Return the base address, where libcurl connects instead, and the Host header.

    libcurl checks a certificate against the name in the address. If another name is expected, the
    address has this name, and the connection goes to the server's.
    """
    if not endpoint.server_name:
        return endpoint.url, [], []
    parts = urlsplit(endpoint.url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    name = endpoint.server_name
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    base = f"{parts.scheme}://{name}:{port}{parts.path}"
    return base, [f"{name}:{port}:{host}:{port}"], [f"Host: {parts.netloc}"]


def _tls_options(tls: Tls) -> dict[int, Any]:
    options: dict[int, Any] = {pycurl.SSLVERSION: pycurl.SSLVERSION_TLSv1_2}
    if not tls.verify:
        options |= {pycurl.SSL_VERIFYPEER: 0, pycurl.SSL_VERIFYHOST: 0}
    elif tls.authorities is not None:
        options[pycurl.CAINFO_BLOB] = tls.authorities
    else:
        # libcurl's own default is where it was built, not here.
        paths = ssl.get_default_verify_paths()
        if paths.cafile:
            options[pycurl.CAINFO] = paths.cafile
        if paths.capath:
            options[pycurl.CAPATH] = paths.capath
    if tls.certificate is not None:
        options[pycurl.SSLCERT_BLOB] = tls.certificate
        options[pycurl.SSLKEY_BLOB] = tls.key or tls.certificate
    return options


def _header(lines: Sequence[bytes], name: bytes) -> str:
    for line in lines:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip().decode("latin-1")
    return ""
