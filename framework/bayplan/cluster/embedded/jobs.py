"""The Job controller, as k8s.io/kubernetes pkg/controller/job."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from bayplan.api import Job, Pod
from bayplan.api.workloads import JobStatus
from bayplan.cluster.embedded.children import Children, PodOverrides, alive, template_of
from bayplan.cluster.embedded.job_failures import PodFailurePolicies, is_ignored
from bayplan.cluster.embedded.job_status import FinishedPods, is_finished, status_of
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.dialects.reading import is_index

__all__ = ["JobController"]

_CONTROLLER = "kubernetes.io/job-controller"
_INDEX = "batch.kubernetes.io/job-completion-index"
_EVENTS = {
    ("Suspended", "True"): ("Suspended", "Job suspended"),
    ("Suspended", "False"): ("Resumed", "Job resumed"),
    ("Complete", "True"): ("Completed", "Job completed"),
    ("Failed", "True"): ("BackoffLimitExceeded", "Job has reached the specified backoff limit"),
}


class JobController:
    """Creates the pods of Jobs, replaces failed ones, and writes the status of Jobs."""

    def __init__(self, cluster: MemoryCluster, children: Children) -> None:
        self._cluster = cluster
        self._children = children
        self._done: dict[str, set[int | str]] = {}
        self._failed: dict[str, set[str]] = {}
        self._policies = PodFailurePolicies(cluster)

    def reconcile(self, owner: Job) -> None:
        """Create missing pods of a Job, delete surplus ones, and write its status."""
        if is_finished(owner.status) or owner.spec.managed_by not in (None, _CONTROLLER):
            return
        pods = self._children.pods(owner)
        finished = self._finished(owner, pods)
        active = [pod for pod in pods if alive(pod)]
        failed = finished.failed > owner.spec.backoff_limit or finished.by_policy
        if owner.spec.suspend or failed:
            for pod in active:
                self._children.delete(pod)
            changed = bool(active)
        else:
            changed = self._scale(owner, active, finished.done)
        # A job of many pods is looked at whenever one of them changes.
        left = self._children.pods(owner) if changed else pods
        status = status_of(owner, left, finished, self._cluster.timestamp())
        if status != owner.status:
            self._cluster.update(replace(owner, status=status))
            self._record_changes(owner, status)

    def forget(self, owner: Job) -> None:
        """Forget what is known of a Job that is gone."""
        for known in (self._done, self._failed):
            known.pop(owner.metadata.uid, None)
        self._policies.forget(owner)

    def _finished(self, owner: Job, pods: list[Pod]) -> FinishedPods:
        """Count the pods that ended, with those that are gone."""
        done = self._done.setdefault(owner.metadata.uid, set())
        failed = self._failed.setdefault(owner.metadata.uid, set())
        if _indexed(owner):
            # An index that a smaller job does not have runs again when the job grows.
            done &= set(range(_total(owner)))
        for pod in pods:
            if pod.status.phase == "Succeeded" and _counts(owner, pod):
                done.add(_completion_index(pod) if _indexed(owner) else pod.metadata.uid)
            elif pod.status.phase == "Failed" and not is_ignored(owner, pod):
                failed.add(pod.metadata.uid)
        return FinishedPods(frozenset(done), len(failed), self._policies.failure(owner))

    def _scale(self, owner: Job, active: list[Pod], done: frozenset[int | str]) -> bool:
        """Create or delete pods so that as many are active as the Job wants now.

        :returns: whether any was.
        """
        spec, total = owner.spec, _total(owner)
        wanted, taken, surplus = active, set(done), []
        if _indexed(owner):
            indexes = [(pod, _completion_index(pod)) for pod in active]
            wanted = [pod for pod, index in indexes if 0 <= index < total]
            surplus = [pod for pod, index in indexes if not 0 <= index < total]
            taken.update(index for _, index in indexes)
        room = min(spec.parallelism, total - len(done)) - len(wanted)
        if spec.completions is None and done:
            # Once any pod has succeeded, the others only run to their ends.
            room = 0
        surplus += wanted[len(wanted) + room :] if room < 0 else ()
        for pod in surplus:
            self._children.delete(pod)
        if room > 0:
            self._fill(owner, room, (i for i in range(total) if i not in taken))
        return bool(surplus) or room > 0

    def _fill(self, owner: Job, room: int, free: Iterable[int]) -> None:
        if not _indexed(owner):
            for _ in range(room):
                self._make(owner, f"{owner.metadata.name}-", {})
            return
        for _, index in zip(range(room), free, strict=False):
            self._make(owner, f"{owner.metadata.name}-{index}-", {_INDEX: str(index)})

    def _record_changes(self, owner: Job, status: JobStatus) -> None:
        """Record an event for every condition that a Job got, as its controller does."""
        before = {(c.type, c.status) for c in owner.status.conditions}
        for condition in status.conditions:
            event = _EVENTS.get((condition.type, condition.status))
            if event is not None and (condition.type, condition.status) not in before:
                self._cluster.record_event(owner, "job-controller", *event)

    def _make(self, owner: Job, prefix: str, mark: dict[str, str]) -> None:
        labels = {
            "batch.kubernetes.io/job-name": owner.metadata.name,
            "job-name": owner.metadata.name,
            "batch.kubernetes.io/controller-uid": owner.metadata.uid,
            "controller-uid": owner.metadata.uid,
            **mark,
        }
        marks = PodOverrides(generate_name=prefix, labels=labels, annotations=mark)
        pod = self._children.make(owner, template_of(self._cluster, owner), marks)
        if pod is not None:
            text = f"Created pod: {pod.metadata.name}"
            self._cluster.record_event(owner, "job-controller", "SuccessfulCreate", text)


def _total(job: Job) -> int:
    spec = job.spec
    return spec.completions if spec.completions is not None else spec.parallelism


def _counts(job: Job, pod: Pod) -> bool:
    """Return whether a pod is one that the job wants: one with an index in its range."""
    return not _indexed(job) or 0 <= _completion_index(pod) < _total(job)


def _indexed(job: Job) -> bool:
    return job.spec.completion_mode == "Indexed"


def _completion_index(pod: Pod) -> int:
    text = pod.metadata.annotations.get(_INDEX, "")
    return int(text) if is_index(text) else -1
