"""Cases of Koordinator's CPU sets, loads and reservations, run on the code that schedules."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from tests.conformance.vectors import SHARED

from bayplan.api import Pod, Quantity
from bayplan.api.objects import decode_part
from bayplan.api.reservation import ReservationSpec
from bayplan.api.resources import amount_of
from bayplan.dialects.koordinator.reservations import is_owner
from bayplan_plugins.cpu_sets.accumulator import (
    CpusRefused,
    CpuUse,
    Search,
    take_cpus,
    take_preferred_cpus,
)
from bayplan_plugins.cpu_sets.topology import Cpu, CpuTopology
from bayplan_plugins.loads.formulas import estimate, least_loaded, over
from bayplan_plugins.reservation.matching import filled

__all__ = ["RUNNERS", "Case", "koordinator_cases"]

Case: TypeAlias = dict[str, Any]
_FILES = (
    "koordinator-cpuset.jsonl",
    "koordinator-loadaware.jsonl",
    "koordinator-reservation.jsonl",
)


def koordinator_cases(config: pytest.Config) -> list[Any]:
    """Return the cases as pytest parameters: those of the given files, or of the reference's."""
    given = config.getoption("--koordinator-vectors", default=None)
    paths = [Path(path) for path in given] if given else [SHARED / name for name in _FILES]
    found = [
        pytest.param(case, id=case["id"])
        for path in paths
        if path.exists()
        for case in map(json.loads, path.read_text(encoding="utf-8").splitlines())
        if case.get("kind") in RUNNERS
    ]
    if found or given:
        return found
    reason = f"the reference's vectors ({', '.join(_FILES)}) do not lie beside the project"
    return [pytest.param({}, id="koordinator", marks=pytest.mark.skip(reason=reason))]


# CPU sets ----------------------------------------------------------------------------------


def topology_of(given: Mapping[str, Any]) -> CpuTopology:
    """Return the CPUs that a case lists or counts."""
    if "cpus" in given:
        return CpuTopology({int(cpu): Cpu(*place) for cpu, place in given["cpus"].items()})
    per_core, per_node = given["cpus_per_core"], given["cores_per_node"]
    nodes = given["sockets"] * given["nodes_per_socket"]
    cpus = {}
    for cpu in range(nodes * per_node * per_core):
        core = cpu // per_core
        node = core // per_node
        cpus[cpu] = Cpu(core, node, node // given["nodes_per_socket"])
    return CpuTopology(cpus)


def run_cpus(case: Case) -> None:
    given, expected = case["input"], case["expected"]
    search = Search(
        topology_of(given),
        given["needed"],
        given["bind_policy"],
        given["exclusive_policy"],
        given["numa_strategy"],
        given["max_ref_count"],
    )
    in_use = {
        int(cpu): CpuUse(use["ref_count"], use["exclusive_policy"])
        for cpu, use in given["allocated"].items()
    }
    assert _answer(case["kind"], search, given, in_use) == expected


def _answer(
    kind: str, search: Search, given: Mapping[str, Any], in_use: Mapping[int, CpuUse]
) -> dict[str, Any]:
    try:
        if kind == "take-cpus":
            taken = take_cpus(search, given["available"], in_use)
        else:
            taken = take_preferred_cpus(search, given["available"], given["preferred"], in_use)
    except CpusRefused as exc:
        return {"error": str(exc)}
    return {"cpus": sorted(taken)}


# Loads -------------------------------------------------------------------------------------


def run_estimate(case: Case) -> None:
    given, expected = case["input"], case["expected"]
    resource = given["resource"]
    request, limit = (
        amount_of(resource, Quantity(given[name])) if given[name] else 0
        for name in ("request", "limit")
    )
    assert expected["unit"] == ("milli" if resource == "cpu" else "base")
    assert estimate(resource, request, limit, given["factor"]) == expected["estimated"]


def run_load(case: Case) -> None:
    given, expected = case["input"], case["expected"]
    used, allocatable = (np.array([given[name]]) for name in ("used", "allocatable"))
    points = least_loaded(used, allocatable, given["weights"], given["dominant_weight"])
    found = next(
        (
            f"resource {place} over threshold"
            for place, threshold in enumerate(given["thresholds"])
            if over(used[:, place], allocatable[:, place], threshold)[0]
        ),
        "pass",
    )
    assert {"filter": found, "score": int(points[0])} == expected


# Reservations ------------------------------------------------------------------------------


def run_owners(case: Case) -> None:
    given = case["input"]
    pod = decode_part(Pod, given["pod"])
    spec = decode_part(ReservationSpec, {"owners": given["owners"]})
    own = given["pod"].get("apiVersion", "")
    assert is_owner(pod, spec.owners, own) is case["expected"]["match"]


def run_filled(case: Case) -> None:
    given = case["input"]
    allocatable, allocated, requests = (
        {name: amount_of(name, Quantity(text)) for name, text in given[field].items()}
        for field in ("allocatable", "allocated", "pod_requests")
    )
    assert filled(allocatable, allocated, requests) == case["expected"]["score"]


RUNNERS: Mapping[str, Callable[[Case], None]] = {
    "take-cpus": run_cpus,
    "take-preferred-cpus": run_cpus,
    "estimate": run_estimate,
    "load-score": run_load,
    "owner-match": run_owners,
    "reservation-score": run_filled,
}
