"""Pods that cannot end because their node is silent, and that may be deleted by force."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from bayplan import Handle, PodInfo
from bayplan.api import Pod
from bayplan.api.node_state import is_silent
from bayplan.api.times import seconds_of
from bayplan.cluster.protocol import DeleteObject, Event, PatchFields
from bayplan.dialects.kueue import SAFE_TO_DELETE
from bayplan.errors import ClusterError

__all__ = ["StuckPods"]

_PATIENCE = 60.0
"""Seconds beyond its grace period after which a pod is deleted by force, as Kueue has it."""
_AGAIN = 60.0
"""Seconds after which a write is tried again that changed nothing."""
_REASON = "ForcefullyDeleted"
_log = logging.getLogger("bayplan.plugins")


class StuckPods:
    """Deletes by force the pods whose authors say that this is safe, once their nodes are silent.

    A pod that finalizers still keep has failed: so says its status, for controllers that wait for
    it, such as Jobs with ``podReplacementPolicy: Failed``.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._tried: dict[str, float] = {}
        """Until when each pod, by uid, waits for what was written."""
        self._warned = False

    def let_go(self, lost: Mapping[str, float]) -> float | None:
        """Delete what is due; return when to look again, in seconds since 1970.

        :param lost: the nodes on which nothing runs any more, or nobody knows, each with the time
            from which on it counts as lost.
        """
        now = self._handle.unix_time
        self._tried = {uid: until for uid, until in self._tried.items() if until > now}
        again = math.inf
        for name in sorted(lost):
            for pod in self._stuck_on(name):
                at = seconds_of(pod.pod.metadata.deletion_timestamp) + _PATIENCE
                at = max(at, lost[name], self._tried.get(pod.uid, 0.0))
                if at <= now:
                    at = self._tried[pod.uid] = now + _AGAIN
                    self._delete(pod, name)
                again = min(again, at)
        return again if again < math.inf else None

    def _stuck_on(self, name: str) -> list[PodInfo]:
        table = self._handle.snapshot.nodes
        row = table.row_of.get(name)
        if row is None or not is_silent(table.nodes[row]):
            return []
        return [pod for pod in self._handle.snapshot.pods_on(name) if self._may_go(pod)]

    def _may_go(self, pod: PodInfo) -> bool:
        meta = pod.pod.metadata
        safe = meta.annotations.get(SAFE_TO_DELETE) == "true"
        return safe and meta.deletion_timestamp is not None and self._handle.schedules(pod)

    def _delete(self, pod: PodInfo, node: str) -> None:
        """Delete a pod, or say that it failed if only finalizers keep it."""
        if pod.pod.metadata.deletion_grace_period_seconds != 0:
            why = f"node {node} is silent, and {SAFE_TO_DELETE} allows it"
            event = Event(pod.key, "Warning", _REASON, f"recovery: {why}", node)
            self._handle.submit(
                DeleteObject(Pod, pod.key, pod.uid, by_force=True),
                lambda error: self._deleted(event, error),
            )
        else:
            fields = {"/status/phase": "Failed", "/status/reason": _REASON}
            self._handle.submit(PatchFields(Pod, pod.key, pod.uid, fields, "status"))

    def _deleted(self, event: Event, error: ClusterError | None) -> None:
        if error is None:
            self._handle.submit(event)
        elif not self._warned:
            self._warned = True
            _log.warning("Recovery cannot delete pod %s by force: %s", event.pod, error)
