"""Devices become unhealthy and recover: the stub library through pynvml, and a sysfs tree."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import pynvml
import pytest
from tests.dra.driver.driver_stage import EmbeddedApi, eventually, short_folder
from tests.dra.driver.fake_kubelet import Kubelet
from tests.topology.machine.readers import nvml_machine
from tests.topology.machine.readers.nvml_machine import (
    FakeLink,
    FakeMachine,
    FakePort,
    News,
    Written,
    hgx,
)

from bayplan.api import ResourceSlice
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.testing import make_node
from bayplan.topology.machine.readers.discovery import discover
from bayplan_dra.driver.app import NodeDriver
from bayplan_dra.driver.kubelet.sockets import Sockets
from bayplan_dra.driver.prepare.edits import DeviceFiles
from bayplan_dra.driver.publish.devices import NodeInventory, inventory_of
from bayplan_dra.driver.publish.health import HealthTracker
from bayplan_dra.driver.publish.watchers import (
    APPLICATION_XIDS,
    LinkWatcher,
    PortWatcher,
    XidWatcher,
)

XID = pynvml.nvmlEventTypeXidCriticalError
DOUBLE_BIT = pynvml.nvmlEventTypeDoubleBitEccError
LOST = pynvml.NVML_ERROR_GPU_IS_LOST
NOT_FOUND = pynvml.NVML_ERROR_NOT_FOUND
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN
SOON = 0.02
"""Seconds between two checks, where a test is not about time."""
DEADLINE = 60.0


class Watcher(Protocol):
    def run(self, stopped: threading.Event) -> None: ...


@dataclass(frozen=True)
class WatchedNode:
    inventory: NodeInventory
    files: Written
    news: News
    health: HealthTracker

    def unhealthy(self) -> dict[str, set[str]]:
        """Return the causes of all problems, by device."""
        taints = self.health.taints()
        return {name: {one.key.partition("/")[2] for one in taints[name]} for name in taints}

    def texts(self) -> dict[str, str]:
        _, devices = self.health.wait(-1, 0)
        return {one.name: one.problem for one in devices if one.problem}

    def becomes(self, unhealthy: dict[str, set[str]]) -> None:
        """Wait until exactly these devices have exactly these problems."""
        deadline = time.monotonic() + DEADLINE
        version = -1
        while self.unhealthy() != unhealthy and time.monotonic() < deadline:
            version, _ = self.health.wait(version, deadline - time.monotonic())
        assert self.unhealthy() == unhealthy

    def port(self, name: str, port: int = 1) -> Path:
        return self.files.sysfs / "class/infiniband" / name / f"ports/{port}/state"

    def set_port(self, name: str, state: str, port: int = 1) -> None:
        """Change a port's state; a watcher reads the old or the new one, as in sysfs."""
        whole = self.files.sysfs / "state"
        whole.write_text(f"{state}\n")
        whole.replace(self.port(name, port))


@pytest.fixture(scope="module")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml_machine.compile_stub(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(stub_library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let pynvml call the stub, by its own ctypes path."""
    library = ctypes.CDLL(str(stub_library))
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    yield
    for count in ("stub_sessions", "stub_sets"):
        assert ctypes.c_int.in_dll(library, count).value == 0, f"{count} are left open"


WatchedNodes = Callable[[FakeMachine], WatchedNode]


@pytest.fixture
def node_of(nvml: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WatchedNodes:
    def find(machine: FakeMachine) -> WatchedNode:
        files = nvml_machine.write(machine, tmp_path)
        news = News(tmp_path / "news")
        monkeypatch.setenv("NVML_STUB_MACHINE", str(files.stub))
        monkeypatch.setenv("NVML_STUB_NEWS", str(news.path))
        inventory = inventory_of(discover("here", files.sysfs, files.cpuinfo))
        health = HealthTracker("dra.example", "here")
        health.set_devices(inventory.devices)
        return WatchedNode(inventory, files, news, health)

    return find


@contextmanager
def running(*watchers: Watcher) -> Iterator[None]:
    stopped = threading.Event()
    threads = [threading.Thread(target=watcher.run, args=(stopped,)) for watcher in watchers]
    for thread in threads:
        thread.start()
    try:
        yield
        assert all(thread.is_alive() for thread in threads)
    finally:
        stopped.set()
        for thread in threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()


def xids(node: WatchedNode, *ignored: int) -> XidWatcher:
    return XidWatcher(node.inventory, node.health.report, ignored, SOON)


def links(node: WatchedNode) -> LinkWatcher:
    return LinkWatcher(node.inventory, node.health.report, SOON)


def ports(node: WatchedNode) -> PortWatcher:
    return PortWatcher(node.inventory, node.health.report, node.files.sysfs, SOON)


def with_mig(machine: FakeMachine, gpu: int) -> FakeMachine:
    """Cut a GPU into the MIG instances 1/0 and 2/0, and 2/1 in the same GPU instance."""
    slots = ("slots 7", "mig 0 MIG-a 1 0 10", "mig 1 MIG-b 2 0 10", "mig 2 MIG-c 2 1 10")
    return machine.with_gpu(gpu, extra=slots)


# Xids --------------------------------------------------------------------------------------


def test_an_xid_makes_only_its_gpu_unhealthy(node_of: WatchedNodes) -> None:
    node = node_of(hgx(4))
    with running(XidWatcher(node.inventory, node.health.report)):
        node.news.event(2, XID, 79)
        node.becomes({"gpu-2": {"xid"}})
        assert node.texts() == {"gpu-2": "Xid 79"}


@pytest.mark.parametrize("xid", [*sorted(APPLICATION_XIDS), 154, 14])
def test_an_ignored_xid_makes_no_device_unhealthy(xid: int, node_of: WatchedNodes) -> None:
    node = node_of(hgx())
    with running(xids(node, 14)):
        node.news.event(0, XID, xid)
        node.news.event(1, XID, 48)
        node.becomes({"gpu-1": {"xid"}})


def test_several_xids_in_a_row_are_all_seen(node_of: WatchedNodes) -> None:
    node = node_of(hgx(4))
    with running(xids(node)):
        for gpu in range(4):
            node.news.event(gpu, XID, 48)
        node.becomes({f"gpu-{gpu}": {"xid"} for gpu in range(4)})


def test_an_event_of_a_mig_instance_makes_only_that_one_unhealthy(node_of: WatchedNodes) -> None:
    node = node_of(with_mig(hgx(), 1))
    with running(xids(node)):
        node.news.event(1, XID, 94, mig=(2, 1))
        node.becomes({"gpu-1-mig-2-1": {"xid"}})


def test_an_event_of_a_gpu_instance_makes_all_in_it_unhealthy(node_of: WatchedNodes) -> None:
    node = node_of(with_mig(hgx(), 1))
    with running(xids(node)):
        node.news.event(1, XID, 94, mig=(2, 0xFFFFFFFF))
        node.becomes({"gpu-1-mig-2-0": {"xid"}, "gpu-1-mig-2-1": {"xid"}})


@pytest.mark.parametrize("mig", [nvml_machine.NO_MIG, (5, 0)])
def test_an_event_of_an_unknown_instance_makes_the_whole_gpu_unhealthy(
    mig: tuple[int, int], node_of: WatchedNodes
) -> None:
    node = node_of(with_mig(hgx(), 1))
    with running(xids(node)):
        node.news.event(1, XID, 79, mig=mig)
        parts = ("gpu-1", "gpu-1-mig-1-0", "gpu-1-mig-2-0", "gpu-1-mig-2-1")
        node.becomes({name: {"xid"} for name in parts})


def test_a_double_bit_error_makes_a_gpu_unhealthy(node_of: WatchedNodes) -> None:
    node = node_of(hgx())
    with running(xids(node)):
        node.news.event(0, DOUBLE_BIT)
        node.becomes({"gpu-0": {"ecc"}})


def test_gpus_are_watched_for_the_events_that_they_support(node_of: WatchedNodes) -> None:
    machine = hgx(3).with_gpu(0, extra=(f"events {XID}",)).with_gpu(1, extra=("events 0",))
    node = node_of(machine)
    with running(xids(node)):
        for gpu in range(3):
            node.news.event(gpu, DOUBLE_BIT)
            node.news.event(gpu, XID, 62)
        node.becomes({"gpu-0": {"xid"}, "gpu-2": {"ecc", "xid"}})


# Recovery ----------------------------------------------------------------------------------


def test_an_xid_is_over_when_the_driver_no_longer_wants_a_recovery(node_of: WatchedNodes) -> None:
    node = node_of(hgx())
    with running(xids(node)):
        node.news.event(0, XID, 95)
        node.news.event(0, DOUBLE_BIT)
        node.becomes({"gpu-0": {"ecc", "xid"}})
        node.news.tell("action", 0, 1)
        node.becomes({"gpu-0": {"ecc", "recovery", "xid"}})
        assert "the driver wants a reset of the GPU" in node.texts()["gpu-0"]
        node.news.tell("action", 0, 0)
        node.becomes({})


def test_an_xid_stays_while_the_driver_wants_no_recovery_for_it(node_of: WatchedNodes) -> None:
    node = node_of(hgx(3).with_gpu(0, extra=("action 0",)))
    with running(xids(node)):
        node.news.event(0, XID, 95)
        node.news.event(1, XID, 95)
        node.news.tell("action", 2, 2)
        node.becomes({"gpu-0": {"xid"}, "gpu-1": {"xid"}, "gpu-2": {"recovery"}})
        node.news.tell("action", 2, 0)
        node.becomes({"gpu-0": {"xid"}, "gpu-1": {"xid"}})


def test_a_gpu_that_waits_for_its_reset_is_unhealthy_from_the_start(node_of: WatchedNodes) -> None:
    node = node_of(hgx().with_gpu(1, extra=("action 4",)))
    with running(xids(node)):
        node.becomes({"gpu-1": {"recovery"}})


# Lost GPUs ---------------------------------------------------------------------------------


def test_a_lost_gpu_is_unhealthy_until_it_answers_again(node_of: WatchedNodes) -> None:
    node = node_of(with_mig(hgx(), 0))
    parts = ("gpu-0", "gpu-0-mig-1-0", "gpu-0-mig-2-0", "gpu-0-mig-2-1")
    with running(xids(node)):
        node.news.event(0, XID, 79)
        node.becomes({name: {"xid"} for name in parts})
        node.news.tell("error", 0, LOST)
        node.becomes({name: {"lost", "xid"} for name in parts})
        node.news.tell("error", 0, 0)
        node.becomes({})
        node.news.event(0, XID, 48)
        node.becomes({name: {"xid"} for name in parts})


def test_a_gpu_that_comes_back_but_needs_a_reset_stays_unhealthy(node_of: WatchedNodes) -> None:
    node = node_of(hgx())
    with running(xids(node)):
        node.news.event(0, XID, 79)
        node.becomes({"gpu-0": {"xid"}})
        node.news.tell("error", 0, LOST)
        node.becomes({"gpu-0": {"lost", "xid"}})
        node.news.tell("action", 0, 1)
        node.news.tell("error", 0, 0)
        node.becomes({"gpu-0": {"recovery", "xid"}})
        node.news.tell("action", 0, 0)
        node.becomes({})


def test_the_other_gpus_are_watched_while_one_is_lost(node_of: WatchedNodes) -> None:
    node = node_of(hgx(3))
    with running(xids(node)):
        node.news.tell("error", 1, LOST)
        node.becomes({"gpu-1": {"lost"}})
        node.news.event(2, XID, 48)
        node.becomes({"gpu-1": {"lost"}, "gpu-2": {"xid"}})


def test_a_gpu_that_nvml_no_longer_finds_is_lost(node_of: WatchedNodes) -> None:
    node = node_of(hgx())
    with running(xids(node)):
        node.news.tell("handle", 0, NOT_FOUND)
        node.news.tell("error", 0, LOST)
        node.becomes({"gpu-0": {"lost"}})
        node.news.tell("error", 0, 0)  # its old handle would answer, but NVML was reopened
        node.news.event(1, XID, 48)
        node.becomes({"gpu-0": {"lost"}, "gpu-1": {"xid"}})
        node.news.tell("handle", 0, 0)
        node.becomes({"gpu-1": {"xid"}})


def test_another_error_is_logged_and_makes_no_gpu_unhealthy(
    node_of: WatchedNodes, caplog: pytest.LogCaptureFixture
) -> None:
    node = node_of(hgx())
    node.news.tell("error", 0, UNKNOWN)
    with running(xids(node)):
        node.news.event(1, XID, 48)
        node.becomes({"gpu-1": {"xid"}})
        node.news.tell("error", 0, 0)
        node.news.event(0, XID, 62)
        node.becomes({"gpu-0": {"xid"}, "gpu-1": {"xid"}})
    texts = [one.getMessage() for one in caplog.records]
    (failure,) = [text for text in texts if "cannot be queried" in text]
    assert failure.startswith("GPU 0 cannot be queried: ")


# NVLinks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("compute", "states"), [(80, "call"), (90, "field")])
def test_a_gpu_with_fewer_nvlinks_is_unhealthy_until_they_are_back(
    compute: int, states: str, node_of: WatchedNodes
) -> None:
    machine = hgx()
    for gpu in range(2):
        machine = machine.with_gpu(gpu, compute=compute, states=states)
    node = node_of(machine)
    watcher = links(node)
    watcher.run(Rounds(1))
    with running(watcher):
        node.news.tell("link", 1, 3, 0)
        node.becomes({"gpu-1": {"nvlink"}})
        assert node.texts() == {"gpu-1": "17 of 18 NVLinks are active"}
        node.news.tell("link", 1, 3, 1)
        node.becomes({})


def test_links_that_were_down_at_the_start_count_once_they_are_up(node_of: WatchedNodes) -> None:
    node = node_of(hgx().with_gpu(0, links=(FakeLink("0000:05:00.0", state=0),) * 2))
    watcher = links(node)
    watcher.run(Rounds(1))
    node.news.tell("link", 0, 0, 1)
    watcher.run(Rounds(1))
    assert node.unhealthy() == {}
    node.news.tell("link", 0, 0, 0)
    watcher.run(Rounds(1))
    assert node.texts() == {"gpu-0": "0 of 1 NVLinks are active"}


def test_lost_nvlinks_do_not_affect_mig_instances(node_of: WatchedNodes) -> None:
    node = node_of(with_mig(hgx(), 0))
    watcher = links(node)
    watcher.run(Rounds(1))
    node.news.tell("link", 0, 0, 0)
    watcher.run(Rounds(1))
    assert node.unhealthy() == {"gpu-0": {"nvlink"}}


@pytest.mark.parametrize("how", ["error", "handle"])
def test_a_lost_gpu_keeps_the_state_of_its_nvlinks(how: str, node_of: WatchedNodes) -> None:
    node = node_of(hgx())
    watcher = links(node)
    watcher.run(Rounds(1))
    node.news.tell("link", 0, 0, 0)
    watcher.run(Rounds(1))
    for gpu in range(2):
        node.news.tell(how, gpu, LOST)
    node.news.tell("link", 0, 0, 1)
    watcher.run(Rounds(1))
    assert node.unhealthy() == {"gpu-0": {"nvlink"}}
    node.news.tell(how, 0, 0)
    watcher.run(Rounds(1))
    assert node.unhealthy() == {}


# Ports -------------------------------------------------------------------------------------


def test_a_nic_is_unhealthy_while_its_port_is_down(node_of: WatchedNodes) -> None:
    node = node_of(hgx())
    with running(ports(node)):
        node.set_port("mlx5_1", "1: DOWN")
        node.becomes({"nic-mlx5-1": {"port"}})
        assert node.texts() == {"nic-mlx5-1": "port 1 of mlx5_1 is DOWN"}
        node.set_port("mlx5_1", "4: ACTIVE")
        node.becomes({})


@pytest.mark.parametrize("state", ["1: DOWN", "2: INIT", "3: ARMED", "5: ACTIVE_DEFER", ""])
def test_a_nic_is_unhealthy_if_its_port_is_not_active_at_the_start(
    state: str, node_of: WatchedNodes
) -> None:
    node = node_of(hgx())
    node.set_port("mlx5_0", state)
    ports(node).run(Rounds(1))
    assert node.unhealthy() == {"nic-mlx5-0": {"port"}}


def test_only_the_discovered_port_counts(node_of: WatchedNodes) -> None:
    machine = hgx(1)
    nic = replace(machine.nics[0], ports=(FakePort(state="1: DOWN"), FakePort()))
    node = node_of(replace(machine, nics=(nic,)))
    watcher = ports(node)
    watcher.run(Rounds(1))
    assert node.unhealthy() == {}
    node.set_port("mlx5_0", "4: ACTIVE", 1)
    node.set_port("mlx5_0", "1: DOWN", 2)
    watcher.run(Rounds(1))
    assert node.texts() == {"nic-mlx5-0": "port 2 of mlx5_0 is DOWN"}


def test_a_nic_is_unhealthy_while_its_port_is_gone(node_of: WatchedNodes) -> None:
    node = node_of(hgx())
    watcher = ports(node)
    node.port("mlx5_0").unlink()
    watcher.run(Rounds(1))
    assert node.texts() == {"nic-mlx5-0": "port 1 of mlx5_0 is not there"}
    node.set_port("mlx5_0", "4: ACTIVE")
    watcher.run(Rounds(1))
    assert node.unhealthy() == {}


def test_an_unreadable_port_is_logged_once_and_the_others_are_watched(
    node_of: WatchedNodes, caplog: pytest.LogCaptureFixture
) -> None:
    node = node_of(hgx())
    node.port("mlx5_0").unlink()
    node.port("mlx5_0").mkdir()  # reading a folder is an error to root, too
    node.set_port("mlx5_1", "1: DOWN")
    ports(node).run(Rounds(3))
    assert node.unhealthy() == {"nic-mlx5-1": {"port"}}
    assert len([one for one in caplog.records if "cannot be read" in one.getMessage()]) == 1


# Threads -----------------------------------------------------------------------------------


class Rounds(threading.Event):
    """Stops a watcher after a number of checks; ``waits`` are in seconds."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self._count = count

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        if len(self.waits) == self._count:
            self.set()
        return self.is_set()


def all_of(node: WatchedNode, seconds: float) -> list[Watcher]:
    inventory, report = node.inventory, node.health.report
    return [
        XidWatcher(inventory, report, seconds=seconds),
        LinkWatcher(inventory, report, seconds),
        PortWatcher(inventory, report, node.files.sysfs, seconds),
    ]


def test_all_watchers_run_at_once_and_stop(node_of: WatchedNodes) -> None:
    node = node_of(hgx(3))
    watchers = all_of(node, 1.0)
    watchers[1].run(Rounds(1))
    with running(*watchers):
        node.news.event(0, XID, 79)
        node.news.tell("link", 1, 0, 0)
        node.set_port("mlx5_2", "1: DOWN")
        node.becomes({"gpu-0": {"xid"}, "gpu-1": {"nvlink"}, "nic-mlx5-2": {"port"}})


def test_a_watcher_without_nvml_retries_and_logs_once(
    node_of: WatchedNodes, caplog: pytest.LogCaptureFixture
) -> None:
    node = node_of(hgx())
    node.files.stub.write_text(f"init {pynvml.NVML_ERROR_DRIVER_NOT_LOADED}\n")
    for watcher in all_of(node, 7.0)[:2]:
        caplog.clear()
        rounds = Rounds(3)
        watcher.run(rounds)
        assert rounds.waits == [7.0] * 3
        assert [one.levelno for one in caplog.records] == [logging.WARNING]
        assert "cannot be watched" in caplog.text
    assert node.unhealthy() == {}


def test_a_watcher_can_start_before_nvml(node_of: WatchedNodes) -> None:
    node = node_of(hgx())
    machine = node.files.stub.rename(node.files.stub.with_name("later"))
    node.files.stub.write_text(f"init {pynvml.NVML_ERROR_DRIVER_NOT_LOADED}\n")
    with running(xids(node)):
        node.news.event(0, XID, 79)
        machine.replace(node.files.stub)
        node.becomes({"gpu-0": {"xid"}})


def test_an_error_in_the_report_does_not_end_a_watcher(node_of: WatchedNodes) -> None:
    node = node_of(hgx())
    node.set_port("mlx5_0", "1: DOWN")
    failures = iter([RuntimeError("not now")])

    def report(device: str, cause: str, text: str) -> bool:
        for failure in failures:
            raise failure
        return node.health.report(device, cause, text)

    PortWatcher(node.inventory, report, node.files.sysfs).run(Rounds(2))
    assert node.unhealthy() == {"nic-mlx5-0": {"port"}}


# The driver's version ----------------------------------------------------------------------


def test_gpus_carry_the_version_of_the_driver(node_of: WatchedNodes) -> None:
    node = node_of(replace(hgx(), driver="580.65.06"))
    assert node.inventory.machine.platform.driver == "580.65.06"
    version = node.inventory.devices["gpu-0"].device.attributes["driverVersion"]
    assert version.version == "580.65.6"


def test_an_unknown_driver_version_is_not_published(node_of: WatchedNodes) -> None:
    node = node_of(hgx())
    assert node.inventory.machine.platform.driver == ""
    assert "driverVersion" not in node.inventory.devices["gpu-0"].device.attributes


def test_an_xid_and_a_port_reach_the_slice_and_leave_it(node_of: WatchedNodes) -> None:
    node = node_of(hgx(4))
    cluster = MemoryCluster()
    cluster.create(make_node("here"))
    api = EmbeddedApi(cluster)

    def tainted() -> dict[str, list[str]]:
        with api.lock:
            slices = cluster.list(ResourceSlice)
        devices = [device for one in slices for device in one.spec.devices]
        return {one.name: [taint.key for taint in one.taints] for one in devices if one.taints}

    with short_folder() as root:
        sockets = Sockets(root / "registry", root / "plugins")
        files = DeviceFiles(None)
        driver = NodeDriver(
            "here", node.inventory, api, node.health, files, sockets, root / "cdi", root / "none"
        )
        driver.start()
        kubelet = Kubelet(root)
        kubelet.advance()
        nic = next(name for name in node.inventory.devices if name.startswith("nic-"))
        with running(xids(node), ports(node)):
            eventually(lambda: driver.published)
            node.news.event(3, XID, 79)
            eventually(lambda: tainted() == {"gpu-3": ["dra.example/xid"]}, 5)
            hca = node.inventory.machine.nics[node.inventory.devices[nic].nic or 0].name
            node.set_port(hca, "1: DOWN")
            eventually(lambda: set(tainted()) == {"gpu-3", nic}, 5)
            node.set_port(hca, "4: ACTIVE")
            eventually(lambda: set(tainted()) == {"gpu-3"}, 5)
        driver.stop()
        kubelet.stop()
