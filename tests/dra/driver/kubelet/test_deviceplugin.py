"""The device plugin as the kubelet sees it, over its socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from msgspec.structs import replace
from tests.dra.driver.device_manager import DeviceManager, NotAdmitted
from tests.dra.driver.driver_stage import eventually, short_folder

from bayplan.api import Pod
from bayplan.errors import BayplanError
from bayplan.testing import Cluster, assert_placed, make_node, make_pod
from bayplan.topology.machine.model import Machine, Mig
from bayplan.topology.machine.readers.machinefile import known_machine
from bayplan_dra.driver.kubelet.deviceplugin import DevicePlugin, refuse_shared, split
from bayplan_dra.driver.prepare.checkpoint import Checkpoint, PreparedClaim, PreparedDevice
from bayplan_dra.driver.prepare.edits import DeviceFiles
from bayplan_dra.driver.prepare.handover import Handover
from bayplan_dra.driver.proto import deviceplugin_pb2 as api
from bayplan_dra.driver.publish.devices import DRIVER, inventory_of
from bayplan_dra.driver.publish.health import HealthTracker

MACHINE = known_machine("dgx-1v")
ALL = [f"gpu-{index}" for index in range(8)]
ALL_WELL = dict.fromkeys(ALL, "Healthy")
QUADS = ({0, 1, 2, 3}, {4, 5, 6, 7})
SECONDS = 60.0


class PluginNode:
    """A kubelet and a device plugin."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubelet = DeviceManager(folder)
        self.kubelet.start()
        self._plugin: DevicePlugin | None = None

    def run(
        self, machine: Machine = MACHINE, files: DeviceFiles | None = None, **more: Any
    ) -> DevicePlugin:
        """Start a plugin for all GPUs of a machine."""
        inventory = inventory_of(machine)
        self.health = HealthTracker(DRIVER, "n")
        self.health.set_devices(inventory.devices)
        plugin = DevicePlugin(
            inventory,
            self.health,
            files or DeviceFiles(None),
            Handover(self.folder / "own"),
            folder=self.folder,
            **more,
        )
        plugin.start()
        self._plugin = plugin
        return plugin

    def stop(self) -> None:
        if self._plugin is not None:
            self._plugin.stop()
        self.kubelet.stop()


@pytest.fixture
def node() -> Iterator[PluginNode]:
    with short_folder() as folder:
        found = PluginNode(folder)
        yield found
        found.stop()


def with_uuids(machine: Machine) -> Machine:
    gpus = tuple(replace(gpu, uuid=f"GPU-{gpu.index}") for gpu in machine.gpus)
    return replace(machine, gpus=gpus)


def refusal(error: pytest.ExceptionInfo[grpc.RpcError]) -> tuple[grpc.StatusCode, str]:
    return error.value.code(), error.value.details() or ""


# Registration --------------------------------------------------------------------------------


def test_it_registers_at_start(node: PluginNode) -> None:
    plugin = node.run()
    request = node.kubelet.registered()
    assert (request.version, request.endpoint) == ("v1beta1", "bayplan-gpu.sock")
    assert request.resource_name == "nvidia.com/gpu"
    assert request.options.get_preferred_allocation_available
    assert not request.options.pre_start_required
    assert plugin.registered.wait(SECONDS)


def test_it_registers_the_resource_that_it_is_given(node: PluginNode) -> None:
    node.run(resource="example.com/gpu")
    assert node.kubelet.registered().resource_name == "example.com/gpu"


def test_it_waits_for_the_kubelet(node: PluginNode) -> None:
    node.kubelet.stop()
    plugin = node.run()
    assert not plugin.registered.is_set()
    node.kubelet.start()
    node.kubelet.registered()
    with node.kubelet.lists() as lists:
        assert next(lists) == ALL_WELL


def test_it_registers_again_when_the_kubelet_restarts(node: PluginNode) -> None:
    plugin = node.run()
    node.kubelet.registered()
    for _ in range(2):
        node.kubelet.stop()
        node.kubelet.start()
        node.kubelet.registered()
        with node.kubelet.lists() as lists:
            assert next(lists) == ALL_WELL
    assert plugin.registered.wait(SECONDS)


def test_it_listens_again_when_its_socket_was_removed(node: PluginNode) -> None:
    node.run()
    node.kubelet.registered()
    (node.folder / "bayplan-gpu.sock").unlink()
    node.kubelet.registered()
    with node.kubelet.lists() as lists:
        assert next(lists) == ALL_WELL


def test_a_refused_registration_is_retried(node: PluginNode) -> None:
    node.kubelet.refusal = "unsupported version"
    plugin = node.run()
    eventually(lambda: "kubelet.sock: unsupported version" in plugin.registration_error)
    assert not plugin.registered.is_set()
    node.kubelet.refusal = ""
    node.kubelet.registered()
    assert plugin.registered.wait(SECONDS)
    assert plugin.registration_error == ""


def test_the_options_are_those_registered(node: PluginNode) -> None:
    node.run()
    empty = api.Empty()
    options = node.kubelet.call("GetDevicePluginOptions", empty, api.DevicePluginOptions)
    assert options == node.kubelet.registered().options
    request = api.PreStartContainerRequest(devices_ids=["gpu-0"])
    answer = node.kubelet.call("PreStartContainer", request, api.PreStartContainerResponse)
    assert answer == api.PreStartContainerResponse()


def test_a_socket_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 100)
    plugin = DevicePlugin(
        inventory_of(MACHINE),
        HealthTracker(DRIVER, "n"),
        DeviceFiles(None),
        Handover(tmp_path / "own"),
        folder=folder,
    )
    with pytest.raises(BayplanError, match="at most 107"):
        plugin.start()
    plugin.stop()


def test_stopping_ends_the_streams(node: PluginNode) -> None:
    plugin = node.run()
    node.kubelet.registered()
    with node.kubelet.lists() as lists:
        next(lists)
        plugin.stop()
        assert next(lists, None) is None
    assert not (node.folder / "bayplan-gpu.sock").exists()
    assert not plugin.registered.is_set()


def test_a_kubelet_that_does_not_answer_does_not_delay_stopping(node: PluginNode) -> None:
    node.kubelet.awake.clear()
    plugin = node.run()
    eventually(lambda: plugin.registration_error)
    plugin.stop()
    assert not (node.folder / "bayplan-gpu.sock").exists()


# What is offered -----------------------------------------------------------------------------


def test_gpus_are_listed_with_their_numa_nodes(node: PluginNode) -> None:
    node.run()
    with node.kubelet.devices() as lists:
        listed = {one.ID: [place.ID for place in one.topology.nodes] for one in next(lists)}
    assert listed == {name: [index // 4] for index, name in enumerate(ALL)}


def test_gpus_are_named_by_uuid_if_it_is_known(node: PluginNode) -> None:
    node.run(with_uuids(MACHINE))
    with node.kubelet.lists() as lists:
        assert next(lists) == {f"GPU-{index}": "Healthy" for index in range(8)}


def test_gpus_in_mig_instances_and_lost_gpus_are_not_listed(
    node: PluginNode, caplog: pytest.LogCaptureFixture
) -> None:
    gpus = list(MACHINE.gpus)
    gpus[0] = replace(gpus[0], mig=(Mig("MIG-0", 1, 0),))
    gpus[5] = replace(gpus[5], lost="fell off the bus", numa=None)
    gpus[6] = replace(gpus[6], numa=None)
    node.run(replace(MACHINE, gpus=tuple(gpus)))
    with node.kubelet.devices() as lists:
        listed = {one.ID: len(one.topology.nodes) for one in next(lists)}
    assert listed == {"gpu-1": 1, "gpu-2": 1, "gpu-3": 1, "gpu-4": 1, "gpu-6": 0, "gpu-7": 1}
    assert "GPU0 is not offered: it is in MIG instances" in caplog.text


def test_the_list_follows_the_health_of_gpus(node: PluginNode) -> None:
    node.run()
    with node.kubelet.lists() as lists:
        assert next(lists) == ALL_WELL
        node.health.report("gpu-3", "xid", "Xid 79")
        assert next(lists) == ALL_WELL | {"gpu-3": "Unhealthy"}
        node.health.report("gpu-3", "xid", "")
        assert next(lists) == ALL_WELL


def test_an_unchanged_list_is_not_sent(node: PluginNode) -> None:
    node.run()
    with node.kubelet.lists() as lists:
        assert next(lists) == ALL_WELL
        node.health.report("nic-mlx5-0", "link", "down")
        node.health.wake()
        node.health.report("gpu-0", "xid", "Xid 48")
        assert next(lists) == ALL_WELL | {"gpu-0": "Unhealthy"}


# What the kubelet makes of it -----------------------------------------------------------------


def test_gpus_are_allocatable_again_soon_after_the_kubelet_restarts(node: PluginNode) -> None:
    node.run()
    eventually(lambda: node.kubelet.allocatable == 8)
    given = node.kubelet.admit("p", 2)
    node.kubelet.stop()
    node.kubelet.awake.clear()
    node.kubelet.start()
    assert node.kubelet.allocatable == 0
    with pytest.raises(NotAdmitted, match="UnexpectedAdmissionError"):
        node.kubelet.admit("q", 1)
    node.kubelet.awake.set()
    eventually(lambda: node.kubelet.allocatable == 8)
    assert node.kubelet.pods["p"] == given
    assert not given & node.kubelet.admit("r", 6)


def test_gpus_of_a_plugin_that_ended_are_not_allocatable(node: PluginNode) -> None:
    plugin = node.run()
    eventually(lambda: node.kubelet.allocatable == 8)
    node.health.report("gpu-3", "xid", "Xid 79")
    eventually(lambda: node.kubelet.allocatable == 7)
    plugin.stop()
    eventually(lambda: node.kubelet.allocatable == 0)


def test_pods_on_an_aligning_kubelet_get_gpus_of_one_numa_node_or_fail(node: PluginNode) -> None:
    node.kubelet.policy = "single-numa-node"
    node.run()
    eventually(lambda: node.kubelet.allocatable == 8)
    for name in ("p", "q"):
        given = {int(gpu.removeprefix("gpu-")) for gpu in node.kubelet.admit(name, 3)}
        assert any(given <= quad for quad in QUADS)
    with pytest.raises(NotAdmitted, match="TopologyAffinityError"):
        node.kubelet.admit("r", 2)
    node.kubelet.policy = "best-effort"
    assert len(node.kubelet.admit("r", 2)) == 2


# Which GPUs ----------------------------------------------------------------------------------


def test_four_of_eight_are_a_quad(node: PluginNode) -> None:
    node.run()
    assert node.kubelet.preferred(4, ALL) in QUADS


@pytest.mark.parametrize("must", [[5], [1, 2], [0, 4]])
def test_required_gpus_are_included(node: PluginNode, must: list[int]) -> None:
    node.run()
    chosen = node.kubelet.preferred(4, ALL, [f"gpu-{index}" for index in must])
    assert len(chosen) == 4
    assert chosen >= set(must)
    if must != [0, 4]:
        assert chosen in QUADS


def test_only_gpus_that_are_free_are_chosen(node: PluginNode) -> None:
    node.run()
    free = ["gpu-7", "gpu-3", "gpu-0", "gpu-1"]
    assert node.kubelet.preferred(2, free) == {0, 3}


def test_the_first_gpus_are_taken_if_no_set_is_possible(node: PluginNode) -> None:
    node.run()
    assert node.kubelet.preferred(4, ["gpu-6", "gpu-1"], ["gpu-1"]) == {1, 6}


def test_unknown_gpus_cannot_be_preferred(node: PluginNode) -> None:
    node.run()
    with pytest.raises(grpc.RpcError) as error:
        node.kubelet.preferred(2, [*ALL, "gpu-99"])
    code, text = refusal(error)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith('there is no GPU "gpu-99" here')


@pytest.mark.parametrize(
    ("count", "must", "text"),
    [
        (0, [], "expected 1 GPUs or more, got 0"),
        (1, ["gpu-0", "gpu-1"], "expected 2 GPUs or more, got 1"),
    ],
)
def test_impossible_counts_are_refused(
    node: PluginNode, count: int, must: list[str], text: str
) -> None:
    node.run()
    with pytest.raises(grpc.RpcError) as error:
        node.kubelet.preferred(count, ALL, must)
    assert refusal(error) == (grpc.StatusCode.INVALID_ARGUMENT, text)


# What containers get -------------------------------------------------------------------------


def test_a_container_gets_its_ring_and_its_environment(node: PluginNode) -> None:
    node.run(with_uuids(MACHINE))
    (given,) = node.kubelet.allocate(["GPU-3", "GPU-1", "GPU-0", "GPU-2"])
    assert dict(given.annotations) == {
        "bayplan.dev/gpus": "0,1,2,3",
        "gpu.topology/ring-order": "0,1,2,3",
        "gpu.topology/bandwidth": "100",
    }
    assert given.envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-0,GPU-1,GPU-2,GPU-3"
    assert given.envs["CUDA_VISIBLE_DEVICES"] == "GPU-0,GPU-1,GPU-2,GPU-3"
    assert given.envs["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"
    assert not given.mounts


def test_gpus_are_in_the_order_of_their_ring(node: PluginNode) -> None:
    node.run(with_uuids(MACHINE))
    (given,) = node.kubelet.allocate([f"GPU-{index}" for index in (0, 1, 4, 5, 6, 7)])
    order = given.annotations["gpu.topology/ring-order"].split(",")
    assert order != sorted(order)
    assert sorted(order) == ["0", "1", "4", "5", "6", "7"]
    for name in ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        assert given.envs[name] == ",".join(f"GPU-{index}" for index in order)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_a_container_gets_the_annotations_of_the_scheduler(node: PluginNode, count: int) -> None:
    labels = {"bayplan.dev/machine": "dgx-1v"}
    machine_node = make_node("n", cpu=64, labels=labels, gpu=8)
    cluster = Cluster([machine_node, make_pod("p", gpu=count)])
    assert_placed(cluster, p="n")
    pod = cluster.api.get(Pod, "default/p")
    assert pod is not None
    node.run()
    chosen = node.kubelet.preferred(count, ALL)
    (given,) = node.kubelet.allocate([f"gpu-{index}" for index in chosen])
    assert given.annotations
    assert dict(given.annotations).items() <= pod.metadata.annotations.items()


def test_gpus_without_uuids_are_named_by_index(node: PluginNode) -> None:
    node.run()
    (given,) = node.kubelet.allocate(["gpu-6"])
    assert given.envs["NVIDIA_VISIBLE_DEVICES"] == "6"
    assert "CUDA_VISIBLE_DEVICES" not in given.envs
    assert dict(given.annotations) == {"bayplan.dev/gpus": "6", "gpu.topology/ring-order": "6"}


def test_the_topology_file_is_mounted_read_only(node: PluginNode) -> None:
    node.run(topology_file="/run/own/nccl-topo.xml")
    (given,) = node.kubelet.allocate(ALL)
    (mount,) = given.mounts
    assert mount.host_path == "/run/own/nccl-topo.xml"
    assert mount.container_path == given.envs["NCCL_TOPO_FILE"]
    assert mount.read_only


def test_only_existing_device_files_are_given(node: PluginNode, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    node.run(files=DeviceFiles(tmp_path))
    (given,) = node.kubelet.allocate(["gpu-0", "gpu-2"])
    paths = [f"/dev/{name}" for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia2")]
    assert [one.host_path for one in given.devices] == paths
    assert [one.container_path for one in given.devices] == paths
    assert {one.permissions for one in given.devices} == {"rw"}


def test_each_container_gets_its_own_gpus_repeatably(node: PluginNode) -> None:
    node.run()
    first = node.kubelet.allocate(["gpu-0", "gpu-3"], ["gpu-5"], [])
    assert [one.annotations["bayplan.dev/gpus"] for one in first[:2]] == ["0,3", "5"]
    assert first[2] == api.ContainerAllocateResponse()
    assert node.kubelet.allocate(["gpu-3", "gpu-0"], ["gpu-5"], []) == first


def test_an_unknown_gpu_is_refused_by_name(node: PluginNode) -> None:
    node.run()
    with pytest.raises(grpc.RpcError) as error:
        node.kubelet.allocate(["gpu-1"], ["GPU-nobody"])
    code, text = refusal(error)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert 'there is no GPU "GPU-nobody" here' in text


def test_an_unhealthy_gpu_is_refused_by_name(node: PluginNode) -> None:
    node.run()
    node.health.report("gpu-2", "xid", "Xid 79: fell off the bus")
    with pytest.raises(grpc.RpcError) as error:
        node.kubelet.allocate(["gpu-1", "gpu-2"])
    text = 'GPU "gpu-2" is unhealthy: Xid 79: fell off the bus'
    assert refusal(error) == (grpc.StatusCode.FAILED_PRECONDITION, text)
    node.health.report("gpu-2", "xid", "")
    assert node.kubelet.allocate(["gpu-1", "gpu-2"])


# Beside the DRA driver -----------------------------------------------------------------------


@pytest.mark.parametrize("own", [frozenset(), frozenset({0, 1, 2, 3}), frozenset(range(8))])
def test_each_gpu_belongs_to_the_driver_or_to_the_plugin(own: frozenset[int]) -> None:
    driver, plugin = split(MACHINE, own)
    assert not driver.devices.keys() & plugin.devices.keys()
    assert {device.gpu for device in plugin.devices.values()} == own
    left = {device.gpu for device in driver.devices.values() if device.gpu is not None}
    assert left == set(range(8)) - own
    assert {name for name in driver.devices if name.startswith("nic")} == {
        f"nic-mlx5-{index}" for index in range(4)
    }


def test_a_gpu_of_a_claim_is_not_given_away(node: PluginNode) -> None:
    checkpoint = Checkpoint(node.folder / "own" / "claims")
    device = PreparedDevice("gpu-3", ("gpu",))
    checkpoint.put(PreparedClaim("u", "default", "c", "n", (device,), "{}"))
    node.run()
    with node.kubelet.lists() as lists:
        assert next(lists) == {**ALL_WELL, "gpu-3": "Unhealthy"}
        with pytest.raises(grpc.RpcError, match='"gpu-3" is prepared for claim default/c'):
            node.kubelet.allocate(["gpu-3"])
        checkpoint.remove("u")
        assert next(lists) == ALL_WELL
    assert len(node.kubelet.allocate(["gpu-3"])) == 1


def test_an_instance_that_no_longer_offers_a_gpu_does_not_give_it_away(node: PluginNode) -> None:
    node.run()
    Handover(node.folder / "own").offer(["gpu-0"])
    assert len(node.kubelet.allocate(["gpu-0"])) == 1
    with pytest.raises(grpc.RpcError, match='"gpu-3" is no longer offered'):
        node.kubelet.allocate(["gpu-3"])


def test_a_plugin_offers_only_its_share(node: PluginNode) -> None:
    _, own = split(MACHINE, frozenset({2, 3}))
    handover = Handover(node.folder / "own")
    health = HealthTracker(DRIVER, "n")
    plugin = DevicePlugin(own, health, DeviceFiles(None), handover, folder=node.folder)
    plugin.start()
    with node.kubelet.lists() as lists:
        assert next(lists) == {"gpu-2": "Healthy", "gpu-3": "Healthy"}
    with pytest.raises(grpc.RpcError, match='no GPU "gpu-4"'):
        node.kubelet.allocate(["gpu-4"])
    plugin.stop()


def test_an_unknown_gpu_cannot_be_the_plugins() -> None:
    with pytest.raises(BayplanError, match="GPU9 does not exist: the machine has 8 GPUs"):
        split(MACHINE, frozenset({1, 9}))


def test_a_gpu_in_both_is_refused_by_name() -> None:
    ours = inventory_of(MACHINE, gpus=frozenset({0, 1, 2}))
    theirs = inventory_of(MACHINE, gpus=frozenset({2, 3}))
    with pytest.raises(BayplanError, match=r"GPU2 would be offered by the DRA driver and"):
        refuse_shared(ours, theirs)
