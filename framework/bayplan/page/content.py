"""All that the page shows of a scheduler, as one JSON object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bayplan.errors import BayplanError
from bayplan.explain.pools import pool_reports
from bayplan.page.cluster_view import ClusterView
from bayplan.scheduler.scheduler import Scheduler
from bayplan.snapshot.kept_nodes import KeptNodes

__all__ = ["content", "organisation"]

FORMAT = 1
"""Grows when the script could not read what was written before."""

_MOST_SPARES = 1000
_MOST_REQUESTS = 200
"""So many of the units that ask for nodes are shown."""


def content(
    cluster_view: ClusterView,
    title: str,
    details: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
    refused: Mapping[str, str] | None = None,
    wall: bool = False,
) -> dict[str, Any]:
    """Return everything.

    :param details: the explanations by unit; None where the page asks for them.
    :param notes: what could not be read or had to be assumed.
    :param refused: what an API server would refuse, and why.
    :param wall: the cluster's time is that of clocks, so the page shows hours and minutes.
    """
    scheduler = cluster_view.scheduler
    cluster_view.sample(last=True)
    return {
        "format": FORMAT,
        "title": title,
        "now": round(scheduler.now, 3),
        "unixTime": round(scheduler.unix_time, 3),
        "wall": wall,
        **cluster_view.as_json(),
        **organisation(scheduler),
        "events": list(cluster_view.history.events),
        "samples": [one.as_json() for one in cluster_view.history.samples],
        "waits": list(cluster_view.queue_log.waits),
        "details": details,
        "notes": [*notes, *scheduler.ungrouped_kinds()],
        "refused": dict(refused or {}),
    }


def organisation(scheduler: Scheduler) -> dict[str, Any]:
    """Return the queues and the pools, what asks for nodes, and which nodes are spares."""
    requests = [one.as_json() for one in scheduler.asked_nodes(_MOST_REQUESTS)]
    kept = sorted(KeptNodes.of(scheduler.snapshot).now().items())[:_MOST_SPARES]
    nodes = {
        "nodeRequests": requests,
        "spares": [{"node": name, "domain": domain} for name, domain in kept],
    }
    try:
        queues = [one.as_json() for one in scheduler.queues.reports()]
        pools = [one.as_json() for one in pool_reports(scheduler)]
    except BayplanError as exc:
        return {"queues": [], "pools": [], **nodes, "problem": str(exc)}
    return {"queues": queues, "pools": pools, **nodes}
