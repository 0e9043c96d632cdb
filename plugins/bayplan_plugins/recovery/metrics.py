"""Prometheus metrics of recovery."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from prometheus_client import Counter as Counting
from prometheus_client import Gauge

from bayplan_plugins.recovery.health import NodeHealth, Trust

__all__ = ["lost", "seen"]

_NODES = Gauge("bayplan_recovery_unwell_nodes", "Nodes that are not well, by trust", ["trust"])
_GANGS = Gauge("bayplan_recovery_broken_gangs", "Gangs that run below their minimum")
_SPARES = Gauge("bayplan_recovery_spare_nodes", "Idle spare nodes, by domain", ["domain"])

_LOST = Counting(
    "bayplan_recovery_lost_gpu_hours",
    "Work that evicted pods had not saved, in hours of a GPU",
    ["reason"],
)


def lost(action: str, hours: float) -> None:
    """Count the work that an evicted pod had not saved."""
    _LOST.labels(action).inc(hours)


def seen(unwell: Mapping[str, NodeHealth], broken: int, spares: Iterable[str]) -> None:
    """Set what was seen last.

    :param spares: the domain of each spare node.
    """
    counts = Counter(health.trust for health in unwell.values())
    for trust in Trust:
        if trust is not Trust.WELL:
            _NODES.labels(trust.name.lower()).set(counts[trust])
    _GANGS.set(broken)
    _SPARES.clear()
    for domain, count in Counter(spares).items():
        _SPARES.labels(domain).set(count)
