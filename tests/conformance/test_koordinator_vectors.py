"""Koordinator's CPU sets, loads and reservations, run through the code that schedules."""

from __future__ import annotations

import pytest
from tests.conformance.koordinator_cases import RUNNERS, Case, koordinator_cases


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("case", koordinator_cases(metafunc.config))


def test_koordinator_vector(case: Case) -> None:
    RUNNERS[case["kind"]](case)
