"""Which devices are in use: the sum over all claims, trials and device plugins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from bayplan.api.dra import DeviceId
from bayplan_dra.allocator import AllocatedState, HeldDevice

__all__ = ["DeviceUsage"]

_MOST_FREED = 10_000
"""Devices of which it is remembered when they became free."""


class DeviceUsage:
    """Counts the holders of each device; a device is free when it has none.

    A device may briefly have several holders, as when another scheduler allocated it too.

    :param on_change: called with the devices whose holders changed.
    """

    def __init__(self, on_change: Callable[[Iterable[HeldDevice]], None]) -> None:
        self.state = AllocatedState()
        self._on_change = on_change
        self._holders: dict[DeviceId, int] = {}
        self._unclaimed: dict[str, frozenset[DeviceId]] = {}
        self._reporters: list[Callable[[], None]] = []
        self._freed = 0

    def hold(self, held: Collection[HeldDevice]) -> None:
        """Count one more holder of each device, or of each share of one."""
        for one in held:
            if one.consumed is not None:
                self.state.take((one,))
                continue
            count = self._holders.get(one.id, 0) + 1
            self._holders[one.id] = count
            if count == 1:
                self.state.take((one,))
        self._on_change(held)

    def release(self, held: Collection[HeldDevice]) -> None:
        """Undo ``hold``."""
        for one in held:
            if one.consumed is not None:
                self.state.release((one,))
                continue
            count = self._holders[one.id] - 1
            if count:
                self._holders[one.id] = count
            else:
                del self._holders[one.id]
                self.state.release((one,))
        self._on_change(held)

    def note_freed(self, devices: Iterable[HeldDevice]) -> None:
        """Record that claims gave devices back just now."""
        for one in devices:
            self._freed += 1
            # The latest comes last.
            self.state.freed.pop(one.id, None)
            self.state.freed[one.id] = self._freed
            if len(self.state.freed) > _MOST_FREED:
                del self.state.freed[next(iter(self.state.freed))]

    def note_readiness(self, device: HeldDevice, ready: bool) -> None:
        """Record that a device got ready, or failed to."""
        failures = self.state.failures
        before = failures.pop(device.id, 0), failures.pop(device.node, 0)
        if not ready:
            failures[device.id], failures[device.node] = before[0] + 1, before[1] + 1
        if not ready or any(before):
            self._on_change((device,))

    def holders_of(self, device: DeviceId) -> int:
        """Return how many hold the whole of a device."""
        return self._holders.get(device, 0)

    # Devices in use without a claim ----------------------------------------------------------

    def on_read(self, report: Callable[[], None]) -> None:
        """Call ``report``, which may call ``set_unclaimed``, before claims get devices."""
        self._reporters.append(report)

    def read_unclaimed(self) -> None:
        """Learn which devices are in use without a claim on nodes that are new or changed."""
        for report in self._reporters:
            report()

    def set_unclaimed(self, node: str, devices: frozenset[DeviceId]) -> None:
        """Hold the devices of a node that are in use without a claim; replaces the former ones."""
        before = self._unclaimed.get(node, frozenset())
        if devices == before:
            return
        # Listeners ask ``is_claimed`` while the two steps run.
        self._unclaimed[node] = before | devices
        self.hold([HeldDevice(one) for one in devices - before])
        self._unclaimed[node] = devices
        self.release([HeldDevice(one) for one in before - devices])

    def is_claimed(self, device: DeviceId, node: str) -> bool:
        """Tell whether a claim holds a device of a node, or a share of it."""
        unclaimed = device in self._unclaimed.get(node, ())
        return device in self.state.shared or self._holders.get(device, 0) > unclaimed
