"""Which memory the kubelet's memory manager (policy Static) gives to containers of guaranteed pods.

A container has all its memory and huge pages from one set of NUMA nodes. A NUMA node is in one such
set at a time: while it gives memory alone it is in no larger set, and the other way round. Where no
set is left the pod is refused, whatever the Topology Manager's policy (Kubernetes,
pkg/kubelet/cm/memorymanager/policy_static.go).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bayplan_plugins.numa.hints import Amounts, Hints, fill, masks, sum_of

__all__ = ["MemoryManager", "is_memory"]


def is_memory(resource: str) -> bool:
    """Tell whether the memory manager gives out a resource."""
    return resource == "memory" or resource.startswith("hugepages-")


class MemoryManager:
    """The memory of a node while the containers of one pod are admitted.

    :param allocatable: what containers can have of each NUMA node in all, by resource.
    :param free: what is left of that.
    :param grouped: whether NUMA nodes in use are in one set, instead of each in its own.
    """

    def __init__(
        self, allocatable: Mapping[str, Amounts], free: Mapping[str, Amounts], grouped: bool
    ) -> None:
        self._allocatable = {name: own for name, own in allocatable.items() if is_memory(name)}
        self.free = {name: free[name] for name in self._allocatable}
        self._sets = self._sets_in_use(grouped)
        self._reusable: dict[tuple[int, str], int] = {}

    def _sets_in_use(self, grouped: bool) -> list[int]:
        """Return the set that each NUMA node is in, as a bit mask; 0 while it is in none."""
        pairs = [(self._allocatable[name], free) for name, free in self.free.items()]
        size = len(pairs[0][1]) if pairs else 0
        used = [any(free[node] < most[node] for most, free in pairs) for node in range(size)]
        together = sum(1 << node for node, in_use in enumerate(used) if in_use)
        return [(together if grouped else 1 << node) * used[node] for node in range(size)]

    def wanted(self, needs: Mapping[str, int]) -> dict[str, int]:
        """Return the part of a container's needs that the memory manager gives out."""
        own = self._allocatable
        return {name: need for name, need in needs.items() if any(own.get(name, ())) and need}

    def hints(self, needs: Mapping[str, int]) -> Hints:
        """Return the sets that have enough of everything, and how large preferred ones are."""
        found = []
        width = 0
        for mask in masks(len(self._sets)):
            if any(sum_of(self._allocatable[name], mask) < need for name, need in needs.items()):
                continue
            width = width or mask.bit_count()
            if self._is_open(mask) and all(
                sum_of(self.free[name], mask) + self._reusable.get((mask, name), 0) >= need
                for name, need in needs.items()
            ):
                found.append(mask)
        return Hints(tuple(found), width)

    def _is_open(self, mask: int) -> bool:
        return all(own in (0, mask) for own in self._of(mask))

    def _of(self, mask: int) -> Sequence[int]:
        return [own for node, own in enumerate(self._sets) if mask >> node & 1]

    def give(self, needs: Mapping[str, int], mask: int, stays: bool) -> bool:
        """Give a container memory; return False if its pod is refused.

        :param mask: the NUMA nodes that the Topology Manager decided on, 0 for any.
        :param stays: False for init containers, which leave their memory to later containers.
        """
        possible = self.hints(needs).masks
        enough = all(sum_of(self.free[name], mask) >= need for name, need in needs.items())
        if not enough:
            # The narrowest set that includes those decided on.
            mask = next((one for one in possible if one & mask == mask), 0)
        if not possible or not mask or (mask.bit_count() > 1 and not self._is_open(mask)):
            return False
        for name, need in needs.items():
            left = self._reusable.get((mask, name), 0)
            own = fill(max(0, need - left), self.free[name], mask)
            self.free[name] = tuple(a - b for a, b in zip(self.free[name], own, strict=True))
            self._reusable[mask, name] = max(0, left - need) if stays else max(left, need)
        for node in range(len(self._sets)):
            if mask >> node & 1:
                self._sets[node] = mask
        return True
