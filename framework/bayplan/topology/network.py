"""The network as a tree of domains over nodes.

Layers are ordered from the outermost (a spine) to the innermost (a block); the nodes are the
leaves. A domain's identity is its whole path, so that two blocks of one name under different
spines stay two blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bayplan.errors import BayplanError
from bayplan.naming import natural_key

__all__ = ["Domain", "Layer", "NetworkTree", "TopologyError", "build_tree", "chain_of"]


class TopologyError(BayplanError):
    """A topology contradicts itself; ``path`` is the JSON path of the part at fault."""

    def __init__(self, message: str, path: str = "$.spec") -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True)
class Layer:
    """A network layer and the node labels that name its domains; the first one present counts."""

    name: str
    label_keys: tuple[str, ...]


@dataclass
class Domain:
    """One domain of one layer: its path from the top, its children and all of its node rows.

    ``rows`` are in topology order: neighbouring rows are neighbours in the network.
    """

    path: tuple[str, ...]
    layer: str
    children: list[Domain] = field(default_factory=list)
    rows: npt.NDArray[np.intp] = field(default_factory=lambda: np.empty(0, dtype=np.intp))

    @property
    def name(self) -> str:
        """The label value that names the domain; empty for the whole cluster."""
        return self.path[-1] if self.path else ""


@dataclass(frozen=True)
class NetworkTree:
    """The root domain, the domains of each layer in order, and the rows outside of the tree."""

    root: Domain
    layers: Mapping[str, Sequence[Domain]]
    outside: npt.NDArray[np.intp]


def chain_of(parents: Mapping[str, str], leaf: str) -> list[str]:
    """Order layers from the outermost to ``leaf``, given each layer's parent ("" for none).

    :raises TopologyError: when the layers are not one chain that ends in ``leaf``.
    """
    for layer, parent in parents.items():
        if parent and parent not in parents:
            raise TopologyError(f'layer "{layer}" hangs on "{parent}", which is not defined')
    for layer in parents:
        seen = [layer]
        while parents[seen[-1]]:
            seen.append(parents[seen[-1]])
            if seen[-1] in seen[:-1]:
                cycle = seen[seen.index(seen[-1]) :]
                raise TopologyError(f"the layers form a cycle: {' -> '.join(cycle)}")
    if leaf not in parents:
        raise TopologyError(f'the layer "{leaf}" is not defined, so no node is in the tree')
    chain = [leaf]
    while parents[chain[-1]]:
        chain.append(parents[chain[-1]])
    stray = sorted(set(parents) - set(chain))
    if stray:
        raise TopologyError(
            f'layer "{stray[0]}" is not on the way from "{leaf}" to "{chain[-1]}"; '
            "the layers have to form one chain"
        )
    return chain[::-1]


def build_tree(layers: Sequence[Layer], labels: Sequence[Mapping[str, str]]) -> NetworkTree:
    """Build the tree from the labels of all nodes, given by row.

    A node that lacks the label of any layer is outside of the tree. Domains are ordered by
    name (digits as numbers), rows by the order in which they are given.
    """
    root = Domain((), "")
    by_path: dict[tuple[str, ...], Domain] = {(): root}
    members: dict[tuple[str, ...], list[int]] = {(): []}
    outside: list[int] = []
    for row, node_labels in enumerate(labels):
        path = _path_of(layers, node_labels)
        if path is None:
            outside.append(row)
            continue
        for depth in range(1, len(path) + 1):
            prefix = path[:depth]
            if prefix not in by_path:
                domain = by_path[prefix] = Domain(prefix, layers[depth - 1].name)
                by_path[prefix[:-1]].children.append(domain)
                members[prefix] = []
        members[path].append(row)
    _close(root, members)
    by_layer: dict[str, list[Domain]] = {layer.name: [] for layer in layers}
    _collect(root, by_layer)
    return NetworkTree(root, by_layer, np.array(outside, dtype=np.intp))


def _path_of(layers: Sequence[Layer], labels: Mapping[str, str]) -> tuple[str, ...] | None:
    path = []
    for layer in layers:
        value = next((labels[key] for key in layer.label_keys if labels.get(key)), None)
        if value is None:
            return None
        path.append(value)
    return tuple(path)


def _close(domain: Domain, members: Mapping[tuple[str, ...], list[int]]) -> None:
    domain.children.sort(key=lambda child: natural_key(child.name))
    for child in domain.children:
        _close(child, members)
    own = np.array(members[domain.path], dtype=np.intp)
    domain.rows = np.concatenate([*(child.rows for child in domain.children), own])


def _collect(domain: Domain, by_layer: dict[str, list[Domain]]) -> None:
    if domain.path:
        by_layer[domain.layer].append(domain)
    for child in domain.children:
        _collect(child, by_layer)
