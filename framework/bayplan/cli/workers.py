"""Runs a function on many inputs at once: in processes of this machine, or on a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TYPE_CHECKING, TypeVar

from bayplan.errors import BayplanError, InputError

if TYPE_CHECKING:
    from bayplan.cli.progress import Report

__all__ = ["at_once", "on_dask"]

T = TypeVar("T")
R = TypeVar("R")

_SECONDS = "10s"


def at_once(
    processes: int, function: Callable[[T], R], inputs: Sequence[T], progress: Report | None
) -> list[R]:
    """Return what a function makes of each input, in their order.

    :param processes: how many run at once; one runs in this process.
    :param progress: called with how many are done, and how many there are.
    :raises BayplanError: when a process dies.
    """
    if min(processes, len(inputs)) < 2:
        answers = []
        for done, one in enumerate(inputs):
            if progress is not None:
                progress(done, len(inputs))
            answers.append(function(one))
        return answers
    # Forking a process that has threads is not safe, and numpy may have some.
    context = get_context("spawn")
    try:
        with ProcessPoolExecutor(min(processes, len(inputs)), mp_context=context) as pool:
            return _spread(pool, function, inputs, progress)
    except BrokenExecutor:
        raise BayplanError("a process ended before its run did: is there enough memory?") from None


def on_dask(
    address: str, function: Callable[[T], R], inputs: Sequence[T], progress: Report | None
) -> list[R]:
    """Return what a function makes of each input, in their order, on a Dask cluster.

    :raises InputError: without Dask, and where no cluster answers at the address.
    :raises BayplanError: when its workers fail.
    """
    try:
        from distributed import Client
    except ModuleNotFoundError as exc:
        raise InputError(f"{exc.name} is not installed: pip install 'bayplan[sweep]'") from None
    try:
        client = Client(address, timeout=_SECONDS, set_as_default=False)
    except (OSError, ValueError) as exc:
        raise InputError(f"no Dask cluster answers: {exc}", f"--dask {address}") from None
    try:
        return _spread(client.get_executor(pure=False), function, inputs, progress)
    except Exception as exc:
        raise BayplanError(f"--dask {address}: {type(exc).__name__}: {exc}") from exc
    finally:
        client.close()


def _spread(
    pool: Executor, function: Callable[[T], R], inputs: Sequence[T], progress: Report | None
) -> list[R]:
    futures = [pool.submit(function, one) for one in inputs]
    try:
        for done, future in enumerate(as_completed(futures), 1):
            future.result()
            if progress is not None:
                progress(done, len(inputs))
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    return [future.result() for future in futures]
