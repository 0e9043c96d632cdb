"""The PyTorchJob controller: one master and its workers.

Names, labels, conditions and reasons are those of kubeflow/training-operator.
"""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.api import (
    ApiObject,
    ObjectMeta,
    Pod,
    PyTorchJob,
    SchedulerPluginsPodGroup,
    VolcanoPodGroup,
)
from bayplan.api.kubeflow import PyTorchJobStatus, ReplicaSpec, ReplicaStatus
from bayplan.api.podgroup import PodGroupSpec, VolcanoPodGroupSpec
from bayplan.api.workloads import WorkloadCondition
from bayplan.cluster.embedded.children import (
    Children,
    PodOverrides,
    alive,
    reference_of,
    template_at,
)
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.dialects import membership_of
from bayplan.dialects.reading import is_index
from bayplan.dialects.scheduler_plugins import GROUP_LABEL
from bayplan.dialects.volcano import GROUP_ANNOTATION

__all__ = ["PyTorchJobController"]

_PREFIX = "training.kubeflow.org/"
_TYPE = f"{_PREFIX}replica-type"
_INDEX = f"{_PREFIX}replica-index"
_OPPOSITE = {"Running": "Restarting", "Restarting": "Running"}
_ENDS = ("Succeeded", "Failed")
_CONTROLLER = "kubeflow.org/training-operator"


class PyTorchJobController:
    """Creates the pods of PyTorch jobs, and writes the status of the jobs."""

    def __init__(self, cluster: MemoryCluster, children: Children) -> None:
        self._cluster = cluster
        self._children = children

    def reconcile(self, owner: PyTorchJob) -> None:
        """Bring the pods of a PyTorch job in line with it, and write its status."""
        policy = owner.spec.run_policy
        if policy.managed_by not in (None, _CONTROLLER):
            return
        status = self._with(
            owner.status, "Created", "True", _reason("Created"), _text(owner, "created")
        )
        if _is_true(status, *_ENDS):
            self._clean_up(owner)
            self.delete_group(owner)
        elif policy.suspend:
            self.delete_group(owner)
            for pod in self._children.pods(owner):
                self._children.delete(pod)
            status = self._suspended(owner, status)
        else:
            status = self._run(owner, status)
        if status != owner.status:
            self._cluster.update(replace(owner, status=status))

    def _clean_up(self, owner: PyTorchJob) -> None:
        """Delete the pods of a finished job as its clean-pod policy says."""
        policy = owner.spec.run_policy.clean_pod_policy
        for pod in self._children.pods(owner):
            if policy == "All" or (policy == "Running" and alive(pod)):
                self._children.delete(pod)

    def _suspended(self, owner: PyTorchJob, status: PyTorchJobStatus) -> PyTorchJobStatus:
        counts = {kind: replace(one, active=0) for kind, one in status.replica_statuses.items()}
        status = replace(status, replica_statuses=counts)
        text, reason = _text(owner, "suspended"), _reason("Suspended")
        if _is_true(status, "Running"):
            status = self._with(status, "Running", "False", reason, text)
        return self._with(status, "Suspended", "True", reason, text)

    def _run(self, owner: PyTorchJob, status: PyTorchJobStatus) -> PyTorchJobStatus:
        now = self._cluster.timestamp()
        if _is_true(status, "Suspended"):
            text = _text(owner, "resumed")
            status = self._with(status, "Suspended", "False", _reason("Resumed"), text)
            status = replace(status, start_time=now)
        self._make_group(owner)
        for kind, spec in owner.spec.pytorch_replica_specs.items():
            status = self._replicas(owner, kind, spec, status)
        specs = owner.spec.pytorch_replica_specs
        counts = {kind: self._count(owner, kind) for kind in specs}
        status = replace(status, replica_statuses=counts, start_time=status.start_time or now)
        return self._progress(owner, status)

    # The gang --------------------------------------------------------------------------------

    def _make_group(self, owner: PyTorchJob) -> None:
        """Create the job's pod group, or let its minimum follow that of the job."""
        made = _group_of(owner)
        if made is None:
            return
        known = self._cluster.get(type(made), self._cluster.key_of(made))
        if known is None:
            self._cluster.create(made)
        elif known.spec.min_member != made.spec.min_member and _is_of(owner, known):
            spec = replace(known.spec, min_member=made.spec.min_member)
            self._cluster.update(replace(known, spec=spec))

    def delete_group(self, owner: PyTorchJob) -> None:
        """Delete the pod group that was made for a job."""
        for kind in (SchedulerPluginsPodGroup, VolcanoPodGroup):
            known = self._cluster.get(kind, self._cluster.key_of(owner))
            if known is not None and _is_of(owner, known):
                self._cluster.delete(kind, self._cluster.key_of(owner))

    # Pods ------------------------------------------------------------------------------------

    def _replicas(
        self, owner: PyTorchJob, kind: str, spec: ReplicaSpec, status: PyTorchJobStatus
    ) -> PyTorchJobStatus:
        """Create and delete the pods of a type; failed ones are replaced unless for Never."""
        taken = set()
        for pod in self._of(owner, kind):
            index = _index_of(pod)
            if index >= spec.replicas:
                self._children.delete(pod)
            elif pod.status.phase == "Failed" and spec.restart_policy != "Never":
                self._children.delete(pod)
                text = _text(owner, f"restarting because {kind} replica(s) failed")
                status = self._with(status, "Restarting", "True", _reason("Restarting"), text)
            else:
                taken.add(index)
        for index in range(spec.replicas):
            if index not in taken:
                self._make(owner, kind, spec, index)
        return status

    def _make(self, owner: PyTorchJob, kind: str, spec: ReplicaSpec, index: int) -> None:
        name = owner.metadata.name
        labels = {
            f"{_PREFIX}operator-name": "pytorchjob-controller",
            f"{_PREFIX}job-name": name,
            _TYPE: kind.lower(),
            _INDEX: str(index),
        }
        if kind == "Master":
            labels[f"{_PREFIX}job-role"] = "master"
        annotations: dict[str, str] = {}
        if owner.spec.run_policy.scheduling_policy is not None and not _names_a_group(spec):
            if _is_of_volcano(owner):
                annotations[GROUP_ANNOTATION] = name
            else:
                labels[GROUP_LABEL] = name
        path = ("pytorchReplicaSpecs", kind, "template")
        template = template_at(self._cluster, owner, spec.template, *path)
        restarts = "Never" if spec.restart_policy == "ExitCode" else spec.restart_policy
        pods = replace(spec.template.spec, restart_policy=restarts)
        marks = PodOverrides(
            name=f"{name}-{kind.lower()}-{index}", labels=labels, annotations=annotations
        )
        self._children.make(owner, template, marks, pods)

    def _of(self, owner: PyTorchJob, kind: str) -> list[Pod]:
        """Return the pods of a type that are not being deleted."""
        return [
            pod
            for pod in self._children.pods(owner)
            if pod.metadata.labels.get(_TYPE) == kind.lower()
            and pod.metadata.deletion_timestamp is None
        ]

    def _count(self, owner: PyTorchJob, kind: str) -> ReplicaStatus:
        phases = [pod.status.phase for pod in self._of(owner, kind)]
        marks = {f"{_PREFIX}job-name": owner.metadata.name, _TYPE: kind.lower()}
        return ReplicaStatus(
            active=phases.count("Running"),
            succeeded=phases.count("Succeeded"),
            failed=phases.count("Failed"),
            selector=",".join(f"{key}={value}" for key, value in sorted(marks.items())),
        )

    def _progress(self, owner: PyTorchJob, status: PyTorchJobStatus) -> PyTorchJobStatus:
        """Set Running, Succeeded or Failed; the master decides, without one all workers."""
        specs = owner.spec.pytorch_replica_specs
        leader = "Master" if "Master" in specs else "Worker"
        counts = status.replica_statuses
        for kind, one in counts.items():
            if one.failed:
                text = _text(owner, f"failed because {one.failed} {kind} replica(s) failed")
                return self._ended(status, "Failed", text)
        if leader not in specs:
            return status
        if counts[leader].succeeded >= specs[leader].replicas:
            return self._ended(status, "Succeeded", _text(owner, "successfully completed"))
        if counts[leader].active:
            return self._with(
                status, "Running", "True", _reason("Running"), _text(owner, "running")
            )
        return status

    def _ended(self, status: PyTorchJobStatus, kind: str, text: str) -> PyTorchJobStatus:
        status = self._with(status, kind, "True", _reason(kind), text)
        if _is_true(status, "Running"):
            status = self._with(status, "Running", "False", _reason(kind), text, last=kind)
        counts = status.replica_statuses
        if kind == "Succeeded":
            counts = {
                name: replace(one, active=0, succeeded=one.succeeded + one.active)
                for name, one in counts.items()
            }
        now = self._cluster.timestamp()
        return replace(status, completion_time=now, replica_statuses=counts)

    def _with(
        self,
        status: PyTorchJobStatus,
        kind: str,
        value: str,
        reason: str,
        text: str,
        last: str = "",
    ) -> PyTorchJobStatus:
        """Set a condition as the newest one; an unchanged one stays in its place.

        :param last: the condition that remains the newest.
        """
        known = {c.type: c for c in status.conditions}
        before = known.get(kind)
        if before is not None and before.status == value:
            return status
        now = self._cluster.timestamp()
        for gone in (kind, _OPPOSITE.get(kind, "")):
            known.pop(gone, None)
        known[kind] = WorkloadCondition(kind, value, reason, text, now, now)
        if last:
            known[last] = known.pop(last)
        return replace(status, conditions=tuple(known.values()))


def _group_of(owner: PyTorchJob) -> SchedulerPluginsPodGroup | VolcanoPodGroup | None:
    """Return the pod group that a job's scheduling policy asks for, as the operator makes it.

    It is Volcano's where the job is for Volcano, else that of the scheduler plugins.
    """
    policy, specs = owner.spec.run_policy.scheduling_policy, owner.spec.pytorch_replica_specs
    if policy is None or any(map(_names_a_group, specs.values())):
        return None
    least = policy.min_available
    if least is None:
        least = sum(spec.replicas for spec in specs.values())
    meta = ObjectMeta(
        name=owner.metadata.name,
        namespace=owner.metadata.namespace,
        owner_references=(reference_of(owner),),
    )
    if not _is_of_volcano(owner):
        return SchedulerPluginsPodGroup(meta, PodGroupSpec(least, policy.min_resources))
    return VolcanoPodGroup(
        meta,
        VolcanoPodGroupSpec(
            least,
            min_resources=policy.min_resources,
            queue=policy.queue or "default",
            priority_class_name=policy.priority_class,
        ),
    )


def _is_of_volcano(owner: PyTorchJob) -> bool:
    """Tell whether a job is for Volcano: it names a queue, or its pods name the scheduler."""
    policy = owner.spec.run_policy.scheduling_policy
    names = {one.template.spec.scheduler_name for one in owner.spec.pytorch_replica_specs.values()}
    return "volcano" in names or bool(
        policy is not None and (policy.queue or policy.priority_class)
    )


def _names_a_group(spec: ReplicaSpec) -> bool:
    """Tell whether pods of a template belong to a gang by what the template says."""
    return bool(membership_of(Pod(spec.template.metadata, spec.template.spec)).gang)


def _is_of(owner: PyTorchJob, group: ApiObject) -> bool:
    return any(one.uid == owner.metadata.uid for one in group.metadata.owner_references)


def _reason(what: str) -> str:
    return f"PyTorchJob{what}"


def _text(owner: PyTorchJob, what: str) -> str:
    return f"PyTorchJob {owner.metadata.name} is {what}."


def _is_true(status: PyTorchJobStatus, *kinds: str) -> bool:
    return any(c.type in kinds and c.status == "True" for c in status.conditions)


def _index_of(pod: Pod) -> int:
    text = pod.metadata.labels.get(_INDEX, "")
    return int(text) if is_index(text) else -1
