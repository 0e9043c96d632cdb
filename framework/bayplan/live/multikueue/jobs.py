"""What a job, or pods that are none's, become in another cluster, and what comes back."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from bayplan.api import KINDS, ApiObject, Kind, Pod
from bayplan.api.kueue import KueueWorkload
from bayplan.dialects.kueue import ADMISSION_GATE, GROUP_MARK, MULTI_CLUSTER_CONTROLLER
from bayplan.dialects.queued_job_checks import QUEUE_LABEL
from bayplan.kinds import KINDS_OF_WORKLOADS, WorkloadKind

__all__ = [
    "ORIGIN",
    "ORIGIN_UID",
    "Item",
    "JobReference",
    "belongs_to",
    "copy_of",
    "has_ended",
    "is_managed",
    "is_suspended",
    "pod_copy_of",
    "status_of_copy",
    "status_without_copy",
]

ORIGIN = "kueue.x-k8s.io/multikueue-origin"
"""On copies: which manager they are of."""
ORIGIN_UID = "kueue.x-k8s.io/multikueue-origin-uid"
"""On copies: the uid of the job that they are of."""
_OF_THE_CONTROLLER = ("controller-uid", "job-name")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_OF_THE_CLUSTER = ("nodeName", "priority", "preemptionPolicy", "ephemeralContainers")
"""What a pod has from its own API server; the other one has its own priority classes."""
_POD = KINDS["", "Pod"]

Content = Mapping[str, Any]


class Item(msgspec.Struct, frozen=True):
    """One object that is sent, by its name and uid here: a job, or a pod."""

    kind: Kind
    key: str
    uid: str

    def __str__(self) -> str:
        """Return it as commands take it."""
        return f"{self.kind.name.lower()}/{self.key}"


class JobReference(msgspec.Struct, frozen=True):
    """What a Workload is of: a job, or pods that are no job's, which go together.

    :param row: how jobs of its kind are suspended; None for pods.
    :param queue: the LocalQueue.
    """

    items: tuple[Item, ...]
    row: WorkloadKind | None
    queue: str = ""

    def __str__(self) -> str:
        """Return the first of it as commands take it."""
        return str(self.items[0])

    @property
    def kind(self) -> Kind:
        """The kind of all that is sent."""
        return self.items[0].kind

    @property
    def uid(self) -> str:
        """The uid of the first of it, by which it is known."""
        return self.items[0].uid

    @classmethod
    def of(cls, workload: KueueWorkload) -> JobReference | None:
        """Return what a Workload is of; None for what can run in no other cluster."""
        namespace, queue = workload.metadata.namespace, workload.spec.queue_name
        pods = []
        for owner in workload.metadata.owner_references:
            where = owner.api_version.rpartition("/")[0], owner.kind
            kind, row = KINDS.get(where), KINDS_OF_WORKLOADS.get(where)
            if kind is None:
                return None
            item = Item(kind, f"{namespace}/{owner.name}", owner.uid)
            if owner.controller and row is not None and row.managed_by:
                return cls((item,), row, queue)
            pods.append(item)
        alone = [one.controller for one in workload.metadata.owner_references] == [True]
        is_group = GROUP_MARK in workload.metadata.annotations.items()
        if not pods or not (alone or is_group) or any(one.kind is not _POD for one in pods):
            return None
        return cls(tuple(sorted(pods, key=lambda one: one.key)), None, queue)

    # What stands in the objects ----------------------------------------------------------

    def is_managed(self, contents: Iterable[Content]) -> bool:
        """Tell whether its pods are made in another cluster; gated pods stand for those there."""
        row = self.row
        return row is None or all(is_managed(row, one) for one in contents)

    def waits(self, contents: Iterable[Content]) -> bool:
        """Tell whether it has nothing yet of an admission to this cluster."""
        if self.row is None:
            return not any(one["spec"].get("nodeName") for one in contents)
        return all(is_suspended(self.row, one) for one in contents)

    def waits_there(self, copies: Iterable[Content]) -> bool:
        """Tell whether it waits for its queue in the other cluster."""
        if self.row is None:
            return any(_is_gated(one) for one in copies)
        return all(is_suspended(self.row, one) for one in copies)

    def copies_of(self, contents: Iterable[Content], origin: str) -> list[dict[str, Any]]:
        """Return what is created in the other cluster.

        :param origin: the name of the manager.
        """
        if self.row is None:
            return [pod_copy_of(one, self.queue, origin) for one in contents]
        return [copy_of(self.row, one, origin) for one in contents]


def is_managed(row: WorkloadKind, content: Content) -> bool:
    """Tell whether a job says that its pods are made in another cluster."""
    return bool(_value(content, row.managed_by) == MULTI_CLUSTER_CONTROLLER)


def is_suspended(row: WorkloadKind, content: Content) -> bool:
    """Tell whether a job waits for its queue."""
    return _value(content, row.suspend) is True


def has_ended(content: Content) -> bool:
    """Tell whether an object is a pod that has ended, or is being deleted."""
    ended = (content.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return bool(ended or content["metadata"].get("deletionTimestamp"))


def _is_gated(pod: Content) -> bool:
    gates: Sequence[Content] = (pod.get("spec") or {}).get("schedulingGates") or ()
    return any(one["name"] == ADMISSION_GATE for one in gates)


def copy_of(row: WorkloadKind, content: Content, origin: str) -> dict[str, Any]:
    """Return a job for another cluster, where it waits for the queue of the same name.

    :param content: the job as JSON, suspended, so that nothing of its admission is in it.
    :param origin: the name of the manager.
    """
    made = _named(content, origin)
    parent, _, name = row.managed_by.rpartition(".")
    _part(made, parent).pop(name, None)
    if (row.group, row.name) == ("batch", "Job"):
        _without_selector(made["spec"])
    return made


def pod_copy_of(content: Content, queue: str, origin: str) -> dict[str, Any]:
    """Return a pod for another cluster, gated until the queue of the same name admits it there.

    :param queue: that queue; what owns the pod here may have named it.
    """
    made = _named(content, origin)
    made["metadata"]["labels"][QUEUE_LABEL] = queue
    spec = made["spec"]
    for name in _OF_THE_CLUSTER:
        spec.pop(name, None)
    if not _is_gated(made):
        gates: list[Any] = spec.get("schedulingGates") or []
        spec["schedulingGates"] = [*gates, {"name": ADMISSION_GATE}]
    return made


def _named(content: Content, origin: str) -> dict[str, Any]:
    """Return an object with what its user wrote, and whose it is."""
    meta = content["metadata"]
    annotations = {
        key: value for key, value in meta.get("annotations", {}).items() if key != _LAST_APPLIED
    }
    return {
        "apiVersion": content["apiVersion"],
        "kind": content["kind"],
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "labels": {**meta.get("labels", {}), ORIGIN: origin},
            "annotations": {**annotations, ORIGIN_UID: meta["uid"]},
        },
        "spec": copy.deepcopy(content["spec"]),
    }


def status_of_copy(there: Content, here: Content) -> Content | None:
    """Return the status that an object gets from its copy; None for none.

    A pod without a node keeps its own: it is gated here, which autoscalers know not to answer.
    """
    status: Content | None = there.get("status")
    waits = there["kind"] == Pod.__name__ and not there["spec"].get("nodeName")
    ended = status is not None and status.get("phase") in ("Succeeded", "Failed")
    if not status or status == here.get("status") or (waits and not ended):
        return None
    return status


def status_without_copy(here: Content, now: str) -> Content | None:
    """Return the status of a pod whose copy is gone, or given up; None where it has it, or ended.

    It is gated again, which autoscalers know not to answer.

    :param now: RFC 3339 text.
    """
    status: Content = here.get("status") or {}
    if has_ended(here) or status.get("phase", "Pending") == "Pending":
        return None
    scheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "SchedulingGated",
        "message": "it waits for a place in another cluster",
        "lastTransitionTime": now,
    }
    kept = {name: status[name] for name in ("qosClass",) if name in status}
    return {"phase": "Pending", "conditions": [scheduled], **kept}


def _without_selector(spec: dict[str, Any]) -> None:
    """Leave the selector of a Job, and the labels that follow from it, to the other cluster."""
    if not spec.get("manualSelector"):
        spec.pop("selector", None)
        labels = spec["template"].get("metadata", {}).get("labels", {})
        for label in _OF_THE_CONTROLLER:
            labels.pop(label, None)
            labels.pop(f"batch.kubernetes.io/{label}", None)


def _part(content: dict[str, Any], path: str) -> dict[str, Any]:
    for step in path.split("."):
        content = content.get(step) or {}
    return content


def _value(content: Content, path: str) -> Any:
    found: Any = content
    for step in path.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def belongs_to(obj: ApiObject, origin: str) -> str | None:
    """Return the uid of the job that an object is a copy of; None for no copy of this manager."""
    if obj.metadata.labels.get(ORIGIN) != origin:
        return None
    return obj.metadata.annotations.get(ORIGIN_UID, "")
