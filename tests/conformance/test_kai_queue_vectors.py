"""KAI's own tables of queues, run through the policy ``fair-share``."""

from __future__ import annotations

import pytest
from tests.conformance.kai_format import completed
from tests.conformance.kai_tables import OPERATIONS, Case, kai_cases, run

TABLES = (
    "kai-fair-share.jsonl",
    "kai-capacity.jsonl",
    "kai-reclaimable.jsonl",
    "kai-queue-order.jsonl",
)
OPTIONS = ("--queue-vectors",)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("case", kai_cases(metafunc.config, "op", TABLES, OPTIONS))


def test_queue_table(case: Case) -> None:
    if case["op"] not in OPERATIONS:
        pytest.skip(f"out of scope: no function models {case['op']}")
    got, expected = run(completed(case))
    assert got == expected
