"""A machine from the output of ``nvidia-smi topo -m``.

Facts that the table does not show are inferred from the others or stay unknown; ``Machine.notes``
list both. :mod:`bayplan.topology.machine.readers.smi_table` reads the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np

from bayplan.errors import InputError
from bayplan.inputs.documents import read_text
from bayplan.naming import counted, listed
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
from bayplan.topology.machine.readers.smi_table import SmiTable, is_gpu, is_level, read_table

__all__ = ["parse_smi", "read_smi"]

_NUMA = re.compile(r"\d{1,4}(?!\d)")
_GENERATIONS = ((18, 4, 5), (8, 3, 4), (5, 2, 3), (1, 1, 3))
"""From this many NVLinks of one GPU on, assume this NVLink and this PCIe generation."""
_CPU_OF_PCIE = {3: "skylake", 4: "amd", 5: "sapphire-rapids", 6: "sapphire-rapids"}
"""The CPU to assume, by PCIe generation; it sets the bandwidth between sockets."""
_SOCKET = "socket ?"
_NOT_SHOWN = ("", "N/A", "?")
_MOST_NAMED = 6


def read_smi(path: Path, model: str = "") -> Machine:
    """Read a file that holds the output of ``nvidia-smi topo -m``.

    :param model: the GPUs' model, if known: see ``parse_smi``.
    :raises InputError: when the file holds no matrix, or one that cannot describe a machine.
    """
    return parse_smi(read_text(path), path.stem, str(path), model)


def parse_smi(text: str, name: str = "machine", source: str = "", model: str = "") -> Machine:
    """Parse the output of ``nvidia-smi topo -m`` into a machine.

    :param name: the machine's name.
    :param source: the origin that errors name.
    :param model: the GPUs' model, such as "NVIDIA B200". It sets the speed of the links, which the
        table does not show.
    :raises InputError: when the text holds no matrix, or one that cannot describe a machine.
    """
    table = read_table(text, source)
    try:
        return _SmiMachine(table, name, model).machine()
    except MachineError as exc:
        raise InputError(str(exc), source) from None


class _SmiMachine:
    """Turns a table into a machine. Devices go by index: GPUs in order, then NICs."""

    def __init__(self, table: SmiTable, name: str, model: str) -> None:
        self._table = table
        self._name = name
        self._model = model
        self._notes = list(table.notes)
        self._asymmetric: set[tuple[int, int]] = set()
        labels = list(dict.fromkeys([*table.columns, *table.rows]))
        gpus = (label for label in labels if is_gpu(label))
        self._gpus = sorted(gpus, key=lambda label: int(label[3:]))
        self._nics = [label for label in labels if not is_gpu(label)]
        self._devices = [*self._gpus, *self._nics]
        self._index_of = {label: index for index, label in enumerate(self._devices)}

    def machine(self) -> Machine:
        """Return the machine.

        :raises MachineError: when a name in the table cannot name a device.
        """
        levels, nvlinks = self._matrices()
        numa = self._numa()
        for a in range(len(self._gpus)):
            for b in range(a):
                if levels[a, b] == UNKNOWN and _apart(levels, a, b, numa):
                    levels[a, b] = levels[b, a] = Level.SYS
        if not is_ultrametric(levels):
            self._notes.append("the levels contradict each other; they are kept as they are shown")
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
        return builder.build(levels, self._notes, self._asymmetric)

    def _matrices(self) -> tuple[Levels, dict[tuple[int, int], int]]:
        """Return the PCIe levels of all pairs, and the NVLinks of each pair of GPUs that is shown.

        Of two directions that differ, the worse one counts.
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
                self._notes.append(
                    f"{names} is {cells[0]} one way and {cells[1]} the other: {cell} counts"
                )
            linked = cell.startswith("NV")
            if b < len(self._gpus):
                nvlinks[a, b] = int(cell[2:]) if linked else 0
            if not linked:
                levels[a, b] = levels[b, a] = Level[cell]
        return levels, nvlinks

    def _cells(self) -> dict[tuple[int, int], list[str]]:
        """Return the cells of each pair of devices: one, or two when both directions are shown."""
        seen: dict[tuple[int, int], list[str]] = {}
        for label, row in self._table.rows.items():
            mine = self._index_of[label]
            for column, cell in zip(self._table.columns, row.cells, strict=False):
                other = self._index_of[column]
                if (cell == "X") != (mine == other):
                    what = "not X" if mine == other else "X"
                    self._notes.append(f"{label} to {column} is {what}: ignored")
                elif mine != other and is_level(cell):
                    seen.setdefault((min(mine, other), max(mine, other)), []).append(cell)
        return seen

    def _numa(self) -> list[int | None]:
        """Return the NUMA node of each GPU.

        For a list of nodes it is the first, unless every GPU shows the same list.
        """
        texts = [self._affinity(label, "NUMA Affinity") for label in self._gpus]
        lists = {text for text in texts if not text.isdecimal()} - {""}
        several = {text for text in texts if text}
        if lists and len(several) == 1:
            self._notes.append(f"every GPU is near NUMA nodes {lists.pop()}: its own is not known")
            return [None] * len(texts)
        found = [int(match[0]) if (match := _NUMA.match(text)) else None for text in texts]
        if None in found:
            missing = [gpu for gpu, node in zip(self._gpus, found, strict=True) if node is None]
            self._notes.append(f"the NUMA node of {listed(missing, _MOST_NAMED)} is not shown")
        return found

    def _affinity(self, label: str, name: str) -> str:
        row = self._table.rows.get(label)
        text = row.affinities.get(name, "") if row is not None else ""
        return "" if text in _NOT_SHOWN else text

    def _note_unknown(self, levels: Levels, nvlinks: Mapping[tuple[int, int], int]) -> None:
        absent = [label for label in self._devices if label not in self._table.rows]
        if absent:
            self._notes.append(f"the rows of {listed(absent, _MOST_NAMED)} are missing")
        count = len(self._gpus)
        under = sum(int(levels[a, b] == UNKNOWN) for (a, b), links in nvlinks.items() if links)
        if under:
            self._notes.append(
                f"the PCIe level of {counted(under, 'pair')} of GPUs is not shown, only NVLinks"
            )
        nics = int((levels[:count, count:] == UNKNOWN).sum())
        if nics:
            self._notes.append(f"the level of {counted(nics, 'pair')} of GPU and NIC is not known")

    def _add_switched(
        self,
        builder: MachineBuilder,
        ports: Mapping[int, int],
        nvlinks: Mapping[tuple[int, int], int],
    ) -> None:
        """Add NVSwitches. A pair that is shown keeps its links; the others get all of them."""
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
            self._notes.append(
                f"{counted(unseen, 'pair')} of GPUs assumed to be connected by NVSwitch, "
                "though not shown: both are connected to it"
            )

    def _speeds(
        self, ports: Mapping[int, int], direct: Mapping[tuple[int, int], int]
    ) -> tuple[Bandwidth, Bandwidth, Bandwidth]:
        """Return the bandwidth of one NVLink, of a device's PCIe link, and between two sockets.

        They follow from the GPUs' model; what does not is assumed, and a note says so.
        """
        links = dict(ports)
        for pair, count in direct.items():
            for gpu in pair:
                links[gpu] = links.get(gpu, 0) + count
        most = max(links.values(), default=0)
        model = model_of(self._model)
        if self._model and model is None:
            self._notes.append(f'the GPU "{self._model}" is not known: its links are assumed')
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
        why = "assumed from the links" if generation else "assumed, as nothing shows it"
        if model is not None:
            why = "assumed from the model"
        self._notes.append(f"{why}: {', '.join(assumed)}")
        link = nvlink(generation) if generation else Bandwidth(0.0, 0.0)
        return link, pcie(bus), between

    def _add_devices(
        self,
        builder: MachineBuilder,
        levels: Levels,
        numa: Sequence[int | None],
        up: Bandwidth,
    ) -> None:
        shown = self._nic_numa()
        positions = _TreePositions(levels, [*numa, *(shown.get(label) for label in self._nics)])
        above = positions.add(builder, up)
        bus = self._bus_ids()
        nics = self._named_nics()
        for index, label in enumerate(self._gpus):
            gpu = Gpu(
                index,
                bus_id=bus.get(label, ""),
                model=self._model,
                numa=positions.numa[index],
                cpus=self._affinity(label, "CPU Affinity"),
            )
            builder.gpu(gpu, above[index], up)
        for offset, label in enumerate(self._nics):
            index = len(self._gpus) + offset
            nic = Nic(offset, nics[label], label, bus.get(label, ""), positions.numa[index])
            builder.nic(nic, above[index], up)

    def _nic_numa(self) -> dict[str, int]:
        """Return the NUMA nodes of NICs that a probe lists beside the table."""
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
            self._notes.append(
                f"two devices have bus id {listed(twice, _MOST_NAMED)}: bus ids are ignored"
            )
            return {}
        return found

    def _named_nics(self) -> dict[str, str]:
        """Return the RDMA name of each NIC, or its name in the table when the legend lacks it."""
        names = {label: self._table.legend.get(label, label) for label in self._nics}
        lacking = [label for label, name in names.items() if re.fullmatch(r"NIC\d+", name)]
        if lacking:
            self._notes.append(f"the legend does not name {listed(lacking, _MOST_NAMED)}")
        if len(set(names.values())) < len(names):
            self._notes.append("the legend gives two NICs the same name: it is ignored")
            return {label: label for label in self._nics}
        return names


class _TreePositions:
    """The positions of devices in the PCIe tree, inferred from their levels.

    ``numa`` is the NUMA node of each device, None if unknown.
    """

    def __init__(self, levels: Levels, numa: Sequence[int | None]) -> None:
        self._leaf, self._switch, self._root, self._node = (
            _groups(levels, level) for level in (Level.PIX, Level.PXB, Level.PHB, Level.NODE)
        )
        self.numa = [
            self._shared_numa(group, numa) if node is None else node
            for group, node in zip(self._node, numa, strict=True)
        ]

    def _shared_numa(self, group: int, numa: Sequence[int | None]) -> int | None:
        """Return the NUMA node of a group of devices at NODE or nearer, if they agree."""
        found = {node for other, node in zip(self._node, numa, strict=True) if other == group}
        known = found - {None}
        return known.pop() if len(known) == 1 else None

    def add(self, builder: MachineBuilder, up: Bandwidth) -> list[str]:
        """Add NUMA nodes, roots and switches; return the parent of each device.

        All are on one socket of unknown name: a table does not show sockets.
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
        """Return the switches above a device, the upper one first: one for PIX, another for PXB."""
        leaf, switch = self._leaf[index], self._switch[index]
        leaves = {
            own for own, upper in zip(self._leaf, self._switch, strict=True) if upper == switch
        }
        if len(leaves) > 1:
            return [f"switch {switch}", f"leaf {leaf}"]
        return [f"leaf {leaf}"] if self._leaf.count(leaf) > 1 else []


def _groups(levels: Levels, level: Level) -> list[int]:
    """Return the group of each device, named by its first member.

    Devices connected through pairs at ``level`` or nearer form a group.
    """
    # Imported late, as in MachineBuilder.
    import networkx as nx

    graph = nx.from_numpy_array((levels != UNKNOWN) & (levels <= level))
    first = {device: min(group) for group in nx.connected_components(graph) for device in group}
    return [first[device] for device in range(len(levels))]


def _ports(nvlinks: Mapping[tuple[int, int], int]) -> dict[int, int]:
    """Return the number of NVLinks to the NVSwitches, for each GPU that is connected to them.

    When the pairs of a GPU show more links in total than a GPU has, the pairs share its links
    through an NVSwitch. Every GPU linked to such a GPU is connected to the NVSwitch, too.
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
    """Tell whether two GPUs are on different NUMA nodes and no third device contradicts that."""
    if numa[a] is None or numa[b] is None or numa[a] == numa[b]:
        return False
    both = (levels[a] != UNKNOWN) & (levels[b] != UNKNOWN)
    both[[a, b]] = False
    return not bool((np.maximum(levels[a], levels[b])[both] < Level.SYS).any())


def _badness(cell: str) -> int:
    """Return a sort key for cells, from the most NVLinks (lowest) to SYS (highest)."""
    return -int(cell[2:]) if cell.startswith("NV") else int(Level[cell])
