"""Which MIG partition a container gets (HAMi, pkg/device/nvidia/mig_topology.go)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bayplan.api.cards import MEBIBYTE, Partition, PartitionProfile

__all__ = ["allowed_profiles", "choose_partition", "fit_together", "place"]

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


def fit_together(
    profiles: Sequence[PartitionProfile], taken: Iterable[Partition], names: Sequence[str]
) -> bool:
    """Tell whether partitions of several profiles fit on a card at once, wherever they stand."""
    known = {profile.name: profile for profile in profiles}
    wanted = [known[name] for name in names if name in known]
    if len(wanted) < len(names):
        return False
    # The fewer places a profile has, and the larger it is, the earlier it is placed.
    wanted.sort(key=lambda one: (len(one.starts), -one.size))
    return _fit(wanted, tuple(taken))


def _fit(wanted: Sequence[PartitionProfile], taken: tuple[Partition, ...]) -> bool:
    if not wanted:
        return True
    first, *rest = wanted
    return any(_fit(rest, (*taken, one)) for one in _places(first) if _is_free(one, taken))


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
