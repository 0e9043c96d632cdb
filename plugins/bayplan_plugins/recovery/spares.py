"""Hot spares: nodes of each network domain that only jobs which lost a node, or little, may use."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field, field_validator

from bayplan import Args, Handle, PodInfo
from bayplan.naming import natural_key
from bayplan.plugin.hookspecs import BoolColumn
from bayplan.snapshot.networks import Networks
from bayplan.topology.network.tree import TopologyError

__all__ = ["SpareRule", "Spares"]

_MOST_NODES = 100_000
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
        text = str(value) if isinstance(value, int | str) else ""
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


class Spares:
    """Which nodes are spares now: of those that no firm pod uses, the last ones by name."""

    def __init__(self, handle: Handle, rules: Sequence[SpareRule]) -> None:
        self._handle = handle
        self._rules = rules
        self._networks = Networks.of(handle.snapshot)
        self._domains: list[tuple[object, list[tuple[str, list[int]]]]] = [(None, [])] * len(rules)
        self._read: tuple[object, dict[int, str]] = (None, {})
        self._warned: set[str] = set()

    def now(self) -> dict[int, str]:
        """Return the rows of the spares, with the name of the domain that each is for."""
        table = self._handle.snapshot.nodes
        at = table.epoch, table.node_version, table.position
        if self._read[0] != at:
            found: dict[int, str] = {}
            for number, rule in enumerate(self._rules):
                for name, rows in self._domains_of(number, rule):
                    free = [row for row in rows if not self._is_firm(row, rule)]
                    kept = rule.count(len(rows))
                    found |= dict.fromkeys(free[max(0, len(free) - kept) :], name)
            self._read = at, found
        return self._read[1]

    def _domains_of(self, number: int, rule: SpareRule) -> list[tuple[str, list[int]]]:
        """Return the domains of a rule, each with its rows in the order of their names."""
        table = self._handle.snapshot.nodes
        at = table.epoch, table.node_version, table.label_version
        if self._domains[number][0] != at:
            having = np.flatnonzero(table.allocatable(rule.resource) > 0).tolist()
            own = {row: table.names[row] for row in having}
            found = []
            for name, rows in self._layer(rule, having):
                inside = [row for row in rows if row in own]
                found.append((name, sorted(inside, key=lambda row: natural_key(own[row]))))
            self._domains[number] = at, found
        return self._domains[number][1]

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

    def _is_firm(self, row: int, rule: SpareRule) -> bool:
        """Tell whether a pod that is not preemptible uses a node's resource."""
        pods = self._handle.snapshot.nodes.pods[row].values()
        return any(
            rule.resource in pod.requests and pod.priority >= rule.preemptible_below for pod in pods
        )

    def kept_from(self, pod: PodInfo) -> BoolColumn | None:
        """Return which nodes are kept from a pod, as a mask of all; None for none."""
        rows = self.now()
        if not rows or self.may_use(pod):
            return None
        mask = np.zeros(len(self._handle.snapshot.nodes), dtype=bool)
        mask[list(rows)] = True
        return mask

    def may_use(self, pod: PodInfo) -> bool:
        """Tell whether a pod is preemptible for every rule, or of a gang that ran before."""
        if pod.gang is not None:
            members = self._handle.gang(pod.gang)
            if members.bound or members.satisfied or members.restarting:
                return True
        return all(pod.priority < rule.preemptible_below for rule in self._rules)
