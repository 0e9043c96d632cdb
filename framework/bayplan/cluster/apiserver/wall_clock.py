"""The real time as the time of a cluster."""

from __future__ import annotations

import asyncio

from bayplan.cluster.apiserver.store import ServedCluster

__all__ = ["WallClock"]


class WallClock:
    """Moves the clock of a cluster on, second by second of the real time, in a running loop."""

    def __init__(self, cluster: ServedCluster) -> None:
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._origin = self._loop.time() - cluster.clock.now
        self._alarm: asyncio.TimerHandle | None = None
        cluster.real_time, cluster.set_alarm = self._now, self._set_alarm
        cluster.settle()

    def stop(self) -> None:
        """Leave the clock where it is."""
        self._cluster.real_time = self._cluster.set_alarm = None
        self._set_alarm(None)

    def _now(self) -> float:
        return self._loop.time() - self._origin

    def _set_alarm(self, due: float | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None
        if due is not None:
            self._alarm = self._loop.call_at(self._origin + due, self._cluster.settle)
