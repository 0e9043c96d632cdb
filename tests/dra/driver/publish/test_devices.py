"""The devices of a machine, and how its slices follow them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.dra.driver.driver_stage import EmbeddedApi

from bayplan.api import ObjectMeta, ResourceSlice
from bayplan.api.dra import DeviceTaint
from bayplan.api.validation import validate
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.errors import BayplanError
from bayplan.topology.machine.bandwidth import inter_socket, nvlink, pcie
from bayplan.topology.machine.builder import MachineBuilder
from bayplan.topology.machine.model import Gpu, Machine, Mig, Nic, Platform
from bayplan.topology.machine.readers.machinefile import known_machine, known_machines
from bayplan.topology.machine.readers.sysfs import Sysfs
from bayplan_dra.driver.publish.devices import DRIVER, NodeInventory, inventory_of
from bayplan_dra.driver.publish.publisher import Owner, Publisher, specs_of

NUMA = "resource.kubernetes.io/numaNode"
GIB = 2**30


def small(
    gpus: int = 2, mig: tuple[Mig, ...] = (), numa: int | None = 0, lost: str = ""
) -> Machine:
    """Return a machine of one socket with two NUMA nodes; everything hangs on the first."""
    platform = Platform(driver="580.65.06")
    builder = MachineBuilder("small", nvlink(4), inter_socket("sapphire-rapids"), platform=platform)
    builder.socket("socket 0")
    builder.numa("numa 0", "socket 0", numa)
    builder.numa("numa 1", "socket 0", 1)
    for index in range(gpus):
        root = f"pci0000:{index:02x}"
        builder.root(root, "numa 0")
        gpu = Gpu(
            index,
            f"GPU-{index}",
            f"0000:{index:02x}:01.0",
            "NVIDIA H100 80GB HBM3",
            numa,
            pcie_root=root,
            memory=80 * GIB,
            mig=mig if index == 0 else (),
            lost=lost if index == 0 else "",
            compute=90,
            minor=index,
        )
        builder.gpu(gpu, root, pcie(5))
    builder.root("root of NICs", "numa 0")
    builder.nic(
        Nic(0, "mlx5_0", numa=numa, rate=400, netdev="eth1", rail=3), "root of NICs", pcie(5)
    )
    return builder.build()


def attributes(inventory: NodeInventory, name: str) -> dict[str, object]:
    return {
        key: next(v for v in msgspec.structs.astuple(value) if v is not None)
        for key, value in inventory.devices[name].device.attributes.items()
    }


def test_a_gpu_has_an_attribute_for_all_that_is_known() -> None:
    found = attributes(inventory_of(small()), "gpu-1")
    assert found == {
        "type": "gpu",
        "index": 1,
        "minor": 1,
        "uuid": "GPU-1",
        "productName": "NVIDIA H100 80GB HBM3",
        "architecture": "Hopper",
        "cudaComputeCapability": "9.0.0",
        "driverVersion": "580.65.6",
        "resource.kubernetes.io/pciBusID": "0000:01:01.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:01",
        NUMA: 0,
    }


def test_a_nic_has_an_attribute_for_all_that_is_known() -> None:
    found = attributes(inventory_of(small()), "nic-mlx5-0")
    assert found["rdmaDevice"] == "mlx5_0"
    assert (found["ifName"], found["linkSpeed"], found["rail"]) == ("eth1", 400, 3)


def test_an_ethernet_nic_without_rdma_is_published_with_its_place(tmp_path: Path) -> None:
    at = tmp_path / "devices" / "pci0000:80" / "0000:81:00.0"
    (at / "net" / "eth5").mkdir(parents=True)
    (at / "numa_node").write_text("1\n")
    (at / "net" / "eth5" / "speed").write_text("25000\n")
    (at / "net" / "eth5" / "device").symlink_to(at)
    rdma = tmp_path / "devices" / "pci0000:80" / "0000:82:00.0"
    (rdma / "net" / "eth6").mkdir(parents=True)
    (rdma / "infiniband").mkdir()
    (rdma / "net" / "eth6" / "device").symlink_to(rdma)
    for folder, name, target in (
        ("bus/pci/devices", "0000:81:00.0", at),
        ("bus/pci/devices", "0000:82:00.0", rdma),
        ("class/net", "eth5", at / "net" / "eth5"),
        ("class/net", "eth6", rdma / "net" / "eth6"),
    ):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).symlink_to(target)
    (tmp_path / "class" / "net" / "lo").mkdir()
    found = inventory_of(small(), netdevs=Sysfs(tmp_path).netdevs())
    assert attributes(found, "nic-eth5") == {
        "type": "nic",
        "ifName": "eth5",
        "linkLayer": "Ethernet",
        "linkSpeed": 25,
        "storage": False,
        "resource.kubernetes.io/pciBusID": "0000:81:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:80",
        NUMA: 1,
    }
    assert "nic-eth6" not in found.devices


def test_the_numa_node_can_be_a_list_with_its_socket() -> None:
    found = attributes(inventory_of(small(), numa="list"), "gpu-0")
    assert found[NUMA] == (0, 1)


@pytest.mark.parametrize("form", ["int", "list"])
def test_an_unknown_numa_node_is_not_published(form: str) -> None:
    found = inventory_of(small(numa=None), numa="int" if form == "int" else "list")
    assert all(NUMA not in attributes(found, name) for name in found.devices)


def test_a_lost_gpu_is_left_out_and_reported() -> None:
    found = inventory_of(small(lost="NVML: GPU is lost"))
    assert list(found.devices) == ["gpu-1", "nic-mlx5-0"]
    assert found.left_out == ("GPU0: NVML: GPU is lost",)


def test_mig_instances_and_their_gpu_consume_one_counter_set() -> None:
    instances = (Mig("MIG-a", 1, 0, 40 * GIB), Mig("MIG-b", 2, 0, 40 * GIB))
    found = inventory_of(small(mig=instances))
    (counters,) = found.counters
    uses = {
        name: device.device.consumes_counters[0].counters["instances"].value.units
        for name, device in found.devices.items()
        if device.device.consumes_counters
    }
    assert uses == {"gpu-0": 2, "gpu-0-mig-1-0": 1, "gpu-0-mig-2-0": 1}
    assert counters.counters["instances"].value.units == 2
    assert attributes(found, "gpu-0-mig-1-0")["parentUUID"] == "GPU-0"


@pytest.mark.parametrize("name", known_machines())
def test_nvlink_groups_are_nested_and_of_their_size(name: str) -> None:
    found = inventory_of(known_machine(name))
    members: dict[int, dict[object, set[str]]] = {2: {}, 4: {}, 8: {}}
    for device in (one for one in found.devices if one.startswith("gpu")):
        own = attributes(found, device)
        for size, groups in members.items():
            if f"nvlinkGroup{size}" in own:
                groups.setdefault(own[f"nvlinkGroup{size}"], set()).add(device)
    for size, groups in members.items():
        assert all(len(group) == size for group in groups.values())
    for small_size, large_size in ((2, 4), (4, 8)):
        for group in members[large_size].values():
            parts = [part for part in members[small_size].values() if part & group]
            assert all(part <= group for part in parts)
    assert bool(members[2]) == (name != "l40s-pcie")


def test_groups_consist_of_published_gpus() -> None:
    found = inventory_of(known_machine("dgx-h100"), gpus=frozenset(range(2, 8)))
    fours = [attributes(found, f"gpu-{index}").get("nvlinkGroup4") for index in range(2, 8)]
    assert sorted(fours, key=str) == [0, 0, 0, 0, None, None]
    twos = [attributes(found, f"gpu-{index}")["nvlinkGroup2"] for index in range(2, 8)]
    assert sorted(twos, key=str) == [0, 0, 1, 1, 2, 2]


def test_a_gpu_and_the_nic_at_its_switch_have_one_root() -> None:
    found = inventory_of(known_machine("dgx-h100"))
    root = "resource.kubernetes.io/pcieRoot"
    assert attributes(found, "gpu-5")[root] == attributes(found, "nic-mlx5-9")[root]


@pytest.mark.parametrize("name", known_machines())
@pytest.mark.parametrize("numa", ["int", "list"])
def test_the_api_server_accepts_every_slice(name: str, numa: str) -> None:
    found = inventory_of(known_machine(name), "int" if numa == "int" else "list", cpus=True)
    devices = [one.device for one in found.devices.values()]
    for spec in specs_of(DRIVER, "n", devices, found):
        assert list(validate(ResourceSlice(spec, ObjectMeta(name="s")))) == []


# Publishing ----------------------------------------------------------------------------------


def publisher_on(cluster: MemoryCluster) -> tuple[EmbeddedApi, Publisher]:
    api = EmbeddedApi(cluster)
    return api, Publisher(api, DRIVER, Owner("n", "uid"))


def pools(cluster: MemoryCluster) -> set[tuple[int, int]]:
    return {
        (one.spec.pool.generation, one.spec.pool.resource_slice_count)
        for one in cluster.list(ResourceSlice)
    }


def test_a_node_without_devices_publishes_one_empty_slice() -> None:
    cluster = MemoryCluster()
    _, publisher = publisher_on(cluster)
    publisher.publish(NodeInventory(small(), {}), {})
    (found,) = cluster.list(ResourceSlice)
    assert found.spec.devices == ()


def test_many_devices_are_spread_over_slices_of_one_generation() -> None:
    cluster = MemoryCluster()
    api, publisher = publisher_on(cluster)
    inventory = inventory_of(small(100))
    assert publisher.publish(inventory, {}) == 2
    assert pools(cluster) == {(1, 2)}
    publisher.publish(inventory, {"gpu-70": (DeviceTaint("x", "NoSchedule"),)})
    assert api.writes == ["create", "create", "update"]
    assert pools(cluster) == {(1, 2)}
    fewer = dict(list(inventory.devices.items())[:10])
    publisher.publish(replace(inventory, devices=fewer), {})
    assert pools(cluster) == {(2, 1)}


def test_two_slices_with_one_number_become_one() -> None:
    cluster = MemoryCluster()
    _, publisher = publisher_on(cluster)
    publisher.publish(inventory_of(small()), {})
    (found,) = cluster.list(ResourceSlice)
    meta = msgspec.structs.replace(
        found.metadata, name=f"00000-{DRIVER}-n-twin", uid="", resource_version=""
    )
    cluster.create(msgspec.structs.replace(found, metadata=meta))
    publisher.publish(inventory_of(small()), {})
    assert len(cluster.list(ResourceSlice)) == 1


def test_a_device_that_consumes_unknown_counters_is_refused() -> None:
    found = inventory_of(small(mig=(Mig("MIG-a", 1, 0, GIB),)))
    _, publisher = publisher_on(MemoryCluster())
    with pytest.raises(BayplanError, match="gpu-0 consumes counters that gpu-0 does not have"):
        publisher.publish(replace(found, counters=()), {})


@settings(max_examples=40, deadline=None, derandomize=True)
@given(counts=st.lists(st.integers(1, 150), min_size=1, max_size=6), unhealthy=st.integers(0, 149))
def test_slices_agree_whatever_was_published_before(counts: list[int], unhealthy: int) -> None:
    cluster = MemoryCluster()
    _, publisher = publisher_on(cluster)
    whole = inventory_of(ALL)
    highest = 0
    for count in counts:
        devices = dict(list(whole.devices.items())[:count])
        taints = {f"gpu-{unhealthy}": (DeviceTaint("x", "NoSchedule"),)}
        publisher.publish(replace(whole, devices=devices), taints)
        slices = cluster.list(ResourceSlice)
        ((generation, size),) = pools(cluster)
        assert size == len(slices)
        assert generation >= highest
        highest = generation
        assert sorted(d.name for one in slices for d in one.spec.devices) == sorted(devices)
        assert publisher.publish(replace(whole, devices=devices), taints) == 0


ALL = small(150)
