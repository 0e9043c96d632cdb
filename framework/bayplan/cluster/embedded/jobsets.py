"""The JobSet controller: Jobs that start, are suspended and end together.

Names, labels, conditions and their order are those of kubernetes-sigs/jobset.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from bayplan.api import Job, JobSet, ObjectMeta, Pod
from bayplan.api.jobset import JobSetStatus, ReplicatedJob, ReplicatedJobStatus
from bayplan.api.meta import Condition
from bayplan.api.objects import decode_part
from bayplan.api.pod import PodTemplate
from bayplan.api.workloads import JobSpec
from bayplan.cluster.embedded.children import Children, part_of, reference_of
from bayplan.cluster.embedded.jobset_failures import outcome_of
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.errors import AlreadyExists, InputError

__all__ = ["JobSetController", "set_of"]

T = TypeVar("T")
_PREFIX = "jobset.sigs.k8s.io/"
_GROUP = f"{_PREFIX}replicatedjob-name"
_ATTEMPT = f"{_PREFIX}restart-attempt"
_SET, _UID = f"{_PREFIX}jobset-name", f"{_PREFIX}jobset-uid"
_CONTROLLER = "jobset.sigs.k8s.io/jobset-controller"
_TERMINAL = ("Completed", "Failed")
_DONE = Condition("Completed", "True", "AllJobsCompleted", "jobset completed successfully")
_SUSPENDED = Condition("Suspended", "True", "SuspendedJobs", "jobset is suspended")
_RESUMED = Condition("Suspended", "False", "ResumeJobs", "jobset is resumed")
_READY_AGAIN = Condition("RestartingJobSet", "False", "JobsReady", "all jobs are ready")
_STARTING = Condition(
    "StartupPolicyInProgress",
    "True",
    "InOrderStartupPolicyInProgress",
    "in order startup policy is in progress",
)
_STARTED = Condition(
    "StartupPolicyCompleted",
    "True",
    "InOrderStartupPolicyCompleted",
    "in order startup policy has completed",
)


class _Jobs(msgspec.Struct, frozen=True):
    """The Jobs of a job set by their state; previous ones are of an earlier attempt."""

    active: list[Job]
    succeeded: list[Job]
    failed: list[Job]
    previous: list[Job]

    @property
    def names(self) -> set[str]:
        """The names that are taken."""
        found = (*self.active, *self.succeeded, *self.failed, *self.previous)
        return {job.metadata.name for job in found}


class JobSetController:
    """Creates, suspends and resumes the Jobs of job sets, and writes the status of the sets."""

    def __init__(self, cluster: MemoryCluster, children: Children) -> None:
        self._cluster = cluster
        self._children = children

    def reconcile(self, owner: JobSet) -> None:
        """Bring the Jobs of a job set in line with it, and write its status."""
        if owner.spec.managed_by not in (None, _CONTROLLER):
            return
        jobs = _sorted_out(owner, self._children.jobs(owner))
        groups = tuple(_status_of(group, jobs) for group in owner.spec.replicated_jobs)
        status = replace(owner.status, replicated_jobs_status=groups)
        for job in jobs.previous:
            self._cluster.delete(Job, self._cluster.key_of(job))
        if status.terminal_state:
            for job in jobs.active:
                self._cluster.delete(Job, self._cluster.key_of(job))
        else:
            status = self._step(owner, jobs, status)
        if status != owner.status:
            self._cluster.update(replace(owner, status=status))

    def _step(self, owner: JobSet, jobs: _Jobs, status: JobSetStatus) -> JobSetStatus:
        """Do what a job set that has not ended needs next; return its status."""
        if jobs.failed:
            outcome = outcome_of(owner, jobs.failed)
            if outcome.fails:
                return replace(self._with(status, outcome.condition), terminal_state="Failed")
            return replace(
                self._with(status, outcome.condition),
                restarts=status.restarts + 1,
                restarts_count_towards_max=status.restarts_count_towards_max + outcome.counts,
            )
        if self._waits_for_previous(owner, jobs):
            return status
        if _has_succeeded(owner, jobs):
            return replace(self._with(status, _DONE), terminal_state="Completed")
        in_order = _starts_in_order(owner)
        for group, state in zip(
            owner.spec.replicated_jobs, status.replicated_jobs_status, strict=True
        ):
            runs = any(job.metadata.labels.get(_GROUP) == group.name for job in jobs.active)
            if not _may_start(owner, group, status) and not (owner.spec.suspend and runs):
                continue
            started = state.ready + state.succeeded + state.failed >= group.replicas
            if owner.spec.suspend or not (in_order and started):
                self._start(owner, group, jobs)
                if in_order and not owner.spec.suspend:
                    return self._with(status, _STARTING)
        if owner.spec.suspend:
            return self._with(status, _SUSPENDED)
        if in_order:
            status = self._with(status, _STARTED)
        states = zip(owner.spec.replicated_jobs, status.replicated_jobs_status, strict=True)
        if all(state.ready + state.succeeded >= group.replicas for group, state in states):
            status = self._with(status, _READY_AGAIN)
        return self._with(status, _RESUMED)

    def _waits_for_previous(self, owner: JobSet, jobs: _Jobs) -> bool:
        """Tell whether a set waits until nothing of its last attempt is left."""
        policy = owner.spec.failure_policy
        if policy is None or policy.restart_strategy != "BlockingRecreate":
            return False
        wanted = sum(group.replicas for group in owner.spec.replicated_jobs)
        if not owner.status.restarts or (len(jobs.names) == wanted and not jobs.previous):
            return False
        attempt = str(owner.status.restarts)
        return bool(jobs.previous) or any(
            pod.metadata.labels.get(_SET) == owner.metadata.name
            and pod.metadata.namespace == owner.metadata.namespace
            and pod.metadata.labels.get(_ATTEMPT, attempt) != attempt
            for pod in self._cluster.list(Pod)
        )

    def _start(self, owner: JobSet, group: ReplicatedJob, jobs: _Jobs) -> None:
        """Create the missing Jobs of a group, and suspend or resume those that there are."""
        suspend, size = owner.spec.suspend, group.template.spec
        for job in jobs.active:
            if job.metadata.labels.get(_GROUP) == group.name and not _same_size(job.spec, size):
                spec = replace(job.spec, parallelism=size.parallelism, completions=size.completions)
                job = self._cluster.update(replace(job, spec=spec))
            if job.metadata.labels.get(_GROUP) == group.name and job.spec.suspend != suspend:
                template = job.spec.template
                if not suspend:
                    template = _updated(template, group.template.spec.template)
                spec = replace(job.spec, suspend=suspend, template=template)
                self._cluster.update(replace(job, spec=spec))
        for index in range(group.replicas):
            if f"{owner.metadata.name}-{group.name}-{index}" not in jobs.names:
                self._create(owner, group, index)

    def _create(self, owner: JobSet, group: ReplicatedJob, index: int) -> None:
        marks = _marks(owner, group, index)
        template, name = group.template, f"{owner.metadata.name}-{group.name}-{index}"
        meta = ObjectMeta(
            name=name,
            namespace=owner.metadata.namespace,
            labels={**template.metadata.labels, **marks},
            annotations={**template.metadata.annotations, **marks},
            owner_references=(reference_of(owner),),
        )
        pods = template.spec.template
        labels = {**pods.metadata.labels, **marks}
        annotations = {**pods.metadata.annotations, **marks}
        pods = replace(
            pods, metadata=replace(pods.metadata, labels=labels, annotations=annotations)
        )
        spec = replace(template.spec.job_spec, suspend=owner.spec.suspend, template=pods)
        place = owner.spec.replicated_jobs.index(group)
        content = part_of(self._cluster, owner, "replicatedJobs", place, "template", "spec")
        try:
            self._children.keep(self._made(Job(meta, spec), content))
        except AlreadyExists:
            return
        except InputError as exc:
            self._cluster.report(owner, exc)

    def _made(self, job: Job, content: dict[str, Any] | None) -> Job:
        if content is None:
            return self._cluster.create(job)
        held = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": content}
        return self._cluster.create_from(job, held, Job(spec=decode_part(JobSpec, content)))

    def _with(self, status: JobSetStatus, wanted: Condition) -> JobSetStatus:
        """Set a condition; a new one is added only when it is true."""
        known = {c.type: c for c in status.conditions}
        before = known.get(wanted.type)
        if before is None and wanted.status != "True":
            return status
        if before is None or before.status != wanted.status:
            known[wanted.type] = replace(wanted, last_transition_time=self._cluster.timestamp())
        if wanted in (_STARTED, _STARTING):
            other = (_STARTED if wanted is _STARTING else _STARTING).type
            if other in known:
                known[other] = replace(known[other], status="False")
        return replace(status, conditions=tuple(known.values()))


def set_of(pod: Pod) -> tuple[str, str] | None:
    """Return key and uid of the job set that a pod's labels name; None for none."""
    labels = pod.metadata.labels
    if _SET not in labels or _UID not in labels:
        return None
    return f"{pod.metadata.namespace}/{labels[_SET]}", labels[_UID]


def _same_size(job: JobSpec, wanted: JobSpec) -> bool:
    """Tell whether a Job is as large as its template says; indexed ones can be resized."""
    if wanted.completion_mode != "Indexed" or wanted.parallelism != wanted.completions:
        return True
    return job.parallelism == wanted.parallelism and job.completions == wanted.completions


def _sorted_out(owner: JobSet, jobs: list[Job]) -> _Jobs:
    found = _Jobs([], [], [], [])
    for job in jobs:
        ended = {c.type for c in job.status.conditions if c.status == "True"}
        if job.metadata.labels.get(_ATTEMPT) != str(owner.status.restarts):
            found.previous.append(job)
        elif "Failed" in ended:
            found.failed.append(job)
        elif "Complete" in ended:
            found.succeeded.append(job)
        else:
            found.active.append(job)
    return found


def _status_of(group: ReplicatedJob, jobs: _Jobs) -> ReplicatedJobStatus:
    def own(some: list[Job]) -> list[Job]:
        return [job for job in some if job.metadata.labels.get(_GROUP) == group.name]

    active = own(jobs.active)
    return ReplicatedJobStatus(
        group.name,
        ready=sum(_is_ready(job) for job in active),
        succeeded=len(own(jobs.succeeded)),
        failed=len(own(jobs.failed)),
        active=sum(bool(job.status.active) for job in active),
        suspended=sum(job.spec.suspend for job in active),
    )


def _is_ready(job: Job) -> bool:
    spec, status = job.spec, job.status
    wanted = spec.parallelism
    if spec.completions is not None:
        wanted = min(wanted, spec.completions)
    return (status.succeeded or 0) + (status.ready or 0) >= wanted


def _has_succeeded(owner: JobSet, jobs: _Jobs) -> bool:
    policy = owner.spec.success_policy
    targets = set(policy.target_replicated_jobs) if policy is not None else set()
    done = sum(not targets or job.metadata.labels.get(_GROUP) in targets for job in jobs.succeeded)
    if policy is not None and policy.operator == "Any":
        return done >= 1
    groups = owner.spec.replicated_jobs
    return done >= sum(one.replicas for one in groups if not targets or one.name in targets)


def _starts_in_order(owner: JobSet) -> bool:
    policy = owner.spec.startup_policy
    return policy is not None and policy.startup_policy_order == "InOrder"


def _may_start(owner: JobSet, group: ReplicatedJob, status: JobSetStatus) -> bool:
    """Return whether what a group depends on has come far enough."""
    sizes = {one.name: one.replicas for one in owner.spec.replicated_jobs}
    states = {one.name: one for one in status.replicated_jobs_status}
    for wanted in group.depends_on:
        state = states[wanted.name]
        reached = state.succeeded
        if wanted.status == "Ready":
            reached += state.ready + state.failed
        if reached < sizes[wanted.name]:
            return False
    return True


def _updated(template: PodTemplate, wanted: PodTemplate) -> PodTemplate:
    """Return a Job's template with what a queue changed in the set while it was suspended."""
    meta, spec = template.metadata, template.spec
    return PodTemplate(
        replace(
            meta,
            labels={**meta.labels, **wanted.metadata.labels},
            annotations={**meta.annotations, **wanted.metadata.annotations},
        ),
        replace(
            spec,
            node_selector={**spec.node_selector, **wanted.spec.node_selector},
            tolerations=_joined(spec.tolerations, wanted.spec.tolerations),
            scheduling_gates=_joined(spec.scheduling_gates, wanted.spec.scheduling_gates),
        ),
    )


def _joined(one: tuple[T, ...], other: tuple[T, ...]) -> tuple[T, ...]:
    return (*one, *(item for item in other if item not in one))


def _marks(owner: JobSet, group: ReplicatedJob, index: int) -> dict[str, str]:
    """Return the labels, which are annotations as well, of a Job and its pods."""
    meta, groups = owner.metadata, owner.spec.replicated_jobs
    place = groups.index(group)
    friends = [one for one in groups if one.group_name == group.group_name]
    before = sum(one.replicas for one in groups[:place])
    job = f"{meta.namespace}/{meta.name}-{group.name}-{index}"
    key = hashlib.sha1(job.encode(), usedforsecurity=False).hexdigest()
    values = {
        "jobset-name": meta.name,
        "jobset-uid": meta.uid,
        "replicatedjob-name": group.name,
        "restart-attempt": str(owner.status.restarts),
        "replicatedjob-replicas": str(group.replicas),
        "global-replicas": str(sum(one.replicas for one in groups)),
        "job-index": str(index),
        "job-key": key,
        "job-global-index": str(before + index),
        "group-name": group.group_name,
        "group-replicas": str(sum(one.replicas for one in friends)),
        "job-group-index": str(
            index + sum(one.replicas for one in friends[: friends.index(group)])
        ),
    }
    return {f"{_PREFIX}{name}": value for name, value in values.items()}
