"""A recorded workload of shares of GPUs: its nodes, its pods, and in what order these arrive."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import msgspec

from bayplan.api.gpu_shares import WHOLE
from bayplan.errors import InputError
from bayplan.inputs.documents import read_text
from bayplan.inputs.limits import FILE

__all__ = ["Trace", "TraceNode", "TracePod", "is_at_100", "is_at_130", "read_trace"]

_DIGITS = 9
_MOST = 10**_DIGITS - 1
_MOST_GPUS = 64
_FULL = 100
_LAST = 129.5


def is_at_100(percent: float) -> bool:
    """Tell whether as much has been asked for as figures "at 100 %" are the mean over."""
    return round(percent) == _FULL


def is_at_130(percent: float) -> bool:
    """Tell whether as much has been asked for as figures "at 130 %" are the mean over."""
    return percent >= _LAST


class TraceNode(msgspec.Struct, frozen=True):
    """A node of the trace."""

    name: str
    cpu: int
    memory: int
    gpus: int
    model: str


class TracePod(msgspec.Struct, frozen=True):
    """A pod of the trace: milli-CPU, MiB, GPUs, thousandths of each, models ("" for any)."""

    cpu: int
    memory: int
    gpus: int
    compute: int
    models: str

    @property
    def total(self) -> int:
        """The thousandths of GPUs that it asks for."""
        return self.gpus * self.compute

    @property
    def kind(self) -> str:
        """What losses are counted by: the number of GPUs, "share" or "cpu"."""
        if not self.gpus:
            return "cpu"
        return "share" if self.compute < WHOLE else str(self.gpus)


class Trace(msgspec.Struct, frozen=True, dict=True):
    """Nodes and pods, both by name, and for each seed the order of arrivals and of nodes."""

    nodes: Sequence[TraceNode]
    pods: Sequence[TracePod]
    arrivals: Mapping[str, Mapping[str, Sequence[int]]]

    @cached_property
    def capacity(self) -> int:
        """The thousandths of GPUs of all nodes."""
        return sum(node.gpus for node in self.nodes) * WHOLE

    def order(self, seed: int) -> Mapping[str, Sequence[int]]:
        """Return the places of ``pods`` as they arrive, and the ``node_rank`` of each node.

        :raises InputError: for a seed that the trace does not have.
        """
        order = self.arrivals.get(str(seed))
        if order is None:
            known = ", ".join(self.arrivals)
            raise InputError(f"--seed {seed}: the trace has arrivals for {known}")
        return order

    def asked_for(self, order: Sequence[int]) -> list[float]:
        """Return the percent of all GPUs that have been asked for after each arrival."""
        arrived = accumulate(self.pods[place].total for place in order)
        return [100 * amount / self.capacity for amount in arrived]


def read_trace(folder: Path) -> Trace:
    """Read the trace.

    :raises InputError: for a file that is missing, or not as expected.
    """
    path = folder / "nodes_gpu.csv"
    nodes = [
        TraceNode(
            row.text("sn"),
            row.number("cpu_milli"),
            row.number("memory_mib"),
            row.number("gpu", _MOST_GPUS),
            row.text("model"),
        )
        for row in _rows(path, "sn", ("cpu_milli", "memory_mib", "gpu", "model"))
    ]
    if not any(node.gpus for node in nodes):
        raise InputError(f"{path}: expected a node with GPUs")
    wanted = ("cpu_milli", "num_gpu", "gpu_milli", "gpu_spec")
    pods = []
    rows = _rows(folder / "pods.csv", "name", wanted)
    for row in sorted(rows, key=lambda row: row.text("name")):
        gpus = row.number("num_gpu", _MOST_GPUS)
        compute = min(WHOLE, row.number("gpu_milli")) if gpus else 0
        memory = row.number("memory_mib") if row.text("memory_mib") else 0
        whole = WHOLE if gpus > 1 else compute
        models = row.text("gpu_spec")
        pods.append(TracePod(row.number("cpu_milli"), memory, gpus, whole, models))
    nodes.sort(key=lambda node: node.name)
    return Trace(nodes, pods, _arrivals(folder / "arrivals.json.gz", len(pods), len(nodes)))


def _arrivals(path: Path, pods: int, nodes: int) -> dict[str, dict[str, list[int]]]:
    """Read the order of arrivals and of nodes by seed; places are those in the sorted lists.

    :raises InputError: for a file that is missing, not as expected, or of another trace.
    """
    try:
        with gzip.open(path, "rb") as content:
            found = msgspec.json.decode(content.read(), type=dict[str, dict[str, list[int]]])
    except FileNotFoundError as exc:
        raise InputError(str(exc.strerror), str(path)) from None
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError) as exc:
        raise InputError(f"{path}: expected lists of whole numbers by seed: {exc}") from None
    if not found:
        raise InputError(f"{path}: expected arrivals by seed, got none")
    for seed, order in found.items():
        if not order.get("pods"):
            raise InputError(f"{path}: $.{seed}.pods: expected one place or more")
        if any(not 0 <= place < pods for place in order.get("pods", [-1])):
            raise InputError(f"{path}: $.{seed}.pods: expected places of {pods} pods")
        if sorted(order.get("node_rank", [])) != list(range(nodes)):
            raise InputError(f"{path}: $.{seed}.node_rank: expected each of 0 to {nodes - 1} once")
    return found


class _Row(msgspec.Struct, frozen=True):
    """A line of a table; columns that it lacks are empty."""

    path: Path
    line: int
    columns: Mapping[str, str | None]

    def text(self, column: str) -> str:
        return self.columns.get(column) or ""

    def number(self, column: str, most: int = _MOST) -> int:
        text = self.text(column)
        if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS and int(text) <= most):
            expected = f"expected a whole number up to {most}"
            raise InputError(f"{self.path}:{self.line}: {column}: {expected}, got {text[:40]!r}")
        return int(text)


def _rows(path: Path, key: str, columns: Sequence[str]) -> list[_Row]:
    """Return the lines of a table.

    :param key: the column that names each line, differently from all others.
    """
    text = read_text(path, FILE).removeprefix("\ufeff")
    try:
        reader = csv.DictReader(text.splitlines())
        rows = [_Row(path, reader.line_num, columns) for columns in reader]
    except csv.Error as exc:
        raise InputError(str(exc), str(path)) from None
    wanted = (key, *columns)
    if not rows or any(name not in rows[0].columns for name in wanted):
        raise InputError(f"{path}: expected the columns {', '.join(wanted)}")
    seen: set[str] = set()
    for row in rows:
        name = row.text(key)
        if not name or name in seen:
            raise InputError(f"{path}:{row.line}: {key}: expected a name of its own, got {name!r}")
        seen.add(name)
    return rows
