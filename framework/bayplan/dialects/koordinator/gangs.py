"""Koordinator: PodGroups, gather strategies, and the plugin arguments of its profiles.

Names and defaults as in koordinator-sh/koordinator v1.8 (apis/extension/coscheduling.go,
apis/extension/network_topology.go).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pydantic
import pydantic.alias_generators
from msgspec.structs import replace

from bayplan.api import ApiObject, ClusterNetworkTopology, Pod, PodGroup, SchedulerPluginsPodGroup
from bayplan.api.gang import Gang, Gather, MatchPolicy, Membership, Slice
from bayplan.dialects.reading import amounts, is_index
from bayplan.errors import did_you_mean
from bayplan.inputs.durations import parse_duration
from bayplan.inputs.jsontext import parse_json
from bayplan.inputs.limits import ANNOTATION
from bayplan.topology.network.tree import NODE_LAYER, ROOT_LAYER, Layer, TopologyError, chain_of

__all__ = [
    "MEMBERS_BY",
    "NAME",
    "PLUGIN_NAMES",
    "SELECTOR_ANNOTATION",
    "CoschedulingArgs",
    "gang_of",
    "layers_of",
    "membership_of",
    "pod_group",
]

NAME = "Koordinator"
_POD_GROUP_LABELS = (
    "pod-group.scheduling.sigs.k8s.io",
    "pod-group.scheduling.sigs.k8s.io/name",
)
_DOMAIN = "gang.scheduling.koordinator.sh/"
_NAME_ANNOTATION = f"{_DOMAIN}name"
_MIN_ANNOTATION = f"{_DOMAIN}min-available"
_MIN_LABEL = "pod-group.scheduling.sigs.k8s.io/min-available"
_TOTAL_ANNOTATION = f"{_DOMAIN}total-number"
_WAIT_ANNOTATION = f"{_DOMAIN}waiting-time"
_MODE_ANNOTATION = f"{_DOMAIN}mode"
_GROUPS_ANNOTATION = f"{_DOMAIN}groups"
_POLICY_ANNOTATIONS = (
    f"{_DOMAIN}match-policy",
    "pod-group.scheduling.sigs.k8s.io/match-policy",
)
_SPEC_ANNOTATION = f"{_DOMAIN}network-topology-spec"
_INDEX_ANNOTATION = f"{_DOMAIN}network-topology-index"
MEMBERS_BY = frozenset((*_POD_GROUP_LABELS, _NAME_ANNOTATION, _INDEX_ANNOTATION))
"""The names without any of which, as label or annotation, no pod is in a gang or has a rank."""
SELECTOR_ANNOTATION = "scheduling.koordinator.sh/network-topology-selector"
"""The annotation of pods to place near each other; they share its value, in any namespace."""
PLUGIN_NAMES = {"Coscheduling": "Gang", "NodeNUMAResource": "NodeNUMA"}
"""Koordinator's plugins that have another name in bayplan."""
_STRATEGIES = {"MustGather": True, "PreferGather": False}
_MATCH_POLICIES: dict[str, MatchPolicy] = {
    "once-satisfied": "once-satisfied",
    "waiting-and-running": "waiting-and-running",
    "only-waiting": "only-waiting",
}
_SATISFIED = ("Scheduled", "Running", "Finished")


def membership_of(pod: Pod) -> Membership | None:
    """Return the pod's gang by label or annotation, and its topology index."""
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    namespace = pod.metadata.namespace
    name = next((labels[key] for key in _POD_GROUP_LABELS if labels.get(key)), None)
    definition = None
    if name is None and annotations.get(_NAME_ANNOTATION):
        name = annotations[_NAME_ANNOTATION]
        if _MIN_ANNOTATION in annotations:
            definition = _defined(f"{namespace}/{name}", annotations[_MIN_ANNOTATION], pod)
    if name is not None and definition is None and _MIN_LABEL in labels:
        definition = _defined(f"{namespace}/{name}", labels[_MIN_LABEL], pod)
    gang = f"{namespace}/{name}" if name else None
    index = annotations.get(_INDEX_ANNOTATION)
    if index is None:
        return Membership(gang, definition=definition) if gang else None
    if not is_index(index):
        problem = (
            f'annotation {_INDEX_ANNOTATION}: expected a number of 0 or more, got "{index[:40]}"'
        )
        return Membership(gang, definition=definition, problem=problem)
    return Membership(gang, rank=int(index), definition=definition)


def gang_of(group: ApiObject) -> Gang | None:
    """Return the gang of a PodGroup (scheduling.sigs.k8s.io), with its gather strategy."""
    if type(group) is not PodGroup:
        return None
    return pod_group(group)


def pod_group(group: PodGroup | SchedulerPluginsPodGroup) -> Gang:
    """Return the gang of a PodGroup of scheduling.sigs.k8s.io or scheduling.x-k8s.io."""
    meta, spec = group.metadata, group.spec
    key = f"{meta.namespace}/{meta.name}"
    gang = Gang(
        key,
        spec.min_member,
        wait=float(spec.schedule_timeout_seconds or 0) or None,
        satisfied=group.status.phase in _SATISFIED,
        min_resources=amounts(spec.min_resources),
    )
    if spec.min_member < 1:
        return replace(gang, problem=f"spec.minMember: expected 1 or more, got {spec.min_member}")
    return _annotated(gang, meta.annotations)


def _defined(key: str, minimum: str, pod: Pod) -> Gang:
    if not is_index(minimum) or int(minimum) < 1:
        problem = f'min-available: expected a number of 1 or more, got "{minimum[:40]}"'
        return Gang(key, 1, problem=problem)
    return _annotated(Gang(key, int(minimum)), pod.metadata.annotations)


def _annotated(gang: Gang, annotations: Mapping[str, str]) -> Gang:
    """Apply Koordinator's annotations, of a PodGroup or a pod, to a gang."""
    readers: dict[str, Callable[[Gang, str], Gang]] = {
        _SPEC_ANNOTATION: _with_gather,
        _WAIT_ANNOTATION: _with_wait,
        _MODE_ANNOTATION: _with_mode,
        _GROUPS_ANNOTATION: _with_groups,
        _TOTAL_ANNOTATION: _with_total,
        **dict.fromkeys(_POLICY_ANNOTATIONS, _with_policy),
    }
    for name, reader in readers.items():
        text = annotations.get(name, "")
        if not text:
            continue
        try:
            gang = reader(gang, text)
        except ValueError as exc:
            return replace(gang, problem=f"annotation {name}: {exc}")
    return gang


def _with_wait(gang: Gang, text: str) -> Gang:
    return replace(gang, wait=parse_duration(text))


def _with_mode(gang: Gang, text: str) -> Gang:
    if text not in ("Strict", "NonStrict"):
        raise ValueError(f'expected Strict or NonStrict, got "{text[:40]}"')
    return replace(gang, strict=text == "Strict")


def _with_total(gang: Gang, text: str) -> Gang:
    if not is_index(text) or int(text) < gang.min_member:
        raise ValueError(
            f'expected a number of at least the minimum {gang.min_member}, got "{text[:40]}"'
        )
    return gang


def _with_policy(gang: Gang, text: str) -> Gang:
    if text not in _MATCH_POLICIES:
        raise ValueError(f'expected one of {", ".join(_MATCH_POLICIES)}, got "{text[:40]}"')
    return replace(gang, match_policy=_MATCH_POLICIES[text])


def _with_groups(gang: Gang, text: str) -> Gang:
    names = _json(text)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError('expected a list such as ["namespace/name"]')
    if any(name.count("/") != 1 or name.startswith("/") or name.endswith("/") for name in names):
        raise ValueError('expected "namespace/name" in the list')
    if names and gang.key not in names:
        raise ValueError(f"does not name {gang.key} itself")
    return replace(gang, together=tuple(sorted(set(names))))


def _with_gather(gang: Gang, text: str) -> Gang:
    spec = _json(text)
    rules = spec.get("gatherStrategy", []) if isinstance(spec, dict) else None
    unknown = sorted(set(spec) - {"gatherStrategy"}) if isinstance(spec, dict) else []
    if unknown:
        near = did_you_mean(unknown[0], ["gatherStrategy"])
        raise ValueError(f'"{unknown[0][:40]}" is not supported{near}')
    if not isinstance(rules, list):
        raise ValueError('expected {"gatherStrategy": [{"layer": ..., "strategy": ...}]}')
    gather: list[Gather] = []
    slices: list[Slice] = []
    for index, rule in enumerate(rules):
        found, multiple = _gather_rule(index, rule)
        if found is not None:
            gather.append(found)
        if multiple is not None:
            slices.append(multiple)
    return replace(gang, gather=tuple(gather), slices=tuple(slices))


def _json(text: str) -> Any:
    return parse_json(text, ANNOTATION)


def _gather_rule(index: int, rule: Any) -> tuple[Gather | None, Slice | None]:
    where = f"gatherStrategy[{index}]"
    layer = rule.get("layer") if isinstance(rule, dict) else None
    if not isinstance(layer, str) or not layer:
        raise ValueError(f'{where}: "layer" is missing')
    multiple = rule.get("podCountMultiple")
    if multiple is not None and (not isinstance(multiple, int) or isinstance(multiple, bool)):
        raise ValueError(f"{where}.podCountMultiple: expected an integer, got {multiple!r}")
    if multiple is not None and multiple < 1:
        raise ValueError(f"{where}.podCountMultiple: expected 1 or more, got {multiple}")
    unknown = set(rule) - {"layer", "strategy", "podCountMultiple"}
    if unknown:
        raise ValueError(f'{where}: "{min(unknown)}" is not supported')
    strategy = rule.get("strategy")
    if strategy is None and multiple is not None:
        return None, Slice(layer, multiple) if multiple > 1 else None
    if not isinstance(strategy, str) or strategy not in _STRATEGIES:
        raise ValueError(f"{where}.strategy: expected MustGather or PreferGather, got {strategy!r}")
    found = Gather(layer, required=_STRATEGIES[strategy])
    return found, Slice(layer, multiple) if multiple is not None and multiple > 1 else None


def layers_of(topology: ClusterNetworkTopology) -> tuple[Layer, ...]:
    """Return the network layers of a ClusterNetworkTopology, the outermost first.

    :raises TopologyError: for a layer that is defined twice, has an unknown parent, is part of a
        cycle, or shares its parent with another layer.
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
        """Return the plugins of the default profile that these arguments disable."""
        return frozenset() if self.aware_network_topology else frozenset({"NetworkGather"})

    def without_effect(self) -> list[str]:
        """Return the names of the given arguments that have no effect in bayplan, sorted."""
        given = self.model_dump(by_alias=True, exclude_unset=True)
        used = {"awareNetworkTopology", "enablePreemption"}
        return sorted(set(given) - used)
