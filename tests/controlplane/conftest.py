"""Clusters for stories: the embedded one and the real one, which is installed once and reused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.apiserver.faces import Client, serving
from tests.controlplane.installation import POOLS, account_kubeconfig
from tests.controlplane.live_cluster import Kubelet, LiveCluster
from tests.controlplane.plane import ControlPlane

from bayplan.cluster.apiserver import ServedCluster, WallClock


@pytest.fixture(scope="session")
def installed(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveCluster]:
    """The real cluster; schedulers have the rights of configs/deploy there, and no more."""
    kubeconfig = account_kubeconfig(plane, tmp_path_factory.mktemp("account") / "kubeconfig")
    kubelet = Kubelet(plane.client)
    kubelet.start()
    yield LiveCluster(plane.client, kubeconfig)
    kubelet.end()


@pytest.fixture(scope="session")
def pools_kubeconfig(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kubeconfig with the rights of pools beside another scheduler."""
    path = tmp_path_factory.mktemp("pools") / "kubeconfig"
    return account_kubeconfig(plane, path, POOLS)


@pytest.fixture
def real(installed: LiveCluster) -> Iterator[LiveCluster]:
    """The real cluster, empty."""
    yield installed
    installed.clear()


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[LiveCluster]:
    """An embedded cluster in real time."""
    with serving(ServedCluster(clock=WallClock())) as face:
        face.do(lambda server: server.write_kubeconfig(tmp_path / "kubeconfig"))
        yield LiveCluster(Client(face.server.url), tmp_path / "kubeconfig")


@pytest.fixture(params=["embedded", "real"])
def cluster(request: pytest.FixtureRequest) -> LiveCluster:
    """Both, one after the other."""
    found: LiveCluster = request.getfixturevalue(request.param)
    return found
