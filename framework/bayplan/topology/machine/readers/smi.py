"""Read what ``nvidia-smi topo -m`` prints, as people publish it: whole, cut, glued or commented.

What the table does not show stays unknown or follows from what it does show; ``Machine.notes`` say
which. The formats differ by driver: SOC is the old name of SYS; columns for CPU and NUMA affinity
may be missing or empty; NICs are named themselves or by a legend.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np

from bayplan.errors import InputError
from bayplan.inputs.documents import read_text
from bayplan.naming import counted
from bayplan.topology.machine.bandwidth import (
    MOST_DIRECT_LINKS,
    Bandwidth,
    inter_socket,
    model_of,
    nvlink,
    pcie,
)
from bayplan.topology.machine.builder import MachineBuilder
from bayplan.topology.machine.levels import UNKNOWN, Level, Levels, implied, is_ultrametric
from bayplan.topology.machine.model import Gpu, Machine, MachineError, Nic

__all__ = ["parse_smi", "read_smi"]

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
# More NVLinks than 18 no GPU has.
_LEVEL = re.compile(r"X|SYS|SOC|NODE|PHB|PXB|PIX|NV(?:[1-9]|1[0-8])")
_CELL = re.compile(r"[A-Z?][A-Z0-9?]*")
"""A level, or what stands in its place."""
_GPU = re.compile(r"GPU\d{1,4}")
_ROW = re.compile(r"GPU\d{1,4}|NIC\d{1,4}|[a-z][a-z0-9_-]*\d[a-z0-9_-]*")
_LEGEND = re.compile(r"\s*(NIC\d+):\s*(\S+)\s*")
_GPU_BUS = re.compile(r"\s*(\d{1,4}),\s*([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*")
_NIC_NUMA = re.compile(r"\s*([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)\|(-?\d{1,4})\s*")
_NUMA = re.compile(r"\d{1,4}(?!\d)")
_AFTER_LEVELS = re.compile(r"(?:CPU|NUMA)\s*Affinity|GPU\s*NUMA")
_AFFINITIES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_GENERATIONS = ((18, 4, 5), (8, 3, 4), (5, 2, 3), (1, 1, 3))
"""Links of a GPU at least, the NVLink and the PCIe generation that are then assumed."""
_CPU_OF_PCIE = {3: "skylake", 4: "amd", 5: "sapphire-rapids", 6: "sapphire-rapids"}
"""What the bandwidth between sockets is assumed by."""
_MOST_DEVICES = 256
_SOCKET = "socket ?"
_NOT_SHOWN = ("", "N/A", "?")


@dataclass
class _Row:
    """A line of the table: a device's levels by column, and its affinities."""

    name: str
    cells: list[str]
    affinities: dict[str, str] = field(default_factory=dict)


@dataclass
class _Table:
    """The text as read, before it means anything."""

    columns: list[str]
    rows: dict[str, _Row]
    legend: dict[str, str]
    gpu_bus: dict[int, str]
    nic_numa: list[tuple[str, int]]
    notes: list[str]


def read_smi(path: Path, model: str = "") -> Machine:
    """Read a file that holds the output of ``nvidia-smi topo -m``.

    :param model: the GPUs' model, where it is known: see ``parse_smi``.
    :raises InputError: when there is no such table in it, or one that is no machine's.
    """
    return parse_smi(read_text(path), path.stem, str(path), model)


def parse_smi(text: str, name: str = "machine", source: str = "", model: str = "") -> Machine:
    """Turn the table into a machine.

    :param name: the machine's name.
    :param source: what errors name as the origin.
    :param model: the GPUs' model, such as "NVIDIA B200"; the table does not say how fast a link is.
    :raises InputError: when the text holds no such table, or one that is no machine's.
    """
    table = _read(text, source)
    try:
        return _Reader(table, name, model).machine()
    except MachineError as exc:
        raise InputError(str(exc), source) from None


# The text ----------------------------------------------------------------------------------


def _read(text: str, source: str) -> _Table:
    columns: list[str] = []
    header = ""
    found: list[tuple[str, str]] = []
    legend: dict[str, str] = {}
    gpu_bus: dict[int, str] = {}
    nic_numa: list[tuple[str, int]] = []
    notes: list[str] = []
    for raw in text.splitlines():
        line = re.sub(r"^#\s?", "", _ESCAPE.sub("", raw))
        tokens = line.split()
        if _is_row(tokens, columns):
            if any(known == tokens[0] for known, _ in found):
                notes.append(f"a second table begins at {tokens[0]}: only the first is read")
                break
            found.append((tokens[0], line))
        elif not columns and not found and _is_header(tokens):
            header = line
            columns = _columns(line)
        elif match := _LEGEND.fullmatch(line):
            legend[match[1]] = match[2]
        elif match := _GPU_BUS.fullmatch(line):
            gpu_bus[int(match[1])] = match[2].lower().removeprefix("0000")
        elif match := _NIC_NUMA.fullmatch(line):
            nic_numa.append((match[1], int(match[2])))
    if not any(_GPU.fullmatch(label) for label, _ in found):
        raise InputError("holds no GPU matrix; expected what nvidia-smi topo -m prints", source)
    if not columns:
        columns = _guessed_columns(found)
        notes.append("the header is missing: columns are named by their place")
    _check_devices([*columns, *(label for label, _ in found)], source)
    given = [name for name in _AFFINITIES if name.replace(" ", "") in header.replace(" ", "")]
    if not header:
        given = list(_AFFINITIES)
    rows = {label: _row(label, line, columns, given, notes) for label, line in found}
    return _Table(columns, rows, legend, gpu_bus, nic_numa, notes)


def _check_devices(labels: Iterable[str], source: str) -> None:
    devices = dict.fromkeys(labels)
    if len(devices) > _MOST_DEVICES:
        raise InputError(f"holds a table of more than {_MOST_DEVICES} devices", source)
    numbers = sorted(int(label[3:]) for label in devices if _GPU.fullmatch(label))
    lacking = next((n for n, number in enumerate(numbers) if n != number), None)
    if lacking is not None:
        raise InputError(
            f"has GPU{numbers[-1]} but not GPU{lacking}: GPUs count from 0 without gaps", source
        )


def _is_row(tokens: Sequence[str], columns: Sequence[str]) -> bool:
    """Tell whether a line is a device's: by its first level, or by its X and the header."""
    if len(tokens) < 2:
        return False
    if tokens[0] in columns:
        return "X" in tokens or bool(_LEVEL.fullmatch(tokens[1]))
    named = _ROW.fullmatch(tokens[0]) and (not columns or not tokens[0][0].islower())
    return bool(named and _LEVEL.fullmatch(tokens[1]))


def _is_header(tokens: Sequence[str]) -> bool:
    return bool(tokens) and tokens[0].startswith("GPU0") and not _LEVEL.fullmatch(tokens[-1])


def _columns(header: str) -> list[str]:
    """Return the names of the columns with levels; in a glued header they are cut apart."""
    found: list[str] = []
    for token in _AFTER_LEVELS.split(header)[0].split():
        glued = token.count("GPU") > 1 or not _ROW.fullmatch(token)
        found += (glued and _cut(token)) or [token]
    return found


def _cut(token: str) -> list[str]:
    """Cut "GPU0GPU1mlx5_0" apart."""
    return re.findall(r"GPU\d+|NIC\d+|[a-z][a-z0-9]*_\d+", token)


def _guessed_columns(found: Sequence[tuple[str, str]]) -> list[str]:
    """Name the columns of a table without header.

    A row's own name is that of the column with its X. GPUs come first, as far as an X or an NVLink
    of a GPU's row is seen, and up to the first NIC where a row tells its number.
    """
    lines = {label: line.split()[1:] for label, line in found}
    width = max(sum(bool(_LEVEL.fullmatch(cell)) for cell in cells) for cells in lines.values())
    own = {cells.index("X"): label for label, cells in lines.items() if "X" in cells[:width]}
    gpus = 0
    for label, cells in lines.items():
        if _GPU.fullmatch(label):
            seen = [i for i, cell in enumerate(cells[:width]) if cell == "X" or cell[:2] == "NV"]
            gpus = max([gpus, *(index + 1 for index in seen)])
    for index, label in own.items():
        if re.fullmatch(r"NIC\d{1,4}", label):
            gpus = max(gpus, index - int(label[3:]))
    return [
        own.get(index, f"GPU{index}" if index < gpus else f"NIC{index - gpus}")
        for index in range(width)
    ]


def _row(
    label: str, line: str, columns: Sequence[str], given: Sequence[str], notes: list[str]
) -> _Row:
    tokens = line.split()[1:]
    cells = []
    for token in tokens[: len(columns)]:
        if not _CELL.fullmatch(token):
            break
        cells.append(token.replace("SOC", "SYS"))
    if len(cells) < len(columns):
        # The last one may be cut in its middle.
        if cells and not _LEVEL.fullmatch(cells[-1]):
            cells.pop()
        notes.append(f"the row of {label} ends after {len(cells)} of {len(columns)} columns")
    for column, cell in zip(columns, cells, strict=False):
        if cell.strip("?") and not _LEVEL.fullmatch(cell):
            notes.append(f'{label} to {column} is "{cell[:20]}", which is no level: not known')
    rest = tokens[len(cells) :]
    if len(cells) < len(columns) or not _GPU.fullmatch(label) or not rest:
        return _Row(label, cells)
    return _Row(label, cells, _affinities(line, rest, given))


def _affinities(line: str, rest: Sequence[str], given: Sequence[str]) -> dict[str, str]:
    """Return the columns behind the levels; where one is empty, tabs tell which."""
    if len(rest) == len(given):
        return dict(zip(given, rest, strict=True))
    if given and given[0] == "CPU Affinity" and len(rest) == len(given) - 1:
        parts = [part.strip() for part in line.rstrip().split("\t")]
        levels = [index for index, part in enumerate(parts) if _CELL.fullmatch(part)]
        if levels and levels[-1] + 1 < len(parts) and not parts[levels[-1] + 1]:
            return dict(zip(given[1:], rest, strict=True))
    return dict(zip(given, rest, strict=False))


# The meaning -------------------------------------------------------------------------------


class _Reader:
    """Makes a machine of a table."""

    def __init__(self, table: _Table, name: str, model: str) -> None:
        self._table = table
        self._name = name
        self._model = model
        self.notes = table.notes
        self._asymmetric: set[tuple[int, int]] = set()
        labels = list(dict.fromkeys([*table.columns, *table.rows]))
        gpus = (label for label in labels if _GPU.fullmatch(label))
        self._gpus = sorted(gpus, key=lambda label: int(label[3:]))
        self._nics = [label for label in labels if not _GPU.fullmatch(label)]
        self._devices = [*self._gpus, *self._nics]
        self._place = {label: index for index, label in enumerate(self._devices)}

    def machine(self) -> Machine:
        """Return the machine.

        :raises MachineError: when the names in the table are no devices'.
        """
        levels, nvlinks = self._matrices()
        numa = self._numa()
        for a in range(len(self._gpus)):
            for b in range(a):
                if levels[a, b] == UNKNOWN and _apart(levels, a, b, numa):
                    levels[a, b] = levels[b, a] = Level.SYS
        if not is_ultrametric(levels):
            self.notes.append("the levels contradict each other; they are kept as they are shown")
        levels = implied(levels)
        self._note_unknown(levels, nvlinks)
        ports = _ports(nvlinks)
        direct = {pair: n for pair, n in nvlinks.items() if n and not set(pair) <= ports.keys()}
        link, up, between = self._speeds(ports, direct)
        builder = MachineBuilder(self._name, link, between)
        self._add_devices(builder, levels, numa, up)
        for (a, b), count in direct.items():
            builder.nvlink(a, b, count)
        self._add_switched(builder, ports, nvlinks)
        builder.asymmetric = self._asymmetric
        builder.notes = self.notes
        return builder.build(levels)

    def _matrices(self) -> tuple[Levels, dict[tuple[int, int], int]]:
        """Return PCIe levels, and the NVLinks of every pair of GPUs that is shown.

        Where directions differ, the worse counts.
        """
        size = len(self._devices)
        levels = np.full((size, size), UNKNOWN, dtype=np.int8)
        np.fill_diagonal(levels, Level.X)
        nvlinks: dict[tuple[int, int], int] = {}
        for (a, b), cells in self._cells().items():
            cell = max(cells, key=_badness)
            if len({other.startswith("NV") for other in cells}) > 1:
                self._asymmetric.add((a, b))
            if len(set(cells)) > 1:
                names = f"{self._devices[a]} to {self._devices[b]}"
                self.notes.append(
                    f"{names} is {cells[0]} one way and {cells[1]} the other: {cell} counts"
                )
            linked = cell.startswith("NV")
            if b < len(self._gpus):
                nvlinks[a, b] = int(cell[2:]) if linked else 0
            if not linked:
                levels[a, b] = levels[b, a] = Level[cell]
        return levels, nvlinks

    def _cells(self) -> dict[tuple[int, int], list[str]]:
        """Return the one or two cells of every pair of devices that is shown."""
        seen: dict[tuple[int, int], list[str]] = {}
        for label, row in self._table.rows.items():
            mine = self._place[label]
            for column, cell in zip(self._table.columns, row.cells, strict=False):
                other = self._place[column]
                if (cell == "X") != (mine == other):
                    what = "not X" if mine == other else "X"
                    self.notes.append(f"{label} to {column} is {what}: left out")
                elif mine != other and _LEVEL.fullmatch(cell):
                    seen.setdefault((min(mine, other), max(mine, other)), []).append(cell)
        return seen

    def _numa(self) -> list[int | None]:
        """Return the NUMA node of each GPU; of a list of nodes the first, if GPUs differ in it."""
        texts = [self._affinity(label, "NUMA Affinity") for label in self._gpus]
        lists = {text for text in texts if not text.isdecimal()} - {""}
        several = {text for text in texts if text}
        if lists and len(several) == 1:
            self.notes.append(f"every GPU is near NUMA nodes {lists.pop()}: its own is not known")
            return [None] * len(texts)
        found = [int(match[0]) if (match := _NUMA.match(text)) else None for text in texts]
        if None in found:
            missing = [gpu for gpu, node in zip(self._gpus, found, strict=True) if node is None]
            self.notes.append(f"the NUMA node of {_listed(missing)} is not shown")
        return found

    def _affinity(self, label: str, name: str) -> str:
        row = self._table.rows.get(label)
        text = row.affinities.get(name, "") if row is not None else ""
        return "" if text in _NOT_SHOWN else text

    def _note_unknown(self, levels: Levels, nvlinks: Mapping[tuple[int, int], int]) -> None:
        absent = [label for label in self._devices if label not in self._table.rows]
        if absent:
            self.notes.append(f"the rows of {_listed(absent)} are missing")
        count = len(self._gpus)
        under = sum(int(levels[a, b] == UNKNOWN) for (a, b), links in nvlinks.items() if links)
        if under:
            self.notes.append(
                f"the PCIe level of {counted(under, 'pair')} of GPUs is not shown, only NVLinks"
            )
        nics = int((levels[:count, count:] == UNKNOWN).sum())
        if nics:
            self.notes.append(f"the level of {counted(nics, 'pair')} of GPU and NIC is not known")

    def _add_switched(
        self,
        builder: MachineBuilder,
        ports: Mapping[int, int],
        nvlinks: Mapping[tuple[int, int], int],
    ) -> None:
        """Add NVSwitches: what is shown of a pair counts, and what is not shown follows."""
        for gpu, count in ports.items():
            builder.nvswitch(gpu, count)
        unseen = 0
        for a, b in combinations(sorted(ports), 2):
            shown = nvlinks.get((a, b))
            if shown is None:
                unseen += 1
            elif shown < min(ports[a], ports[b]):
                builder.at_most(a, b, shown)
        if unseen:
            self.notes.append(
                f"{counted(unseen, 'pair')} of GPUs taken to be connected by NVSwitch, "
                "though not shown: both are connected to it"
            )

    def _speeds(
        self, ports: Mapping[int, int], direct: Mapping[tuple[int, int], int]
    ) -> tuple[Bandwidth, Bandwidth, Bandwidth]:
        """Return one NVLink, a device's PCIe link, and what two sockets exchange.

        They are those of the GPUs' model; what it does not tell is assumed, and that is noted.
        """
        links = dict(ports)
        for pair, count in direct.items():
            for gpu in pair:
                links[gpu] = links.get(gpu, 0) + count
        most = max(links.values(), default=0)
        model = model_of(self._model)
        if self._model and model is None:
            self.notes.append(f'the GPU "{self._model}" is not known: its links are assumed')
        guesses = ((nv, bus) for least, nv, bus in _GENERATIONS if most >= least)
        generation, bus = next(guesses, (0, 3))
        assumed = []
        if model is not None:
            bus = model.pcie
        if generation and model is not None and model.nvlink:
            generation = model.nvlink
        elif generation:
            assumed.append(f"NVLink {generation} ({nvlink(generation).wire:g} GB/s a link)")
        if model is None:
            assumed.append(f"PCIe {bus}")
        between = inter_socket(_CPU_OF_PCIE[bus])
        assumed.append(f"{between.wire:g} GB/s between sockets")
        why = "assumed from the links" if generation else "assumed, as nothing tells it"
        if model is not None:
            why = "assumed from the model"
        self.notes.append(f"{why}: {', '.join(assumed)}")
        link = nvlink(generation) if generation else Bandwidth(0.0, 0.0)
        return link, pcie(bus), between

    # The tree ----------------------------------------------------------------------------

    def _add_devices(
        self,
        builder: MachineBuilder,
        levels: Levels,
        numa: Sequence[int | None],
        up: Bandwidth,
    ) -> None:
        listed = self._nic_numa()
        places = _Places(levels, [*numa, *(listed.get(label) for label in self._nics)])
        above = places.add(builder, up)
        bus = self._bus_ids()
        nics = self._named_nics()
        for index, label in enumerate(self._gpus):
            gpu = Gpu(
                index,
                bus_id=bus.get(label, ""),
                model=self._model,
                numa=places.numa[index],
                cpus=self._affinity(label, "CPU Affinity"),
            )
            builder.gpu(gpu, above[index], up)
        for offset, label in enumerate(self._nics):
            index = len(self._gpus) + offset
            nic = Nic(offset, nics[label], label, bus.get(label, ""), places.numa[index])
            builder.nic(nic, above[index], up)

    def _nic_numa(self) -> dict[str, int]:
        """Return the NUMA nodes that a probe lists beside the table, NIC by NIC."""
        if len(self._table.nic_numa) != len(self._nics):
            return {}
        pairs = zip(self._nics, self._table.nic_numa, strict=True)
        return {label: node for label, (_, node) in pairs if node >= 0}

    def _bus_ids(self) -> dict[str, str]:
        found = {f"GPU{index}": bus for index, bus in self._table.gpu_bus.items()}
        if len(self._table.nic_numa) == len(self._nics):
            pairs = zip(self._nics, self._table.nic_numa, strict=True)
            found |= {label: bus for label, (bus, _) in pairs}
        if len(set(found.values())) < len(found):
            twice = sorted({b for b in found.values() if list(found.values()).count(b) > 1})
            self.notes.append(f"two devices have bus id {_listed(twice)}: bus ids are left out")
            return {}
        return found

    def _named_nics(self) -> dict[str, str]:
        """Return the RDMA names of NICs; where the legend lacks one, the table's own."""
        names = {label: self._table.legend.get(label, label) for label in self._nics}
        lacking = [label for label, name in names.items() if re.fullmatch(r"NIC\d+", name)]
        if lacking:
            self.notes.append(f"the legend does not name {_listed(lacking)}")
        if len(set(names.values())) < len(names):
            self.notes.append("the legend names two NICs alike: it is left out")
            return {label: label for label in self._nics}
        return names


class _Places:
    """Where devices hang, as far as their levels tell; ``numa`` has the NUMA node of each."""

    def __init__(self, levels: Levels, numa: Sequence[int | None]) -> None:
        self._leaf, self._switch, self._root, self._node = (
            _groups(levels, level) for level in (Level.PIX, Level.PXB, Level.PHB, Level.NODE)
        )
        self.numa = [
            self._shared_numa(group, numa) if node is None else node
            for group, node in zip(self._node, numa, strict=True)
        ]

    def _shared_numa(self, group: int, numa: Sequence[int | None]) -> int | None:
        """Return the NUMA node of the devices at NODE or nearer, if they agree."""
        found = {node for other, node in zip(self._node, numa, strict=True) if other == group}
        known = found - {None}
        return known.pop() if len(known) == 1 else None

    def add(self, builder: MachineBuilder, up: Bandwidth) -> list[str]:
        """Add NUMA nodes, roots and switches; return for each device what it hangs on.

        Of sockets a table says nothing.
        """
        builder.socket(_SOCKET)
        made: set[str] = set()
        above = []
        for index, node in enumerate(self.numa):
            numa = f"numa ? {self._node[index]}" if node is None else f"numa {node}"
            if numa not in made:
                builder.numa(numa, _SOCKET, node)
            root = f"root {self._root[index]}"
            if root not in made:
                builder.root(root, numa)
            chain = [root, *self._switches(index)]
            for upper, switch in pairwise(chain):
                if switch not in made:
                    builder.switch(switch, upper, up)
            made |= {numa, *chain}
            above.append(chain[-1])
        return above

    def _switches(self, index: int) -> list[str]:
        """Return the switches above a device: one for PIX, one more for PXB."""
        leaf, switch = self._leaf[index], self._switch[index]
        leaves = {
            own for own, upper in zip(self._leaf, self._switch, strict=True) if upper == switch
        }
        if len(leaves) > 1:
            return [f"switch {switch}", f"leaf {leaf}"]
        return [f"leaf {leaf}"] if self._leaf.count(leaf) > 1 else []


def _groups(levels: Levels, level: Level) -> list[int]:
    """Return for each device the first of those that it reaches by levels no farther than one."""
    # Late, as in MachineBuilder.
    import networkx as nx

    graph = nx.from_numpy_array((levels != UNKNOWN) & (levels <= level))
    first = {device: min(group) for group in nx.connected_components(graph) for device in group}
    return [first[device] for device in range(len(levels))]


def _ports(nvlinks: Mapping[tuple[int, int], int]) -> dict[int, int]:
    """Return the NVLinks to NVSwitches of each GPU that is connected to them.

    A GPU whose pairs have more links than a GPU has shares them: that is an NVSwitch, and what is
    linked to such a GPU is connected to the NVSwitch, too.
    """
    totals: dict[int, int] = {}
    most: dict[int, int] = {}
    for pair, count in nvlinks.items():
        for gpu in pair:
            totals[gpu] = totals.get(gpu, 0) + count
            most[gpu] = max(most.get(gpu, 0), count)
    sharing = {gpu for gpu, total in totals.items() if total > MOST_DIRECT_LINKS}
    linked = {gpu for pair, count in nvlinks.items() if count and sharing & {*pair} for gpu in pair}
    return {gpu: most[gpu] for gpu in sorted(sharing | linked)}


def _apart(levels: Levels, a: int, b: int, numa: Sequence[int | None]) -> bool:
    """Tell whether GPUs are on different NUMA nodes and no third device shows otherwise."""
    if numa[a] is None or numa[b] is None or numa[a] == numa[b]:
        return False
    both = (levels[a] != UNKNOWN) & (levels[b] != UNKNOWN)
    both[[a, b]] = False
    return not bool((np.maximum(levels[a], levels[b])[both] < Level.SYS).any())


def _badness(cell: str) -> int:
    """Order cells from the most NVLinks to SYS."""
    return -int(cell[2:]) if cell.startswith("NV") else int(Level[cell])


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:6]) + (f" and {len(found) - 6} more" if len(found) > 6 else "")
