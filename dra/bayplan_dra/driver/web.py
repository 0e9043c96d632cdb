"""``/healthz``, ``/readyz`` and ``/metrics`` over HTTP."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from bayplan.errors import BayplanError

__all__ = ["WebServer"]


class WebServer:
    """Serves probes and Prometheus metrics.

    :param ready: returns why the driver is not ready, "" if it is.
    :raises BayplanError: when the address cannot be listened on.
    """

    def __init__(self, host: str, port: int, ready: Callable[[], str]) -> None:
        try:
            kind = _Server6 if ":" in host else ThreadingHTTPServer
            self._server = kind((host, port), _handler(ready))
        except OSError as exc:
            raise BayplanError(f"{host}:{port}: cannot listen: {exc.strerror}") from None
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def start(self) -> None:
        """Serve in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving, if it was started, and close the socket."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server6(ThreadingHTTPServer):
    address_family = socket.AF_INET6


def _handler(ready: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, generate_latest(), CONTENT_TYPE_LATEST)
            elif self.path == "/healthz":
                self._answer(200, b"ok\n")
            elif self.path == "/readyz":
                problem = ready()
                self._answer(503 if problem else 200, f"{problem or 'ok'}\n".encode())
            else:
                self._answer(404, b"there are /healthz, /readyz and /metrics\n")

        def _answer(self, status: int, body: bytes, kind: str = "text/plain") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: probes come every few seconds."""

    return Handler
