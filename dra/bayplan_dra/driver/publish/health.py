"""Which devices are sick, why, and since when; everybody who waits for a change is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from bayplan.api.dra import DeviceTaint

__all__ = ["DeviceHealth", "Health", "Problem"]


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a device: ``cause`` is the key of its taint, such as xid."""

    cause: str
    text: str


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """A device's health; ``problem`` "" is well, ``since`` in Unix seconds."""

    pool: str
    name: str
    problem: str
    since: float


class Health:
    """The health of a node's devices. Safe to use from many threads.

    :param effect: of the taints of sick devices.
    """

    def __init__(
        self,
        driver: str,
        pool: str,
        effect: Literal["NoSchedule", "NoExecute"] = "NoSchedule",
        now: Callable[[], float] = time.time,
    ) -> None:
        self._driver = driver
        self._pool = pool
        self._effect = effect
        self._now = now
        self._changed = threading.Condition()
        self._version = 0
        self._devices: dict[str, tuple[dict[str, Problem], float]] = {}

    def set_devices(self, names: Iterable[str]) -> None:
        """Say which devices there are; new ones are well."""
        with self._changed:
            now = self._now()
            self._devices = {name: self._devices.get(name, ({}, now)) for name in names}
            self._tell()

    def report(self, device: str, cause: str, text: str) -> bool:
        """Say that a device has a problem, or with an empty text that it is over.

        :returns: whether that was news.
        """
        with self._changed:
            known, _ = self._devices.get(device, ({}, 0.0))
            before = known.get(cause)
            if device not in self._devices or (before.text if before else "") == text:
                return False
            after = {key: value for key, value in known.items() if key != cause}
            if text:
                after[cause] = Problem(cause, text)
            self._devices[device] = (after, self._now())
            self._tell()
            return True

    def _tell(self) -> None:
        self._version += 1
        self._changed.notify_all()

    def taints(self) -> dict[str, tuple[DeviceTaint, ...]]:
        """Return the taints of sick devices, by name."""
        with self._changed:
            return {
                name: tuple(
                    DeviceTaint(f"{self._driver}/{cause}", self._effect)
                    for cause in sorted(problems)
                )
                for name, (problems, _) in self._devices.items()
                if problems
            }

    def wait(self, version: int, seconds: float) -> tuple[int, list[DeviceHealth]]:
        """Wait until something changed since ``version``, or so long; return all devices."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != version, seconds)
            return self._version, [
                DeviceHealth(self._pool, name, _text(problems), since)
                for name, (problems, since) in self._devices.items()
            ]

    def wake(self) -> None:
        """Make everybody who waits look again."""
        with self._changed:
            self._tell()


def _text(problems: Mapping[str, Problem]) -> str:
    return "; ".join(problem.text for problem in problems.values())
