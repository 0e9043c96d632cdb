"""A true history of pods on nodes, and a meter that is told of it badly."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from bayplan.api import Node, Pod
from bayplan.api.pod import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    PodCondition,
    PodStatus,
)
from bayplan.api.times import rfc3339
from bayplan.cluster.protocol import WatchEvent, WatchType
from bayplan.metering.journal import Journal
from bayplan.metering.meter import Meter
from bayplan.testing.builders import make_node, make_pod

START = 1_790_000_000
GPUS = 8


@dataclass
class Life:
    """One pod, as it really was: times in ms. ``known`` is until when the journal knows it."""

    uid: str
    node: str
    gpus: int
    since: int
    until: int | None = None
    stated: bool = False
    lost: tuple[int, int] | None = None
    """If its end was not seen: when it was last known alive, and when it was found gone."""


@dataclass
class History:
    """Changes objects, tells the meter, or not, and restarts it."""

    journal: Journal
    time: float = float(START)
    behind: float = 0.0
    """By how much the meter's clock is behind the truth."""

    def __post_init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.lives: dict[str, Life] = {}
        self.broken = False
        self.count = 0
        self.alive = START * 1000
        for name in ("n1", "n2"):
            self.nodes[name] = make_node(name, gpu=GPUS)
        self.meter = self._meter()
        self._relist()

    def _meter(self) -> Meter:
        return Meter(self.journal, lambda: self.time - self.behind)

    def _tell(self, kind: WatchType, obj: Node | Pod) -> None:
        if not self.broken:
            self.meter.handle(WatchEvent(kind, obj))
            self._settle()

    def _settle(self) -> None:
        self.meter.settle()
        self.alive = max(self.alive, round((self.time - self.behind) * 1000))

    def _relist(self) -> None:
        self.broken = False
        objects = (*self.nodes.values(), *self.pods.values())
        self.meter.handle(WatchEvent(WatchType.RESYNC, objects=objects))
        self._settle()

    # What happens ------------------------------------------------------------------------

    def free(self, node: str) -> int:
        return GPUS - sum(
            life.gpus for life in self.lives.values() if life.node == node and life.until is None
        )

    def bind(self, number: int) -> None:
        node = ("n1", "n2")[number % 2]
        gpus = number % 3 + 1
        if self.free(node) < gpus or self.nodes[node].spec.unschedulable:
            return
        self.count += 1
        uid = f"pod-{self.count}"
        pod = make_pod(uid, node=node, gpu=gpus)
        bound = PodCondition("PodScheduled", "True", last_transition_time=rfc3339(self.time))
        status = PodStatus("Running", conditions=(bound,))
        pod = replace(pod, metadata=replace(pod.metadata, uid=uid), status=status)
        self.pods[uid] = pod
        self.lives[uid] = Life(uid, node, gpus, round(self.time * 1000))
        self._tell(WatchType.ADDED, pod)

    def _running(self, number: int) -> Life | None:
        found = [life for life in self.lives.values() if life.until is None]
        return found[number % len(found)] if found else None

    def _ended(self, life: Life) -> None:
        life.until = round(self.time * 1000)
        if self.broken:
            life.lost = (self.alive, 0)

    def finish(self, number: int) -> None:
        """Let a pod succeed; its object stays and says when."""
        life = self._running(number)
        if life is None:
            return
        self._ended(life)
        life.stated = True
        ended = ContainerState(ContainerStateTerminated(rfc3339(self.time)))
        pod = self.pods[life.uid]
        status = replace(
            pod.status, phase="Succeeded", container_statuses=(ContainerStatus("main", ended),)
        )
        self.pods[life.uid] = replace(pod, status=status)
        self._tell(WatchType.MODIFIED, self.pods[life.uid])

    def delete(self, number: int) -> None:
        """Let a pod vanish."""
        life = self._running(number)
        if life is not None:
            self._ended(life)
            self._tell(WatchType.DELETED, self.pods.pop(life.uid))

    def sweep(self, number: int) -> None:
        """Remove the objects of pods that have ended."""
        for uid in [uid for uid, pod in self.pods.items() if pod.status.phase == "Succeeded"]:
            if self.broken:
                self.lives[uid].stated = False
            self._tell(WatchType.DELETED, self.pods.pop(uid))

    def cordon(self, number: int) -> None:
        """Cordon a node, or end that."""
        name = ("n1", "n2")[number % 2]
        node = self.nodes[name]
        spec = replace(node.spec, unschedulable=not node.spec.unschedulable)
        self.nodes[name] = replace(node, spec=spec)
        self._tell(WatchType.MODIFIED, self.nodes[name])

    def repeat(self, number: int) -> None:
        """Send old events again."""
        for pod in list(self.pods.values())[: number + 1]:
            self._tell(WatchType.MODIFIED, pod)
            self._tell(WatchType.ADDED, pod)

    def lose(self, number: int) -> None:
        """Lose all events until the next list."""
        self.broken = True

    def relist(self, number: int) -> None:
        """List everything again, as after a broken watch."""
        self._relist()

    def flush(self, number: int) -> None:
        """Write what the meter has, and its heartbeat."""
        self.meter.flush()

    def kill(self, number: int) -> None:
        """Kill the meter, which forgets what is not in the journal, and start another."""
        heartbeat = self.journal.heartbeat
        self.alive = heartbeat or self.alive
        for life in self.lives.values():
            if life.until is not None and life.until > heartbeat and life.lost is None:
                life.lost = (min(heartbeat, life.until), 0)
            elif life.until is not None and life.lost is not None:
                life.lost = (min(life.lost[0], heartbeat), 0)
        self.meter = self._meter()
        self._relist()

    def set_back(self, number: int) -> None:
        """Set the meter's clock back, or right again."""
        self.behind = 0.0 if self.behind else float(number)

    def wait(self, seconds: int) -> None:
        """Let whole seconds pass."""
        self.time += seconds
        if not self.broken:
            self._settle()
