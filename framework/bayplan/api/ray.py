"""RayCluster and RayJob (ray.io)."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from bayplan.api.meta import ApiStruct, Condition, ObjectMeta, explicit
from bayplan.api.pod import Container, PodSpec, PodTemplate, ResourceRequirements
from bayplan.api.quantity import Quantity

__all__ = [
    "AutoscalerOptions",
    "HeadGroup",
    "RayCluster",
    "RayClusterSpec",
    "RayClusterStatus",
    "RayJob",
    "RayJobSpec",
    "RayJobStatus",
    "ScaleStrategy",
    "WorkerGroup",
]

NO_MAXIMUM = 2**31 - 1
_AUTOSCALER = "autoscaler"


class HeadGroup(ApiStruct, frozen=True):
    """spec.headGroupSpec: the one head pod."""

    template: PodTemplate = explicit(PodTemplate())


class ScaleStrategy(ApiStruct, frozen=True):
    """scaleStrategy: the pods that go when a group shrinks."""

    workers_to_delete: tuple[str, ...] = ()


class WorkerGroup(ApiStruct, frozen=True):
    """spec.workerGroupSpecs[]: ``replicas`` times ``num_of_hosts`` pods of one template."""

    group_name: str
    replicas: int | None = None
    min_replicas: int = 0
    max_replicas: int = explicit(NO_MAXIMUM)
    num_of_hosts: int = explicit(1)
    suspend: bool = False
    scale_strategy: ScaleStrategy = ScaleStrategy()
    template: PodTemplate = explicit(PodTemplate())

    @property
    def wanted(self) -> int:
        """The number of replicas, within their bounds; none while the group is suspended."""
        if self.suspend:
            return 0
        return min(max(self.replicas or 0, self.min_replicas), self.max_replicas)


class AutoscalerOptions(ApiStruct, frozen=True):
    """autoscalerOptions: what the container asks for that sizes a Ray cluster."""

    resources: ResourceRequirements | None = None


class RayClusterSpec(ApiStruct, frozen=True):
    """spec of a Ray cluster."""

    head_group_spec: HeadGroup = explicit(HeadGroup())
    worker_group_specs: tuple[WorkerGroup, ...] = ()
    suspend: bool = False
    enable_in_tree_autoscaling: bool = False
    autoscaler_options: AutoscalerOptions = AutoscalerOptions()
    managed_by: str | None = None

    @property
    def autoscaler(self) -> Container | None:
        """The container that KubeRay adds to the head to size the cluster; None where it does not.

        Its requests and limits are KubeRay's, unless the cluster states others.
        """
        head = self.head_group_spec.template.spec.containers
        if not self.enable_in_tree_autoscaling or any(one.name == _AUTOSCALER for one in head):
            return None
        amounts = {"cpu": Quantity("500m"), "memory": Quantity("512Mi")}
        resources = self.autoscaler_options.resources
        if resources is None:
            resources = ResourceRequirements(requests=amounts, limits=amounts)
        return Container(name=_AUTOSCALER, image=head[0].image if head else "", resources=resources)

    @property
    def head(self) -> PodTemplate:
        """The template of the head as KubeRay makes it."""
        template, autoscaler = self.head_group_spec.template, self.autoscaler
        if autoscaler is None:
            return template
        spec = replace(template.spec, containers=(*template.spec.containers, autoscaler))
        return replace(template, spec=spec)


class RayClusterStatus(ApiStruct, frozen=True):
    """status of a Ray cluster: the pods of all worker groups.

    ``state`` is ready, suspended or empty. The conditions are HeadPodReady,
    RayClusterProvisioned, RayClusterSuspending and RayClusterSuspended.
    """

    state: str = ""
    conditions: tuple[Condition, ...] = ()
    desired_worker_replicas: int = 0
    min_worker_replicas: int = 0
    max_worker_replicas: int = 0
    ready_worker_replicas: int = 0
    available_worker_replicas: int = 0
    observed_generation: int | None = None


class RayCluster(ApiStruct, frozen=True):
    """ray.io/v1 RayCluster."""

    metadata: ObjectMeta = ObjectMeta()
    spec: RayClusterSpec = explicit(RayClusterSpec())
    status: RayClusterStatus = RayClusterStatus()


class RayJobSpec(ApiStruct, frozen=True):
    """spec of a Ray job; it has a cluster of its own, or selects one."""

    ray_cluster_spec: RayClusterSpec | None = None
    cluster_selector: dict[str, str] = {}
    suspend: bool = False
    submission_mode: Literal["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"] = explicit(
        "K8sJobMode"
    )
    submitter_pod_template: PodTemplate | None = None
    shutdown_after_job_finishes: bool = False
    ttl_seconds_after_finished: int = 0
    managed_by: str | None = None

    def submitter_of(self, cluster: RayClusterSpec) -> PodTemplate:
        """Return the template of the pod that submits the work; by default as KubeRay makes it."""
        if self.submitter_pod_template is not None:
            return self.submitter_pod_template
        head = cluster.head_group_spec.template.spec.containers
        amounts = {"cpu": Quantity("500m"), "memory": Quantity("200Mi")}
        limits = {"cpu": Quantity("1"), "memory": Quantity("1Gi")}
        resources = ResourceRequirements(requests=amounts, limits=limits)
        image = head[0].image if head else ""
        container = Container(name="ray-job-submitter", image=image, resources=resources)
        return PodTemplate(spec=PodSpec(containers=(container,), restart_policy="Never"))


class RayJobStatus(ApiStruct, frozen=True):
    """status of a Ray job.

    ``job_status`` is empty, PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED;
    ``job_deployment_status`` empty, Initializing, Running, Suspending, Suspended, Complete, Failed
    or ValidationFailed.
    """

    job_id: str = ""
    ray_cluster_name: str = ""
    job_status: str = ""
    job_deployment_status: str = ""
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    end_time: str | None = None
    ray_cluster_status: RayClusterStatus = RayClusterStatus()


class RayJob(ApiStruct, frozen=True):
    """ray.io/v1 RayJob."""

    metadata: ObjectMeta = ObjectMeta()
    spec: RayJobSpec = explicit(RayJobSpec())
    status: RayJobStatus = RayJobStatus()
