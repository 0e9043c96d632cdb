"""What kinds of workloads mean to KAI, Volcano and Kueue, run on bayplan's table of kinds."""

from __future__ import annotations

import pytest
from tests.conformance.grouper_cases import run_grouper_case
from tests.conformance.kind_cases import Case, UnmodelledError, kind_cases
from tests.conformance.kueue_hook_cases import run_hook_case
from tests.conformance.kueue_job_cases import run_job_case

_RUNNERS = {
    "kai-grouper": run_grouper_case,
    "kueue-hook": run_hook_case,
    "kueue-job": run_job_case,
    "volcano-grouper": run_grouper_case,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("case", kind_cases(metafunc.config, *_RUNNERS))


def test_kind_vector(case: Case) -> None:
    try:
        _RUNNERS[case["id"].partition("/")[0]](case)
    except UnmodelledError as exc:
        pytest.skip(f"out of scope: {exc}")
