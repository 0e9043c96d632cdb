"""Events and PodScheduled conditions of pods: FailedScheduling, Scheduled, Preempted, and so on.

Each is written once: a pod that is refused for the same reason again gets no second event.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bayplan.api import PodCondition
from bayplan.cluster.protocol import Cluster, Event, PatchPodStatus
from bayplan.errors import ClusterError, PluginError
from bayplan.naming import counted, listed
from bayplan.plugin.base import Unit
from bayplan.plugin.decision import NODES_LACK, NOT_READY, Decision
from bayplan.scheduler.permits import PermitWait
from bayplan.scheduler.pre_bind import AwaitedPreparation
from bayplan.scheduler.queue import UnitQueue
from bayplan.snapshot import PodInfo

__all__ = ["Recorder"]

_NONE: Mapping[str, str] = {}
_GATES_SECONDS = 1.0
_MOST_NAMED = 5
_REMEMBERED = 10_000

_log = logging.getLogger("bayplan.plugins")
logging.getLogger("bayplan").addHandler(logging.NullHandler())


class Recorder:
    """Writes events and PodScheduled conditions."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._recorded: dict[str, _Recorded] = {}
        """What was written into each pod's condition last."""
        self._failures = _LatestTexts()
        self._gates_changed: set[str] = set()
        self._gates_recorded: dict[str, float] = {}

    def forget(self, pod_key: str) -> None:
        """Drop what was recorded for a pod that is gone or has a node."""
        self._recorded.pop(pod_key, None)

    @property
    def pending_reasons(self) -> int:
        """How many pods have a recorded reason for being pending."""
        return len(self._recorded)

    def refused(
        self,
        unit: Unit,
        decision: Decision,
        reason: str,
        nominated: Mapping[str, str] = _NONE,
        asking: int | None = None,
    ) -> None:
        """Write into every pod of a unit why it has no node, and its nominated node if any.

        :param reason: the condition's reason, such as ``NODES_LACK``.
        :param nominated: nominated nodes by pod key; that of any other pod is cleared.
        :param asking: so many pods, the first ones, may ask for nodes; None for all.
        """
        for number, pod in enumerate(unit.pods):
            own = decision.pods.get(pod.key)
            message = decision.message or (own.message if own is not None else "")
            asks = reason != NODES_LACK or asking is None or number < asking
            self._pending(pod, reason if asks else NOT_READY, message, nominated.get(pod.key, ""))

    def nominated_node(self, pod_key: str) -> str:
        """Return the nominated node that was written into a pod's status last, "" for none."""
        recorded = self._recorded.get(pod_key)
        return recorded.nominated if recorded is not None else ""

    def nominated(self, pod: PodInfo, node: str, victims: Iterable[str], ending: int) -> None:
        """Record that a node is nominated for a pod until others have ended.

        :param victims: the pods, by key, that its unit preempts.
        :param ending: how many pods have to end, those that end without it included.
        """
        preempted = listed(victims, _MOST_NAMED)
        whom = f", which preempts {preempted}," if preempted else ""
        have = "has" if ending == 1 else "have"
        waits = f" until {counted(ending, 'pod')} {have} ended" if ending else ""
        message = f"{node} is nominated for {pod.key}{whom}{waits}".rstrip(",")
        self._cluster.submit(Event(pod.key, "Normal", "Nominated", message, node))

    def nomination_ended(self, pod: PodInfo, why: str) -> None:
        """Record that a pod no longer has a nominated node."""
        before = self._recorded.pop(pod.key, None)
        message = f"{pod.key} no longer has a nominated node{': ' if why else ''}{why}"
        self._cluster.submit(Event(pod.key, "Normal", "NotNominated", message))
        reason = before.reason if before is not None else NODES_LACK
        condition = PodCondition("PodScheduled", "False", reason, message)
        self._cluster.submit(PatchPodStatus(pod.key, pod.pod.metadata.uid, condition, ""))

    def preempted(self, victim: PodInfo, unit: str, node: str) -> None:
        """Record on a victim which unit preempted it."""
        message = f"Preempted by {unit} on node {node}"
        self._cluster.submit(Event(victim.key, "Normal", "Preempted", message, node))

    def evicted(self, victim: PodInfo, reason: str) -> None:
        """Record on a pod why it was evicted though no unit waits for its node."""
        self._cluster.submit(Event(victim.key, "Normal", "Evicted", reason, ""))

    def changed_gates(self) -> list[str]:
        """Return the units whose gates may answer differently than recorded."""
        return sorted(self._gates_changed)

    def gate_changed(self, unit_key: str) -> None:
        """Mark a unit whose gates may answer differently now."""
        self._gates_changed.add(unit_key)

    def gated(self, queue: UnitQueue) -> None:
        """Write into gated pods why they are held back, once no unit is left to try.

        A member that is added or removed changes the text of all members of its gang, so each unit
        is written at most once a second.
        """
        now = self._cluster.now
        for unit_key in sorted(self._gates_changed):
            unit = queue.units.get(unit_key)
            if unit is None or not unit.gated:
                self._forget_gates(unit_key)
                continue
            if (
                len(unit.gated) > 1
                and now < self._gates_recorded.get(unit_key, -1.0) + _GATES_SECONDS
            ):
                continue
            self._gates_changed.discard(unit_key)
            self._gates_recorded[unit_key] = now
            for pod, refusal in unit.gated.values():
                if pod.spec.scheduling_gates:
                    self._pending(pod, "SchedulingGated", refusal)
                else:
                    # A process before this one may have nominated a node that is kept for nothing.
                    stale = bool(pod.pod.status.nominated_node_name)
                    self._pending(pod, NOT_READY, refusal, stale=stale)

    def next_time(self) -> float | None:
        """Return when ``gated`` may write a unit again, in seconds; None when never."""
        recorded = (self._gates_recorded.get(key) for key in self._gates_changed)
        return min((at + _GATES_SECONDS for at in recorded if at is not None), default=None)

    def forget_gone(self, queue: UnitQueue) -> None:
        """Drop what was recorded for units that left the queue."""
        for key in [*self._gates_changed, *self._gates_recorded]:
            if key not in queue.units:
                self._forget_gates(key)

    def _forget_gates(self, unit_key: str) -> None:
        self._gates_changed.discard(unit_key)
        self._gates_recorded.pop(unit_key, None)

    def bound(self, pod: PodInfo, node: str) -> None:
        """Record that a pod was bound."""
        self.forget(pod.key)
        message = f"Successfully assigned {pod.key} to {node}"
        self._cluster.submit(Event(pod.key, "Normal", "Scheduled", message, node))

    def warn(self, pod: PodInfo, reason: str, message: str) -> None:
        """Write a warning about a pod."""
        self._cluster.submit(Event(pod.key, "Warning", reason, message))

    def plugin_failed(self, pod: PodInfo, error: PluginError) -> None:
        """Record on a pod that a plugin raised but scheduling continues; once for each error."""
        if self._failures.is_new(f"{pod.uid} {error}"):
            self.warn(pod, "PluginError", str(error))
        self.log_failure(error)

    def log_failure(self, error: PluginError) -> None:
        """Log what a plugin raised, with its traceback; repetitions at level DEBUG."""
        level = logging.ERROR if self._failures.is_new(str(error)) else logging.DEBUG
        _log.log(level, "%s", error, exc_info=error.__cause__)

    def waiting_on_permit(self, pods: Iterable[PodInfo], wait: PermitWait) -> None:
        """Record which plugins hold pods at Permit, for how long, and their assumed nodes."""
        for pod in pods:
            node = wait.nodes[pod.key]
            message = f"{wait}; assumed on node {node}"
            if self._condition(pod, "WaitingOnPermit", message):
                event = Event(pod.key, "Normal", "WaitingOnPermit", message, node, passing=True)
                self._cluster.submit(event)

    def waiting_on_preparation(
        self,
        pods: Iterable[PodInfo],
        nodes: Mapping[str, str],
        awaited: Sequence[AwaitedPreparation],
    ) -> None:
        """Record what has to be ready before pods are bound, and their assumed nodes by pod key."""
        missing = "; ".join(f"{one.missing}, for at most {one.limit:.0f} s" for one in awaited)
        for pod in pods:
            node = nodes[pod.key]
            message = f"waits for {missing}; assumed on node {node}"
            if self._condition(pod, "BindingConditionsPending", message):
                reason = "BindingConditionsPending"
                event = Event(pod.key, "Normal", reason, message, node, passing=True)
                self._cluster.submit(event)

    def _pending(
        self, pod: PodInfo, reason: str, message: str, nominated: str = "", stale: bool = False
    ) -> None:
        # A node that was nominated before is cleared; what others wrote is left alone.
        node = nominated if nominated or stale or self.nominated_node(pod.key) else None
        if self._condition(pod, reason, message, node) and reason != "SchedulingGated":
            event = Event(pod.key, "Warning", "FailedScheduling", message, passing=True)
            self._cluster.submit(event)

    def _condition(
        self, pod: PodInfo, reason: str, message: str, nominated: str | None = None
    ) -> bool:
        """Write why a pod has no node; return False when it says so already."""
        text = _Recorded(reason, nominated or "", message)
        if self._recorded.get(pod.key) == text:
            return False
        self._recorded[pod.key] = text
        condition = PodCondition("PodScheduled", "False", reason, message)

        def answered(error: ClusterError | None) -> None:
            if error is not None and self._recorded.get(pod.key) == text:
                # The write failed, so the next one must not be skipped.
                del self._recorded[pod.key]

        write = PatchPodStatus(pod.key, pod.pod.metadata.uid, condition, nominated)
        self._cluster.submit(write, answered)
        return True


class _Recorded(NamedTuple):
    """The reason and the message of a pod's condition, with its nominated node."""

    reason: str
    nominated: str
    message: str


class _LatestTexts:
    """Remembers the latest texts."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, None] = OrderedDict()

    def is_new(self, text: str) -> bool:
        """Tell whether a text was not seen before, and remember it."""
        new = text not in self._texts
        self._texts[text] = None
        self._texts.move_to_end(text)
        if len(self._texts) > _REMEMBERED:
            self._texts.popitem(last=False)
        return new
