"""Which devices a ComputePool selects: the language of selectors is installed beside this package.

It is found by its entry point, as this package knows objects of DRA and not how expressions on
them are evaluated.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import entry_points
from typing import Protocol

from bayplan.api import ComputePool
from bayplan.api.dra import Device

__all__ = ["ENTRY_POINT_GROUP", "DeviceSelector", "device_selector", "selector_of"]

ENTRY_POINT_GROUP = "bayplan.device_selectors"
_LANGUAGE = "cel"


class DeviceSelector(Protocol):
    """An expression that selects devices; ``problem`` is why it cannot, "" if it can."""

    problem: str

    def selects(self, driver: str, device: Device) -> bool:
        """Tell whether it selects a device; never one while there is a problem."""


@lru_cache(maxsize=1024)
def device_selector(expression: str) -> DeviceSelector:
    """Compile an expression; compiled ones are kept."""
    (point,) = entry_points(group=ENTRY_POINT_GROUP, name=_LANGUAGE)
    found: DeviceSelector = point.load()(expression)
    return found


def selector_of(pool: ComputePool | None) -> DeviceSelector | None:
    """Return what selects a pool's devices, None where it has all devices of its nodes."""
    expression = pool.spec.device_selector if pool is not None else ""
    return device_selector(expression) if expression.strip() else None
