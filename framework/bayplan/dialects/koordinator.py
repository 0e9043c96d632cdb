"""Koordinator: PodGroups, gather strategies, and the profile arguments it ships.

Names and defaults as in koordinator-sh/koordinator v1.8 (apis/extension/coscheduling.go,
apis/extension/network_topology.go).
"""

from __future__ import annotations

import json
from typing import Any

import pydantic
import pydantic.alias_generators

from bayplan.api import ClusterNetworkTopology, Pod, PodGroup
from bayplan.api.gang import Gang, Gather, Membership
from bayplan.dialects.kubernetes import is_index
from bayplan.topology.network import Layer, TopologyError, chain_of

__all__ = [
    "NODE_LAYER",
    "PLUGIN_NAMES",
    "ROOT_LAYER",
    "CoschedulingArgs",
    "gang_of",
    "layers_of",
    "membership_of",
]

NODE_LAYER = "NodeTopologyLayer"
ROOT_LAYER = "ClusterTopologyLayer"

_POD_GROUP_LABELS = (
    "pod-group.scheduling.sigs.k8s.io",
    "pod-group.scheduling.sigs.k8s.io/name",
    "scheduling.x-k8s.io/pod-group",
)
_GANG_ANNOTATION = "gang.scheduling.koordinator.sh/name"
_SPEC_ANNOTATION = "gang.scheduling.koordinator.sh/network-topology-spec"
_INDEX_ANNOTATION = "gang.scheduling.koordinator.sh/network-topology-index"
PLUGIN_NAMES = {"Coscheduling": "Gang"}
"""Koordinator's plugins that have another name in bayplan."""
_STRATEGIES = {"MustGather": True, "PreferGather": False}


def membership_of(pod: Pod) -> Membership:
    """Return the pod's gang by label (or Koordinator's annotation), and its topology index."""
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    name = next((labels[key] for key in _POD_GROUP_LABELS if labels.get(key)), None)
    name = name or annotations.get(_GANG_ANNOTATION)
    gang = f"{pod.metadata.namespace}/{name}" if name else None
    index = annotations.get(_INDEX_ANNOTATION)
    if index is None:
        return Membership(gang)
    if not is_index(index):
        problem = (
            f'annotation {_INDEX_ANNOTATION}: expected a number of 0 or more, got "{index[:40]}"'
        )
        return Membership(gang, problem=problem)
    return Membership(gang, rank=int(index))


def gang_of(group: PodGroup) -> Gang:
    """Return the gang that a PodGroup describes, its gather strategy included."""
    meta = group.metadata
    key = f"{meta.namespace}/{meta.name}"
    try:
        gather = _gather_of(meta.annotations.get(_SPEC_ANNOTATION, ""))
    except ValueError as exc:
        problem = f"annotation {_SPEC_ANNOTATION}: {exc}"
        return Gang(key, group.spec.min_member, problem=problem)
    return Gang(key, group.spec.min_member, gather)


def _gather_of(text: str) -> tuple[Gather, ...]:
    if not text:
        return ()
    try:
        spec: Any = json.loads(text)
    except RecursionError:
        raise ValueError("not JSON that can be read: nested too deeply") from None
    except ValueError as exc:
        raise ValueError(f"not JSON: {exc}") from None
    rules = spec.get("gatherStrategy", []) if isinstance(spec, dict) else None
    if not isinstance(rules, list):
        raise ValueError('expected {"gatherStrategy": [{"layer": ..., "strategy": ...}]}')
    return tuple(_gather_rule(index, rule) for index, rule in enumerate(rules))


def _gather_rule(index: int, rule: Any) -> Gather:
    where = f"gatherStrategy[{index}]"
    layer = rule.get("layer") if isinstance(rule, dict) else None
    if not isinstance(layer, str) or not layer:
        raise ValueError(f'{where}: "layer" is missing')
    strategy = rule.get("strategy")
    if not isinstance(strategy, str) or strategy not in _STRATEGIES:
        raise ValueError(f"{where}.strategy: expected MustGather or PreferGather, got {strategy!r}")
    unknown = set(rule) - {"layer", "strategy"}
    if unknown:
        raise ValueError(f'{where}: "{min(unknown)}" is not supported')
    return Gather(layer, required=_STRATEGIES[strategy])


def layers_of(topology: ClusterNetworkTopology) -> tuple[Layer, ...]:
    """Return the network layers of a ClusterNetworkTopology, the outermost first.

    :raises TopologyError: for a layer that is named twice, hangs on an unknown parent, is part of
        a cycle, or is one of two children of one parent.
    """
    parents: dict[str, str] = {}
    keys: dict[str, tuple[str, ...]] = {}
    for index, layer in enumerate(topology.spec.network_topology_spec):
        where = f"$.spec.networkTopologySpec[{index}]"
        name, parent = layer.topology_layer, layer.parent_topology_layer
        if name in parents:
            raise TopologyError(f'layer "{name}" is defined twice', where)
        if not layer.label_key and name not in (NODE_LAYER, ROOT_LAYER):
            raise TopologyError(f'layer "{name}" names no labelKey', where)
        parents[name] = "" if parent == ROOT_LAYER else parent
        keys[name] = layer.label_key
    parents.pop(ROOT_LAYER, None)
    return tuple(
        Layer(name, keys[name]) for name in chain_of(parents, leaf=NODE_LAYER) if name != NODE_LAYER
    )


class CoschedulingArgs(pydantic.BaseModel):
    """Arguments of Koordinator's Coscheduling plugin (pkg/scheduler/apis/config, v1.8)."""

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, alias_generator=pydantic.alias_generators.to_camel
    )

    default_timeout: str | int | None = None
    controller_workers: int | None = None
    skip_check_schedule_cycle: bool | None = None
    enable_preemption: bool | None = None
    aware_network_topology: bool = False
    default_match_policy: str | None = None

    def disabled_plugins(self) -> frozenset[str]:
        """Return the plugins of the default profile that these arguments leave out."""
        return frozenset() if self.aware_network_topology else frozenset({"NetworkGather"})

    def without_effect(self) -> list[str]:
        """Return the names of the arguments given that change nothing in bayplan."""
        given = self.model_dump(by_alias=True, exclude_unset=True)
        return sorted(set(given) - {"awareNetworkTopology"})
