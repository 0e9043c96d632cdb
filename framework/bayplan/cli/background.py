"""Start and stop a cluster that ``bayplan cluster up`` serves in the background."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import click

from bayplan.cluster.apiserver.kubeconfig import check_free, is_ours, is_served
from bayplan.cluster.apiserver.pidfile import beside, running_pid
from bayplan.errors import BayplanError, InputError

__all__ = ["start", "stop"]

_LAST_LINE = "export "
_POLL_SECONDS = 0.02
_STOP_TIMEOUT = 30.0


def start(arguments: Sequence[str], kubeconfig: Path, reads_input: bool) -> None:
    """Run ``bayplan cluster up`` in a process of its own; return once it serves.

    Its output goes to the terminal until then, and to ``<kubeconfig>.log`` afterwards.

    :param arguments: the arguments of ``bayplan cluster up``.
    :param reads_input: whether the process needs our standard input.
    :raises InputError: when the kubeconfig is in use, or the log cannot be written.
    :raises SystemExit: with the exit status of the process, when it fails to start.
    """
    check_free(kubeconfig)
    log = beside(kubeconfig, "log")
    with _new_log(log) as errors:
        process = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-m", "bayplan.cli", "cluster", "up", *arguments],
            stdin=None if reads_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            text=True,
        )
        ready = False
        try:
            ready = _wait_until_it_serves(process)
        finally:
            if not ready:
                process.terminate()
                status = process.wait()
            click.echo(log.read_text(errors="replace"), err=True, nl=False)
            if not ready:
                log.unlink()
    if not ready:
        raise SystemExit(status or 1)
    down = ["bayplan", "cluster", "down", "--kubeconfig", str(kubeconfig)]
    click.echo(f"# runs in the background, log in {log}; to stop it: {shlex.join(down)}")


def _new_log(path: Path) -> TextIO:
    try:
        path.unlink(missing_ok=True)
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w")
    except OSError as exc:
        raise InputError(exc.strerror or str(exc), str(path)) from None


def _wait_until_it_serves(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    for line in process.stdout:
        click.echo(line, nl=False)
        if line.startswith(_LAST_LINE):
            return True
    return False


def stop(kubeconfig: Path) -> None:
    """Stop the process that serves a cluster, and remove the files of one that was killed.

    :raises InputError: when there is neither.
    :raises BayplanError: when the process does not end within 30 seconds.
    """
    files = [kubeconfig, beside(kubeconfig, "pid"), beside(kubeconfig, "log")]
    pid = running_pid(files[1])
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        _wait_until_it_ended(files[1], pid)
    elif is_served(kubeconfig) or not is_ours(kubeconfig):
        raise InputError(
            "no cluster of bayplan cluster up runs with this kubeconfig", str(kubeconfig)
        )
    for path in files if is_ours(kubeconfig) else files[1:]:
        path.unlink(missing_ok=True)
    click.echo(f"# {'stopped' if pid is not None else 'was not running; removed its files'}")


def _wait_until_it_ended(path: Path, pid: int) -> None:
    deadline = time.monotonic() + _STOP_TIMEOUT
    while running_pid(path) == pid:
        if time.monotonic() > deadline:
            raise BayplanError(f"process {pid} does not stop; kill -9 {pid} ends it at once")
        time.sleep(_POLL_SECONDS)
