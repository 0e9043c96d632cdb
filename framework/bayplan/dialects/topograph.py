"""topograph: clusters from its network model files, which list switches and blocks of nodes.

The format is that of topograph v1.0 (tests/models): ``switches`` maps each switch to the switches
below it and to labels, ``blocks`` lists the nodes of each switch, with ranges such as
``node[01-18]``. Each node becomes a Node with topograph's labels; the layers become a
ClusterNetworkTopology. A model does not say what nodes offer: each is assumed to have 8 GPUs, 96
cores and 1 TiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bayplan.api import ApiObject, ClusterNetworkTopology, Node, ObjectMeta, Quantity
from bayplan.api.network import ClusterNetworkTopologySpec, NetworkTopologyLayer
from bayplan.api.node import NodeStatus
from bayplan.topology.network.tree import NODE_LAYER, TopologyError

__all__ = ["cluster_of", "is_model"]

_TIER_LABEL = "fabric.topograph.run/tier-{}"
_NAMES = ("LeafLayer", "SpineLayer", "CoreLayer")
_ACCELERATOR = {
    "domain": ("AcceleratorLayer", "accelerator.topograph.run/domain"),
    "sub-domain": ("AcceleratorSubLayer", "accelerator.topograph.run/sub-domain"),
}
_MACHINE = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
_RANGE = re.compile(r"\[([^\]]*)\]")
_PART = re.compile(r"(\d+)(?:-(\d+))?")
_MOST_NODES = 100_000


def is_model(content: Mapping[str, Any]) -> bool:
    """Tell whether a document is a network model rather than a Kubernetes object."""
    return "kind" not in content and "switches" in content and "blocks" in content


def cluster_of(model: Mapping[str, Any]) -> list[ApiObject]:
    """Return the nodes of a model, then the network that they are in.

    :raises TopologyError: for a model that contradicts itself, with the path of the faulty part.
    """
    switches = _mapping(model.get("switches"), "$.switches")
    parents, labels = _parents(switches)
    nodes: dict[str, dict[str, str]] = {}
    blocks = model.get("blocks")
    if not isinstance(blocks, list):
        raise TopologyError("expected a list", "$.blocks")
    depth = 0
    for index, block in enumerate(blocks):
        where = f"$.blocks[{index}]"
        path = _path(_mapping(block, where).get("switch"), parents, where)
        depth = max(depth, len(path))
        own = {_TIER_LABEL.format(tier): switch for tier, switch in enumerate(path)}
        for switch in path:
            own |= labels.get(switch, {})
        own |= _accelerators(block, where)
        for name in _expanded(block.get("nodes"), f"{where}.nodes"):
            if name in nodes:
                raise TopologyError(f'node "{name}" is in two blocks', where)
            nodes[name] = own
            if len(nodes) > _MOST_NODES:
                raise TopologyError(f"more than {_MOST_NODES} nodes", where)
    amounts = {name: Quantity(value) for name, value in _MACHINE.items()}
    made: list[ApiObject] = [
        Node(
            ObjectMeta(name=name, labels={"kubernetes.io/hostname": name, **own}),
            status=NodeStatus(amounts, amounts),
        )
        for name, own in nodes.items()
    ]
    return [*made, _network(_layers(depth, list(nodes.values())))]


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TopologyError("expected a mapping", where)
    return value


def _parents(switches: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return the parent of each switch, and the labels that it gives to the nodes below it."""
    parents: dict[str, str] = dict.fromkeys(map(str, switches), "")
    labels: dict[str, dict[str, str]] = {}
    for name, content in switches.items():
        where = f'$.switches["{name}"]'
        content = _mapping(content or {}, where)
        given = _mapping(content.get("labels") or {}, f"{where}.labels")
        labels[str(name)] = {str(key): str(value) for key, value in given.items()}
        below = content.get("switches") or []
        if not isinstance(below, list):
            raise TopologyError("expected a list", f"{where}.switches")
        for child in map(str, below):
            if parents.get(child):
                raise TopologyError(
                    f'switch "{child}" is below "{parents[child]}" and below "{name}"', where
                )
            parents[child] = str(name)
    return parents, labels


def _path(switch: Any, parents: Mapping[str, str], where: str) -> list[str]:
    """Return a switch and the switches above it, the lowest first."""
    if str(switch) not in parents:
        raise TopologyError(f'there is no switch "{switch}"', f"{where}.switch")
    path = [str(switch)]
    while parents[path[-1]]:
        above = parents[path[-1]]
        if above in path:
            cycle = " -> ".join([*path[path.index(above) :], above])
            raise TopologyError(f"the switches form a cycle: {cycle}", "$.switches")
        path.append(above)
    return path


def _accelerators(block: Mapping[str, Any], where: str) -> dict[str, str]:
    annotations = _mapping(block.get("annotations") or {}, f"{where}.annotations")
    found = {}
    for key, value in annotations.items():
        name = str(key).rpartition("/")[2]
        if str(key).startswith("accelerator.") and name in _ACCELERATOR:
            found[_ACCELERATOR[name][1]] = str(value)
    return found


def _expanded(patterns: Any, where: str) -> Iterator[str]:
    if not isinstance(patterns, list):
        raise TopologyError("expected a list of names", where)
    for pattern in map(str, patterns):
        # Kubernetes names are lower case.
        yield from (name.lower() for name in _names(pattern, where))


def _names(pattern: str, where: str) -> Iterator[str]:
    match = _RANGE.search(pattern)
    if match is None:
        if not re.fullmatch(r"[A-Za-z0-9][-A-Za-z0-9.]*", pattern):
            raise TopologyError(f'"{pattern}" is not the name of a node', where)
        yield pattern
        return
    for part in match[1].split(","):
        bounds = _PART.fullmatch(part.strip())
        if bounds is None:
            raise TopologyError(f'expected a range such as [01-18], got "{match[0]}"', where)
        first, last = bounds[1], bounds[2] or bounds[1]
        if not 0 <= int(last) - int(first) < _MOST_NODES:
            raise TopologyError(f'"{match[0]}" is not a rising range of sane size', where)
        for number in range(int(first), int(last) + 1):
            head, tail = pattern[: match.start()], pattern[match.end() :]
            yield from _names(f"{head}{number:0{len(first)}}{tail}", where)


def _layers(depth: int, labels: Sequence[Mapping[str, str]]) -> list[tuple[str, str]]:
    """Return (name, label) of each layer, the outermost first.

    Accelerator layers are inserted where they nest between the others.
    """
    layers = []
    for tier in reversed(range(depth)):
        name = _NAMES[tier] if tier < len(_NAMES) else f"Tier{tier}Layer"
        layers.append((name, _TIER_LABEL.format(tier)))
    for name, key in _ACCELERATOR.values():
        if not any(key in own for own in labels):
            continue
        at = len(layers)
        while (
            at
            and _nests(labels, inner=layers[at - 1][1], outer=key)
            and not _nests(labels, inner=key, outer=layers[at - 1][1])
        ):
            at -= 1
        if at == 0 or _nests(labels, inner=key, outer=layers[at - 1][1]):
            layers.insert(at, (name, key))
    return layers


def _nests(labels: Sequence[Mapping[str, str]], inner: str, outer: str) -> bool:
    """Tell whether every domain of the label ``inner`` is within one domain of ``outer``."""
    home: dict[str, str | None] = {}
    for own in labels:
        if inner in own and home.setdefault(own[inner], own.get(outer)) != own.get(outer):
            return False
    return True


def _network(layers: Sequence[tuple[str, str]]) -> ClusterNetworkTopology:
    found, parent = [], ""
    for name, key in layers:
        found.append(NetworkTopologyLayer(name, parent, (key,)))
        parent = name
    found.append(NetworkTopologyLayer(NODE_LAYER, parent))
    return ClusterNetworkTopology(
        ObjectMeta(name="default"), ClusterNetworkTopologySpec(tuple(found))
    )
