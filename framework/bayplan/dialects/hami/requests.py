"""What a container requests of virtual GPUs, and what HAMi's webhook makes of it."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from bayplan.api import Quantity
from bayplan.api.pod import ResourceRequirements
from bayplan.dialects.hami.systems import HAMI, Resources

__all__ = [
    "NVIDIA",
    "UNSET_PERCENTAGE",
    "ContainerRequest",
    "RequestRules",
    "admitted",
    "container_request",
]

NVIDIA = "NVIDIA"
"""The type of device that these requests are for."""
UNSET_PERCENTAGE = 101
"""The percentage of a request that states its memory in MiB."""
_WHOLE_GPU = 100
_MOST = 2**31 - 1


class RequestRules(msgspec.Struct, frozen=True):
    """The settings of HAMi's device configuration that say how requests are read.

    ``memory_factor`` is how many MiB one unit of the memory resource stands for;
    ``whole_gpus_are_exclusive`` gives all compute to those who get a GPU's whole memory.
    """

    names: Resources = HAMI.resources
    memory_factor: int = 1
    default_memory: int = 0
    default_cores: int = 0
    default_count: int = 1
    whole_gpus_are_exclusive: bool = True


class ContainerRequest(msgspec.Struct, frozen=True):
    """How many GPUs a container requests, and what of each: MiB, or percent; percent of compute.

    ``percentage`` counts where ``memory`` is 0 and it is not ``UNSET_PERCENTAGE``.
    """

    count: int
    memory: int = 0
    percentage: int = UNSET_PERCENTAGE
    cores: int = 0
    type: str = NVIDIA

    def memory_of(self, total: int) -> int:
        """Return the MiB that it needs of a GPU with that many."""
        if self.memory == 0 and self.percentage != UNSET_PERCENTAGE:
            return total * self.percentage // 100
        return self.memory


def admitted(resources: ResourceRequirements, rules: RequestRules) -> ResourceRequirements:
    """Return a container's resources as HAMi's webhook leaves them.

    A container that states only memory or cores gets a count, and one that gets whole GPUs gets
    all of their compute.

    :raises ValueError: for a percentage that the webhook refuses.
    """
    names = rules.names
    percentage = _stated(resources, names.percentage)
    if percentage is not None and not 0 <= percentage.units <= 100:
        raise ValueError(f"{names.percentage}: expected 0 to 100, got {percentage.text[:40]}")
    limits = dict(resources.limits)
    others = (names.cores, names.memory, names.percentage)
    if names.count not in limits and rules.default_count and any(one in limits for one in others):
        limits[names.count] = Quantity(str(rules.default_count))
    made = replace(resources, limits=limits)
    if rules.whole_gpus_are_exclusive and _is_exclusive(made, names):
        limits[names.cores] = Quantity(str(_WHOLE_GPU))
    return replace(resources, limits=limits)


def _is_exclusive(resources: ResourceRequirements, names: Resources) -> bool:
    """Tell whether a container gets whole GPUs and does not say how much compute."""
    if _stated(resources, names.count) is None or not names.cores:
        return False
    if _stated(resources, names.cores) is not None:
        return False
    percentage = _stated(resources, names.percentage)
    if percentage is not None:
        return percentage.units == _WHOLE_GPU
    return _stated(resources, names.memory) is None


def container_request(
    resources: ResourceRequirements, rules: RequestRules
) -> ContainerRequest | None:
    """Return what a container requests; None for no GPUs.

    :raises ValueError: for an amount that is not a whole number, or beyond 32 bits.
    """
    names = rules.names
    count = _amount(resources, names.count)
    if not count:
        return None
    factor = max(rules.memory_factor, 1)
    memory = (_amount(resources, names.memory, _MOST // factor) or 0) * factor
    percentage = _percentage(resources, names.percentage)
    if percentage == UNSET_PERCENTAGE and not memory:
        memory = rules.default_memory
        percentage = UNSET_PERCENTAGE if memory else _WHOLE_GPU
    cores = _amount(resources, names.cores)
    return ContainerRequest(
        count, memory, percentage, rules.default_cores if cores is None else cores
    )


def _stated(resources: ResourceRequirements, name: str) -> Quantity | None:
    """Return what a container states of a resource: its limit, else its request."""
    if not name:
        return None
    limit = resources.limits.get(name)
    return limit if limit is not None else resources.requests.get(name)


def _percentage(resources: ResourceRequirements, name: str) -> int:
    """Return a container's percentage, at most 100; HAMi takes one that says nothing for none."""
    quantity = _stated(resources, name)
    if quantity is None or quantity.amount <= 0 or quantity.amount != int(quantity.amount):
        return UNSET_PERCENTAGE
    return min(int(quantity.amount), _WHOLE_GPU)


def _amount(resources: ResourceRequirements, name: str, most: int = _MOST) -> int | None:
    quantity = _stated(resources, name)
    if quantity is None:
        return None
    amount = quantity.amount
    if amount != int(amount) or not 0 <= amount <= most:
        raise ValueError(
            f"{name}: expected a whole number from 0 to {most}, got {quantity.text[:40]}"
        )
    return int(amount)
