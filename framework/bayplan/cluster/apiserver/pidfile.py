"""The pid file of a served cluster, locked while its process lives."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bayplan.errors import InputError

__all__ = ["beside", "held_pid", "running_pid"]

_NEW = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def beside(kubeconfig: Path, suffix: str) -> Path:
    """Return the path beside a kubeconfig with ``.suffix`` added to its name."""
    return kubeconfig.with_name(f"{kubeconfig.name}.{suffix}")


@contextmanager
def held_pid(path: Path) -> Iterator[None]:
    """Hold a locked file with this process's id; remove it at the end.

    :raises InputError: when it cannot be written, or another process holds the lock.
    """
    try:
        file = os.open(path, _NEW, 0o600)
    except OSError as exc:
        raise InputError(exc.strerror or str(exc), str(path)) from None
    try:
        if not _lock(file):
            raise InputError("is that of a cluster that runs", str(path))
        if not _is_pid(os.pread(file, 64, 0)):
            raise InputError("was not written by bayplan cluster up", str(path))
        os.fchmod(file, 0o600)
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink()
    finally:
        os.close(file)


def running_pid(path: Path) -> int | None:
    """Return the id of the process that holds a file, None when none does.

    The number alone proves nothing: the system may have reused it.

    :raises InputError: when the file cannot be read.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise InputError(exc.strerror or str(exc), str(path)) from None
    try:
        content = os.pread(file, 64, 0)
        if _lock(file) or not content.strip() or not _is_pid(content):
            return None
        return int(content)
    finally:
        os.close(file)


def _is_pid(content: bytes) -> bool:
    text = content.strip()
    return not text or (text.isdigit() and int(text) > 1)


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
