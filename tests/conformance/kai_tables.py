"""KAI's unit tables of queues (division, capacity, reclaim, order), run on a QueueTree."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conformance.vectors import SHARED

from bayplan.api.queue import Queue, Share
from bayplan.dialects.kai.shares import GpuShareRequest
from bayplan.queues.tree import AmountRows, QueueTree
from bayplan_plugins.queues.division import (
    Division,
    Siblings,
    grant_quotas,
    share_surplus,
)
from bayplan_plugins.queues.kai import capacity, reclaim
from bayplan_plugins.queues.kai.ordering import compare, standing
from bayplan_plugins.queues.kai.shares import FairShares

Case = dict[str, Any]
KINDS = ("cpu", "memory", "gpu")
NAMES = {"cpu": "CPU", "memory": "Memory", "gpu": "GPU"}


def kai_cases(
    config: pytest.Config, field: str, shared: Sequence[str], options: Sequence[str]
) -> list[Any]:
    """Return KAI's cases that have a field ("op" or "runner"), as pytest parameters.

    :param options: those that name files of such cases.
    """
    given = [path for name in options for path in config.getoption(name, default=None) or ()]
    paths = [Path(path) for path in given] if given else [SHARED / name for name in shared]
    found = [
        pytest.param(case, id=case["name"])
        for path in paths
        if path.exists()
        for case in map(json.loads, path.read_text(encoding="utf-8").splitlines())
        if "system" not in case and field in case
    ]
    if found or given:
        return found
    reason = f"the reference's vectors ({', '.join(shared)}) do not lie beside the project"
    return [pytest.param({}, id=shared[0], marks=pytest.mark.skip(reason=reason))]


def run(case: Case) -> tuple[Any, Any]:
    """Return what a case gives and what it expects, where absent values are zero.

    :raises KeyError: for an operation that no function models.
    """
    got, expected = OPERATIONS[case["op"]](case["input"], case["expected"])
    return got, {**{name: type(value)() for name, value in got.items()}, **expected}


# Trees -------------------------------------------------------------------------------------


def _amount(number: float) -> float:
    return math.inf if number == -1 else float(number)


def _share(queue: Case, field: str) -> Share:
    return Share({kind: _amount(queue.get(kind, {}).get(field, 0)) for kind in KINDS})


def tree_of(queues: Sequence[Case]) -> FairShares:
    """Return queues with all their columns filled."""
    made = [
        Queue(
            queue.get("key") or queue.get("name", ""),
            parent=queue.get("parent", ""),
            deserved=_share(queue, "deserved"),
            limit=_share(queue, "limit"),
            weight=_share(queue, "over_quota_weight"),
            priority=queue.get("priority", 0),
            created=queue.get("creation_order", 0),
            uid=queue.get("uid", ""),
        )
        for queue in queues
    ]
    tree = QueueTree(made, KINDS)
    fair = np.zeros_like(tree.used)
    by_name = {one.name: queue for one, queue in zip(made, queues, strict=True)}
    for row, one in enumerate(tree.queues):
        for column, kind in enumerate(KINDS):
            numbers = by_name[one.name].get(kind, {})
            tree.used[row, column] = numbers.get("allocated", 0)
            tree.fixed[row, column] = numbers.get("allocated_non_preemptible", 0)
            tree.demand[row, column] = numbers.get("request", 0)
            fair[row, column] = _amount(numbers.get("fair_share", 0))
    return FairShares(tree, fair, np.zeros(len(KINDS)))


def amounts(given: Mapping[str, float] | None) -> AmountRows:
    """Return amounts as a row of the columns."""
    return np.array([float((given or {}).get(kind, 0)) for kind in KINDS])


# Division ----------------------------------------------------------------------------------


def _usage(tree: QueueTree, queues: Sequence[Case]) -> AmountRows:
    by_name = {queue.get("key") or queue.get("name", ""): queue for queue in queues}
    rows = [
        [by_name[one.name].get(kind, {}).get("usage", 0.0) for kind in KINDS] for one in tree.queues
    ]
    return np.array(rows, dtype=np.float64).reshape(-1, len(KINDS))


def _divide_all(given: Case, expected: Case) -> tuple[Any, Any]:
    shares = tree_of(given["queues"])
    usage = _usage(shares.tree, given["queues"])
    fair = Division(shares.tree, given["k_value"]).fair_shares(amounts(given["total"]), usage)
    return _named(shares.tree, fair, expected), expected.get("fair_share", {})


def _named(tree: QueueTree, fair: AmountRows, expected: Case) -> dict[str, dict[str, float]]:
    return {
        name: {kind: float(fair[tree.row_of[name], KINDS.index(kind)]) for kind in kinds}
        for name, kinds in expected.get("fair_share", {}).items()
    }


def _divide_one(given: Case, expected: Case, quotas: bool) -> tuple[Any, Any]:
    shares = tree_of(given["queues"])
    tree, column = shares.tree, KINDS.index(given["resource"])
    count = len(tree)
    order = sorted(range(count), key=lambda row: (tree.queues[row].created, tree.queues[row].uid))
    age = np.argsort(order)
    priority = np.array([queue.priority for queue in tree.queues], dtype=np.int64)
    siblings = Siblings(np.zeros(count, dtype=np.intp), priority, age)
    requestable = np.minimum(tree.limit, tree.demand)
    left = np.zeros((1, len(KINDS)))
    left[0, column] = given["total"]
    fair = shares.fair
    if quotas:
        own, left = grant_quotas(siblings, left, tree.deserved, requestable)
        fair = fair + own
    usage = _usage(tree, given["queues"])
    share_surplus(siblings, left, fair, requestable, tree.weight, usage, given["k_value"])
    got = {"fair_share": _named(tree, fair, expected), "remaining": float(left[0, column])}
    return got, expected


# Capacity ----------------------------------------------------------------------------------


def _requested(given: Case) -> AmountRows:
    memory = given.get("max_node_gpu_memory_mib")
    total = np.zeros(len(KINDS))
    for pod in given["job"]["pods"].values():
        total += amounts(pod["resources"])
        asked = pod.get("gpu_request", {})
        if asked.get("gpu_memory") and memory:
            part = GpuShareRequest(memory=asked["gpu_memory"]).part_of(memory)
            total[KINDS.index("gpu")] += part * max(1, asked.get("devices", 1))
    return total


def _job_gate(given: Case, expected: Case, limits: bool) -> tuple[Any, Any]:
    tree = tree_of(given["queues"]).tree
    job = given["job"]
    row, requested = tree.row_of[job["queue"]], _requested(given)
    preemptible = job.get("preemptibility") == "preemptible"
    if limits:
        excess = capacity.job_over_capacity(tree, row, requested, preemptible)
    else:
        excess = None if preemptible else capacity.over_quota(tree, row, requested)
    return {"schedulable": excess is None}, expected


def _queue_gate(given: Case, expected: Case, limits: bool) -> tuple[Any, Any]:
    gate = capacity.over_limit if limits else capacity.over_quota
    if "queues" in given:
        tree = tree_of(given["queues"]).tree
        job = given["job"]
        row = tree.row_of[job["queue"]]
        excess = gate(tree, row, amounts(given["requested"]))
        if not limits and job.get("preemptibility") == "preemptible":
            excess = None
        return {"schedulable": excess is None}, expected
    excess = gate(tree_of([given["queue"]]).tree, 0, amounts(given["requested"]))
    resource = "" if excess is None else NAMES[excess.resource]
    return {"over": excess is not None, "resource": resource}, expected


# Reclaim -----------------------------------------------------------------------------------


def _reclaimer(given: Case) -> reclaim.Reclaimer:
    shares, job = tree_of(given["queues"]), given["reclaimer"]
    return reclaim.Reclaimer(
        shares,
        shares.tree.row_of[job["queue"]],
        amounts(job["resources"]),
        job.get("preemptible", False),
        max(1.0, given.get("utilization_multiplier", 1.0)),
    )


def _takes(given: Case) -> bool:
    reclaimer = _reclaimer(given)
    row_of = reclaimer.shares.tree.row_of
    losses = {row_of[name]: [amounts(one) for one in own] for name, own in given["victims"].items()}
    return reclaimer.may_take(losses)


def _considers(given: Case) -> bool:
    reclaimer = _reclaimer(given)
    return reclaimer.may_consider(reclaimer.shares.tree.row_of[given["victim_queue"]])


def _quota_strategy(given: Case) -> bool:
    own, theirs = tree_of([given["reclaimer_queue"]]), tree_of([given["victim_queue"]])
    fits = own.fits_quota(0, amounts(given["reclaimer_resources"]))
    return fits and reclaim.exceeds_quota(theirs, 0, amounts(given["victim_remaining"]))


def _over_share(given: Case) -> bool:
    return reclaim.over_share(
        tree_of([given["victim_queue"]]), 0, amounts(given["victim_remaining"])
    )


def _over_quota(given: Case) -> bool:
    theirs = tree_of([given["victim_queue"]])
    return reclaim.exceeds_quota(theirs, 0, amounts(given["victim_remaining"]))


def _fits_quota(given: Case) -> bool:
    return tree_of([given["reclaimer_queue"]]).fits_quota(0, amounts(given["reclaimer_resources"]))


def _result(function: Callable[[Case], Any]) -> Callable[[Case, Case], tuple[Any, Any]]:
    return lambda given, expected: ({"result": function(given)}, expected)


# Order -------------------------------------------------------------------------------------


def _order(given: Case) -> int:
    standings = []
    for side in ("left", "right"):
        one = tree_of([given[f"{side}_queue"]])
        shares = FairShares(one.tree, one.fair, amounts(given.get("total")))
        job = given[f"{side}_job"]
        requested = amounts(job.get("resources"))
        if job.get("gpu_memory"):
            request = GpuShareRequest(memory=job["gpu_memory"])
            memory = request.part_of(given["min_node_gpu_memory"])
            requested[KINDS.index("gpu")] += memory * job.get("num_devices", 1)
        standings.append(standing(shares, 0, requested))
    return compare(*standings)


OPERATIONS: dict[str, Callable[[Case, Case], tuple[Any, Any]]] = {
    "SetResourcesShare": _divide_all,
    "setResourceShare": lambda given, expected: _divide_one(given, expected, quotas=True),
    "divideOverQuotaResource": lambda given, expected: _divide_one(given, expected, quotas=False),
    "IsJobOverQueueCapacity": lambda given, expected: _job_gate(given, expected, limits=True),
    "IsTaskAllocationOnNodeOverCapacity": lambda given, expected: _job_gate(
        given, expected, limits=True
    ),
    "IsNonPreemptibleJobOverQuota": lambda given, expected: _job_gate(
        given, expected, limits=False
    ),
    "resultsOverLimit": lambda given, expected: _queue_gate(given, expected, limits=True),
    "isOverLimit": lambda given, expected: _queue_gate(given, expected, limits=True),
    "resultsWithNonPreemptibleOverQuota": lambda given, expected: _queue_gate(
        given, expected, limits=False
    ),
    "isAllocatedNonPreemptibleOverQuota": lambda given, expected: _queue_gate(
        given, expected, limits=False
    ),
    "CanReclaimResources": _result(lambda given: _reclaimer(given).may_start()),
    "Reclaimable": _result(_takes),
    "FilterVictim": _result(_considers),
    "MaintainFairShareStrategy": _result(_over_share),
    "FitsMaintainFairShare": _result(_over_share),
    "GuaranteeDeservedQuotaStrategy": _result(_quota_strategy),
    "ReclaimerFitsDeservedQuota": _result(_fits_quota),
    "ReclaimeeExceedsDeservedQuota": _result(_over_quota),
    "GetQueueOrderResult": _result(_order),
}
