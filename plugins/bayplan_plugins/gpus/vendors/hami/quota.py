"""How much of its GPUs a namespace may have: the limits of HAMi in ResourceQuotas.

``limits.nvidia.com/gpumem`` is in the unit of requests, MiB by default, and
``limits.nvidia.com/gpucores`` in percent of a GPU. What counts is what pods hold of GPUs, not
what they request (HAMi, pkg/device/quota.go).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bayplan.api import Quantity
from bayplan.dialects.hami.requests import RequestRules
from bayplan_plugins.gpus.vendors.hami.containers import ContainerKind, Held, held_together
from bayplan_plugins.gpus.vendors.hami.fit import Pick

__all__ = ["NO_LIMITS", "QuotaLimits", "within_quota"]

_PREFIX = "limits."


class QuotaLimits(msgspec.Struct, frozen=True):
    """The MiB and the percent of compute that a namespace may have; None is no limit."""

    memory: int | None = None
    cores: int | None = None

    @classmethod
    def of(cls, hard: Mapping[str, Quantity], rules: RequestRules) -> QuotaLimits:
        """Return the limits of a ResourceQuota's ``spec.hard``."""
        memory, cores = _limit(hard, rules.names.memory), _limit(hard, rules.names.cores)
        return cls(None if memory is None else memory * rules.memory_factor, cores)

    def stricter(self, other: QuotaLimits) -> QuotaLimits:
        """Return the limits of two quotas, which both have to be kept."""
        return QuotaLimits(_lower(self.memory, other.memory), _lower(self.cores, other.cores))

    def admits(self, memory: int, cores: int) -> bool:
        """Tell whether a namespace may have so much in all."""
        within = self.memory is None or memory <= self.memory
        return within and (self.cores is None or cores <= self.cores)


NO_LIMITS = QuotaLimits()


def within_quota(
    limits: QuotaLimits,
    used: tuple[int, int],
    kinds: Sequence[ContainerKind],
    earlier: Sequence[Sequence[Pick]],
    picks: Sequence[Pick],
    more: Pick,
) -> bool:
    """Tell whether a namespace may have one pick more.

    :param used: MiB and percent that its other pods hold.
    :param kinds: of all containers of the pod.
    :param earlier: the picks of the containers before this one.
    :param picks: those of this container so far.
    """
    if limits == NO_LIMITS:
        return True
    own = [*earlier, [*picks, more]]
    amounts = (
        (container, pick.device.uuid, Held(pick.memory, pick.cores, 1))
        for container, devices in enumerate(own)
        for pick in devices
    )
    held = held_together(kinds, amounts).values()
    memory = used[0] + sum(one.memory for one in held)
    cores = used[1] + sum(one.cores for one in held)
    return limits.admits(memory, cores)


def _limit(hard: Mapping[str, Quantity], name: str) -> int | None:
    quantity = hard.get(f"{_PREFIX}{name}") if name else None
    return quantity.units if quantity is not None else None


def _lower(one: int | None, other: int | None) -> int | None:
    stated = [limit for limit in (one, other) if limit is not None]
    return min(stated) if stated else None
