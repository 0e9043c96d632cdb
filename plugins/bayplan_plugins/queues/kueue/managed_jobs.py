"""Which jobs and pods wait for queues: those that name one, and others where that is wanted.

Kueue's manageJobsWithoutQueueName and managedJobsNamespaceSelector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bayplan import PodInfo
from bayplan.api import ApiObject, Namespace
from bayplan.api.meta import ObjectMeta
from bayplan.api.objects import kind_of
from bayplan.dialects.queued_jobs import QUEUE_LABEL, is_elsewhere, is_part
from bayplan.snapshot import Snapshot
from bayplan_plugins.queues.kueue.settings import Managed

__all__ = ["ManagedJobs"]

_OF_THE_SYSTEM = frozenset(("kube-system", "kueue-system", "bayplan-system"))
"""Namespaces without which nothing runs."""
_POD = "pod"


class ManagedJobs:
    """Follows the labels of namespaces, and tells which jobs and pods wait there."""

    def __init__(self, snapshot: Snapshot, settings: Managed) -> None:
        self._snapshot = snapshot
        self._settings = settings
        self._listeners: list[Callable[[str], None]] = []
        snapshot.on_object(Namespace, self._namespace_changed)

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Call a listener with the name of each namespace whose labels changed."""
        self._listeners.append(listener)

    def _namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        one = new if new is not None else old
        selects = self._settings.namespaces is not None
        if not selects or one is None or (old and new and _labels(old) == _labels(new)):
            return
        for listener in self._listeners:
            listener(one.metadata.name)

    @property
    def without_queue(self) -> bool:
        """Whether any jobs are held that name no queue."""
        return self._settings.without_queue

    def selects(self, namespace: str) -> bool:
        """Tell whether jobs of a namespace wait for the queues that they name."""
        selector = self._settings.namespaces
        if selector is None:
            return True
        found = self._snapshot.objects(Namespace).get(namespace)
        labels = _labels(found) if found is not None else {}
        return selector.matches({"kubernetes.io/metadata.name": namespace, **labels})

    def waits(self, obj: ApiObject) -> bool:
        """Tell whether a job waits for a queue itself, and no job that it is a part of does."""
        metadata = obj.metadata
        if is_part(metadata) or not self.selects(metadata.namespace) or is_elsewhere(obj):
            return False
        return bool(metadata.labels.get(QUEUE_LABEL)) or self._holds_job(obj)

    def _holds_job(self, obj: ApiObject) -> bool:
        """Tell whether a job that names no queue is held until it does."""
        frameworks, kind = self._settings.frameworks, kind_of(obj)
        named = frameworks is None or f"{kind.group}/{kind.name.lower()}" in frameworks
        return named and self._holds(obj.metadata.namespace)

    def holds_pods(self, namespace: str) -> bool:
        """Tell whether pods of a namespace are held that are no job's and name no queue."""
        frameworks = self._settings.frameworks
        return frameworks is not None and _POD in frameworks and self._holds(namespace)

    def holds_pod(self, pod: PodInfo) -> bool:
        """Tell whether a pod that names no queue, and is no job's, is held until it does.

        What a DaemonSet makes belongs to its node; what has a node runs already.
        """
        if not self.without_queue or not self.holds_pods(pod.namespace):
            return False
        return not (pod.spec.node_name or _is_of_node(pod.pod.metadata))

    def copied(self, *labels: Mapping[str, str]) -> dict[str, str]:
        """Return the labels that a new Workload gets of what it is of.

        :param labels: those of its job, or of each of its pods.
        :raises ValueError: for pods of which two have different values of one of them.
        """
        found: dict[str, str] = {}
        for name in sorted(self._settings.copied_labels):
            values = {one[name] for one in labels if name in one}
            if len(values) > 1:
                raise ValueError(f"its pods have different values of the label {name}")
            if values:
                found[name] = values.pop()
        return found

    def _holds(self, namespace: str) -> bool:
        settings = self._settings
        if not settings.without_queue:
            return False
        if settings.namespaces is None:
            return namespace not in _OF_THE_SYSTEM
        return self.selects(namespace)


def _labels(namespace: Namespace) -> dict[str, str]:
    return dict(namespace.metadata.labels)


def _is_of_node(metadata: ObjectMeta) -> bool:
    """Tell whether a pod belongs to its node, or to a job that waits in its place."""
    owner = next((one for one in metadata.owner_references if one.controller), None)
    return owner is not None and (owner.kind in ("DaemonSet", "Node") or is_part(metadata))
