"""The Job controller, as k8s.io/kubernetes pkg/controller/job."""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.api import Job, Pod
from bayplan.cluster.embedded.children import Children, PodOverrides, alive, template_of
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.dialects.reading import is_index

__all__ = ["JobController"]

_INDEX = "batch.kubernetes.io/job-completion-index"


class JobController:
    """Creates the pods of Jobs and replaces failed ones."""

    def __init__(self, cluster: MemoryCluster, children: Children) -> None:
        self._cluster = cluster
        self._children = children
        self._finished: dict[str, set[int | str]] = {}
        self._failures: dict[str, int] = {}

    def reconcile(self, owner: Job) -> None:
        """Create missing pods of a Job and delete surplus ones."""
        spec, uid = owner.spec, owner.metadata.uid
        pods = self._children.pods(owner)
        done = self._finished.setdefault(uid, set())
        failed = 0
        for pod in pods:
            if pod.status.phase == "Succeeded":
                done.add(_completion_index(pod) if _indexed(owner) else pod.metadata.uid)
            failed += pod.status.phase == "Failed"
        self._failures[uid] = max(self._failures.get(uid, 0), failed)
        active = [pod for pod in pods if alive(pod)]
        if spec.suspend or self._failures[uid] > spec.backoff_limit:
            for pod in active:
                self._children.delete(pod)
            return
        total = spec.completions if spec.completions is not None else spec.parallelism
        # A job without completions is done once any pod has succeeded.
        left = 0 if spec.completions is None and done else total - len(done)
        room = min(spec.parallelism, left) - len(active)
        for pod in active[len(active) + room :] if room < 0 else ():
            self._children.delete(pod)
        if not _indexed(owner):
            for _ in range(room):
                self._make(owner, f"{owner.metadata.name}-", {})
            return
        taken = done | {_completion_index(pod) for pod in active}
        free: Iterable[int] = (i for i in range(total) if i not in taken)
        for _, index in zip(range(room), free, strict=False):
            self._make(owner, f"{owner.metadata.name}-{index}-", {_INDEX: str(index)})

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


def _indexed(job: Job) -> bool:
    return job.spec.completion_mode == "Indexed"


def _completion_index(pod: Pod) -> int:
    text = pod.metadata.annotations.get(_INDEX, "")
    return int(text) if is_index(text) else -1
