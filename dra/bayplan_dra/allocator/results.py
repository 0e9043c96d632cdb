"""Allocation results: chosen devices in the form of the API."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bayplan.api.dra import (
    AllocatedDevice,
    AllocationResult,
    DeviceAllocation,
    DeviceConfiguration,
)
from bayplan.api.node import Node
from bayplan.api.pod import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from bayplan_dra.allocator.capacity import as_quantity
from bayplan_dra.allocator.model import Amount, Features, PoolDevice
from bayplan_dra.allocator.requests import ClaimToAllocate, Wanted

__all__ = ["Choice", "allocation_of"]


class Choice(NamedTuple):
    """A device chosen for a request; ``consumed`` is what a share takes, None for all of it."""

    wanted: Wanted
    device: PoolDevice
    consumed: Mapping[str, Amount] | None = None


def allocation_of(
    claim: ClaimToAllocate,
    choices: Sequence[Choice],
    node: Node,
    features: Features,
    repeat_config: bool = False,
) -> AllocationResult:
    """Return a claim's allocation.

    :param repeat_config: repeat a claim's configuration for every request that it applies to, as
        Kubernetes 1.36 does, instead of listing it once.
    """
    results = tuple(_result(claim, index, choice, features) for index, choice in enumerate(choices))
    used = list(dict.fromkeys(choice.wanted.name for choice in choices))
    config = (*_class_config(claim, used), *_claim_config(claim, used, repeat_config))
    return AllocationResult(DeviceAllocation(results, config), _node_selector(choices, node))


def _result(
    claim: ClaimToAllocate, index: int, choice: Choice, features: Features
) -> AllocatedDevice:
    wanted, device, consumed = choice
    spec = device.spec
    amounts = {}
    share = None
    if consumed is not None:
        share = _share_id(claim, index, device)
        amounts = {
            name: as_quantity(amount, spec.capacity[name].value)
            for name, amount in consumed.items()
        }
    binding = features.binding_conditions
    return AllocatedDevice(
        request=wanted.name,
        driver=device.id.driver,
        pool=device.id.pool,
        device=device.id.device,
        admin_access=True if wanted.admin else None,
        tolerations=wanted.tolerations,
        binding_conditions=spec.binding_conditions if binding else (),
        binding_failure_conditions=spec.binding_failure_conditions if binding else (),
        share_id=share,
        consumed_capacity=amounts,
    )


def _share_id(claim: ClaimToAllocate, index: int, device: PoolDevice) -> str:
    """Return a UUID for a share, derived from the claim, the index of the result and the device."""
    meta = claim.claim.metadata
    text = f"{meta.uid or meta.name}\0{meta.namespace}\0{index}\0{device.id}"
    digest = hashlib.sha256(text.encode()).digest()[:16]
    return str(uuid.UUID(bytes=digest, version=4))


def _class_config(claim: ClaimToAllocate, used: Sequence[str]) -> list[DeviceConfiguration]:
    by_class: dict[str, list[str]] = {}
    config: dict[str, tuple[DeviceConfiguration, ...]] = {}
    for request in claim.requests:
        for wanted in request.ways:
            if wanted.name in used:
                name = wanted.device_class.metadata.name
                by_class.setdefault(name, []).append(wanted.name)
                config[name] = wanted.device_class.spec.config
    return [
        DeviceConfiguration(tuple(requests), one.opaque, "FromClass")
        for name, requests in by_class.items()
        for one in config[name]
    ]


def _claim_config(
    claim: ClaimToAllocate, used: Sequence[str], repeat: bool
) -> list[DeviceConfiguration]:
    found = []
    for one in claim.config:
        names = set(one.requests)
        applies_to = [name for name in used if not names or names & {name, name.partition("/")[0]}]
        copies = len(applies_to) if repeat else min(1, len(applies_to))
        found += [DeviceConfiguration(one.requests, one.opaque, "FromClaim")] * copies
    return found


def _node_selector(choices: Sequence[Choice], node: Node) -> NodeSelector | None:
    """Return which nodes can use the devices: this one, those that match, or None for all."""
    expressions: list[NodeSelectorRequirement] = []
    fields: list[NodeSelectorRequirement] = []
    for choice in choices:
        device, pool = choice.device.spec, choice.device.slice
        if device.node_name or pool.node_name or device.binds_to_node:
            only = NodeSelectorRequirement("metadata.name", "In", (node.metadata.name,))
            return NodeSelector((NodeSelectorTerm(match_fields=(only,)),))
        selector = device.node_selector or pool.node_selector
        for term in selector.node_selector_terms if selector is not None else ():
            expressions += [r for r in term.match_expressions if r not in expressions]
            fields += [r for r in term.match_fields if r not in fields]
    if not expressions and not fields:
        return None
    return NodeSelector((NodeSelectorTerm(tuple(expressions), tuple(fields)),))
