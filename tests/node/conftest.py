"""One real node for all tests of this room, with a scheduler and the driver of a DGX H100."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.controlplane.process import Scheduler
from tests.live.deployed import SCHEDULER
from tests.node.machine_files import MachineFiles, make_machine
from tests.node.real_node import DriverProcess, RealNode, real_node

_PROFILE = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: bayplan
  plugins: {multiPoint: {enabled: [{name: Recovery}]}}
  pluginConfig: [{name: Recovery, args: {lostAfter: 2, grace: 20, endingGrace: 20, distrust: 0}}]
- schedulerName: default-scheduler
"""


@pytest.fixture(scope="session")
def running() -> Iterator[RealNode]:
    """The node, with bayplan as its only scheduler."""
    with real_node() as node:
        profile = node.folder / "profile.yaml"
        profile.write_text(_PROFILE)
        scheduler = Scheduler(node.account(SCHEDULER), node.folder, profile)
        scheduler.start()
        yield node
        scheduler.stop()


@pytest.fixture(scope="session")
def machine(running: RealNode) -> MachineFiles:
    """The files of a DGX H100."""
    return make_machine("dgx-h100", running.folder / "machine", running.within())


@pytest.fixture
def node(running: RealNode) -> Iterator[RealNode]:
    """The node, without pods."""
    yield running
    running.clear()


@pytest.fixture
def driver(node: RealNode, machine: MachineFiles) -> Iterator[DriverProcess]:
    """A driver that has published the machine; it ends after the pods."""
    made = DriverProcess(node, machine)
    made.start()
    try:
        made.wait_until_ready()
        yield made
        node.clear()
    finally:
        made.stop()
