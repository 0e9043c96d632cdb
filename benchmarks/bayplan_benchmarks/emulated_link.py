"""A network link on loopback: what is sent arrives later, and only so much of it a second."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time

__all__ = ["EmulatedLink"]

_PIECE = 16 * 1024
_MOST_ON_THE_WAY = 4096
"""Pieces; more than fill any link here."""


class EmulatedLink:
    """Forwards connections to a port of this machine, delayed and through a token bucket.

    :param latency: seconds one way.
    :param bandwidth: bytes a second, in each direction of each connection.
    """

    def __init__(self, port: int, latency: float, bandwidth: float) -> None:
        self._target = port
        self._latency, self._bandwidth = latency, bandwidth
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End all connections."""
        for one in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    for one in (source, sink):
                        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._forward(source, sink)

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        on_the_way: queue.Queue[tuple[float, bytes]] = queue.Queue(_MOST_ON_THE_WAY)

        def receive() -> None:
            free_at = 0.0
            data = b"-"
            while data:
                try:
                    data = source.recv(_PIECE)
                except OSError:
                    data = b""
                free_at = max(free_at, time.monotonic()) + len(data) / self._bandwidth
                on_the_way.put((free_at + self._latency, data))

        def deliver() -> None:
            with contextlib.suppress(OSError):
                while True:
                    due, data = on_the_way.get()
                    time.sleep(max(0.0, due - time.monotonic()))
                    if not data:
                        sink.shutdown(socket.SHUT_WR)
                        return
                    sink.sendall(data)

        threading.Thread(target=receive, daemon=True).start()
        threading.Thread(target=deliver, daemon=True).start()
