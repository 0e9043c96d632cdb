"""The metrics of compute pools: what becomes of what their nodes have, and what tenants use."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from bayplan.errors import PluginError
from bayplan.explain.pools import FIELDS, PoolReport, pool_reports
from bayplan.live.gauges import Gauges
from bayplan.queues.devices import in_thousandths
from bayplan.scheduler.scheduler import Scheduler

__all__ = ["PoolMetrics"]

_CAPACITY = "What the nodes of a pool have, by what becomes of it; CPU in cores."
_MODEL = "What the nodes of a pool have of one model of a device, by what becomes of it."
_USAGE = "What the pods of a tenant on the nodes of a pool have; CPU in cores."
_NODES = "The number of nodes of a pool."
_BY_MODEL = ("pool", "resource", "model", "state")
_BY_TENANT = ("pool", "resource_type", "tenant_id")


class PoolMetrics(Collector):
    """Exports the pools of the scheduler that it watches.

    ``compute_pool_usage`` has the name and the labels by which pooled compute is commonly watched.
    """

    def __init__(self, registry: CollectorRegistry, scheduler: Callable[[], Scheduler | None]):
        self._scheduler = scheduler
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Yield nothing: without pools there is nothing to export."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges of all pools, none while a plugin fails to report them."""
        scheduler = self._scheduler()
        if scheduler is None:
            return ()
        try:
            reports = pool_reports(scheduler)
        except PluginError:
            return ()
        gauges = Gauges()
        for one in reports:
            _add(gauges, one)
        return gauges.families()


def _add(gauges: Gauges, one: PoolReport) -> None:
    pool = one.name
    gauges.add("bayplan_pool_nodes", _NODES, ("pool",), (pool,), len(one.account.nodes))
    for resource, amounts in one.account.amounts.items():
        for state in FIELDS:
            of = (pool, resource, state)
            value = getattr(amounts, state) * _scale(resource)
            gauges.add("bayplan_pool_capacity", _CAPACITY, ("pool", "resource", "state"), of, value)
    for (resource, model), amounts in one.account.models.items():
        for state in FIELDS:
            which = (pool, resource, model, state)
            value = getattr(amounts, state) * _scale(resource)
            gauges.add("bayplan_pool_model_capacity", _MODEL, _BY_MODEL, which, value)
    for queue in one.queues[1:]:
        tenant = queue.name.removeprefix(f"{pool}/")
        for resource, found in queue.resources.items():
            used = found.used * (0.001 if resource == "cpu" else 1.0)
            gauges.add("compute_pool_usage", _USAGE, _BY_TENANT, (pool, resource, tenant), used)


def _scale(resource: str) -> float:
    return 0.001 if in_thousandths(resource) else 1.0
