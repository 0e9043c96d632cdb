"""The status of Jobs, of Kubernetes and of Volcano."""

from __future__ import annotations

from typing import Any

from bayplan.api import Job, Pod, VolcanoJob
from bayplan.cluster.apiserver.resources import Resource
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.apiserver.watch_cache import Change, StoredObject

__all__ = ["JobStatus"]

Content = dict[str, Any]

_PHASES = ("Pending", "Running", "Succeeded", "Failed")


class JobStatus:
    """Updates the status of a Job when one of its pods changes."""

    def __init__(self, cluster: ServedCluster) -> None:
        self._cluster = cluster
        self._owned: dict[str, dict[tuple[type, str], StoredObject]] = {}
        self._succeeded: dict[str, set[str]] = {}
        self._owners: dict[str, tuple[Resource, str]] = {}
        self._dirty: dict[str, None] = {}
        cluster.observe(self._changed)

    def _changed(self, resource: Resource, change: Change) -> None:
        record = change.record
        meta = record.obj.metadata
        gone = change.type == "DELETED"
        if resource.type in (Job, VolcanoJob):
            if gone:
                for left in (self._owners, self._succeeded):
                    left.pop(meta.uid, None)
            else:
                self._owners[meta.uid] = (resource, record.key)
                self._ask(meta.uid)
        if resource.type is Pod:
            for reference in meta.owner_references:
                if reference.controller:
                    self._count(reference.uid, resource.type, record, gone)

    def _count(self, uid: str, type_: type, record: StoredObject, gone: bool) -> None:
        children = self._owned.setdefault(uid, {})
        if gone:
            children.pop((type_, record.key), None)
        else:
            children[type_, record.key] = record
        if not children:
            del self._owned[uid]
        if _phase(record) == "Succeeded":
            self._succeeded.setdefault(uid, set()).add(record.obj.metadata.uid)
        self._ask(uid)

    def _ask(self, uid: str) -> None:
        if not self._dirty:
            self._cluster.clock.call_later(0, self._write)
        self._dirty[uid] = None

    def _write(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for uid in dirty:
            place = self._owners.get(uid)
            if place is None:
                continue
            resource, key = place
            record = self._cluster.records(resource).get(key)
            if record is None:
                continue
            children = list(self._owned.get(uid, {}).values())
            status = self._status(record, children, uid)
            if status != record.content.get("status"):
                self._cluster.store_content(resource, key, {**record.content, "status": status})

    def _status(self, record: StoredObject, children: list[StoredObject], uid: str) -> Content:
        if isinstance(record.obj, VolcanoJob):
            return self._volcano(record, record.obj, children)
        assert isinstance(record.obj, Job)
        return self._job(record, record.obj, children, uid)

    def _volcano(self, record: StoredObject, job: VolcanoJob, pods: list[StoredObject]) -> Content:
        old = record.content.get("status") or {}
        total = sum(task.replicas for task in job.spec.tasks)
        least = job.spec.min_available if job.spec.min_available is not None else total
        phases = [_phase(pod) for pod in pods]
        counts = {name.lower(): phases.count(name) for name in _PHASES}
        if counts["succeeded"] == total:
            phase = "Completed"
        elif counts["running"] + counts["succeeded"] >= least:
            phase = "Running"
        else:
            phase = "Pending"
        state = old.get("state") or {}
        if state.get("phase") != phase:
            state = {"phase": phase, "lastTransitionTime": self._cluster.timestamp()}
        return {"state": state, "minAvailable": least, **{k: v for k, v in counts.items() if v}}

    def _job(self, record: StoredObject, job: Job, pods: list[StoredObject], uid: str) -> Content:
        old = record.content.get("status") or {}
        phases = [_phase(pod) for pod in pods]
        succeeded = len(self._succeeded.get(uid, ()))
        failed = max(phases.count("Failed"), old.get("failed", 0))
        active = sum(phase in ("Pending", "Running") for phase in phases)
        counts = {
            "active": active,
            "ready": sum(_ready(pod) for pod in pods),
            "succeeded": succeeded,
            "failed": failed,
        }
        stamp = self._cluster.timestamp()
        status: Content = {key: value for key, value in counts.items() if value}
        status["startTime"] = old.get("startTime", stamp)
        spec = job.spec
        total = spec.completions
        done = bool(succeeded) and not active if total is None else succeeded >= total
        kind = "Complete" if done else "Failed" if failed > spec.backoff_limit else ""
        if kind:
            condition = {"type": kind, "status": "True", "lastTransitionTime": stamp}
            status["conditions"] = old.get("conditions") or [condition]
        if kind == "Complete":
            status["completionTime"] = old.get("completionTime", stamp)
        return status


def _phase(record: StoredObject) -> str:
    return record.obj.status.phase if isinstance(record.obj, Pod) else ""


def _ready(record: StoredObject) -> bool:
    pod = record.obj
    return isinstance(pod, Pod) and any(
        c.type == "Ready" and c.status == "True" for c in pod.status.conditions
    )
