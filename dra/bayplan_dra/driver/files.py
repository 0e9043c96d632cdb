"""Files that are complete or absent, whenever the process is killed."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bayplan.errors import BayplanError

__all__ = ["TEMPORARY", "answers", "folder", "locked", "remove", "write_atomically"]

TEMPORARY = ".tmp"
"""Suffix of files that are being written; leftovers can be removed while nobody writes."""
_WAIT = 0.01


def folder(path: Path, mode: int = 0o750) -> Path:
    """Make a folder, with its parents, unless it exists; return it.

    :raises BayplanError: when it cannot be created or is not writable.
    """
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as exc:
        raise BayplanError(f"{path}: {exc.strerror}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise BayplanError(f"{path}: no permission to write there")
    return path


def write_atomically(path: Path, content: bytes, mode: int = 0o600, durable: bool = True) -> None:
    """Write a file so that a kill of this process leaves the old or the new content.

    :param durable: whether that also holds for a crash of the machine.
    :raises OSError: when the disk fails.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        _sync_folder(path.parent)


def remove(path: Path) -> None:
    """Remove a file durably; a missing file is fine."""
    with suppress(FileNotFoundError):
        path.unlink()
        _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def answers(path: Path) -> bool:
    """Tell whether somebody listens on a socket; a killed process leaves one without."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


@contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold a lock against other processes and other threads.

    The kernel releases it when the process ends, however that happens.

    :param seconds: how long to wait for the lock.
    :raises BayplanError: when another process or thread still holds it then.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _take(descriptor, path, time.monotonic() + seconds)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path, until: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise BayplanError(f"{path} is held by another process for too long") from None
            time.sleep(_WAIT)
        else:
            return
