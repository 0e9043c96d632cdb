"""The text of ``nvidia-smi topo -m``: find the matrix and read it into rows and columns.

Handles tables as people publish them: whole, cut off, with glued columns, with colour codes, or
commented out. The format differs by driver: SOC is the old name of SYS; the columns for CPU and
NUMA affinity may be missing or empty; NICs appear under their own names or as NIC0 with a legend.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from bayplan.errors import InputError

__all__ = ["SmiRow", "SmiTable", "is_gpu", "is_level", "read_table"]

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
# No GPU has more than 18 NVLinks.
_LEVEL = re.compile(r"X|SYS|SOC|NODE|PHB|PXB|PIX|NV(?:[1-9]|1[0-8])")
_CELL = re.compile(r"[A-Z?][A-Z0-9?]*")
"""A level, or anything in its place."""
_GPU = re.compile(r"GPU\d{1,4}")
_ROW = re.compile(r"GPU\d{1,4}|NIC\d{1,4}|[a-z][a-z0-9_-]*\d[a-z0-9_-]*")
_LEGEND = re.compile(r"\s*(NIC\d+):\s*(\S+)\s*")
_GPU_BUS = re.compile(r"\s*(\d{1,4}),\s*([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*")
_NIC_NUMA = re.compile(r"\s*([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)\|(-?\d{1,4})\s*")
_AFTER_LEVELS = re.compile(r"(?:CPU|NUMA)\s*Affinity|GPU\s*NUMA")
_AFFINITIES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_MOST_DEVICES = 256


class SmiRow(msgspec.Struct):
    """One line of the matrix: a device, its cells in column order, and its affinities by name.

    ``cells`` may be shorter than the columns when the line is cut off.
    """

    name: str
    cells: list[str]
    affinities: dict[str, str] = msgspec.field(default_factory=dict)


class SmiTable(msgspec.Struct):
    """The matrix as read, not yet interpreted.

    ``columns`` are the names of the devices in the header, ``rows`` the lines by device. ``legend``
    maps NIC0 to its RDMA name. ``gpu_bus`` holds PCI bus ids by GPU index, ``nic_numa`` the bus id
    and NUMA node of each NIC in order, when the text lists them beside the table. ``notes`` say
    what was repaired.
    """

    columns: list[str]
    rows: dict[str, SmiRow]
    legend: dict[str, str]
    gpu_bus: dict[int, str]
    nic_numa: list[tuple[str, int]]
    notes: list[str]


def is_gpu(label: str) -> bool:
    """Tell whether a label names a GPU, such as GPU0."""
    return bool(_GPU.fullmatch(label))


def is_level(cell: str) -> bool:
    """Tell whether a cell holds a level that nvidia-smi prints: X, SYS to PIX, or NV1 to NV18."""
    return bool(_LEVEL.fullmatch(cell))


def read_table(text: str, source: str) -> SmiTable:
    """Find the matrix in a text and read it.

    :param source: the origin that errors name.
    :raises InputError: when the text holds no matrix, more than 256 devices, or GPUs with a gap in
        their numbers.
    """
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
        notes.append("the header is missing: columns are named by their position")
    _check_devices([*columns, *(label for label, _ in found)], source)
    given = [name for name in _AFFINITIES if name.replace(" ", "") in header.replace(" ", "")]
    if not header:
        given = list(_AFFINITIES)
    rows = {label: _row(label, line, columns, given, notes) for label, line in found}
    return SmiTable(columns, rows, legend, gpu_bus, nic_numa, notes)


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
    """Tell whether a line is a device's row: it starts with a level, or the header names it."""
    if len(tokens) < 2:
        return False
    if tokens[0] in columns:
        return "X" in tokens or bool(_LEVEL.fullmatch(tokens[1]))
    named = _ROW.fullmatch(tokens[0]) and (not columns or not tokens[0][0].islower())
    return bool(named and _LEVEL.fullmatch(tokens[1]))


def _is_header(tokens: Sequence[str]) -> bool:
    return bool(tokens) and tokens[0].startswith("GPU0") and not _LEVEL.fullmatch(tokens[-1])


def _columns(header: str) -> list[str]:
    """Return the names of the level columns; names glued together are cut apart."""
    found: list[str] = []
    for token in _AFTER_LEVELS.split(header)[0].split():
        glued = token.count("GPU") > 1 or not _ROW.fullmatch(token)
        found += (glued and _cut(token)) or [token]
    return found


def _cut(token: str) -> list[str]:
    """Split "GPU0GPU1mlx5_0" into its names."""
    return re.findall(r"GPU\d+|NIC\d+|[a-z][a-z0-9]*_\d+", token)


def _guessed_columns(found: Sequence[tuple[str, str]]) -> list[str]:
    """Name the columns of a table without a header.

    The column of a row's X has the row's name. GPUs come first: as far as any GPU's row shows an X
    or an NVLink, and up to NIC0 where a NIC's row gives its position.
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
) -> SmiRow:
    tokens = line.split()[1:]
    cells = []
    for token in tokens[: len(columns)]:
        if not _CELL.fullmatch(token):
            break
        cells.append(token.replace("SOC", "SYS"))
    if len(cells) < len(columns):
        # The last cell may be cut in its middle.
        if cells and not _LEVEL.fullmatch(cells[-1]):
            cells.pop()
        notes.append(f"the row of {label} ends after {len(cells)} of {len(columns)} columns")
    for column, cell in zip(columns, cells, strict=False):
        if cell.strip("?") and not _LEVEL.fullmatch(cell):
            notes.append(f'{label} to {column} is "{cell[:20]}", which is not a level: unknown')
    rest = tokens[len(cells) :]
    if len(cells) < len(columns) or not _GPU.fullmatch(label) or not rest:
        return SmiRow(label, cells)
    return SmiRow(label, cells, _affinities(line, rest, given))


def _affinities(line: str, rest: Sequence[str], given: Sequence[str]) -> dict[str, str]:
    """Return the columns after the levels; when one is empty, the tabs show which."""
    if len(rest) == len(given):
        return dict(zip(given, rest, strict=True))
    if given and given[0] == "CPU Affinity" and len(rest) == len(given) - 1:
        parts = [part.strip() for part in line.rstrip().split("\t")]
        levels = [index for index, part in enumerate(parts) if _CELL.fullmatch(part)]
        if levels and levels[-1] + 1 < len(parts) and not parts[levels[-1] + 1]:
            return dict(zip(given[1:], rest, strict=True))
    return dict(zip(given, rest, strict=False))
