"""What a job becomes in another cluster, and what comes back."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.api import KINDS, ApiObject, Kind
from bayplan.api.kueue import KueueWorkload
from bayplan.dialects.kueue import MULTI_CLUSTER_CONTROLLER
from bayplan.kinds import KINDS_OF_WORKLOADS, WorkloadKind

__all__ = [
    "ORIGIN",
    "ORIGIN_UID",
    "JobReference",
    "belongs_to",
    "copy_of",
    "is_managed",
    "is_suspended",
]

ORIGIN = "kueue.x-k8s.io/multikueue-origin"
"""On copies: which manager they are of."""
ORIGIN_UID = "kueue.x-k8s.io/multikueue-origin-uid"
"""On copies: the uid of the job that they are of."""
_OF_THE_CONTROLLER = ("controller-uid", "job-name")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True)
class JobReference:
    """The job of a Workload."""

    kind: Kind
    row: WorkloadKind
    key: str
    uid: str

    def __str__(self) -> str:
        """Return it as commands take it."""
        return f"{self.kind.name.lower()}/{self.key}"

    @classmethod
    def of(cls, workload: KueueWorkload) -> JobReference | None:
        """Return the job of a Workload; None for one of pods, or of a kind that never waits."""
        for owner in workload.metadata.owner_references:
            where = owner.api_version.rpartition("/")[0], owner.kind
            kind, row = KINDS.get(where), KINDS_OF_WORKLOADS.get(where)
            if owner.controller and kind is not None and row is not None and row.managed_by:
                key = f"{workload.metadata.namespace}/{owner.name}"
                return cls(kind, row, key, owner.uid)
        return None


def is_managed(row: WorkloadKind, content: Mapping[str, Any]) -> bool:
    """Tell whether a job says that its pods are made in another cluster."""
    return bool(_value(content, row.managed_by) == MULTI_CLUSTER_CONTROLLER)


def is_suspended(row: WorkloadKind, content: Mapping[str, Any]) -> bool:
    """Tell whether a job waits for its queue."""
    return _value(content, row.suspend) is True


def copy_of(row: WorkloadKind, content: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Return a job for another cluster, where it waits for the queue of the same name.

    :param content: the job as JSON, suspended, so that nothing of its admission is in it.
    :param origin: the name of the manager.
    """
    meta = content["metadata"]
    annotations = {
        key: value for key, value in meta.get("annotations", {}).items() if key != _LAST_APPLIED
    }
    made: dict[str, Any] = {
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
    parent, _, name = row.managed_by.rpartition(".")
    _part(made, parent).pop(name, None)
    if (row.group, row.name) == ("batch", "Job"):
        _without_selector(made["spec"])
    return made


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


def _value(content: Mapping[str, Any], path: str) -> Any:
    found: Any = content
    for step in path.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def belongs_to(obj: ApiObject, origin: str) -> str | None:
    """Return the uid of the job that an object is a copy of; None for no copy of this manager."""
    if obj.metadata.labels.get(ORIGIN) != origin:
        return None
    return obj.metadata.annotations.get(ORIGIN_UID, "")
