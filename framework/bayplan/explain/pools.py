"""What each compute pool has, by resource and model, and its tenants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from bayplan.api import AiComputePool, ComputePool
from bayplan.dialects.compute_pool import NAME
from bayplan.queues.devices import WHOLE
from bayplan.queues.gpus import is_gpu_count
from bayplan.queues.pools import PoolAccount, PoolAmounts, account_of
from bayplan.queues.report import QueueReport
from bayplan.scheduler.scheduler import Scheduler

__all__ = ["FIELDS", "PoolReport", "pool_reports"]

FIELDS = ("total", "allocated", "available", "reserved", "maintenance", "failed")
"""What becomes of a pool's capacity; the first is the sum of the others."""


class PoolReport(msgspec.Struct, frozen=True):
    """A pool: what its nodes have, and the queues of its tenants, its own first."""

    pool: ComputePool
    account: PoolAccount
    queues: Sequence[QueueReport]

    @property
    def name(self) -> str:
        """The pool's name."""
        return self.pool.metadata.name

    @property
    def problem(self) -> str:
        """Why it takes no jobs, "" if it does."""
        return self.queues[0].problem if self.queues else ""

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object; CPU in milli-CPU, devices of slices in thousandths."""
        return {
            "name": self.name,
            "type": self.pool.spec.pool_type,
            "problem": self.problem,
            "nodes": list(self.account.nodes),
            "resources": {name: _plain(name, one) for name, one in self.account.amounts.items()},
            "models": [
                {"resource": resource, "model": model, **_plain(resource, one)}
                for (resource, model), one in sorted(self.account.models.items())
            ],
            "tenants": [one.as_json() for one in self.queues[1:]],
        }


def _plain(resource: str, amounts: PoolAmounts) -> dict[str, float]:
    found: dict[str, float] = {name: getattr(amounts, name) for name in FIELDS}
    if not is_gpu_count(resource):
        return found
    return {name: one // WHOLE if one % WHOLE == 0 else one / WHOLE for name, one in found.items()}


def pool_reports(scheduler: Scheduler) -> list[PoolReport]:
    """Return all pools by name.

    :raises PluginError: when a plugin raises.
    """
    snapshot = scheduler.snapshot
    pools: dict[str, ComputePool] = {}
    for kind in (AiComputePool, ComputePool):
        pools |= snapshot.objects(kind)
    queues = [one for one in scheduler.queues.reports() if one.system == NAME]
    found = []
    for name, pool in sorted(pools.items()):
        own = [one for one in queues if name in (one.name, one.parent)]
        own.sort(key=lambda one: one.name != name)
        found.append(PoolReport(pool, account_of(pool, snapshot), own))
    return found
