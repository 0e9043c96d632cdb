"""Helm, where this machine has it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chart.helm import Helm
from tests.real_programs import missing_helm


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    """Helm without a cluster."""
    if reason := missing_helm():
        pytest.skip(reason)
    return Helm(tmp_path)
