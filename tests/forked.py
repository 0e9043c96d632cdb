"""``bayplan`` in processes of their own, each forked from one that has imported it.

Importing is most of a second of CPU, and tests start a hundred such processes.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any

from bayplan.cli import main
from bayplan.profiles.finder import PluginFinder

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "bayplan.cli.bench",
        "bayplan.cli.multikueue",
        "bayplan.cli.run",
        "bayplan.cluster.apiserver.cluster_up",
        "bayplan.live.app",
        "bayplan.live.multikueue.app",
        "bayplan.page.serving",
        *sorted({one.module for one in PluginFinder().entry_points.values()}),
    ]
)


class Forked:
    """A process that runs ``bayplan`` with some arguments, like a ``subprocess.Popen`` of text.

    :param cwd: its working directory; by default that of the tests.
    :param stdout: ``subprocess.PIPE``, a file, or ``subprocess.DEVNULL``; likewise ``stderr``.
    """

    def __init__(
        self,
        *arguments: str,
        cwd: Path | None = None,
        stdout: int | IO[Any] = subprocess.DEVNULL,
        stderr: int | IO[Any] = subprocess.DEVNULL,
    ) -> None:
        self._opened: list[int] = []
        self.stdout, out = self._stream(stdout)
        self.stderr, errors = self._stream(stderr)
        _, nothing = self._stream(subprocess.DEVNULL)
        streams = [_Inherited(one) for one in (nothing, out, errors)]
        given = (arguments, cwd or Path.cwd(), dict(os.environ), streams)
        self._process = _CONTEXT.Process(target=_run, args=given, daemon=True)
        self._process.start()
        for one in self._opened:
            os.close(one)
        assert self._process.pid is not None
        self.pid = self._process.pid

    def _stream(self, wanted: int | IO[Any]) -> tuple[IO[str] | None, int]:
        """Return what is read here, if anything, and what the process writes to."""
        if not isinstance(wanted, int):
            return None, wanted.fileno()
        if wanted == subprocess.DEVNULL:
            self._opened.append(os.open(os.devnull, os.O_RDWR))
            return None, self._opened[-1]
        read, write = os.pipe()
        self._opened.append(write)
        return open(read, encoding="utf-8"), write

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired("bayplan", timeout or 0.0)
        return status

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read until both streams end; wait for the process."""
        found: dict[str, str] = {}

        def read(name: str, stream: IO[str]) -> None:
            with stream:
                found[name] = stream.read()

        threads = [
            threading.Thread(target=read, args=(name, stream), daemon=True)
            for name, stream in (("out", self.stdout), ("errors", self.stderr))
            if stream is not None and not stream.closed
        ]
        for thread in threads:
            thread.start()
        self.wait(timeout)
        for thread in threads:
            thread.join(timeout)
        return found.get("out", ""), found.get("errors", "")

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Inherited:
    """A file descriptor that the process gets as well."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (DupFd(self.number),)


def _received(sent: Any) -> int:
    return int(sent.detach())


def _run(
    arguments: tuple[str, ...], cwd: Path, environment: dict[str, str], streams: list[int]
) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False, buffering=1)
    sys.argv = ["bayplan", *arguments]
    try:
        main()
    finally:
        atexit._run_exitfuncs()
