"""Which GPUs a pod gets: a listed group, or those that are nearest to each other.

The order of attempts is Koordinator's: a group, then the narrowest part of the topology that has
enough GPUs, then any GPUs by score.
"""

from __future__ import annotations

import msgspec

from bayplan.dialects.koordinator.hints import SCOPES, GpuGroup, GpuGroups, GroupSpec
from bayplan.dialects.koordinator.requests import GPU, PerGpu
from bayplan_plugins.gpus.vendors.koordinator.devices import Scope
from bayplan_plugins.gpus.vendors.koordinator.inventory import Inventory
from bayplan_plugins.gpus.vendors.koordinator.refusal import Refused
from bayplan_plugins.gpus.vendors.koordinator.scoring import Scorer

__all__ = ["group_of_gpus", "near_gpus"]

_KEPT = {8: 10_000, 4: 100, 2: 1}
"""What a group that stays free is worth, by its number of GPUs."""
_FEW_NEAR = "Insufficient Topology Scoped GPU Devices"
_DEVICE = SCOPES["Device"]


def group_of_gpus(
    inventory: Inventory, wanted: PerGpu, spec: GroupSpec | None
) -> tuple[int, ...] | None:
    """Return the minors of a listed group of GPUs.

    Of free groups with the best score, the one that leaves the most other groups free. None where
    shared GPUs are requested, or where other GPUs may be taken because no group is free.

    :raises Refused: where only groups may be taken, and none will do.
    """
    if wanted.shared:
        return None
    try:
        return _group(inventory, wanted, spec or GroupSpec())
    except Refused:
        if spec is not None or inventory.machine.honor:
            raise
        return None


def _group(inventory: Inventory, wanted: PerGpu, spec: GroupSpec) -> tuple[int, ...]:
    table = inventory.machine.groups
    if table is None:
        raise Refused("node(s) missing GPU Partition Table", resolvable=False)
    groups = table.of(wanted.count)
    if not groups:
        raise Refused("node(s) Unsupported number of GPU requests", resolvable=False)
    for score in sorted({group.score for group in groups}, reverse=True):
        free = [
            group
            for group in groups
            if group.score == score and _is_free(inventory, wanted, spec, group)
        ]
        if free:
            used = inventory.used[GPU]
            return max(free, key=lambda group: _left_free(table, wanted, used, group)).minors
        if spec.restricted:
            break
    raise Refused("Insufficient Partitioned GPU Devices")


def _is_free(inventory: Inventory, wanted: PerGpu, spec: GroupSpec, group: GpuGroup) -> bool:
    if spec.bandwidth is not None and (
        group.bandwidth is None or group.bandwidth.amount < spec.bandwidth.amount
    ):
        return False
    known = inventory.devices[GPU]
    return all(
        minor in known
        and minor not in inventory.used[GPU]
        and inventory.fits(GPU, minor, dict(wanted.amounts))
        for minor in group.minors
    )


def _left_free(table: GpuGroups, wanted: PerGpu, used: frozenset[int], group: GpuGroup) -> int:
    """Return what the groups are worth that are free beside a group that is taken."""
    gone = used.union(group.minors)
    worth = 0
    for size, value in _KEPT.items():
        others = table.of(size) if size >= wanted.count else ()
        best = max((other.score for other in others), default=0)
        worth += value * sum(
            other.score for other in others if other.score == best and gone.isdisjoint(other.minors)
        )
    return worth


class _Found(msgspec.Struct, frozen=True):
    """GPUs in a part of the topology, at a depth below so many parts that are in use."""

    minors: tuple[int, ...]
    depth: int
    in_use: int
    score: int

    @property
    def rank(self) -> tuple[int, int, int]:
        return (self.depth, self.in_use, self.score)


class _Search(msgspec.Struct, frozen=True):
    """The search through the parts of a topology for one request, among GPUs that fit it."""

    inventory: Inventory
    wanted: PerGpu
    level: int
    scorer: Scorer | None
    fitting: frozenset[int]

    def best(self, scope: Scope, depth: int = 0, in_use: int = 0) -> _Found | None:
        """Return the GPUs in the narrowest part that has enough.

        Of several, those in parts that are in use already, then those with the best score.
        """
        if len(scope.minors) < self.wanted.count:
            return None
        depth += 1
        in_use += not self.inventory.used[GPU].isdisjoint(scope.minors)
        found: _Found | None = None
        for part in scope.parts:
            one = self.best(part, depth, in_use)
            if one is not None and (found is None or one.rank > found.rank):
                found = one
        if found is not None:
            return found
        return self._here(scope, depth, in_use) if scope.level >= self.level else None

    def _here(self, scope: Scope, depth: int, in_use: int) -> _Found | None:
        fitting = [minor for minor in scope.minors if minor in self.fitting]
        if len(fitting) < self.wanted.count:
            return None
        if not self.wanted.shared:
            return _Found(tuple(fitting[: self.wanted.count]), depth, in_use, 0)
        score, negative = max((self._score(minor), -minor) for minor in fitting)
        return _Found((-negative,), depth, in_use, score)

    def _score(self, minor: int) -> int:
        if self.scorer is None:
            return 0
        total, free = self.inventory.total(GPU, minor), self.inventory.free[GPU][minor]
        return self.scorer.device(dict(self.wanted.amounts), total, free)


def near_gpus(
    inventory: Inventory, wanted: PerGpu, scope: str, scorer: Scorer | None
) -> tuple[int, ...] | None:
    """Return the minors of GPUs that are as near to each other as possible.

    :param scope: the widest part of the topology that may hold them, "" for any.
    :returns: None where the topology does not say, and any GPUs may be taken.
    :raises Refused: where there are not enough GPUs so near to each other.
    """
    topology = inventory.machine.topology
    level = SCOPES[scope]
    if level == _DEVICE and wanted.count > 1:
        raise Refused(_FEW_NEAR, resolvable=False)
    if topology is None or (wanted.shared and wanted.count > 1):
        if not scope:
            return None
        unknown = "node(s) missing GPU Device Topology Tree"
        several = "node(s) Unsupported Multi-Shared GPU"
        raise Refused(unknown if topology is None else several, resolvable=False)
    level = min(level, SCOPES["PCIe"])
    amounts = dict(wanted.amounts)
    fitting = (minor for minor in topology.minors if inventory.fits(GPU, minor, amounts))
    found = _Search(inventory, wanted, level, scorer, frozenset(fitting)).best(topology)
    if found is None:
        raise Refused(_FEW_NEAR if scope else "Insufficient GPU Devices")
    return found.minors
