"""JobSet (jobset.x-k8s.io): several groups of Jobs that start and end together."""

from __future__ import annotations

from typing import Literal

from bayplan.api.meta import ApiStruct, Condition, ObjectMeta, explicit
from bayplan.api.workloads import JobSpec

__all__ = [
    "DependsOn",
    "FailurePolicy",
    "FailurePolicyRule",
    "JobSet",
    "JobSetSpec",
    "JobSetStatus",
    "JobTemplate",
    "ReplicatedJob",
    "ReplicatedJobSpec",
    "ReplicatedJobStatus",
    "SuccessPolicy",
]


class ReplicatedJobSpec(JobSpec, frozen=True):
    """template.spec of a replicated job, whose Jobs are indexed unless it says otherwise."""

    completion_mode: Literal["NonIndexed", "Indexed"] = explicit("Indexed")

    @property
    def job_spec(self) -> JobSpec:
        """The spec of its Jobs; a lone pod needs no number of completions."""
        fields = {name: getattr(self, name) for name in JobSpec.__struct_fields__}
        if self.completions is None and self.parallelism == 1:
            fields["completions"] = 1
        return JobSpec(**fields)


class JobTemplate(ApiStruct, frozen=True):
    """template of a replicated job."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicatedJobSpec = explicit(ReplicatedJobSpec())


class DependsOn(ApiStruct, frozen=True):
    """dependsOn[]: an earlier replicated job, and what it has to have reached."""

    name: str
    status: Literal["Ready", "Complete"]


class ReplicatedJob(ApiStruct, frozen=True):
    """spec.replicatedJobs[]: ``replicas`` Jobs of one template."""

    name: str
    template: JobTemplate = explicit(JobTemplate())
    replicas: int = explicit(1)
    group_name: str = explicit("default")
    depends_on: tuple[DependsOn, ...] = ()


class SuccessPolicy(ApiStruct, frozen=True):
    """spec.successPolicy; no targets mean all replicated jobs."""

    operator: Literal["All", "Any"] = explicit("All")
    target_replicated_jobs: tuple[str, ...] = ()


class FailurePolicyRule(ApiStruct, frozen=True):
    """spec.failurePolicy.rules[]: what becomes of the set when a Job failed so."""

    name: str = ""
    action: str = explicit("RestartJobSet")
    on_job_failure_reasons: tuple[str, ...] = ()
    on_job_failure_message_patterns: tuple[str, ...] = ()
    target_replicated_jobs: tuple[str, ...] = ()


class FailurePolicy(ApiStruct, frozen=True):
    """spec.failurePolicy: how often all Jobs are made again after one failed, and when not."""

    max_restarts: int = 0
    restart_strategy: str = explicit("Recreate")
    rules: tuple[FailurePolicyRule, ...] = ()


class StartupPolicy(ApiStruct, frozen=True):
    """spec.startupPolicy: InOrder starts a replicated job once the one before it is ready."""

    startup_policy_order: Literal["AnyOrder", "InOrder"] = explicit("AnyOrder")


class JobSetSpec(ApiStruct, frozen=True):
    """spec of a job set."""

    replicated_jobs: tuple[ReplicatedJob, ...] = ()
    suspend: bool = False
    success_policy: SuccessPolicy | None = None
    failure_policy: FailurePolicy | None = None
    startup_policy: StartupPolicy | None = None
    managed_by: str | None = None


class ReplicatedJobStatus(ApiStruct, frozen=True):
    """status.replicatedJobsStatus[]: the number of a replicated job's Jobs in each state."""

    name: str
    ready: int = explicit(0)
    succeeded: int = explicit(0)
    failed: int = explicit(0)
    active: int = explicit(0)
    suspended: int = explicit(0)


class JobSetStatus(ApiStruct, frozen=True):
    """status of a job set; ``terminal_state`` is Completed, Failed or empty."""

    conditions: tuple[Condition, ...] = ()
    restarts: int = 0
    restarts_count_towards_max: int = 0
    terminal_state: str = ""
    replicated_jobs_status: tuple[ReplicatedJobStatus, ...] = ()


class JobSet(ApiStruct, frozen=True):
    """jobset.x-k8s.io/v1alpha2 JobSet."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobSetSpec = explicit(JobSetSpec())
    status: JobSetStatus = JobSetStatus()
