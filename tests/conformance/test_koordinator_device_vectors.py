"""Koordinator's shares of devices, run through the adapter that DeviceShare uses."""

from __future__ import annotations

import pytest
from tests.conformance.koordinator_device_cases import RUNNERS, Case, device_cases
from tests.conformance.share_format import completed


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("case", device_cases(metafunc.config))


def test_device_vector(case: Case) -> None:
    RUNNERS[case["kind"]](completed(case))
