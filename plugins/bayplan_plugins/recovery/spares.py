"""Hot spares: nodes of each network domain that only jobs which lost a node, or little, may use."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
import numpy as np
from pydantic import Field, field_validator

from bayplan import Args, Handle, PodInfo
from bayplan.api.owners import is_restarted
from bayplan.naming import natural_key
from bayplan.plugin.hookspecs import BoolColumn
from bayplan.snapshot.kept_nodes import KeptNodes
from bayplan.snapshot.networks import Networks
from bayplan.snapshot.row_changes import Rows
from bayplan.topology.network.tree import TopologyError
from bayplan_plugins.shared.stale_nodes import StaleNodes

__all__ = ["SpareRule", "Spares"]

_MOST_NODES = 100_000
_NO_ROWS: Rows = np.empty(0, dtype=np.intp)
_log = logging.getLogger("bayplan.plugins")


class SpareRule(Args):
    """So many nodes of each domain of a layer are spares.

    ``layer`` is a network layer, or the node label that names its domains; "" is the whole cluster.
    ``nodes`` is a number, or a part of the domain such as "10%", rounded up. Only nodes with the
    ``resource`` count. Pods with a priority below ``preemptibleBelow`` may use spares until a job
    needs them.
    """

    layer: str = ""
    nodes: int | str = 1
    resource: str = Field(default="nvidia.com/gpu", min_length=1)
    preemptible_below: int = 0

    @field_validator("nodes", mode="before")
    @classmethod
    def _is_number_or_part(cls, value: object) -> int | str:
        text = str(value)
        number = text.removesuffix("%")
        most = 100 if text.endswith("%") else _MOST_NODES
        if not (number.isascii() and number.isdigit() and 0 <= int(number[:9]) <= most):
            raise ValueError(f'expected a number of nodes, or a part such as "10%", got "{text}"')
        return text if text.endswith("%") else int(number)

    def count(self, nodes: int) -> int:
        """Return how many of so many nodes are spares."""
        if isinstance(self.nodes, int):
            return min(self.nodes, nodes)
        return math.ceil(nodes * int(self.nodes.removesuffix("%")) / 100)


class _Domain(msgspec.Struct):
    """A domain of a rule: its rows in the order of their names, how many are spares, and which."""

    name: str
    rows: Rows
    count: int
    spares: Rows


class _Kept:
    """The spares of one rule, kept up to date as pods come and go."""

    def __init__(
        self, rule: SpareRule, domains: Sequence[tuple[str, list[int]]], nodes: int
    ) -> None:
        self.rule = rule
        self.domains = [
            _Domain(name, np.array(rows, dtype=np.intp), rule.count(len(rows)), _NO_ROWS)
            for name, rows in domains
        ]
        self._domain_of = np.full(nodes, -1, dtype=np.intp)
        for number, one in enumerate(self.domains):
            self._domain_of[one.rows] = number
        self._taken = np.zeros(nodes, dtype=bool)
        """Where a node is no spare: a firm pod uses it, or nobody could."""
        self._stale = set(range(len(self.domains)))

    def read(self, rows: Iterable[int], is_taken: Callable[[int, SpareRule], bool]) -> bool:
        """Read nodes again; tell whether that may have changed which are spares."""
        for row in rows:
            domain = int(self._domain_of[row])
            taken = domain >= 0 and is_taken(row, self.rule)
            if taken != self._taken[row]:
                self._taken[row] = taken
                self._stale.add(domain)
        for number in self._stale:
            one = self.domains[number]
            free = one.rows[~self._taken[one.rows]]
            one.spares = free[max(0, len(free) - one.count) :]
        found, self._stale = bool(self._stale), set()
        return found


class Spares:
    """Which nodes are spares now: of those that no firm pod uses, the last ones by name.

    :param unwell: returns the nodes that are of no use to anybody.
    """

    def __init__(
        self,
        handle: Handle,
        rules: Sequence[SpareRule],
        unwell: Callable[[], Collection[str]],
    ) -> None:
        self._handle = handle
        self._rules = rules
        self._unwell = unwell
        self._networks = Networks.of(handle.snapshot)
        self._stale = StaleNodes(handle.snapshot)
        self._layout: object = None
        self._kept: list[_Kept] = []
        self._unwell_before: frozenset[str] = frozenset()
        self._now: dict[int, str] = {}
        self._version = 0
        self._mask: BoolColumn = np.zeros(0, dtype=bool)
        self._warned: set[str] = set()
        if rules:
            KeptNodes.of(handle.snapshot).sources.append(self.idle)

    def now(self) -> Mapping[int, str]:
        """Return the rows of the spares, with the name of the domain that each is for."""
        if self._rules:
            self._look()
        return self._now

    def _look(self) -> None:
        table = self._handle.snapshot.nodes
        unwell = frozenset(self._unwell())
        layout = table.epoch, table.node_version
        if layout == self._layout and self._stale.up_to_date and unwell == self._unwell_before:
            return
        names = set(self._stale.take().names) | (unwell ^ self._unwell_before)
        self._unwell_before = unwell
        rows = [table.row_of[name] for name in names if name in table.row_of]
        if layout != self._layout:
            self._layout = layout
            self._kept = [_Kept(r, self._domains_of(r), len(table)) for r in self._rules]
            rows = list(range(len(table)))
        changed = [kept.read(rows, self._is_taken) for kept in self._kept]
        if any(changed):
            spares = [one for kept in self._kept for one in kept.domains]
            self._now = {row: one.name for one in spares for row in one.spares.tolist()}
            self._mask = np.zeros(len(table), dtype=bool)
            self._mask[list(self._now)] = True
            self._version += 1

    @property
    def version(self) -> int:
        """A number of which nodes are spares now, 0 if none are."""
        return self._version if self.now() else 0

    def idle(self) -> dict[str, str]:
        """Return the spares by name, each with the domain that it is for."""
        names = self._handle.snapshot.nodes.names
        return {names[row]: domain for row, domain in self.now().items()}

    def _domains_of(self, rule: SpareRule) -> list[tuple[str, list[int]]]:
        """Return the domains of a rule, each with its rows in the order of their names."""
        table = self._handle.snapshot.nodes
        having = np.flatnonzero(table.allocatable(rule.resource) > 0).tolist()
        own = {row: table.names[row] for row in having}
        found = []
        for name, rows in self._layer(rule, having):
            inside = [row for row in rows if row in own]
            found.append((name, sorted(inside, key=lambda row: natural_key(own[row]))))
        return found

    def _layer(self, rule: SpareRule, everywhere: list[int]) -> list[tuple[str, list[int]]]:
        if not rule.layer:
            return [("the cluster", everywhere)]
        try:
            tree = self._networks.find([rule.layer])
        except TopologyError as exc:
            # Nodes with such a label, or an object that describes the layer, may still come.
            if everywhere and str(exc) not in self._warned:
                self._warned.add(str(exc))
                _log.warning('Recovery keeps no spares in layer "%s": %s', rule.layer, exc)
            return []
        domains = tree.layers.get(tree.find_layer(rule.layer) or "", [])
        return [(one.label, one.rows.tolist()) for one in domains]

    def _is_taken(self, row: int, rule: SpareRule) -> bool:
        """Tell whether a node is no spare: a firm pod uses its resource, or nobody could."""
        table = self._handle.snapshot.nodes
        if table.nodes[row].spec.unschedulable or table.names[row] in self._unwell_before:
            return True
        return any(
            rule.resource in pod.requests and pod.priority >= rule.preemptible_below
            for pod in table.pods[row].values()
        )

    def kept_from(self, pod: PodInfo) -> BoolColumn | None:
        """Return which nodes are kept from a pod, as a mask of all; None for none."""
        if not self.now() or self.may_use(pod):
            return None
        return self._mask

    def may_use(self, pod: PodInfo) -> bool:
        """Tell whether a pod is preemptible for every rule, or of a gang that ran before."""
        if pod.gang is not None:
            members = self._handle.gang(pod.gang)
            if members.bound or members.satisfied or members.restarting:
                return True
            if is_restarted(pod.pod.metadata):
                return True
        return all(pod.priority < rule.preemptible_below for rule in self._rules)
