"""The gate of Volcano's queues: pods that opted in lose it once their queue takes them.

Until then no autoscaler adds nodes for them. As volcano-sh/volcano does with its feature
SchedulingGatesQueueAdmission, whose webhook adds the gate.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from bayplan import Handle, PodInfo
from bayplan.api import Pod
from bayplan.cluster.protocol import Done, PatchFields
from bayplan.dialects import volcano
from bayplan.errors import ClusterError, Conflict, NotFound
from bayplan.queues.tree import AmountRows
from bayplan_plugins.queues.volcano.session import Session
from bayplan_plugins.queues.volcano.tiers import Tiers

__all__ = ["QueueGates"]

_log = logging.getLogger("bayplan.queues.volcano")
_PAUSE = 60.0
"""Seconds after which a gate that may not be removed is tried again."""


class QueueGates:
    """Opens the gates of pods whose queue has room for them.

    A pod whose gate is open, and that has no node yet, keeps its part of the queue from the others
    that wait at their gates.

    :param closed: why a queue takes no pods at all, by pod and queue; None where it does.
    """

    def __init__(
        self,
        handle: Handle,
        session: Session,
        tiers: Tiers,
        closed: Callable[[PodInfo, str], str | None],
    ) -> None:
        self._handle = handle
        self._session = session
        self._tiers = tiers
        self._closed = closed
        self._waiting: dict[str, PodInfo] = {}
        self._holding: dict[str, PodInfo] = {}
        """Pods without the gate; those that have nodes, too."""
        self._opened: dict[str, str] = {}
        """The UIDs of pods, by key, whose gates are being removed."""
        self._refused: dict[str, float] = {}
        handle.snapshot.on_living(self._lives)

    def open(self) -> None:
        """Open the gates of what the queues take now, in the order of the jobs."""
        if not self._waiting:
            return
        placed = self._handle.snapshot.placed
        holding = [pod for pod in self._holding.values() if pod.key not in placed]
        owed: dict[int, AmountRows] = {}
        for pod in sorted((*holding, *self._waiting.values()), key=self._key):
            row = self._session.ledger.row_of(pod)
            if row is None:
                continue
            takes = self._session.wide(self._session.ledger.amounts_of(pod))
            asked = takes + self._session.wide(owed.get(row, 0.0 * takes))
            if self._waits(pod):
                if self._refusal(pod, row, asked) is not None:
                    continue
                self._remove(pod)
            owed[row] = asked

    def retry(self) -> float | None:
        """Try the gates again that might not be removed; return when to ask again, in seconds."""
        now = self._handle.now
        if any(at <= now for at in self._refused.values()):
            self.open()
        return min((at for at in self._refused.values() if at > now), default=None)

    def _refusal(self, pod: PodInfo, row: int, asked: AmountRows) -> object:
        closed = self._closed(pod, self._session.tree.name(row))
        return closed or self._tiers.refusal(row, asked)

    def _key(self, pod: PodInfo) -> tuple[object, ...]:
        """Order by who holds a part of the queue already, then as jobs and their pods."""
        jobs = self._session.jobs
        job = jobs.of(pod)
        order = self._tiers.job_order(job, [pod])
        by_age = jobs.created(job.key), job.key
        return self._waits(pod), order, by_age, self._tiers.task_order(pod), pod.rank or 0, pod.key

    def _waits(self, pod: PodInfo) -> bool:
        return volcano.waits_for_queue(pod.pod) and self._opened.get(pod.key) != pod.uid

    def _remove(self, pod: PodInfo) -> None:
        if self._handle.now < self._refused.get(pod.key, 0.0):
            return
        self._refused.pop(pod.key, None)
        self._opened[pod.key] = pod.uid
        gone: dict[str, object] = {"/spec/schedulingGates": []}
        write = PatchFields(Pod, pod.key, pod.uid, gone)
        self._handle.submit(write, self._answered(pod))

    def _answered(self, pod: PodInfo) -> Done:
        def answered(error: ClusterError | None) -> None:
            if error is None or self._opened.get(pod.key) != pod.uid:
                return
            del self._opened[pod.key]
            if not isinstance(error, Conflict | NotFound):
                _log.warning("the scheduling gate of %s stays: %s", pod.key, error)
                self._refused[pod.key] = self._handle.now + _PAUSE

        return answered

    def _lives(self, pod: PodInfo, added: bool) -> None:
        if not volcano.opted_into_queue_gate(pod.pod):
            return
        waits = added and volcano.waits_for_queue(pod.pod)
        _follow(self._waiting, pod, waits)
        _follow(self._holding, pod, added and volcano.may_hold_queue(pod.pod))
        if not waits:
            self._opened.pop(pod.key, None)
            self._refused.pop(pod.key, None)


def _follow(pods: dict[str, PodInfo], pod: PodInfo, is_one: bool) -> None:
    if is_one:
        pods[pod.key] = pod
    else:
        pods.pop(pod.key, None)
