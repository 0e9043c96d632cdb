"""Koordinator's quotas, run through the policy ``elastic-quota``."""

from __future__ import annotations

import pytest
from tests.conformance.koordinator_format import completed
from tests.conformance.koordinator_quota import RUNNERS, Case, Different, Unmodelled, quota_cases


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    cases = quota_cases(metafunc.config, "koordinator-quota.jsonl", tuple(RUNNERS))
    metafunc.parametrize("case", cases)


def test_quota_vector(case: Case) -> None:
    try:
        RUNNERS[case["kind"]](completed(case))
    except Unmodelled as exc:
        pytest.skip(f"out of scope: {exc}")
    except Different as exc:
        pytest.xfail(str(exc))
