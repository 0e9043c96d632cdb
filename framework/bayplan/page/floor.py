"""The network for the page: its layers and domains, and the domain of each node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bayplan.snapshot import NodeTable
from bayplan.topology.network.tree import Domain, NetworkTree

__all__ = ["Floor", "floor_of"]


class Floor(msgspec.Struct, frozen=True):
    """The layers, the outermost first; the domains, parents first; each node's innermost domain.

    A domain is ``{"name", "layer", "parent"}``: ``layer`` counts in ``layers``, ``parent`` in
    ``domains`` (None at the top).
    """

    layers: Sequence[str] = ()
    domains: Sequence[Mapping[str, Any]] = ()
    domain_of: Mapping[str, int] = msgspec.field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object without the nodes."""
        return {"layers": list(self.layers), "domains": [dict(one) for one in self.domains]}


def floor_of(tree: NetworkTree | None, table: NodeTable) -> Floor:
    """Return the floor of a network; all nodes stand outside of it where there is none."""
    if tree is None:
        return Floor()
    layers = list(tree.layers)
    domains: list[Mapping[str, Any]] = []
    domain_of: dict[str, int] = {}

    def visit(domain: Domain, parent: int | None) -> None:
        number = None
        if domain.path:
            number = len(domains)
            row = {"name": domain.name, "layer": layers.index(domain.layer), "parent": parent}
            domains.append(row)
            own = domain.rows[len(domain.rows) - domain.own :] if domain.own else ()
            for node in own:
                domain_of[table.names[int(node)]] = number
        for child in domain.children:
            visit(child, number)

    visit(tree.root, None)
    return Floor(layers, domains, domain_of)
