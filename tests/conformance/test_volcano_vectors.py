"""Volcano's cycles of capacity, proportion, reclaim, preempt, enqueue and topology."""

from __future__ import annotations

from pathlib import Path

import pytest
from volcano_cycles import Case, differences, run, volcano_cases
from volcano_exceptions import better_answer, out_of_scope


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("case", volcano_cases(metafunc.config, ("cycle",)))


def test_cycle(case: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reason = out_of_scope(case)
    if reason is not None:
        pytest.skip(f"out of scope: {reason}")
    told = differences(case, run(case, monkeypatch, tmp_path))
    reason = better_answer(case)
    if told and reason is not None:
        pytest.skip(f"better answer: {reason}")
    assert told == []
