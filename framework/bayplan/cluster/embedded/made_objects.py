"""The objects that operators make for TrainJobs and RayServices: a JobSet, a Ray cluster.

What pods there are is up to the controllers of what is made.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.api import ApiObject, JobSet, RayCluster
from bayplan.api.objects import KINDS, DecodeError, decode_object
from bayplan.api.operated import (
    ClusterTrainingRuntime,
    OperatedObject,
    RayService,
    TrainingRuntime,
    TrainJob,
)
from bayplan.cluster.embedded.children import Children, reference_of
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.dialects.train_jobs import job_set_of, runtime_name
from bayplan.errors import AlreadyExists, InputError
from bayplan.kinds import KINDS_OF_WORKLOADS, progress_of

__all__ = ["MadeObjectsController"]

Content = dict[str, Any]
_ENDS = {"Completed": "Complete", "Failed": "Failed"}
"""The conditions of a TrainJob by those of its JobSet."""


def _as_accepted(
    owner: OperatedObject, type_: type[JobSet | RayCluster], name: str, made: Content
) -> JobSet | RayCluster:
    """Return an object as an API server would take it.

    :raises DecodeError: for one that it would refuse.
    """
    kind = next(one for one in KINDS.values() if one.type is type_)
    meta = {**made["metadata"], "name": name, "namespace": owner.metadata.namespace}
    version = f"{kind.group}/{kind.versions[0]}"
    content = {"apiVersion": version, "kind": kind.name, "metadata": meta, "spec": made["spec"]}
    found = decode_object(kind, content)
    assert isinstance(found, type_), "decoded by its kind"
    return found


def _groups(spec: Content) -> list[Content]:
    groups = spec.get("workerGroupSpecs")
    listed = groups if isinstance(groups, list) else []
    return [one for one in listed if isinstance(one, dict)]


class MadeObjectsController:
    """Makes these objects, brings them in line with their owners, and writes the owners' status."""

    def __init__(self, cluster: MemoryCluster, children: Children) -> None:
        self._cluster = cluster
        self._children = children

    def reconcile(self, owner: OperatedObject) -> None:
        """Bring what is made for an object in line with it."""
        if isinstance(owner, TrainJob):
            self._train(owner)
        elif isinstance(owner, RayService):
            self._serve(owner)

    def runtime_changed(self) -> list[TrainJob]:
        """Return the TrainJobs to look at after a runtime changed."""
        return list(self._cluster.list(TrainJob))

    # TrainJobs -------------------------------------------------------------------------------

    def _train(self, owner: TrainJob) -> None:
        content: Content = msgspec.to_builtins(owner)
        row = KINDS_OF_WORKLOADS["trainer.kubeflow.org", "TrainJob"]
        if progress_of(row, content, ()).end is not None:
            return
        try:
            runtime = self._runtime(owner, content)
            if runtime is None:
                self._suspend_alike(owner)
                return
            made = job_set_of(content, msgspec.to_builtins(runtime))
        except ValueError as exc:
            self._cluster.report(owner, InputError(str(exc)))
            return
        job_set = self._brought_in_line(owner, JobSet, owner.metadata.name, made)
        if isinstance(job_set, JobSet):
            self._follow(owner, job_set)

    def _suspend_alike(self, owner: TrainJob) -> None:
        """Suspend the JobSet of a TrainJob whose runtime has gone, or let it run."""
        known = self._cluster.get(JobSet, f"{owner.metadata.namespace}/{owner.metadata.name}")
        wanted = owner.spec.get("suspend") is True
        if known is not None and known.spec.suspend is not wanted:
            self._cluster.update(replace(known, spec=replace(known.spec, suspend=wanted)))

    def _runtime(self, owner: TrainJob, content: Content) -> OperatedObject | None:
        kind, name = runtime_name(content)
        if kind == "TrainingRuntime":
            return self._cluster.get(TrainingRuntime, f"{owner.metadata.namespace}/{name}")
        return self._cluster.get(ClusterTrainingRuntime, name)

    def _follow(self, owner: TrainJob, job_set: JobSet) -> None:
        """End a TrainJob with its JobSet."""
        for condition in job_set.status.conditions:
            if condition.status == "True" and condition.type in _ENDS:
                end = {
                    "type": _ENDS[condition.type],
                    "status": "True",
                    "reason": condition.reason,
                    "message": condition.message,
                    "lastTransitionTime": self._cluster.timestamp(),
                }
                known = [*owner.status.get("conditions", ()), end]
                status = {**owner.status, "conditions": known}
                self._cluster.update(replace(owner, status=status))
                return

    # RayServices -----------------------------------------------------------------------------

    def _serve(self, owner: RayService) -> None:
        """Make the cluster of a service, and report it ready with its cluster."""
        meta, name = owner.metadata, f"{owner.metadata.name}-cluster"
        made = {
            "metadata": {"labels": dict(meta.labels), "annotations": dict(meta.annotations)},
            "spec": self._sized(owner, f"{meta.namespace}/{name}"),
        }
        cluster = self._brought_in_line(owner, RayCluster, name, made)
        if not isinstance(cluster, RayCluster):
            return
        value = "True" if cluster.status.state == "ready" else "False"
        known = {one.get("type"): one for one in owner.status.get("conditions", ())}
        if known.get("Ready", {}).get("status", "False") != value:
            now = self._cluster.timestamp()
            known["Ready"] = {"type": "Ready", "status": value, "lastTransitionTime": now}
        status = {**owner.status, "activeServiceStatus": {"rayClusterName": name}}
        if known:
            status["conditions"] = list(known.values())
        if status != owner.status:
            self._cluster.update(replace(owner, status=status))

    def _sized(self, owner: RayService, key: str) -> Content:
        """Return the spec of a service's cluster, which keeps the size that its autoscaler gave."""
        spec: Content = owner.spec.get("rayClusterConfig") or {}
        known = self._cluster.get(RayCluster, key)
        if known is None or spec.get("enableInTreeAutoscaling") is not True:
            return spec
        sizes = {
            one.group_name: {
                "replicas": one.replicas,
                "scaleStrategy": msgspec.to_builtins(one.scale_strategy),
            }
            for one in known.spec.worker_group_specs
        }
        groups = [{**one, **sizes.get(one.get("groupName", ""), {})} for one in _groups(spec)]
        return {**spec, "workerGroupSpecs": groups}

    # Both ------------------------------------------------------------------------------------

    def _brought_in_line(
        self, owner: OperatedObject, type_: type[JobSet | RayCluster], name: str, made: Content
    ) -> ApiObject | None:
        """Return the object as it has to be; None where it cannot be made."""
        try:
            wanted = _as_accepted(owner, type_, name, made)
        except DecodeError as exc:
            self._cluster.report(owner, InputError(f"{type_.__name__} {name}: {exc}"))
            return None
        namespace = owner.metadata.namespace
        known = self._cluster.get(type_, f"{namespace}/{name}")
        if known is None:
            meta = replace(
                wanted.metadata,
                name=name,
                namespace=namespace,
                owner_references=(reference_of(owner),),
            )
            return self._made(owner, replace(wanted, metadata=meta))
        if all(one.uid != owner.metadata.uid for one in known.metadata.owner_references):
            return None
        if known.spec != wanted.spec and known.metadata.deletion_timestamp is None:
            known = self._cluster.update(replace(known, spec=wanted.spec))
        return known

    def _made(self, owner: OperatedObject, wanted: JobSet | RayCluster) -> ApiObject | None:
        try:
            made = self._cluster.create(wanted)
        except AlreadyExists:
            return None
        except InputError as exc:
            self._cluster.report(owner, exc)
            return None
        self._children.keep(made)
        return made
