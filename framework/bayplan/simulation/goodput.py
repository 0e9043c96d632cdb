"""What becomes of all GPU hours while parts of a cluster fail: useful, lost, waiting, idle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from bayplan.api import Pod
from bayplan.api.node_state import NodeState, state_of
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.metering.holdings import amounts_of, with_node
from bayplan.metering.object_view import ObjectView
from bayplan.queues.devices import Key
from bayplan.queues.gpus import is_accelerator
from bayplan.simulation.job_progress import Interruption, Job, JobProgress, JobState

__all__ = ["Goodput", "GoodputReport", "Recoveries"]

_NOTHING = (0, 0, 0)
_HOURS = 3600 * 1000.0
"""Thousandths times seconds in an hour of one."""


class Recoveries(msgspec.Struct, frozen=True):
    """How often jobs were interrupted for one reason, and how long it took until they went on.

    :param median: seconds until a job worked again, ``p95`` of the slowest twentieth; None where
        none did.
    :param waiting: how many do not work again yet.
    """

    count: int
    median: float | None
    p95: float | None
    waiting: int

    @classmethod
    def of(cls, found: Sequence[Interruption]) -> Recoveries:
        """Sum up interruptions."""
        took = [one.over_at - one.at for one in found if one.over_at is not None]
        if not took:
            return cls(len(found), None, None, len(found))
        median, p95 = (float(one) for one in np.percentile(took, (50, 95)))
        return cls(len(found), median, p95, len(found) - len(took))

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object; times are seconds."""
        median, p95 = (None if one is None else round(one, 3) for one in (self.median, self.p95))
        return {"count": self.count, "median": median, "p95": p95, "waiting": self.waiting}


class GoodputReport(msgspec.Struct, frozen=True):
    """What became of all hours of GPUs, or of cores where there are no GPUs.

    ``useful`` was work that is kept, ``lost`` work that was thrown away. ``restarting`` jobs loaded
    a checkpoint, ``waiting`` ones held something and were not whole. ``spare`` was kept for jobs
    that lose a node, ``idle`` was free for others, and ``down`` had failed. They add up to
    ``total``.
    """

    unit: str
    total: float
    useful: float
    lost: float
    restarting: float
    waiting: float
    spare: float
    idle: float
    down: float
    by_faults: Recoveries
    by_evictions: Recoveries
    faults: Mapping[str, int]

    @property
    def goodput(self) -> float:
        """Which part of all hours was useful, 0 to 1."""
        return self.useful / self.total if self.total else 0.0

    def parts(self) -> dict[str, float]:
        """Return the hours by what became of them."""
        names = ("useful", "lost", "restarting", "waiting", "spare", "idle", "down")
        return {name: getattr(self, name) for name in names}

    def part(self, name: str) -> float:
        """Return which part of all hours became of this, 0 to 1."""
        return self.parts()[name] / self.total if self.total else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "unit": self.unit,
            "goodput": round(self.goodput, 6),
            "hours": {"total": round(self.total, 3)}
            | {name: round(hours, 3) for name, hours in self.parts().items()},
            "interruptions": {
                "byFaults": self.by_faults.as_json(),
                "byEvictions": self.by_evictions.as_json(),
            },
            "faults": dict(self.faults),
        }


class _NodeUse(msgspec.Struct):
    """A node: the most that it ever offered, what of it has failed, and what its pods hold."""

    whole: int = 0
    failed: int = 0
    is_up: bool = True
    cordoned: bool = False
    held: int = 0

    @property
    def parts(self) -> tuple[int, int, int]:
        """What it has in all, what of that nobody can use, and what pods hold where they run."""
        if not self.is_up:
            return self.whole, self.whole, 0
        # As on bills: parts of devices may count for more than the devices that they are of.
        unheld, whole = max(0, self.whole - self.held), max(self.whole, self.held)
        return whole, unheld if self.cordoned else min(self.failed, unheld), self.held

    @property
    def free(self) -> int:
        """What pods could have."""
        whole, down, held = self.parts
        return whole - down - held


class Goodput(msgspec.Struct):
    """Follows what jobs do with GPUs over virtual time.

    Call :meth:`look` at each instant, when nothing is left to do at it.

    :param kept: returns the nodes that are kept for jobs which lose a node.
    """

    cluster: MemoryCluster
    progress: JobProgress
    kept: Callable[[], Collection[str]]
    _view: ObjectView = msgspec.field(default_factory=ObjectView)
    _nodes: dict[str, _NodeUse] = msgspec.field(default_factory=dict)
    _pods_on: dict[str, set[str]] = msgspec.field(default_factory=lambda: defaultdict(set))
    _pods: dict[str, tuple[str, int]] = msgspec.field(default_factory=dict)
    """The node of each pod, and what it holds there."""
    _counted: dict[str, tuple[int, int, int]] = msgspec.field(default_factory=dict)
    _all: list[int] = msgspec.field(default_factory=lambda: [0, 0, 0])
    _touched: set[str] = msgspec.field(default_factory=set)
    """The nodes that have to be counted again."""
    _now: dict[str, int] = msgspec.field(default_factory=dict)
    _sums: dict[str, float] = msgspec.field(default_factory=lambda: defaultdict(float))
    _since: float = 0.0
    _of_gpus: bool = False

    def __post_init__(self) -> None:
        """Follow the cluster from now on."""
        self.cluster.watch(self._view.handle)

    @property
    def is_busy(self) -> bool:
        """Whether a job holds GPUs of nodes that have not failed."""
        return any(self.progress.holding.values())

    def look(self) -> None:
        """Take in what has changed; what is so then stays so until the next look."""
        self._pass_time()
        changed_nodes, changed_pods = {*self._view.changed_nodes}, {*self._view.changed_pods}
        if not self._of_gpus and self._offers_gpus(changed_nodes):
            # Until now, cores counted.
            self._of_gpus = True
            self._sums.clear()
            self._nodes.clear()
            self._pods.clear()
            self.progress.lost = 0.0
            changed_nodes, changed_pods = {*self._view.nodes}, {*self._view.pods}
        jobs: dict[Job, None] = {}
        moved = {name for name in changed_nodes if self._node_changed(name)}
        changed = changed_pods.union(*(self._pods_on[name] for name in moved))
        # Those that end first, so that others can take up their work.
        for uid in sorted(changed, key=lambda uid: (self._stays(uid), uid)):
            job = self._pod_changed(uid)
            if job is not None:
                jobs[job] = None
        self._view.forget_changes()
        for job in jobs:
            self.progress.reconsider(job)
        self._count_again(self._touched.union(changed_nodes))
        self._touched.clear()
        self._now = self._rates()

    def _pass_time(self) -> None:
        now = self.cluster.now
        for name, rate in self._now.items():
            self._sums[name] += rate * (now - self._since)
        self._since = now

    # Nodes and pods ------------------------------------------------------------------------------

    def _offers_gpus(self, nodes: Collection[str]) -> bool:
        return any(
            is_accelerator(key.resource)
            for name in nodes
            if (node := self._view.nodes.get(name)) is not None
            for key in with_node(node, self._view.devices.offer(name)).amounts
        )

    def _counts(self, key: Key) -> bool:
        return is_accelerator(key.resource) if self._of_gpus else key.resource == "cpu"

    def _node_changed(self, name: str) -> bool:
        """Take in a node; tell whether it failed, or came back."""
        node, known = self._view.nodes.get(name), self._nodes.get(name)
        if node is None:
            self._nodes.pop(name, None)
            self._hit_all(name)
            return known is not None
        use = self._nodes.setdefault(name, _NodeUse())
        offer = with_node(node, self._view.devices.offer(name))
        offered = sum(amount for key, amount in offer.amounts.items() if self._counts(key))
        use.whole = max(use.whole, offered)
        failed = sum(amount for key, amount in offer.failed.items() if self._counts(key))
        use.failed = use.whole - offered + failed
        state, was_up = state_of(node), use.is_up
        use.is_up, use.cordoned = state is not NodeState.FAILED, state is NodeState.MAINTENANCE
        if was_up and not use.is_up:
            self._hit_all(name)
        return was_up != use.is_up

    def _hit_all(self, node: str) -> None:
        for uid in self._pods_on[node]:
            self.progress.hit(uid)

    def _pod_changed(self, uid: str) -> Job | None:
        """Take in a pod; return the job that may stop or start for it."""
        pod = self._view.pods.get(uid)
        node, weight = (pod.spec.node_name, self._weight(pod)) if pod is not None else ("", 0)
        before, held = self._pods.pop(uid, ("", 0))
        if before:
            self._pods_on[before].discard(uid)
            self._touched.add(before)
            if before in self._nodes:
                self._nodes[before].held -= held
        if pod is None:
            return self.progress.take_out(uid)
        self._pods[uid] = node, weight
        self._pods_on[node].add(uid)
        self._touched.add(node)
        use = self._nodes.get(node)
        if use is not None:
            use.held += weight
        return self.progress.put(pod, weight, use is not None and use.is_up)

    def _stays(self, uid: str) -> bool:
        pod = self._view.pods.get(uid)
        return pod is not None and pod.metadata.deletion_timestamp is None

    def _weight(self, pod: Pod) -> int:
        """Return how many GPUs a pod holds, in thousandths."""
        claims = self._view.claims_of(pod.metadata.uid)
        node = self._view.last_seen.get(pod.spec.node_name)
        amounts = amounts_of(pod, node, claims, self._view.devices)
        return sum(amount for key, amount in amounts.items() if self._counts(key))

    # What becomes of the hours -------------------------------------------------------------------

    def _count_again(self, names: Collection[str]) -> None:
        """Count nodes that have changed again."""
        for name in names:
            use = self._nodes.get(name)
            parts = use.parts if use is not None else _NOTHING
            before = self._counted.pop(name, _NOTHING)
            for part, (old, new) in enumerate(zip(before, parts, strict=True)):
                self._all[part] += new - old
            if use is not None:
                self._counted[name] = parts

    def _rates(self) -> dict[str, int]:
        """Return what all GPUs do now, in thousandths of GPUs."""
        total, down, held = self._all
        nodes = (self._nodes.get(name) for name in self.kept())
        spare = sum(use.free for use in nodes if use is not None)
        idle = total - down - held - spare
        found = {"total": total, "down": down, "spare": spare, "idle": idle}
        return found | {state.value: self.progress.holding[state] for state in JobState}

    def report(self, faults: Mapping[str, int]) -> GoodputReport:
        """Return what became of all hours up to now.

        :param faults: how many there were, by what failed.
        """
        self._pass_time()
        hours = {name: total / _HOURS for name, total in self._sums.items()}
        lost = self.progress.lost / _HOURS
        of = self.progress.interruptions
        return GoodputReport(
            unit="GPU" if self._of_gpus else "core",
            total=hours.get("total", 0.0),
            useful=hours.get(JobState.WORKS.value, 0.0) - lost,
            lost=lost,
            restarting=hours.get(JobState.RESTARTS.value, 0.0),
            waiting=hours.get(JobState.WAITS.value, 0.0),
            spare=hours.get("spare", 0.0),
            idle=hours.get("idle", 0.0),
            down=hours.get("down", 0.0),
            by_faults=Recoveries.of([one for one in of if one.by_fault]),
            by_evictions=Recoveries.of([one for one in of if not one.by_fault]),
            faults=faults,
        )
