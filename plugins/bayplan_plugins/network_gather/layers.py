"""The layers that a gang names, found in a network."""

from __future__ import annotations

import itertools

from bayplan.api.gang import Gang
from bayplan.errors import did_you_mean
from bayplan.topology.network.tree import NetworkTree, TopologyError

__all__ = ["check_slices", "layer_named"]


def check_slices(gang: Gang, tree: NetworkTree) -> None:
    """Check that the sizes of nested slices divide each other.

    :raises TopologyError: if they do not, or if a layer does not exist.
    """
    order = tree.layer_order()
    sizes = sorted((order.index(layer_named(tree, one.layer)), one.size) for one in gang.slices)
    for (_, outer), (_, inner) in itertools.pairwise(sizes):
        if outer % inner:
            raise TopologyError(f"slices of {inner} do not divide the slices of {outer} around")


def layer_named(tree: NetworkTree, name: str) -> str:
    """Return the layer of a network that a name, or a label key, stands for.

    :raises TopologyError: if there is none.
    """
    layer = tree.find_layer(name)
    if layer is None:
        known = ", ".join(tree.layer_order()[1:])
        near = did_you_mean(name, known.split(", "))
        raise TopologyError(f'there is no network layer "{name}" ({known}){near}')
    return layer
