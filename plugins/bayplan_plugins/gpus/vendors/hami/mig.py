"""Which MIG partition a container gets (HAMi, pkg/device/nvidia/mig_topology.go)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bayplan.api.gpu_shares import MEBIBYTE, Partition, PartitionProfile

__all__ = ["allowed_profiles", "choose_partition", "place"]

_FROM_ABOVE = ("1g.", "3g.")
"""Profiles that stand as high as they can, so that a 4g or 2g can still stand at 0."""


def choose_partition(
    profiles: Sequence[PartitionProfile], taken: Iterable[Partition], memory: int
) -> tuple[PartitionProfile, Partition] | None:
    """Return the smallest profile with enough memory and a free place, and that place.

    :param memory: the MiB that are needed.
    """
    held = tuple(taken)
    for profile in sorted(profiles, key=lambda one: (one.memory, one.slices)):
        if profile.memory >= memory * MEBIBYTE:
            partition = place(profile, held)
            if partition is not None:
                return profile, partition
    return None


def place(profile: PartitionProfile, taken: Iterable[Partition]) -> Partition | None:
    """Return the first free place of a profile, None if there is none."""
    held = tuple(taken)
    return next((one for one in _places(profile) if _is_free(one, held)), None)


def allowed_profiles(
    profiles: Sequence[PartitionProfile], names: Iterable[str]
) -> tuple[PartitionProfile, ...]:
    """Return the profiles that an allow-list names."""
    allowed = set(names)
    return tuple(profile for profile in profiles if profile.name in allowed)


def _places(profile: PartitionProfile) -> Iterator[Partition]:
    for start in sorted(profile.starts, reverse=profile.name.startswith(_FROM_ABOVE)):
        yield Partition(profile.name, start, profile.size)


def _is_free(partition: Partition, taken: Iterable[Partition]) -> bool:
    first, end = partition.start, partition.start + partition.size
    return all(end <= one.start or one.start + one.size <= first for one in taken)
