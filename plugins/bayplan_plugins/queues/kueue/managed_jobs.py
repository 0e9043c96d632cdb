"""Which jobs and pods wait for queues: those that name one, and others where that is wanted.

Kueue's manageJobsWithoutQueueName and managedJobsNamespaceSelector, and its LocalQueue ``default``.
"""

from __future__ import annotations

from collections.abc import Mapping

from bayplan import PodInfo
from bayplan.api import ApiObject, LocalQueue, Namespace
from bayplan.api.meta import ObjectMeta
from bayplan.api.objects import kind_of
from bayplan.api.times import seconds_of
from bayplan.dialects.kueue import DEFAULT_QUEUE
from bayplan.dialects.queued_jobs import QUEUE_LABEL, is_elsewhere, is_part
from bayplan.snapshot import Snapshot
from bayplan_plugins.queues.kueue.settings import Managed

__all__ = ["ManagedJobs", "own_queue"]

_OF_THE_SYSTEM = frozenset(("kube-system", "kueue-system", "bayplan-system"))
"""Namespaces without which nothing runs."""
_POD = "pod"


class ManagedJobs:
    """Follows namespaces and their LocalQueues, and tells which jobs and pods wait there.

    What names no queue waits where jobs without a queue are held. It also does where its namespace
    has a LocalQueue ``default``, if it was created since: it is about to get that queue, as Kueue's
    webhook gives it at creation.
    """

    def __init__(self, snapshot: Snapshot, settings: Managed) -> None:
        self._snapshot = snapshot
        self._settings = settings
        self._changed: set[str] = set()
        snapshot.on_object(Namespace, self._namespace_changed)
        snapshot.on_object(LocalQueue, self._local_queue_changed)

    def take_changed(self) -> set[str]:
        """Return the namespaces in which others may wait than when this was last asked."""
        found, self._changed = self._changed, set()
        return found

    def _namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        one = new if new is not None else old
        selects = self._settings.namespaces is not None
        if not selects or one is None or (old and new and _labels(old) == _labels(new)):
            return
        self._changed.add(one.metadata.name)

    def _local_queue_changed(self, old: LocalQueue | None, new: LocalQueue | None) -> None:
        one = new if new is not None else old
        if one is not None and (old is None or new is None):
            if one.metadata.name == DEFAULT_QUEUE:
                self._changed.add(one.metadata.namespace)

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
        kind = kind_of(obj)
        return self._is_integration(kind.group, kind.name) and self._holds(obj.metadata)

    def _is_integration(self, group: str, name: str) -> bool:
        """Tell whether jobs of a kind are held without a queue."""
        frameworks = self._settings.frameworks
        return frameworks is None or f"{group}/{name.lower()}" in frameworks

    def holds_pods_of(self, metadata: ObjectMeta) -> bool:
        """Tell whether a pod, or those of an object, are held that are no job's and name no queue.

        :param metadata: of the pod or the object.
        """
        frameworks = self._settings.frameworks
        return frameworks is not None and _POD in frameworks and self._holds(metadata)

    def holds_pod(self, pod: PodInfo) -> bool:
        """Tell whether a pod that names no queue, and is no job's, is held until it does.

        What a DaemonSet makes belongs to its node; what has a node runs already. Pods of a kind of
        jobs that is an integration itself go with their job.
        """
        if not self.holds_pods_of(pod.pod.metadata) or pod.spec.node_name:
            return False
        owner = next((one for one in pod.pod.metadata.owner_references if one.controller), None)
        if owner is None:
            return True
        if owner.kind in ("DaemonSet", "Node"):
            return False
        group = owner.api_version.rpartition("/")[0]
        return not (is_part(pod.pod.metadata) and self._is_integration(group, owner.kind))

    def default_queue(self, namespace: str) -> str:
        """Return the name of the LocalQueue of what is held in a namespace, "" if it has none."""
        return DEFAULT_QUEUE if self._local_queue(namespace) is not None else ""

    def queue_of_pod(self, pod: PodInfo) -> str:
        """Return the name of the LocalQueue of a pod that is no job's, and waits; "" for none.

        One that names none is about to get the label of the default one.
        """
        return own_queue(pod) or self.default_queue(pod.namespace)

    def _local_queue(self, namespace: str) -> LocalQueue | None:
        queues = self._snapshot.objects(LocalQueue)
        found = queues.get(f"{namespace}/{DEFAULT_QUEUE}") if queues else None
        return found if found is not None and not found.metadata.deletion_timestamp else None

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

    def _holds(self, metadata: ObjectMeta) -> bool:
        """Tell whether something that names no queue waits until it does."""
        settings, namespace = self._settings, metadata.namespace
        if not (settings.without_queue or self._gets_default(metadata)):
            return False
        if settings.namespaces is None:
            return namespace not in _OF_THE_SYSTEM
        return self.selects(namespace)

    def _gets_default(self, metadata: ObjectMeta) -> bool:
        """Tell whether something was created where there was a LocalQueue ``default`` already."""
        queue = self._local_queue(metadata.namespace)
        if queue is None:
            return False
        since = seconds_of(queue.metadata.creation_timestamp)
        return seconds_of(metadata.creation_timestamp) >= since


def _labels(namespace: Namespace) -> dict[str, str]:
    return dict(namespace.metadata.labels)


def own_queue(pod: PodInfo) -> str:
    """Return the name of the LocalQueue of a pod that is no job's; "" for none.

    What owns it says so where its kind cannot be suspended, as a LeaderWorkerSet does.
    """
    own, of_owner = pod.labels.get(QUEUE_LABEL, ""), pod.owner_settings.get(QUEUE_LABEL, "")
    return (of_owner or own) if pod.part is not None else (own or of_owner)
