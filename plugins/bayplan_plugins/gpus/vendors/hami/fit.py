"""Which GPUs of a node one container gets (HAMi, pkg/device/nvidia: Fit)."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from bayplan.api.gpu_shares import MEBIBYTE, Partition
from bayplan.dialects.hami.policies import GpuOptions
from bayplan.dialects.hami.requests import NVIDIA, ContainerRequest
from bayplan_plugins.gpus.vendors.hami.device import MIG, PERCENT, Device
from bayplan_plugins.gpus.vendors.hami.mig import choose_partition

__all__ = ["Fit", "Pick", "QuotaCheck", "fit", "no_quota", "reason_text", "take", "takes"]

_EXCLUSIVE = 100
_MOST_SETS = 100_000
_REASONS = (
    "CardNotHealth",
    "CardCordoned",
    "CardTypeMismatch",
    "NumaNotFit",
    "CardUuidMismatch",
    "CardTimeSlicingExhausted",
    "ExclusiveDeviceAllocateConflict",
    "ResourceQuotaNotFit",
    "CardInsufficientMemory",
    "CardInsufficientCore",
    "CardComputeUnitsExhausted",
    "CardMigTopologyInfeasible",
    "AllocatedCardsInsufficientRequest",
)


class Pick(msgspec.Struct, frozen=True):
    """A GPU that a container gets, with the MiB and the percent of compute it may use."""

    device: Device
    memory: int
    cores: int
    partition: Partition | None = None


class Fit(msgspec.Struct, frozen=True):
    """The GPUs that a container gets, or those found so far and how many GPUs lack what."""

    picks: tuple[Pick, ...]
    fits: bool
    lacking: Mapping[str, int] = msgspec.field(default_factory=dict)
    gpus: int = 0

    @property
    def reason(self) -> str:
        """Why the container does not get its GPUs, "" if it does."""
        return reason_text(self.lacking, self.gpus)


QuotaCheck = Callable[[Sequence[Pick], Pick], bool]
"""Whether a namespace may have one pick more, beside those of the same container."""


def no_quota(picks: Sequence[Pick], more: Pick) -> bool:
    """Limit nothing."""
    return True


def reason_text(lacking: Mapping[str, int], gpus: int) -> str:
    """Return reasons as HAMi words them: ``1/8 CardInsufficientMemory, 7/8 ...``."""
    found = sorted(lacking.items(), key=lambda item: _REASONS.index(item[0]))
    return ", ".join(f"{count}/{gpus} {name}" for name, count in found if count)


def fit(
    devices: Sequence[Device],
    request: ContainerRequest,
    options: GpuOptions,
    quota: QuotaCheck = no_quota,
) -> Fit:
    """Find the GPUs that one container gets; nothing is taken of them yet.

    A GPU in MIG mode may be taken several times, any other once.

    :param devices: the GPUs in the order of their policy; the last is tried first.
    """
    request = replace(request, cores=min(request.cores, _EXCLUSIVE))
    whole = "topology-aware" in options.policy
    picks: list[Pick] = []
    lacking: Counter[str] = Counter()
    numa: int | None = None
    for device in reversed(devices):
        again = True
        while again:
            refusal = _unusable(device, request, options)
            if not refusal and options.numa_bind and numa != device.numa:
                if picks and not whole:
                    lacking["NumaNotFit"] += len(picks)
                picks, numa = [], device.numa
            pick = Pick(device, request.memory_of(device.memory), request.cores)
            refusal = refusal or _refusal(pick, options, picks, quota)
            if refusal:
                lacking[refusal] += 1
                break
            picks.append(pick)
            if not whole and len(picks) == request.count:
                return Fit(tuple(picks), fits=True)
            again = device.mode == MIG
    if whole and len(picks) >= request.count:
        return Fit(_nearest(picks, request.count), fits=True)
    if picks:
        lacking["AllocatedCardsInsufficientRequest"] = len(picks)
    return Fit(tuple(picks), False, lacking, len(devices))


def takes(device: Device, request: ContainerRequest, options: GpuOptions) -> bool:
    """Tell whether a GPU has room for a container that requests one GPU, without a quota."""
    if _unusable(device, request, options):
        return False
    cores = min(request.cores, _EXCLUSIVE)
    pick = Pick(device, request.memory_of(device.memory), cores)
    return not _refusal(pick, options, (), no_quota)


def _unusable(device: Device, request: ContainerRequest, options: GpuOptions) -> str:
    """Return why a GPU is none for this pod, whatever is taken of it."""
    if not device.healthy:
        return "CardNotHealth"
    if device.cordoned:
        return "CardCordoned"
    return "" if _is_type(device, request, options) else "CardTypeMismatch"


def _is_type(device: Device, request: ContainerRequest, options: GpuOptions) -> bool:
    if request.type != NVIDIA:
        return False
    model = device.type.upper()
    if options.models and not any(word.upper() in model for word in options.models):
        return False
    if any(word.upper() in model for word in options.not_models):
        return False
    return not options.modes or any(device.mode in word for word in options.modes)


def _refusal(pick: Pick, options: GpuOptions, picks: Sequence[Pick], quota: QuotaCheck) -> str:
    """Return why a GPU cannot take one more share, in the order of HAMi's checks."""
    device = pick.device
    if options.uuids is not None and device.uuid not in options.uuids:
        return "CardUuidMismatch"
    if device.uuid in options.not_uuids:
        return "CardUuidMismatch"
    # HAMi forgets those that this container takes of a GPU in MIG mode.
    if device.count <= device.used + sum(one.device is device for one in picks):
        return "CardTimeSlicingExhausted"
    if "mutex" in options.policy and device.used > 0:
        return "ExclusiveDeviceAllocateConflict"
    if not quota(picks, pick):
        return "ResourceQuotaNotFit"
    if device.memory - device.used_memory < pick.memory:
        return "CardInsufficientMemory"
    if device.cores - device.used_cores < pick.cores:
        return "CardInsufficientCore"
    if device.cores == pick.cores == _EXCLUSIVE and device.used > 0:
        return "ExclusiveDeviceAllocateConflict"
    if device.cores and device.used_cores == device.cores and pick.cores == 0:
        return "CardComputeUnitsExhausted"
    if device.mode == MIG and not _has_partition(pick, picks):
        return "CardMigTopologyInfeasible"
    return ""


def _has_partition(pick: Pick, picks: Sequence[Pick]) -> bool:
    """Tell whether a GPU has a partition for one more pick, beside those of this container."""
    device, taken = pick.device, list(pick.device.partitions)
    memory, cores = device.used_memory, device.used_cores
    for own in (*(one for one in picks if one.device is device), pick):
        found = choose_partition(device.profiles, taken, own.memory)
        if found is None:
            return False
        profile, partition = found
        taken.append(partition)
        memory += profile.memory // MEBIBYTE
        cores += profile.compute // PERCENT
    return memory <= device.memory and cores <= device.cores


def _nearest(picks: Sequence[Pick], count: int) -> tuple[Pick, ...]:
    """Return the picks with the highest sum of pair scores; a single one with the lowest.

    Of more picks than can be compared, the first ones count.
    """
    while math.comb(len(picks), count) > _MOST_SETS:
        picks = picks[:-1]
    scores = np.zeros((len(picks), len(picks)), dtype=np.int64)
    for place, pick in enumerate(picks):
        known = dict(pick.device.pair_scores)
        own = pick.device.uuid
        scores[place] = [
            0 if other.device.uuid == own else known.get(other.device.uuid, 0) for other in picks
        ]
    if count == 1:
        return (picks[int(scores.sum(axis=1).argmin())],)
    sets = np.array(list(itertools.combinations(range(len(picks)), count)), dtype=np.int64)
    sums = sum(scores[sets[:, a], sets[:, b]] for a, b in itertools.combinations(range(count), 2))
    return tuple(picks[place] for place in sets[int(np.argmax(sums))])


def take(pick: Pick) -> Pick | None:
    """Take a share of its GPU, and return it with its partition; None if there is none."""
    device = pick.device
    if device.mode == MIG:
        found = choose_partition(device.profiles, device.partitions, pick.memory)
        if found is None:
            return None
        profile, partition = found
        memory, cores = profile.memory // MEBIBYTE, profile.compute // PERCENT
        pick = Pick(device, memory, cores, partition)
        device.partitions.append(partition)
    device.used += 1
    device.used_memory += pick.memory
    device.used_cores += pick.cores
    return pick
