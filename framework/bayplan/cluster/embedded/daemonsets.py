"""The DaemonSet controller, as k8s.io/kubernetes pkg/controller/daemon."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from msgspec.structs import replace

from bayplan.api import DaemonSet, Node, Pod, Taint, Toleration
from bayplan.api.nodeselection import selects
from bayplan.api.pod import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PodSpec,
    TaintEffect,
)
from bayplan.api.tolerations import tolerated
from bayplan.api.workloads import DaemonSetStatus, RollingDaemonSet
from bayplan.cluster.embedded.children import (
    Children,
    PodOverrides,
    alive,
    available_at,
    is_available,
    is_ready,
    template_of,
)
from bayplan.cluster.embedded.int_or_percent import amount_of
from bayplan.cluster.embedded.revisions import REVISION_LABEL, Revisions
from bayplan.cluster.embedded.store import MemoryCluster

__all__ = ["DaemonSetController", "should_continue", "should_run"]

_COMPONENT = "daemonset-controller"
_GENERATION = "pod-template-generation"
_BACKOFF, _LONGEST_BACKOFF = 1.0, 900.0
_STAYS = "NoExecute"
_AUTOMATIC: tuple[tuple[str, TaintEffect], ...] = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)
_HOST_NETWORK: tuple[str, TaintEffect] = ("node.kubernetes.io/network-unavailable", "NoSchedule")
_NAME = "metadata.name"

_ByNode = dict[str, list[Pod]]


class DaemonSetController:
    """Keeps one pod of each DaemonSet on every eligible node."""

    def __init__(self, cluster: MemoryCluster, children: Children) -> None:
        self._cluster = cluster
        self._children = children
        self._revisions = Revisions(cluster, children)
        self._retries: dict[tuple[str, str], tuple[float, float]] = {}
        """By uid and node: when a failed pod is replaced, and the next delay (seconds)."""

    def reconcile(self, owner: DaemonSet) -> float | None:
        """Reconcile a DaemonSet; return when to do so again, None for never."""
        pods = self._children.pods(owner)
        carried = (pod.metadata.labels.get(REVISION_LABEL, "") for pod in pods)
        revision = self._revisions.sync(owner, next(filter(None, carried), ""))
        digest = revision.metadata.labels[REVISION_LABEL]
        again = self._place(owner, digest)
        if owner.spec.update_strategy.type == "RollingUpdate":
            self._roll(owner, digest)
        by_node = self._by_node(owner)
        self._count(owner, digest, by_node)
        found = [pod for there in by_node.values() for pod in there]
        names = {pod.metadata.labels.get(REVISION_LABEL, "") for pod in found} | {digest}
        self._revisions.truncate(owner, {f"{owner.metadata.name}-{name}" for name in names})
        times = [available_at(self._cluster, pod, owner.spec.min_ready_seconds) for pod in found]
        later = [at for at in (*times, again) if at is not None and at > self._cluster.now]
        return min(later, default=None)

    def is_hopeless(self, owner: DaemonSet) -> bool:
        """Tell whether its pods have failed on a node for so long that nobody waits for more."""
        uid = owner.metadata.uid
        return any(
            own == uid and delay >= _LONGEST_BACKOFF
            for (own, _), (_, delay) in self._retries.items()
        )

    def _by_node(self, owner: DaemonSet) -> _ByNode:
        """Return the pods by the node they run on or are pinned to."""
        found: _ByNode = defaultdict(list)
        for pod in self._children.pods(owner):
            found[node_of(pod)].append(pod)
        return found

    def _place(self, owner: DaemonSet, digest: str) -> float | None:
        """Create missing pods and delete surplus ones; return when to replace a failed one."""
        by_node = self._by_node(owner)
        again = []
        for node in self._cluster.list(Node):
            there = by_node.pop(node.metadata.name, [])
            if should_run(owner, node):
                at = self._keep_one(owner, digest, node.metadata.name, there)
                again += [at] if at is not None else []
            elif not should_continue(owner, node):
                self._end(owner, there)
        for there in by_node.values():
            # The nodes are gone; the garbage collector deletes pods that started there.
            self._end(owner, [pod for pod in there if not pod.spec.node_name])
        return min(again, default=None)

    def _keep_one(self, owner: DaemonSet, digest: str, node: str, there: list[Pod]) -> float | None:
        running = []
        for pod in there:
            if pod.metadata.deletion_timestamp is not None:
                continue
            if pod.status.phase in ("Failed", "Succeeded"):
                at = self._retry(owner, node)
                if at > self._cluster.now:
                    return at
                text = f"Found failed daemon pod {pod.key} on node {node}, will try to kill it"
                self._cluster.record_event(owner, _COMPONENT, "FailedDaemonPod", text)
                self._end(owner, [pod])
                continue
            running.append(pod)
        if not there or (not running and all(self._is_gone(pod) for pod in there)):
            self._make(owner, digest, node)
        elif len(running) > 1 and not self._surges(owner):
            # Keep the oldest.
            self._end(owner, running[1:])
        return None

    def _is_gone(self, pod: Pod) -> bool:
        return self._cluster.get(Pod, pod.key) is None

    def _retry(self, owner: DaemonSet, node: str) -> float:
        """Return when to replace a node's failed pod, with exponential backoff."""
        key = (owner.metadata.uid, node)
        now = self._cluster.now
        at, delay = self._retries.get(key, (0.0, _BACKOFF))
        if at == 0.0:
            at = now + delay
            self._retries[key] = (at, delay)
        elif at <= now:
            self._retries[key] = (0.0, min(2 * delay, _LONGEST_BACKOFF))
        return at

    def _make(self, owner: DaemonSet, digest: str, node: str) -> None:
        template = template_of(self._cluster, owner)
        generation = self._cluster.generation_of(owner)
        labels = {REVISION_LABEL: digest, _GENERATION: str(generation or 1)}
        marks = PodOverrides(generate_name=f"{owner.metadata.name}-", labels=labels)
        pod = self._children.make(owner, template, marks, pinned(template.typed.spec, node))
        if pod is not None:
            text = f"Created pod: {pod.metadata.name}"
            self._cluster.record_event(owner, _COMPONENT, "SuccessfulCreate", text)

    def _end(self, owner: DaemonSet, pods: list[Pod]) -> None:
        for pod in pods:
            if pod.metadata.deletion_timestamp is None:
                self._children.delete(pod)
                text = f"Deleted pod: {pod.metadata.name}"
                self._cluster.record_event(owner, _COMPONENT, "SuccessfulDelete", text)

    # Rolling out -------------------------------------------------------------------------

    def _surges(self, owner: DaemonSet) -> bool:
        return self._limits(owner, 100)[0] > 0

    def _limits(self, owner: DaemonSet, nodes: int) -> tuple[int, int]:
        """Return on how many nodes two pods may run, and on how many none."""
        rolling = owner.spec.update_strategy.rolling_update or RollingDaemonSet()
        surge = amount_of(rolling.max_surge, nodes, up=True)
        missing = amount_of(rolling.max_unavailable, nodes, up=True)
        return surge, missing if surge or missing else 1

    def _roll(self, owner: DaemonSet, digest: str) -> None:
        """Replace old pods on as many nodes at once as the strategy allows."""
        by_node = self._by_node(owner)
        wanted = [n.metadata.name for n in self._cluster.list(Node) if should_run(owner, n)]
        surge, missing = self._limits(owner, len(wanted))
        if surge:
            self._roll_beside(owner, digest, by_node, wanted, surge)
        else:
            self._roll_in_place(owner, digest, by_node, wanted, missing)

    def _roll_in_place(
        self, owner: DaemonSet, digest: str, by_node: _ByNode, wanted: list[str], most: int
    ) -> None:
        least = owner.spec.min_ready_seconds
        missing, old = 0, []
        for name in wanted:
            pods = [pod for pod in by_node.get(name, ()) if alive(pod)]
            if not any(is_available(self._cluster, pod, least) for pod in pods):
                missing += 1
                # Replacing an unavailable pod costs nothing.
                self._end(owner, [pod for pod in pods if not _is_new(pod, digest)])
            elif pods and not _is_new(pods[0], digest):
                old.append(pods[0])
        self._end(owner, old[: max(0, most - missing)])

    def _roll_beside(
        self, owner: DaemonSet, digest: str, by_node: _ByNode, wanted: list[str], most: int
    ) -> None:
        least = owner.spec.min_ready_seconds
        both, waiting = 0, []
        for name in wanted:
            pods = [pod for pod in by_node.get(name, ()) if alive(pod)]
            new = [pod for pod in pods if _is_new(pod, digest)]
            old = [pod for pod in pods if not _is_new(pod, digest)]
            if old and new and any(is_available(self._cluster, pod, least) for pod in new):
                self._end(owner, old)
            elif old and new:
                both += 1
            elif old and not any(is_available(self._cluster, pod, least) for pod in old):
                self._end(owner, old)
                self._make(owner, digest, name)
            elif old:
                waiting.append(name)
        for name in waiting[: max(0, most - both)]:
            self._make(owner, digest, name)

    # Status ------------------------------------------------------------------------------

    def _count(self, owner: DaemonSet, digest: str, by_node: _ByNode) -> None:
        least = owner.spec.min_ready_seconds
        desired = current = wrong = ready = available = updated = 0
        for node in self._cluster.list(Node):
            pods = [p for p in by_node.get(node.metadata.name, ()) if alive(p)]
            if not should_run(owner, node):
                wrong += bool(pods)
                continue
            desired += 1
            current += bool(pods)
            ready += any(is_ready(pod) for pod in pods)
            available += any(is_available(self._cluster, pod, least) for pod in pods)
            updated += any(_is_new(pod, digest) for pod in pods)
        status = DaemonSetStatus(
            current_number_scheduled=current,
            number_misscheduled=wrong,
            desired_number_scheduled=desired,
            number_ready=ready,
            observed_generation=self._cluster.generation_of(owner),
            updated_number_scheduled=updated or None,
            number_available=available or None,
            number_unavailable=desired - available or None,
            collision_count=owner.status.collision_count,
        )
        if status != owner.status:
            self._cluster.update(replace(owner, status=status))


def _is_new(pod: Pod, digest: str) -> bool:
    """Return whether a pod has the current template; an unlabeled pod counts as current."""
    return pod.metadata.labels.get(REVISION_LABEL, digest) == digest


def node_of(pod: Pod) -> str:
    """Return the node that a daemon pod runs on or is pinned to, "" for none."""
    affinity = pod.spec.affinity
    if pod.spec.node_name or affinity is None or affinity.node_affinity is None:
        return pod.spec.node_name
    required = affinity.node_affinity.required
    for term in required.node_selector_terms if required is not None else ():
        for field in term.match_fields:
            if field.key == _NAME and len(field.values) == 1:
                return field.values[0]
    return ""


def tolerations_of(spec: PodSpec) -> tuple[Toleration, ...]:
    """Return the tolerations of a daemon pod: the template's and the automatic ones."""
    automatic = (*_AUTOMATIC, _HOST_NETWORK) if spec.host_network else _AUTOMATIC
    own = list(spec.tolerations)
    for key, effect in automatic:
        added = Toleration(key, "Exists", effect=effect)
        own = [t for t in own if (t.key, t.effect, t.operator) != (key, effect, "Exists")]
        own.append(added)
    return tuple(own)


def pinned(spec: PodSpec, node: str) -> PodSpec:
    """Return a pod spec with an affinity for one node and the daemon tolerations."""
    name = NodeSelectorRequirement(_NAME, "In", (node,))
    required = NodeSelector((NodeSelectorTerm(match_fields=(name,)),))
    affinity = spec.affinity or Affinity()
    preferred = affinity.node_affinity.preferred if affinity.node_affinity else ()
    node_affinity = NodeAffinity(required, preferred)
    return replace(
        spec,
        affinity=replace(affinity, node_affinity=node_affinity),
        tolerations=tolerations_of(spec),
    )


def should_run(owner: DaemonSet, node: Node) -> bool:
    """Return whether a DaemonSet's pod should run on a node."""
    return _fits(owner, node) and _bears(owner, node.spec.taints)


def should_continue(owner: DaemonSet, node: Node) -> bool:
    """Return whether a DaemonSet's pod that runs on a node may stay."""
    return _fits(owner, node) and _bears(
        owner, (taint for taint in node.spec.taints if taint.effect == _STAYS)
    )


def _fits(owner: DaemonSet, node: Node) -> bool:
    """Return whether the template's node name, selector and affinity match a node."""
    spec = owner.spec.template.spec
    if spec.node_name not in ("", node.metadata.name):
        return False
    if not spec.node_selector.items() <= node.metadata.labels.items():
        return False
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = affinity.required if affinity is not None else None
    return required is None or selects(required, node)


def _bears(owner: DaemonSet, taints: Iterable[Taint]) -> bool:
    tolerations = tolerations_of(owner.spec.template.spec)
    return all(
        taint.effect == "PreferNoSchedule" or tolerated(taint, tolerations) for taint in taints
    )
