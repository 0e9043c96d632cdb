"""Run something again whenever files have changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import click

from bayplan.errors import BayplanError, InputError, NotFound

__all__ = ["EVERY", "again_and_again", "changes", "check_watchable", "watch_option"]

EVERY = 2.0
"""Seconds between two looks at a cluster."""
_EVERY = 0.5
"""Seconds between two looks at files."""

F = TypeVar("F", bound=Callable[..., object])
Stamps = dict[Path, tuple[int, int]]


def watch_option(help_text: str) -> Callable[[F], F]:
    """Return what adds -w."""
    return click.option("-w", "--watch", is_flag=True, help=help_text)


def check_watchable(paths: Iterable[str]) -> None:
    """Check that input can be read again.

    :raises InputError: for standard input.
    """
    if "-" in paths:
        raise InputError("standard input is read once: give a file to watch", "-f -")


def changes(paths: Iterable[Path]) -> Iterator[list[Path]]:
    """Return what yields the files that have changed since now, and then since the last time.

    A folder stands for all inside it.
    """
    given = list(paths)
    return _changes(given, _stamps(given))


def _changes(given: Sequence[Path], before: Stamps) -> Iterator[list[Path]]:
    while True:
        time.sleep(_EVERY)
        now = _stamps(given)
        changed = [path for path in {**before, **now} if before.get(path) != now.get(path)]
        # A file is often written in several steps: wait until it rests.
        if changed and now == _rested(given):
            before = now
            yield sorted(changed)


def _rested(paths: Iterable[Path]) -> Stamps:
    time.sleep(_EVERY / 5)
    return _stamps(paths)


def _stamps(paths: Iterable[Path]) -> Stamps:
    """Return when each file was written, in nanoseconds, and its size."""
    found = {}
    for path in paths:
        inside = path.rglob("*") if path.is_dir() else [path]
        for file in inside:
            try:
                status = file.stat()
            except OSError:
                continue
            if not file.is_dir():
                found[file] = (status.st_mtime_ns, status.st_size)
    return found


def again_and_again(run: Callable[[], None], paths: Iterable[Path], always: bool = False) -> None:
    """Run something now, and again whenever files have changed, until Ctrl-C.

    Input that cannot be used gets, and read again once it has changed.

    :param always: run it every 2 s instead, whether files have changed or not.
    """
    # Watching begins before the first run: what changes meanwhile counts.
    watch = changes(paths)
    reported = ""
    try:
        while True:
            # Clears a terminal, and does nothing in a pipe.
            click.clear()
            if reported:
                click.echo(reported, err=True)
            try:
                run()
            except NotFound:
                raise
            except BayplanError as exc:
                click.echo(f"bayplan: {exc}", err=True)
            if always:
                time.sleep(EVERY)
                reported = time.strftime("%H:%M:%S")
            else:
                changed = next(watch)
                reported = f"{time.strftime('%H:%M:%S')} changed: {', '.join(map(str, changed))}"
    except KeyboardInterrupt:
        return
