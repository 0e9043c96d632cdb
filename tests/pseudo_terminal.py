"""bayplan on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS = 120


@contextmanager
def on_a_terminal(
    *arguments: str, **variables: str
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run bayplan on a pseudo-terminal of 100 columns; yield the process and the terminal."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    environment |= variables
    command = [sys.executable, "-m", "bayplan.cli", *arguments]
    # A shell starts what runs in the background without interrupts, and children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment)
    signal.signal(signal.SIGINT, before)
    os.close(its)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(terminal: int, text: str) -> str:
    deadline = time.monotonic() + SECONDS
    seen = b""
    while text.encode() not in seen:
        assert time.monotonic() < deadline, seen.decode(errors="replace")
        if select.select([terminal], [], [], 1.0)[0]:
            seen += os.read(terminal, 65536)
    return seen.decode(errors="replace")
