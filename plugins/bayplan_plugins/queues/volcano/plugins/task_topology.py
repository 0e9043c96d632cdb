"""Volcano's plugin task-topology, as far as it orders the pods of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayplan import PodInfo
from bayplan_plugins.queues.volcano.plugins.base import VolcanoPlugin
from bayplan_plugins.queues.volcano.session import Session
from bayplan_plugins.queues.volcano.task_buckets import JobBuckets

__all__ = ["TaskOrder"]


class TaskOrder(VolcanoPlugin):
    """The pods of a job come bucket by bucket, the largest first, and in one as stated."""

    def __init__(self, session: Session, arguments: Mapping[str, Any], hierarchical: bool) -> None:
        super().__init__(session, arguments, hierarchical)
        self._buckets = JobBuckets(session.handle)

    def task_order(self, pod: PodInfo) -> tuple[float, ...]:
        """Order by bucket, and within one by the stated order of tasks."""
        found = self._buckets.of(pod)
        return () if found is None else found.order(pod)

    def gathers_tasks(self, pod: PodInfo) -> bool:
        """Tell whether the pod's job states which of its tasks belong together."""
        found = self._buckets.of(pod)
        return found is not None and bool(found.of)
