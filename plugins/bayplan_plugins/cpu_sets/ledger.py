"""Who holds which CPUs of every node; no CPU is given twice.

What pods on nodes hold is in their own annotations, so a restarted scheduler knows it again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from bayplan import PodInfo
from bayplan.api import Node, NodeResourceTopology
from bayplan.dialects.koordinator.cpu_sets import (
    ExclusivePolicy,
    NumaStrategy,
    cpus_of_status,
    resource_spec_of,
    states_cpus,
)
from bayplan.snapshot import Snapshot
from bayplan_plugins.cpu_sets.accumulator import (
    NOT_ENOUGH,
    CpusRefused,
    CpuUse,
    Search,
    take_cpus,
    take_preferred_cpus,
)
from bayplan_plugins.cpu_sets.nodes import NodeCpus, cpus_of_node
from bayplan_plugins.cpu_sets.requests import CpuNeed, CpuRequests
from bayplan_plugins.shared.stale_nodes import StaleNodes

__all__ = ["CpuLedger", "FreeCpus", "HeldCpus", "amplify", "usable"]

_MOST_REMEMBERED = 8192
_MOST_ANSWERS = 50_000


class HeldCpus(msgspec.Struct, frozen=True):
    """The CPUs of a pod, and the exclusive policy that it asked for."""

    cpus: frozenset[int]
    exclusive: ExclusivePolicy = ""


class FreeCpus(msgspec.Struct, frozen=True):
    """The free CPUs of a node and those in use, for pods to choose from.

    Equal ones lead to equal choices: ``key`` says by what.
    """

    node: NodeCpus
    free: frozenset[int]
    in_use: Mapping[int, CpuUse]

    @property
    def key(self) -> tuple[object, ...]:
        """What a choice depends on."""
        closed = frozenset(
            (cpu, use.exclusive) for cpu, use in self.in_use.items() if use.exclusive
        )
        return (self.node.topology, self.node.strategy, self.free, closed)

    def on_numa(self, numa: int, need: CpuNeed | None = None) -> int:
        """Return how many CPUs a need could have of a NUMA node."""
        free = usable(self, need) if need is not None else self.free
        return len(self.node.topology.on_numa(free, (numa,)))


class CpuLedger:
    """The CPUs of a cluster. All profiles of a scheduler share one."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.requests = CpuRequests()
        self._nodes: dict[str, NodeCpus] = {}
        self._sources: dict[str, tuple[Node, NodeResourceTopology | None]] = {}
        self._demanding: set[str] = set()
        """Nodes that concern pods without CPUs of their own, too."""
        self._publishing: set[str] = set()
        self._held: dict[str, dict[str, HeldCpus]] = {}
        self._remembered: dict[tuple[str, str], HeldCpus] = {}
        self._free: dict[str, FreeCpus] = {}
        self._answers: dict[tuple[object, ...], frozenset[int] | str] = {}
        self._stale = StaleNodes(snapshot)
        self._listeners: list[Callable[[str], None]] = []
        snapshot.on_pod(self._on_pod)
        snapshot.on_object(NodeResourceTopology, self._on_report)
        for pod, node in snapshot.placed.values():
            self._on_pod(pod, node, True)

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Call ``listener(node)`` when a node's CPUs change, or who holds them."""
        self._listeners.append(listener)

    def _changed(self, name: str) -> None:
        self._free.pop(name, None)
        for listener in self._listeners:
            listener(name)

    # Nodes -----------------------------------------------------------------------------------

    def _on_report(
        self, old: NodeResourceTopology | None, new: NodeResourceTopology | None
    ) -> None:
        obj = new or old
        assert obj is not None
        self._stale.touch(obj.metadata.name)
        self._snapshot.touch((obj.metadata.name,))

    def read_nodes(self) -> None:
        """Read the nodes that changed."""
        if not self._stale.any_new:
            return
        stale = self._stale.take()
        names = self._snapshot.nodes.row_of
        if stale.all:
            for name in [name for name in self._sources if name not in names]:
                self._forget(name)
        for name in stale.names:
            if name in names:
                self._read(name)
            elif name in self._sources:
                self._forget(name)

    def _forget(self, name: str) -> None:
        del self._sources[name]
        self._nodes.pop(name, None)
        self._demanding.discard(name)
        self._publishing.discard(name)
        self._changed(name)

    def _read(self, name: str) -> None:
        node = self._snapshot.nodes.nodes[self._snapshot.nodes.row_of[name]]
        found = self._snapshot.objects(NodeResourceTopology).get(name)
        source = self._sources.get(name)
        if source is not None and source[0] is node and source[1] is found:
            return
        self._sources[name] = (node, found)
        known, problem = cpus_of_node(node, found)
        self._snapshot.set_problem(name, "CPU sets", problem)
        for names, holds in (
            (self._demanding, known is not None and bool(known.bind or known.ratio > 1)),
            (self._publishing, known is not None and known.topology.per_core > 0),
        ):
            (names.add if holds else names.discard)(name)
        if known is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = known
        self._changed(name)

    @property
    def matters(self) -> bool:
        """Whether any node publishes its CPUs, demands a policy, or amplifies its CPUs."""
        self.read_nodes()
        return bool(self._nodes)

    @property
    def publishing(self) -> bool:
        """Whether any node publishes its CPUs; without one, no agent would bind them."""
        self.read_nodes()
        return bool(self._publishing)

    @property
    def demanding(self) -> Collection[str]:
        """The nodes that bind the CPUs of all pods, or whose CPUs are amplified."""
        self.read_nodes()
        return self._demanding

    def node(self, name: str) -> NodeCpus | None:
        """Return a node's CPUs; None where nothing is said of them."""
        self.read_nodes()
        return self._nodes.get(name)

    # What is free ----------------------------------------------------------------------------

    def free(self, name: str, but: str = "") -> FreeCpus | None:
        """Return what is free on a node; what the pod ``but``, by uid, holds counts as free."""
        node = self.node(name)
        if node is None:
            return None
        if but and but in self._held.get(name, ()):
            return self._count(name, node, but)
        known = self._free.get(name)
        if known is None:
            known = self._free[name] = self._count(name, node, "")
        return known

    def _count(self, name: str, node: NodeCpus, but: str) -> FreeCpus:
        in_use: dict[int, CpuUse] = {}
        for uid, own in self._held.get(name, {}).items():
            for cpu in own.cpus if uid != but else ():
                pods = in_use[cpu].pods if cpu in in_use else 0
                in_use[cpu] = CpuUse(pods + 1, own.exclusive)
        free = frozenset(node.topology.cpus.keys() - node.reserved - in_use.keys())
        return FreeCpus(node, free, in_use)

    def amplified(self, name: str, milli: int) -> int:
        """Return the surplus in milli-CPU that CPUs given to single pods count on a node.

        :param milli: what the pods on the node request in all.
        """
        node = self.node(name)
        held = 1000 * len({cpu for own in self._held.get(name, {}).values() for cpu in own.cpus})
        if node is None or not 0 < held <= milli:
            return 0
        return amplify(held, node.ratio) - held

    def choose(
        self,
        free: FreeCpus,
        need: CpuNeed,
        strategy: NumaStrategy,
        by_numa: Sequence[tuple[int, int]] = (),
        near: Collection[int] = (),
    ) -> frozenset[int]:
        """Return the CPUs for a need.

        :param strategy: which NUMA nodes come first where the node does not say.
        :param by_numa: how many to take of which NUMA nodes; empty to take any.
        :param near: the NUMA nodes to take from first.
        :raises CpusRefused: when they cannot be had.
        """
        key = (free.key, need, strategy, tuple(by_numa), frozenset(near))
        answer = self._answers.get(key)
        if answer is None:
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
            try:
                answer = _choose(free, need, strategy, by_numa, near)
            except CpusRefused as exc:
                answer = str(exc)
            self._answers[key] = answer
        if isinstance(answer, str):
            raise CpusRefused(answer)
        return answer

    # Pods ------------------------------------------------------------------------------------

    def held(self, pod: PodInfo, name: str) -> HeldCpus | None:
        """Return what a pod holds on a node."""
        return self._held.get(name, {}).get(pod.uid)

    def hold(self, pod: PodInfo, name: str, cpus: frozenset[int]) -> None:
        """Give a pod CPUs of a node."""
        self._change(name, pod.uid, HeldCpus(cpus, _exclusive(pod)))

    def release(self, pod: PodInfo, name: str) -> None:
        """Take a pod's CPUs back; it gets them again if it comes back."""
        own = self.held(pod, name)
        if own is not None:
            self._remember(pod, name, own)
            self._change(name, pod.uid, None)

    def numa_nodes_in_use(self, name: str, but: str = "") -> tuple[frozenset[int], frozenset[int]]:
        """Return the NUMA nodes of pods whose CPUs are on one, and those of pods with several.

        :param but: a pod, by uid, that does not count.
        """
        node = self.node(name)
        single: set[int] = set()
        shared: set[int] = set()
        for uid, own in self._held.get(name, {}).items():
            if node is None or uid == but:
                continue
            numbers = node.topology.numa_nodes_of(own.cpus)
            (single if len(numbers) == 1 else shared).update(numbers)
        return frozenset(single), frozenset(shared)

    def shares(self, pod: PodInfo, name: str) -> frozenset[int]:
        """Return which of a pod's CPUs somebody else holds, too."""
        own = self.held(pod, name)
        free = self.free(name)
        if own is None or free is None:
            return frozenset()
        return frozenset(cpu for cpu in own.cpus if free.in_use[cpu].pods > 1)

    def _on_pod(self, pod: PodInfo, name: str, placed: bool) -> None:
        if not placed:
            if self._held:
                self.release(pod, name)
            return
        if not (self._held or self._remembered or states_cpus(pod.pod)):
            return
        if self.held(pod, name) is not None:
            return
        own = self._remembered.pop((pod.uid, name), None) or _stated(pod)
        if own is not None:
            self._change(name, pod.uid, own)

    def _remember(self, pod: PodInfo, name: str, own: HeldCpus) -> None:
        self._remembered[pod.uid, name] = own
        if len(self._remembered) > _MOST_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    def _change(self, name: str, uid: str, own: HeldCpus | None) -> None:
        """Change what a pod holds; undone with the trial."""
        pods = self._held.setdefault(name, {})
        before = pods.get(uid)
        self._snapshot.on_rollback(lambda: self._change(name, uid, before))
        if own is None:
            pods.pop(uid, None)
            if not pods:
                del self._held[name]
        else:
            pods[uid] = own
        self._changed(name)


def amplify(milli: int, ratio: float) -> int:
    """Return an amount on a node whose CPUs are amplified, rounded up."""
    exact = milli * ratio
    return int(exact) + (int(exact) < exact)


def usable(free: FreeCpus, need: CpuNeed) -> frozenset[int]:
    """Return the free CPUs that a need may get by its required policy."""
    if not need.required:
        return free.free
    if need.bind == "FullPCPUs":
        return free.node.topology.whole_cores(free.free)
    return free.node.topology.one_per_core(free.free)


def _choose(
    free: FreeCpus,
    need: CpuNeed,
    strategy: NumaStrategy,
    by_numa: Sequence[tuple[int, int]],
    near: Collection[int],
) -> frozenset[int]:
    topology, possible = free.node.topology, usable(free, need)
    strategy = free.node.strategy or strategy

    def search(count: int) -> Search:
        return Search(topology, count, need.bind, need.exclusive, strategy)

    if len(possible) < need.count:
        raise CpusRefused(NOT_ENOUGH)
    taken: frozenset[int] = frozenset()
    for numa, count in by_numa:
        taken |= take_cpus(search(count), topology.on_numa(possible, (numa,)), free.in_use)
    if by_numa and len(taken) != need.count:
        raise CpusRefused(NOT_ENOUGH)
    if not by_numa:
        preferred = topology.on_numa(possible, near)
        taken = take_preferred_cpus(search(need.count), possible, preferred, free.in_use)
    per_core = topology.per_core if need.bind == "FullPCPUs" else 1
    if need.required and topology.cores(taken) * per_core != len(taken):
        raise CpusRefused(f"insufficient CPUs to satisfy required cpu bind policy {need.bind}")
    return taken


def _stated(pod: PodInfo) -> HeldCpus | None:
    """Return what a pod's annotations say that it holds; None without CPUs."""
    try:
        cpus = cpus_of_status(pod.pod.metadata.annotations)
    except ValueError:
        # Written by somebody else; an agent that cannot read it binds nothing either.
        return None
    return HeldCpus(cpus, _exclusive(pod)) if cpus else None


def _exclusive(pod: PodInfo) -> ExclusivePolicy:
    """Return whom a pod keeps away: also one that gets CPUs only as its node demands it."""
    try:
        return resource_spec_of(pod.pod.metadata.annotations).exclusive
    except ValueError:
        return ""
