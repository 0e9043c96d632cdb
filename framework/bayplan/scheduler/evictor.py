"""Making room: hold nodes for a unit, evict who stands there, and give up when that fails.

Pods under a disruption budget are asked first, one by one; when the cluster refuses one of them,
nobody else is evicted, the held places go back, and that pod is spared for a while.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from bayplan.cluster.protocol import Cluster, Done, Evict
from bayplan.errors import ClusterError, NotFound
from bayplan.plugin.base import Preemption, Unit
from bayplan.scheduler.nominator import Hold, Holds
from bayplan.scheduler.recorder import Announcer
from bayplan.snapshot import PodInfo, Snapshot

__all__ = ["Eviction", "RoomMaker"]

HOLD_SECONDS = 600.0
"""How long places are held for a unit that states no time of its own."""
SPARED_SECONDS = 60.0
"""How long a pod is not chosen again after its eviction was refused."""
_AFTER_GRACE = 60.0
_REMEMBERED = 100_000


@dataclass(frozen=True)
class Eviction:
    """A pod (by key) that was evicted, when (seconds), and the unit that it made room for."""

    pod: str
    at: float
    unit: str


class RoomMaker:
    """Carries out preemptions, and holds places for units.

    :param take_back: takes a place back that a pod was given and is not bound to yet; False when
        the pod has to be evicted.
    :param freed: told of a unit, by key, whose held places went back.
    :param refused: told of a unit, by key, of a pod that it wanted to go, and why it stays.
    """

    def __init__(
        self,
        cluster: Cluster,
        snapshot: Snapshot,
        announcer: Announcer,
        take_back: Callable[[PodInfo], bool],
        freed: Callable[[str], None],
        refused: Callable[[str, PodInfo, str], None],
    ) -> None:
        self._cluster = cluster
        self._snapshot = snapshot
        self._announcer = announcer
        self._take_back = take_back
        self._freed = freed
        self._refused = refused
        self._spared: dict[str, float] = {}
        self.holds = Holds(snapshot)
        self.evicted: deque[Eviction] = deque(maxlen=_REMEMBERED)

    def is_spared(self, pod_key: str) -> bool:
        """Tell whether a pod's eviction was refused a short while ago."""
        return self._spared.get(pod_key, -1.0) > self._cluster.now

    def next_times(self) -> list[float]:
        """Return when ``tick`` has something to do."""
        return [*(hold.until for hold in self.holds.all()), *self._spared.values()]

    def tick(self) -> bool:
        """End what has lasted long enough; True when somebody may be evicted again."""
        now = self._cluster.now
        for hold in self.holds.all():
            if hold.until <= now:
                self.give_up(hold)
        over = [key for key, until in self._spared.items() if until <= now]
        for key in over:
            del self._spared[key]
        return bool(over)

    # Holding -----------------------------------------------------------------------------

    def hold_part(self, unit: Unit, nodes: Mapping[str, str]) -> None:
        """Let the members of a gang that is not strict keep the places that they found."""
        before = self.holds.get(unit.key)
        if before is not None and before.victims:
            return
        until = before.until if before is not None else self._cluster.now + _patience(unit)
        pods = [pod for pod in unit.pods if pod.key in nodes]
        self.holds.add(Hold(unit.key, pods, nodes, until, set()))

    def give_up(self, hold: Hold, why: str = "") -> None:
        """End a hold that did not lead to a placement."""
        self.holds.drop(hold.unit)
        for pod in hold.pods:
            self._announcer.not_nominated(pod, why)
        self._freed(hold.unit)

    def release(self, pod_key: str) -> None:
        """A pod with a held place changed or is gone: its unit's places go back."""
        unit = self.holds.unit_of(pod_key)
        if unit is not None:
            self.holds.drop(unit)

    # Evicting ----------------------------------------------------------------------------

    def make_room(self, unit: Unit, preemption: Preemption) -> None:
        """Hold the nodes for the unit and evict their victims, those with a budget first."""
        victims: list[PodInfo] = []
        waited_for: set[str] = set()
        for victim in preemption.victims:
            holder = self.holds.unit_of(victim.key)
            hold = self.holds.get(holder) if holder is not None else None
            if victim.terminating:
                waited_for.add(victim.key)
            elif hold is not None:
                self.give_up(hold, f"its places were taken by {unit.key}, of higher priority")
            elif holder is None and not self._take_back(victim):
                victims.append(victim)
                waited_for.add(victim.key)
        pods = [pod for pod in unit.pods if pod.key in preemption.nodes]
        grace = max((v.spec.termination_grace_period_seconds for v in victims), default=0)
        until = self._cluster.now + max(_patience(unit), grace + _AFTER_GRACE)
        nodes, domain = preemption.nodes, preemption.domain
        made = Hold(unit.key, pods, nodes, until, waited_for, domain)
        self.holds.add(made)
        for pod in pods:
            self._announcer.nominated(pod, nodes[pod.key], len(waited_for))
        guarded = [victim for victim in victims if victim.key in preemption.guarded]
        others = [victim for victim in victims if victim.key not in preemption.guarded]
        self._evict_all(guarded, others, made)

    def _evict_all(self, guarded: Sequence[PodInfo], others: Sequence[PodInfo], hold: Hold) -> None:
        if not guarded:
            for victim in others:
                self._evict(victim, hold, partial(self._answered, victim, hold))
            return
        first, *rest = guarded

        def answered(error: ClusterError | None) -> None:
            self._answered(first, hold, error)
            if error is None and self.holds.get(hold.unit) is hold:
                self._evict_all(rest, others, hold)

        self._evict(first, hold, answered)

    def _evict(self, victim: PodInfo, hold: Hold, done: Done) -> None:
        message = f"preempted to make room for {hold.unit}"
        self._cluster.submit(Evict(victim.key, victim.pod.metadata.uid, message), done)

    def _answered(self, victim: PodInfo, hold: Hold, error: ClusterError | None) -> None:
        """The cluster has answered an eviction."""
        now = self._cluster.now
        if error is None or isinstance(error, NotFound):
            self.evicted.append(Eviction(victim.key, now, hold.unit))
            placed = self._snapshot.placed.get(victim.key)
            self._announcer.preempted(victim, hold.unit, placed[1] if placed else "")
            return
        self._announcer.warn(victim, "EvictionRefused", str(error))
        self._spared[victim.key] = now + SPARED_SECONDS
        if self.holds.get(hold.unit) is hold:
            self.give_up(hold, f"the eviction of {victim.key} was refused: {error}")
            self._refused(hold.unit, victim, str(error))


def _patience(unit: Unit) -> float:
    """Return for how many seconds places are held for a unit."""
    return unit.gang.wait if unit.gang is not None and unit.gang.wait else HOLD_SECONDS
