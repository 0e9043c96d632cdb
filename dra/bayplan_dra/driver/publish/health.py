"""Which devices are unhealthy, why, and since when; waiters are notified of every change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from bayplan.api.dra import DeviceTaint

__all__ = ["DeviceHealth", "DeviceProblem", "HealthTracker"]


class DeviceProblem(msgspec.Struct, frozen=True):
    """What is wrong with a device; ``cause`` is the key of its taint, such as xid."""

    cause: str
    text: str


class DeviceHealth(msgspec.Struct, frozen=True):
    """A device's health; ``problem`` is "" for a healthy one, ``since`` is in Unix seconds."""

    pool: str
    name: str
    problem: str
    since: float


class HealthTracker:
    """The health of a node's devices. Thread-safe.

    :param effect: of the taints of unhealthy devices.
    :param now: returns the time in Unix seconds.
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
        self._devices: dict[str, tuple[dict[str, DeviceProblem], float]] = {}

    def set_devices(self, names: Iterable[str]) -> None:
        """Set which devices there are; new ones are healthy."""
        with self._changed:
            now = self._now()
            self._devices = {name: self._devices.get(name, ({}, now)) for name in names}
            self._notify()

    def report(self, device: str, cause: str, text: str) -> bool:
        """Record that a device has a problem, or with an empty text that it is over.

        :returns: whether this changed anything.
        """
        with self._changed:
            known, _ = self._devices.get(device, ({}, 0.0))
            before = known.get(cause)
            if device not in self._devices or (before.text if before else "") == text:
                return False
            after = {key: value for key, value in known.items() if key != cause}
            if text:
                after[cause] = DeviceProblem(cause, text)
            self._devices[device] = (after, self._now())
            self._notify()
            return True

    def _notify(self) -> None:
        self._version += 1
        self._changed.notify_all()

    def taints(self) -> dict[str, tuple[DeviceTaint, ...]]:
        """Return the taints of unhealthy devices, by name."""
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
        """Wait until something changes, or time is up; return the new version and all devices.

        :param version: the version that the caller knows; -1 returns at once.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._version != version, seconds)
            return self._version, [
                DeviceHealth(self._pool, name, _text(problems), since)
                for name, (problems, since) in self._devices.items()
            ]

    def wake(self) -> None:
        """Wake all waiters."""
        with self._changed:
            self._notify()


def _text(problems: Mapping[str, DeviceProblem]) -> str:
    return "; ".join(problem.text for problem in problems.values())
