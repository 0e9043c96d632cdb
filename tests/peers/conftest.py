"""One control plane for the peers' controllers; each room starts those that it needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.controlplane.installation import account_kubeconfig, install_own
from tests.controlplane.live_cluster import Kubelet, LiveCluster
from tests.controlplane.plane import control_plane
from tests.live.deployed import CRDS
from tests.peers.real_peers import Peers
from tests.real_programs import missing


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    """The control plane, with the kinds of bayplan and no others."""
    if reason := missing():
        pytest.skip(reason)
    with control_plane() as plane:
        install_own(plane.client, CRDS / "pools.yaml", CRDS / "ai-pools.yaml")
        path = account_kubeconfig(plane, tmp_path_factory.mktemp("account") / "kubeconfig")
        kubelet = Kubelet(plane.client)
        kubelet.start()
        yield Peers(plane, LiveCluster(plane.client, path), path, kubelet)
        kubelet.end()


@pytest.fixture
def peers(running: Peers) -> Iterator[Peers]:
    """The control plane, empty."""
    yield running
    running.kubelet.silent.clear()
    running.cluster.clear()
