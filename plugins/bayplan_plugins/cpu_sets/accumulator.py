"""Which CPUs a pod gets: near each other, by a bind policy, apart from those that exclude it.

The order of search is that of Koordinator v1.8 (pkg/scheduler/plugins/nodenumaresource): whole
cores of one NUMA node, of one socket, of several sockets; or single CPUs spread over the cores of
one NUMA node, of one socket; then whatever is left.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from bayplan.dialects.koordinator.cpu_sets import BindPolicy, ExclusivePolicy, NumaStrategy
from bayplan_plugins.cpu_sets.topology import CpuTopology

__all__ = [
    "FAILED",
    "NOT_ENOUGH",
    "CpuUse",
    "CpusRefused",
    "Search",
    "take_cpus",
    "take_preferred_cpus",
]

NOT_ENOUGH = "not enough cpus available to satisfy request"
FAILED = "failed to allocate cpus"


class CpusRefused(Exception):
    """The CPUs cannot be had; the text says why."""


class CpuUse(msgspec.Struct, frozen=True):
    """By how many pods a CPU is held, and which exclusive policy the last of them asked for."""

    pods: int = 1
    exclusive: ExclusivePolicy = ""


class Search(msgspec.Struct, frozen=True):
    """What to look for on a node.

    :param sharers: how many pods may hold a CPU; Koordinator gives each to one.
    :param strategy: whether NUMA nodes and sockets with the least or the most free CPUs come first.
    """

    topology: CpuTopology
    count: int
    bind: BindPolicy = "FullPCPUs"
    exclusive: ExclusivePolicy = ""
    strategy: NumaStrategy = "LeastAllocated"
    sharers: int = 1


def take_preferred_cpus(
    search: Search,
    available: Collection[int],
    preferred: Collection[int],
    in_use: Mapping[int, CpuUse],
) -> frozenset[int]:
    """Return the CPUs for a pod, as many as possible of the preferred ones.

    :param available: the CPUs that may be taken.
    :param in_use: the CPUs that pods hold.
    :raises CpusRefused: when they cannot be had.
    """
    first = frozenset(preferred) & frozenset(available)
    taken: frozenset[int] = frozenset()
    if first:
        of_those = replace(search, count=min(search.count, len(first)))
        taken = take_cpus(of_those, first, in_use)
    if search.count <= len(taken):
        return taken
    rest = replace(search, count=search.count - len(taken))
    return taken | take_cpus(rest, frozenset(available) - first, in_use)


def take_cpus(
    search: Search, available: Collection[int], in_use: Mapping[int, CpuUse]
) -> frozenset[int]:
    """Return the CPUs for a pod.

    :param available: the CPUs that may be taken.
    :param in_use: the CPUs that pods hold.
    :raises CpusRefused: when they cannot be had.
    """
    work = _Accumulator(search, available, in_use)
    if work.needed < 1:
        return frozenset()
    if work.needed > len(work.free):
        raise CpusRefused(NOT_ENOUGH)
    by_cores = search.bind == "FullPCPUs"
    if by_cores or search.topology.per_core == 1:
        work.take_whole_cores()
    if work.needed and not by_cores:
        work.take_spread()
    if work.needed:
        work.take_any()
    if work.needed:
        raise CpusRefused(FAILED)
    return frozenset(work.taken)


class _Accumulator:
    """The CPUs that were taken so far, and those that are still free."""

    def __init__(
        self, search: Search, available: Collection[int], in_use: Mapping[int, CpuUse]
    ) -> None:
        self._search = search
        self._topology = search.topology
        self._cpus = search.topology.cpus
        self._sign = 1 if search.strategy == "MostAllocated" else -1
        self.free = {cpu for cpu in available if cpu in self._cpus}
        self.taken: set[int] = set()
        self.needed = search.count
        shared = search.sharers > 1
        self._pods = {c: in_use[c].pods for c in self.free if c in in_use} if shared else {}
        self._closed_cores = self._closed(in_use, "PCPULevel")
        self._closed_numa = self._closed(in_use, "NUMANodeLevel")

    def _closed(self, in_use: Mapping[int, CpuUse], policy: ExclusivePolicy) -> set[int]:
        """Return the cores or NUMA nodes that other pods of the same exclusive policy hold."""
        held = [
            self._cpus[c] for c, u in in_use.items() if u.exclusive == policy and c in self._cpus
        ]
        return {cpu.core if policy == "PCPULevel" else cpu.numa for cpu in held}

    def _take(self, cpus: Iterable[int]) -> None:
        for cpu in cpus:
            self.taken.add(cpu)
            self.free.discard(cpu)
            self.needed -= 1
            if self._search.exclusive == "PCPULevel":
                self._closed_cores.add(self._cpus[cpu].core)
            elif self._search.exclusive == "NUMANodeLevel":
                self._closed_numa.add(self._cpus[cpu].numa)

    def _clashes(self, cpu: int, cores: bool, numa: bool) -> bool:
        """Tell whether a CPU is where a pod of the same exclusive policy is."""
        policy, at = self._search.exclusive, self._cpus[cpu]
        if policy == "PCPULevel":
            return cores and at.core in self._closed_cores
        return policy == "NUMANodeLevel" and numa and at.numa in self._closed_numa

    # Whole cores -----------------------------------------------------------------------------

    def take_whole_cores(self) -> None:
        """Take whole cores: of one NUMA node, of one socket, then of several sockets."""
        both = (True, False)
        if self.needed <= self._topology.per_numa and self._take_from_one(
            map(self._cores_by_numa, both)
        ):
            return
        if self.needed <= self._topology.per_socket and self._take_from_one(
            (self._cores_by_socket(),)
        ):
            return
        # From here the sockets with most free cores come first, whatever the strategy.
        partly: list[Sequence[int]] = []
        for cpus in sorted(self._cores_by_socket(), key=len, reverse=True):
            if self.needed < len(cpus):
                partly.append(cpus)
                continue
            self._take(cpus)
            if not self.needed:
                return
        per_core = self._topology.per_core
        for cpus in sorted(partly, key=len):
            for at in range(0, len(cpus), per_core):
                if self.needed < per_core:
                    return
                self._take(cpus[at : at + per_core])

    def _take_from_one(self, ways: Iterable[list[Sequence[int]]]) -> bool:
        """Take all from the first group with enough CPUs; return whether there is one."""
        for groups in ways:
            for cpus in groups:
                if len(cpus) >= self.needed:
                    self._take(cpus[: self.needed])
                    return True
        return False

    def _cores_by_numa(self, exclusive: bool) -> list[Sequence[int]]:
        """Return the CPUs of free cores by NUMA node, in the order of the strategy."""
        cpus = [cpu for cpu in self.free if not (exclusive and self._clashes(cpu, False, True))]
        in_socket = Counter(self._cpus[cpu].socket for cpu in cpus)
        by_numa = self._whole(cpus, lambda cpu: self._cpus[cpu].numa)

        def rank(numa: int) -> tuple[int, int, int]:
            own = by_numa[numa]
            socket = self._cpus[own[0]].socket
            return self._sign * len(own), self._sign * in_socket[socket], numa

        return [by_numa[numa] for numa in sorted(by_numa, key=rank)]

    def _cores_by_socket(self) -> list[Sequence[int]]:
        """Return the CPUs of free cores by socket, in the order of the strategy."""
        found = self._whole(self.free, lambda cpu: self._cpus[cpu].socket)
        return [found[s] for s in sorted(found, key=lambda s: (self._sign * len(found[s]), s))]

    def _whole(self, cpus: Iterable[int], group_of: Callable[[int], int]) -> dict[int, list[int]]:
        """Return the CPUs of entirely free cores by group, core by core, the least shared first."""
        cores: dict[int, list[int]] = defaultdict(list)
        for cpu in sorted(cpus):
            cores[self._cpus[cpu].core].append(cpu)
        whole = [own for own in cores.values() if len(own) == self._topology.per_core]
        whole.sort(key=lambda own: (self._sharers(own), self._cpus[own[0]].core))
        groups: dict[int, list[int]] = defaultdict(list)
        for own in whole:
            groups[group_of(own[0])] += own
        return groups

    def _sharers(self, cpus: Iterable[int]) -> int:
        """Return how many pods hold some CPUs, counted for each CPU; 0 unless CPUs are shared."""
        return sum(self._pods.get(cpu, 0) for cpu in cpus)

    # Single CPUs -----------------------------------------------------------------------------

    def take_spread(self) -> None:
        """Take CPUs of different cores: of one NUMA node, or of one socket."""
        both = (True, False)
        if self.needed <= self._topology.per_numa and self._take_from_one(
            map(self._cpus_by_numa, both)
        ):
            return
        if self.needed <= self._topology.per_socket:
            self._take_from_one(map(self._cpus_by_socket, both))

    def _cpus_by_numa(self, exclusive: bool) -> list[Sequence[int]]:
        """Return the free CPUs by NUMA node, spread over cores; one of each core if exclusive."""
        cpus = [cpu for cpu in self.free if not (exclusive and self._clashes(cpu, True, True))]
        in_numa = Counter(self._cpus[cpu].numa for cpu in cpus)
        in_socket = Counter(self._cpus[cpu].socket for cpu in cpus)
        groups = self._grouped(cpus, lambda cpu: self._cpus[cpu].numa, exclusive)

        def rank(numa: int) -> tuple[int, int, int]:
            socket = self._cpus[groups[numa][0]].socket
            return self._sign * in_numa[numa], self._sign * in_socket[socket], numa

        return [groups[numa] for numa in sorted(groups, key=rank)]

    def _cpus_by_socket(self, exclusive: bool) -> list[Sequence[int]]:
        """Return the free CPUs by socket, spread over cores; one of each core if exclusive."""
        cpus = [cpu for cpu in self.free if not (exclusive and self._clashes(cpu, True, False))]
        found = self._grouped(cpus, lambda cpu: self._cpus[cpu].socket, exclusive)
        return [found[s] for s in sorted(found, key=lambda s: (self._sign * len(found[s]), s))]

    def _grouped(
        self, cpus: Iterable[int], group_of: Callable[[int], int], one_per_core: bool
    ) -> dict[int, Sequence[int]]:
        groups: dict[int, list[int]] = defaultdict(list)
        for cpu in sorted(cpus, key=self._by_sharers):
            groups[group_of(cpu)].append(cpu)
        if one_per_core:
            return {group: self._turns(own)[0] for group, own in groups.items()}
        return {group: self._in_turns(own) for group, own in groups.items()}

    def _by_sharers(self, cpu: int) -> tuple[int, int]:
        return self._pods.get(cpu, 0), cpu

    def _in_turns(self, cpus: Sequence[int]) -> Sequence[int]:
        """Return the first CPU of every core, then the second of each, and so on."""
        if len(cpus) <= self._topology.per_core:
            return cpus
        return [cpu for turn in self._turns(cpus) for cpu in turn]

    def _turns(self, cpus: Iterable[int]) -> list[list[int]]:
        turns: list[list[int]] = []
        seen: Counter[int] = Counter()
        for cpu in cpus:
            core = self._cpus[cpu].core
            if seen[core] == len(turns):
                turns.append([])
            turns[seen[core]].append(cpu)
            seen[core] += 1
        return turns

    # What is left ----------------------------------------------------------------------------

    def take_any(self) -> None:
        """Take any CPUs, near those that were taken; first those that no pod excludes."""
        for exclusive in (True, False):
            for cpu in self._in_turns(self._in_order(exclusive)):
                if not self.needed:
                    return
                self._take((cpu,))

    def _in_order(self, exclusive: bool) -> list[int]:
        """Return the free CPUs: those of the sockets that are in use first, then by strategy."""
        cpus = [cpu for cpu in self.free if not (exclusive and self._clashes(cpu, True, True))]
        in_core: dict[int, list[int]] = defaultdict(list)
        for cpu in sorted(cpus, key=self._by_sharers):
            in_core[self._cpus[cpu].core].append(cpu)
        in_numa = Counter(self._cpus[cpu].numa for cpu in cpus)
        in_socket = Counter(self._cpus[cpu].socket for cpu in cpus)
        near = Counter(self._cpus[cpu].socket for cpu in self.taken)

        def rank(core: int) -> tuple[int, ...]:
            own = in_core[core]
            at = self._cpus[own[0]]
            by_strategy = self._sign * in_socket[at.socket], self._sign * in_numa[at.numa]
            return (-near[at.socket], *by_strategy, len(own), at.socket, self._sharers(own), core)

        return [cpu for core in sorted(in_core, key=rank) for cpu in in_core[core]]
