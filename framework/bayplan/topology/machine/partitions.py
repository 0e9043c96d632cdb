"""Where partitions of a GPU may stand, and where the next one leaves the most room.

A GPU is divided along two axes. A partition takes memory slices from one of its fixed starts on,
and compute slices; both are limited. NVIDIA's MIG is such a geometry (:mod:`.mig` has its tables).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import NamedTuple

from bayplan.api.gpu_shares import Partition, PartitionProfile

__all__ = ["Geometry", "geometry_of"]

_HALF = 4
"""Memory slices of the smaller GPUs, which have as many compute slices."""
_COMPUTE_SLICES = 7
"""Compute slices of the GPUs with eight memory slices."""


class _State(NamedTuple):
    """What is taken of a GPU: memory slices, one bit each; compute slices; what is limited."""

    memory: int = 0
    compute: int = 0
    limited: tuple[int, ...] = ()


class _Choice(NamedTuple):
    """The best placement of one more partition, and the value that it leaves."""

    value: int
    partition: Partition


@dataclass(frozen=True)
class Geometry:
    """The partitions that a GPU can be divided into.

    A GPU's state is the partitions on it, in any order. All answers are exact, and remembered.

    :ivar compute_slices: how many there are of the GPU.
    """

    profiles: tuple[PartitionProfile, ...]
    compute_slices: int
    _values: dict[_State, int] = field(default_factory=dict, compare=False, repr=False)
    _choices: dict[tuple[_State, str], _Choice | None] = field(
        default_factory=dict, compare=False, repr=False
    )

    @cached_property
    def memory_slices(self) -> int:
        """The memory slices that partitions can take."""
        return max((max(one.starts) + one.size for one in self.profiles), default=0)

    @cached_property
    def _limits(self) -> Mapping[str, int]:
        """The place of each limited profile in a state; ``+me`` is one limit for all sizes."""
        kinds = {one.name: one.name.partition("+")[2] or one.name for one in self.profiles}
        limited = list(dict.fromkeys(kinds[one.name] for one in self.profiles if one.most))
        return {one.name: limited.index(kinds[one.name]) for one in self.profiles if one.most}

    @cached_property
    def _by_name(self) -> Mapping[str, PartitionProfile]:
        return {one.name: one for one in self.profiles}

    def profile(self, name: str) -> PartitionProfile | None:
        """Return a profile by its name, None if the GPU has none of that name."""
        return self._by_name.get(name)

    # States ----------------------------------------------------------------------------------

    def problem(self, held: Iterable[Partition]) -> str:
        """Say why partitions cannot be on one GPU together; "" if they can."""
        state = self._empty
        for one in held:
            profile = self.profile(one.profile)
            if profile is None:
                return f"the GPU has no profile {one.profile}"
            if one.start not in profile.starts or one.size != profile.size:
                return f"{one.profile} cannot be at {one.start}:{one.size}"
            if not self._fits(state, profile, one.start):
                return f"{one.profile} at {one.start}:{one.size} overlaps another partition"
            state = self._with(state, profile, one.start)
        return ""

    @property
    def _empty(self) -> _State:
        return _State(0, 0, (0,) * len(self._limits))

    def _state(self, held: Iterable[Partition]) -> _State:
        """Return what partitions take; one of an unknown profile takes a compute slice for each
        memory slice.
        """
        state = self._empty
        for one in held:
            profile = self.profile(one.profile)
            if profile is None:
                taken = (1 << one.size) - 1 << one.start
                compute = state.compute + min(one.size, self.compute_slices)
                state = _State(state.memory | taken, compute, state.limited)
            else:
                state = self._with(state, profile, one.start)
        return state

    def _fits(self, state: _State, profile: PartitionProfile, start: int) -> bool:
        if state.compute + profile.slices > self.compute_slices:
            return False
        if profile.most and state.limited[self._limits[profile.name]] >= profile.most:
            return False
        return not state.memory & ((1 << profile.size) - 1 << start)

    def _with(self, state: _State, profile: PartitionProfile, start: int) -> _State:
        limited = list(state.limited)
        if profile.most:
            limited[self._limits[profile.name]] += 1
        memory = state.memory | ((1 << profile.size) - 1 << start)
        return _State(memory, state.compute + profile.slices, tuple(limited))

    # Answers ---------------------------------------------------------------------------------

    def starts(self, held: Iterable[Partition], profile: PartitionProfile) -> tuple[int, ...]:
        """Return the memory slices at which one more partition could begin, in order."""
        state = self._state(held)
        return tuple(start for start in profile.starts if self._fits(state, profile, start))

    def room(self, held: Iterable[Partition]) -> tuple[int, ...]:
        """Return how many partitions of each profile still fit, each profile on its own."""
        state = self._state(held)
        return tuple(self._most(state, one) for one in self.profiles)

    def value(self, held: Iterable[Partition]) -> int:
        """Return what a GPU can still take: the compute slices of ``room``, over all profiles."""
        return self._value(self._state(held))

    def best(self, held: Iterable[Partition], profile: PartitionProfile) -> Partition | None:
        """Return the placement of one more partition that leaves the most room; None if none fits.

        Among equals the highest start wins, as the largest profiles begin at 0.
        """
        found = self._best(self._state(held), profile)
        return found.partition if found is not None else None

    def best_gpu(
        self, gpus: Sequence[Iterable[Partition]], profile: PartitionProfile
    ) -> tuple[int, Partition] | None:
        """Choose the GPU that loses the least room to one more partition, and its placement.

        Among equals the GPU with the most compute slices taken wins, then the first.
        """
        choices = []
        for number, held in enumerate(gpus):
            state = self._state(held)
            found = self._best(state, profile)
            if found is not None:
                lost = self._value(state) - found.value
                choices.append((lost, -state.compute, number, found.partition))
        if not choices:
            return None
        _, _, number, partition = min(choices)
        return number, partition

    def _best(self, state: _State, profile: PartitionProfile) -> _Choice | None:
        key = (state, profile.name)
        if key not in self._choices:
            choices = (
                _Choice(
                    self._value(self._with(state, profile, start)),
                    Partition(profile.name, start, profile.size),
                )
                for start in profile.starts
                if self._fits(state, profile, start)
            )
            self._choices[key] = max(choices, default=None)
        return self._choices[key]

    def _value(self, state: _State) -> int:
        known = self._values.get(state)
        if known is None:
            known = sum(self._most(state, one) * one.slices for one in self.profiles)
            self._values[state] = known
        return known

    def _most(self, state: _State, profile: PartitionProfile) -> int:
        """Return how many more partitions of one profile fit.

        All have one size, so the lowest free start is always as good as any other.
        """
        count = 0
        for start in sorted(profile.starts):
            if self._fits(state, profile, start):
                state = self._with(state, profile, start)
                count += 1
        return count


@cache
def geometry_of(profiles: tuple[PartitionProfile, ...]) -> Geometry:
    """Return the geometry of a GPU from its profiles.

    The GPU has as many compute slices as its largest profile. Where that is not listed, the
    memory slices say which kind of GPU it is: seven compute slices, or four.
    """
    reach = max((max(one.starts) + one.size for one in profiles if one.starts), default=0)
    least = _COMPUTE_SLICES if reach > _HALF else _HALF
    return Geometry(profiles, max([least, *(one.slices for one in profiles)]))
