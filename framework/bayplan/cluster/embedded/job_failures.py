"""What a Job's podFailurePolicy says of pods that failed, as pkg/controller/job reads it.

Exit codes are not known here, so rules about them never match.
"""

from __future__ import annotations

from bayplan.api import Job, Pod
from bayplan.api.workloads import PodFailureRule
from bayplan.cluster.embedded.owner_references import controller_of
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import WatchEvent, WatchType

__all__ = ["PodFailurePolicies", "is_ignored"]


def _matching(job: Job, pod: Pod) -> tuple[int, PodFailureRule, str] | None:
    """Return the first rule that matches a pod, with its index and the condition."""
    policy = job.spec.pod_failure_policy
    stated = {one.type: one.status for one in pod.status.conditions}
    for index, rule in enumerate(policy.rules if policy is not None else ()):
        for pattern in rule.on_pod_conditions:
            if stated.get(pattern.type) == pattern.status:
                return index, rule, pattern.type
    return None


def is_ignored(job: Job, pod: Pod) -> bool:
    """Tell whether a pod's failure does not count against the job's backoffLimit."""
    found = _matching(job, pod)
    return found is not None and found[1].action == "Ignore"


class PodFailurePolicies:
    """Which jobs fail by their policies, because of pods that failed or were deleted."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._why: dict[str, str] = {}
        """Why jobs fail, by their uids."""
        cluster.watch(self.handle)

    def handle(self, event: WatchEvent) -> None:
        """Look at a pod that has failed, or is gone."""
        pod = event.obj
        if not isinstance(pod, Pod):
            return
        if event.type is not WatchType.DELETED and pod.status.phase != "Failed":
            return
        owner = controller_of(pod.metadata)
        if owner is None or owner.kind != "Job" or owner.uid in self._why:
            return
        job = self._cluster.get(Job, f"{pod.metadata.namespace}/{owner.name}")
        if job is None or job.metadata.uid != owner.uid or pod.status.phase == "Succeeded":
            return
        why = _fails_job(job, pod)
        if why:
            self._why[owner.uid] = why

    def failure(self, job: Job) -> str:
        """Return why a job fails by its policy, "" if it does not."""
        return self._why.get(job.metadata.uid, "")

    def forget(self, job: Job) -> None:
        """Forget what is known of a job that is gone."""
        self._why.pop(job.metadata.uid, None)


def _fails_job(job: Job, pod: Pod) -> str:
    found = _matching(job, pod)
    if found is None or found[1].action != "FailJob":
        return ""
    index, _, condition = found
    return f"Pod {pod.key} has condition {condition} matching FailJob rule at index {index}"
