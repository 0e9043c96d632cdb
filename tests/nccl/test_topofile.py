"""The topology file: what NCCL's own parser takes, and the same tree as files of real machines."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from tests.machine_builders import machine_from_yaml
from tests.paths import SHARED

from bayplan.nccl import TopologyFileError, topology_file
from bayplan.topology.machine.bandwidth import inter_socket, nvlink, pcie
from bayplan.topology.machine.builder import MachineBuilder
from bayplan.topology.machine.model import Gpu, Machine, Nic, Platform
from bayplan.topology.machine.readers.machinefile import known_machine

FIXTURES = SHARED / "fixtures" / "nccl"
NEEDS_SHARED = pytest.mark.skipif(
    not FIXTURES.is_dir(), reason="the shared fixtures are not beside the project"
)
AZURE = ("ndv2", "ndv4", "ndv5", "ncv4")

NESTED = """
name: nested
gpu: NVIDIA H100
memory: 80Gi
cpu: emerald-rapids
numa:
- id: 0
  cpus: 0-3,8-11
  roots:
  - switches:
    - switches:
      - gpus: [{index: 0, busId: "0000:1b:00.0"}]
      - nics:
        - {name: mlx5_0, rate: 400, busId: "0000:1c:00.0", linkLayer: InfiniBand}
        - {name: mlx5_1, rate: 400, busId: "0000:1d:00.0", linkLayer: Ethernet}
        - {name: mlx5_9, rate: 400}
- id: 1
  socket: 1
  cpus: 4-7,12-15
  roots:
  - gpus: [{index: 1, busId: "0000:9d:00.0"}]
- id: 2
  socket: 1
  cpus: 16-19
nvswitch: {links: 18}
"""


def fixture(name: str) -> ElementTree.Element:
    return ElementTree.parse(FIXTURES / f"{name}-topo.xml").getroot()  # noqa: S314


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)  # noqa: S314


def switched(count: int) -> MachineBuilder:
    """Return a machine of ``count`` GPUs, each below a switch of its own."""
    builder = MachineBuilder("m", nvlink(3), inter_socket("amd"), Platform(virtual=True))
    builder.socket("socket 0")
    builder.numa("numa 0", "socket 0", 0)
    builder.root("root", "numa 0")
    for gpu in range(count):
        builder.switch(f"switch {gpu}", "root", pcie(4))
        bus_id = f"{gpu:04X}:0A:00.0"
        builder.gpu(Gpu(gpu, bus_id=bus_id, numa=0), f"switch {gpu}", pcie(4))
    return builder


# As NCCL's parser wants it ----------------------------------------------------------------------


@pytest.mark.parametrize("made", [machine_from_yaml(NESTED), switched(4).build()])
def test_the_text_is_what_nccls_parser_takes(made: Machine) -> None:
    text = topology_file(made)
    assert text.startswith('<system version="1">\n')
    assert text.endswith("</system>\n")
    attribute = r' [a-z_]+="[^"\t\n]*"'
    line = re.compile(rf"((?:  )*)(?:<[a-z]+(?:{attribute})*/?>|</[a-z]+>)")
    for written in text.splitlines():
        assert line.fullmatch(written), written
        assert written.count('="') <= 16
        assert all(len(value) <= 255 for value in re.findall(r'"([^"]*)"', written))


def test_only_the_pcie_tree_is_written() -> None:
    # With a gpu or an nvlink in the file NCCL would leave out its own detection.
    tags = {element.tag for element in parsed(topology_file(machine_from_yaml(NESTED))).iter()}
    assert tags == {"system", "cpu", "pci"}


def test_bus_ids_are_in_lower_case_and_appear_once() -> None:
    found = [
        pci.attrib["busid"] for pci in parsed(topology_file(machine_from_yaml(NESTED))).iter("pci")
    ]
    assert len(set(found)) == len(found)
    assert {"0000:1b:00.0", "0000:1c:00.0", "0000:1d:00.0", "0000:9d:00.0"} <= set(found)
    upper = parsed(topology_file(switched(12).build()))
    gpus = [pci.attrib["busid"] for pci in upper.iter("pci") if not len(pci)]
    assert gpus == [f"{gpu:04x}:0a:00.0" for gpu in range(12)]
    assert all(re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", bus) for bus in found)


SPEEDS = {"2.5": 1.5, "5.0": 3, "8.0": 6, "16.0": 12, "32.0": 24, "64.0": 48}
"""Gb/s of a lane that NCCL reckons with, by the link speed it reads before " GT/s PCIe"."""


@pytest.mark.parametrize("generation", range(1, 7))
@pytest.mark.parametrize("width", [16, 8, 4])
def test_nccl_reads_the_bandwidth_of_a_link_out_of_the_file(generation: int, width: int) -> None:
    text = (
        f"{{name: m, gpu: H100, pcie: {{generation: {generation}, width: {width}}}, numa: "
        '[{id: 0, roots: [{gpus: [{index: 0, busId: "0001:00:00.0"}]}]}]}'
    )
    (gpu,) = parsed(topology_file(machine_from_yaml(text))).iter("pci")
    speed, unit = gpu.attrib["link_speed"].split(" ", 1)
    assert unit == "GT/s PCIe", "anything else silently becomes Gen3"
    effective = int(gpu.attrib["link_width"]) * SPEEDS[speed] / 8
    assert effective == pytest.approx(pcie(generation, width).effective)


def test_switches_are_nested_as_they_are_and_classes_distinguish_devices() -> None:
    root = parsed(topology_file(machine_from_yaml(NESTED)))
    first, second = root.findall("cpu")
    (outer,) = first
    assert [len(inner) for inner in outer] == [1, 2]
    assert [pci.attrib["class"] for pci in outer.iter()] == [
        "0x060400",
        "0x060400",
        "0x030200",
        "0x060400",
        "0x020700",
        "0x020000",
    ]
    assert [pci.attrib["busid"] for pci in second] == ["0000:9d:00.0"]


def test_what_is_not_known_is_left_to_nccl() -> None:
    text = topology_file(machine_from_yaml(NESTED))
    assert "mlx5_9" not in text
    assert [cpu.attrib["numaid"] for cpu in parsed(text).iter("cpu")] == ["0", "1"]


def test_the_cpus_of_a_numa_node_are_left_to_nccl_where_they_are_not_known() -> None:
    (cpu,) = parsed(topology_file(switched(2).build())).iter("cpu")
    assert "affinity" not in cpu.attrib, "NCCL would take it for what it is"


def test_nics_of_an_unknown_numa_node_are_left_to_nccl() -> None:
    builder = switched(2)
    builder.numa("numa ?", "socket 0")
    builder.root("elsewhere", "numa ?")
    builder.nic(Nic(0, "mlx5_0", bus_id="0000:aa:00.0"), "elsewhere", pcie(4))
    text = topology_file(builder.build())
    assert "0000:aa:00.0" not in text
    assert [cpu.attrib["numaid"] for cpu in parsed(text).iter("cpu")] == ["0"]


def test_a_numa_node_in_several_parts_is_one() -> None:
    text = NESTED.replace("- id: 2", "- id: 1").replace(
        "cpus: 16-19",
        """roots:
  - nics: [{name: mlx5_5, rate: 400, busId: "0000:5d:00.0"}]""",
    )
    cpus = list(parsed(topology_file(machine_from_yaml(text))).iter("cpu"))
    assert [cpu.attrib["numaid"] for cpu in cpus] == ["0", "1"]
    assert [pci.attrib["busid"] for pci in cpus[1]] == ["0000:9d:00.0", "0000:5d:00.0"]
    assert int(cpus[1].attrib["affinity"], 16) == 0xF0F0


def test_cpus_are_written_as_the_kernels_mask() -> None:
    cpus = list(parsed(topology_file(machine_from_yaml(NESTED))).iter("cpu"))
    assert [int(cpu.attrib["affinity"], 16) for cpu in cpus] == [0x0F0F, 0xF0F0]
    assert cpus[0].attrib["vendor"] == "GenuineIntel"
    assert int(cpus[0].attrib["modelid"]) >= 0xCF, "NCCL takes it for Emerald Rapids from there"


# Against files of real machines -----------------------------------------------------------------


@NEEDS_SHARED
@pytest.mark.parametrize("made", [machine_from_yaml(NESTED), switched(4).build()])
def test_elements_and_attributes_are_those_of_real_files(made: Machine) -> None:
    known: dict[str, set[str]] = {}
    values: dict[tuple[str, str], set[str]] = {}
    for name in AZURE:
        for element in fixture(name).iter():
            known.setdefault(element.tag, set()).update(element.attrib)
            for key, value in element.attrib.items():
                values.setdefault((element.tag, key), set()).add(value)
    for element in parsed(topology_file(made)).iter():
        assert set(element.attrib) <= known[element.tag]
        if element.tag == "system":
            assert element.attrib["version"] in values["system", "version"]
        if element.tag == "cpu":
            assert element.attrib["arch"] in values["cpu", "arch"]


def described(name: str, cpu: str, generation: int) -> Machine:
    """Return the machine of a real file: its CPUs, switches, GPUs and NICs."""
    builder_cpus = tuple(
        (int(one.attrib["numaid"]), cpu_list(one.attrib["affinity"])) for one in fixture(name)
    )
    about = Platform(cpu=cpu, virtual=True, numa_cpus=builder_cpus)
    builder = MachineBuilder(name, nvlink(3), inter_socket(cpu), about)
    link = pcie(generation)
    gpus = nics = 0
    for one in fixture(name):
        node = int(one.attrib["numaid"])
        builder.socket(f"socket {node}")
        builder.numa(f"numa {node}", f"socket {node}", node)
        builder.root(f"root {node}", f"numa {node}")
        for top in one.findall("pci"):
            above = f"root {node}"
            if top.attrib["class"].startswith("0x0604"):
                above = top.attrib["busid"]
                builder.switch(above, f"root {node}", link)
            for device in top if len(top) and above != f"root {node}" else [top]:
                bus_id = device.attrib["busid"]
                if device.attrib["class"].startswith("0x03"):
                    builder.gpu(Gpu(gpus, bus_id=bus_id, numa=node), above, link)
                    gpus += 1
                else:
                    builder.nic(Nic(nics, f"mlx5_{nics}", bus_id=bus_id, numa=node), above, link)
                    nics += 1
    return builder.build()


def cpu_list(mask: str) -> str:
    value = int(mask.replace(",", ""), 16)
    return ",".join(str(cpu) for cpu in range(value.bit_length()) if value >> cpu & 1)


def shape(element: ElementTree.Element) -> list[tuple[int, str, str, str]]:
    """Return bus id, class and width of all PCI devices, depth first."""

    def below(one: ElementTree.Element, depth: int) -> list[tuple[int, str, str, str]]:
        found = []
        for pci in one.findall("pci"):
            width = pci.attrib["link_width"]
            found.append((depth, pci.attrib["busid"], pci.attrib["class"], width))
            found += below(pci, depth + 1)
        return found

    return [device for cpu in element.findall("cpu") for device in below(cpu, 0)]


@NEEDS_SHARED
@pytest.mark.parametrize(
    ("name", "cpu", "generation"),
    [("ndv2", "skylake", 4), ("ndv4", "amd", 4), ("ndv5", "sapphire-rapids", 5)],
)
def test_a_real_file_comes_out_as_it_is(name: str, cpu: str, generation: int) -> None:
    want = fixture(name)
    found = parsed(topology_file(described(name, cpu, generation)))
    assert shape(found) == shape(want)
    assert len(shape(found)) >= 9
    for mine, theirs in zip(found.findall("cpu"), want.findall("cpu"), strict=True):
        for key in ("numaid", "affinity", "arch", "vendor"):
            assert mine.attrib[key] == theirs.attrib[key]
    if name != "ndv4":
        # The AMD processor of ndv4 is older; NCCL goes by the vendor alone there.
        for key in ("familyid", "modelid"):
            assert found[0].attrib[key] == want[0].attrib[key]
    if name == "ndv5":
        speeds = {pci.attrib["link_speed"] for pci in found.iter("pci")}
        assert speeds == {pci.attrib["link_speed"] for pci in want.iter("pci")}


# What cannot be written -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dgx-1v", "l40s-pcie"])
def test_a_machine_without_bus_ids_is_refused(name: str) -> None:
    with pytest.raises(TopologyFileError, match=r"the bus id or NUMA node of GPU0, .* not known"):
        topology_file(known_machine(name))


def test_a_gpu_whose_numa_node_is_not_known_is_named() -> None:
    builder = switched(2)
    builder.gpu(Gpu(2, bus_id="0000:01:00.0"), "root", pcie(4))
    with pytest.raises(TopologyFileError, match="the bus id or NUMA node of GPU2 is not known"):
        topology_file(builder.build())


def test_a_gpu_whose_position_in_the_pcie_tree_is_unknown_is_named() -> None:
    builder = switched(2)
    builder.gpu(Gpu(2, bus_id="0000:01:00.0", numa=0), None, pcie(4))
    with pytest.raises(
        TopologyFileError, match="the position of GPU2 in the PCIe tree is not known"
    ):
        topology_file(builder.build())


def test_more_elements_than_nccl_reads_are_refused() -> None:
    # The system, its NUMA node, and a switch and a GPU each.
    text = topology_file(switched(127).build())
    assert sum(1 for _ in parsed(text).iter()) == 256
    with pytest.raises(TopologyFileError, match="more than 256 elements"):
        topology_file(switched(128).build())
