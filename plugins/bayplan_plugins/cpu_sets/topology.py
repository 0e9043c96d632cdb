"""The CPUs of a node: to which core, NUMA node and socket each belongs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property

import msgspec

__all__ = ["Cpu", "CpuTopology"]


class Cpu(msgspec.Struct, frozen=True):
    """Where a logical CPU is. The numbers of cores and NUMA nodes are those of the whole node."""

    core: int
    numa: int
    socket: int


class CpuTopology(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The logical CPUs of a node by number."""

    cpus: Mapping[int, Cpu]

    @cached_property
    def per_core(self) -> int:
        """Logical CPUs in a core, on average; 0 without CPUs."""
        return self._share("core")

    @cached_property
    def per_numa(self) -> int:
        """Logical CPUs on a NUMA node, on average; 0 without CPUs."""
        return self._share("numa")

    @cached_property
    def per_socket(self) -> int:
        """Logical CPUs in a socket, on average; 0 without CPUs."""
        return self._share("socket")

    def _share(self, part: str) -> int:
        parts = {getattr(cpu, part) for cpu in self.cpus.values()}
        return len(self.cpus) // len(parts) if parts else 0

    @cached_property
    def numa_ids(self) -> tuple[int, ...]:
        """The numbers of the NUMA nodes, rising."""
        return tuple(sorted({cpu.numa for cpu in self.cpus.values()}))

    def on_numa(self, cpus: Iterable[int], numa: Collection[int]) -> frozenset[int]:
        """Return those of some CPUs that are on some NUMA nodes."""
        return frozenset(cpu for cpu in cpus if cpu in self.cpus and self.cpus[cpu].numa in numa)

    def whole_cores(self, cpus: Iterable[int]) -> frozenset[int]:
        """Return those of some CPUs whose core is entirely among them."""
        known = [cpu for cpu in cpus if cpu in self.cpus]
        counts = Counter(self.cpus[cpu].core for cpu in known)
        return frozenset(c for c in known if counts[self.cpus[c].core] == self.per_core)

    def one_per_core(self, cpus: Iterable[int]) -> frozenset[int]:
        """Return the lowest CPU of each core that some CPUs are of."""
        lowest: dict[int, int] = {}
        for cpu in sorted(cpu for cpu in cpus if cpu in self.cpus):
            lowest.setdefault(self.cpus[cpu].core, cpu)
        return frozenset(lowest.values())

    def numa_nodes_of(self, cpus: Iterable[int]) -> frozenset[int]:
        """Return the NUMA nodes that some CPUs are on."""
        return frozenset(self.cpus[cpu].numa for cpu in cpus if cpu in self.cpus)

    def cores(self, cpus: Iterable[int]) -> int:
        """Return how many cores some CPUs are of."""
        return len({self.cpus[cpu].core for cpu in cpus})
