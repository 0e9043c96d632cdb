"""The Volcano job controller of the embedded cluster: a PodGroup, pods and a status for every Job.

Names, labels and annotations are those of volcano-sh/volcano's controller, as far as a scheduler
and its users see them. A pod that is deleted is recreated under its own name, unless a policy of
the job says otherwise; policies about exit codes and times do nothing here.
"""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.api import ObjectMeta, OwnerReference, Pod, VolcanoCommand, VolcanoJob, VolcanoPodGroup
from bayplan.api.meta import LabelSelector
from bayplan.api.object_key import object_key
from bayplan.api.podgroup import SubGroupPolicy, VolcanoPodGroupSpec
from bayplan.api.workloads import VolcanoTask
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.embedded.volcano_status import commanded, least_of, makes_pods, status_of
from bayplan.cluster.protocol import WatchEvent, WatchType
from bayplan.dialects.reading import is_index
from bayplan.dialects.volcano import GROUP_ANNOTATION, TASK_ANNOTATION
from bayplan.errors import AlreadyExists, InputError

__all__ = ["VolcanoJobs"]

_INDEX = "volcano.sh/task-index"
_PARTITION = "volcano.sh/partition-id"
_JOB = "volcano.sh/job-name"
_VERSION = "volcano.sh/job-version"


class VolcanoJobs:
    """Creates and replaces the pods of Volcano jobs, and writes the status of the jobs."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._pods: dict[str, dict[str, None]] = {}
        self._dirty: dict[str, None] = {}
        self._deleted: set[str] = set()
        """The uids of pods that this controller deletes itself: nobody evicts them."""
        self._failed: set[str] = set()
        """The uids of pods that are known to have failed."""
        cluster.watch(self.handle)

    def handle(self, event: WatchEvent) -> None:
        """Reconcile a job after it or one of its pods changed."""
        obj = event.obj
        if isinstance(obj, VolcanoJob):
            if event.type is WatchType.DELETED:
                self._delete(obj)
            else:
                self._request(object_key(obj))
        elif isinstance(obj, VolcanoCommand):
            if event.type is WatchType.ADDED:
                self._cluster.clock.call_later(0, lambda: self._carry_out(obj))
        elif isinstance(obj, Pod):
            name = obj.metadata.labels.get(_JOB)
            if name:
                job = f"{obj.metadata.namespace}/{name}"
                self._apply_policies(job, obj, event.type)
                pods = self._pods.setdefault(job, {})
                if event.type is WatchType.DELETED:
                    pods.pop(obj.key, None)
                else:
                    pods[obj.key] = None
                self._request(job)

    def _carry_out(self, command: VolcanoCommand) -> None:
        """Do once what a command says; a job whose phase forbids it stays as it is."""
        key = object_key(command)
        if self._cluster.get(VolcanoCommand, key) is None:
            return
        self._cluster.delete(VolcanoCommand, key)
        name = command.target.name if command.target is not None else ""
        job = self._cluster.get(VolcanoJob, f"{command.metadata.namespace}/{name}")
        if job is None:
            return
        self._act(job, command.action)

    def _act(self, job: VolcanoJob, action: str) -> None:
        """Do something to a job; one whose phase forbids it stays as it is."""
        status = commanded(job.status, action, self._cluster.timestamp())
        if status is None:
            return
        self._delete(job, keep_ended=action != "RestartJob")
        self._cluster.update(replace(job, status=status))

    def _apply_policies(self, key: str, pod: Pod, change: WatchType) -> None:
        """Do what a job's policies say when one of its pods was evicted or has failed."""
        uid, event = pod.metadata.uid, ""
        if change is WatchType.DELETED:
            event = "" if uid in self._deleted else "PodEvicted"
            self._deleted.discard(uid)
            self._failed.discard(uid)
        elif pod.status.phase == "Failed" and uid not in self._failed:
            self._failed.add(uid)
            event = "PodFailed"
        job = self._cluster.get(VolcanoJob, key) if event else None
        if job is not None and any(
            one.uid == job.metadata.uid for one in pod.metadata.owner_references
        ):
            self._act(job, _action(job, pod, event))

    def _request(self, key: str) -> None:
        if not self._dirty:
            self._cluster.clock.call_later(0, self._reconcile_all)
        self._dirty[key] = None

    def _reconcile_all(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for key in dirty:
            job = self._cluster.get(VolcanoJob, key)
            if job is not None:
                self._reconcile(job)
                self._write_status(job)
            elif not self._pods.get(key):
                self._pods.pop(key, None)

    def _delete(self, job: VolcanoJob, keep_ended: bool = False) -> None:
        """Delete the pods of a job and its group.

        :param keep_ended: whether pods that succeeded or failed stay.
        """
        for pod in self._own(job):
            if not keep_ended or pod.status.phase not in ("Succeeded", "Failed"):
                self._deleted.add(pod.metadata.uid)
                self._cluster.delete(Pod, pod.key)
        group = f"{job.metadata.namespace}/{_group_name(job)}"
        if self._cluster.get(VolcanoPodGroup, group) is not None:
            self._cluster.delete(VolcanoPodGroup, group)

    def _own(self, job: VolcanoJob) -> list[Pod]:
        """Return the pods of a job as they are now."""
        found = (self._cluster.get(Pod, key) for key in self._pods.get(object_key(job), ()))
        return [
            pod
            for pod in found
            if pod is not None
            and any(owner.uid == job.metadata.uid for owner in pod.metadata.owner_references)
        ]

    def _write_status(self, job: VolcanoJob) -> None:
        status = status_of(job, self._own(job), self._cluster.timestamp())
        if status != job.status:
            self._cluster.update(replace(job, status=status))

    def _reconcile(self, job: VolcanoJob) -> None:
        if not makes_pods(job.status):
            return
        self._make_group(job)
        self._remove_surplus(job)
        for position, task in enumerate(job.spec.tasks):
            for index in range(task.replicas):
                pod = _pod_of(job, task, position, index)
                if self._cluster.get(Pod, pod.key) is None:
                    try:
                        self._create(job, task, position, pod)
                    except AlreadyExists:
                        continue
                    except InputError as exc:
                        self._cluster.report(job, exc)
                        return

    def _make_group(self, job: VolcanoJob) -> None:
        """Create the pod group, or let its minimum follow that of the job."""
        known = self._cluster.get(VolcanoPodGroup, f"{job.metadata.namespace}/{_group_name(job)}")
        made = _group_of(job)
        if known is None:
            self._cluster.create(made)
            return
        spec = replace(
            known.spec,
            min_member=made.spec.min_member,
            min_task_member=made.spec.min_task_member,
        )
        if spec != known.spec:
            self._cluster.update(replace(known, spec=spec))

    def _remove_surplus(self, job: VolcanoJob) -> None:
        """Delete the pods with the highest indexes when a task has fewer replicas than before."""
        counts = {
            _task_name(task, place): task.replicas for place, task in enumerate(job.spec.tasks)
        }
        for pod in self._own(job):
            count = counts.get(pod.metadata.annotations.get(TASK_ANNOTATION, ""))
            index = pod.metadata.annotations.get(_INDEX, "")
            surplus = count is not None and is_index(index) and int(index) >= count
            if surplus and pod.metadata.deletion_timestamp is None:
                self._deleted.add(pod.metadata.uid)
                self._cluster.delete(Pod, pod.key)

    def _create(self, job: VolcanoJob, task: VolcanoTask, position: int, pod: Pod) -> None:
        """Create a pod, with the untyped fields of its template."""
        content = self._cluster.content_of(job)
        if content is None:
            self._cluster.create(pod)
            return
        template = content["spec"]["tasks"][position].get("template", {})
        held = {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": template.get("spec", {})}
        self._cluster.create_from(pod, held, Pod(spec=task.template.spec))


def _action(job: VolcanoJob, pod: Pod, event: str) -> str:
    """Return what the first policy for an event says, of the pod's task or of the job."""
    name = pod.metadata.annotations.get(TASK_ANNOTATION, "")
    tasks = [one for place, one in enumerate(job.spec.tasks) if _task_name(one, place) == name]
    for policy in (*(one for task in tasks for one in task.policies), *job.spec.policies):
        if {event, "*"} & {policy.event, *policy.events}:
            return policy.action
    return ""


def _group_name(job: VolcanoJob) -> str:
    return f"{job.metadata.name}-{job.metadata.uid}"


def _owner(job: VolcanoJob) -> OwnerReference:
    meta = job.metadata
    return OwnerReference("Job", meta.name, meta.uid, "batch.volcano.sh/v1alpha1", controller=True)


def _task_name(task: VolcanoTask, position: int) -> str:
    return task.name or f"default{position}"


def _group_of(job: VolcanoJob) -> VolcanoPodGroup:
    spec = job.spec
    total, least = sum(task.replicas for task in spec.tasks), least_of(job)
    policies = []
    for position, task in enumerate(spec.tasks):
        partition = task.partition_policy
        if partition is not None:
            name = _task_name(task, position)
            policies.append(
                SubGroupPolicy(
                    name,
                    partition.network_topology,
                    partition.partition_size,
                    partition.min_partitions,
                    LabelSelector({TASK_ANNOTATION: name}),
                    (_PARTITION,),
                )
            )
    return VolcanoPodGroup(
        ObjectMeta(
            name=_group_name(job),
            namespace=job.metadata.namespace,
            owner_references=(_owner(job),),
        ),
        VolcanoPodGroupSpec(
            least,
            {
                _task_name(task, position): task.min_available
                if task.min_available is not None
                else task.replicas
                for position, task in enumerate(spec.tasks)
                if task.min_available is not None or least == total
            },
            queue=spec.queue,
            priority_class_name=spec.priority_class_name,
            network_topology=spec.network_topology,
            sub_group_policy=tuple(policies),
        ),
    )


def _pod_of(job: VolcanoJob, task: VolcanoTask, position: int, index: int) -> Pod:
    template, meta = task.template, job.metadata
    name = _task_name(task, position)
    marks = {TASK_ANNOTATION: name, _INDEX: str(index), _JOB: meta.name}
    labels = {**template.metadata.labels, **marks}
    if task.partition_policy is not None:
        labels[_PARTITION] = str(index // task.partition_policy.partition_size)
    annotations = {**template.metadata.annotations, **marks, GROUP_ANNOTATION: _group_name(job)}
    annotations[_VERSION] = str(job.status.retry_count)
    spec = template.spec
    if spec.scheduler_name == "default-scheduler":
        spec = replace(spec, scheduler_name=job.spec.scheduler_name)
    if job.spec.priority_class_name and not spec.priority_class_name:
        spec = replace(spec, priority_class_name=job.spec.priority_class_name)
    return Pod(
        ObjectMeta(
            name=f"{meta.name}-{name}-{index}",
            namespace=meta.namespace,
            labels=labels,
            annotations=annotations,
            owner_references=(_owner(job),),
        ),
        spec,
    )
