"""Fault injection: what tests make a server do to its clients."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from bayplan.cluster.apiserver.request_info import RequestInfo

__all__ = ["Fault", "FaultKind", "ServerFaults", "WatchFault"]


class FaultKind(Enum):
    """How a request fails."""

    STATUS = "status"
    """The server answers with an error and does nothing."""
    CLOSE_BEFORE = "close before"
    """The connection closes before anything is done."""
    CLOSE_AFTER = "close after"
    """The connection closes after the write, without an answer."""


class Fault(msgspec.Struct):
    """A fault for requests with a verb on a resource ("" means any).

    :param times: how often it still happens; None for always.
    :param share: the fraction of these requests that fail, 0 to 1.
    """

    kind: FaultKind
    verb: str = ""
    resource: str = ""
    code: int = 500
    retry_after: int | None = None
    times: int | None = None
    share: float = 1.0

    def concerns(self, info: RequestInfo) -> bool:
        """Return whether the fault applies to a request."""
        return self.verb in ("", info.verb) and self.resource in ("", info.target)


class WatchFault(Enum):
    """How a watch ends."""

    DROP = "drop"
    """The connection closes between two events."""
    TRUNCATE = "truncate"
    """The connection closes in the middle of an event."""
    GARBAGE = "garbage"
    """A line is not JSON."""
    EXPIRE = "expire"
    """An ERROR event says 410 Gone."""


@dataclass
class ServerFaults:
    """The faults of a server.

    :param seed: seeds the choice of failing requests for faults with a ``share``.
    :param latency: seconds by which every answer is delayed.
    :param drop_watches_every: the number of events after which each watch is dropped.
    """

    seed: int = 0
    latency: float = 0.0
    drop_watches_every: int | None = None
    planned: list[Fault] = field(default_factory=list)
    watches_to_end: int = 0
    watch_fault: WatchFault = WatchFault.DROP
    happened: int = 0
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 - chance, not secrets

    def fail(
        self,
        times: int | None = 1,
        verb: str = "",
        resource: str = "",
        code: int = 500,
        retry_after: int | None = None,
        share: float = 1.0,
    ) -> None:
        """Answer the next requests with an error of an HTTP status."""
        fault = Fault(FaultKind.STATUS, verb, resource, code, retry_after, times, share)
        self.planned.append(fault)

    def close(
        self,
        times: int | None = 1,
        verb: str = "",
        resource: str = "",
        after: bool = False,
        share: float = 1.0,
    ) -> None:
        """Close the connection of the next requests, before or after they are carried out."""
        kind = FaultKind.CLOSE_AFTER if after else FaultKind.CLOSE_BEFORE
        self.planned.append(Fault(kind, verb, resource, times=times, share=share))

    def clear(self) -> None:
        """Remove all faults."""
        self.planned.clear()
        self.latency, self.drop_watches_every = 0.0, None

    def take(self, info: RequestInfo) -> Fault | None:
        """Return the fault of a request, None when it succeeds."""
        for fault in self.planned:
            if not fault.concerns(info) or fault.times == 0:
                continue
            if fault.share < 1.0 and self._random.random() >= fault.share:
                continue
            if fault.times is not None:
                fault.times -= 1
            self.happened += 1
            return fault
        return None
