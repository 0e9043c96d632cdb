"""Runs a scheduler on the embedded cluster in virtual time, for simulations and tests."""

from __future__ import annotations

from collections.abc import Callable

from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.scheduler.scheduler import Scheduler

__all__ = ["VirtualTime"]


class VirtualTime:
    """Moves the clock of an embedded cluster with its scheduler. Times are in virtual seconds.

    :param on_step: called after each step of the scheduler.
    :param on_settled: called at each instant, when nothing is left to do at it.
    """

    def __init__(
        self,
        cluster: MemoryCluster,
        scheduler: Scheduler,
        on_step: Callable[[], None] | None = None,
        on_settled: Callable[[], None] | None = None,
    ) -> None:
        self._cluster = cluster
        self._scheduler = scheduler
        self._on_step = on_step
        self._on_settled = on_settled

    def settle(self) -> None:
        """Do everything that can be done at this instant."""
        while True:
            self._cluster.deliver()
            if not self._scheduler.step() and not self._cluster.deliver():
                break
            if self._on_step is not None:
                self._on_step()
        if self._on_settled is not None:
            self._on_settled()

    def advance(self, to: float, idle: bool = True) -> None:
        """Do everything that is due until a time; the clock stops at the last action.

        :param idle: whether to also do what nothing waits for, such as resyncs of controllers.
        """
        self.advance_while(to, lambda: idle)

    def advance_while(self, to: float, busy: Callable[[], bool]) -> None:
        """Advance, and do what nothing waits for, such as faults, as long as somebody is busy."""
        self.settle()
        clock = self._cluster.clock
        while True:
            times = (clock.next_time(busy()), self._scheduler.next_time())
            due = min((at for at in times if at is not None and at <= to), default=None)
            if due is None:
                return
            # What nothing waits for happens at its time, too, and is seen then.
            first = clock.next_time()
            clock.advance(due if first is None else min(due, first))
            self._scheduler.tick()
            self.settle()
