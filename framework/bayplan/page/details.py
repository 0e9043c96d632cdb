"""Why each job is where it is, or why it waits: the explanations that the page draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bayplan.api import Pod
from bayplan.errors import BayplanError
from bayplan.explain.explanation import explain, explain_job
from bayplan.naming import natural_key
from bayplan.page.cluster_view import ClusterView
from bayplan.page.rows import UnitRow
from bayplan.queues.held_jobs import HeldJob
from bayplan.scheduler.scheduler import Scheduler

__all__ = ["detail_of", "detail_of_job", "details_of"]

MOST_SEARCHED = 12
"""For how many pending jobs a file says what would help: each search takes time."""
MOST_DETAILED = 40
"""For how many placed jobs a file has the scores of the best nodes."""
MOST_JOBS = 400
"""How many pending jobs, and how many placed ones, a file explains."""


def detail_of(scheduler: Scheduler, pod: Pod, search: bool = True) -> dict[str, Any]:
    """Return the explanation of a pod as a JSON object, or ``{"pod", "problem"}``.

    :param search: look for what would help, and for scores that are not recorded.
    """
    try:
        return explain(scheduler, pod, search=search).as_json()
    except BayplanError as exc:
        return {"pod": pod.key, "problem": str(exc)}


def detail_of_job(scheduler: Scheduler, held: HeldJob) -> dict[str, Any]:
    """Return why a job has no pods yet as a JSON object, like that of a pod."""
    found: dict[str, Any] = {"pod": held.key, "state": "Pending", "message": held.why}
    try:
        about = explain_job(scheduler, held.kind, held.key)
    except BayplanError as exc:
        return {**found, "problem": str(exc)}
    if about is None or about.line is None:
        return found
    own = about.as_json()
    return {**found, "line": own["queue"], "suggestions": own["suggestions"]}


def details_of(cluster_view: ClusterView, pods: Mapping[str, Pod]) -> dict[str, dict[str, Any]]:
    """Return the explanations of jobs by unit, as far as a file holds them.

    :param pods: the pods, by key.
    """
    first: dict[str, Pod] = {}
    for key in sorted(pods, key=natural_key):
        row = cluster_view.pods.get(key)
        if row is None or row.ended is not None:
            continue
        known = first.get(row.unit)
        if known is None or (known.spec.node_name and not pods[key].spec.node_name):
            first[row.unit] = pods[key]
    waiting = _by_message(cluster_view, [u for u, pod in first.items() if not pod.spec.node_name])
    placed = [unit for unit, pod in first.items() if pod.spec.node_name]
    # Gangs say more than single pods.
    placed.sort(key=lambda unit: -cluster_view.units.get(unit, UnitRow()).members)
    found = {}
    for units, searched in ((waiting, MOST_SEARCHED), (placed, MOST_DETAILED)):
        for number, unit in enumerate(units[:MOST_JOBS]):
            detail = detail_of(cluster_view.scheduler, first[unit], number < searched)
            found[unit] = detail if number < searched else {**detail, "brief": True}
    held = cluster_view.held_jobs()
    found |= {one.key: detail_of_job(cluster_view.scheduler, one) for one in held[:MOST_SEARCHED]}
    return found


def _by_message(cluster_view: ClusterView, units: Sequence[str]) -> list[str]:
    """Return pending units so that one of each message comes before a second of any."""
    seen: dict[str, int] = {}
    order = []
    for unit in units:
        message = cluster_view.units.get(unit, UnitRow()).message
        seen[message] = seen.get(message, 0) + 1
        order.append((seen[message], unit))
    return [unit for _, unit in sorted(order, key=lambda one: one[0])]
