"""Kueue's own cases, each through the code that admission runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.conformance import kueue_cases, kueue_cycles
from tests.conformance.vectors import SHARED

PREEMPTION_FIRST = {"preference": "PreemptionOverBorrowing"}
LEFT_OUT = {
    "TestSchedule/PreemptionOverBorrowing preference: "
    "preempt in first flavor instead of borrowing in second": PREEMPTION_FIRST,
    "TestScheduleForFairSharing/PreemptionOverBorrowing with fair sharing: "
    "preempt in first flavor instead of borrowing in second": PREEMPTION_FIRST,
}
"""What the flavorFungibility of a case's first ClusterQueue has beside what the vectors say."""


def _files(config: pytest.Config) -> list[Path]:
    given = config.getoption("--queue-vectors", default=None)
    if given:
        return [Path(name) for name in given]
    return sorted(SHARED.glob("kueue-*.jsonl"))


def _unfit(case: dict[str, Any]) -> str:
    """Return why a case cannot say whether a scheduler is right; empty if it can."""
    if case.get("unproven"):
        return f"unproven: {case['unproven']}"
    if case["kind"] not in kueue_cases.KINDS:
        return f"cases of the kind {case['kind']} are not known"
    if case["func"] not in kueue_cases.FUNCTIONS.get(case["kind"], (case["func"],)):
        return f"cases of the function {case['func']} are not known"
    gates = case.get("feature_gates") or {}
    unknown = sorted(gates.keys() - kueue_cycles.KNOWN_GATES)
    if unknown:
        return f"there is no gate {unknown[0]} here"
    off = [gate for gate in sorted(kueue_cycles.LASTING) if gates.get(gate) is False]
    if off:
        return f"what the gate {off[0]} turns off is always on"
    if case.get("limit_ranges"):
        return "LimitRanges are not modelled: they change no request and forbid no workload"
    replaced = case.get("replaced_workload_slice")
    if replaced is not None and replaced.get("workload") is None:
        return "the case lacks what the replaced workload slice has"
    if case["kind"] == "workload-slices" and (case.get("expected") or {}).get("err"):
        return "the test's API server fails, which no function here sees"
    return ""


def _cases(config: pytest.Config) -> Iterable[Any]:
    files = _files(config)
    if not files:
        reason = "the reference's vectors (kueue-*.jsonl) do not lie beside the project"
        yield pytest.param({}, id="kueue", marks=pytest.mark.skip(reason=reason))
    for path in files:
        for line in path.read_text(encoding="utf-8").splitlines():
            case = json.loads(line) if line.strip() else {}
            if case.get("system") != "kueue":
                continue
            left_out = LEFT_OUT.get(f"{case['func']}/{case['name']}")
            if left_out is not None:
                case["cluster_queues"][0]["flavor_fungibility"] |= left_out
            reason = _unfit(case)
            marks = [pytest.mark.skip(reason=reason)] if reason else []
            yield pytest.param(case, id=case["id"], marks=marks)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kueue_case" in metafunc.fixturenames:
        metafunc.parametrize("kueue_case", list(_cases(metafunc.config)))


def test_admission_decides_as_kueue(kueue_case: dict[str, Any]) -> None:
    kueue_cases.run(kueue_case)
