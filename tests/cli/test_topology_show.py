"""``bayplan topology show`` as a person runs it: what is printed, drawn, chosen and refused."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.parsers import expat

import pytest
from tests.paths import SHARED

from bayplan.cli import main
from bayplan.topology.machine.readers.machinefile import known_machine, known_machines

TABLES = SHARED / "fixtures" / "nvidia-smi-topo"
TABLE = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV12\tSYS\tSYS\tPIX\tSYS\t0-15\t0\t\tN/A
GPU1\tNV12\t X \tSYS\tSYS\tNODE\tSYS\t0-15\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tNV12\tSYS\tPXB\t16-31\t1\t\tN/A
GPU3\tSYS\tSYS\tNV12\t X \tSYS\tNODE\t16-31\t1\t\tN/A
NIC0\tPIX\tNODE\tSYS\tSYS\t X \tSYS
NIC1\tSYS\tSYS\tPXB\tNODE\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes

NIC Legend:

  NIC0: mlx5_2
  NIC1: mlx5_0
"""
MACHINE = """\
name: box
gpu: NVIDIA L40S
numa:
- id: 0
  roots:
  - gpus: [0, 1]
    nics: [mlx5_0]
"""


@dataclass
class Answer:
    """What the command line said."""

    status: int
    out: str
    err: str


Show = Callable[..., Answer]


@pytest.fixture
def show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Show:
    """Run the command in an empty folder that holds a table and a machine."""
    monkeypatch.chdir(tmp_path)
    Path("table.txt").write_text(TABLE)
    Path("box.yaml").write_text(MACHINE)

    def run(*arguments: str, stdin: str | bytes = "") -> Answer:
        monkeypatch.setattr(sys, "argv", ["bayplan", "topology", "show", *arguments])
        given = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        status: object = 0
        try:
            main()
        except SystemExit as exc:
            status = exc.code
        captured = capsys.readouterr()
        assert isinstance(status, int)
        return Answer(status, captured.out, captured.err)

    return run


def shown(answer: Answer) -> str:
    """Assert that all went well; return what was printed, with single spaces."""
    assert (answer.status, answer.err) == (0, "")
    return re.sub(r"[ \t]+", " ", answer.out)


def as_json(answer: Answer) -> dict[str, Any]:
    """Return the one object that was printed; NaN and Infinity are none of JSON's words."""

    def never(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    assert (answer.status, answer.err) == (0, "")
    content = json.loads(answer.out, parse_constant=never)
    assert isinstance(content, dict)
    return content


def refused(answer: Answer, *parts: str) -> None:
    """Assert that input was refused as the rule says."""
    assert answer.out == ""
    assert "Traceback" not in answer.err
    assert answer.status == 2, answer.err
    for part in parts:
        assert part in answer.err


def elements(drawing: str) -> list[tuple[str, dict[str, str]]]:
    """Return the elements of a drawing, which has to be well-formed XML."""
    found: list[tuple[str, dict[str, str]]] = []
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda name, attributes: found.append((name, attributes))
    parser.Parse(drawing, True)
    return found


def devices(name: str) -> list[str]:
    """Return the names of a known machine's GPUs and NICs."""
    machine = known_machine(name)
    return [*(gpu.name for gpu in machine.gpus), *(nic.name for nic in machine.nics)]


def boxes(drawing: str, css: str) -> int:
    return sum(attributes.get("class") == css for _, attributes in elements(drawing))


# What is printed -------------------------------------------------------------------------


def test_the_matrix_is_that_of_nvidia_smi_with_numa_and_nics(show: Show) -> None:
    lines = shown(show("--smi", "table.txt")).splitlines()
    assert lines[0].startswith("table 4 GPUs, 2 NICs")
    assert lines[1:6] == [
        " GPU0 GPU1 GPU2 GPU3 mlx5_2 mlx5_0 CPU Affinity NUMA Affinity NICs ",
        "GPU0 X NV12 SYS SYS PIX SYS 0-15 0 mlx5_2 (PIX) ",
        "GPU1 NV12 X SYS SYS NODE SYS 0-15 0 mlx5_2 (NODE)",
        "GPU2 SYS SYS X NV12 SYS PXB 16-31 1 mlx5_0 (PXB) ",
        "GPU3 SYS SYS NV12 X SYS NODE 16-31 1 mlx5_0 (NODE)",
    ]


def test_the_tree_shows_the_parent_of_every_device(show: Show) -> None:
    lines = show("--machine", "l40s-pcie").out.split("PCIe and NUMA\n")[1].splitlines()
    assert [line.rstrip() for line in lines[:7]] == [
        "├── socket 0",
        "│   └── NUMA node 0",
        "│       ├── PCIe root",
        "│       │   └── PCIe switch",
        "│       │       ├── GPU0",
        "│       │       ├── GPU1",
        "│       │       └── mlx5_0 Ethernet 200 Gb/s rail 0",
    ]
    for name in known_machines():
        machine = known_machine(name)
        tree = shown(show("--machine", name)).split("PCIe and NUMA\n")[1]
        for device in devices(name):
            assert len(re.findall(rf"─ {device} ", tree)) == 1, (name, device)
        nodes = set(re.findall(r"NUMA node (\d+)", tree))
        assert {str(node) for node in machine.numa_of} <= nodes


def test_a_table_comes_from_standard_input(show: Show) -> None:
    assert "GPU0 X NV12 SYS" in shown(show("--smi", "-", stdin=TABLE))


def test_a_machine_comes_from_a_file(show: Show) -> None:
    assert "GPU0 X PHB PHB ? 0 mlx5_0 (PHB)" in shown(show("--machine", "box.yaml"))


@pytest.mark.parametrize("name", known_machines())
def test_the_printed_matrix_can_be_read_as_a_table(show: Show, name: str) -> None:
    printed = show("--machine", name).out
    there = as_json(show("--machine", name, "-o", "json"))
    back = as_json(show("--smi", "-", "-o", "json", stdin=printed))
    for part in ("gpus", "nvlinks", "numa", "nicLevels"):
        assert back[part] == there[part], part


def test_json_holds_the_whole_machine(show: Show) -> None:
    answer = as_json(show("--smi", "table.txt", "-o", "json"))
    bandwidth = answer.pop("bandwidthGBps")
    assert [bandwidth[gpu][gpu] for gpu in range(4)] == [None] * 4
    assert (bandwidth[0][1], bandwidth[2][3]) == (300, 300)
    assert bandwidth[0][2] < 300
    assert answer == {
        "machine": "table",
        "gpus": ["GPU0", "GPU1", "GPU2", "GPU3"],
        "levels": [
            ["X", "NVL", "SYS", "SYS"],
            ["NVL", "X", "SYS", "SYS"],
            ["SYS", "SYS", "X", "NVL"],
            ["SYS", "SYS", "NVL", "X"],
        ],
        "nvlinks": [[0, 12, 0, 0], [12, 0, 0, 0], [0, 0, 0, 12], [0, 0, 12, 0]],
        "numa": [0, 0, 1, 1],
        "nics": {"GPU0": ["mlx5_2"], "GPU1": ["mlx5_2"], "GPU2": ["mlx5_0"], "GPU3": ["mlx5_0"]},
        "nicLevels": {
            "mlx5_2": ["PIX", "NODE", "SYS", "SYS"],
            "mlx5_0": ["SYS", "SYS", "PXB", "NODE"],
        },
        "notes": [
            "assumed from the links: NVLink 3 (25 GB/s a link), PCIe 4, 16 GB/s between sockets"
        ],
    }


def test_unknown_facts_are_noted_and_not_guessed(show: Show) -> None:
    text = "\tGPU0\tGPU1\tNIC0\nGPU0\tX\tNV4\tPIX\n"
    printed = shown(show("--smi", "-", stdin=text))
    assert "GPU0 X NV4 PIX ? ? NIC0 (PIX)" in printed
    assert "GPU1 NV4 X ? ? ? " in printed
    assert "note: the NUMA node of GPU0, GPU1 is not shown" in printed
    assert "note: the rows of GPU1, NIC0 are missing" in printed
    answer = as_json(show("--smi", "-", "-o", "json", stdin=text))
    assert answer["numa"] == [None, None]
    assert answer["nicLevels"] == {"NIC0": ["PIX", "?"]}
    assert answer["nics"] == {"GPU0": ["NIC0"], "GPU1": []}


def test_names_are_not_markup(show: Show) -> None:
    Path("odd.yaml").write_text(MACHINE.replace("name: box", "name: '[/bold] & <b>'"))
    answer = show("--machine", "odd.yaml", "--svg", "odd.svg")
    assert shown(answer).startswith("[/bold] & <b> 2 GPUs (NVIDIA L40S), 1 NIC\n")
    drawing = Path("odd.svg").read_text()
    assert elements(drawing)[0][0] == "svg"
    assert "[/bold] &amp; &lt;b&gt;" in drawing


@pytest.mark.skipif(not TABLES.is_dir(), reason="the shared fixtures are not beside the project")
@pytest.mark.parametrize("path", sorted(TABLES.glob("*.txt")), ids=lambda path: path.stem)
def test_every_published_table_is_shown_drawn_and_chosen_from(show: Show, path: Path) -> None:
    arguments = ("--smi", str(path), "--select", "2")
    answer = as_json(show(*arguments, "-o", "json"))
    assert len(set(answer["selected"])) == 2
    assert answer["bottleneckGBps"] > 0
    printed = shown(show(*arguments, "--svg", "machine.svg"))
    assert f"Chosen {', '.join(f'GPU{gpu}' for gpu in answer['selected'])}\n" in printed
    for reason in answer["why"]:
        assert f"\n {reason}\n" in printed
    assert printed.count("\nnote: ") == len(answer["notes"])
    drawing = Path("machine.svg").read_text()
    assert boxes(drawing, "gpu chosen") == 2
    assert boxes(drawing, "gpu") == len(answer["gpus"]) - 2


def test_a_bus_id_is_not_an_emoji(show: Show) -> None:
    Path("box.yaml").write_text(MACHINE.replace("[0,", '[{index: 0, busId: "0000:ab:00.0"},'))
    assert "GPU0 0000:ab:00.0" in shown(show("--machine", "box.yaml"))


def test_one_of_a_kind_is_in_the_singular(show: Show) -> None:
    text = "\tGPU0\tGPU1\tNIC0\nGPU0\tX\tNV1\tPIX\nGPU1\tNV1\tX\tPIX\n"
    printed = shown(show("--smi", "-", stdin=text))
    assert "2 GPUs, 1 NIC," in printed
    assert "GPU0 up to 1 NVLink to a peer" in printed


def test_a_narrow_terminal_cuts_nothing(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = show("--machine", "dgx-h100").out
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    narrow = re.sub(r"\x1b\[[0-9;]*m", "", show("--machine", "dgx-h100").out)
    assert narrow == wide


def test_the_numa_nodes_of_a_table_have_its_numbers(show: Show) -> None:
    table = TABLE.replace("0-15\t0\t", "0-15\t3\t").replace("16-31\t1\t", "16-31\t5\t")
    printed = show("--smi", "-", "--svg", "machine.svg", stdin=table).out
    tree = printed[printed.index("PCIe and NUMA") : printed.index("note:")]
    assert re.findall(r"socket .*|NUMA node .*", tree) == [
        "socket not known",
        "NUMA node 3",
        "NUMA node 5",
    ]
    drawing = Path("machine.svg").read_text()
    assert re.findall(r">(NUMA \d)<", drawing).count("NUMA 3") == 3


def test_the_gpus_model_goes_with_a_table(show: Show) -> None:
    answer = as_json(show("--smi", "table.txt", "--gpu", "A100-SXM4-80GB", "-o", "json"))
    assert answer["notes"] == ["assumed from the model: 16 GB/s between sockets"]
    refused(show("--machine", "dgx-1v", "--gpu", "B200"), "--gpu requires --smi")


# What is chosen --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "count", "expected"),
    [
        (
            "dgx-1v",
            4,
            """\
Chosen  GPU0, GPU1, GPU2, GPU3
  100 GB/s in rings over NVLink (4 of 25 GB/s at once)
  4 of 4 GPUs near a NIC: mlx5_0, mlx5_1
  NUMA 0
  leaves 4 of 4 free GPUs connected by NVLink
  ring 0 - 1 - 2 - 3 - 0, slowest edge 25 GB/s
""",
        ),
        (
            "dgx-1v",
            1,
            """\
Chosen  GPU0
  1 of 1 GPU near a NIC: mlx5_0
  NUMA 0
  leaves 7 of 7 free GPUs connected by NVLink
""",
        ),
        (
            "l40s-pcie",
            3,
            """\
Chosen  GPU0, GPU1, GPU2
  31.5 GB/s in rings
  3 of 3 GPUs near a NIC: mlx5_0, mlx5_1
  NUMA 0
  ring 0 - 1 - 2 - 0, slowest edge 31.5 GB/s
""",
        ),
    ],
)
def test_the_gpus_chosen_come_with_a_why(
    show: Show, machine: str, count: int, expected: str
) -> None:
    printed = show("--machine", machine, "--select", str(count)).out
    assert printed[printed.index("Chosen") :] == expected


def test_json_says_what_is_chosen_and_why(show: Show) -> None:
    answer = as_json(show("--machine", "a100-pcie-bridged", "--select", "2", "-o", "json"))
    assert answer["selected"] == [0, 1]
    assert answer["bottleneckGBps"] == answer["slowestEdgeGBps"] == 300
    assert answer["why"] == [
        "300 GB/s in rings over NVLink",
        "no NIC nearer than NODE",
        "NUMA 0",
        "leaves 2 of 2 free GPUs connected by NVLink",
    ]


def test_one_gpu_has_no_bandwidth_of_rings(show: Show) -> None:
    answer = as_json(show("--machine", "dgx-h100", "--select", "1", "-o", "json"))
    assert answer["bottleneckGBps"] is None
    assert answer["slowestEdgeGBps"] is None
    assert len(answer["selected"]) == 1


def test_a_choice_of_all_gpus_leaves_none(show: Show) -> None:
    answer = as_json(show("--machine", "dgx-h100", "--select", "8", "-o", "json"))
    assert answer["selected"] == list(range(8))
    assert not any(reason.startswith("leaves") for reason in answer["why"])


def test_the_why_says_that_numa_nodes_are_not_known(show: Show) -> None:
    text = "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tSYS\tPIX\nGPU1\tSYS\tX\tSYS\nGPU2\tPIX\tSYS\tX\n"
    answer = as_json(show("--smi", "-", "--select", "2", "-o", "json", stdin=text))
    assert answer["selected"] == [0, 2]
    assert "NUMA not known" in answer["why"]


# What is drawn ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", known_machines())
def test_a_drawing_has_every_device_and_fills_what_is_chosen(show: Show, name: str) -> None:
    machine = known_machine(name)
    shown(show("--machine", name, "--select", "2", "--svg", "machine.svg"))
    drawing = Path("machine.svg").read_text()
    assert boxes(drawing, "gpu chosen") == 2
    assert boxes(drawing, "gpu") == len(machine) - 2
    for device in devices(name):
        assert drawing.count(f">{device}<") == 1
    direct = sum(machine.direct[gpu, :gpu].astype(bool).sum() for gpu in range(len(machine)))
    switched = len(machine) if ">NVSwitch<" in drawing else 0
    assert boxes(drawing, "nvlink") == direct + switched
    assert bool(switched) == bool(machine.nvlinks.any() and not direct)


def test_a_drawing_is_the_same_each_time(show: Show) -> None:
    show("--machine", "dgx-1v", "--svg", "one.svg")
    show("--machine", "dgx-1v", "--svg", "two.svg")
    assert Path("one.svg").read_bytes() == Path("two.svg").read_bytes()


def test_a_long_name_has_a_box_that_holds_it(show: Show) -> None:
    name = "mlx5_bond_with_a_very_long_name_0"
    Path("box.yaml").write_text(MACHINE.replace("mlx5_0", name))
    shown(show("--machine", "box.yaml", "--svg", "machine.svg"))
    drawing = Path("machine.svg").read_text()
    assert f">{name}<" in drawing
    widths = [float(a["width"]) for _, a in elements(drawing) if a.get("class") == "box"]
    assert max(widths) > 7 * len(name)


def test_a_legend_distinguishes_one_nvlink_from_two(show: Show) -> None:
    shown(show("--machine", "dgx-1v", "--svg", "machine.svg"))
    drawing = Path("machine.svg").read_text()
    lines = [a["stroke-width"] for _, a in elements(drawing) if a.get("class") == "legend"]
    assert len(lines) == 2
    assert len(set(lines)) == 2
    assert (drawing.count(">NV1<"), drawing.count(">NV2<")) == (1, 1)


# Tables that are not whole ---------------------------------------------------------------


def test_directions_that_differ_are_noted_and_the_worse_counts(show: Show) -> None:
    text = TABLE.replace("GPU3\tSYS\tSYS\tNV12", "GPU3\tSYS\tSYS\tNODE")
    printed = shown(show("--smi", "-", stdin=text))
    assert "GPU2 SYS SYS X NODE SYS" in printed
    assert "note: GPU2 to GPU3 is NV12 one way and NODE the other: NODE counts" in printed


def test_a_table_cut_in_the_middle_is_shown_as_far_as_it_goes(show: Show) -> None:
    text = TABLE[: TABLE.index("GPU2\tSYS") + len("GPU2\tSYS\tSY")]
    printed = shown(show("--smi", "-", stdin=text))
    assert "GPU0 X NV12 SYS SYS PIX SYS 0-15 0 NIC0 (PIX)" in printed
    assert "GPU3 SYS SYS ? X SYS ? ? ? " in printed
    assert "note: the row of GPU2 ends after 1 of 6 columns" in printed
    assert "note: the rows of GPU3, NIC0, NIC1 are missing" in printed


@pytest.mark.parametrize("end", range(0, len(TABLE), 17))
def test_wherever_a_table_is_cut_it_is_read_or_refused(show: Show, end: int) -> None:
    answer = show("--smi", "-", "--select", "1", "-o", "json", stdin=TABLE[:end])
    if answer.status:
        refused(answer, "standard input: holds no GPU matrix")
    else:
        content = as_json(answer)
        assert content["gpus"] == ["GPU0", "GPU1", "GPU2", "GPU3"]
        assert content["notes"]


def test_a_contradiction_between_levels_is_noted(show: Show) -> None:
    text = "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tPIX\tPIX\nGPU1\tPIX\tX\tSYS\nGPU2\tPIX\tSYS\tX\n"
    printed = shown(show("--smi", "-", stdin=text))
    assert "GPU1 PIX X SYS" in printed
    assert "note: the levels contradict each other; they are kept as they are shown" in printed


# What is refused -------------------------------------------------------------------------


def test_standard_input_that_is_not_utf_8_is_refused(show: Show) -> None:
    refused(show("--smi", "-", stdin=b"GPU0 \xff"), "standard input: is not UTF-8 text (byte 5)")


@pytest.mark.parametrize("name", ["a" * 5000, "b/" + "a" * 5000])
def test_a_name_that_is_too_long_is_refused(show: Show, name: str) -> None:
    refused(show("--machine", name), "bayplan: ")


@pytest.mark.parametrize("option", ["--smi", "--machine"])
def test_an_empty_name_is_refused(show: Show, option: str) -> None:
    refused(show(option, ""), f"{option}: expected the name of a file")


@pytest.mark.parametrize(
    ("name", "problem"), [("GPU0", "appears twice"), ("NVSwitch", "is a reserved name")]
)
def test_a_nic_with_a_name_of_another_device_is_refused(
    show: Show, name: str, problem: str
) -> None:
    Path("box.yaml").write_text(MACHINE.replace("mlx5_0", name))
    refused(show("--machine", "box.yaml"), "box.yaml:7:", f'"{name}" {problem}')


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("topology", "show", "--machine", "dgx-1v"),
        ("topology", "show", "--machine", "dgx-1v", "-o", "json"),
    ],
)
def test_output_that_cannot_be_written_is_an_error(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        program = [sys.executable, "-c", "from bayplan.cli import main; main()", *arguments]
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, check=False, text=True)
    told = "bayplan: standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, told)


@pytest.mark.parametrize("option", ["--smi", "--machine"])
@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("nowhere.yaml", ("nowhere.yaml: No such file or directory",)),
        ("no/where.txt", ("no/where.txt: No such file or directory",)),
        ("table.txt/below", ("table.txt/below: Not a directory",)),
        ("folder", ("folder: Is a directory",)),
        ("binary", ("binary: is not UTF-8 text",)),
        ("empty", ("empty: holds ", "; expected ")),
        ("prose.txt", ("prose.txt", "expected ")),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(
    show: Show, option: str, path: str, parts: tuple[str, ...]
) -> None:
    Path("folder").mkdir()
    Path("binary").write_bytes(b"\x7fELF\x00\xff\xfe")
    Path("empty").write_text("")
    Path("prose.txt").write_text("127.0.0.1 localhost\n")
    refused(show(option, path), *parts)


@pytest.mark.parametrize(
    "text", ["", "\n\n", "GPU0\n", "\tGPU0\tGPU1\n", "No devices were found\n"]
)
def test_standard_input_without_a_table_is_refused(show: Show, text: str) -> None:
    refused(
        show("--smi", "-", stdin=text),
        "bayplan: standard input: holds no GPU matrix; expected what nvidia-smi topo -m prints",
    )


def test_a_mistake_in_a_machine_is_refused_with_its_position(show: Show) -> None:
    Path("box.yaml").write_text(MACHINE.replace("nics", "nic"))
    refused(show("--machine", "box.yaml"), "bayplan: box.yaml:7:", 'did you mean "nics"?')


def test_a_machine_that_is_not_known_is_refused_with_the_nearest(show: Show) -> None:
    refused(show("--machine", "dgx1v"), 'no machine "dgx1v"; did you mean "dgx-1v"?', "l40s-pcie")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--select", "2"),
        ("--machine", "dgx-1v", "--smi", "table.txt"),
        ("--machine", "dgx-1v", "--local"),
        ("--smi", "table.txt", "--local"),
    ],
)
def test_one_machine_has_to_be_given(show: Show, arguments: tuple[str, ...]) -> None:
    refused(show(*arguments), "give one of --machine, --smi and --local")


@pytest.mark.parametrize(
    ("count", "parts"),
    [
        ("0", ("--select", "0 is not in the range x>=1")),
        ("-1", ("--select", "-1 is not in the range x>=1")),
        ("two", ("--select", "'two' is not a valid integer")),
        ("1.5", ("--select", "'1.5' is not a valid integer")),
        ("", ("--select", "not a valid integer")),
        ("9", ("--select 9: the machine has 8 GPUs, 9 are asked for",)),
        ("9" * 30, ("the machine has 8 GPUs",)),
    ],
)
def test_a_number_of_gpus_that_cannot_be_chosen_is_refused(
    show: Show, count: str, parts: tuple[str, ...]
) -> None:
    refused(show("--machine", "dgx-1v", "--select", count, "--svg", "machine.svg"), *parts)
    assert not Path("machine.svg").exists()


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        (".", ("--svg", "is a directory")),
        ("", ("--svg: expected the name of a file",)),
    ],
)
def test_a_drawing_that_is_not_a_file_is_refused(
    show: Show, path: str, parts: tuple[str, ...]
) -> None:
    refused(show("--machine", "dgx-1v", "--svg", path), *parts)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("no/where.svg", "no/where.svg: No such file or directory"),
        ("box.yaml/machine.svg", "box.yaml/machine.svg: Not a directory"),
        ("a" * 300, ": File name too long"),
    ],
)
def test_a_drawing_that_cannot_be_written_does_not_lose_the_matrix(
    show: Show, path: str, problem: str
) -> None:
    answer = show("--machine", "dgx-1v", "--svg", path)
    assert answer.status == 2
    assert answer.err.startswith("bayplan: ")
    assert answer.err.endswith(f"{problem}\n")
    assert answer.out == show("--machine", "dgx-1v").out


def test_an_unknown_output_format_is_refused(show: Show) -> None:
    refused(show("--machine", "dgx-1v", "-o", "yaml"), "--output", "table", "json")
