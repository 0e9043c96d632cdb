"""The node table: one row per node, one column per fact.

Rows are in natural order of the nodes' names, so that the first of the best rows is the documented
tie-break. Adding or removing a node renumbers the rows, which begins an epoch. A change of a node's
object or its pods is logged: by ``changed_since`` caches know what is stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from bayplan.api import Node, ObjectMeta, Quantity, Taint
from bayplan.api.resources import LARGEST_AMOUNT, amount_of
from bayplan.naming import merged, natural_key
from bayplan.snapshot.pods import PodInfo
from bayplan.snapshot.row_changes import RowChanges, Rows, moved

__all__ = ["BoolColumn", "IntColumn", "LabelColumn", "NodeRow", "NodeTable", "NodeView"]

IntColumn = npt.NDArray[np.int64]
BoolColumn = npt.NDArray[np.bool_]

Scalar = TypeVar("Scalar", bound=np.generic)

PODS = "pods"
_SCORING = ("cpu", "memory")
_UNREAD = Node(ObjectMeta(name=""))
"""Stands for the object of a new node until it is read."""


class LabelColumn(msgspec.Struct):
    """One label key over all nodes: codes into ``values``, -1 where the label is missing."""

    codes: IntColumn
    values: Sequence[str]

    def where(self, accepted: Iterable[bool]) -> BoolColumn:
        """Return the mask of nodes whose value is accepted; a missing label is not."""
        # The False at the end is the answer for code -1.
        table = np.array([*accepted, False], dtype=np.bool_)
        return table[self.codes]


class NodeTable:
    """All nodes as columns. Amounts are in milli-CPU, and in units of any other resource."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.nodes: list[Node] = []
        self.row_of: dict[str, int] = {}
        self.pods: list[dict[str, PodInfo]] = []
        self.unschedulable: BoolColumn = np.zeros(0, dtype=np.bool_)
        self.taint_codes: IntColumn = np.zeros(0, dtype=np.int64)
        self.taint_sets: list[tuple[Taint, ...]] = []
        self.changes = RowChanges()
        self.node_version = 0
        self.label_version = 0
        self._taint_code: dict[tuple[Taint, ...], int] = {}
        self.allocatable_columns: dict[str, IntColumn] = {}
        self.used_columns: dict[str, IntColumn] = {}
        self._scoring_used: dict[str, IntColumn] = {}
        self._labels: dict[str, LabelColumn] = {}
        self._images: dict[str, IntColumn] = {}
        self._image_nodes: dict[str, tuple[list[int], int]] | None = None
        self._ports: dict[tuple[str, int], dict[str, IntColumn]] = {}
        self._zeros: IntColumn = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.names)

    # Changes -----------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Changes when rows get other numbers, or everything about all of them is stale."""
        return self.changes.epoch

    @property
    def position(self) -> int:
        """How many changes of rows there were up to now, for ``changed_since``."""
        return self.changes.position

    def changed_since(self, position: int) -> list[int] | None:
        """Return the rows that changed since a position, oldest first.

        None when that is too long ago to say, or the rows have other numbers now.
        """
        return self.changes.since(position)

    # Reading -----------------------------------------------------------------------------

    def allocatable(self, resource: str) -> IntColumn:
        """Return how much of a resource each node offers to pods; read only."""
        return _read_only(self.allocatable_columns.get(resource, self._zeros))

    def used(self, resource: str) -> IntColumn:
        """Return the sum of the effective requests of the pods on each node; read only."""
        return _read_only(self.used_columns.get(resource, self._zeros))

    def allocatable_of(self, resource: str, rows: Rows) -> IntColumn:
        """Return a copy of ``allocatable`` for some rows."""
        return self.allocatable_columns.get(resource, self._zeros)[rows]

    def used_of(self, resource: str, rows: Rows) -> IntColumn:
        """Return a copy of ``used`` for some rows."""
        return self.used_columns.get(resource, self._zeros)[rows]

    def scoring_used(self, resource: str) -> IntColumn:
        """Return ``used`` with the scoring defaults for pods that request no cpu or memory."""
        column = self._scoring_used.get(resource)
        return self.used(resource) if column is None else _read_only(column)

    def scoring_used_at(self, resource: str, row: int) -> int:
        """Return one row of ``scoring_used``."""
        column = self._scoring_used.get(resource)
        if column is None:
            column = self.used_columns.get(resource, self._zeros)
        return column.item(row)

    def label(self, key: str) -> LabelColumn:
        """Return one label key as a column, built when first asked for."""
        column = self._labels.get(key)
        if column is None:
            values: dict[str, int] = {}
            codes = np.full(len(self), -1, dtype=np.int64)
            for row, node in enumerate(self.nodes):
                value = node.metadata.labels.get(key)
                if value is not None:
                    codes[row] = values.setdefault(value, len(values))
            codes.flags.writeable = False
            column = self._labels[key] = LabelColumn(codes, tuple(values))
        return column

    def image_size(self, image: str) -> IntColumn:
        """Return the size in bytes of an image on the nodes that have it, 0 on the others.

        As in kube-scheduler's cache, an image has one size: that of the first node that has it.
        """
        column = self._images.get(image)
        if column is None:
            column = np.zeros(len(self), dtype=np.int64)
            rows, size = self._image_index().get(image, ([], 0))
            column[rows] = size
            column.flags.writeable = False
            self._images[image] = column
        return column

    def ports_in_use(self, protocol: str, port: int) -> Mapping[str, IntColumn]:
        """Return, by host IP, how many pods of each node hold this host port."""
        return self._ports.get((protocol, port), {})

    def _image_index(self) -> dict[str, tuple[list[int], int]]:
        """Return the rows that have each image, and its size."""
        if self._image_nodes is None:
            self._image_nodes = {}
            for row, node in enumerate(self.nodes):
                for image in node.status.images:
                    for name in image.names:
                        rows, _ = self._image_nodes.setdefault(name, ([], image.size_bytes))
                        rows.append(row)
        return self._image_nodes

    # Adding and removing pods --------------------------------------------------------------------

    def add_pod(self, pod: PodInfo, row: int) -> None:
        """Add a pod to a row."""
        self.pods[row][pod.key] = pod
        self._count(pod, row, 1)

    def remove_pod(self, pod: PodInfo, row: int) -> None:
        """Remove a pod from a row."""
        del self.pods[row][pod.key]
        self._count(pod, row, -1)

    def _count(self, pod: PodInfo, row: int, sign: int) -> None:
        facts = pod.facts
        used = self.used_columns
        for name, amount in facts.requests.items():
            column = used.get(name)
            if column is None:
                column = used[name] = np.zeros(len(self), dtype=np.int64)
            column[row] += sign * amount
        used[PODS][row] += sign
        scoring = facts.scoring_requests
        for name in _SCORING:
            self._scoring_used[name][row] += sign * scoring.get(name, 0)
        for port in facts.host_ports:
            by_ip = self._ports.setdefault((port.protocol, port.port), {})
            if port.ip not in by_ip:
                by_ip[port.ip] = np.zeros(len(self), dtype=np.int64)
            by_ip[port.ip][row] += sign
        self.changes.mark(row)

    # Adding, removing and changing nodes ----------------------------------------------------

    def apply(self, changed: Mapping[str, Node | None]) -> Rows | None:
        """Add, replace or (None) remove nodes.

        :returns: for each row, its number before, -1 for a new one; None if no node came or left.
        """
        row_of = self.row_of
        gone = {name for name, node in changed.items() if node is None and name in row_of}
        there = {name: node for name, node in changed.items() if node is not None}
        new = [name for name in there if name not in row_of]
        origin = self._renumber(gone, new) if gone or new else None
        for name, node in there.items():
            self._fill(self.row_of[name], node)
        self.node_version += 1
        return origin

    def _renumber(self, gone: Set[str], new: Sequence[str]) -> Rows:
        """Renumber all nodes without those that are gone, and with new ones, still unread.

        :returns: for each row, its number before, -1 for a new one.
        """
        kept = [row for row, name in enumerate(self.names) if name not in gone]
        names = merged([self.names[row] for row in kept], sorted(new, key=natural_key))
        size = len(names)
        origin = np.array([self.row_of.get(name, -1) for name in names], dtype=np.intp)

        def all_moved(columns: Mapping[str, IntColumn]) -> dict[str, IntColumn]:
            return {name: moved(column, origin) for name, column in columns.items()}

        zeros = np.zeros(size, dtype=np.int64)
        self.allocatable_columns = all_moved(self.allocatable_columns)
        self.used_columns = {PODS: zeros.copy(), **all_moved(self.used_columns)}
        self._scoring_used = {
            **{name: zeros.copy() for name in _SCORING},
            **all_moved(self._scoring_used),
        }
        self._ports = {key: all_moved(by_ip) for key, by_ip in self._ports.items()}
        self.unschedulable = moved(self.unschedulable, origin)
        self.taint_codes = moved(self.taint_codes, origin)
        self.nodes = [self.nodes[row] if row >= 0 else _UNREAD for row in origin.tolist()]
        self.pods = [self.pods[row] if row >= 0 else {} for row in origin.tolist()]
        self.names = names
        self.row_of = {name: row for row, name in enumerate(names)}
        self._zeros = zeros
        self._zeros.flags.writeable = False
        self._labels.clear()
        self._images.clear()
        self._image_nodes = None
        self.changes.renumber(origin, len(kept) + len(gone))
        return origin

    def _fill(self, row: int, node: Node) -> None:
        old, self.nodes[row] = self.nodes[row], node
        if old is _UNREAD or old.metadata.labels != node.metadata.labels:
            self.label_version += 1
            self._labels.clear()
        if self._image_nodes is not None and old.status.images != node.status.images:
            self._images.clear()
            self._image_nodes = None
        if old is _UNREAD or _offered(old) != _offered(node):
            self._set_allocatable(row, _offered(node), old is _UNREAD)
        self.unschedulable[row] = node.spec.unschedulable
        taints = node.spec.taints
        if any(one.time_added for one in taints):
            # When a node failed tells nothing about who may go there.
            taints = tuple(replace(one, time_added=None) for one in taints)
        if taints not in self._taint_code:
            self._taint_code[taints] = len(self.taint_sets)
            self.taint_sets.append(taints)
        self.taint_codes[row] = self._taint_code[taints]
        self.changes.mark(row)

    def _set_allocatable(self, row: int, offered: Mapping[str, Quantity], is_new: bool) -> None:
        columns = self.allocatable_columns
        if not is_new:
            for column in columns.values():
                column[row] = 0
        for name, quantity in offered.items():
            if name not in columns:
                columns[name] = np.zeros(len(self), dtype=np.int64)
            # A live node may report nonsense: a negative amount offers nothing, and none offers
            # more than can be counted.
            columns[name][row] = min(max(0, amount_of(name, quantity)), LARGEST_AMOUNT)
        if PODS not in offered:
            # The node states no limit on the number of pods, so none is enforced.
            column = columns.setdefault(PODS, np.zeros(len(self), dtype=np.int64))
            column[row] = np.iinfo(np.int32).max


def _offered(node: Node) -> Mapping[str, Quantity]:
    return node.status.allocatable or node.status.capacity


def _read_only(column: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    view = column.view()
    view.flags.writeable = False
    return view


class NodeView:
    """Some or all rows of the node table, as a plugin sees them: columns have ``len(nodes)`` items.

    Columns are the table's own memory, read only.
    """

    __slots__ = ("_mask", "_rows", "table")

    table: NodeTable
    """The table of all nodes."""

    def __init__(
        self, table: NodeTable, rows: Rows | None = None, mask: BoolColumn | None = None
    ) -> None:
        self.table = table
        self._rows = rows
        self._mask = mask

    @property
    def rows(self) -> Rows | None:
        """The table's rows in the view, None for all of them."""
        if self._mask is not None:
            mask = self._mask
            self._rows = None if np.count_nonzero(mask) == len(mask) else mask.nonzero()[0]
            self._mask = None
        return self._rows

    def __len__(self) -> int:
        rows = self.rows
        return len(self.table) if rows is None else len(rows)

    @property
    def names(self) -> Sequence[str]:
        """The nodes' names."""
        names = self.table.names
        return names if self.rows is None else [names[row] for row in self.rows]

    def __iter__(self) -> Iterator[NodeRow]:
        rows = range(len(self.table)) if self.rows is None else self.rows
        return (NodeRow(self.table, int(row)) for row in rows)

    def all(self) -> NodeView:
        """Return the view of all nodes of the cluster."""
        return self if self.rows is None else NodeView(self.table)

    def allocatable(self, resource: str) -> IntColumn:
        """Return how much of a resource each node offers, in milli-CPU or units."""
        rows, table = self.rows, self.table
        return table.allocatable(resource) if rows is None else table.allocatable_of(resource, rows)

    def used(self, resource: str) -> IntColumn:
        """Return how much the pods on each node request."""
        rows, table = self.rows, self.table
        return table.used(resource) if rows is None else table.used_of(resource, rows)

    def free(self, resource: str) -> IntColumn:
        """Return how much each node has left; negative where pods request more than it offers."""
        return self.allocatable(resource) - self.used(resource)

    def scoring_used(self, resource: str) -> IntColumn:
        """Return ``used`` with the scoring defaults for pods that request no cpu or memory."""
        return self.pick(self.table.scoring_used(resource))

    def label(self, key: str) -> LabelColumn:
        """Return a label key as a column of codes into its values, -1 where it is missing."""
        column = self.table.label(key)
        return column if self.rows is None else LabelColumn(column.codes[self.rows], column.values)

    def has_label(self, key: str) -> BoolColumn:
        """Return the mask of nodes that carry the label."""
        return self.label(key).codes >= 0

    def label_in(self, key: str, values: Iterable[str]) -> BoolColumn:
        """Return the mask of nodes whose label has one of the values."""
        wanted = frozenset(values)
        column = self.label(key)
        return column.where(value in wanted for value in column.values)

    @property
    def unschedulable(self) -> BoolColumn:
        """The mask of cordoned nodes."""
        return self.pick(_read_only(self.table.unschedulable))

    @property
    def taint_codes(self) -> IntColumn:
        """The index into ``taint_sets`` of each node."""
        return self.pick(_read_only(self.table.taint_codes))

    @property
    def taint_sets(self) -> Sequence[tuple[Taint, ...]]:
        """The distinct sets of taints in the cluster."""
        return self.table.taint_sets

    def image_size(self, image: str) -> IntColumn:
        """Return the size of an image on each node in bytes, 0 where it is missing."""
        return self.pick(self.table.image_size(image))

    def ports_in_use(self, protocol: str, port: int) -> Mapping[str, IntColumn]:
        """Return, by host IP, how many pods of each node hold this host port."""
        found = self.table.ports_in_use(protocol, port)
        return {ip: self.pick(_read_only(column)) for ip, column in found.items()}

    def row_at(self, place: int) -> int:
        """Return the row in the table of a node of the view."""
        return place if self.rows is None else int(self.rows[place])

    def pick(self, column: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
        """Return the view's part of a column over all nodes."""
        return column if self.rows is None else column[self.rows]


class NodeRow:
    """One node, as a per-node plugin sees it. Amounts are in milli-CPU or units."""

    __slots__ = ("row", "table")

    table: NodeTable
    """The table of all nodes."""
    row: int
    """The node's row in the table, and its place in columns over all nodes."""

    def __init__(self, table: NodeTable, row: int) -> None:
        self.table = table
        self.row = row

    @property
    def name(self) -> str:
        """The node's name."""
        return self.table.names[self.row]

    @property
    def node(self) -> Node:
        """The node's API object."""
        return self.table.nodes[self.row]

    @property
    def labels(self) -> Mapping[str, str]:
        """The node's labels."""
        return MappingProxyType(self.table.nodes[self.row].metadata.labels)

    @property
    def annotations(self) -> Mapping[str, str]:
        """The node's annotations."""
        return MappingProxyType(self.table.nodes[self.row].metadata.annotations)

    @property
    def taints(self) -> tuple[Taint, ...]:
        """The node's taints."""
        return self.table.nodes[self.row].spec.taints

    @property
    def unschedulable(self) -> bool:
        """Whether the node is cordoned."""
        return self.table.nodes[self.row].spec.unschedulable

    @property
    def pods(self) -> Mapping[str, PodInfo]:
        """The pods on the node by key, including those placed by the running cycle."""
        return MappingProxyType(self.table.pods[self.row])

    def allocatable(self, resource: str) -> int:
        """Return how much of a resource the node offers."""
        column = self.table.allocatable_columns.get(resource)
        return column.item(self.row) if column is not None else 0

    def used(self, resource: str) -> int:
        """Return how much of a resource the pods on the node request."""
        column = self.table.used_columns.get(resource)
        return column.item(self.row) if column is not None else 0

    def amounts(self, resource: str) -> tuple[int, int]:
        """Return how much of a resource the node offers, and how much of it is used."""
        table, row = self.table, self.row
        offered = table.allocatable_columns.get(resource)
        used = table.used_columns.get(resource)
        return (
            offered.item(row) if offered is not None else 0,
            used.item(row) if used is not None else 0,
        )

    def free(self, resource: str) -> int:
        """Return how much of a resource the node has left."""
        offered, used = self.amounts(resource)
        return offered - used

    def scoring_used(self, resource: str) -> int:
        """Return ``used`` with the scoring defaults for pods that request no cpu or memory."""
        return self.table.scoring_used_at(resource, self.row)
