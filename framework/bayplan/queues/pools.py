"""What a pool of nodes has: used, free, kept for growth, and out of service.

For every resource ``total = allocated + available + reserved + maintenance + failed``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bayplan.api import ComputePool
from bayplan.api.node_state import NodeState, model_of, state_of
from bayplan.api.pools import reserved_part
from bayplan.snapshot import NodeRow, Snapshot

__all__ = ["PoolAccount", "PoolAmounts", "account_of", "in_pool", "shared_nodes"]


@dataclass
class PoolAmounts:
    """Amounts of one resource, in its unit (CPU in milli-CPU).

    ``allocated`` is what pods on the pool's nodes have, whether they came through the pool or not.
    ``reserved`` is the part of what is free that is kept for growth; ``maintenance`` and ``failed``
    are what nobody has of nodes that are out of service.
    """

    total: int = 0
    allocated: int = 0
    available: int = 0
    reserved: int = 0
    maintenance: int = 0
    failed: int = 0

    def add(self, offered: int, used: int, state: NodeState) -> None:
        """Count what one node offers, and what its pods have of it."""
        # A node may offer less than its pods have, after devices have failed.
        free = max(0, offered - used)
        self.total += used + free
        self.allocated += used
        if state is NodeState.FAILED:
            self.failed += free
        elif state is NodeState.MAINTENANCE:
            self.maintenance += free
        else:
            self.available += free

    def reserve(self, part: float) -> None:
        """Keep a part of what is in service free, as far as it is."""
        wanted = int((self.total - self.failed - self.maintenance) * part)
        self.reserved = min(wanted, self.available)
        self.available -= self.reserved


@dataclass
class PoolAccount:
    """What a pool has, by resource; of devices also by model, as pairs of resource and model.

    ``usable`` is what its pods may have at most: what is in service without what is kept free.
    """

    nodes: list[str] = field(default_factory=list)
    amounts: dict[str, PoolAmounts] = field(default_factory=dict)
    models: dict[tuple[str, str], PoolAmounts] = field(default_factory=dict)
    usable: dict[str, float] = field(default_factory=dict)


def in_pool(pool: ComputePool, labels: Mapping[str, str]) -> bool:
    """Tell whether a node with these labels is in a pool; a pool without selector has none."""
    return bool(pool.spec.node_selector) and pool.spec.node_selector.items() <= labels.items()


def account_of(pool: ComputePool, snapshot: Snapshot) -> PoolAccount:
    """Return what a pool's nodes have in the snapshot."""
    account = PoolAccount()
    part = reserved_part(pool.spec.capacity) or 0.0
    in_service: dict[str, int] = {}
    for row in snapshot.view():
        if not in_pool(pool, row.labels):
            continue
        account.nodes.append(row.name)
        state = state_of(row.node)
        for resource in row.node.status.allocatable or row.node.status.capacity:
            offered, used = row.allocatable(resource), row.used(resource)
            _count(account, row, resource, offered, used, state)
            if state is NodeState.IN_SERVICE:
                in_service[resource] = in_service.get(resource, 0) + offered
    kept = {name: 0.0 if name == "pods" else part for name in account.amounts}
    for resource, amounts in account.amounts.items():
        amounts.reserve(kept[resource])
    for (resource, _), amounts in account.models.items():
        amounts.reserve(kept[resource])
    account.usable = {
        name: float(most - int(most * kept[name])) for name, most in in_service.items()
    }
    return account


def _count(
    account: PoolAccount, row: NodeRow, resource: str, offered: int, used: int, state: NodeState
) -> None:
    account.amounts.setdefault(resource, PoolAmounts()).add(offered, used, state)
    model = model_of(row.node, resource)
    if model:
        account.models.setdefault((resource, model), PoolAmounts()).add(offered, used, state)


def shared_nodes(pools: Iterable[ComputePool], snapshot: Snapshot) -> dict[str, str]:
    """Return, by name, what is wrong with pools that have a node which an earlier pool has, too.

    Pools come in the order of their names.
    """
    owner: dict[str, str] = {}
    problems: dict[str, str] = {}
    ordered = sorted(pools, key=lambda pool: pool.metadata.name)
    for pool in ordered:
        name = pool.metadata.name
        for row in snapshot.view():
            if in_pool(pool, row.labels) and owner.setdefault(row.name, name) != name:
                problems.setdefault(name, f'node {row.name} is in pool "{owner[row.name]}" already')
    return problems
