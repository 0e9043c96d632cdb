"""``bayplan cluster up`` as a process, and requests byte by byte."""

from __future__ import annotations

import resource
import signal
import socket
import subprocess
from pathlib import Path

import yaml
from tests.forked import Forked

PODS = "/api/v1/namespaces/default/pods"
PATIENCE = 60.0
"""Seconds after which a server that hangs fails a test."""


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", "")).encode()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def read_status(client: socket.socket) -> int:
    """Read the status of an answer, 0 when the connection ended without one."""
    try:
        line = client.makefile("rb").readline()
    except ConnectionError:
        return 0
    return int(line.split()[1]) if line else 0


def status_of(port: int, request: bytes) -> int:
    """Send bytes; return the status of the answer."""
    with connect(port) as client:
        client.sendall(request)
        return read_status(client)


class Served:
    """bayplan cluster up as a process, with as many open files as is said."""

    def __init__(self, folder: Path, files: int | None = None) -> None:
        self.process = Forked(
            "cluster", "up", cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        if files is not None:
            resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (files, files))
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("export"):
                break
        config = yaml.safe_load((folder / "bayplan.kubeconfig").read_text())
        server = config["clusters"][0]["cluster"]["server"]
        address, _, self.token = server.removeprefix("http://127.0.0.1:").partition("/token/")
        self.port = int(address)

    def head(self, method: str, path: str, *lines: str) -> bytes:
        return head(method, path, f"Authorization: Bearer {self.token}", *lines)

    def end(self) -> str:
        """Send SIGTERM; return what it wrote on standard error."""
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0
        return errors

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
