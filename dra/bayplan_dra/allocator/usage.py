"""What is left of counters and shared capacity when an allocation starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from bayplan_dra.allocator.model import AllocatedState, Amount, PoolDevice
from bayplan_dra.allocator.pools import Pool, PoolKey

__all__ = ["CounterKey", "Usage", "counter_needs"]

CounterKey = tuple[PoolKey, str, str]
"""Pool, counter set and counter."""


class Usage(msgspec.Struct):
    """The state in which an allocation starts.

    :ivar counters: what is left of each counter; negative when it is overdrawn.
    """

    state: AllocatedState
    counters: dict[CounterKey, Amount] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, state: AllocatedState, pools: Iterable[Pool]) -> Usage:
        """Return what is left in the pools of a node."""
        usage = cls(state)
        for pool in pools:
            for counter_set, counters in pool.counters.items():
                for name, amount in counters.items():
                    usage.counters[pool.key, counter_set, name] = amount
            for identity, device in pool.consumers.items():
                if identity not in state.devices and identity not in state.shared:
                    continue
                for used in device.consumes_counters:
                    for name, counter in used.counters.items():
                        key = (pool.key, used.counter_set, name)
                        if key in usage.counters:
                            usage.counters[key] -= counter.value.number
        return usage

    def in_use(self, device: PoolDevice) -> bool:
        """Tell whether a device is held exclusively by a claim."""
        return device.id in self.state.devices

    def share_left(self, device: PoolDevice, name: str) -> Amount:
        """Return what is left of a shared device's capacity; ``name`` is the capacity's."""
        consumed = self.state.capacity.get(device.id, {}).get(name, 0)
        return device.spec.capacity[name].value.number - consumed


def counter_needs(device: PoolDevice) -> Mapping[CounterKey, Amount]:
    """Return what a device takes from each counter while it is allocated."""
    pool = PoolKey(device.id.driver, device.id.pool)
    return {
        (pool, used.counter_set, name): counter.value.number
        for used in device.spec.consumes_counters
        for name, counter in used.counters.items()
    }
