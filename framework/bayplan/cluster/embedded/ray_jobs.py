"""The RayJob controller: a Ray cluster, and the Job that submits the work to it.

Names, labels and the order of states are those of ray-project/kuberay. What would run on the
cluster does not run here: the work ends with the submitter, or with the head pod where the operator
itself would submit it. The annotation ``bayplan.dev/duration`` of a Ray job is its submitter's.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from bayplan.api import Job, ObjectMeta, RayCluster, RayJob
from bayplan.api.ray import RayClusterSpec, RayClusterStatus, RayJobStatus
from bayplan.api.workloads import JobSpec
from bayplan.cluster.embedded.children import Children, part_of, reference_of
from bayplan.cluster.embedded.ray_clusters import CLUSTER_LABEL, OPERATOR, TYPE_LABEL
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.errors import AlreadyExists, InputError
from bayplan.inputs.durations import DURATION_ANNOTATION

__all__ = ["RayJobController"]

_ENDED = ("Complete", "Failed")
_RETRIES = 2
"""How often a submitter is started again, unless the Ray job says otherwise."""


class RayJobController:
    """Creates the cluster and the submitter of Ray jobs, and writes the status of the jobs."""

    def __init__(self, cluster: MemoryCluster, children: Children) -> None:
        self._cluster = cluster
        self._children = children

    def reconcile(self, owner: RayJob) -> float | None:
        """Take a Ray job one state further; return when to look again, None for never."""
        if owner.spec.managed_by not in (None, OPERATOR):
            return None
        state = owner.status.job_deployment_status
        if state in _ENDED:
            return self._shut_down(owner)
        if owner.spec.suspend:
            self._write(owner, self._suspended(owner))
        elif state in ("", "Suspended"):
            self._write(owner, self._initialized(owner))
        elif state == "Initializing":
            self._write(owner, self._submitted(owner))
        elif state == "Suspending":
            self._write(owner, self._suspended(owner))
        else:
            self._write(owner, self._watched(owner))
        return None

    def _write(self, owner: RayJob, status: RayJobStatus) -> None:
        if status != owner.status:
            self._cluster.update(replace(owner, status=status))

    def _suspended(self, owner: RayJob) -> RayJobStatus:
        """Delete all that the job owns; it is suspended once all is gone."""
        self._delete_all(owner)
        if self._children.all(owner):
            return replace(owner.status, job_deployment_status="Suspending")
        return RayJobStatus(job_deployment_status="Suspended")

    def _delete_all(self, owner: RayJob) -> None:
        for child in self._children.all(owner):
            if child.metadata.deletion_timestamp is None:
                self._cluster.delete(type(child), self._cluster.key_of(child))

    def _initialized(self, owner: RayJob) -> RayJobStatus:
        """Make the job's cluster, or take the one that it selects."""
        name = owner.spec.cluster_selector.get(CLUSTER_LABEL, "")
        if not name and owner.spec.ray_cluster_spec is not None:
            name = self._make_cluster(owner, owner.spec.ray_cluster_spec)
        return RayJobStatus(
            job_id=f"{owner.metadata.name}-{owner.metadata.uid[-5:]}",
            ray_cluster_name=name,
            job_deployment_status="Initializing",
            start_time=self._cluster.timestamp(),
        )

    def _make_cluster(self, owner: RayJob, spec: RayClusterSpec) -> str:
        meta = ObjectMeta(
            generate_name=f"{owner.metadata.name}-",
            namespace=owner.metadata.namespace,
            labels={**owner.metadata.labels, **_origin(owner)},
            annotations=dict(owner.metadata.annotations),
            owner_references=(reference_of(owner),),
        )
        content = part_of(self._cluster, owner, "rayClusterSpec")
        made = RayCluster(meta, spec)
        if content is None:
            made = self._cluster.create(made)
        else:
            held: dict[str, Any] = {"apiVersion": "ray.io/v1", "kind": "RayCluster"}
            held |= {"metadata": {}, "spec": content}
            made = self._cluster.create_from(made, held, RayCluster(spec=spec))
        self._children.keep(made)
        return made.metadata.name

    def _cluster_of(self, owner: RayJob) -> RayCluster | None:
        name = owner.status.ray_cluster_name
        return self._cluster.get(RayCluster, f"{owner.metadata.namespace}/{name}")

    def _submitted(self, owner: RayJob) -> RayJobStatus:
        """Submit the work once the cluster is ready."""
        found = self._cluster_of(owner)
        if found is None or found.status.state != "ready":
            return self._with_cluster(owner.status, found)
        if owner.spec.submission_mode == "K8sJobMode":
            self._make_submitter(owner, found)
        status = replace(owner.status, job_deployment_status="Running", job_status="RUNNING")
        return self._with_cluster(status, found)

    def _make_submitter(self, owner: RayJob, found: RayCluster) -> None:
        template = owner.spec.submitter_of(found.spec)
        annotations = dict(template.metadata.annotations)
        duration = owner.metadata.annotations.get(DURATION_ANNOTATION)
        if duration is not None:
            annotations.setdefault(DURATION_ANNOTATION, duration)
        template = replace(template, metadata=replace(template.metadata, annotations=annotations))
        meta = ObjectMeta(
            name=owner.metadata.name,
            namespace=owner.metadata.namespace,
            labels=_origin(owner),
            owner_references=(reference_of(owner),),
        )
        job = Job(meta, JobSpec(completions=1, backoff_limit=_RETRIES, template=template))
        try:
            self._children.keep(self._cluster.create(job))
        except AlreadyExists:
            return
        except InputError as exc:
            self._cluster.report(owner, exc)

    def _watched(self, owner: RayJob) -> RayJobStatus:
        """Return the status of a job whose work runs, or has ended."""
        found = self._cluster_of(owner)
        status = self._with_cluster(owner.status, found)
        end = self._end_of(owner, found)
        if not end:
            return status
        return replace(
            status,
            job_status=end,
            job_deployment_status="Complete" if end == "SUCCEEDED" else "Failed",
            reason="" if end == "SUCCEEDED" else "AppFailed",
            end_time=self._cluster.timestamp(),
        )

    def _end_of(self, owner: RayJob, found: RayCluster | None) -> str:
        """Return how the work ended, "" while it runs."""
        for job in self._children.jobs(owner):
            for condition in job.status.conditions:
                if condition.type in ("Complete", "Failed") and condition.status == "True":
                    return "SUCCEEDED" if condition.type == "Complete" else "FAILED"
        if owner.spec.submission_mode == "K8sJobMode" or found is None:
            return ""
        ended = any(
            pod.status.phase == "Succeeded" and pod.metadata.labels.get(TYPE_LABEL) == "head"
            for pod in self._children.pods(found)
        )
        return "SUCCEEDED" if ended else ""

    def _with_cluster(self, status: RayJobStatus, found: RayCluster | None) -> RayJobStatus:
        seen = found.status if found is not None else RayClusterStatus()
        return replace(status, ray_cluster_status=seen)

    def _shut_down(self, owner: RayJob) -> float | None:
        """Delete the cluster of a finished job when its time is over, if the job wants that."""
        if not owner.spec.shutdown_after_job_finishes:
            return None
        end = self._cluster.seconds_of(owner.status.end_time)
        due = end + owner.spec.ttl_seconds_after_finished
        if due > self._cluster.now:
            return due
        for one in self._children.ray_clusters(owner):
            if one.metadata.deletion_timestamp is None:
                self._cluster.delete(RayCluster, self._cluster.key_of(one))
        return None


def _origin(owner: RayJob) -> dict[str, str]:
    return {
        "ray.io/originated-from-cr-name": owner.metadata.name,
        "ray.io/originated-from-crd": "RayJob",
    }
