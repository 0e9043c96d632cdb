"""Helm and an empty control plane, where this machine has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chart.cluster import PODS, clear_definitions
from tests.chart.helm import Helm
from tests.controlplane.plane import ControlPlane, control_plane
from tests.real_programs import missing, missing_helm


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    """Helm without a cluster."""
    if reason := missing_helm():
        pytest.skip(reason)
    return Helm(tmp_path)


@pytest.fixture(scope="session")
def empty_plane() -> Iterator[ControlPlane]:
    """A control plane on which nobody has installed anything."""
    if reason := missing():
        pytest.skip(reason)
    with control_plane() as plane:
        yield plane


@pytest.fixture
def release(empty_plane: ControlPlane, tmp_path: Path) -> Iterator[Helm]:
    """Helm, on a cluster that has nothing of bayplan at first."""
    if reason := missing_helm():
        pytest.skip(reason)
    helm = Helm(tmp_path, empty_plane.kubeconfig)
    yield helm
    helm.attempt("uninstall", "bayplan", "--ignore-not-found", "--wait")
    client = empty_plane.client
    client.delete(PODS, gracePeriodSeconds=0)
    client.delete("/api/v1/nodes")
    clear_definitions(client)
