"""What happened: events, and samples of the whole cluster over time, each within a bound."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from bayplan.page.rows import NodeTile

__all__ = ["MOST_EVENTS", "MOST_SAMPLES", "History", "Sample"]

MOST_EVENTS = 40_000
MOST_SAMPLES = 1_000
_WHOLE = 1000


class Sample(msgspec.Struct, frozen=True):
    """The cluster at one time, in seconds.

    ``gpus`` is how many there are, ``used`` how many are taken, parts counted as such. ``partly``
    are free GPUs on nodes of which others are taken: a pod that needs a whole node cannot have
    them. ``cpu`` is the part of all CPUs that is requested. ``queues`` is what each queue uses, as
    a part of the cluster.
    """

    at: float
    gpus: int
    used: float
    partly: int
    cpu: float
    pending: int
    running: int
    evictions: int
    queues: Mapping[str, float]

    def as_json(self) -> list[Any]:
        """Return the fields in their order."""
        queues = {name: round(share, 4) for name, share in self.queues.items()}
        return [
            round(self.at, 3),
            self.gpus,
            round(self.used, 3),
            self.partly,
            round(self.cpu, 4),
            self.pending,
            self.running,
            self.evictions,
            queues,
        ]


class History(msgspec.Struct):
    """The latest events, and samples that get sparser as they get more."""

    events: deque[list[Any]] = msgspec.field(default_factory=lambda: deque(maxlen=MOST_EVENTS))
    samples: list[Sample] = msgspec.field(default_factory=list)
    evictions: int = 0
    added: int = 0
    """How many events there ever were."""
    _gpus: int = 0
    _used: int = 0
    _partly: int = 0
    _cpu: tuple[int, int] = (0, 0)
    _every: float = 0.0

    def add(self, at: float, kind: str, about: str, node: str, message: str = "") -> None:
        """Add an event about a pod or unit: ``[at, kind, about, node, message]``."""
        event: list[Any] = [round(at, 3), kind, about, node, message]
        while not event[-1]:
            event.pop()
        self.events.append(event)
        self.added += 1

    def since(self, added: int) -> list[list[Any]]:
        """Return the events after the first ``added``, as far as they are kept."""
        fresh = min(len(self.events), self.added - added)
        return [self.events[index] for index in range(len(self.events) - fresh, len(self.events))]

    def count(self, before: NodeTile | None, after: NodeTile | None) -> None:
        """Replace what a node adds to the sums."""
        for tile, sign in ((before, -1), (after, 1)):
            if tile is None:
                continue
            self._gpus += sign * tile.gpus
            self._used += sign * tile.used
            self._partly += sign * (tile.free if tile.free < tile.gpus else 0)
            used, offered = self._cpu
            self._cpu = (used + sign * tile.cpu[0], offered + sign * tile.cpu[1])

    def sample(
        self,
        at: float,
        counts: tuple[int, int],
        queues: Callable[[], Mapping[str, float]],
        last: bool = False,
    ) -> None:
        """Take a sample, unless the one before is too recent for how many there are.

        :param at: the time in seconds.
        :param counts: how many pods wait for a node, and how many have one.
        :param queues: returns what each queue uses as a part of the cluster.
        :param last: take it in any case.
        """
        if self.samples and self.samples[-1].at == at:
            self.samples.pop()
        if self.samples and at < self.samples[-1].at + self._every and not last:
            return
        used, offered = self._cpu
        cpu = used / offered if offered else 0.0
        gpus = (self._gpus, self._used / _WHOLE, self._partly)
        self.samples.append(Sample(at, *gpus, cpu, *counts, self.evictions, queues()))
        if len(self.samples) > MOST_SAMPLES:
            span = self.samples[-1].at - self.samples[0].at
            self._every = max(2 * self._every, 2 * span / MOST_SAMPLES)
            self.samples = [*self.samples[:-1:2], self.samples[-1]]
