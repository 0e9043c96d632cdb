"""Machines in YAML: what a person can get wrong in one, and what the known machines are."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tests.paths import ROOT

from bayplan.errors import InputError
from bayplan.topology.machine.builder import MachineBuilder
from bayplan.topology.machine.levels import UNKNOWN, Level
from bayplan.topology.machine.model import Machine, MachineError
from bayplan.topology.machine.readers.machinefile import (
    GpuEntry,
    MachineFile,
    NicEntry,
    NumaEntry,
    NvLinksEntry,
    NvSwitchEntry,
    PcieLink,
    RootEntry,
    SwitchEntry,
    known_machine,
    known_machines,
    load_machine,
)

FOLDER = ROOT / "configs" / "machines"
PCIE = """\
name: box
gpu: NVIDIA L40S
numa:
- id: 0
  roots:
  - gpus: [0, 1]
    nics: [mlx5_0]
"""
BRIDGED = """\
name: box
gpu: NVIDIA A100 80GB PCIe
numa:
- id: 0
  roots:
  - gpus: [0]
  - gpus: [1]
nvlinks:
- {gpus: [0, 1], links: 12}
"""
SWITCHED = """\
name: box
gpu: NVIDIA A100-SXM4-40GB
numa:
- id: 0
  roots:
  - gpus: [0, 1, 2]
nvswitch: {links: 12}
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where a machine is to be written, as the person names it."""
    monkeypatch.chdir(tmp_path)
    return Path("box.yaml")


def load(path: Path, text: str | bytes) -> Machine:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_machine(path)


def refused(path: Path, text: str | bytes, where: str, *parts: str) -> None:
    """Assert that a machine is refused, with the position and what was expected in the message."""
    with pytest.raises(InputError) as caught:
        load(path, text)
    message = str(caught.value)
    assert message.startswith(f"{where}: ")
    assert "\n" not in message
    for part in parts:
        assert part in message


# Files -----------------------------------------------------------------------------------


def test_a_plain_machine_is_not_refused(path: Path) -> None:
    machine = load(path, PCIE)
    assert machine.name == "box"
    assert [machine.label(0, other) for other in range(3)] == ["X", "PHB", "PHB"]
    assert machine.bandwidth[0, 1] == 31.5
    assert machine.notes == ()


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null\n"])
def test_an_empty_file_is_refused(path: Path, text: str) -> None:
    refused(path, text, "box.yaml", "holds 0 documents; expected one machine")


def test_two_machines_in_a_file_are_refused(path: Path) -> None:
    refused(path, f"{PCIE}---\n{PCIE}", "box.yaml", "holds 2 documents; expected one machine")


@pytest.mark.parametrize(
    ("text", "where", "part"),
    [
        ("name: [b\n", "box.yaml:2:1", "not YAML"),
        ("name:\n\t- b\n", "box.yaml:2:1", "not YAML"),
        (f"{PCIE}name: two\n", "box.yaml:8:1", 'the key "name" appears twice'),
        ("GPU0 GPU1\nGPU0 X NV4\n", "box.yaml:1:1", "expected a machine: a mapping with name"),
        ("- gpus: [0]\n", "box.yaml:1:1", "expected a machine: a mapping with name"),
        (b"\x00\xff\xfe\x01", "box.yaml", "is not UTF-8 text"),
    ],
)
def test_a_file_that_holds_no_machine_is_refused(
    path: Path, text: str | bytes, where: str, part: str
) -> None:
    refused(path, text, where, part)


@pytest.mark.parametrize(
    ("name", "part"), [("nowhere.yaml", "No such file"), ("folder", "Is a directory")]
)
def test_a_path_without_a_file_is_refused(path: Path, name: str, part: str) -> None:
    (path.parent / "folder").mkdir()
    with pytest.raises(InputError, match=f"^{name}: {part}"):
        load_machine(path.parent / name)


# Fields ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "where", "parts"),
    [
        (
            PCIE.replace("nics:", "nic:"),
            "box.yaml:7:10",
            ('numa.0.roots.0.nic: "nic" is not known here', 'did you mean "nics"?'),
        ),
        (
            PCIE.replace("[0, 1]", "[{index: 0, buId: x}, 1]"),
            "box.yaml:6:29",
            ("numa.0.roots.0.gpus.0.buId", 'did you mean "busId"?'),
        ),
        (
            BRIDGED.replace("nvlinks", "nvlink"),
            "box.yaml:9:1",
            ('"nvlink" is not known here', 'did you mean "nvlinks"?'),
        ),
        (
            SWITCHED.replace("links: 12", "links: 12, losst: {2: 0}"),
            "box.yaml:7:30",
            ("nvswitch.losst", 'did you mean "lost"?'),
        ),
        (
            f"{PCIE}nvlink_generation: 4\ncolour: red\n",
            "box.yaml:9:9",
            ('colour: "colour" is not known here',),
        ),
        # Required ones: that they are missing is not the news. "numa" is as near, but there.
        (
            PCIE.replace("name", "nmae", 1),
            "box.yaml:1:7",
            ('"nmae" is not known here', 'did you mean "name"?'),
        ),
        (
            BRIDGED.replace("links: 12", "link: 12"),
            "box.yaml:9:24",
            ('"link" is not known here', 'did you mean "links"?'),
        ),
    ],
)
def test_a_misspelt_field_is_refused_with_the_nearest(
    path: Path, text: str, where: str, parts: tuple[str, ...]
) -> None:
    refused(path, text, where, *parts)


@pytest.mark.parametrize(
    ("text", "where", "field"),
    [
        (PCIE.replace("name: box\n", ""), "box.yaml:1:1", "name"),
        (PCIE.replace("gpu: NVIDIA L40S\n", ""), "box.yaml:1:1", "gpu"),
        ("name: box\ngpu: NVIDIA L40S\n", "box.yaml:1:1", "numa"),
        (PCIE.replace("- id: 0\n  roots", "- roots"), "box.yaml:4:3", "id"),
        (BRIDGED.replace(", links: 12", ""), "box.yaml:9:3", "links"),
    ],
)
def test_a_missing_field_is_named(path: Path, text: str, where: str, field: str) -> None:
    refused(path, text, where, f'the required field "{field}" is missing')


@pytest.mark.parametrize(
    ("numa", "where", "expected"),
    [
        ("[]", "box.yaml:3:7", "numa: expected 1 or more entries"),
        ("", "box.yaml:3:6", "numa: expected a list"),
        ("{id: 0}", "box.yaml:3:7", "numa: expected a list"),
        ("[0]", "box.yaml:3:8", "numa.0: expected a mapping"),
    ],
)
def test_a_machine_without_numa_nodes_is_refused(
    path: Path, numa: str, where: str, expected: str
) -> None:
    refused(path, f"name: box\ngpu: NVIDIA L40S\nnuma: {numa}\n", where, expected)


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        ("48 gigs", 'expected a quantity such as "8", "500m", "1.5Gi" or "1e3", got "48 gigs"'),
        ("48GB", 'got "48GB"'),
        ("48gi", 'got "48gi"'),
        ("1e999", '"1e999" is beyond what Kubernetes can count'),
        ("48", "expected a string"),
        ("[48Gi]", "expected a string"),
        ("-48Gi", 'expected an amount above 0 such as 80Gi, got "-48Gi"'),
        ('"0"', 'got "0"'),
    ],
)
def test_memory_in_a_wrong_unit_is_refused(path: Path, memory: str, expected: str) -> None:
    refused(path, f"{PCIE}memory: {memory}\n", "box.yaml:8:9: memory", expected)


@pytest.mark.parametrize("rate", ["200Gb", "fast", "true", "[200]", ""])
def test_a_rate_that_is_not_a_number_is_refused_with_its_unit(path: Path, rate: str) -> None:
    text = PCIE.replace("[mlx5_0]", f"[{{name: mlx5_0, rate: {rate}}}]")
    expected = "numa.0.roots.0.nics.0.rate: expected a number of Gb/s such as 400"
    with pytest.raises(InputError, match=rf"^box\.yaml:7:\d+: {expected}$"):
        load(path, text)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        ("-1", "greater than or equal to 0"),
        ("1e9", "less than or equal to 100000"),
        (".inf", "expected a finite number"),
        (".nan", "expected a finite number"),
    ],
)
def test_a_rate_that_no_nic_has_is_refused(path: Path, rate: str, expected: str) -> None:
    text = PCIE.replace("[mlx5_0]", f"[{{name: mlx5_0, rate: {rate}}}]")
    refused(path, text, "box.yaml:7:33", "numa.0.roots.0.nics.0.rate", expected)


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ("0", "greater than or equal to 1"),
        ("-4", "greater than or equal to 1"),
        ("19", "less than or equal to 18"),
        ("9" * 400, "expected an integer"),
        ("1.5", "expected an integer"),
        ("twelve", "expected an integer"),
        ("true", "expected an integer"),
        ('"12"', "expected an integer"),
    ],
)
def test_a_number_of_links_that_no_gpu_has_is_refused(
    path: Path, links: str, expected: str
) -> None:
    text = BRIDGED.replace("links: 12", f"links: {links}")
    refused(path, text, "box.yaml:9:25", "nvlinks.0.links", expected)


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("pcie: {generation: 9}", ("8:20", "pcie.generation", "less than or equal to 6")),
        ("pcie: {generation: 0}", ("8:20", "pcie.generation", "greater than or equal to 1")),
        ("pcie: {generation: 4, width: 3}", ("8:30", "pcie.width", "1, 2, 4, 8, 16 or 32")),
        ("nvlinkGeneration: 9", ("8:19", "nvlinkGeneration", "less than or equal to 6")),
        ("arch: mips", ("8:7", "arch", "'x86_64', 'arm64' or 'ppc64'")),
        ("cpu: z80", ("8:6", "cpu", '"z80" is not known', "skylake")),
        ("virtual: perhaps", ("8:10", "virtual: expected true or false")),
    ],
)
def test_an_unknown_platform_is_refused(path: Path, line: str, parts: tuple[str, ...]) -> None:
    where, *rest = parts
    refused(path, f"{PCIE}{line}\n", f"box.yaml:{where}", *rest)


BUS = "expected a PCI bus id, in lower case and in quotes, such as '0000:1b:00.0'"
CPUS = "expected CPUs as the kernel lists them, such as 0-15,32-47, each below 10000"
RDMA = "expected an RDMA name such as mlx5_0: 1 to 64 letters, digits, dots, dashes and underscores"


@pytest.mark.parametrize(
    ("old", "new", "where", "expected"),
    [
        ("[0, 1]", "[0, {index: 1, busId: '1B:00.0'}]", "6:33", f"gpus.1.busId: {BUS}"),
        ("- gpus", "- id: root1\n    gpus", "6:9", "id: expected a PCIe root such as pci0000:15"),
        ("- id: 0", "- id: 0\n  cpus: 0..3", "5:9", f"numa.0.cpus: {CPUS}"),
        ("- id: 0", "- id: 0\n  cpus: 12", "5:9", f"numa.0.cpus: {CPUS}"),
        ("- id: 0", "- id: 0\n  cpus: 0-99999999999", "5:9", f"numa.0.cpus: {CPUS}"),
        (
            "- id: 0",
            "- id: 0\n  cpus: 0-3,9-7",
            "5:9",
            "numa.0.cpus: the range 9-7 ends before it begins",
        ),
        ("- id: 0", "- id: -1", "4:7", "numa.0.id: "),
        ("- id: 0", "- id: true", "4:7", "numa.0.id: expected an integer"),
        ("- id: 0", "- id: 0\n  socket: 65", "5:11", "numa.0.socket: "),
        ("[mlx5_0]", "['']", "7:12", f"numa.0.roots.0.nics.0.name: {RDMA}"),
        ("[mlx5_0]", "['a b']", "7:12", f"numa.0.roots.0.nics.0.name: {RDMA}"),
        ("name: box", "name: ''", "1:7", "name: expected 1 or more characters"),
        ("name: box", f"name: {'x' * 64}", "1:7", "name: expected at most 63 characters"),
    ],
)
def test_a_malformed_value_names_its_field_and_an_example(
    path: Path, old: str, new: str, where: str, expected: str
) -> None:
    refused(path, PCIE.replace(old, new), f"box.yaml:{where}", expected)


def test_an_unknown_gpu_has_to_state_its_links(path: Path) -> None:
    unknown = PCIE.replace("NVIDIA L40S", "Voodoo 2")
    refused(path, unknown, "box.yaml:2:6", 'gpu: the GPU "Voodoo 2" is not known', "add pcie")
    assert load(path, f"{unknown}pcie: {{generation: 5}}\n").bandwidth[0, 1] == 63
    linked = BRIDGED.replace("NVIDIA A100 80GB PCIe", "Voodoo 2") + "pcie: {generation: 4}\n"
    refused(path, linked, "box.yaml:2:6", "nvlinkGeneration if it has NVLinks")
    assert load(path, f"{linked}nvlinkGeneration: 5\n").bandwidth[0, 1] == 600


# Connections -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ("[0, 5]", "an NVLink ends at GPU5, which does not exist: the machine has 2 GPUs"),
        ("[2, 0]", "an NVLink ends at GPU2, which does not exist"),
        ("[0, -1]", "an NVLink ends at GPU-1, which does not exist"),
        ("[1, 1]", "an NVLink connects GPU1 with itself"),
    ],
)
def test_a_dangling_nvlink_is_refused(path: Path, ends: str, expected: str) -> None:
    text = BRIDGED.replace("[0, 1], links", f"{ends}, links")
    refused(path, text, "box.yaml:9:10", f"nvlinks.0.gpus: {expected}")


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ("[0, 1, 2]", "nvlinks.0.gpus: expected at most 2 entries"),
        ("[0]", "nvlinks.0.gpus: expected 2 or more entries"),
        ("[]", "nvlinks.0.gpus: expected 2 or more entries"),
        ("0", "nvlinks.0.gpus: expected a list"),
        ("[a, b]", "nvlinks.0.gpus.0: expected an integer"),
    ],
)
def test_an_nvlink_has_two_ends(path: Path, ends: str, expected: str) -> None:
    text = BRIDGED.replace("[0, 1], links", f"{ends}, links")
    with pytest.raises(InputError, match=rf"^box\.yaml:9:\d+: {re.escape(expected)}$"):
        load(path, text)


@pytest.mark.parametrize("again", ["[0, 1]", "[1, 0]"])
def test_the_nvlinks_of_a_pair_are_written_once(path: Path, again: str) -> None:
    text = f"{BRIDGED}- {{gpus: {again}, links: 4}}\n"
    refused(path, text, "box.yaml:10:10", "nvlinks.1.gpus: the NVLinks of GPU", "appear twice")


@pytest.mark.parametrize(
    ("line", "where", "field"),
    [
        ("nvlinks: [{gpus: [0, 1], links: 4}]", "8:10", "nvlinks"),
        ("nvswitch: {links: 12}", "8:11", "nvswitch"),
    ],
)
def test_a_gpu_without_nvlink_has_none(path: Path, line: str, where: str, field: str) -> None:
    text = f"{PCIE}{line}\n"
    refused(path, text, f"box.yaml:{where}", f'{field}: the GPU "NVIDIA L40S" has no NVLink')


@pytest.mark.parametrize(
    ("text", "where", "expected"),
    [
        (
            SWITCHED + "nvlinks:\n- {gpus: [0, 1], links: 10}\n- {gpus: [2, 0], links: 10}\n",
            "10:25",
            "nvlinks.1.links: GPU0 would have 20 NVLinks; expected 18 or fewer",
        ),
        (
            SWITCHED + "nvlinks:\n- {gpus: [0, 1], links: 7}\n",
            "7:19",
            "nvswitch.links: GPU0 would have 19 NVLinks; expected 18 or fewer",
        ),
        (
            SWITCHED.replace("links: 12", "links: 19"),
            "7:19",
            "nvswitch.links: Input should be less than or equal to 18",
        ),
        (
            SWITCHED.replace("links: 12", "links: 12, lost: {1: 13}"),
            "7:33",
            "nvswitch.lost.1: expected 12 NVLinks or fewer, got 13",
        ),
        (
            SWITCHED.replace("links: 12", "links: 12, lost: {one: 0}"),
            "7:35",
            "nvswitch.lost.one: expected an integer",
        ),
    ],
)
def test_no_gpu_has_more_than_18_nvlinks(path: Path, text: str, where: str, expected: str) -> None:
    refused(path, text, f"box.yaml:{where}", expected)


def test_a_lost_gpu_that_does_not_exist_is_refused(path: Path) -> None:
    text = SWITCHED.replace("links: 12", "links: 12, lost: {7: 0}")
    refused(path, text, "box.yaml:7:33", "nvswitch.lost.7: GPU7 does not exist")


@pytest.mark.parametrize(
    ("old", "new", "where", "expected"),
    [
        ("[0, 1]", "[0, 0]", "6:15", "numa.0.roots.0.gpus.1: GPU0 appears twice"),
        ("[0, 1]", "[0, 2]", "6:15", "numa.0.roots.0.gpus.1: GPU2 exists, but not GPU1"),
        ("[0, 1]", "[1, 2]", "6:12", "numa.0.roots.0.gpus.0: GPU1 exists, but not GPU0"),
        ("[0, 1]", "[0, 5000]", "6:15", "gpus.1.index: Input should be less than 1024"),
        ("[0, 1]", "[0, -1]", "6:15", "gpus.1.index: Input should be greater than or equal to 0"),
        ("[mlx5_0]", "[a, b, a]", "7:18", 'numa.0.roots.0.nics.2: "a" appears twice'),
        ("[mlx5_0]", "[GPU0]", "7:12", 'numa.0.roots.0.nics.0: "GPU0" appears twice'),
        (
            "- gpus",
            "- id: pci0000:15\n  - id: pci0000:15\n    gpus",
            "7:5",
            'numa.0.roots.1: "pci0000:15" appears twice',
        ),
        (
            "[0, 1]",
            '[{index: 0, busId: "0000:1b:00.0"}, {index: 1, busId: "0000:1b:00.0"}]',
            "6:47",
            'gpus.1: busId "0000:1b:00.0" is also that of numa.0.roots.0.gpus.0',
        ),
        (
            "[0, 1]",
            "[{index: 0, uuid: GPU-a}, {index: 1, uuid: GPU-a}]",
            "6:37",
            'gpus.1: uuid "GPU-a" is also that of numa.0.roots.0.gpus.0',
        ),
        (
            "- id: 0",
            "- {id: 1, cpus: '0-3,8'}\n- id: 0\n  cpus: 4-9",
            "6:9",
            "numa.1.cpus: CPU 8 is also on NUMA node 1",
        ),
        (
            "- id: 0",
            "- {id: 0, cpus: 0-3}\n- id: 0\n  cpus: 4-7",
            "5:3",
            "numa.1: NUMA node 0 appears twice; expected another id",
        ),
        (
            "- id: 0",
            "- {id: 0, cpus: 0-3}\n- id: 0\n  socket: 1",
            "5:3",
            "numa.1: NUMA node 0 appears twice; expected another id",
        ),
    ],
)
def test_duplicates_are_refused(path: Path, old: str, new: str, where: str, expected: str) -> None:
    refused(path, PCIE.replace(old, new), f"box.yaml:{where}", expected)


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("nics: [mlx5_0]", "switches: &s [{switches: *s}]", "box.yaml:7:"),
        ("roots:\n", "roots: &r\n  - switches: *r\n", "box.yaml:6:"),
    ],
)
def test_a_switch_below_itself_is_refused(path: Path, old: str, new: str, where: str) -> None:
    with pytest.raises(InputError) as caught:
        load(path, PCIE.replace(old, new))
    assert str(caught.value).startswith(where)
    assert str(caught.value).endswith(" contains itself")


def test_a_machine_without_gpus_is_refused(path: Path) -> None:
    text = PCIE.replace("gpus: [0, 1]", "gpus: []")
    refused(path, text, "box.yaml:4:1", "numa: has no GPU below its roots; expected one or more")


def test_parts_of_a_tree_need_an_existing_parent() -> None:
    builder = known_builder()
    with pytest.raises(
        MachineError, match='"numa 0" is attached to "socket 1", which does not exist'
    ):
        builder.numa("numa 0", "socket 1")
    with pytest.raises(MachineError, match='"socket 0" appears twice'):
        builder.socket("socket 0")


def known_builder() -> MachineBuilder:
    machine = known_machine("l40s-pcie")
    builder = MachineBuilder("box", machine.link, machine.link)
    builder.socket("socket 0")
    return builder


def test_two_roots_of_a_numa_node_are_node_to_each_other(path: Path) -> None:
    assert load(path, BRIDGED).levels[0, 1] == Level.NODE
    assert load(path, SWITCHED).levels[0, 1] == Level.PHB


def test_two_parts_of_a_numa_node_are_sys_to_each_other(path: Path) -> None:
    first = PCIE.replace("- id: 0", "- id: 0\n  cpus: 0-31")
    machine = load(path, first + "- id: 0\n  roots:\n  - gpus: [2]\n")
    assert machine.numa_of == (0, 0, 0)
    assert {gpu.cpus for gpu in machine.gpus} == {"0-31"}
    assert machine.platform.numa_cpus == ((0, "0-31"),)
    assert [machine.label(2, other) for other in range(4)] == ["SYS", "SYS", "X", "SYS"]


def test_a_gpu_that_lost_its_nvlinks_falls_back_to_pcie(path: Path) -> None:
    machine = load(path, SWITCHED.replace("links: 12", "links: 12, lost: {2: 0, 1: 10}"))
    assert [machine.label(0, other) for other in range(3)] == ["X", "NV10", "PHB"]
    assert machine.bandwidth[0].tolist() == [np.inf, 250, 31.5]


def test_memory_is_in_bytes(path: Path) -> None:
    assert {gpu.memory for gpu in load(path, f"{PCIE}memory: 48Gi\n").gpus} == {48 * 2**30}


# The page --------------------------------------------------------------------------------

DOCS = ROOT / "docs"


def test_the_page_describes_every_field() -> None:
    page = (DOCS / "machines.md").read_text()
    models = (
        MachineFile,
        NumaEntry,
        RootEntry,
        SwitchEntry,
        GpuEntry,
        NicEntry,
        NvLinksEntry,
        NvSwitchEntry,
        PcieLink,
    )
    fields = {field.alias for model in models for field in model.model_fields.values()}
    assert {name for name in fields if f"`{name}`" not in page} <= {"generation", "width"}
    assert "{generation: 1 to 6, width: 1, 2, 4, 8, 16 or 32 lanes}" in page


def test_the_machine_of_the_page_is_the_file_beside_it() -> None:
    text = (DOCS / "quad-a100.yaml").read_text()
    assert f"```yaml\n{text}```" in (DOCS / "machines.md").read_text()
    assert load_machine(DOCS / "quad-a100.yaml").name == "quad-a100"


# Known machines --------------------------------------------------------------------------

FACTS: dict[str, tuple[int, int, dict[tuple[int, int], int] | int, float]] = {
    "a100-pcie-bridged": (4, 2, {(0, 1): 12, (2, 3): 12}, 300),
    "dgx-1v": (
        8,
        4,
        {
            **dict.fromkeys([(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)], 1),
            **dict.fromkeys([(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)], 2),
        },
        50,
    ),
    "dgx-a100": (8, 12, 12, 300),
    "dgx-h100": (8, 12, 18, 450),
    "gb200-nvl72": (4, 8, 18, 900),
    "hgx-b200": (8, 12, 18, 900),
    "hgx-h200": (8, 8, 18, 450),
    "l40s-pcie": (8, 4, {}, 31.5),
}
"""GPUs, NICs, NVLinks by pair (or of each GPU to NVSwitches), GB/s of the best pair."""


def test_the_known_machines_are_those_of_the_configs() -> None:
    assert known_machines() == sorted(path.stem for path in FOLDER.glob("*.yaml"))
    assert set(known_machines()) == set(FACTS)


def test_a_machine_that_is_not_known_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r'no machine "dgx-b100"; did you mean "dgx-\w+"\?'):
        known_machine("dgx-b100")


@pytest.mark.parametrize("name", FACTS)
def test_a_known_machine_is_what_its_vendor_says(name: str) -> None:
    machine = load_machine(FOLDER / f"{name}.yaml")
    gpus, nics, links, best = FACTS[name]
    assert machine.name == name
    assert (len(machine), len(machine.nics)) == (gpus, nics)
    expected = np.zeros((gpus, gpus), dtype=np.int64)
    if isinstance(links, dict):
        for (a, b), count in links.items():
            expected[a, b] = expected[b, a] = count
        assert (machine.direct == expected).all()
    else:
        expected[~np.eye(gpus, dtype=bool)] = links
        assert not machine.direct.any()
    assert (machine.nvlinks == expected).all()
    assert machine.bandwidth[~np.eye(gpus, dtype=bool)].max() == best


@pytest.mark.parametrize("name", FACTS)
def test_the_matrices_of_a_known_machine_are_symmetric_and_whole(name: str) -> None:
    machine = known_machine(name)
    for matrix in (machine.levels, machine.nvlinks, machine.direct, machine.bandwidth):
        assert (matrix == matrix.T).all()
    assert (machine.effective == machine.effective.T).all()
    assert not (machine.levels == UNKNOWN).any()
    assert (np.diag(machine.levels) == Level.X).all()
    assert (machine.effective <= machine.bandwidth).all()
    assert machine.notes == ()


def near(name: str) -> list[list[str]]:
    machine = known_machine(name)
    return [
        [machine.nics[nic].name for nic in machine.near_nics(gpu)] for gpu in range(len(machine))
    ]


def test_a_dgx_1v_has_a_nic_on_the_switch_of_each_pair() -> None:
    machine = known_machine("dgx-1v")
    assert near("dgx-1v") == [[f"mlx5_{gpu // 2}"] for gpu in range(8)]
    assert {machine.nic_distance(gpu) for gpu in range(8)} == {Level.PIX}
    assert [Level(machine.levels[0, other]).name for other in range(1, 8)] == [
        "PIX",
        "PHB",
        "PHB",
        "SYS",
        "SYS",
        "SYS",
        "SYS",
    ]
    assert machine.nvlinks.sum(axis=0).tolist() == [6] * 8
    assert machine.numa_of == (0, 0, 0, 0, 1, 1, 1, 1)


def test_a_dgx_a100_has_numa_nodes_out_of_order_and_storage_ports() -> None:
    machine = known_machine("dgx-a100")
    assert machine.numa_of == (3, 3, 1, 1, 7, 7, 5, 5)
    pairs = [["mlx5_0", "mlx5_1"], ["mlx5_2", "mlx5_3"], ["mlx5_6", "mlx5_7"], ["mlx5_8", "mlx5_9"]]
    assert near("dgx-a100") == [pairs[gpu // 2] for gpu in range(8)]
    assert {machine.nic_distance(gpu) for gpu in range(8)} == {Level.PXB}
    storage = [nic.name for nic in machine.nics if nic.storage]
    assert storage == ["mlx5_4", "mlx5_5", "mlx5_10", "mlx5_11"]


def test_a_dgx_h100_has_a_nic_for_each_gpu() -> None:
    expected = [[f"mlx5_{nic}"] for nic in (0, 3, 4, 5, 6, 9, 10, 11)]
    machine = known_machine("dgx-h100")
    assert near("dgx-h100") == expected
    assert {machine.nic_distance(gpu) for gpu in range(8)} == {Level.PXB}
    assert {nic.rate for nic in machine.nics} == {400}
    assert machine.gpus[5].bus_id == "0000:c3:00.0"
    assert machine.label(0, 8) == "PXB"
    assert machine.label(0, 14) == "SYS"


def test_an_hgx_h200_has_nics_in_an_order_of_their_own() -> None:
    assert near("hgx-h200") == [[f"mlx5_{nic}"] for nic in (4, 1, 0, 3, 6, 7, 5, 2)]


def test_an_hgx_b200_has_a_nic_for_each_gpu() -> None:
    assert near("hgx-b200") == [[f"mlx5_{nic}"] for nic in range(8)]


def test_a_gb200_tray_has_every_nic_at_sys() -> None:
    machine = known_machine("gb200-nvl72")
    assert {machine.nic_distance(gpu) for gpu in range(4)} == {Level.SYS}
    assert machine.numa_of == (0, 0, 1, 1)
    assert machine.platform.arch == "arm64"


def test_an_l40s_server_has_no_nvlink() -> None:
    machine = known_machine("l40s-pcie")
    assert not machine.nvlinks.any()
    assert [machine.label(0, other) for other in range(8)] == [
        "X",
        "PIX",
        *["NODE"] * 2,
        *["SYS"] * 4,
    ]
    assert near("l40s-pcie") == [[f"mlx5_{gpu // 2}"] for gpu in range(8)]


def test_bridged_a100_are_pairs_on_a_socket_each() -> None:
    machine = known_machine("a100-pcie-bridged")
    assert machine.numa_of == (0, 0, 1, 1)
    assert [machine.label(0, other) for other in range(4)] == ["X", "NV12", "SYS", "SYS"]
    assert machine.levels[0, 1] == Level.NODE
    assert near("a100-pcie-bridged") == [["mlx5_0"], ["mlx5_0"], ["mlx5_1"], ["mlx5_1"]]
