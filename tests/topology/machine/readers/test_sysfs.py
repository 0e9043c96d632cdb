"""The PCIe tree, NUMA nodes and NICs as sysfs shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.topology.machine.readers.nvml_machine import (
    FakeGpu,
    FakeMachine,
    FakeNic,
    FakePort,
    Written,
    hgx,
    write,
)

from bayplan.errors import InputError
from bayplan.topology.machine.model import Machine
from bayplan.topology.machine.readers.discovery import discover
from bayplan.topology.machine.readers.sysfs import (
    Hca,
    PciDevice,
    PciLink,
    Sysfs,
    cpu_set,
    read_cpu,
    switches,
)


def sysfs_of(machine: FakeMachine, folder: Path) -> Sysfs:
    return Sysfs(write(machine, folder).sysfs)


def hca(folder: Path, **about: object) -> Hca:
    nic = replace(hgx(1).nics[0], **about)
    return sysfs_of(FakeMachine(nics=(nic,)), folder).hcas()[0]


# Paths -------------------------------------------------------------------------------------


def link(root: Path, bus_id: str, target: str) -> Sysfs:
    at = root / "bus/pci/devices" / bus_id
    at.parent.mkdir(parents=True)
    at.symlink_to(target)
    return Sysfs(root)


def test_a_device_is_found_below_its_root_and_bridges(tmp_path: Path) -> None:
    found = sysfs_of(hgx(), tmp_path).pci("0000:13:00.0")
    assert found == PciDevice(
        "0000:13:00.0",
        "pci0000:10",
        ("0000:10:01.0", "0000:11:00.0", "0000:12:00.0"),
        0,
        "0-7",
        PciLink(5, 16),
        "0x030200",
    )


def test_a_link_may_be_absolute(tmp_path: Path) -> None:
    target = tmp_path / "devices/pci0000:15/0000:15:01.0/0000:16:00.0"
    found = link(tmp_path, "0000:16:00.0", str(target)).pci("0000:16:00.0")
    assert (found.root, found.bridges) == ("pci0000:15", ("0000:15:01.0",))


def test_facts_missing_from_sysfs_are_unknown(tmp_path: Path) -> None:
    target = "../../../devices/pci0000:15/0000:16:00.0"
    found = link(tmp_path, "0000:16:00.0", target).pci("0000:16:00.0")
    assert (found.numa, found.cpus, found.link) == (None, "", PciLink())


@pytest.mark.parametrize(
    "bus_id", ["", "1b:00.0", "00000000:1b:00.0", "0000:1B:00.0", "0000:1b:00.0\n", "../devices"]
)
def test_a_malformed_bus_id_is_refused(bus_id: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is not a PCI bus id; expected one like 0000:1b:00\.0"):
        Sysfs(tmp_path).pci(bus_id)


def test_a_missing_device_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"0000:1b:00\.0: cannot be read: No such file"):
        Sysfs(tmp_path).pci("0000:1b:00.0")


@pytest.mark.parametrize(
    "target",
    [
        "../../../devices/platform/0000:1b:00.0",
        "../../../../outside/pci0000:15/0000:1b:00.0",
        "/devices/pci0000:15/0000:1b:00.0",
        "../../../devices/pci0000:15",
    ],
)
def test_a_link_that_leads_to_no_pci_device_is_refused(target: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match='must start with "devices/pci"'):
        link(tmp_path, "0000:1b:00.0", target).pci("0000:1b:00.0")


def test_a_link_to_another_device_is_refused(tmp_path: Path) -> None:
    target = "../../../devices/pci0000:15/0000:1c:00.0"
    with pytest.raises(InputError, match=r'must end with "0000:1b:00\.0"'):
        link(tmp_path, "0000:1b:00.0", target).pci("0000:1b:00.0")


@pytest.mark.parametrize(
    ("device", "bridge", "expected"),
    [
        ("32.0 GT/s PCIe", "16.0 GT/s PCIe", 4),
        ("8.0 GT/s PCIe", "32.0 GT/s PCIe", 3),
        ("2.5 GT/s PCIe", "2.5 GT/s PCIe", 1),
        ("128.0 GT/s PCIe", "64.0 GT/s PCIe", 6),
        ("16 GT/s", "Unknown", 4),
        ("Unknown", "Unknown", None),
    ],
)
def test_a_link_is_as_fast_as_its_slower_end(
    device: str, bridge: str, expected: int | None, tmp_path: Path
) -> None:
    gpu = replace(hgx(1).gpus[0], speed=device)
    sysfs = sysfs_of(FakeMachine((gpu,), bridge_speed=bridge), tmp_path)
    assert sysfs.pci("0000:13:00.0").link.generation == expected


def test_a_width_that_no_link_has_is_unknown(tmp_path: Path) -> None:
    sysfs = sysfs_of(hgx(1), tmp_path)
    for file in (tmp_path / "sys/devices/pci0000:10").rglob("max_link_width"):
        file.write_text("255\n")
    assert sysfs.pci("0000:13:00.0").link == PciLink(5, None)


# Levels ------------------------------------------------------------------------------------

PORT, UP = "0000:10:01.0", "0000:11:00.0"


@pytest.fixture
def level(
    lay_out: Callable[[FakeMachine], Written],
) -> Callable[[tuple[str, ...], tuple[str, ...]], str]:
    def between(a: tuple[str, ...], b: tuple[str, ...]) -> str:
        one, other = (*a, "0000:20:00.0"), (*b, "0000:30:00.0")
        written = lay_out(FakeMachine((FakeGpu(one),), (FakeNic("mlx5_0", other),)))
        return discover("here", written.sysfs, written.cpuinfo).label(0, 1)

    return between


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        pytest.param((UP, "0000:12:00.0"), (UP, "0000:12:01.0"), "PIX", id="switch on the root"),
        pytest.param(
            (PORT, UP, "0000:12:00.0"), (PORT, UP, "0000:12:01.0"), "PIX", id="switch on a port"
        ),
        pytest.param((PORT,), (PORT,), "PIX", id="functions on one root port"),
        pytest.param(
            (PORT, UP, "0000:12:00.0"), (PORT, UP, "0000:12:00.0"), "PIX", id="functions on a port"
        ),
        pytest.param(
            (PORT, UP, "0000:12:00.0", "0000:13:00.0", "0000:14:00.0"),
            (PORT, UP, "0000:12:01.0", "0000:15:00.0", "0000:16:00.0"),
            "PXB",
            id="switches of their own below a shared one",
        ),
        pytest.param(
            (PORT, UP, "0000:12:00.0", "0000:13:00.0", "0000:14:00.0"),
            (PORT, UP, "0000:12:01.0"),
            "PXB",
            id="one switch deeper",
        ),
        pytest.param((PORT,), ("0000:10:02.0",), "PHB", id="two root ports"),
        pytest.param((), (), "PHB", id="both on the root"),
        pytest.param(
            (PORT, UP, "0000:12:00.0"),
            ("0000:10:02.0", "0000:13:00.0", "0000:14:00.0"),
            "PHB",
            id="switches on two root ports",
        ),
    ],
)
def test_bridges_in_common_make_the_level(
    a: tuple[str, ...],
    b: tuple[str, ...],
    expected: str,
    level: Callable[[tuple[str, ...], tuple[str, ...]], str],
) -> None:
    assert level(("pci0000:10", *a), ("pci0000:10", *b)) == expected


def test_another_root_is_node_and_another_numa_node_is_sys(
    lay_out: Callable[[FakeMachine], Written],
) -> None:
    fake = replace(hgx(3), nodes={0: "0-3", 1: "4-7"}).with_gpu(2, numa=1, links=())
    fake = fake.with_gpu(0, links=()).with_gpu(1, links=())
    written = lay_out(replace(fake, nics=fake.nics[:2]))
    machine = discover("here", written.sysfs, written.cpuinfo)
    assert machine.label(0, 1) == "NODE"
    assert machine.label(0, 2) == "SYS"


def test_a_bridge_is_a_switch_or_not_for_all_devices_below_it() -> None:
    plain = PciDevice("0000:20:00.0", "pci0000:10", (PORT, UP, "0000:12:00.0"))
    deeper = PciDevice("0000:30:00.0", "pci0000:10", (PORT, UP, "0000:12:01.0", "0000:13:00.0"))
    assert switches([plain, deeper]) == {
        "0000:20:00.0": (UP,),
        "0000:30:00.0": (UP, "0000:13:00.0"),
    }


# NUMA and CPUs -----------------------------------------------------------------------------


def test_numa_nodes_without_cpus_are_left_out(tmp_path: Path) -> None:
    sysfs = sysfs_of(FakeMachine(nodes={0: "0-3", 2: "", 10: "4-7"}), tmp_path)
    assert sysfs.nodes() == {0: "0-3", 10: "4-7"}


def test_a_list_of_cpus_is_a_set() -> None:
    assert cpu_set("0-2,8,10-11") == {0, 1, 2, 8, 10, 11}
    assert cpu_set("") == cpu_set("none") == frozenset()


INTEL = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: "


@pytest.mark.parametrize(
    ("text", "name", "arch"),
    [
        (f"{INTEL}79\n", "broadwell", "x86_64"),
        (f"{INTEL}85\n", "skylake", "x86_64"),
        (f"{INTEL}143\n", "sapphire-rapids", "x86_64"),
        (f"{INTEL}207\n", "emerald-rapids", "x86_64"),
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n", "amd", "x86_64"),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", "arm", "arm64"),
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", "power9", "ppc64"),
    ],
)
def test_the_cpu_sets_the_bandwidth_between_sockets(
    text: str, name: str, arch: str, tmp_path: Path
) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    cpu = read_cpu(path)
    assert (cpu.name, cpu.arch, cpu.note) == (name, arch, "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vendor_id: GenuineIntel\ncpu family: 6\nmodel: 173\n", "family 6 model 173"),
        ("", "which is not shown"),
    ],
)
def test_an_unknown_cpu_counts_as_skylake_with_a_note(
    text: str, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    cpu = read_cpu(path)
    assert cpu.name == "skylake"
    assert expected in cpu.note


# NICs --------------------------------------------------------------------------------------


def test_infiniband_and_ethernet_are_both_nics(tmp_path: Path) -> None:
    infiniband = hca(tmp_path / "a")
    assert (infiniband.port.link_layer, infiniband.port.rate) == ("InfiniBand", 400.0)
    roce = hca(
        tmp_path / "b",
        ports=(FakePort("100 Gb/sec (4X EDR)", link_layer="Ethernet"),),
        netdev="ens1f0np0",
    )
    assert (roce.port.link_layer, roce.port.rate, roce.netdev) == ("Ethernet", 100.0, "ens1f0np0")


def test_a_nic_whose_port_is_down_is_not_active(tmp_path: Path) -> None:
    assert not hca(tmp_path, ports=(FakePort("2.5 Gb/sec (1X SDR)", "1: DOWN"),)).port.active


def test_of_several_ports_the_fastest_active_one_counts(tmp_path: Path) -> None:
    ports = (
        FakePort("400 Gb/sec (4X NDR)", "1: DOWN"),
        FakePort("100 Gb/sec (4X EDR)"),
        FakePort("200 Gb/sec (4X HDR)"),
    )
    best = hca(tmp_path, ports=ports).port
    assert (best.number, best.active, best.rate) == (3, True, 200.0)


def test_rdma_devices_without_pci_and_plain_network_devices_are_left_out(tmp_path: Path) -> None:
    sysfs = sysfs_of(hgx(1), tmp_path)
    (tmp_path / "sys/class/infiniband/rxe0/ports/1").mkdir(parents=True)
    (tmp_path / "sys/class/net/eth0").mkdir(parents=True)
    assert [found.name for found in sysfs.hcas()] == ["mlx5_0"]


def test_nics_are_in_natural_order(tmp_path: Path) -> None:
    path = hgx(1).nics[0].path
    nics = tuple(FakeNic(f"mlx5_{n}", (*path[:-1], f"0000:14:0{n % 8}.0")) for n in (10, 9, 1))
    found = sysfs_of(FakeMachine(nics=nics), tmp_path).hcas()
    assert [entry.name for entry in found] == ["mlx5_1", "mlx5_9", "mlx5_10"]


@pytest.fixture
def with_functions(lay_out: Callable[[FakeMachine], Written]) -> Machine:
    """Return a machine whose NIC has a virtual function."""
    fake = hgx(1)
    physical = replace(fake.nics[0], virtual_functions=1)
    path = (*physical.path[:-1], "0000:14:00.1")
    virtual = FakeNic("mlx5_1", path, physical=physical.path[-1], speed="Unknown")
    written = lay_out(replace(fake, nics=(physical, virtual)))
    return discover("here", written.sysfs, written.cpuinfo)


def test_a_virtual_function_names_its_physical_one_and_shares_its_root(
    with_functions: Machine,
) -> None:
    physical, virtual = with_functions.nics
    assert (physical.parent, physical.virtual_functions) == ("", 1)
    assert (virtual.parent, virtual.virtual_functions) == ("mlx5_0", 0)
    assert virtual.pcie_root == physical.pcie_root == "pci0000:10"


def test_functions_of_one_nic_are_at_pix(with_functions: Machine) -> None:
    assert with_functions.label(1, 2) == "PIX"
    assert with_functions.notes == ()


def test_a_nic_that_is_down_is_near_no_gpu(lay_out: Callable[[FakeMachine], Written]) -> None:
    fake = hgx()
    down = replace(fake.nics[0], ports=(FakePort(state="1: DOWN"),))
    written = lay_out(replace(fake, nics=(down, fake.nics[1])))
    machine = discover("here", written.sysfs, written.cpuinfo)
    assert not machine.nics[0].active
    assert machine.near_nics(0) == (1,)
