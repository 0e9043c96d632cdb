"""What queues used in the past: samples in an append-only journal that restarts survive.

The usage of a queue is its part of the cluster over a window, newer samples first (KAI, usagedb):
the sum of ``allocation * decay`` over the sum of ``capacity * decay``, where ``decay`` is
``0.5 ** (age / half life)``, or 1 without a half life.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bayplan.api.queue import Amounts
from bayplan.errors import InputError

__all__ = ["Sample", "UsageJournal"]

_log = logging.getLogger("bayplan.queues")
_PRIVATE = 0o600
_LONGEST_LINE = 4 * 1024 * 1024


class Sample(msgspec.Struct, frozen=True):
    """What each queue held at a time (seconds since 1970), and what the cluster had."""

    at: float
    held: Mapping[str, Amounts]
    capacity: Amounts

    def as_line(self) -> str:
        """Return the sample as one line of a journal."""
        held = {name: dict(amounts) for name, amounts in self.held.items() if amounts}
        plain = {"at": self.at, "held": held, "capacity": dict(self.capacity)}
        return json.dumps(plain, separators=(",", ":")) + "\n"

    @classmethod
    def of_line(cls, line: str) -> Sample:
        """Return the sample of a line.

        :raises ValueError: for a line that is none, such as one that was cut by a crash.
        """
        plain = json.loads(line)
        if not isinstance(plain, dict):
            raise ValueError("expected an object")
        held = {str(name): _amounts(own) for name, own in _mapping(plain.get("held")).items()}
        at = plain.get("at")
        if not isinstance(at, int | float) or not math.isfinite(at):
            raise ValueError("expected a time")
        return cls(float(at), held, _amounts(plain.get("capacity")))


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("expected an object")
    return value


def _amounts(value: Any) -> Amounts:
    found = {}
    for name, amount in _mapping(value).items():
        if not isinstance(amount, int | float) or not math.isfinite(amount) or amount < 0:
            raise ValueError(f"expected an amount of {name}")
        found[str(name)] = float(amount)
    return found


class UsageJournal:
    """Samples of the last ``window`` seconds, one in ``every`` seconds.

    :param path: the file to which samples are appended, readable by its owner only; None keeps
        them in memory.
    :param half_life: the seconds after which a sample counts half; None counts all alike.
    :raises InputError: when the file cannot be read or written.
    """

    def __init__(
        self, path: Path | None, window: float, every: float, half_life: float | None
    ) -> None:
        self._path = path
        self._window = window
        self._every = every
        self._half_life = half_life
        self._samples: deque[Sample] = deque()
        self.version = 0
        """Changes with every sample."""
        self._begun = ""
        if path is not None:
            self._read(path)

    def next_time(self) -> float:
        """Return when the next sample is due, in seconds since 1970; in the past for none yet."""
        return self._samples[-1].at + self._every if self._samples else -math.inf

    @property
    def samples(self) -> Sequence[Sample]:
        """The samples of the window, oldest first."""
        return tuple(self._samples)

    def add(self, sample: Sample) -> None:
        """Append a sample; drop those that have left the window.

        A clock that was set back begins the window again, so that no sample lies in the future.
        """
        while self._samples and self._samples[-1].at > sample.at:
            self._samples.pop()
        self._samples.append(sample)
        self._drop_old(sample.at)
        self.version += 1
        if self._path is not None:
            self._append(self._path, sample)

    def usage(self, now: float) -> dict[str, dict[str, float]]:
        """Return each queue's part of the cluster, 0 to 1, by resource.

        :param now: the time in seconds since 1970.
        """
        held: dict[str, dict[str, float]] = {}
        capacity: dict[str, float] = {}
        for sample in self._samples:
            weight = self._decay(now - sample.at)
            for name, amount in sample.capacity.items():
                capacity[name] = capacity.get(name, 0.0) + weight * amount
            for queue, amounts in sample.held.items():
                own = held.setdefault(queue, {})
                for name, amount in amounts.items():
                    own[name] = own.get(name, 0.0) + weight * amount
        return {
            queue: {
                name: amount / capacity[name] for name, amount in own.items() if name in capacity
            }
            for queue, own in held.items()
        }

    def _decay(self, age: float) -> float:
        if self._half_life is None:
            return 1.0
        return float(0.5 ** (max(0.0, age) / self._half_life))

    def _drop_old(self, now: float) -> None:
        while self._samples and self._samples[0].at < now - self._window:
            self._samples.popleft()

    # The file ----------------------------------------------------------------------------

    def _read(self, path: Path) -> None:
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), ""), 1):
                    self._take(path, number, line)
                    # A crash may have cut the last line; the next one begins after it.
                    self._begun = "" if line.endswith("\n") else "\n"
        except FileNotFoundError:
            pass
        except OSError as exc:
            raise InputError(exc.strerror or str(exc), str(path)) from None
        if self._samples:
            self._drop_old(self._samples[-1].at)

    def _take(self, path: Path, number: int, line: str) -> None:
        try:
            sample = Sample.of_line(line)
        except ValueError as exc:
            _log.warning("%s:%d: not a sample, left out: %s", path, number, exc)
            return
        if not self._samples or sample.at > self._samples[-1].at:
            self._samples.append(sample)

    def _append(self, path: Path, sample: Sample) -> None:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, _PRIVATE)
            with open(descriptor, "a", encoding="utf-8") as file:
                file.write(self._begun + sample.as_line())
            self._begun = ""
        except OSError as exc:
            # Shares go on from memory; only a restart would forget this sample.
            _log.warning("%s: a sample of usage could not be written: %s", path, exc.strerror)
