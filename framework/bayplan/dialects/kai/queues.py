"""KAI: PodGroups with sub-groups and topology constraints (scheduling.run.ai/v2alpha2)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bayplan.api import ApiObject, KaiPodGroup, KaiQueue, KaiTopology, Pod
from bayplan.api.gang import Gang, Gather, Membership, SubGroup
from bayplan.api.meta import ApiStruct
from bayplan.api.objects import DecodeError, decode_part
from bayplan.api.podgroup import KaiSubGroup, TopologyConstraint
from bayplan.api.quantity import Quantity
from bayplan.api.queue import UNLIMITED, Queue, Share
from bayplan.api.queue_objects import KaiQueueResources
from bayplan.api.resources import amount_of
from bayplan.api.selectors import Requirement, Selector
from bayplan.dialects.reading import timestamp
from bayplan.inputs.durations import parse_duration
from bayplan.topology.network.tree import HOSTNAME, Layer

__all__ = [
    "GROUP_ANNOTATION",
    "MEMBERS_BY",
    "NAME",
    "OWNER_ANNOTATIONS",
    "OWNER_LABELS",
    "QUEUE_LABEL",
    "gang_by_label",
    "gang_of",
    "layers_of",
    "membership_of",
    "numa_placement_of",
    "placement_of",
    "preemptibility_of",
    "preemption_delay_of",
    "queue_of",
    "queues_of",
    "seconds_of",
    "segment_of",
]

NAME = "KAI"
GROUP_ANNOTATION = "pod-group-name"
"""The annotation that names a pod's PodGroup."""
QUEUE_LABEL = "kai.scheduler/queue"
"""The label that names the queue of a pod without a PodGroup."""
PREEMPTIBILITY_LABEL = "kai.scheduler/preemptibility"
"""The label that says whether a pod without a PodGroup may be preempted."""
_PREEMPTIBILITIES = ("preemptible", "non-preemptible")
_PROJECT_LABEL = "project"
_POOL_LABEL = "kai.scheduler/node-pool"
_DEFAULT_QUEUE = "default-queue"
_DELAY = "kai.scheduler/preemption-delay"
OWNER_LABELS = (QUEUE_LABEL, _PROJECT_LABEL, PREEMPTIBILITY_LABEL)
OWNER_ANNOTATIONS = (_DELAY,)
"""Labels and annotations that count for the pods of an object that has them."""
_TOPOLOGY = "kai.scheduler/topology"
_SEGMENT_SIZE = "kai.scheduler/segment-size"
_SEGMENT_REQUIRED = "kai.scheduler/segment-topology-required-placement"
_SEGMENT_PREFERRED = "kai.scheduler/segment-topology-preferred-placement"
_REQUIRED = "kai.scheduler/topology-required-placement"
_PREFERRED = "kai.scheduler/topology-preferred-placement"
_NUMA_ANNOTATION = "kai.scheduler/numa-placement-observed"
_LONGEST = 10_000
"""Characters of the annotation that are read."""
_DIGITS = 4
"""Of the number of a NUMA node."""
_SUB_GROUP_LABEL = "kai.scheduler/subgroup-name"
MEMBERS_BY = frozenset((GROUP_ANNOTATION,))
"""The names without any of which, as label or annotation, no pod is in a gang or has a rank."""


def queues_of(labels: Mapping[str, str], owner_settings: Mapping[str, str]) -> tuple[str, bool]:
    """Return the queue of pods by their labels and those of what owns them, and if it is stated.

    One that is not stated is theirs only where it exists.
    """
    stated = owner_settings.get(QUEUE_LABEL) or labels.get(QUEUE_LABEL)
    if stated:
        return stated, True
    project = owner_settings.get(_PROJECT_LABEL) or labels.get(_PROJECT_LABEL)
    pool = labels.get(_POOL_LABEL)
    if project:
        return f"{project}-{pool}" if pool else project, False
    return _DEFAULT_QUEUE, False


def preemptibility_of(labels: Mapping[str, str], owner_settings: Mapping[str, str]) -> str:
    """Return "preemptible", "non-preemptible", or "" where no label says it.

    The labels of what owns a pod come first; other values say nothing.
    """
    stated = (one.get(PREEMPTIBILITY_LABEL, "") for one in (owner_settings, labels))
    return next((one for one in stated if one in _PREEMPTIBILITIES), "")


def preemption_delay_of(annotations: Mapping[str, str], owner_settings: Mapping[str, str]) -> float:
    """Return for how many seconds pods evict no others; what owns them is asked first."""
    stated = (seconds_of(one.get(_DELAY)) for one in (owner_settings, annotations))
    return next((one for one in stated if one is not None and one >= 0), 0.0)


def membership_of(pod: Pod) -> Membership | None:
    """Return the pod's gang by KAI's annotation."""
    name = pod.metadata.annotations.get(GROUP_ANNOTATION)
    if not name:
        return None
    role = pod.metadata.labels.get(_SUB_GROUP_LABEL, "")
    return Membership(f"{pod.metadata.namespace}/{name}", role=role)


def gang_of(group: ApiObject) -> Gang | None:
    """Return the gang that a KAI PodGroup describes."""
    if not isinstance(group, KaiPodGroup):
        return None
    return gang_by_label(group, _SUB_GROUP_LABEL)


def gang_by_label(group: KaiPodGroup, label: str) -> Gang:
    """Return the gang of a PodGroup of KAI.

    :param label: the label of pods that names their sub-group.
    """
    spec, meta = group.spec, group.metadata
    names = [one.name for one in spec.sub_groups]
    problem = None
    if spec.min_member < 1 and not names:
        problem = f"spec.minMember: expected 1 or more, got {spec.min_member}"
    if len(set(names)) < len(names):
        problem = "two subGroups have one name"
    parents = {one.name: one.parent for one in spec.sub_groups}
    for name, parent in parents.items():
        if parent and parent not in parents:
            problem = f'subGroup "{name}" has the parent "{parent}", which does not exist'
        elif _is_cycle(name, parents):
            problem = f'subGroup "{name}" is part of itself'
    constraints = (spec.topology_constraint, *(g.topology_constraint for g in spec.sub_groups))
    topologies = (one.topology for one in constraints if one is not None and one.topology)
    return Gang(
        f"{meta.namespace}/{meta.name}",
        spec.min_member,
        gather=_gather_of(spec.topology_constraint),
        sub_groups=()
        if problem
        else tuple(_sub_group(one, group, label) for one in spec.sub_groups),
        topology=next(topologies, ""),
        domain_order="OutermostFirst",
        match_policy="waiting-and-running",
        queue=spec.queue,
        problem=problem,
    )


_UNITS = {"cpu": ("cpu", 1.0), "memory": ("memory", 1e6), "gpu": ("nvidia.com/gpu", 1.0)}
_PRIORITY = 100


def queue_of(queue: KaiQueue) -> Queue:
    """Return the queue that a KAI Queue describes.

    Quotas and limits of CPU are in milli-CPU, of memory in MB; -1 is unlimited. KAI knows CPU,
    memory and GPUs; other resources are unlimited. A queue without ``resources`` may have nothing.
    """
    spec, meta = queue.spec, queue.metadata
    given = spec.resources or KaiQueueResources()
    quota, limit, weight = {}, {}, {}
    for field, (resource, unit) in _UNITS.items():
        own = getattr(given, field)
        quota[resource] = UNLIMITED if own.quota == -1 else own.quota * unit
        limit[resource] = UNLIMITED if own.limit == -1 else own.limit * unit
        weight[resource] = own.over_quota_weight
    return Queue(
        meta.name,
        spec.parent_queue,
        f"Queue {meta.name}",
        deserved=Share(quota, UNLIMITED),
        limit=Share(limit, UNLIMITED),
        weight=Share(weight, 0.0),
        priority=_PRIORITY if spec.priority is None else spec.priority,
        created=timestamp(meta.creation_timestamp),
        uid=meta.uid or meta.name,
        preempt_min_runtime=seconds_of(spec.preempt_min_runtime),
        reclaim_min_runtime=seconds_of(spec.reclaim_min_runtime),
        display_name=spec.display_name,
    )


def seconds_of(text: str | None) -> float | None:
    """Return a duration in seconds, below 0 for a negative one; None for none or a bad one."""
    if not text:
        return None
    try:
        return -1.0 if text.startswith("-") else parse_duration(text)
    except ValueError:
        return None


class _ZonePart(ApiStruct, frozen=True):
    """One entry of the annotation on NUMA nodes."""

    zone: str = ""
    amount: dict[str, Quantity] = msgspec.field(default_factory=dict)


def numa_placement_of(pod: Pod) -> dict[int, dict[str, int]]:
    """Return what a pod holds of each NUMA node, by its number, as KAI's node agent saw it.

    Nothing for a pod without the annotation, or with one that cannot be read.
    """
    text = pod.metadata.annotations.get(_NUMA_ANNOTATION)
    if not text or len(text) > _LONGEST:
        return {}
    try:
        parts = decode_part(list[_ZonePart], msgspec.json.decode(text))
    except (DecodeError, msgspec.DecodeError, RecursionError):
        return {}
    found: dict[int, dict[str, int]] = {}
    for part in parts:
        number = part.zone.rpartition("-")[2]
        if number.isascii() and number.isdigit() and len(number) <= _DIGITS:
            amounts = {name: max(0, amount_of(name, one)) for name, one in part.amount.items()}
            found[int(number)] = amounts
    return found


def _is_cycle(name: str, parents: dict[str, str]) -> bool:
    seen = {name}
    while parents.get(name):
        name = parents[name]
        if name in seen:
            return True
        seen.add(name)
    return False


def _gather_of(constraint: TopologyConstraint | None) -> tuple[Gather, ...]:
    """Return the rules of a constraint: from the preferred level out to the required one."""
    if constraint is None:
        return ()
    rules = []
    if constraint.required_topology_level:
        rules.append(Gather(constraint.required_topology_level, required=True))
    if constraint.preferred_topology_level:
        rules.append(Gather(constraint.preferred_topology_level, required=False, climb=True))
    return tuple(rules)


def placement_of(annotations: Mapping[str, str]) -> tuple[tuple[Gather, ...], str]:
    """Return the domains that annotations ask for, and the name of the Topology.

    :raises ValueError: for a level without a topology.
    """
    required, preferred = annotations.get(_REQUIRED, ""), annotations.get(_PREFERRED, "")
    topology = annotations.get(_TOPOLOGY, "")
    if (required or preferred) and not topology:
        raise ValueError(f"annotation {_REQUIRED if required else _PREFERRED} needs {_TOPOLOGY}")
    constraint = TopologyConstraint(
        topology=topology, required_topology_level=required, preferred_topology_level=preferred
    )
    return _gather_of(constraint), topology


def segment_of(
    annotations: Mapping[str, str], inherited: Mapping[str, str]
) -> tuple[str | None, tuple[Gather, ...], str]:
    """Return what annotations say of segments: their size, where each lies, and the Topology.

    :param annotations: those of a pod template; :param inherited: those of what owns the pods.
    """
    size = annotations.get(_SEGMENT_SIZE) or inherited.get(_SEGMENT_SIZE)
    topology = annotations.get(_TOPOLOGY) or inherited.get(_TOPOLOGY, "")
    constraint = TopologyConstraint(
        topology=topology,
        required_topology_level=annotations.get(_SEGMENT_REQUIRED, ""),
        preferred_topology_level=annotations.get(_SEGMENT_PREFERRED, ""),
    )
    return size, _gather_of(constraint), topology


def _sub_group(one: KaiSubGroup, group: KaiPodGroup, label: str) -> SubGroup:
    parents = {other.name: other.parent for other in group.spec.sub_groups}
    leaves = frozenset(name for name in parents if _is_under(name, one.name, parents))
    return SubGroup(
        one.name,
        Selector((Requirement(label, "In", leaves),)),
        size=one.min_member,
        min_groups=_children_needed(one.parent, group),
        gather=_gather_of(one.topology_constraint),
        topology=one.topology_constraint.topology if one.topology_constraint is not None else "",
        parent=one.parent,
        kind=f"child of {one.parent}" if one.parent else "child",
    )


def _children_needed(parent: str, group: KaiPodGroup) -> int:
    """Return how many children a sub-group, "" for the whole, needs: all unless it says so."""
    groups = group.spec.sub_groups
    stated = {one.name: one.min_sub_group for one in groups} | {"": group.spec.min_sub_group}
    children = sum(one.parent == parent for one in groups)
    return children if stated[parent] is None else min(stated[parent] or 0, children)


def _is_under(name: str, ancestor: str, parents: dict[str, str]) -> bool:
    while name and name != ancestor:
        name = parents[name]
    return name == ancestor


def layers_of(topology: KaiTopology) -> tuple[Layer, ...]:
    """Return the levels of a Topology, the outermost first, as layers named by their label."""
    labels = [level.node_label for level in topology.spec.levels]
    return tuple(Layer(label, (label,)) for label in labels if label != HOSTNAME)
