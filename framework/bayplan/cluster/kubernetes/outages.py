"""Outages of the API server, logged in one line for all kinds."""

from __future__ import annotations

import asyncio
import logging

__all__ = ["Outages"]

_GATHER_SECONDS = 1.0
"""Seconds to wait for other kinds before logging: they notice one after the other."""

_log = logging.getLogger("bayplan.cluster")


class Outages:
    """Tracks the kinds without answers; logs the start and the end of an outage.

    Short outages are not logged: servers occasionally close connections.
    """

    def __init__(self) -> None:
        self._out: dict[str, str] = {}
        self._reported = 0
        self._timer: asyncio.TimerHandle | None = None

    def began(self, kind: str, problem: str, late: bool = False) -> None:
        """Record that a kind got no answer, and the problem.

        :param late: whether the kind is asked for now and then only, so that it may notice an
            outage long after the others, which then is not logged again.
        """
        new = kind not in self._out
        if new and late and self._reported:
            self._reported += 1
        self._out[kind] = problem
        if new and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._report)

    def ended(self, kind: str) -> bool:
        """Record that a kind got any answer; return whether its outage had been recorded."""
        if self._out.pop(kind, None) is None:
            return False
        if not self._out:
            if self._reported:
                _log.info("the API server answers again: %s followed", _counted(self._reported))
            self.forget()
        return True

    def forget(self) -> None:
        """Forget all outages without logging."""
        self._out.clear()
        self._reported = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _report(self) -> None:
        self._timer = None
        if len(self._out) > self._reported:
            self._reported = len(self._out)
            problem = next(iter(self._out.values()))
            _log.warning("%s not followed for now: %s", _counted(self._reported), problem)


def _counted(kinds: int) -> str:
    return f"{kinds} kinds are" if kinds > 1 else "1 kind is"
