"""VolcanoNodeGroups: the pods of a Volcano Queue use the node groups that its affinity names.

As volcano-sh/volcano's plugin nodegroup; node groups are the values of a node label.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from bayplan import Args, ClusterEvent, Handle, NodeView, Plugin, PodInfo, Reads, Reject, hookimpl
from bayplan.api import VolcanoPodGroup, VolcanoQueue
from bayplan.api.quantity import Quantity
from bayplan.api.queue_objects import NodeGroupRules, QueueAffinity
from bayplan.dialects import volcano
from bayplan.dialects.reading import share

__all__ = ["NodeGroupsArgs", "QueueRules", "VolcanoNodeGroups"]

_LABEL = "volcano.sh/nodegroup-name"
_LIMITS = "volcano.sh/nodegroup-resource-limits"
_ROOT = "root"
_BASE = 100.0
_LEAST, _MOST = -1.0, 150.0
_NO_GROUP = "node(s) belonged to no node group"
_NO_AFFINITY = "node(s) belonged to a node group, which their queue's affinity has to name"
_OTHER_GROUP = "node(s) belonged to a node group that their queue may not use"
_FULL = "node(s) belonged to a node group of which their queue has all that it may have"


class NodeGroupsArgs(Args):
    """Arguments of VolcanoNodeGroups.

    With ``strict`` no queue uses nodes without a group; otherwise queues without affinity do. With
    ``enableHierarchy`` a queue without affinity has that of its nearest ancestor with one. With
    ``enablePreferredOrder`` the groups that are preferred first score more.
    """

    strict: bool = True
    enable_hierarchy: bool = False
    enable_preferred_order: bool = False


class QueueRules(msgspec.Struct, frozen=True):
    """The node groups of a queue: those that it may use, prefers and avoids.

    ``limits`` are the most that its pods may take of a group, by group and resource. ``problem``
    says that they cannot be read; no node takes its pods then.
    """

    required: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()
    anti_required: tuple[str, ...] = ()
    anti_preferred: tuple[str, ...] = ()
    limits: Mapping[str, Mapping[str, float]] = msgspec.field(default_factory=dict)
    problem: str = ""

    @property
    def unset(self) -> bool:
        """Whether no affinity names any group."""
        return not (self.required or self.preferred or self.anti_required or self.anti_preferred)

    def allows(self, group: str) -> bool:
        """Tell whether pods of the queue may use a group; a preference to avoid it allows it."""
        if group in self.anti_preferred:
            return True
        named = group in self.required or group in self.preferred
        return named and group not in self.anti_required

    def score(self, group: str, in_order: bool) -> float:
        """Return Volcano's score of a group: -1 to 150."""
        if group in self.anti_preferred:
            return _LEAST
        score = _BASE if group in self.required else 0.0
        if group in self.preferred:
            count = len(self.preferred)
            part = (count - self.preferred.index(group)) / count if in_order else 1.0
            score += 0.5 * _BASE * part
        return score


class VolcanoNodeGroups(Plugin[NodeGroupsArgs]):
    """Keep pods of queues in the node groups of their affinity, and prefer some of these."""

    Args = NodeGroupsArgs
    reads = Reads.CLUSTER
    requeue_on = ClusterEvent.ANY

    def __init__(self, args: NodeGroupsArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._rules: dict[str, QueueRules] = {}
        handle.snapshot.on_object(VolcanoQueue, lambda old, new: self._rules.clear())

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by the queue and the requests."""
        return self._queue_of(pod), pod.facts

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes by their group."""
        queue = self._queue_of(pod)
        if queue is None:
            return
        rules = self.rules_of(queue)
        if rules.problem:
            yield Reject(np.ones(len(nodes), dtype=np.bool_), rules.problem, resolvable=False)
            return
        groups = nodes.label(_LABEL)
        outside = groups.codes < 0
        if self.args.strict or not rules.unset:
            yield Reject(outside, _NO_GROUP, resolvable=False)
        if rules.unset:
            yield Reject(~outside, _NO_AFFINITY, resolvable=False)
            return
        yield Reject(
            ~outside & ~groups.where(rules.allows(group) for group in groups.values),
            _OTHER_GROUP,
            resolvable=False,
        )
        if rules.limits:
            yield Reject(groups.where(self._full(pod, queue, g) for g in groups.values), _FULL)

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> npt.NDArray[np.float64]:
        """Score nodes by their group: Volcano's score, brought to 0..100."""
        queue = self._queue_of(pod)
        rules = self.rules_of(queue) if queue is not None else QueueRules()
        groups = nodes.label(_LABEL)
        in_order = self.args.enable_preferred_order
        # The last value is that of nodes without a group, whose code is -1.
        table = np.array([*(rules.score(group, in_order) for group in groups.values), 0.0])
        scores: npt.NDArray[np.float64] = (table[groups.codes] - _LEAST) * 100 / (_MOST - _LEAST)
        return scores

    # Queues ------------------------------------------------------------------------------

    def _queue_of(self, pod: PodInfo) -> str | None:
        if pod.gang is not None:
            group = self.handle.snapshot.objects(VolcanoPodGroup).get(pod.gang)
            if group is not None:
                return group.spec.queue
        return pod.annotations.get(volcano.QUEUE_ANNOTATION)

    def rules_of(self, queue: str) -> QueueRules:
        """Return the rules of a queue, by name."""
        if queue not in self._rules:
            self._rules[queue] = self._read(queue)
        return self._rules[queue]

    def _read(self, name: str) -> QueueRules:
        """Return a queue's own affinity and limits, or the affinity of an ancestor."""
        queues = self.handle.snapshot.objects(VolcanoQueue)
        queue = queues.get(name)
        if queue is None:
            return QueueRules()
        try:
            limits = _limits_of(queue)
        except ValueError as exc:
            return QueueRules(problem=f"node(s) were limited by {_LIMITS}, which is broken: {exc}")
        return replace(self._affinity(queue), limits=limits)

    def _affinity(self, queue: VolcanoQueue) -> QueueRules:
        """Return a queue's affinity, or that of its nearest ancestor with one."""
        queues = self.handle.snapshot.objects(VolcanoQueue)
        seen: set[str] = set()
        current: VolcanoQueue | None = queue
        while current is not None and current.metadata.name not in seen:
            seen.add(current.metadata.name)
            if current.spec.affinity is not None:
                return _stated(current.spec.affinity)
            if not self.args.enable_hierarchy or current.metadata.name == _ROOT:
                break
            current = queues.get(current.spec.parent or _ROOT)
        return QueueRules()

    def _full(self, pod: PodInfo, queue: str, group: str) -> bool:
        """Tell whether a pod would take its queue beyond what it may have of a group."""
        limits = self.rules_of(queue).limits.get(group)
        if limits is None:
            return False
        used = dict.fromkeys(limits, 0.0)
        for other, node in self.handle.snapshot.placed.values():
            found = self.handle.snapshot.node(node)
            inside = found is not None and found.metadata.labels.get(_LABEL) == group
            if inside and self._queue_of(other) == queue:
                for resource in limits:
                    used[resource] += other.requests.get(resource, 0)
        return any(used[r] + pod.requests.get(r, 0) > most for r, most in limits.items())


def _stated(affinity: QueueAffinity) -> QueueRules:
    wanted = affinity.node_group_affinity or NodeGroupRules()
    avoided = affinity.node_group_anti_affinity or NodeGroupRules()
    return QueueRules(
        wanted.required_during_scheduling_ignored_during_execution,
        wanted.preferred_during_scheduling_ignored_during_execution,
        avoided.required_during_scheduling_ignored_during_execution,
        avoided.preferred_during_scheduling_ignored_during_execution,
    )


def _limits_of(queue: VolcanoQueue) -> Mapping[str, Mapping[str, float]]:
    """Return the limits of a queue's annotation.

    :raises ValueError: for a text that cannot be read.
    """
    text = queue.metadata.annotations.get(_LIMITS)
    if not text:
        return {}
    stated = msgspec.json.decode(text, type=dict[str, dict[str, str | int | float]])
    return {
        group: share({name: Quantity(str(amount)) for name, amount in amounts.items()}).amounts
        for group, amounts in stated.items()
    }
