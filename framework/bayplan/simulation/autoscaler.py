"""A cluster autoscaler in virtual time: nodes of groups come for what is pending, and go.

As cluster-autoscaler does, it looks every few seconds at the pods whose condition says
Unschedulable, tries them on the nodes that are there or coming, and then on new nodes of each
group; it buys those of the group that costs least for each pod that they help. It knows no gangs,
queues or shares. ProvisioningRequests are answered as its classes ``check-capacity`` and
``best-effort-atomic-scale-up`` do. A node that is empty for long is removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.api import Node, ObjectMeta, Pod
from bayplan.api.meta import Condition
from bayplan.api.objects import decode_part
from bayplan.api.owners import belongs_to_node
from bayplan.api.pod import Affinity, PodAffinity, PodTemplate
from bayplan.api.provisioning import ProvisioningRequest
from bayplan.api.times import rfc3339
from bayplan.api.workloads import StoredPodTemplate
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import Event
from bayplan.dialects.autoscaling import STAND_IN_PODS, consumed_request, is_stand_in
from bayplan.dialects.gangs import MEMBERS_BY
from bayplan.naming import counted, listed
from bayplan.plugin.decision import NODES_LACK
from bayplan.profiles.loading import ProfileSet, default_profiles
from bayplan.scheduler.scheduler import Scheduler
from bayplan.scheduler.virtual_time import VirtualTime
from bayplan.simulation.node_groups import NodeGroup, NodeGroups

__all__ = ["Autoscaler", "GroupUse", "NodeEvent"]

CHECK = "check-capacity.autoscaling.x-k8s.io"
ATOMIC = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
_GROUP_LABEL = "bayplan.dev/node-group"
_HOUR = Decimal(3600)
_FIRST_RETRY, _LONGEST_RETRY = 60.0, 600.0
_MOST_NAMED = 3


class NodeEvent(msgspec.Struct, frozen=True):
    """A node that was bought, got ready or was removed; ``at`` in virtual seconds."""

    at: float
    group: str
    node: str
    change: str
    why: str = ""


class GroupUse(msgspec.Struct):
    """What became of a group: its nodes now, those bought and removed, and what they cost."""

    group: NodeGroup
    nodes: dict[str, float] = msgspec.field(default_factory=dict)
    """The time at which each of its nodes was bought, those that are coming included."""
    bought: int = 0
    removed: int = 0
    seconds: float = 0.0
    """Of nodes that are gone."""
    next_number: int = 1

    @property
    def left(self) -> int:
        """How many nodes may be added."""
        return max(0, self.group.most - len(self.nodes))

    def node_hours(self, now: float) -> Decimal:
        """Return for how long nodes were paid up to now, in hours."""
        seconds = self.seconds + sum(now - at for at in self.nodes.values())
        return Decimal(str(round(seconds, 3))) / _HOUR

    def cost(self, now: float) -> Decimal:
        """Return what they cost up to now."""
        return self.node_hours(now) * self.group.price


class _Reserved(msgspec.Struct):
    pods: Sequence[Pod]
    until: float


class Autoscaler:
    """Adds and removes the nodes of groups on an embedded cluster.

    Call :meth:`look` at each instant, when nothing is left to do at it.
    """

    def __init__(self, cluster: MemoryCluster, config: NodeGroups) -> None:
        self._cluster = cluster
        self._config = config
        self.uses = {one.name: GroupUse(one) for one in config.groups}
        self.events: list[NodeEvent] = []
        self._coming: dict[str, Node] = {}
        self._empty_since: dict[str, float] = {}
        self._kept_by_minimum: set[str] = set()
        """Empty nodes that stay as long as their group has no others."""
        self._scan_due = False
        self._seen: object = None
        """What was pending when nothing more could be done for it."""
        self._retries: dict[str, int] = {}
        self._reserved: dict[str, _Reserved] = {}
        self._profiles = _kube_profiles()

    def begin(self) -> None:
        """Count the nodes that belong to groups already, and bring each group to its minimum."""
        for node in self._cluster.list(Node):
            use = self.uses.get(node.metadata.labels.get(_GROUP_LABEL, ""))
            if use is not None:
                use.nodes[node.metadata.name] = self._cluster.now
                use.next_number += 1
        for use in self.uses.values():
            for _ in range(use.group.least - len(use.nodes)):
                self._buy(use, "the group's minimum")

    # Looking -------------------------------------------------------------------------------------

    def look(self) -> None:
        """See whether anything is pending or empty, and plan what is due."""
        self._watch_empty()
        if self._scan_due:
            return
        if self._fingerprint() != self._seen:
            self._scan_due = True
            self._cluster.clock.call_later(self._config.scan, self._scan)

    def _fingerprint(self) -> object:
        demand = frozenset(pod.metadata.uid for pod in self._demand())
        waiting = frozenset(one.key for one in self._open_requests())
        room = tuple(use.left for use in self.uses.values())
        return (demand, waiting, room) if demand or waiting else None

    def _demand(self) -> list[Pod]:
        """Return the pods that ask for nodes, the most important first."""
        found = [pod for pod in self._cluster.list(Pod) if _asks(pod)]
        return sorted(found, key=lambda pod: -(pod.spec.priority or 0))

    def _open_requests(self) -> list[ProvisioningRequest]:
        ended = ("Provisioned", "Failed", "BookingExpired")
        return [
            one
            for one in self._cluster.list(ProvisioningRequest)
            if one.spec.provisioning_class_name in (CHECK, ATOMIC)
            and not any(map(one.is_true, ended))
        ]

    def _scan(self) -> None:
        self._scan_due = False
        for request in self._open_requests():
            self._answer(request)
        self._seen = self._fingerprint()
        demand = self._demand()
        placed = self._placed(demand, ())
        while len(placed) < len(demand):
            chosen = self._best(demand, len(placed))
            if chosen is None:
                for pod in demand:
                    if pod.key not in placed:
                        self._tell(pod, "NotTriggerScaleUp", self._why_not())
                break
            use, count, helped = chosen
            for _ in range(count):
                self._buy(use, f"for {_asked_by(helped)}")
            text = f"pod triggered scale-up: {use.group.name} by {counted(count, 'node')}"
            for pod in helped:
                self._tell(pod, "TriggeredScaleUp", text)
            placed = self._placed(demand, ())
        self._seen = self._fingerprint()

    def _why_not(self) -> str:
        full = [use.group.name for use in self.uses.values() if not use.left]
        others = [use.group.name for use in self.uses.values() if use.left]
        parts = (
            [f"{counted(len(full), 'group')} at its maximum ({', '.join(full)})"] if full else []
        )
        if others:
            parts.append(f"the pod would not fit on nodes of {', '.join(others)}")
        return f"pod didn't trigger scale-up: {'; '.join(parts)}"

    def _tell(self, pod: Pod, reason: str, message: str) -> None:
        self._cluster.submit(Event(pod.key, "Normal", reason, message, component="autoscaler"))

    def _best(self, pods: Sequence[Pod], before: int) -> tuple[GroupUse, int, list[Pod]] | None:
        """Return the group whose new nodes cost least for each pod that they help.

        With the number of nodes that are needed, and the pods that would run there.

        :param before: how many of the pods have nodes without any new ones.
        """
        best: tuple[Decimal, int, str] | None = None
        found: tuple[GroupUse, int, list[Pod]] | None = None
        for use in self.uses.values():
            new = self._new_nodes(use, len(pods) - before)
            placed = self._placed(pods, new) if new else {}
            more = len(placed) - before
            if more <= 0:
                continue
            names = {node.metadata.name for node in new}
            helped = [pod for pod in pods if placed.get(pod.key) in names]
            # Where capacity that is booked moves to the new nodes, one of them holds it.
            count = max(1, len({placed[pod.key] for pod in helped}))
            rank = (use.group.price * count / more, count, use.group.name)
            if best is None or rank < best:
                best, found = rank, (use, count, helped)
        return found

    @staticmethod
    def _new_nodes(use: GroupUse, most: int) -> list[Node]:
        """Return as many new nodes of a group as it may get, and as pods could need."""
        return [use.group.node(use.next_number + i) for i in range(min(use.left, most))]

    def would_help(self, pods: Set[str]) -> list[str]:
        """Return what would give some pods nodes, by the group: "2 more nodes of gpu-a".

        :param pods: their keys; what stands in for one of them is tried in its place.
        """
        wanted = [pod for pod in self._demand() if not pods.isdisjoint(_stands_for(pod))]
        before = self._placed(wanted, ()) if wanted else {}
        if not wanted or len(before) == len(wanted):
            return []
        found = []
        for use in self.uses.values():
            new = self._new_nodes(use, len(wanted))
            placed = self._placed(wanted, new) if new else {}
            count = len({node.metadata.name for node in new}.intersection(placed.values()))
            if len(placed) == len(wanted):
                found.append(f"{counted(count, 'more node')} of {use.group.name}")
        return found

    # Trying --------------------------------------------------------------------------------------

    def _placed(self, pods: Sequence[Pod], new: Sequence[Node]) -> dict[str, str]:
        """Return where a plain scheduler would place pods now, by their keys."""
        trial = MemoryCluster(0)
        scheduler = Scheduler(trial, self._profiles, keep_decisions=1)
        for node in (*self._cluster.list(Node), *self._coming.values(), *new):
            trial.create(_ready(node))
        for key in [key for key in self._reserved if self._is_gone(key)]:
            del self._reserved[key]
        reserved = [pod for one in self._reserved.values() for pod in one.pods]
        for pod in (*filter(_occupies, self._cluster.list(Pod)), *reserved, *pods):
            trial.create(_plain(pod))
        VirtualTime(trial, scheduler).settle()
        found = {pod.key: pod.spec.node_name for pod in trial.list(Pod) if pod.spec.node_name}
        tried = {pod.key: _plain(pod).key for pod in pods}
        return {key: found[plain] for key, plain in tried.items() if plain in found}

    def _is_gone(self, key: str) -> bool:
        return self._cluster.get(ProvisioningRequest, key) is None

    # Nodes ---------------------------------------------------------------------------------------

    def _buy(self, use: GroupUse, why: str) -> None:
        while self._is_taken(use.group.node(use.next_number).metadata.name):
            use.next_number += 1
        node = use.group.node(use.next_number)
        labels = {**node.metadata.labels, _GROUP_LABEL: use.group.name}
        node = replace(node, metadata=replace(node.metadata, labels=labels))
        use.next_number += 1
        use.bought += 1
        name = node.metadata.name
        use.nodes[name] = self._cluster.now
        self._coming[name] = node
        self._note(use, name, "bought", why)
        self._cluster.clock.call_later(use.group.startup, partial(self._arrive, use, name))

    def _is_taken(self, name: str) -> bool:
        return name in self._coming or self._cluster.get(Node, name) is not None

    def _arrive(self, use: GroupUse, name: str) -> None:
        self._cluster.create(_ready(self._coming.pop(name)))
        self._note(use, name, "ready")

    def _watch_empty(self) -> None:
        """Plan the removal of nodes that have become empty."""
        now = self._cluster.now
        used = Counter(pod.spec.node_name for pod in self._cluster.list(Pod) if _keeps(pod))
        for use in self.uses.values():
            for name in use.nodes:
                if name in self._kept_by_minimum and len(use.nodes) > use.group.least:
                    self._kept_by_minimum.discard(name)
                    self._empty_since.pop(name, None)
                if name in self._coming or used[name]:
                    self._empty_since.pop(name, None)
                elif name not in self._empty_since:
                    self._empty_since[name] = now
                    remove = partial(self._remove, use, name, now)
                    self._cluster.clock.call_later(self._config.idle, remove)

    def _remove(self, use: GroupUse, name: str, since: float) -> None:
        """Remove a node that has been empty all the time."""
        if self._empty_since.get(name) != since:
            return
        if len(use.nodes) <= use.group.least:
            self._kept_by_minimum.add(name)
            return
        if self._reserved or self._is_wanted(name):
            # It is looked at again once it has been empty for as long once more.
            del self._empty_since[name]
            return
        del self._empty_since[name]
        use.seconds += self._cluster.now - use.nodes.pop(name)
        use.removed += 1
        if self._cluster.get(Node, name) is not None:
            self._cluster.delete(Node, name)
        self._note(use, name, "removed", f"empty for {self._config.idle / 60:g} minutes")

    def _is_wanted(self, name: str) -> bool:
        """Tell whether a pod that asks for nodes would go there."""
        demand = self._demand()
        return bool(demand) and name in self._placed(demand, ()).values()

    def _note(self, use: GroupUse, name: str, change: str, why: str = "") -> None:
        self.events.append(NodeEvent(self._cluster.now, use.group.name, name, change, why))

    # ProvisioningRequests ------------------------------------------------------------------------

    def _answer(self, request: ProvisioningRequest) -> None:
        pods = self._pods_of(request)
        if isinstance(pods, str):
            self._state(request, "Failed", "True", "FailedToCreatePods", pods)
            return
        self._state(request, "Accepted", "True", "Accepted", "accepted by the autoscaler")
        if len(self._placed(pods, ())) == len(pods):
            self._reserve(request, pods, "CapacityIsFound")
            return
        if request.spec.provisioning_class_name == ATOMIC:
            for use in sorted(self.uses.values(), key=lambda one: one.group.price):
                new = self._new_nodes(use, len(pods))
                placed = self._placed(pods, new)
                if len(placed) < len(pods):
                    continue
                names = {node.metadata.name for node in new}
                for _ in names.intersection(placed.values()):
                    self._buy(use, f"for ProvisioningRequest {request.key}")
                self._reserve(request, pods, "CapacityIsProvisioned")
                return
        self._not_found(request)

    def _not_found(self, request: ProvisioningRequest) -> None:
        text = "no group can hold all of its pods"
        if request.spec.parameters.get("noRetry") == "true":
            self._state(request, "Failed", "True", "CapacityIsNotFound", text)
            return
        self._state(request, "Provisioned", "False", "CapacityIsNotFound", text)
        tries = self._retries.get(request.key, 0)
        self._retries[request.key] = tries + 1
        wait = min(_FIRST_RETRY * 2 ** min(tries, 10), _LONGEST_RETRY)
        self._cluster.clock.call_later(wait, self._scan_again)

    def _scan_again(self) -> None:
        if not self._scan_due and self._open_requests():
            self._scan()

    def _reserve(self, request: ProvisioningRequest, pods: Sequence[Pod], reason: str) -> None:
        text = "Provisioning Request was successfully provisioned."
        self._state(request, "Provisioned", "True", reason, text)
        until = self._cluster.now + self._config.booking
        self._reserved[request.key] = _Reserved(pods, until)
        self._cluster.clock.call_at(until, partial(self._end_reservation, request.key))

    def _end_reservation(self, key: str) -> None:
        self._reserved.pop(key, None)
        request = self._cluster.get(ProvisioningRequest, key)
        if request is not None:
            text = "Capacity reservation time has expired."
            reason = "CapacityReservationTimeExpired"
            self._state(request, "BookingExpired", "True", reason, text)

    def _state(
        self, request: ProvisioningRequest, type_: str, status: str, reason: str, message: str
    ) -> None:
        now = self._cluster.get(ProvisioningRequest, request.key)
        if now is None:
            return
        at = rfc3339(self._cluster.unix_time)
        new = Condition(type_, status, reason, message, at)
        others = tuple(one for one in now.status.conditions if one.type != type_)
        changed = replace(now.status, conditions=(*others, new))
        self._cluster.update(replace(now, status=changed))

    def _pods_of(self, request: ProvisioningRequest) -> list[Pod] | str:
        """Return the pods of a request; a text says why there are none."""
        namespace = request.metadata.namespace
        found = []
        for one in request.spec.pod_sets:
            name = one.pod_template_ref.name
            stored = self._cluster.get(StoredPodTemplate, f"{namespace}/{name}")
            if stored is None:
                return f"PodTemplate {namespace}/{name} does not exist"
            template = decode_part(PodTemplate, dict(stored.template))
            for index in range(one.count):
                meta = ObjectMeta(
                    name=f"{name}-{index}", namespace=namespace, labels=template.metadata.labels
                )
                found.append(Pod(meta, template.spec))
        return found

    # Answers -------------------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """Return what was bought, removed and paid."""
        now = self._cluster.now
        groups = [
            {
                "name": use.group.name,
                "nodes": len(use.nodes),
                "max": use.group.most,
                "bought": use.bought,
                "removed": use.removed,
                "nodeHours": round(float(use.node_hours(now)), 3),
                "cost": f"{use.cost(now):.2f}",
            }
            for use in self.uses.values()
        ]
        events = [
            {
                "at": one.at,
                "group": one.group,
                "node": one.node,
                "change": one.change,
                "why": one.why,
            }
            for one in self.events
        ]
        return {"groups": groups, "cost": f"{self.cost(now):.2f}", "nodes": events}

    def cost(self, now: float) -> Decimal:
        """Return what all nodes cost up to now."""
        return sum((use.cost(now) for use in self.uses.values()), Decimal(0))


def _kube_profiles() -> ProfileSet:
    """Return profiles that place as kube-scheduler would, and preempt nobody."""
    known = default_profiles()
    first = known.profiles[0]
    points = {**first.points, "post_filter": ()}
    return ProfileSet((msgspec.structs.replace(first, points=points),), any_scheduler=True)


def _asks(pod: Pod) -> bool:
    """Tell whether a pod asks for a node, as autoscalers see it."""
    if pod.spec.node_name or pod.metadata.deletion_timestamp or pod.status.nominated_node_name:
        return False
    if consumed_request(pod.metadata.annotations):
        return False
    return any(
        one.type == "PodScheduled" and one.status == "False" and one.reason == NODES_LACK
        for one in pod.status.conditions
    )


def _stands_for(pod: Pod) -> set[str]:
    """Return the keys of the pods that a pod asks for: its own, or those that it stands in for."""
    if not is_stand_in(pod):
        return {pod.key}
    return set(pod.metadata.annotations.get(STAND_IN_PODS, "").split())


def _occupies(pod: Pod) -> bool:
    """Tell whether a pod takes part of a node, or will."""
    if pod.status.phase in ("Succeeded", "Failed"):
        return False
    return bool(pod.spec.node_name or pod.status.nominated_node_name)


def _asked_by(pods: Sequence[Pod]) -> str:
    """Return the pods that get nodes; of stand-ins those in whose place they are."""
    return listed(sorted(set[str]().union(*map(_stands_for, pods))), _MOST_NAMED)


def _keeps(pod: Pod) -> bool:
    """Tell whether a pod keeps its node from being removed."""
    return _occupies(pod) and not belongs_to_node(pod.metadata)


def _ready(node: Node) -> Node:
    """Return a node as it is created: nothing is said of where it came from."""
    meta = ObjectMeta(
        name=node.metadata.name,
        labels=dict(node.metadata.labels),
        annotations=dict(node.metadata.annotations),
    )
    return replace(node, metadata=meta)


def _plain(pod: Pod) -> Pod:
    """Return a pod as an autoscaler reads it: what it needs, without its gang, queue and owner."""
    meta = pod.metadata
    labels = _without_gangs(meta.labels)
    node = pod.spec.node_name or pod.status.nominated_node_name
    spec = replace(pod.spec, node_name=node, scheduling_gates=(), scheduling_group=None, volumes=())
    # A scheduler overlooks stand-ins by their namespace, and an autoscaler does not.
    spec = replace(spec, affinity=_tried_affinity(spec.affinity))
    return Pod(ObjectMeta(name=meta.name, namespace=_tried(meta.namespace), labels=labels), spec)


def _tried(namespace: str) -> str:
    return f"{namespace}-tried"


def _tried_affinity(affinity: Affinity | None) -> Affinity | None:
    """Return an affinity with the namespaces of a trial."""
    if affinity is None:
        return None

    def moved(part: PodAffinity | None) -> PodAffinity | None:
        if part is None:
            return None
        terms = (replace(t, namespaces=tuple(map(_tried, t.namespaces))) for t in part.required)
        return PodAffinity(tuple(terms), part.preferred)

    return replace(
        affinity,
        pod_affinity=moved(affinity.pod_affinity),
        pod_anti_affinity=moved(affinity.pod_anti_affinity),
    )


def _without_gangs(labels: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if key not in MEMBERS_BY}
