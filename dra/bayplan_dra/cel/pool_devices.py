"""The devices of a pool: those that its CEL expression selects."""

from __future__ import annotations

from bayplan.api.dra import Device
from bayplan_dra.cel.device import CelDevice
from bayplan_dra.cel.errors import CompileError
from bayplan_dra.cel.program import compile_selector

__all__ = ["PoolDevices"]


class PoolDevices:
    """An expression over devices. A device for which it fails is not selected.

    ``problem`` is what the compiler says of one that does not compile, "" for any other; it
    selects nothing.
    """

    def __init__(self, expression: str) -> None:
        self.problem = ""
        try:
            self._program = compile_selector(expression)
        except CompileError as exc:
            self.problem = str(exc)

    def selects(self, driver: str, device: Device) -> bool:
        """Tell whether a device of a driver is in the pool."""
        if self.problem:
            return False
        many = device.allow_multiple_allocations
        view = CelDevice(driver, device.attributes, device.capacity, bool(many))
        return self._program.result(view) is True
