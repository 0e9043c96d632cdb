"""The network as a tree of domains over nodes.

Layers are ordered from the outermost (a spine) to the innermost (a block); the nodes are the
leaves. A domain is identified by its whole path, so two blocks of the same name under different
spines are two domains. A tree is built from node labels (:func:`build_tree`) or from named sets of
nodes and sets (:func:`tree_of_sets`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from bayplan.errors import BayplanError
from bayplan.naming import counted, natural_key

__all__ = [
    "HOSTNAME",
    "NODE_LAYER",
    "ROOT_LAYER",
    "Domain",
    "Layer",
    "NetworkTree",
    "NodeSet",
    "TopologyError",
    "build_tree",
    "chain_of",
    "tree_of_sets",
]

Rows = npt.NDArray[np.intp]
NODE_LAYER = "NodeTopologyLayer"
"""The layer of the nodes themselves, below every tree."""
ROOT_LAYER = "ClusterTopologyLayer"
"""The layer of the whole cluster, above every tree."""
HOSTNAME = "kubernetes.io/hostname"
_TIER = re.compile(r"tier-(\d+)")
_MOST_NAMED = 5


class TopologyError(BayplanError):
    """A topology contradicts itself; ``path`` is the JSON path of the faulty part."""

    def __init__(self, message: str, path: str = "$.spec") -> None:
        super().__init__(message)
        self.path = path


class Layer(msgspec.Struct, frozen=True):
    """A network layer and the node labels that name its domains; the first label found counts."""

    name: str
    label_keys: tuple[str, ...]


class NodeSet(msgspec.Struct, frozen=True):
    """A named set of nodes and of other sets; a set of a lower tier is nearer to the nodes."""

    name: str
    tier: int
    tier_name: str = ""
    nodes: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()


class Domain(msgspec.Struct, eq=False):
    """One domain of one layer: its path from the top, its children, and all its node rows.

    ``rows`` are in topology order: neighbouring rows are neighbours in the network. They equal
    ``tree.order[start:end]``; the last ``own`` rows are in none of the children.
    """

    path: tuple[str, ...]
    layer: str
    parent: Domain | None = None
    children: list[Domain] = msgspec.field(default_factory=list)
    rows: Rows = msgspec.field(default_factory=lambda: np.empty(0, dtype=np.intp))
    start: int = 0
    end: int = 0
    own: int = 0

    @property
    def name(self) -> str:
        """The label value that names the domain, "" for the whole cluster."""
        return self.path[-1] if self.path else ""

    @property
    def label(self) -> str:
        """The name for people: ``layer/name``, or "cluster" for the whole cluster."""
        return f"{self.layer}/{self.name}" if self.path else "cluster"


class NetworkTree:
    """The root domain, the domains of each layer in order, and the rows outside of the tree.

    ``order`` holds the rows of the tree in topology order, ``outside`` the other rows. ``layers``
    maps each layer, the outermost first, to its domains. ``notes`` say what contradicted the tree,
    and how that was resolved.

    :param layers: the other names of each layer, the outermost layer first.
    :param members: the rows of each domain that are in none of its children, by path.
    """

    def __init__(
        self,
        root: Domain,
        layers: Mapping[str, tuple[str, ...]],
        members: Mapping[tuple[str, ...], list[int]],
        outside: Iterable[int],
        notes: Iterable[str] = (),
    ) -> None:
        self.root = root
        _set_rows(root, members, 0)
        self.order = root.rows
        self.outside: Rows = np.array(list(outside), dtype=np.intp)
        self.notes = tuple(notes)
        self.layers: dict[str, list[Domain]] = {layer: [] for layer in layers}
        _collect(root, self.layers)
        self._aliases = {key: layer for layer, keys in layers.items() for key in keys}
        self._bounds = {
            layer: (
                np.array([domain.start for domain in domains], dtype=np.intp),
                np.array([domain.end for domain in domains], dtype=np.intp),
            )
            for layer, domains in self.layers.items()
        }

    def find_layer(self, name: str) -> str | None:
        """Return the layer that a name or a label key refers to, None if there is none.

        ``tier-N`` refers to the highest tier up to N; ``tier-1`` to the lowest tier if all are
        higher.
        """
        if name in self.layers or name in (NODE_LAYER, ROOT_LAYER):
            return name
        if name == HOSTNAME:
            return NODE_LAYER
        if name in self._aliases:
            return self._aliases[name]
        wanted = _TIER.fullmatch(name)
        tiers = {int(m[1]): layer for layer in self.layers if (m := _TIER.fullmatch(layer))}
        if wanted is None or not tiers:
            return None
        below = [tier for tier in tiers if tier <= int(wanted[1])]
        if below:
            return tiers[max(below)]
        return tiers[min(tiers)] if int(wanted[1]) == 1 else None

    def layer_order(self) -> list[str]:
        """Return the layers from the whole cluster to the nodes."""
        return [ROOT_LAYER, *self.layers, NODE_LAYER]

    def bounds(self, layer: str) -> tuple[Rows, Rows]:
        """Return the starts and the ends of a layer's domains in ``order``.

        :raises KeyError: for a layer that is not in the tree.
        """
        return self._bounds[layer]

    def domain_of(self, row: int, layer: str) -> Domain | None:
        """Return the domain of a layer that contains a row, None if there is none."""
        for domain in self.layers.get(layer, ()):
            if row in domain.rows:
                return domain
        return None


def chain_of(parents: Mapping[str, str], leaf: str) -> list[str]:
    """Return the layers from the outermost to ``leaf``, given each layer's parent ("" for none).

    :raises TopologyError: when the layers are not a single chain that ends in ``leaf``.
    """
    for layer, parent in parents.items():
        if parent and parent not in parents:
            raise TopologyError(f'layer "{layer}" has the parent "{parent}", which is not defined')
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


# From labels -------------------------------------------------------------------------------


def build_tree(
    layers: Sequence[Layer], labels: Sequence[Mapping[str, str]], names: Sequence[str] = ()
) -> NetworkTree:
    """Build the tree from the labels of all nodes, given by row.

    A node that lacks the label of a layer is outside of the tree. If it lacks only the label of the
    innermost of several layers, it forms a domain of its own there, with its name from ``names``.
    Domains are ordered by name (digits as numbers), the rows of a domain in the given order.
    """
    root = Domain((), "")
    by_path: dict[tuple[str, ...], Domain] = {(): root}
    members: dict[tuple[str, ...], list[int]] = {(): []}
    outside: list[int] = []
    alone: list[int] = []
    missing: dict[str, list[int]] = {}
    for row, node_labels in enumerate(labels):
        path = _path_of(layers, node_labels)
        if names and len(layers) > 1 and None not in path[:-1] and path[-1] is None:
            path[-1] = names[row]
            alone.append(row)
        whole = tuple(part for part in path if part is not None)
        if len(whole) < len(path):
            outside.append(row)
            missing.setdefault(layers[path.index(None)].name, []).append(row)
            continue
        for depth in range(1, len(whole) + 1):
            prefix = whole[:depth]
            if prefix not in by_path:
                parent = by_path[prefix[:-1]]
                domain = by_path[prefix] = Domain(prefix, layers[depth - 1].name, parent)
                parent.children.append(domain)
                members[prefix] = []
        members[whole].append(row)
    notes = [
        f"{_named(rows, names)} without a label of {layer}: outside of the network"
        for layer, rows in missing.items()
    ]
    if alone:
        layer = layers[-1].name
        notes.append(f"{_named(alone, names)} without a label of {layer}: a domain of its own")
    notes += _twice(by_path.values())
    keys = {layer.name: layer.label_keys for layer in layers}
    return NetworkTree(root, keys, members, outside, notes)


def _path_of(layers: Sequence[Layer], labels: Mapping[str, str]) -> list[str | None]:
    return [
        next((labels[key] for key in layer.label_keys if labels.get(key)), None) for layer in layers
    ]


def _named(rows: Sequence[int], names: Sequence[str]) -> str:
    count = counted(len(rows), "node")
    if not names:
        return count
    shown = ", ".join(names[row] for row in rows[:_MOST_NAMED])
    return f"{count} ({shown}{', …' if len(rows) > _MOST_NAMED else ''})"


def _twice(domains: Iterable[Domain]) -> list[str]:
    """Return notes on domains of one layer that share a name under different parents."""
    parents: dict[tuple[str, str], list[str]] = {}
    for domain in domains:
        if domain.parent is not None and domain.parent.path:
            parents.setdefault((domain.layer, domain.name), []).append(domain.parent.label)
    return [
        f"{layer}/{name} is under {' and '.join(found)}: each is a domain of its own"
        for (layer, name), found in parents.items()
        if len(found) > 1
    ]


# From sets ---------------------------------------------------------------------------------


def tree_of_sets(sets: Sequence[NodeSet], names: Sequence[str]) -> NetworkTree:
    """Build the tree from sets of nodes; ``names`` are the nodes' names by row.

    Tier ``n`` is the layer ``tier-n``; its tier name refers to the same layer. A node or set that
    several sets of one tier claim belongs to the first of them by name.

    :raises TopologyError: when sets contain each other, or the tier of a member is not below that
        of its set.
    """
    by_name = {one.name: one for one in sets}
    _check_cycles(by_name)
    notes: list[str] = []
    parent_of, home = _owners(sets, by_name, names, notes)
    root = Domain((), "")
    domains: dict[str, Domain] = {}
    members: dict[tuple[str, ...], list[int]] = {(): []}

    def domain(name: str) -> Domain:
        if name not in domains:
            above = domain(parent_of[name]) if name in parent_of else root
            path = (*above.path, name)
            made = domains[name] = Domain(path, f"tier-{by_name[name].tier}", above)
            above.children.append(made)
            members[path] = []
        return domains[name]

    for name in sorted(by_name, key=natural_key):
        domain(name)
    outside = []
    for row in range(len(names)):
        if row in home:
            members[domains[home[row]].path].append(row)
        else:
            outside.append(row)
    if outside:
        notes.append(f"{_named(outside, names)} in no set: outside of the network")
    tiers = sorted({one.tier for one in sets}, reverse=True)
    aliases = {
        f"tier-{tier}": tuple(sorted({s.tier_name for s in sets if s.tier == tier} - {""}))
        for tier in tiers
    }
    return NetworkTree(root, aliases, members, outside, notes)


def _owners(
    sets: Sequence[NodeSet],
    by_name: Mapping[str, NodeSet],
    names: Sequence[str],
    notes: list[str],
) -> tuple[dict[str, str], dict[int, str]]:
    """Return the set that owns each set, by name, and each node, by row.

    Notes members that do not exist, and members that several sets claim.

    :raises TopologyError: when the tier of a member is not below that of its set.
    """
    parent_of: dict[str, str] = {}
    row_of = {name: row for row, name in enumerate(names)}
    home: dict[int, str] = {}
    for one in sorted(sets, key=lambda s: (s.tier, natural_key(s.name))):
        for child in one.sets:
            if child not in by_name:
                notes.append(f'set "{one.name}" names "{child}", which does not exist')
                continue
            if by_name[child].tier >= one.tier:
                raise TopologyError(
                    f'"{one.name}" of tier {one.tier} has the member "{child}" of tier '
                    f"{by_name[child].tier}; a member's tier has to be lower"
                )
            first = parent_of.setdefault(child, one.name)
            if first != one.name:
                notes.append(f'"{child}" is in "{first}" and in "{one.name}": the first counts')
        for node in one.nodes:
            row = row_of.get(node)
            if row is None:
                notes.append(f'set "{one.name}" names node "{node}", which does not exist')
                continue
            first = home.setdefault(row, one.name)
            if first != one.name:
                notes.append(f'node "{node}" is in "{first}" and in "{one.name}": the first counts')
    return parent_of, home


def _check_cycles(by_name: Mapping[str, NodeSet]) -> None:
    done: set[str] = set()
    for start in sorted(by_name, key=natural_key):
        path: list[str] = []
        stack: list[tuple[str, bool]] = [(start, False)]
        while stack:
            name, leaving = stack.pop()
            if leaving:
                path.pop()
                done.add(name)
                continue
            if name in path:
                cycle = " -> ".join([*path[path.index(name) :], name])
                raise TopologyError(f"the sets contain each other: {cycle}")
            if name in done or name not in by_name:
                continue
            path.append(name)
            stack.append((name, True))
            stack += [(child, False) for child in by_name[name].sets]


# Rows --------------------------------------------------------------------------------------


def _set_rows(domain: Domain, members: Mapping[tuple[str, ...], list[int]], start: int) -> int:
    """Set the rows of a domain and all domains below it; return the start of the next one."""
    domain.children.sort(key=lambda child: natural_key(child.name))
    domain.start = start
    for child in domain.children:
        start = _set_rows(child, members, start)
    own = np.array(members[domain.path], dtype=np.intp)
    domain.own = len(own)
    domain.rows = np.concatenate([*(child.rows for child in domain.children), own])
    domain.end = start + len(own)
    return domain.end


def _collect(domain: Domain, by_layer: dict[str, list[Domain]]) -> None:
    if domain.path:
        by_layer[domain.layer].append(domain)
    for child in domain.children:
        _collect(child, by_layer)
