"""Node groups: what a simulated autoscaler may add and remove, from a YAML file."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace
from pydantic import BeforeValidator, Field

from bayplan.api import Node
from bayplan.api.objects import KINDS, DecodeError, decode_object
from bayplan.billing.pricelist_file import exact
from bayplan.billing.prices import single_document
from bayplan.errors import InputError
from bayplan.inputs.documents import Document
from bayplan.inputs.validated import validated
from bayplan.simulation.fields import FileFields, Seconds
from bayplan.topology.network.tree import HOSTNAME

__all__ = ["NodeGroup", "NodeGroups", "load_node_groups"]

_MOST_NODES = 100_000
_Price = Annotated[Decimal, BeforeValidator(exact), Field(ge=0, le=1_000_000)]


class _GroupFields(FileFields):
    """A group: its bounds, how long a node takes to be ready, what it costs, and its nodes."""

    name: str = Field(min_length=1, max_length=200, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")
    min: int = Field(default=0, ge=0, le=_MOST_NODES, strict=True)
    max: int = Field(ge=0, le=_MOST_NODES, strict=True)
    startup: Seconds = 180.0
    price_per_hour: _Price = Decimal(0)
    template: dict[str, Any]


class _FileFields(FileFields):
    """The file: the groups, and how the autoscaler behaves."""

    api_version: Literal["bayplan.dev/v1alpha1"]
    kind: Literal["NodeGroups"]
    node_groups: tuple[_GroupFields, ...] = Field(min_length=1)
    scan_interval: Seconds = 10.0
    scale_down_after: Seconds = 600.0
    booking: Seconds = 600.0


class NodeGroup(msgspec.Struct, frozen=True):
    """A group of equal nodes.

    :param least: so many nodes stay. :param most: no more are added.
    :param startup: seconds from the purchase of a node until it is ready.
    :param price: what a node costs per hour, from its purchase to its removal.
    """

    name: str
    least: int
    most: int
    startup: float
    price: Decimal
    template: Node

    def node(self, number: int) -> Node:
        """Return a node of the group."""
        name = f"{self.name}-{number}"
        meta = self.template.metadata
        labels = {**meta.labels, HOSTNAME: name}
        return replace(self.template, metadata=replace(meta, name=name, labels=labels))


class NodeGroups(msgspec.Struct, frozen=True):
    """The groups, and how the autoscaler behaves; times are in seconds.

    :param scan: between two looks at what is pending.
    :param idle: after which an empty node is removed.
    :param booking: for which provisioned capacity is kept.
    """

    groups: tuple[NodeGroup, ...]
    scan: float
    idle: float
    booking: float


def load_node_groups(path: Path) -> NodeGroups:
    """Read a file of node groups.

    :raises InputError: naming file, line and path of what cannot be used.
    """
    document = single_document(path, "NodeGroups")
    fields = validated(_FileFields, document.content, document)
    groups = [_group(one, index, document) for index, one in enumerate(fields.node_groups)]
    names = [one.name for one in groups]
    for index, name in enumerate(names):
        if name in names[:index]:
            where = document.where(("nodeGroups", index, "name"))
            raise InputError(f'two groups are named "{name}"', where)
    return NodeGroups(tuple(groups), fields.scan_interval, fields.scale_down_after, fields.booking)


def _group(fields: _GroupFields, index: int, document: Document) -> NodeGroup:
    at = ("nodeGroups", index)
    if fields.min > fields.max:
        raise InputError(
            f"nodeGroups.{index}.min: {fields.min} is more than max, {fields.max}",
            document.where((*at, "min")),
        )
    return NodeGroup(
        fields.name,
        fields.min,
        fields.max,
        fields.startup,
        fields.price_per_hour,
        _template(fields, at, document),
    )


def _template(fields: _GroupFields, at: tuple[str | int, ...], document: Document) -> Node:
    """Return what the nodes of a group look like; the template needs no name."""
    content = {**fields.template}
    meta = content.get("metadata") or {}
    if not isinstance(meta, dict):
        raise InputError("template.metadata: expected a mapping", document.where((*at, "template")))
    content["metadata"] = {**meta, "name": fields.name}
    try:
        node = decode_object(KINDS["", "Node"], content)
    except DecodeError as exc:
        where = document.where((*at, "template"))
        raise InputError(f"nodeGroups.{at[1]}.template: {exc}", where) from None
    assert isinstance(node, Node), "decoded as a node"
    if not node.status.allocatable:
        raise InputError(
            f"nodeGroups.{at[1]}.template.status.allocatable: expected what its nodes offer",
            document.where((*at, "template")),
        )
    return node
