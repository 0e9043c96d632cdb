"""Read what ``nvidia-smi topo -m`` prints, as people publish it: whole, cut, glued or commented.

What the table does not show stays unknown or follows from what it does show; ``Machine.notes`` say
which. The formats differ by driver: SOC is the old name of SYS; columns for CPU and NUMA affinity
may be missing or empty; NICs are named themselves or by a legend.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bayplan.errors import InputError
from bayplan.naming import counted
from bayplan.topology.bandwidth import MOST_DIRECT_LINKS, Bandwidth, inter_socket, nvlink, pcie
from bayplan.topology.builder import MachineBuilder
from bayplan.topology.levels import UNKNOWN, Level, Levels, implied, is_ultrametric
from bayplan.topology.machine import Gpu, Machine, Nic
from bayplan.yamlfile import read_text

__all__ = ["parse_smi", "read_smi"]

_LEVEL = re.compile(r"X|SYS|SOC|NODE|PHB|PXB|PIX|NV\d+")
_ROW = re.compile(r"GPU\d+|NIC\d+|[a-z][a-z0-9]*[a-z_][a-z0-9_]*")
_LEGEND = re.compile(r"\s*(NIC\d+):\s*(\S+)\s*")
_GPU_BUS = re.compile(r"\s*(\d+),\s*([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*")
_NIC_NUMA = re.compile(r"\s*([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)\|(-?\d+)\s*")
_AFFINITIES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_GENERATIONS = ((18, 4, 5), (8, 3, 4), (5, 2, 3), (1, 1, 3))
"""Links of a GPU at least, the NVLink and the PCIe generation that are then assumed."""


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


def read_smi(path: Path) -> Machine:
    """Read a file that holds the output of ``nvidia-smi topo -m``.

    :raises InputError: when there is no such table in it.
    """
    return parse_smi(read_text(path), path.stem, str(path))


def parse_smi(text: str, name: str = "machine", source: str = "") -> Machine:
    """Turn the table into a machine.

    :param name: the machine's name.
    :param source: what errors name as the origin.
    :raises InputError: when the text holds no such table.
    """
    return _Reader(_read(text, source), name).machine()


# The text ----------------------------------------------------------------------------------


def _read(text: str, source: str) -> _Table:
    columns: list[str] = []
    header = ""
    found: list[tuple[str, str]] = []
    legend: dict[str, str] = {}
    gpu_bus: dict[int, str] = {}
    nic_numa: list[tuple[str, int]] = []
    for raw in text.splitlines():
        line = re.sub(r"^#\s?", "", raw)
        tokens = line.split()
        if len(tokens) > 1 and _ROW.fullmatch(tokens[0]) and _LEVEL.fullmatch(tokens[1]):
            if any(known == tokens[0] for known, _ in found):
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
    if not any(label.startswith("GPU") for label, _ in found):
        raise InputError("holds no GPU matrix; expected what nvidia-smi topo -m prints", source)
    notes: list[str] = []
    if not columns:
        columns = _guessed_columns(found)
        notes.append("the header is missing: columns are named by their place")
    given = [name for name in _AFFINITIES if name.replace(" ", "") in header.replace(" ", "")]
    if not header:
        given = list(_AFFINITIES)
    rows = {label: _row(label, line, columns, given, notes) for label, line in found}
    return _Table(columns, rows, legend, gpu_bus, nic_numa, notes)


def _is_header(tokens: Sequence[str]) -> bool:
    return bool(tokens) and tokens[0].startswith("GPU0") and not _LEVEL.fullmatch(tokens[-1])


def _columns(header: str) -> list[str]:
    """Return the names of the columns with levels; in a glued header they are cut apart."""
    named = re.split(r"CPU\s*Affinity", header)[0]
    found: list[str] = []
    for token in named.split():
        whole = _ROW.fullmatch(token) and token.count("GPU") < 2
        found += [token] if whole else _cut(token)
    return found


def _cut(token: str) -> list[str]:
    """Cut "GPU0GPU1mlx5_0" apart."""
    return re.findall(r"GPU\d+|NIC\d+|[a-z][a-z0-9]*_\d+", token)


def _guessed_columns(found: Sequence[tuple[str, str]]) -> list[str]:
    """Name the columns of a table without header: GPUs as far as an NVLink or an X is seen."""
    lines = [line.split()[1:] for _, line in found]
    width = max(sum(bool(_LEVEL.fullmatch(token)) for token in line) for line in lines)
    gpus = 0
    for line in lines:
        for index, cell in enumerate(line[:width]):
            if cell == "X" or cell.startswith("NV"):
                gpus = max(gpus, index + 1)
    return [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(width - gpus)]


def _row(
    label: str, line: str, columns: Sequence[str], given: Sequence[str], notes: list[str]
) -> _Row:
    tokens = line.split()[1:]
    cells = []
    for token in tokens[: len(columns)]:
        if not _LEVEL.fullmatch(token):
            break
        cells.append(token.replace("SOC", "SYS"))
    if len(cells) < len(columns):
        notes.append(f"the row of {label} ends after {len(cells)} of {len(columns)} columns")
        return _Row(label, cells)
    rest = tokens[len(cells) :]
    if not label.startswith("GPU") or not rest:
        return _Row(label, cells)
    return _Row(label, cells, _affinities(line, rest, given))


def _affinities(line: str, rest: Sequence[str], given: Sequence[str]) -> dict[str, str]:
    """Return the columns behind the levels; where one is empty, tabs tell which."""
    if len(rest) == len(given):
        return dict(zip(given, rest, strict=True))
    if given and given[0] == "CPU Affinity" and len(rest) == len(given) - 1:
        parts = [part.strip() for part in line.rstrip().split("\t")]
        levels = [index for index, part in enumerate(parts) if _LEVEL.fullmatch(part)]
        if levels and levels[-1] + 1 < len(parts) and not parts[levels[-1] + 1]:
            return dict(zip(given[1:], rest, strict=True))
    return dict(zip(given, rest, strict=False))


# The meaning -------------------------------------------------------------------------------


class _Reader:
    """Makes a machine of a table."""

    def __init__(self, table: _Table, name: str) -> None:
        self._table = table
        self._name = name
        self.notes = table.notes
        labels = list(dict.fromkeys([*table.columns, *table.rows]))
        self._gpus = sorted((n for n in labels if n.startswith("GPU")), key=lambda n: int(n[3:]))
        self._nics = [n for n in labels if not n.startswith("GPU")]
        self._devices = [*self._gpus, *self._nics]
        self._place = {label: index for index, label in enumerate(self._devices)}

    def machine(self) -> Machine:
        """Return the machine."""
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
        switched, direct = self._fabric(nvlinks)
        generation, pcie_generation = self._generation(switched, direct)
        link = nvlink(generation) if generation else Bandwidth(0, 0)
        between = inter_socket({3: "skylake", 4: "amd"}.get(pcie_generation, "sapphire-rapids"))
        builder = MachineBuilder(self._name, link, between)
        self._add_devices(builder, levels, numa, pcie(pcie_generation))
        for (a, b), count in direct.items():
            builder.nvlink(a, b, count)
        for gpu, count in switched.items():
            builder.nvswitch(gpu, count)
        builder.notes = self.notes
        return builder.build(levels)

    def _matrices(self) -> tuple[Levels, dict[tuple[int, int], int]]:
        """Return PCIe levels and NVLinks of pairs; where directions differ, the worse counts."""
        size = len(self._devices)
        levels = np.full((size, size), UNKNOWN, dtype=np.int8)
        np.fill_diagonal(levels, Level.X)
        seen: dict[tuple[int, int], dict[int, str]] = {}
        for label, row in self._table.rows.items():
            mine = self._place[label]
            for column, cell in zip(self._table.columns, row.cells, strict=False):
                other = self._place[column]
                if (cell == "X") != (mine == other):
                    what = "not X" if mine == other else "X"
                    self.notes.append(f"{label} to {column} is {what}: left out")
                elif mine != other:
                    seen.setdefault((min(mine, other), max(mine, other)), {})[mine] = cell
        nvlinks: dict[tuple[int, int], int] = {}
        for (a, b), ways in seen.items():
            cells = list(ways.values())
            if len(set(cells)) > 1:
                names = f"{self._devices[a]} to {self._devices[b]}"
                worse = max(cells, key=_badness)
                self.notes.append(
                    f"{names} is {cells[0]} one way and {cells[1]} the other: {worse} counts"
                )
                cells = [worse]
            if cells[0].startswith("NV"):
                nvlinks[a, b] = int(cells[0][2:])
            else:
                levels[a, b] = levels[b, a] = Level[cells[0]]
        return levels, nvlinks

    def _numa(self) -> list[int | None]:
        """Return the NUMA node of each GPU; of a list of nodes the first, if GPUs differ in it."""
        texts = [self._affinity(label, "NUMA Affinity") for label in self._gpus]
        lists = {text for text in texts if not text.isdecimal()} - {""}
        several = {text for text in texts if text}
        if lists and len(several) == 1:
            self.notes.append(f"every GPU is near NUMA nodes {lists.pop()}: its own is not known")
            return [None] * len(texts)
        found = [int(match[0]) if (match := re.match(r"\d+", text)) else None for text in texts]
        if None in found:
            missing = [gpu for gpu, node in zip(self._gpus, found, strict=True) if node is None]
            self.notes.append(f"the NUMA node of {_listed(missing)} is not shown")
        return found

    def _affinity(self, label: str, name: str) -> str:
        row = self._table.rows.get(label)
        text = row.affinities.get(name, "") if row is not None else ""
        return "" if text == "N/A" else text

    def _note_unknown(self, levels: Levels, nvlinks: Mapping[tuple[int, int], int]) -> None:
        absent = [label for label in self._devices if label not in self._table.rows]
        if absent:
            self.notes.append(f"the rows of {_listed(absent)} are missing")
        count = len(self._gpus)
        under = sum(int(levels[a, b] == UNKNOWN) for a, b in nvlinks)
        if under:
            self.notes.append(
                f"the PCIe level of {counted(under, 'pair')} of GPUs is not shown, only NVLinks"
            )
        nics = int((levels[:count, count:] == UNKNOWN).sum())
        if nics:
            self.notes.append(f"the level of {counted(nics, 'pair')} of GPU and NIC is not known")

    def _fabric(
        self, nvlinks: Mapping[tuple[int, int], int]
    ) -> tuple[dict[int, int], dict[tuple[int, int], int]]:
        """Tell links to NVSwitches (links by GPU) from links between GPUs (links by pair).

        A GPU whose pairs have more links than a GPU has shares them: that is an NVSwitch, and
        GPUs that are connected to one have as many links to each other.
        """
        totals: dict[int, int] = {}
        most: dict[int, int] = {}
        for (a, b), count in nvlinks.items():
            for gpu in (a, b):
                totals[gpu] = totals.get(gpu, 0) + count
                most[gpu] = max(most.get(gpu, 0), count)
        switched = {gpu: most[gpu] for gpu, total in totals.items() if total > MOST_DIRECT_LINKS}
        for a, b in nvlinks:
            for gpu, other in ((a, b), (b, a)):
                if other in switched:
                    switched.setdefault(gpu, most[gpu])
        direct = {pair: n for pair, n in nvlinks.items() if not set(pair) <= switched.keys()}
        unseen = [
            f"{self._gpus[a]} to {self._gpus[b]}"
            for a in switched
            for b in switched
            if a < b and (a, b) not in nvlinks
        ]
        if unseen:
            self.notes.append(
                f"{counted(len(unseen), 'pair')} of GPUs taken to be connected by NVSwitch, "
                "though not shown: both are connected to it"
            )
        return switched, direct

    def _generation(
        self, switched: Mapping[int, int], direct: Mapping[tuple[int, int], int]
    ) -> tuple[int, int]:
        """Return the generations of NVLink (0 for none) and PCIe that the links suggest."""
        links = dict(switched)
        for (a, b), count in direct.items():
            links[a] = links.get(a, 0) + count
            links[b] = links.get(b, 0) + count
        most = max(links.values(), default=0)
        for least, generation, pcie_generation in _GENERATIONS:
            if most >= least:
                self.notes.append(
                    f"assumed from the links: NVLink {generation} "
                    f"({nvlink(generation).wire:g} GB/s a link), PCIe {pcie_generation}"
                )
                return generation, pcie_generation
        self.notes.append("assumed, as nothing tells it: PCIe 3")
        return 0, 3

    # The tree ----------------------------------------------------------------------------

    def _add_devices(
        self,
        builder: MachineBuilder,
        levels: Levels,
        numa: Sequence[int | None],
        up: Bandwidth,
    ) -> None:
        groups = _Groups(levels, numa)
        bus = self._bus_ids()
        nics = self._named_nics()
        named: dict[int, str] = {}
        for index in range(len(self._devices)):
            self._add_place(builder, groups, index, numa, named, up)
        for index, label in enumerate(self._gpus):
            gpu = Gpu(
                index,
                bus_id=bus.get(label, ""),
                numa=numa[index],
                cpus=self._affinity(label, "CPU Affinity"),
            )
            builder.gpu(gpu, _parent(groups, index), up)
        for offset, label in enumerate(self._nics):
            index = len(self._gpus) + offset
            near = groups.numa_of(index)
            nic = Nic(offset, nics[label], label, bus.get(label, ""), near)
            builder.nic(nic, _parent(groups, index), up)

    def _add_place(
        self,
        builder: MachineBuilder,
        groups: _Groups,
        index: int,
        numa: Sequence[int | None],
        named: dict[int, str],
        up: Bandwidth,
    ) -> None:
        """Add what is above a device, unless an earlier device is below it, too."""
        node = groups.group(index, Level.NODE)
        if f"numa {node}" not in groups.made:
            builder.socket(f"socket {node}")
            builder.numa(f"numa {node}", f"socket {node}")
            groups.made.add(f"numa {node}")
        above = f"numa {node}"
        for level, word in ((Level.PHB, "root"), (Level.PXB, "switch"), (Level.PIX, "leaf")):
            group = groups.group(index, level)
            name = f"{word} {group}"
            if word != "root" and groups.size(index, level) < 2:
                break
            if name not in groups.made:
                if word == "root":
                    builder.root(name, above)
                else:
                    builder.switch(name, above, up)
                groups.made.add(name)
            above = name
        groups.above[index] = above

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


class _Groups:
    """Devices that are near each other at some level, as far as that is known."""

    def __init__(self, levels: Levels, numa: Sequence[int | None]) -> None:
        size = len(levels)
        self.made: set[str] = set()
        self.above: dict[int, str] = {}
        self._numa = list(numa) + [None] * (size - len(numa))
        self._groups: dict[Level, list[int]] = {}
        for level in (Level.PIX, Level.PXB, Level.PHB, Level.NODE):
            group = list(range(size))
            for a in range(size):
                for b in range(a):
                    known = levels[a, b] != UNKNOWN
                    near = known and levels[a, b] <= level
                    if not known and level is Level.NODE:
                        near = self._numa[a] is not None and self._numa[a] == self._numa[b]
                    if near and group[a] != group[b]:
                        old, new = max(group[a], group[b]), min(group[a], group[b])
                        group = [new if g == old else g for g in group]
            self._groups[level] = group

    def group(self, index: int, level: Level) -> int:
        """Return the group's number: that of its first device."""
        return self._groups[level][index]

    def size(self, index: int, level: Level) -> int:
        """Return how many devices are in the group."""
        return self._groups[level].count(self._groups[level][index])

    def numa_of(self, index: int) -> int | None:
        """Return the NUMA node of the GPUs in the device's NODE group, if they agree."""
        group = self._groups[Level.NODE]
        found = {
            self._numa[other]
            for other in range(len(group))
            if group[other] == group[index] and self._numa[other] is not None
        }
        return found.pop() if len(found) == 1 else None


def _apart(levels: Levels, a: int, b: int, numa: Sequence[int | None]) -> bool:
    """Tell whether GPUs are on different NUMA nodes and no third device shows otherwise."""
    if numa[a] is None or numa[b] is None or numa[a] == numa[b]:
        return False
    both = (levels[a] != UNKNOWN) & (levels[b] != UNKNOWN)
    both[[a, b]] = False
    return not bool((np.maximum(levels[a], levels[b])[both] < Level.SYS).any())


def _parent(groups: _Groups, index: int) -> str:
    return groups.above[index]


def _badness(cell: str) -> int:
    """Order cells from the most NVLinks to SYS."""
    return -int(cell[2:]) if cell.startswith("NV") else int(Level[cell])


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:6]) + (f" and {len(found) - 6} more" if len(found) > 6 else "")
