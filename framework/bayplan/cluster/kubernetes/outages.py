"""Which kinds the API server gives no answer for now, told in one line for all of them."""

from __future__ import annotations

import asyncio
import logging

__all__ = ["Outages"]

_GATHER_SECONDS = 1.0
"""How long the line waits for the other kinds: they notice one after the other."""

_log = logging.getLogger("bayplan.cluster")


class Outages:
    """Kinds that cannot be followed for the moment; the log hears when it begins and when it ends.

    What is over before it could be told is not told: servers close connections now and then.
    """

    def __init__(self) -> None:
        self._out: dict[str, str] = {}
        self._reported = 0
        self._timer: asyncio.TimerHandle | None = None

    def began(self, kind: str, problem: str) -> None:
        """Note that a kind got no answer; the problem is as told for it."""
        new = kind not in self._out
        self._out[kind] = problem
        if new and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._report)

    def ended(self, kind: str) -> bool:
        """Note that a kind got an answer, whatever it says; return whether it had got none."""
        if self._out.pop(kind, None) is None:
            return False
        if not self._out:
            if self._reported:
                _log.info("the API server answers again: %s followed", _counted(self._reported))
            self.forget()
        return True

    def forget(self) -> None:
        """Begin anew, and tell nothing of what was noted."""
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
