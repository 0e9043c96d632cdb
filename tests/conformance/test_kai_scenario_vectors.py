"""KAI's scenarios: objects in, the production scheduler, every task compared."""

from __future__ import annotations

import pytest
from tests.conformance.kai_format import completed
from tests.conformance.kai_known import known_difference
from tests.conformance.kai_rounds import mismatches
from tests.conformance.kai_scenarios import Case
from tests.conformance.kai_scope import out_of_scope, profiles_of
from tests.conformance.kai_tables import kai_cases

SCENARIOS = ("kai-scenarios.jsonl", "kai-scenarios-extra.jsonl")
OPTIONS = ("--queue-vectors", "--fraction-vectors")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("case", kai_cases(metafunc.config, "actions", SCENARIOS, OPTIONS))


def test_scenario(case: Case) -> None:
    case = completed(case)
    reason = out_of_scope(case)
    if reason is not None:
        pytest.skip(f"out of scope: {reason}")
    wrong = mismatches(case, profiles_of(case))
    known = known_difference(case, wrong) if wrong else None
    if known is not None:
        pytest.xfail(f"{known}: {'; '.join(map(str, wrong))}")
    assert not wrong, "; ".join(map(str, wrong))
