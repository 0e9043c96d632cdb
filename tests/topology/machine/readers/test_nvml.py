"""A machine as its driver shows it: the stub library through pynvml, joined with a sysfs tree."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pynvml
import pytest
from tests.topology.machine.readers.nvml_machine import (
    GPU,
    UNKNOWN,
    FakeGpu,
    FakeLink,
    FakeMachine,
    Written,
    fake_of,
    hgx,
    switched,
)

from bayplan.errors import InputError
from bayplan.topology.machine.bandwidth import nvlink, pcie
from bayplan.topology.machine.levels import Level
from bayplan.topology.machine.model import Machine, Mig
from bayplan.topology.machine.readers.discovery import discover
from bayplan.topology.machine.readers.machinefile import known_machine
from bayplan.topology.machine.readers.nvml import NvmlGpu, read_gpus

LayOut = Callable[[FakeMachine], Written]
LOST = pynvml.NVML_ERROR_GPU_IS_LOST
CLUSTER = "1b5e4f0a9d3c4c7e8a2f6b7c8d9e0f10"


@pytest.fixture
def found(lay_out: LayOut) -> Callable[[FakeMachine], Machine]:
    def find(machine: FakeMachine) -> Machine:
        written = lay_out(machine)
        return discover("here", written.sysfs, written.cpuinfo)

    return find


@pytest.fixture
def gpus(lay_out: LayOut) -> Callable[[FakeMachine], list[NvmlGpu]]:
    def read(machine: FakeMachine) -> list[NvmlGpu]:
        lay_out(machine)
        return read_gpus()

    return read


Found = Callable[[FakeMachine], Machine]
Gpus = Callable[[FakeMachine], list[NvmlGpu]]


def labels(machine: Machine) -> list[list[str]]:
    size = range(len(machine.gpus) + len(machine.nics))
    return [[machine.label(a, b) for b in size] for a in size]


class Without:
    """A library that does not export some symbols."""

    def __init__(self, library: ctypes.CDLL, *names: str) -> None:
        self._library = library
        self._names = names

    def __getattr__(self, name: str) -> object:
        if name in self._names:
            raise AttributeError(name)
        return getattr(self._library, name)


# Whole machines ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["dgx-1v", "dgx-a100", "dgx-h100", "hgx-h200", "hgx-b200", "l40s-pcie", "a100-pcie-bridged"],
)
def test_a_machine_is_found_as_it_is_known(name: str, found: Found) -> None:
    known = known_machine(name)
    machine = found(fake_of(known))
    assert labels(machine) == labels(known)
    np.testing.assert_array_equal(machine.nvlinks, known.nvlinks)
    np.testing.assert_array_equal(machine.direct, known.direct)
    np.testing.assert_array_equal(machine.bandwidth, known.bandwidth)
    np.testing.assert_array_equal(machine.effective, known.effective)
    assert machine.numa_of == known.numa_of
    assert [gpu.cpus for gpu in machine.gpus] == [gpu.cpus for gpu in known.gpus]
    assert [gpu.memory for gpu in machine.gpus] == [gpu.memory for gpu in known.gpus]
    assert machine.platform == known.platform
    assert [nic.name for nic in machine.nics] == [nic.name for nic in known.nics]
    assert [nic.rate for nic in machine.nics] == [nic.rate for nic in known.nics]
    near = [machine.near_nics(gpu) for gpu in range(len(machine))]
    assert near == [known.near_nics(gpu) for gpu in range(len(known))]
    assert machine.notes == ()


def test_gpus_and_nics_under_one_root_share_its_name(found: Found) -> None:
    machine = found(hgx())
    assert [gpu.pcie_root for gpu in machine.gpus] == ["pci0000:10", "pci0000:20"]
    assert [nic.pcie_root for nic in machine.nics] == ["pci0000:10", "pci0000:20"]


def test_sockets_are_those_that_the_kernel_names(found: Found) -> None:
    machine = found(
        replace(hgx(), nodes={0: "0-3", 1: "4-7", 2: "8-11"}, sockets={0: 0, 1: 0, 2: 1})
    )
    assert set(machine.graph["socket 0"]) == {"numa 0", "numa 1", "socket 1"}


# What NVML says of a GPU -------------------------------------------------------------------


def test_a_gpu_is_described_in_the_words_of_sysfs(gpus: Gpus) -> None:
    gpu = gpus(hgx())[1]
    assert (gpu.uuid, gpu.bus_id, gpu.memory) == ("GPU-1", "0000:23:00.0", 80 << 30)
    assert (gpu.compute, gpu.minor, gpu.module) == (90, 1, 2)
    assert gpu.switch_links == gpu.links == 18


def test_a_gpu_that_reports_no_memory_has_none(gpus: Gpus) -> None:
    gpu = gpus(hgx().with_gpu(0, memory=0))[0]
    assert gpu.memory == 0
    assert not gpu.lost


def test_mig_instances_are_listed_and_empty_slots_skipped(found: Found) -> None:
    extra = ("slots 7", "mig 0 MIG-a 1 0 10737418240", "mig 3 MIG-b 5 1 21474836480")
    machine = found(hgx().with_gpu(0, extra=extra))
    assert machine.gpus[0].mig == (
        Mig("MIG-a", 1, 0, 10 << 30),
        Mig("MIG-b", 5, 1, 20 << 30),
    )
    assert machine.gpus[1].mig == ()


def test_a_gpu_in_mig_mode_lists_its_profiles_with_their_places(found: Found) -> None:
    extra = (
        "slots 7",
        "profile 4 0 7 1 132 8 7 1 81152 8 0 MIG 7g.80gb",
        "profile 0 19 1 7 16 1 1 0 9984 1 0,1,2,3,4,5,6 MIG 1g.10gb",
        "profile 7 20 1 1 16 1 1 1 9984 1 0,1,2,3,4,5,6 MIG 1g.10gb+me",
    )
    gpu = found(hgx().with_gpu(0, extra=extra)).gpus[0]
    small, media, whole = gpu.profiles
    assert (small.id, small.name, small.partition.starts) == (19, "1g.10gb", tuple(range(7)))
    assert (small.partition.memory, small.partition.compute) == (9984 << 20, 121)
    assert (small.partition.most, media.partition.most, media.media) == (0, 1, True)
    assert (whole.name, whole.partition.size, dict(whole.engines)["copy-engines"]) == (
        "7g.80gb",
        8,
        8,
    )


def test_a_gpu_that_is_not_in_mig_mode_has_no_profiles(found: Found) -> None:
    extra = ("profile 0 19 1 7 16 1 1 0 9984 1 0,1 MIG 1g.10gb",)
    assert found(hgx().with_gpu(0, extra=extra)).gpus[0].profiles == ()


# NVLink ------------------------------------------------------------------------------------


@pytest.mark.parametrize("compute", [80, 90])
@pytest.mark.parametrize("states", ["call", "field", "both"])
def test_links_are_found_by_either_way_to_ask(compute: int, states: str, gpus: Gpus) -> None:
    assert gpus(hgx().with_gpu(0, compute=compute, states=states))[0].links == 18


def test_a_link_that_sleeps_counts_and_one_that_is_down_does_not(gpus: Gpus) -> None:
    links = tuple(FakeLink(state=state) for state in (0, 1, 2, 3))
    assert gpus(hgx().with_gpu(0, links=links, states="field"))[0].switch_links == 2


@pytest.mark.parametrize("peer", ["", "0000:05:00.0"])
def test_a_link_to_a_switch_is_known_by_its_type_even_if_its_bus_is_hidden(
    peer: str, gpus: Gpus
) -> None:
    assert gpus(hgx().with_gpu(0, links=(FakeLink(peer),) * 18))[0].switch_links == 18


@pytest.mark.parametrize("kind", [-1, UNKNOWN])
def test_without_a_type_the_other_end_is_known_by_its_bus(kind: int, gpus: Gpus) -> None:
    links = (FakeLink("0000:23:00.0", kind), FakeLink("0000:05:00.0", kind))
    gpu = gpus(hgx().with_gpu(0, links=links))[0]
    assert gpu.peers == {"0000:23:00.0": 1}
    assert gpu.switch_links == 1


def test_when_two_ends_disagree_the_lower_number_of_links_counts(found: Found) -> None:
    first = (FakeLink("0000:23:00.0", GPU),) * 4
    second = (FakeLink("0000:13:00.0", GPU),) * 3
    machine = found(hgx().with_gpu(0, links=first).with_gpu(1, links=second))
    assert machine.direct[0, 1] == 3
    assert any("GPU0 shows 4 NVLinks to GPU1, which shows 3" in note for note in machine.notes)


def test_links_to_gpus_of_another_tenant_are_ignored_with_a_note(found: Found) -> None:
    machine = found(hgx().with_gpu(0, links=(FakeLink("0000:99:00.0", GPU),) * 4))
    assert not machine.nvlinks.any()
    assert any("4 NVLinks of GPU0 to 0000:99:00.0" in note for note in machine.notes)


@pytest.mark.parametrize("left", [0, 17])
def test_a_gpu_with_fewer_links_than_others_is_named(left: int, found: Found) -> None:
    machine = found(hgx(3).with_gpu(1, links=switched(left)))
    assert machine.nvlinks[0, 2] == 18
    assert machine.nvlinks[0, 1] == left
    assert any(f"GPU1 has {left} of 18 NVLinks" in note for note in machine.notes)


def test_an_unknown_model_has_the_nvlink_of_its_compute_capability(found: Found) -> None:
    fake = hgx()
    for index in range(2):
        fake = fake.with_gpu(index, model="NVIDIA X900", compute=103)
    machine = found(fake)
    assert machine.bandwidth[0, 1] == nvlink(5, 18).wire


# The NVLink domain -------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_registered_gpu_belongs_to_a_domain_whatever_the_driver(
    version: int, found: Found
) -> None:
    machine = found(hgx().with_gpu(0, extra=(f"fabric {version} 3 0 {CLUSTER} 7",)))
    assert machine.gpus[0].nvlink_domain == "1b5e4f0a-9d3c-4c7e-8a2f-6b7c8d9e0f10.7"
    assert machine.gpus[1].nvlink_domain == ""


@pytest.mark.parametrize(
    "fabric",
    [
        pytest.param(f"3 3 0 {'0' * 32} 0", id="no cluster, as in an HGX server"),
        pytest.param(f"3 2 0 {CLUSTER} 0", id="still registering"),
        pytest.param(f"3 3 999 {CLUSTER} 0", id="registered in vain"),
        pytest.param(f"3 0 0 {CLUSTER} 0", id="not supported"),
    ],
)
def test_a_gpu_that_is_not_registered_in_a_cluster_has_no_domain(fabric: str, gpus: Gpus) -> None:
    assert gpus(hgx().with_gpu(0, extra=(f"fabric {fabric}",)))[0].domain == ""


# What goes wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["handle", "error", "links"])
def test_a_gpu_that_is_lost_keeps_its_index(where: str, found: Found) -> None:
    machine = found(hgx(3).with_gpu(1, extra=(f"{where} {LOST}",)))
    assert [gpu.index for gpu in machine.gpus] == [0, 1, 2]
    assert machine.gpus[1].lost == "GPU is lost"
    assert machine.usable == (0, 2)
    assert machine.nvlinks[0, 2] == 18
    assert not machine.nvlinks[1].any()
    assert any("GPU1 cannot be used: GPU is lost" in note for note in machine.notes)


def test_a_lost_gpu_is_on_no_end_of_a_direct_link(found: Found) -> None:
    first = (FakeLink("0000:23:00.0", GPU),) * 4
    machine = found(hgx().with_gpu(0, links=first).with_gpu(1, extra=(f"links {LOST}",)))
    assert not machine.direct.any()


def test_without_the_library_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", absent)
    with pytest.raises(InputError, match=r"NVML Shared Library Not Found.*--smi.*--machine"):
        read_gpus()


def test_a_driver_that_is_not_loaded_is_reported(gpus: Gpus) -> None:
    with pytest.raises(InputError, match="Driver Not Loaded"):
        gpus(replace(hgx(), init=pynvml.NVML_ERROR_DRIVER_NOT_LOADED))


def test_a_machine_without_gpus_is_reported(gpus: Gpus) -> None:
    with pytest.raises(InputError, match="NVML shows none"):
        gpus(FakeMachine())


@pytest.mark.parametrize(
    "symbol",
    [
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetNvLinkRemoteDeviceType",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetModuleId",
        "nvmlDeviceGetCpuAffinityWithinScope",
    ],
)
def test_a_driver_that_lacks_a_function_is_read_without_it(
    symbol: str, found: Found, nvml: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", Without(nvml, symbol))
    machine = found(hgx())
    assert machine.usable == (0, 1)
    assert machine.nvlinks[0, 1] == 18


# NUMA and positions ------------------------------------------------------------------------


def nowhere(fake: FakeMachine, **changes: object) -> FakeMachine:
    """Return the machine with numa_node -1 everywhere."""
    gpus = tuple(replace(gpu, numa=None, **changes) for gpu in fake.gpus)
    return replace(fake, gpus=gpus, nics=tuple(replace(nic, numa=None) for nic in fake.nics))


def test_without_numa_facts_all_devices_are_on_one_unknown_node(found: Found) -> None:
    machine = found(replace(nowhere(hgx()), nodes={0: "0-3", 1: "4-7"}))
    assert machine.numa_of == (None, None)
    assert machine.level(0, 1) is Level.NVS
    assert machine.nic_level(0, 1) is Level.NODE
    assert any("numa_node is -1" in note for note in machine.notes)


def test_a_numa_node_is_known_by_its_cpus_if_the_device_does_not_report_it(found: Found) -> None:
    fake = replace(nowhere(hgx(), cpus="4-7"), nodes={0: "0-3", 1: "4-7"})
    machine = found(fake.with_gpu(0, cpus="0-3"))
    assert machine.numa_of == (0, 1)
    assert [nic.numa for nic in machine.nics] == [0, 1]
    assert machine.nic_level(0, 1) is Level.SYS


def test_the_only_numa_node_is_that_of_every_device(found: Found) -> None:
    assert found(nowhere(hgx())).numa_of == (0, 0)


def test_a_root_of_unknown_numa_node_is_apart_and_named(found: Found) -> None:
    fake = replace(hgx(), nodes={0: "0-3", 1: "4-7"}).with_gpu(1, numa=None)
    machine = found(replace(fake, nics=(fake.nics[0], replace(fake.nics[1], numa=None))))
    assert machine.numa_of == (0, None)
    assert machine.nic_level(0, 1) is Level.SYS
    assert any("NUMA node of pci0000:20 is not known" in note for note in machine.notes)


def test_a_gpu_that_sysfs_does_not_show_has_no_position(found: Found) -> None:
    machine = found(hgx().with_gpu(1, in_sysfs=False))
    assert machine.gpus[1].pcie_root == ""
    assert machine.nic_level(0, 0) is Level.PIX
    assert machine.nic_level(1, 1) is None
    assert machine.nvlinks[0, 1] == 18
    assert any("the position of GPU1 is not known" in note for note in machine.notes)


def azure(bridge: tuple[str, ...] = ()) -> FakeMachine:
    """Return two GPUs, each on a PCI domain of its own."""
    paths = [
        (f"pci000{n}:00", *(f"000{n}:{b}" for b in bridge), f"000{n}:0{len(bridge)}:00.0")
        for n in (1, 2)
    ]
    return FakeMachine(tuple(FakeGpu(path, links=switched(18)) for path in paths))


def test_gpus_on_domains_of_their_own_are_a_virtual_machine(found: Found) -> None:
    machine = found(azure())
    assert machine.platform.virtual
    assert any("do not show which devices are near" in note for note in machine.notes)


def test_domains_below_root_ports_are_real_as_those_of_grace(found: Found) -> None:
    assert not found(azure(("00:00.0",))).platform.virtual


def test_a_slower_bridge_limits_the_bandwidth_of_pairs(found: Found) -> None:
    fake = hgx(links=0)
    machine = found(replace(fake, bridge_speed="16.0 GT/s PCIe"))
    assert machine.bandwidth[0, 1] == pcie(4).wire


def test_a_link_that_sysfs_does_not_show_is_assumed_with_a_note(found: Found) -> None:
    fake = hgx(links=0).with_gpu(0, speed="Unknown")
    machine = found(replace(fake, bridge_speed="Unknown"))
    assert machine.bandwidth[0, 1] == pcie(5).wire
    assert any("PCIe 5 with 16 lanes to" in note and "GPU0" in note for note in machine.notes)
