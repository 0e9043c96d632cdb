"""The kinds of workloads that bayplan knows: the only place that knows one of them.

Sources are the projects' own API types and controllers. A kind whose pods are those of an object
that it makes, such as a RayJob, which makes a RayCluster, has a row for what queues ask of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from bayplan.api.objects import Kind, add_kind, remove_kind
from bayplan.api.operated import OperatedObject
from bayplan.kinds.kind import (
    Added,
    Copied,
    Counted,
    Ends,
    PodTemplates,
    Segments,
    Surge,
    When,
    WorkloadKind,
)

__all__ = ["KINDS_OF_WORKLOADS", "SINGLE_PODS", "register", "rows_of_users", "title_of"]

_KUBEFLOW = "kubeflow.org"
_REPLICA_TYPE = "training.kubeflow.org/replica-type"
_REPLICA_INDEX = "training.kubeflow.org/replica-index"
_POLICY = "spec.runPolicy.schedulingPolicy.minAvailable"
_PRIORITY = "spec.runPolicy.schedulingPolicy.priorityClass"
_CLEAN = "spec.runPolicy.cleanPodPolicy"
_RUNNING = "status.conditions[Running]"
_JOBSET = "jobset.sigs.k8s.io"
_INDEX_IN_JOB = "batch.kubernetes.io/job-completion-index"
_SUSPEND = "spec.suspend"
_MANAGED_BY = "spec.managedBy"
_BATCH_MINIMUM = "kai.scheduler/batch-min-member"
_LWS = "leaderworkerset.sigs.k8s.io"


def _kubeflow(
    kind: str,
    specs: str,
    *types: str,
    minimum: tuple[str, ...] = (),
    needed: tuple[str, ...] = (),
    no_empty_roles: bool = False,
) -> WorkloadKind:
    """Return the row of a job of the training operator: ``types`` are those of its replicas."""
    pods = tuple(
        PodTemplates(
            f"spec.{specs}.{type_}.template",
            type_.lower(),
            count=(f"spec.{specs}.{type_}.replicas",),
            labels={_REPLICA_TYPE: "{role}"},
            needed=type_ in needed,
            pod="{object}-{role}-{index}",
            index=_REPLICA_INDEX,
            status=f"status.replicaStatuses.{type_}",
            ready=("active", "succeeded"),
            succeeded="succeeded",
        )
        for type_ in types
    )
    labels = {
        "training.kubeflow.org/operator-name": f"{kind.lower()}-controller",
        "training.kubeflow.org/job-name": "{object}",
        _REPLICA_INDEX: "{index}",
    }
    return WorkloadKind(
        _KUBEFLOW,
        kind,
        pods,
        (_POLICY, *minimum),
        no_empty_roles=no_empty_roles,
        suspend="spec.runPolicy.suspend",
        managed_by="spec.runPolicy.managedBy",
        ends=Ends(("Succeeded",), ("Failed",), by=("chief", "master")),
        clean=_CLEAN,
        running=_RUNNING,
        priority=(_PRIORITY,),
        labels=labels,
    )


def _ray_pods(spec: str, submitter: When | None = None) -> tuple[PodTemplates, ...]:
    """Return the head and the worker groups of a Ray cluster whose spec is at a path.

    :param submitter: the condition under which the head has the container that submits the work.
    """
    added = [
        Added(
            When(f"{spec}.enableInTreeAutoscaling", "true"),
            _container("autoscaler", "500m", "512Mi"),
            resources=f"{spec}.autoscalerOptions.resources",
        ),
        # A Job with these requests cleans up Redis once the cluster is gone.
        Added(
            When(f"{spec}.gcsFaultToleranceOptions.redisAddress"),
            least={"cpu": "200m", "memory": "256Mi"},
        ),
    ]
    if submitter is not None:
        added.append(Added(submitter, _SUBMITTER))
    return (
        PodTemplates(
            f"{spec}.headGroupSpec.template",
            "head",
            added=tuple(added),
            labels={"ray.io/node-type": "head"},
        ),
        PodTemplates(
            "template",
            each=f"{spec}.workerGroupSpecs",
            name="groupName",
            count=("replicas", "numOfHosts"),
            bounds=("minReplicas", "maxReplicas"),
            least=("minReplicas", "numOfHosts"),
            absent="suspend",
            labels={"ray.io/node-type": "worker", "ray.io/group": "{name}"},
        ),
    )


def _container(
    name: str, cpu: str, memory: str, most: tuple[str, str] | None = None
) -> dict[str, Any]:
    """Return a container as an operator makes it; ``most`` are its limits, where they differ."""
    limits = dict(zip(("cpu", "memory"), most or (cpu, memory), strict=True))
    return {
        "name": name,
        "resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": limits},
    }


_SUBMITTER = _container("ray-job-submitter", "500m", "200Mi", ("1", "1Gi"))
_RAY_SUBMITTER = PodTemplates(
    "spec.submitterPodTemplate",
    "submitter",
    # Without a cluster of its own, a job submits to one that is somebody else's.
    only=(When("spec.submissionMode", "K8sJobMode"), When("spec.rayClusterSpec")),
    default={"spec": {"containers": [_SUBMITTER], "restartPolicy": "Never"}},
    image="spec.rayClusterSpec.headGroupSpec.template.spec.containers",
    later=(When("spec.submissionMode", "K8sJobMode"),),
    labels={"job-name": "{object}"},
    ready=tuple(
        When("status.jobStatus", one) for one in ("RUNNING", "SUCCEEDED", "FAILED", "STOPPED")
    ),
)
_ELASTIC = ("spec.elasticPolicy.minReplicas",)
_DISAGGREGATED = "disaggregatedset.x-k8s.io"
_SPARK = "sparkoperator.k8s.io"


def _spark_pods(
    role: str,
    container: str,
    count: tuple[str, ...],
    ready: tuple[When | Counted, ...],
    later: tuple[When, ...] = (),
    pod: str = "{object}-driver",
) -> PodTemplates:
    """Return the pods of a role of a Spark application, whose template may be left out."""
    spec = f"spec.{role}"
    resources = "container.resources"
    return PodTemplates(
        f"{spec}.template",
        role,
        count=count,
        default={"spec": {"containers": [{"name": container}]}},
        container=container,
        copied=(
            Copied("metadata.labels", f"{spec}.labels"),
            Copied("metadata.annotations", f"{spec}.annotations"),
            Copied("spec.nodeSelector", f"spec.nodeSelector,{spec}.nodeSelector"),
            Copied("spec.tolerations", f"{spec}.tolerations"),
            Copied("spec.affinity", f"{spec}.affinity"),
            Copied("spec.priorityClassName", f"{spec}.priorityClassName"),
            Copied("spec.schedulerName", f"{spec}.schedulerName"),
            Copied("spec.volumes", "spec.volumes"),
            Copied("spec.initContainers", f"{spec}.initContainers"),
            Copied("spec.containers", f"{spec}.sidecars"),
            Copied("container.image", f"{spec}.image,spec.image"),
            Copied(f"{resources}.requests.cpu", f"{spec}.coreRequest,{spec}.cores"),
            Copied(f"{resources}.requests.memory", f"{spec}.memory", java=True),
            Copied(f"{resources}.limits.cpu", f"{spec}.coreLimit"),
            Copied(f"{resources}.limits.memory", f"{spec}.memoryLimit", java=True),
            Copied(f"{resources}.limits.*", f"{spec}.gpu"),
        ),
        later=later,
        labels={"spark-role": role},
        pod=pod,
        ready=ready,
    )


_TABLE = (
    WorkloadKind(
        "batch",
        "Job",
        (
            PodTemplates(
                "spec.template",
                "main",
                count=("spec.parallelism,spec.completions",),
                left=("spec.completions", "status.succeeded"),
                indexed=When("spec.completionMode", "Indexed"),
                done=("status.completedIndexes", "status.failedIndexes"),
                index=_INDEX_IN_JOB,
                ready=(
                    "status.ready",
                    "status.succeeded",
                    "status.uncountedTerminatedPods.succeeded",
                ),
            ),
        ),
        asked=True,
        suspend=_SUSPEND,
        managed_by=_MANAGED_BY,
        started="status.startTime",
        ends=Ends(("Complete",), ("Failed",)),
    ),
    WorkloadKind(
        "apps",
        "StatefulSet",
        (
            PodTemplates(
                "spec.template",
                "main",
                count=("spec.replicas",),
                serial=(When("spec.podManagementPolicy", "OrderedReady"),),
                index="apps.kubernetes.io/pod-index",
            ),
        ),
        queued=True,
        asked=True,
    ),
    # Of a Deployment: its ReplicaSets have its annotations.
    WorkloadKind(
        "apps",
        "ReplicaSet",
        (PodTemplates("spec.template", "main", count=("spec.replicas",)),),
        successive=True,
        asked=True,
    ),
    WorkloadKind(
        "jobset.x-k8s.io",
        "JobSet",
        (
            PodTemplates(
                "template.spec.template",
                each="spec.replicatedJobs",
                count=("replicas", "template.spec.parallelism,template.spec.completions"),
                fewer=("template.metadata.annotations", _BATCH_MINIMUM),
                later=(
                    When("dependsOn"),
                    When("spec.startupPolicy.startupPolicyOrder", "InOrder"),
                ),
                labels={f"{_JOBSET}/replicatedjob-name": "{name}"},
                index=_INDEX_IN_JOB,
                part=(f"{_JOBSET}/job-index", "replicas"),
                status="status.replicatedJobsStatus",
                ready=("ready", "succeeded"),
                succeeded="succeeded",
            ),
        ),
        some_roles=_BATCH_MINIMUM,
        suspend=_SUSPEND,
        managed_by=_MANAGED_BY,
        ends=Ends(("Completed",), ("Failed",)),
    ),
    WorkloadKind(
        "leaderworkerset.x-k8s.io",
        "LeaderWorkerSet",
        (
            PodTemplates(
                "spec.leaderWorkerTemplate.leaderTemplate,spec.leaderWorkerTemplate.workerTemplate",
                "leader",
                labels={f"{_LWS}/worker-index": "0"},
                pod="{object}-{unit}",
            ),
            PodTemplates(
                "spec.leaderWorkerTemplate.workerTemplate",
                "worker",
                count=("spec.leaderWorkerTemplate.size",),
                less=1,
                later=(
                    When("spec.startupPolicy", "LeaderReady"),
                    # Workers get their node selector from the node of their leader.
                    When(f"{_LWS}/exclusive-topology", annotation=True),
                ),
                pod="{object}-{unit}-{index}",
                first=1,
                index=f"{_LWS}/worker-index",
            ),
        ),
        unit=f"{_LWS}/group-index",
        units="spec.replicas",
        surge=Surge(
            "spec.rolloutStrategy.rollingUpdateConfiguration.maxSurge",
            "status.replicas",
            "status.updatedReplicas",
        ),
        queued=True,
        segments=Segments(
            f"{_LWS}/worker-index",
            "spec.leaderWorkerTemplate.subGroupPolicy.subGroupSize",
            When("spec.leaderWorkerTemplate.subGroupPolicy.subGroupPolicyType", "LeaderExcluded"),
        ),
        labels={
            f"{_LWS}/name": "{object}",
            f"{_LWS}/group-index": "{unit}",
            f"{_LWS}/worker-index": "{index}",
        },
    ),
    _kubeflow("PyTorchJob", "pytorchReplicaSpecs", "Master", "Worker", minimum=_ELASTIC),
    _kubeflow(
        "TFJob",
        "tfReplicaSpecs",
        "Chief",
        "Master",
        "PS",
        "Worker",
        "Evaluator",
        no_empty_roles=True,
    ),
    _kubeflow(
        "XGBoostJob",
        "xgbReplicaSpecs",
        "Master",
        "Worker",
        needed=("Master", "Worker"),
        no_empty_roles=True,
    ),
    _kubeflow("PaddleJob", "paddleReplicaSpecs", "Master", "Worker", minimum=_ELASTIC),
    _kubeflow("JAXJob", "jaxReplicaSpecs", "Worker", needed=("Worker",), no_empty_roles=True),
    WorkloadKind(
        _KUBEFLOW,
        "MPIJob",
        (
            PodTemplates(
                "spec.mpiReplicaSpecs.Launcher.template",
                "launcher",
                count=("spec.mpiReplicaSpecs.Launcher.replicas",),
                needed=True,
                later=(When("spec.launcherCreationPolicy", "WaitForWorkersReady"),),
                labels={"training.kubeflow.org/job-role": "launcher"},
                pod="{object}-launcher",
                index=_REPLICA_INDEX,
                status="status.replicaStatuses.Launcher",
                ready=("active", "succeeded"),
                succeeded="succeeded",
            ),
            PodTemplates(
                "spec.mpiReplicaSpecs.Worker.template",
                "worker",
                count=("spec.mpiReplicaSpecs.Worker.replicas",),
                labels={"training.kubeflow.org/job-role": "worker"},
                pod="{object}-worker-{index}",
                index=_REPLICA_INDEX,
                status="status.replicaStatuses.Worker",
                ready=("active", "succeeded"),
                succeeded="succeeded",
            ),
        ),
        (_POLICY,),
        no_empty_roles=True,
        suspend="spec.runPolicy.suspend",
        managed_by="spec.runPolicy.managedBy",
        ends=Ends(("Succeeded",), ("Failed",), by=("launcher",)),
        clean=_CLEAN,
        running=_RUNNING,
        priority=(_PRIORITY,),
        labels={
            "training.kubeflow.org/operator-name": "mpi-operator",
            "training.kubeflow.org/job-name": "{object}",
            "training.kubeflow.org/replica-index": "{index}",
        },
    ),
    # A slice runs with one group of each role; more groups come as wholes. Where workers are made
    # only once their leader runs, each LeaderWorkerSet makes its own gangs.
    WorkloadKind(
        _DISAGGREGATED,
        "DisaggregatedSet",
        (
            PodTemplates(
                "./spec.leaderWorkerTemplate.workerTemplate",
                each="spec.roles",
                count=("./spec.replicas", "./spec.leaderWorkerTemplate.size"),
                least=("./spec.leaderWorkerTemplate.size",),
                only=(
                    When("./spec.startupPolicy", "LeaderReady", negated=True),
                    When(f"./{_LWS}/exclusive-topology", annotation=True, negated=True),
                ),
                labels={f"{_DISAGGREGATED}/role": "{name}"},
                part=(f"{_LWS}/group-index", "./spec.replicas"),
                whole=True,
            ),
        ),
        unit=f"{_DISAGGREGATED}/slice,{_DISAGGREGATED}/revision",
        units="spec.slices",
        revision=f"{_DISAGGREGATED}/revision",
        domain="spec.placementPolicy.topology",
    ),
    # Its PodGroup, which Volcano's controller writes, is the gang.
    WorkloadKind(
        "batch.volcano.sh",
        "Job",
        (PodTemplates("template", each="spec.tasks", count=("replicas",)),),
        below=True,
        ends=Ends(
            ("Completed",),
            ("Failed", "Aborted", "Terminated", "Aborting", "Terminating", "Completing"),
            "status.state.phase",
            reason="status.state.reason",
            message="status.state.message",
        ),
    ),
    # Of Grove, a PodGang is the gang.
    WorkloadKind("grove.io", "PodCliqueSet", (), below=True),
    WorkloadKind("grove.io", "PodCliqueScalingGroup", (), below=True),
    WorkloadKind(
        "grove.io",
        "PodClique",
        (
            PodTemplates(
                "",
                "clique",
                count=("spec.replicas",),
                least=("spec.minAvailable",),
                default={"spec": {}},
                copied=(
                    Copied("spec", "spec.podSpec"),
                    Copied("metadata.labels", "metadata.labels"),
                    Copied("metadata.annotations", "metadata.annotations"),
                ),
                pod="{object}-{index}",
                ready=("status.readyReplicas",),
            ),
        ),
        asked=True,
    ),
    # A step is a pod of its own, or what its manifest says.
    WorkloadKind(
        "argoproj.io",
        "Workflow",
        (),
        below=True,
        ends=Ends(("Succeeded",), ("Failed", "Error"), "status.phase", message="status.message"),
        labels={"workflows.argoproj.io/workflow": "{object}"},
    ),
    # Its pods are those of a Deployment, and one by one unless its template asks.
    WorkloadKind(
        "serving.knative.dev",
        "Service",
        (),
        below=True,
        labels={"serving.knative.dev/service": "{object}"},
    ),
    # The driver makes the executors, so nothing waits for both of them.
    WorkloadKind(
        _SPARK,
        "SparkApplication",
        (
            _spark_pods(
                "driver",
                "spark-kubernetes-driver",
                (),
                (When("status.applicationState.state", "RUNNING"),),
            ),
            _spark_pods(
                "executor",
                "spark-kubernetes-executor",
                ("spec.executor.instances",),
                (Counted("status.executorState", ("RUNNING", "COMPLETED")),),
                (When("spec.executor"),),
                "{object}-exec-{index}",
            ),
        ),
        asked=True,
        suspend=_SUSPEND,
        ends=Ends(
            ("COMPLETED",),
            ("FAILED", "SUBMISSION_FAILED"),
            "status.applicationState.state",
            message="status.applicationState.errorMessage",
            by=("driver",),
        ),
        labels={f"{_SPARK}/app-name": "{object}"},
    ),
    WorkloadKind(
        "workload.codeflare.dev",
        "AppWrapper",
        (),
        wraps="spec.components",
        suspend=_SUSPEND,
        managed_by=_MANAGED_BY,
        ends=Ends(
            ("Succeeded",),
            ("Failed",),
            "status.phase",
            texts={
                "Succeeded": "AppWrapper finished successfully",
                "Failed": "AppWrapper failed",
            },
            unless=When("status.conditions[ResourcesDeployed]"),
        ),
        running="status.conditions[PodsReady]",
    ),
    # Its pods are those of the JobSet that its runtime makes.
    WorkloadKind(
        "trainer.kubeflow.org",
        "TrainJob",
        (),
        below=True,
        suspend=_SUSPEND,
        managed_by=_MANAGED_BY,
        ends=Ends(("Complete",), ("Failed",)),
    ),
    WorkloadKind(
        "ray.io",
        "RayCluster",
        _ray_pods("spec"),
        successive=True,
        suspend=_SUSPEND,
        managed_by=_MANAGED_BY,
        ready=("status.readyWorkerReplicas", "status.conditions[HeadPodReady]"),
    ),
    WorkloadKind(
        "ray.io",
        "RayService",
        _ray_pods("spec.rayClusterConfig"),
        below=True,
        suspend="spec.rayClusterConfig.suspend",
        running="status.conditions[Ready]",
    ),
    WorkloadKind(
        "ray.io",
        "RayJob",
        (
            *_ray_pods("spec.rayClusterSpec", When("spec.submissionMode", "SidecarMode")),
            _RAY_SUBMITTER,
        ),
        below=True,
        suspend=_SUSPEND,
        managed_by=_MANAGED_BY,
        ends=Ends(
            ("Complete",),
            ("Failed",),
            "status.jobDeploymentStatus",
            success=When("status.jobStatus", "SUCCEEDED"),
            reason="status.reason",
            message="status.message",
        ),
        # It may run on a cluster that is there, and then cannot be suspended.
        elsewhere=(When("spec.clusterSelector"), When("spec.rayClusterSpec", negated=True)),
        on_hold=When("status.jobDeploymentStatus", "ValidationFailed"),
        ready=(
            "status.rayClusterStatus.readyWorkerReplicas",
            "status.rayClusterStatus.conditions[HeadPodReady]",
        ),
    ),
)
SINGLE_PODS = frozenset(
    (
        ("argoproj.io", "Rollout"),
        ("argoproj.io", "Workflow"),
        ("kubeflow.org", "Notebook"),
        ("kubevirt.io", "VirtualMachineInstance"),
        ("machinelearning.seldon.io", "SeldonDeployment"),
        ("serving.knative.dev", "Revision"),
        ("tekton.dev", "PipelineRun"),
        ("tekton.dev", "TaskRun"),
        ("workspace.devfile.io", "DevWorkspace"),
    )
)
"""Kinds, by group and name, whose pods do not wait for each other."""
_ROWS = {(kind.group, kind.name): kind for kind in _TABLE}
KINDS_OF_WORKLOADS: Mapping[tuple[str, str], WorkloadKind] = _ROWS
"""The rows by group and kind, with those of users."""
_BUILT_IN = frozenset(_ROWS)
_OF_USERS: dict[tuple[str, str], Kind] = {}


def register(row: WorkloadKind, version: str, plural: str = "") -> None:
    """Add a row for a kind that bayplan does not know, or replace one that was added.

    The type of its objects stays as long as the process: some may have been read already.

    :param version: the version in which its objects are read.
    :param plural: its name in API paths; without it, the English plural.
    :raises ValueError: for a kind that bayplan knows already.
    """
    key = row.group, row.name
    known = _OF_USERS.get(key)
    if known is not None:
        remove_kind(known)
        type_ = known.type
    else:
        made = msgspec.defstruct(row.name, [], bases=(OperatedObject,), frozen=True)
        type_ = cast(type[OperatedObject], made)
    kind = Kind(row.group, row.name, (version,), type_, plural_name=plural)
    add_kind(kind)
    _OF_USERS[key] = kind
    _ROWS[key] = row


def title_of(row: WorkloadKind) -> str:
    """Return the name of a kind in the keys of gangs: of a user's own kind, with its group."""
    return row.name if (row.group, row.name) in _BUILT_IN else f"{row.name}.{row.group}"


def rows_of_users() -> Mapping[tuple[str, str], Kind]:
    """Return the kinds that users added, by group and name."""
    return _OF_USERS
