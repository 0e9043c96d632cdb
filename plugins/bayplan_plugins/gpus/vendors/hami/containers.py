"""Which GPUs the containers of a pod get, one after another, and what they hold together.

Init containers run one at a time before the others: of each GPU, a pod holds what the largest of
them needs or what all others need together, whichever is more. Sidecars start among the init
containers and stay (HAMi, pkg/device: CollapseInitContainerUsage). MIG partitions are all made
when the pod is admitted, so init containers keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from enum import Enum

import msgspec

from bayplan.dialects.hami.policies import GpuOptions
from bayplan.dialects.hami.requests import NVIDIA, ContainerRequest
from bayplan_plugins.gpus.vendors.hami.device import MIG, Device
from bayplan_plugins.gpus.vendors.hami.fit import Pick, QuotaCheck, fit, no_quota, take
from bayplan_plugins.gpus.vendors.hami.order import Rank, device_rank, in_order

__all__ = ["ContainerKind", "Held", "Wanted", "allocate", "fit_container", "held_together"]

_NO_DEVICE = "NodeInsufficientDevice"
_NO_TYPE = "Device type not found"


class ContainerKind(Enum):
    """When a container runs."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


class Wanted(msgspec.Struct, frozen=True):
    """What one container requests, None for no GPU; init containers come first."""

    kind: ContainerKind
    request: ContainerRequest | None


class Held(msgspec.Struct):
    """What a pod holds of a GPU: MiB, percent of compute, and slots."""

    memory: int = 0
    cores: int = 0
    slots: int = 0

    def plus(self, other: Held) -> Held:
        """Return both together."""
        return Held(self.memory + other.memory, self.cores + other.cores, self.slots + other.slots)

    def at_least(self, other: Held) -> Held:
        """Return what covers either."""
        return Held(
            max(self.memory, other.memory),
            max(self.cores, other.cores),
            max(self.slots, other.slots),
        )


def held_together(
    kinds: Sequence[ContainerKind], picks: Iterable[tuple[int, str, Held]]
) -> dict[str, Held]:
    """Return what containers hold of each GPU together, by the GPU's UUID.

    :param kinds: of all containers, in order.
    :param picks: container, UUID and amounts, in the order of the containers.
    """
    peaks: dict[str, Held] = {}
    stays: dict[str, Held] = {}
    apps: dict[str, Held] = {}
    for container, uuid, own in picks:
        kind = kinds[container]
        if kind is ContainerKind.APP:
            apps[uuid] = apps.get(uuid, Held()).plus(own)
            continue
        together = stays.get(uuid, Held()).plus(own)
        peaks[uuid] = peaks.get(uuid, Held()).at_least(together)
        if kind is ContainerKind.SIDECAR:
            stays[uuid] = together
    return {
        uuid: peaks.get(uuid, Held()).at_least(stays.get(uuid, Held()).plus(apps.get(uuid, Held())))
        for uuid in {**peaks, **apps}
    }


Quota = Callable[[Sequence[Sequence[Pick]], Sequence[Pick], Pick], bool]
"""Whether a namespace may have one pick more, beside those of earlier containers and this one."""


def allocate(
    devices: Sequence[Device],
    wanted: Sequence[Wanted],
    options: GpuOptions,
    quota: Quota | None = None,
    rank: Rank | None = None,
) -> tuple[tuple[Pick, ...], ...] | str:
    """Return the GPUs that each container gets, or why one of them does not get its own.

    :param devices: the GPUs of a node; what is taken of them changes.
    :param rank: the sort key of GPUs; None for that of HAMi's policies.
    """
    found: list[tuple[Pick, ...]] = []
    for one in wanted:
        if one.request is None:
            found.append(())
            continue
        room = _while_it_runs(devices) if one.kind is ContainerKind.INIT else list(devices)
        check = _beside(found, quota)
        picks = fit_container(room, one.request, options, check, rank)
        if isinstance(picks, str):
            return picks
        for copied, device in zip(room, devices, strict=True):
            if copied is not device and device.mode == MIG:
                device.partitions, device.used = copied.partitions, copied.used
                device.used_memory, device.used_cores = copied.used_memory, copied.used_cores
        found.append(picks)
    return tuple(found)


def _while_it_runs(devices: Sequence[Device]) -> list[Device]:
    """Return copies of GPUs, for a container that ends before the next one starts."""
    copies = [copy(device) for device in devices]
    for device in copies:
        device.partitions = list(device.partitions)
    return copies


def _beside(found: Sequence[Sequence[Pick]], quota: Quota | None) -> QuotaCheck:
    if quota is None:
        return no_quota
    earlier = tuple(found)
    return lambda picks, more: quota(earlier, picks, more)


def fit_container(
    devices: Sequence[Device],
    request: ContainerRequest,
    options: GpuOptions,
    quota: QuotaCheck = no_quota,
    rank: Rank | None = None,
) -> tuple[Pick, ...] | str:
    """Take the GPUs that one container gets, and return them, or why it does not get them."""
    if request.type != NVIDIA:
        return _NO_TYPE
    rank = rank or device_rank(options.policy, options.numa_bind)
    ordered = in_order(devices, (request,), options.weights, rank)
    own = [device for device in ordered if request.type.lower() in device.type.lower()]
    if request.count > len(own) and not _may_be_partitions(own, options):
        return _NO_DEVICE
    found = fit(own, request, options, quota)
    if not found.fits:
        return found.reason
    taken = [take(pick) for pick in found.picks]
    if None in taken:
        return "1/1 CardMigTopologyInfeasible"
    return tuple(pick for pick in taken if pick is not None)


def _may_be_partitions(devices: Sequence[Device], options: GpuOptions) -> bool:
    """Tell whether one GPU may serve a container several times."""
    if options.modes and not any(MIG in word for word in options.modes):
        return False
    return any(device.mode == MIG for device in devices)
