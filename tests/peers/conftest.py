"""One control plane for the peers' controllers; each room starts those that it needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.controlplane.installation import account_kubeconfig, install_own
from tests.controlplane.live_cluster import ALL_PODS, Kubelet, LiveCluster
from tests.controlplane.plane import control_plane, wait_until
from tests.controlplane.process import Scheduler
from tests.live.deployed import CRDS
from tests.peers.failing_nodes import GRACE
from tests.peers.kueue_stories import Story, admission, story_of
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
        # kubectl, by which the peers are installed, reads it.
        wait_until(lambda: plane.client.get("/openapi/v2").code == 200, "the API is described")
        kubelet = Kubelet(plane.client, ALL_PODS)
        kubelet.start()
        yield Peers(plane, LiveCluster(plane.client, path), path, kubelet)
        kubelet.end()


@pytest.fixture
def peers(running: Peers) -> Iterator[Peers]:
    """The control plane, empty."""
    yield running
    running.kubelet.silent.clear()
    running.cluster.clear()


@pytest.fixture
def recovery(request: pytest.FixtureRequest, running: Peers, tmp_path: Path) -> Iterator[Scheduler]:
    """Controllers, and bayplan as it is installed, with short times."""
    for pattern in ("scheduling.sigs.k8s.io_podgroup*", "scheduling.run.ai_*"):
        running.define(pattern)
    args = {"lostAfter": 2, "grace": GRACE, "endingGrace": 60}
    with (
        running.running(*getattr(request, "param", ())),
        running.scheduler(tmp_path, plugins={"Recovery": args}) as made,
    ):
        yield made


@pytest.fixture(scope="module", params=["kueue", "bayplan"])
def admitting(
    request: pytest.FixtureRequest, running: Peers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Peers]:
    """A cluster on which Kueue's manager or bayplan admits; bayplan places.

    A file of stories says in ``OTHERS`` which other controllers run, and in ``SETTINGS`` what
    both have in their configurations.
    """
    others = getattr(request.module, "OTHERS", ())
    settings = getattr(request.module, "SETTINGS", {})
    folder = tmp_path_factory.mktemp(request.param)
    with admission(request.param, running, folder, others, **settings) as found:
        yield found


@pytest.fixture
def story(admitting: Peers) -> Iterator[Story]:
    """A namespace of its own on that cluster."""
    with story_of(admitting) as made:
        yield made
