"""What the scheduler says about pods: events and conditions, each thing once."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from bayplan.api import PodCondition
from bayplan.cluster.protocol import Cluster, Event, PatchPodStatus
from bayplan.errors import ClusterError, PluginError
from bayplan.plugin.base import Unit
from bayplan.plugin.decision import Decision
from bayplan.scheduler.permits import PermitWait
from bayplan.scheduler.queue import UnitQueue
from bayplan.snapshot import PodInfo

__all__ = ["Announcer"]

NOBODY: Mapping[str, str] = {}
_GATES_SECONDS = 1.0
_REMEMBERED = 10_000

_log = logging.getLogger("bayplan.plugins")
logging.getLogger("bayplan").addHandler(logging.NullHandler())


class Announcer:
    """Writes events and PodScheduled conditions; the same refusal of a pod is told once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._told: dict[str, str] = {}
        self._failures = _Seen()
        self._gates_changed: set[str] = set()
        self._gates_told: dict[str, float] = {}

    def forget(self, pod_key: str) -> None:
        """Forget what was told of a pod, because it is gone or has a node."""
        self._told.pop(pod_key, None)

    def refused(
        self, unit: Unit, decision: Decision, reason: str, nominated: Mapping[str, str] = NOBODY
    ) -> None:
        """Tell every pod of a unit why it has no node, and which one is held for it."""
        for pod in unit.pods:
            own = decision.pods.get(pod.key)
            message = decision.message or (own.message if own is not None else "")
            self._pending(pod, reason, message, nominated.get(pod.key))

    def nominated(self, pod: PodInfo, node: str, victims: int) -> None:
        """Tell that a node is held for a pod until others have ended there."""
        ending = f"{victims} pod{'' if victims == 1 else 's'}"
        have = "has" if victims == 1 else "have"
        message = f"{node} is held for {pod.key} until {ending} of lower priority {have} ended"
        self._cluster.submit(Event(pod.key, "Normal", "Nominated", message, node))

    def not_nominated(self, pod: PodInfo, why: str) -> None:
        """Tell that no node is held for a pod any more."""
        self._told.pop(pod.key, None)
        message = f"no node is held for {pod.key} any more{': ' if why else ''}{why}"
        self._cluster.submit(Event(pod.key, "Normal", "NotNominated", message))
        condition = PodCondition("PodScheduled", "False", "Unschedulable", message)
        self._cluster.submit(PatchPodStatus(pod.key, pod.pod.metadata.uid, condition, ""))

    def preempted(self, victim: PodInfo, unit: str, node: str) -> None:
        """Tell a victim who took its place."""
        message = f"Preempted by {unit} on node {node}"
        self._cluster.submit(Event(victim.key, "Normal", "Preempted", message, node))

    def changed_gates(self) -> list[str]:
        """Return the units whose gates may have another answer than was told."""
        return sorted(self._gates_changed)

    def gate_changed(self, unit_key: str) -> None:
        """Note that a unit's gates may have another answer now."""
        self._gates_changed.add(unit_key)

    def gated(self, queue: UnitQueue) -> None:
        """Tell held-back pods why, once nothing is left to try that could change the answer.

        All members of a gang are told each time that one comes or goes, so a unit is told at most
        once a second.
        """
        now = self._cluster.now
        for unit_key in sorted(self._gates_changed):
            unit = queue.units.get(unit_key)
            if unit is None or not unit.gated:
                self._forget_gates(unit_key)
                continue
            if len(unit.gated) > 1 and now < self._gates_told.get(unit_key, -1.0) + _GATES_SECONDS:
                continue
            self._gates_changed.discard(unit_key)
            self._gates_told[unit_key] = now
            for pod, refusal in unit.gated.values():
                gates = bool(pod.spec.scheduling_gates)
                self._pending(pod, "SchedulingGated" if gates else "Unschedulable", refusal)

    def next_time(self) -> float | None:
        """Return when ``gated`` may tell what it told too recently; None when never."""
        told = (self._gates_told.get(key) for key in self._gates_changed)
        return min((at + _GATES_SECONDS for at in told if at is not None), default=None)

    def forget_gone(self, queue: UnitQueue) -> None:
        """Forget units that are not in the queue any more."""
        for key in [*self._gates_changed, *self._gates_told]:
            if key not in queue.units:
                self._forget_gates(key)

    def _forget_gates(self, unit_key: str) -> None:
        self._gates_changed.discard(unit_key)
        self._gates_told.pop(unit_key, None)

    def bound(self, pod: PodInfo, node: str) -> None:
        """Tell that a pod was bound."""
        self.forget(pod.key)
        message = f"Successfully assigned {pod.key} to {node}"
        self._cluster.submit(Event(pod.key, "Normal", "Scheduled", message, node))

    def warn(self, pod: PodInfo, reason: str, message: str) -> None:
        """Write a warning about a pod."""
        self._cluster.submit(Event(pod.key, "Warning", reason, message))

    def plugin_failed(self, pod: PodInfo, error: PluginError) -> None:
        """Tell of a plugin that raised where things go on; once of a pod for each failure."""
        if self._failures.is_new(f"{pod.uid} {error}"):
            self.warn(pod, "PluginError", str(error))
        self.log_failure(error)

    def log_failure(self, error: PluginError) -> None:
        """Log what a plugin raised with its traceback: the first time an error, then debug."""
        level = logging.ERROR if self._failures.is_new(str(error)) else logging.DEBUG
        _log.log(level, "%s", error, exc_info=error.__cause__)

    def waits(self, pods: Iterable[PodInfo], wait: PermitWait) -> None:
        """Tell pods which plugins hold them at Permit, where they are assumed, for how long."""
        for pod in pods:
            node = wait.nodes[pod.key]
            message = f"{wait}; assumed on node {node}"
            if self._condition(pod, "WaitingOnPermit", message):
                event = Event(pod.key, "Normal", "WaitingOnPermit", message, node)
                self._cluster.submit(event)

    def _pending(
        self, pod: PodInfo, reason: str, message: str, nominated: str | None = None
    ) -> None:
        if self._condition(pod, reason, message, nominated) and reason != "SchedulingGated":
            self.warn(pod, "FailedScheduling", message)

    def _condition(
        self, pod: PodInfo, reason: str, message: str, nominated: str | None = None
    ) -> bool:
        """Write why a pod has no node; False where it was told the same before."""
        told = f"{nominated or ''} {message}"
        if self._told.get(pod.key) == told:
            return False
        self._told[pod.key] = told
        condition = PodCondition("PodScheduled", "False", reason, message)

        def answered(error: ClusterError | None) -> None:
            if error is not None and self._told.get(pod.key) == told:
                # It does not say so; whoever tells it next has to tell it again.
                del self._told[pod.key]

        write = PatchPodStatus(pod.key, pod.pod.metadata.uid, condition, nominated)
        self._cluster.submit(write, answered)
        return True


class _Seen:
    """Remembers the latest texts."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, None] = OrderedDict()

    def is_new(self, text: str) -> bool:
        """Whether a text comes for the first time."""
        new = text not in self._texts
        self._texts[text] = None
        self._texts.move_to_end(text)
        if len(self._texts) > _REMEMBERED:
            self._texts.popitem(last=False)
        return new
