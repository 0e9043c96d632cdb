"""Volcano: PodGroups with tasks, sub-groups and network topology, and HyperNodes.

Names and defaults as in volcano-sh/apis (scheduling.volcano.sh/v1beta1,
topology.volcano.sh/v1alpha1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bayplan.api import ApiObject, HyperNode, Namespace, Pod, VolcanoPodGroup, VolcanoQueue
from bayplan.api.gang import Gang, Gather, Membership, SubGroup
from bayplan.api.network import HyperNodeMember
from bayplan.api.podgroup import NetworkTopologySpec, SubGroupPolicy, VolcanoPodGroupSpec
from bayplan.api.quantity import Quantity
from bayplan.api.queue import UNLIMITED, Order, Queue, QueueState, Share
from bayplan.api.resources import is_scalar
from bayplan.api.selectors import EVERYTHING, compile_selector
from bayplan.dialects.reading import amounts, is_index, share, timestamp
from bayplan.topology.network.tree import NodeSet, TopologyError

__all__ = [
    "GROUP_ANNOTATION",
    "MEMBERS_BY",
    "NAME",
    "QUEUE_ANNOTATION",
    "SCHEDULER",
    "TASK_ANNOTATION",
    "awaits_group",
    "counted",
    "gang_of",
    "is_gated",
    "may_hold_queue",
    "membership_of",
    "opted_into_queue_gate",
    "placement_of",
    "queue_of",
    "queue_of_new_groups",
    "sets_of",
    "state_of",
    "waits_for_queue",
]

NAME = "Volcano"
GROUP_ANNOTATION = "scheduling.k8s.io/group-name"
"""The annotation that names a pod's PodGroup."""
TASK_ANNOTATION = "volcano.sh/task-spec"
"""The annotation (and label) that names a pod's task."""
QUEUE_ANNOTATION = "scheduling.volcano.sh/queue-name"
"""The annotation that names the queue of a pod without a PodGroup, and of a namespace's groups."""
SCHEDULER = "volcano"
"""The scheduler whose pods get PodGroups from Volcano's controllers."""
_DEFAULT_QUEUE = "default"
_TOPOLOGY_MODE = "volcano.sh/network-topology-mode"
_HIGHEST_TIER = "volcano.sh/network-topology-highest-tier"
_QUEUE_GATE = "scheduling.volcano.sh/queue-allocation-gate"
_NATIVE = ("cpu", "memory", "pods", "ephemeral-storage")
_OLD_GROUP_ANNOTATION = "volcano.sh/group-name"
_INDEX_ANNOTATION = "volcano.sh/task-index"
MEMBERS_BY = frozenset((GROUP_ANNOTATION, _OLD_GROUP_ANNOTATION))
"""The names without any of which, as label or annotation, no pod is in a gang or has a rank."""
_SATISFIED = ("Running", "Completed")
_WAITING = ("", "Pending")


def membership_of(pod: Pod) -> Membership | None:
    """Return the pod's gang, task and index from Volcano's annotations."""
    annotations, labels = pod.metadata.annotations, pod.metadata.labels
    name = annotations.get(GROUP_ANNOTATION) or annotations.get(_OLD_GROUP_ANNOTATION)
    if not name:
        return None
    role = annotations.get(TASK_ANNOTATION) or labels.get(TASK_ANNOTATION, "")
    index = annotations.get(_INDEX_ANNOTATION) or labels.get(_INDEX_ANNOTATION)
    rank = int(index) if index and is_index(index) else None
    return Membership(f"{pod.metadata.namespace}/{name}", rank, role)


def is_gated(pod: Pod) -> bool:
    """Tell whether a pod waits for somebody else to open a gate; the queue's own gate is none."""
    gates = [gate.name for gate in pod.spec.scheduling_gates]
    return bool(gates) and gates != [_QUEUE_GATE]


def waits_for_queue(pod: Pod) -> bool:
    """Tell whether a pod that opted in waits for its queue, and for nothing else."""
    gates = [gate.name for gate in pod.spec.scheduling_gates]
    return gates == [_QUEUE_GATE] and opted_into_queue_gate(pod)


def awaits_group(pod: Pod) -> bool:
    """Tell whether Volcano's controller is to make a group for a pod, and name it there."""
    return pod.spec.scheduler_name == SCHEDULER and membership_of(pod) is None


def may_hold_queue(pod: Pod) -> bool:
    """Tell whether a pod opted in and has no gate any more, so that its queue has taken it."""
    return not pod.spec.scheduling_gates and opted_into_queue_gate(pod)


def opted_into_queue_gate(pod: Pod) -> bool:
    """Tell whether a pod asked for Volcano's gate, which keeps it until its queue takes it."""
    return pod.metadata.annotations.get(_QUEUE_GATE) == "true"


def counted(quantities: Mapping[str, Quantity]) -> dict[str, Quantity]:
    """Return the amounts that Volcano's scheduler counts.

    The controller of Jobs writes ``minResources`` with the names of quotas, too, such as
    ``requests.cpu`` and ``count/pods``.
    """
    return {
        name: quantity
        for name, quantity in quantities.items()
        if name in _NATIVE or (is_scalar(name) and not name.startswith("count/"))
    }


def gang_of(group: ApiObject) -> Gang | None:
    """Return the gang that a Volcano PodGroup describes."""
    if not isinstance(group, VolcanoPodGroup):
        return None
    spec, meta = group.spec, group.metadata
    return Gang(
        f"{meta.namespace}/{meta.name}",
        spec.min_member,
        gather=_gather_of(spec.network_topology),
        domain_order="MostUsed",
        sub_groups=tuple(_sub_group(policy) for policy in spec.sub_group_policy),
        roles=_roles_of(spec),
        match_policy="staying-and-succeeded",
        satisfied=group.status.phase in _SATISFIED,
        admitted=group.status.phase not in _WAITING,
        min_resources=amounts(counted(spec.min_resources)),
        queue=spec.queue,
        problem=_problem_of(group),
    )


def _roles_of(spec: VolcanoPodGroupSpec) -> tuple[tuple[str, int], ...]:
    """Return the minimum of each task; all of them count only if minMember covers them."""
    if sum(spec.min_task_member.values()) > spec.min_member:
        return ()
    return tuple(sorted(spec.min_task_member.items()))


def queue_of(queue: VolcanoQueue) -> Queue:
    """Return the queue that a Volcano Queue describes.

    Its capability is its limit; CPU and memory that it does not name are unlimited, and so is
    every other resource. With the dequeue strategy "fifo" its first job holds back the others.
    """
    spec, meta = queue.spec, queue.metadata
    guarantee = spec.guarantee.resource if spec.guarantee is not None else {}
    return Queue(
        meta.name,
        spec.parent,
        f"Queue {meta.name}",
        deserved=share(counted(spec.deserved)),
        guaranteed=share(counted(guarantee)),
        limit=share(counted(spec.capability), UNLIMITED),
        weight=Share(other=float(spec.weight)),
        priority=spec.priority,
        created=timestamp(meta.creation_timestamp),
        uid=meta.uid or meta.name,
        reclaimable=spec.reclaimable is not False,
        order=Order.STRICT if spec.dequeue_strategy == "fifo" else Order.PRIORITY,
        state=state_of(queue),
    )


def queue_of_new_groups(namespace: Namespace | None) -> str:
    """Return the queue of the groups that Volcano's controller makes in a namespace."""
    annotations = namespace.metadata.annotations if namespace is not None else {}
    return annotations.get(QUEUE_ANNOTATION, _DEFAULT_QUEUE)


def state_of(queue: VolcanoQueue) -> QueueState:
    """Return whether a Volcano Queue takes jobs; one without a state does."""
    states = {"Closed": QueueState.CLOSED, "Closing": QueueState.CLOSING}
    return states.get(queue.status.state, QueueState.OPEN)


def _problem_of(group: VolcanoPodGroup) -> str | None:
    spec = group.spec
    if spec.min_member < 0:
        return f"spec.minMember: expected 0 or more, got {spec.min_member}"
    topologies = {"networkTopology": spec.network_topology}
    for index, policy in enumerate(spec.sub_group_policy):
        where = f"subGroupPolicy[{index}]"
        topologies[f"{where}.networkTopology"] = policy.network_topology
        if policy.sub_group_size < 1:
            return f"{where}.subGroupSize: expected 1 or more, got {policy.sub_group_size}"
    for where, topology in topologies.items():
        if topology is None:
            continue
        if topology.highest_tier_allowed is not None and topology.highest_tier_name:
            return f"{where}: highestTierAllowed and highestTierName exclude each other"
        if topology.highest_tier_allowed is not None and topology.highest_tier_allowed < 0:
            return f"{where}.highestTierAllowed: expected 0 or more"
    return None


def _gather_of(topology: NetworkTopologySpec | None) -> tuple[Gather, ...]:
    """Return the rules of a topology: prefer the lowest tier; hard sets a highest tier."""
    if topology is None:
        return ()
    lowest = Gather("tier-1", required=False, climb=True)
    if topology.mode == "soft":
        return (lowest,)
    if topology.highest_tier_name:
        return (Gather(topology.highest_tier_name, required=True), lowest)
    if topology.highest_tier_allowed is not None:
        return (Gather(f"tier-{topology.highest_tier_allowed}", required=True), lowest)
    return (lowest,)


def placement_of(annotations: Mapping[str, str]) -> tuple[Gather, ...]:
    """Return the domains that annotations of pods ask for; a mode that is none is "hard"."""
    mode, tier = annotations.get(_TOPOLOGY_MODE), annotations.get(_HIGHEST_TIER)
    if mode is None and tier is None:
        return ()
    soft = (mode or "").lower() == "soft"
    highest = int(tier) if tier is not None and is_index(tier) else None
    return _gather_of(NetworkTopologySpec("soft" if soft else "hard", highest))


def _sub_group(policy: SubGroupPolicy) -> SubGroup:
    selector = policy.label_selector
    return SubGroup(
        policy.name,
        EVERYTHING if selector is None else compile_selector(selector),
        policy.match_label_keys,
        size=policy.sub_group_size,
        min_groups=policy.min_sub_groups,
        gather=_gather_of(policy.network_topology),
    )


def sets_of(
    hypernodes: Iterable[HyperNode], nodes: Mapping[str, Mapping[str, str]]
) -> list[NodeSet]:
    """Return the node sets of HyperNodes; members are selected by name, pattern or label.

    :param nodes: the labels of all nodes by name.
    :raises TopologyError: for a pattern that is not a regular expression, and a member without a
        selector.
    """
    every = list(hypernodes)
    names = [one.metadata.name for one in every]
    found = []
    for one in every:
        members: dict[str, dict[str, None]] = {"Node": {}, "HyperNode": {}}
        for index, member in enumerate(one.spec.members):
            candidates = list(nodes) if member.type == "Node" else names
            where = f"HyperNode {one.metadata.name}: spec.members[{index}]"
            for name in _selected(member, candidates, nodes, where):
                members[member.type][name] = None
        spec = one.spec
        found.append(
            NodeSet(
                one.metadata.name,
                spec.tier,
                spec.tier_name,
                tuple(members["Node"]),
                tuple(members["HyperNode"]),
            )
        )
    return found


def _selected(
    member: HyperNodeMember,
    candidates: Iterable[str],
    nodes: Mapping[str, Mapping[str, str]],
    where: str,
) -> Iterable[str]:
    selector = member.selector
    if selector.exact_match is not None:
        return [selector.exact_match.name]
    if selector.regex_match is not None:
        pattern = _regex(selector.regex_match.pattern, where)
        return [name for name in candidates if pattern.search(name)]
    if selector.label_match is not None and member.type == "Node":
        chosen = compile_selector(selector.label_match)
        return [name for name, labels in nodes.items() if chosen.matches(labels)]
    raise TopologyError(f"{where}: names no exactMatch, regexMatch or (for nodes) labelMatch")


def _regex(pattern: str, where: str) -> Any:
    # Imported late: few clusters need it. It has Go's syntax and runs in linear time.
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as exc:
        why = exc.args[0] if exc.args else pattern[:80]
        text = why.decode(errors="replace") if isinstance(why, bytes) else str(why)
        raise TopologyError(f"{where}: not a regular expression: {text}") from None
