"""What may be attached to a host: how many GPUs of each model, and which models not together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

import msgspec

from bayplan_dra.allocator.model import AllocatedState, DeviceId
from bayplan_dra.allocator.pools import PoolKey
from bayplan_dra.allocator.reach import Reach
from bayplan_dra.allocator.usage import CounterKey

__all__ = ["Host", "HostLimits", "is_of_host"]

_POOL = PoolKey("", "")
_MOST_CAMPS = 16


class HostLimits(msgspec.Struct, frozen=True):
    """The limits of one host.

    :ivar most: how many GPUs of a model it may have, its own ones included; without a number,
        any.
    :ivar apart: the models that may not be on the same host as a model; symmetric.
    :ivar problems: why the limit of a model cannot be read; it is 0 in ``most``.
    """

    name: str
    most: Mapping[str, int] = msgspec.field(default_factory=dict)
    apart: Mapping[str, frozenset[str]] = msgspec.field(default_factory=dict)
    problems: Mapping[str, str] = msgspec.field(default_factory=dict)


class Host(msgspec.Struct, frozen=True):
    """A host and the devices of its table, by their numbers.

    :ivar models: the model of each device, "" for one that no limit is about.
    """

    limits: HostLimits
    ids: Sequence[DeviceId]
    reaches: Sequence[Reach]
    models: Sequence[str]

    @property
    def shape(self) -> object:
        """What two hosts have in common when their limits have the same effect."""
        limits = self.limits
        named = set(self.models)
        most = tuple(sorted((m, n) for m, n in limits.most.items() if m in named))
        apart = tuple((m, tuple(sorted(limits.apart.get(m, ())))) for m in sorted(named))
        return tuple(self.models), most, apart, tuple(sorted(limits.problems.items()))

    def needs(self, number: int) -> Mapping[CounterKey, int]:
        """Return what attaching a device takes from the host's counters."""
        model = self.models[number]
        if self.reaches[number] is not Reach.POOLED or model not in self.limits.most:
            return {}
        return {_key(model): 1}

    def left(self, state: AllocatedState) -> dict[CounterKey, int]:
        """Return how many more GPUs of each limited model may be attached."""
        there = self.present(state)
        return {
            _key(model): max(0, most - there[model]) for model, most in self.limits.most.items()
        }

    def present(self, state: AllocatedState) -> Counter[str]:
        """Count the GPUs that the host has, and those that it will have, by model."""
        return Counter(
            model
            for identity, reach, model in zip(self.ids, self.reaches, self.models, strict=True)
            if model
            and (reach is not Reach.POOLED or state.nodes.get(identity) == self.limits.name)
        )

    def blocked(self, state: AllocatedState) -> int:
        """Return the devices that may not be attached now, one bit each."""
        there = self.present(state)
        return self._mask(
            model
            for model in set(self.models)
            if there[model] >= self.limits.most.get(model, there[model] + 1)
            or any(there[other] for other in self.limits.apart.get(model, ()))
        )

    def allows(self, state: AllocatedState, chosen: Iterable[DeviceId]) -> bool:
        """Tell whether the host may have all these devices, too."""
        after = state.copy()
        after.nodes.update(dict.fromkeys(chosen, self.limits.name))
        before, there = self.present(state), self.present(after)
        return all(
            count <= max(before[model], self.limits.most.get(model, count))
            and not any(there[other] for other in self.limits.apart.get(model, ()))
            for model, count in there.items()
            if count > before[model]
        )

    def camps(self) -> Iterator[int]:
        """Yield sets of devices without which the others may be attached together."""
        models = {
            model
            for model, reach in zip(self.models, self.reaches, strict=True)
            if reach is Reach.POOLED
        }
        left = [frozenset[str]()]
        found: list[frozenset[str]] = []
        while left and len(found) < _MOST_CAMPS:
            without = left.pop()
            enemies = next(
                (
                    (one, other)
                    for one, other in combinations(sorted(models - without), 2)
                    if other in self.limits.apart.get(one, ())
                ),
                None,
            )
            if enemies is None:
                found += [without] if without not in found else []
            else:
                left += [without | {enemy} for enemy in enemies]
        return (self._mask(without) for without in found)

    def _mask(self, models: Iterable[str]) -> int:
        wanted = set(models)
        return sum(
            1 << number
            for number, (model, reach) in enumerate(zip(self.models, self.reaches, strict=True))
            if reach is Reach.POOLED and model in wanted
        )


def is_of_host(key: CounterKey) -> bool:
    """Tell whether a counter is a host's limit."""
    return key[0] == _POOL


def _key(model: str) -> CounterKey:
    return _POOL, "host", model
