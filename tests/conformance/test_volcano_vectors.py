"""Volcano's cycles, sessions and tables, through the policy for Volcano's queues."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conformance.volcano_cycles import Case, differences, run, volcano_cases
from tests.conformance.volcano_exceptions import better_answer, out_of_scope
from tests.conformance.volcano_format import completed
from tests.conformance.volcano_sessions import RUNNERS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    cycles = metafunc.function is test_cycle
    metafunc.parametrize("case", volcano_cases(metafunc.config, cycles))


def test_cycle(case: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case = completed(case)
    reason = out_of_scope(case)
    if reason is not None:
        pytest.skip(f"out of scope: {reason}")
    found = run(case, monkeypatch, tmp_path)
    told = differences(case, found)
    reason = better_answer(case, found.bound)
    if told and reason is not None:
        pytest.xfail(f"better answer, as {reason}")
    assert told == []


def test_votes(case: Case) -> None:
    runner = RUNNERS.get(case["kind"])
    if runner is None:
        pytest.skip(f"out of scope: nothing models {case['kind']}")
    found, expected = runner(completed(case))
    assert found == expected
