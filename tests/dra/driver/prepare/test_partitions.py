"""Partitions of GPUs become MIG instances when a claim is prepared, and go with it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml
import pytest
from msgspec.structs import replace
from tests.dra.driver.driver_stage import MACHINE, DriverNode, SeenHealth, devices_of, short_folder
from tests.topology.machine.readers import nvml_machine
from tests.topology.machine.readers.nvml_machine import hgx

from bayplan.api import ResourceClaim, ResourceClaimTemplate
from bayplan.errors import BayplanError
from bayplan.testing import make_object
from bayplan.topology.machine.model import Gpu
from bayplan.topology.machine.readers.discovery import discover
from bayplan.topology.machine.readers.machinefile import known_machine
from bayplan_dra.driver.app import NodeDriver
from bayplan_dra.driver.kubelet.deviceplugin import split
from bayplan_dra.driver.kubelet.sockets import Sockets
from bayplan_dra.driver.prepare.checkpoint import MigInstance
from bayplan_dra.driver.prepare.edits import DeviceFiles
from bayplan_dra.driver.prepare.nvml_instances import NvmlInstances
from bayplan_dra.driver.prepare.partitions import SimulatedInstances
from bayplan_dra.driver.publish.devices import (
    DRIVER,
    GpuPartition,
    NodeInventory,
    divisible,
    inventory_of,
)

ALL = frozenset(range(8))


@dataclass
class Instances:
    """Instances as a machine has them; they can be lost, and fail to be made."""

    made: dict[tuple[int, int, int], MigInstance] = field(default_factory=dict)
    failing: str = ""
    killed: bool = False
    count: int = 0

    def make(self, gpu: Gpu, partition: GpuPartition) -> MigInstance:
        if self.failing:
            raise BayplanError(self.failing)
        key = (gpu.index, partition.profile.id, partition.start)
        if key not in self.made:
            self.count += 1
            self.made[key] = MigInstance(f"MIG-{self.count}", self.count, 0)
        if self.killed:
            raise MemoryError("killed")
        return self.made[key]

    def remove(self, gpu: Gpu, partition: GpuPartition) -> None:
        self.made.pop((gpu.index, partition.profile.id, partition.start), None)

    def there(self, gpu: Gpu) -> Mapping[tuple[int, int], MigInstance]:
        return {key[1:]: one for key, one in self.made.items() if key[0] == gpu.index}


def divided_inventory() -> NodeInventory:
    machine = divisible(MACHINE, ALL, simulated=True)
    return inventory_of(machine, divided=ALL)


class DividedNode(DriverNode):
    """A node whose GPUs are offered as partitions."""

    def __init__(self, root: Path, instances: Instances) -> None:
        self.instances = instances
        super().__init__(root)
        for profile in ("1g.10gb", "3g.40gb", "4g.40gb", "7g.80gb"):
            self.cluster.add(template(profile))

    def made(self, **more: Any) -> NodeDriver:
        return NodeDriver(
            "n",
            divided_inventory(),
            self.api,
            SeenHealth(DRIVER, "n"),
            DeviceFiles(None),
            Sockets(self.root / "registry", self.root / "plugins", ""),
            self.root / "cdi",
            self.root / "pod-resources",
            instances=self.instances,
            patience_seconds=0.0,
            **more,
        )


def template(profile: str) -> ResourceClaimTemplate:
    expression = f'device.attributes["{DRIVER}"].?profile.orValue("") == "{profile}"'
    exactly = {"deviceClassName": "bayplan", "selectors": [{"cel": {"expression": expression}}]}
    found = make_object(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": profile, "namespace": "default"},
            "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
        }
    )
    assert isinstance(found, ResourceClaimTemplate)
    return found


@pytest.fixture
def node() -> Iterator[DividedNode]:
    with short_folder() as root:
        made = DividedNode(root, Instances())
        yield made
        made.close()


def prepared(node: DividedNode, claim: ResourceClaim) -> str:
    """Prepare a claim; return the error."""
    return node.kubelet.prepare(claim)[claim.metadata.name].error


# What is published -------------------------------------------------------------------------------


def test_every_place_is_a_device_and_takes_its_slices() -> None:
    inventory = divided_inventory()
    own = [name for name in inventory.devices if name.startswith("gpu-3")]
    assert len(own) == 25
    device = inventory.devices["gpu-3-mig-9-4-4"].device
    (consumed,) = device.consumes_counters
    assert consumed.counter_set == "gpu-3-counter-set"
    assert {name: one.value.text for name, one in consumed.counters.items()} == {
        "memory": str(40448 << 20),
        "multiprocessors": "60",
        "copy-engines": "3",
        **{f"memory-slice-{number}": "1" for number in range(4, 8)},
    }
    counters = next(one for one in inventory.counters if one.name == "gpu-3-counter-set")
    assert counters.counters["multiprocessors"].value.units == 132
    assert counters.counters["memory-slice-7"].value.units == 1
    assert device.attributes["profile"].string == "3g.40gb"
    assert device.capacity["memory"].value.units == 40448 << 20


@pytest.mark.parametrize(
    ("machine", "simulated", "message"),
    [
        (
            "l40s-pcie",
            True,
            "GPU0 cannot be divided: the MIG profiles of NVIDIA L40S are not known",
        ),
        ("dgx-h100", False, "GPU0 cannot be divided: it is not in MIG mode, which nvidia-smi -i 0"),
    ],
)
def test_a_gpu_that_cannot_be_divided_is_named(machine: str, simulated: bool, message: str) -> None:
    with pytest.raises(BayplanError) as caught:
        divisible(known_machine(machine), frozenset({0}), simulated)
    assert str(caught.value).startswith(message)


def test_a_gpu_is_not_both_divided_and_in_the_device_plugin() -> None:
    machine = divisible(MACHINE, frozenset({1}), simulated=True)
    with pytest.raises(BayplanError, match="GPU1 cannot be divided: the device plugin offers it"):
        split(machine, frozenset({0, 1}), divided=frozenset({1}))


def test_the_scheduler_keeps_room_for_large_partitions(node: DividedNode) -> None:
    names = [devices_of(node.bind(f"p{n}", "1g.10gb"))[0] for n in range(3)]
    assert len({name.partition("-mig-")[0] for name in names}) == 1
    large = devices_of(node.bind("large", "4g.40gb"))[0]
    assert large.partition("-mig-")[0] == names[0].partition("-mig-")[0]


# What is prepared --------------------------------------------------------------------------------


def test_an_instance_comes_with_its_claim_and_goes_with_it(node: DividedNode) -> None:
    claim = node.bind("p", "3g.40gb")
    assert prepared(node, claim) == ""
    assert node.said(claim)["NVIDIA_VISIBLE_DEVICES"] == "MIG-1"
    assert [key[1:] for key in node.instances.made] == [(9, 4)]
    assert node.kubelet.unprepare(claim) == {claim.metadata.name: ""}
    assert node.instances.made == {}
    assert node.cdi() == {}


def test_an_instance_that_cannot_be_made_fails_the_claim_and_leaves_nothing(
    node: DividedNode,
) -> None:
    claim = node.bind("p", "3g.40gb")
    node.instances.failing = "GPU0: cannot make 3g.40gb at 4: Insufficient Resources"
    assert "cannot make 3g.40gb at 4: Insufficient Resources" in prepared(node, claim)
    assert node.cdi() == {}
    node.instances.failing = ""
    assert prepared(node, claim) == ""


def test_partitions_of_one_gpu_are_prepared_side_by_side_and_never_overlap(
    node: DividedNode,
) -> None:
    first, second = node.bind("p", "3g.40gb"), node.bind("q", "4g.40gb")
    assert prepared(node, first) == ""
    assert prepared(node, second) == ""
    assert len({key[0] for key in node.instances.made}) == 1
    whole = node.bind("w", "7g.80gb")
    assert whole.status.allocation is not None
    (result,) = whole.status.allocation.devices.results
    (taken,) = {key[0] for key in node.instances.made}
    devices = replace(
        whole.status.allocation.devices,
        results=(replace(result, device=f"gpu-{taken}-mig-0-0-8"),),
    )
    node.reallocate(whole, replace(whole.status.allocation, devices=devices))
    assert "is prepared for claim" in prepared(node, whole)


def test_admin_access_sees_the_instance_of_another_claim_and_leaves_it(node: DividedNode) -> None:
    owner = node.bind("p", "1g.10gb")
    assert prepared(node, owner) == ""
    monitor = node.bind("m", "1g.10gb")
    assert owner.status.allocation is not None
    (result,) = owner.status.allocation.devices.results
    seen = replace(result, admin_access=True)
    devices = replace(owner.status.allocation.devices, results=(seen,))
    node.reallocate(monitor, replace(owner.status.allocation, devices=devices))
    assert prepared(node, monitor) == ""
    assert node.said(monitor)["NVIDIA_VISIBLE_DEVICES"] == "MIG-1"
    assert node.kubelet.unprepare(monitor) == {monitor.metadata.name: ""}
    assert len(node.instances.made) == 1


def test_what_a_killed_driver_leaves_is_removed_and_what_claims_have_stays(
    node: DividedNode,
) -> None:
    claim = node.bind("p", "1g.10gb")
    assert prepared(node, claim) == ""
    gpu = node.driver.inventory.machine.gpus[5]
    profile = next(one for one in gpu.profiles if one.name == "2g.20gb")
    node.instances.make(gpu, GpuPartition(profile, 2))
    node.stop(node.driver)
    node.driver = node.start()
    assert list(node.instances.made.values()) == [MigInstance("MIG-1", 1, 0)]
    assert node.said(claim)["NVIDIA_VISIBLE_DEVICES"] == "MIG-1"


def test_a_driver_that_is_killed_while_it_makes_an_instance_completes_it(
    node: DividedNode,
) -> None:
    claim = node.bind("p", "1g.10gb")
    node.instances.killed = True
    assert prepared(node, claim) != ""
    assert len(node.instances.made) == 1
    node.stop(node.driver)
    node.instances.killed = False
    node.driver = node.start()
    assert len(node.instances.made) == 1, "it belongs to a claim that was being prepared"
    assert node.said(claim)["NVIDIA_VISIBLE_DEVICES"] == "MIG-1"
    assert node.kubelet.unprepare(claim) == {claim.metadata.name: ""}
    assert node.instances.made == {}


def test_after_a_reboot_the_instance_is_made_again(node: DividedNode) -> None:
    claim = node.bind("p", "1g.10gb")
    assert prepared(node, claim) == ""
    node.instances.made.clear()
    assert node.said(claim)["NVIDIA_VISIBLE_DEVICES"] == "MIG-2"


# On NVIDIA's driver ------------------------------------------------------------------------------

PROFILES = (
    "slots 7",
    "profile 4 0 7 1 132 8 7 1 81152 8 0 MIG 7g.80gb",
    "profile 3 5 4 1 64 4 4 0 40448 4 0 MIG 4g.40gb",
    "profile 2 9 3 2 60 3 3 0 40448 4 0,4 MIG 3g.40gb",
    "profile 0 19 1 7 16 1 1 0 9984 1 0,1,2,3,4,5,6 MIG 1g.10gb",
)


@pytest.fixture(scope="module")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml_machine.compile_stub(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def gpu(stub_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A GPU in MIG mode, as NVML shows it."""
    library = ctypes.CDLL(str(stub_library))
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    written = nvml_machine.write(hgx().with_gpu(0, extra=PROFILES), tmp_path)
    monkeypatch.setenv("NVML_STUB_MACHINE", str(written.stub))
    yield discover("here", written.sysfs, written.cpuinfo).gpus[0]
    assert ctypes.c_int.in_dll(library, "stub_sessions").value == 0


def partition(gpu: Gpu, name: str, start: int) -> GpuPartition:
    return GpuPartition(next(one for one in gpu.profiles if one.name == name), start)


def test_nvml_makes_an_instance_at_its_place_once_and_removes_it(gpu: Gpu) -> None:
    maker = NvmlInstances()
    wanted = partition(gpu, "3g.40gb", 4)
    made = maker.make(gpu, wanted)
    assert made.uuid == f"MIG-{gpu.uuid}-{made.gpu_instance}"
    assert maker.make(gpu, wanted) == made
    assert maker.there(gpu) == {(9, 4): made}
    beside = maker.make(gpu, partition(gpu, "4g.40gb", 0))
    assert maker.there(gpu) == {(9, 4): made, (5, 0): beside}
    with pytest.raises(BayplanError, match=r"GPU0: cannot make 1g\.10gb at 6: "):
        maker.make(gpu, partition(gpu, "1g.10gb", 6))
    for one in (wanted, partition(gpu, "4g.40gb", 0), wanted):
        maker.remove(gpu, one)
    assert maker.there(gpu) == {}


def test_an_instance_that_is_half_made_is_completed(gpu: Gpu) -> None:
    maker = NvmlInstances()
    wanted = partition(gpu, "1g.10gb", 6)
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
    place = pynvml.c_nvmlGpuInstancePlacement_t(6, 1)
    pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, 19, ctypes.byref(place))
    pynvml.nvmlShutdown()
    half = maker.there(gpu)[19, 6]
    assert half.uuid == ""
    made = maker.make(gpu, wanted)
    assert made.uuid
    assert made.gpu_instance == half.gpu_instance
    maker.remove(gpu, wanted)


def test_a_gpu_that_is_gone_is_told(gpu: Gpu) -> None:
    gone = replace(gpu, uuid="GPU-gone")
    with pytest.raises(BayplanError, match="GPU0: cannot list instances: "):
        NvmlInstances().there(gone)


def test_a_simulated_machine_has_every_instance_that_is_asked_for() -> None:
    inventory = divided_inventory()
    gpu = inventory.machine.gpus[0]
    maker = SimulatedInstances()
    made = maker.make(gpu, partition(gpu, "2g.20gb", 2))
    assert made == maker.there(gpu)[14, 2]
