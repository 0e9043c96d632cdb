"""A real API server accepts every write that a deployed role allows, and then holds what was meant.

The scheduler's writes have the rights of its account.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import pytest
import yaml
from msgspec.structs import replace
from tests.cluster.apiserver.faces import node, pod
from tests.controlplane.installation import path_of, upstream_definitions
from tests.controlplane.live_cluster import EVENTS, Content, LiveCluster
from tests.controlplane.plane import SECONDS, ControlPlane, wait_until
from tests.live.audit import Permission, permissions
from tests.live.deployed import DEPLOY, documents
from tests.plugins.queues.kueue.queued_job_builders import runtime, suspended_content
from tests.resizing.elastic_builders import ELASTIC

from bayplan import PodInfo
from bayplan.api import (
    AiComputePool,
    AiElasticJob,
    ApiObject,
    ClusterNetworkTopology,
    ComputePool,
    ElasticJob,
    ElasticQuota,
    Job,
    KaiPodGroup,
    KaiQueue,
    NativePodGroup,
    Node,
    ObjectMeta,
    OwnerReference,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodCondition,
    PodGroup,
    Quantity,
    Reservation,
    ResourceClaim,
    SchedulerPluginsPodGroup,
    Toleration,
    VolcanoPodGroup,
    VolcanoQueue,
    kind_of,
)
from bayplan.api.conditions import without_times
from bayplan.api.configmap import ConfigMap
from bayplan.api.dra import (
    AllocatedDevice,
    AllocationResult,
    DeviceAllocation,
    DeviceClaim,
    DeviceConfiguration,
    DeviceRequest,
    DeviceTaint,
    ExactDeviceRequest,
    OpaqueConfiguration,
    ResourceClaimSpec,
)
from bayplan.api.elastic_quota import ElasticQuotaStatus
from bayplan.api.kueue import (
    AdmissionCheck,
    AdmissionCheckState,
    AdmissionCheckStatus,
    AdmissionFairSharingStatus,
    AssignedPodSet,
    ClusterQueue,
    ClusterQueueStatus,
    Cohort,
    CohortStatus,
    EvictionCount,
    FairSharingStatus,
    FlavorUsage,
    KueueCondition,
    KueueWorkload,
    KueueWorkloadSpec,
    KueueWorkloadStatus,
    LocalQueue,
    LocalQueueFairSharingStatus,
    LocalQueueStatus,
    PodSet,
    PodSetRequest,
    PreemptionGateState,
    QuotaAdmission,
    ReclaimablePods,
    RequeueState,
    ResourceFlavor,
    ResourceUsage,
    SchedulingStats,
)
from bayplan.api.meta import Condition
from bayplan.api.network import (
    ClusterNetworkTopologyStatus,
    Topology,
    TopologyDetail,
    TopologyInfo,
)
from bayplan.api.objects import KINDS, decode_part, only_written
from bayplan.api.operated import PodGang, PodGangStatus
from bayplan.api.pod import (
    Container,
    ExtendedResourceMapping,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PodSpec,
    PodTemplate,
)
from bayplan.api.podgroup import (
    ConditionedStatus,
    GroupCondition,
    KaiPodGroupStatus,
    NativePodGroupStatus,
    PodGroupStatus,
    SchedulerPluginsPodGroupStatus,
    SchedulingCondition,
    UnschedulableReason,
)
from bayplan.api.pools import ComputePoolStatus, ModelCapacity
from bayplan.api.provisioning import (
    PodTemplateReference,
    ProvisioningPodSet,
    ProvisioningRequest,
    ProvisioningRequestSpec,
)
from bayplan.api.queue_objects import KaiQueueCondition, KaiQueueStatus, VolcanoQueueStatus
from bayplan.api.times import seconds_of
from bayplan.api.volumes import SELECTED_NODE, reference_to
from bayplan.api.workloads import StoredPodTemplate
from bayplan.cluster.kubernetes.credentials import Credentials
from bayplan.cluster.kubernetes.events import EventRecorder
from bayplan.cluster.kubernetes.resources import WatchedResource
from bayplan.cluster.kubernetes.transport import Transport
from bayplan.cluster.kubernetes.writer import Writer
from bayplan.cluster.protocol import (
    Bind,
    BindLock,
    BindVolume,
    CreateClaim,
    CreateObject,
    DeleteObject,
    Event,
    Evict,
    PatchAnnotations,
    PatchFields,
    PatchPodStatus,
    PatchStatus,
    PutConfigMap,
    ReleaseClaim,
    ReserveClaim,
    SelectNode,
    TemplateSource,
    Write,
)
from bayplan.dialects.autoscaling import STAND_IN_LABEL, STAND_IN_NAMESPACE
from bayplan.dialects.elastic import RESIZED_ANNOTATION, elastic_parts
from bayplan.dialects.kai.shares import (
    GpuShareRequest,
    config_maps,
    reservation_fields,
    reservation_pod,
)
from bayplan.dialects.koordinator.reservations import as_available, as_expired
from bayplan.dialects.progress import EVICTION_NOTICE, GOING_AT
from bayplan.dialects.queued_jobs import queued_job, queued_kinds
from bayplan.dialects.wrapped_jobs import components_of
from bayplan.errors import ClusterError, Conflict
from bayplan.live.elastic_jobs import ElasticJobs
from bayplan.live.election import Election
from bayplan.live.token_reviews import TokenReviews
from bayplan.profiles.settings import LeaderElection
from bayplan.testing import make_object
from bayplan.topology.machine.model import Mig
from bayplan.topology.machine.readers.machinefile import known_machine, known_machines
from bayplan_dra.driver.kubernetes_api import KubernetesApi
from bayplan_dra.driver.publish.devices import DRIVER, inventory_of
from bayplan_dra.driver.publish.publisher import Publisher
from bayplan_plugins.autoscaling.stand_ins import STAND_IN_FIELDS
from bayplan_plugins.queues.kueue.finalizers import IN_USE
from bayplan_plugins.queues.kueue.injection import started_fields
from bayplan_plugins.queues.kueue.pod_set_info import PodSetInfo
from bayplan_plugins.reservation.moved import reservation_for

Obj = TypeVar("Obj", bound=ApiObject)
Result = TypeVar("Result")
Test = TypeVar("Test", bound=Callable[..., object])

DRA = "resource.k8s.io"
ROLES = (
    "rbac.yaml",
    "dra-driver.yaml",
    "nccl-configmaps.yaml",
    "kueue-jobs.yaml",
    "queue-gates.yaml",
    "resizer.yaml",
    "pools.yaml",
    "gpu-sharing.yaml",
    "autoscaling.yaml",
    "failure-recovery.yaml",
)
NOT_SENT = {
    ("patch", "scheduling.sigs.k8s.io", "podgroups"): "the CRD of configs/crds has a /status",
    ("patch", DRA, "resourceclaims/binding"): "asked for with resourceclaims/status",
}

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_needed: set[Permission] = set()


def needs(*names: str) -> Callable[[Test], Test]:
    """Say which permissions a test uses, such as ``create jobs.batch`` or ``patch pods/status``."""
    found = {_permission(name) for name in names}
    _needed.update(found)

    def note(test: Test) -> Test:
        test.needs = found
        return test

    return note


def _permission(name: str) -> Permission:
    verb, _, rest = name.partition(" ")
    whole, _, part = rest.partition("/")
    resource, _, group = whole.partition(".")
    return verb, group, f"{resource}/{part}" if part else resource


class NotedTransport(Transport):
    """Notes the permissions that writes need; unknown fields are refused."""

    def __init__(self, kubeconfig: Path, used: set[Permission]) -> None:
        super().__init__(Credentials(kubeconfig), field_validation="Strict")
        self._used = used

    async def request(self, method: str, path: str, *arguments: Any, **named: Any) -> bytes:
        if method in _VERBS:
            parts = path.split("/")
            group, rest = ("", parts[3:]) if parts[1] == "api" else (parts[2], parts[4:])
            if rest[0] == "namespaces" and len(rest) > 2:
                del rest[:2]
            resource = "/".join(rest[::2])
            self._used.add((_VERBS[method], group, resource))
        return await super().request(method, path, *arguments, **named)


class Wire:
    """Carries out writes as the scheduler does, and reads what is there then."""

    def __init__(self, cluster: LiveCluster) -> None:
        self.client = cluster.client
        self.used: set[Permission] = set()
        self.kubeconfig = cluster.kubeconfig

    def get(self, type_: type[Obj], key: str) -> Obj:
        """Return an object."""
        resource = self.resource_of(type_)
        answer = self.client.get(resource.path(key))
        assert answer.code == 200, answer
        return cast("Obj", resource.read(answer.body))

    def resource_of(self, type_: type[ApiObject]) -> WatchedResource:
        """Return where objects of a type are in the API."""
        kind = next((kind for kind in KINDS.values() if kind.type is type_), only_written(type_))
        assert kind is not None, type_
        return WatchedResource(kind, kind.versions[0])

    def is_absent(self, type_: type[ApiObject]) -> bool:
        """Tell that all kinds are there: the API server says which are not."""
        return False

    def carry_out(self, *writes: Write) -> None:
        """Carry out writes, one after the other.

        :raises ClusterError: when one of them is refused.
        """
        self.do(lambda transport: self._carry_out(transport, writes))

    def do(self, action: Callable[[Transport], Awaitable[Result]]) -> Result:
        """Do something with requests of the scheduler's account."""

        async def run() -> Result:
            transport = NotedTransport(self.kubeconfig, self.used)
            try:
                return await action(transport)
            finally:
                await transport.close()

        return asyncio.run(run())

    async def _carry_out(self, transport: Transport, writes: tuple[Write, ...]) -> None:
        recorder = EventRecorder(transport, "bayplan", "test")
        writer = Writer(transport, recorder, self, hold=0.0)
        for write in writes:
            answer: asyncio.Future[ClusterError | None] = asyncio.Future()
            writer.submit(write, answer.set_result)
            async with asyncio.timeout(SECONDS):
                error = await answer
            if error is not None:
                raise error


@pytest.fixture
def wire(real: LiveCluster, request: pytest.FixtureRequest) -> Iterator[Wire]:
    made = Wire(real)
    yield made
    assert made.used
    assert made.used <= request.function.needs


def test_every_write_that_a_role_allows_has_a_test() -> None:
    found = documents(*(DEPLOY / name for name in ROLES))
    roles = [content for content in found if content["kind"] in ("ClusterRole", "Role")]
    allowed = permissions(*(rule for role in roles for rule in role["rules"]))
    assert {one for one in allowed if one[0] in _VERBS.values()} == _needed | NOT_SENT.keys()


# Pods ------------------------------------------------------------------------------------------


def made_pod(wire: Wire, real: LiveCluster, content: Content | None = None) -> Pod:
    """Create a pod that no scheduler looks at."""
    real.apply([content or pod("p", schedulerName="nobody")])
    return wire.get(Pod, "default/p")


@needs("create pods/binding")
@pytest.mark.parametrize("annotations", [{}, {"example.com/none": "", "example.com/gpus": "0,1"}])
def test_a_binding(wire: Wire, real: LiveCluster, annotations: dict[str, str]) -> None:
    real.apply([node("n")])
    uid = made_pod(wire, real).metadata.uid
    wire.carry_out(Bind("default/p", uid, "n", annotations))
    found = wire.get(Pod, "default/p")
    assert found.spec.node_name == "n"
    assert found.metadata.annotations == annotations


@needs("create pods/binding", "patch nodes")
def test_a_binding_that_takes_the_lock_of_its_node(wire: Wire, real: LiveCluster) -> None:
    real.apply([node("n")])
    uid = made_pod(wire, real).metadata.uid
    wire.carry_out(Bind("default/p", uid, "n", lock=BindLock("example.com/lock", 300.0)))
    assert wire.get(Pod, "default/p").spec.node_name == "n"
    time, *pod = wire.get(Node, "n").metadata.annotations["example.com/lock"].split(",")
    assert pod == ["default", "p"]
    assert seconds_of(time) > 0


@needs("create pods/binding", "patch nodes")
def test_a_refused_binding_gives_the_lock_back(wire: Wire, real: LiveCluster) -> None:
    real.apply([node("n")])
    made_pod(wire, real)
    with pytest.raises(Conflict):
        wire.carry_out(Bind("default/p", "other", "n", lock=BindLock("example.com/lock", 300.0)))
    assert "example.com/lock" not in wire.get(Node, "n").metadata.annotations


@needs("create pods/binding", "patch pods")
def test_a_binding_with_labels(wire: Wire, real: LiveCluster) -> None:
    real.apply([node("n")])
    content = pod("p", schedulerName="nobody")
    content["metadata"]["labels"] = {"old": "1"}
    uid = made_pod(wire, real, content).metadata.uid
    labels = {"old": None, "runai-gpu-group": "g"}
    wire.carry_out(Bind("default/p", uid, "n", labels=labels))
    found = wire.get(Pod, "default/p")
    assert found.spec.node_name == "n"
    assert found.metadata.labels == {"runai-gpu-group": "g"}


@needs("create pods", "create configmaps", "patch configmaps")
def test_a_reservation_pod_and_the_config_maps_of_a_share(wire: Wire, real: LiveCluster) -> None:
    real.apply([node("n")])
    sharer = made_pod(wire, real)
    made = reservation_pod("n", "g", sharer, "image:1")
    for _ in range(2):
        # The answer to the first one may have been lost.
        fields = {**reservation_fields(), "/spec/serviceAccountName": "default"}
        wire.carry_out(CreateObject(made, fields))
    found = wire.get(Pod, made.key)
    assert (found.spec.node_name, found.metadata.labels) == ("n", made.metadata.labels)
    for part in (0.25, 0.5):
        for told in config_maps(sharer, GpuShareRequest(part), part, (1,)):
            wire.carry_out(PutConfigMap(told))


@needs("create pods/eviction", "patch pods/status")
@pytest.mark.parametrize("message", ["", "preempted by default/q"])
def test_an_eviction_and_its_reason(wire: Wire, real: LiveCluster, message: str) -> None:
    content = pod("p", schedulerName="nobody", nodeName="n")
    content["metadata"]["finalizers"] = ["example.com/kept"]
    uid = made_pod(wire, real, content).metadata.uid
    wire.carry_out(Evict("default/p", uid, message))
    found = wire.get(Pod, "default/p")
    assert found.metadata.deletion_timestamp is not None
    (condition,) = (c for c in found.status.conditions if c.type == "DisruptionTarget")
    assert replace(condition, last_transition_time=None) == PodCondition(
        "DisruptionTarget", "True", "PreemptionByScheduler", message
    )


@needs("create pods/eviction", "delete pods", "patch pods/status")
def test_a_pod_that_cannot_end_is_deleted_by_force_and_has_failed(
    wire: Wire, real: LiveCluster
) -> None:
    content = pod("p", schedulerName="nobody", nodeName="n")
    content["metadata"]["finalizers"] = ["example.com/kept"]
    uid = made_pod(wire, real, content).metadata.uid
    wire.carry_out(Evict("default/p", uid, ""), DeleteObject(Pod, "default/p", uid, by_force=True))
    found = wire.get(Pod, "default/p")
    assert found.metadata.deletion_grace_period_seconds == 0
    failed = {"/status/phase": "Failed", "/status/reason": "ForcefullyDeleted"}
    wire.carry_out(PatchFields(Pod, "default/p", uid, failed, "status"))
    found = wire.get(Pod, "default/p")
    assert (found.status.phase, found.status.reason) == ("Failed", "ForcefullyDeleted")


@needs("patch pods/status")
@pytest.mark.parametrize("nominated", [None, "n"])
@pytest.mark.parametrize(
    "condition",
    [
        PodCondition("PodScheduled", "False"),
        PodCondition("PodScheduled", "False", "Unschedulable", "0/1 nodes are available"),
    ],
    ids=["bare", "full"],
)
def test_the_condition_of_a_pod(
    wire: Wire, real: LiveCluster, condition: PodCondition, nominated: str | None
) -> None:
    uid = made_pod(wire, real).metadata.uid
    wire.carry_out(PatchPodStatus("default/p", uid, condition, nominated))
    found = wire.get(Pod, "default/p").status
    assert [replace(one, last_transition_time=None) for one in found.conditions] == [condition]
    assert found.nominated_node_name == (nominated or "")
    wire.carry_out(PatchPodStatus("default/p", uid, condition, ""))
    assert wire.get(Pod, "default/p").status.nominated_node_name == ""


@needs("create events", "patch events")
@pytest.mark.parametrize("about", ["Pod", "Node"])
def test_an_event_and_its_count(wire: Wire, real: LiveCluster, about: str) -> None:
    real.apply([node("n")])
    made_pod(wire, real)
    key, notes = "default/p" if about == "Pod" else "n", {"num-evicted-pods": "2"}
    event = Event(key, "Warning", "Tried", "", about=about, annotations=notes)
    wire.carry_out(event, event)
    (found,) = (one for one in real.items(EVENTS) if one["involvedObject"]["kind"] == about)
    told = {key: found[key] for key in ("type", "reason", "count", "reportingInstance")}
    assert told == {"type": "Warning", "reason": "Tried", "count": 2, "reportingInstance": "test"}
    assert found["involvedObject"]["apiVersion"] == "v1"
    assert found["involvedObject"]["uid"]
    assert found["metadata"]["annotations"] == notes


# Gangs and networks ----------------------------------------------------------------------------

COUNTS = {"running": 1, "succeeded": 2, "failed": 3}
REASON = GroupCondition("Unschedulable", "True", "NotEnoughResources", "0/1 nodes are available")
NO_POOL = SchedulingCondition(
    "UnschedulableOnNodePool",
    "default",
    "Unschedulable",
    "0/1 nodes are available",
    (UnschedulableReason("PodSchedulingErrors", "0/1 nodes are available"),),
    "1",
    "2000-01-01T00:00:00Z",
    "True",
)
GROUP_STATUSES: dict[type[ApiObject], list[msgspec.Struct]] = {
    PodGroup: [PodGroupStatus(), PodGroupStatus("Running", 1, **COUNTS)],
    SchedulerPluginsPodGroup: [
        SchedulerPluginsPodGroupStatus("Pending"),
        SchedulerPluginsPodGroupStatus("Running", **COUNTS),
    ],
    VolcanoPodGroup: [
        ConditionedStatus("Pending", (GroupCondition("Scheduled", "False"),)),
        ConditionedStatus("Running", (REASON,), **COUNTS),
    ],
    KaiPodGroup: [
        KaiPodGroupStatus(),
        KaiPodGroupStatus(scheduling_conditions=(NO_POOL,)),
        KaiPodGroupStatus((REASON,)),
    ],
    PodGang: [
        PodGangStatus("Pending"),
        PodGangStatus("Running", (Condition("Scheduled", "True", "Scheduled"),)),
    ],
    NativePodGroup: [
        NativePodGroupStatus(),
        NativePodGroupStatus((GroupCondition("PodGroupScheduled", "True", "Scheduled"),)),
        NativePodGroupStatus((REASON,)),
    ],
}


@needs(
    "patch podgangs.scheduler.grove.io/status",
    "patch podgroups.scheduling.k8s.io/status",
    "patch podgroups.scheduling.run.ai/status",
    "patch podgroups.scheduling.sigs.k8s.io/status",
    "patch podgroups.scheduling.volcano.sh",
    "patch podgroups.scheduling.volcano.sh/status",
    "patch podgroups.scheduling.x-k8s.io/status",
)
@pytest.mark.parametrize("type_", GROUP_STATUSES, ids=lambda type_: str(type_.__name__))
def test_the_status_of_a_gang(wire: Wire, real: LiveCluster, type_: type[ApiObject]) -> None:
    kind = kind_of(type_())
    specs: dict[type[ApiObject], Content] = {
        NativePodGroup: {"schedulingPolicy": {"gang": {"minCount": 1}}},
        PodGang: {"podgroups": []},
    }
    head = {"apiVersion": f"{kind.group}/{kind.versions[0]}", "kind": kind.name}
    real.apply(
        [{**head, "metadata": {"name": "g", "namespace": "default"}, "spec": specs.get(type_, {})}]
    )
    for status in [*GROUP_STATUSES[type_], *reversed(GROUP_STATUSES[type_])]:
        wire.carry_out(PatchStatus(type_, "default/g", status))
        assert without_times(getattr(wire.get(type_, "default/g"), "status", None)) == status


@needs("patch podgroups.scheduling.run.ai")
def test_annotations_of_a_kai_group_come_and_go(wire: Wire, real: LiveCluster) -> None:
    head = {"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup"}
    real.apply([{**head, "metadata": {"name": "g", "namespace": "default"}, "spec": {}}])
    wire.carry_out(PatchAnnotations(KaiPodGroup, "default/g", {"a/since": "now", "b": "c"}))
    assert wire.get(KaiPodGroup, "default/g").metadata.annotations == {"a/since": "now", "b": "c"}
    wire.carry_out(PatchAnnotations(KaiPodGroup, "default/g", {"a/since": None, "other": None}))
    assert wire.get(KaiPodGroup, "default/g").metadata.annotations == {"b": "c"}


@needs("patch clusternetworktopologies.scheduling.koordinator.sh/status")
def test_the_status_of_a_network(wire: Wire, real: LiveCluster) -> None:
    root = TopologyInfo("ClusterTopologyLayer")
    spec = {"networkTopologySpec": [{"topologyLayer": "NodeTopologyLayer"}]}
    version = "scheduling.koordinator.sh/v1alpha1"
    head = {"apiVersion": version, "kind": "ClusterNetworkTopology"}
    real.apply([{**head, "metadata": {"name": "default"}, "spec": spec}])
    for status in (
        ClusterNetworkTopologyStatus(),
        ClusterNetworkTopologyStatus((TopologyDetail(root, node_num=0),)),
        ClusterNetworkTopologyStatus(
            (
                TopologyDetail(root, None, "Spine", ("a",), 1),
                TopologyDetail(TopologyInfo("Spine", "a"), root, "NodeTopologyLayer", (), 1),
            )
        ),
        ClusterNetworkTopologyStatus(),
    ):
        wire.carry_out(PatchStatus(ClusterNetworkTopology, "default", status))
        assert wire.get(ClusterNetworkTopology, "default").status == status


@needs(
    "patch reservations.scheduling.koordinator.sh",
    "patch reservations.scheduling.koordinator.sh/status",
    "delete reservations.scheduling.koordinator.sh",
)
def test_what_becomes_of_a_reservation(wire: Wire, real: LiveCluster) -> None:
    if "reservations.scheduling.koordinator.sh" not in upstream_definitions():
        pytest.skip("no definition of Koordinator's own on this machine")
    head = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation"}
    template = {"spec": {"containers": [{"name": "c", "image": "busybox"}]}}
    spec = {"owners": [{"labelSelector": {"matchLabels": {"app": "a"}}}], "template": template}
    real.apply([{**head, "metadata": {"name": "kept"}, "spec": spec}])
    wire.carry_out(PatchAnnotations(Reservation, "kept", {"example.com/cpus": "0-3"}))
    found = wire.get(Reservation, "kept")
    assert found.metadata.annotations["example.com/cpus"] == "0-3"
    for status in (as_available(found, "n", 1e9), as_expired(found, 2e9)):
        wire.carry_out(PatchStatus(Reservation, "kept", status))
        assert wire.get(Reservation, "kept").status.phase == status.phase
    wire.carry_out(DeleteObject(Reservation, "kept", found.metadata.uid))
    assert (
        real.client.get("/apis/scheduling.koordinator.sh/v1alpha1/reservations").json["items"] == []
    )


@needs("create reservations.scheduling.koordinator.sh")
def test_a_reservation_for_a_pod_that_moves(wire: Wire, real: LiveCluster) -> None:
    if "reservations.scheduling.koordinator.sh" not in upstream_definitions():
        pytest.skip("no definition of Koordinator's own on this machine")
    # Pods whose controller does not exist are soon deleted; that of static pods is their node.
    real.apply([node("n")])
    uid = wire.get(Node, "n").metadata.uid
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": uid}
    content = pod("p", schedulerName="nobody")
    content["metadata"]["ownerReferences"] = [owner | {"controller": True}]
    moving = PodInfo(made_pod(wire, real, content))
    made = reservation_for(moving, "n")
    assert made is not None
    wire.carry_out(CreateObject(made))
    real.used(
        {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation"}
        | {"metadata": {"name": made.metadata.name}}
    )
    found = wire.get(Reservation, made.metadata.name)
    assert found.spec.template.spec.node_name == "n"
    (by,) = found.spec.owners
    assert by.controller is not None
    assert by.controller.uid == uid


FEW = {"cpu": Quantity("1500m"), "nvidia.com/gpu": Quantity("4")}
ACTIVE = KueueCondition("Active", "True", "Ready", "Can admit new workloads")
USAGE = (FlavorUsage("f", (ResourceUsage("cpu", Quantity("3"), Quantity("1")),)),)
SAMPLED = AdmissionFairSharingStatus(FEW, "2026-01-01T00:00:00Z")
QUEUES: dict[type[ApiObject], tuple[Content, list[msgspec.Struct]]] = {
    VolcanoQueue: (
        {"weight": 1},
        [
            VolcanoQueueStatus(),
            VolcanoQueueStatus("Open", 1, 2, 3, 4, 5, FEW),
            VolcanoQueueStatus("Closing", allocated={"memory": Quantity("4Gi")}),
        ],
    ),
    KaiQueue: (
        {"displayName": "a"},
        [
            KaiQueueStatus(),
            KaiQueueStatus(("a", "b"), FEW, FEW, {"cpu": Quantity("1")}),
            KaiQueueStatus((), FEW),
            KaiQueueStatus((), FEW, conditions=(KaiQueueCondition("OverQuota", "False"),)),
        ],
    ),
    ElasticQuota: (
        {"max": {"cpu": 4}},
        [
            ElasticQuotaStatus(),
            ElasticQuotaStatus(FEW),
            ElasticQuotaStatus({"cpu": Quantity("1")}),
        ],
    ),
    ClusterQueue: (
        {"cohortName": "c"},
        [
            ClusterQueueStatus(),
            ClusterQueueStatus((ACTIVE,), USAGE, USAGE, 1, 2, 3, FairSharingStatus(5)),
            ClusterQueueStatus((ACTIVE,), pending_workloads=1),
        ],
    ),
    Cohort: ({}, [CohortStatus(), CohortStatus(FairSharingStatus(5))]),
    **{
        type_: (
            {"poolType": "gpu", "nodeSelector": {"a": "b"}},
            [
                ComputePoolStatus(),
                ComputePoolStatus(
                    "Ready",
                    *[{name: Quantity("2") for name in ("cpu", "nvidia.com/gpu")}] * 6,
                    (ModelCapacity("H100", "nvidia.com/gpu", *[Quantity("2")] * 3),),
                    3,
                    (Condition("Ready", "True", "NodesInService", "pods may use the pool"),),
                ),
                ComputePoolStatus("NoNodes", {"cpu": Quantity("1")}),
            ],
        )
        for type_ in (ComputePool, AiComputePool)
    },
    LocalQueue: (
        {"clusterQueue": "a"},
        [
            LocalQueueStatus(),
            LocalQueueStatus(
                (ACTIVE,), 1, 2, 3, USAGE, USAGE, LocalQueueFairSharingStatus(5, SAMPLED)
            ),
            LocalQueueStatus((ACTIVE,), fair_sharing=LocalQueueFairSharingStatus(6)),
        ],
    ),
}


def made_queue(real: LiveCluster, type_: type[ApiObject]) -> str:
    """Create a queue; return its key."""
    kind = kind_of(type_())
    head = {"apiVersion": f"{kind.group}/{kind.versions[0]}", "kind": kind.name}
    meta = {"name": "a", **({"namespace": "default"} if kind.namespaced else {})}
    real.apply([{**head, "metadata": meta, "spec": QUEUES[type_][0]}])
    return "default/a" if kind.namespaced else "a"


@needs(
    "patch queues.scheduling.run.ai/status",
    "patch queues.scheduling.volcano.sh/status",
    "patch elasticquotas.scheduling.sigs.k8s.io/status",
    "patch clusterqueues.kueue.x-k8s.io/status",
    "patch cohorts.kueue.x-k8s.io/status",
    "patch localqueues.kueue.x-k8s.io/status",
    "patch computepools.bayplan.dev/status",
    "patch computepools.ai.example.com/status",
)
@pytest.mark.parametrize("type_", QUEUES, ids=lambda type_: str(type_.__name__))
def test_the_status_of_a_queue(wire: Wire, real: LiveCluster, type_: type[ApiObject]) -> None:
    key = made_queue(real, type_)
    statuses = QUEUES[type_][1]
    for status in [*statuses, *reversed(statuses)]:
        wire.carry_out(PatchStatus(type_, key, status))
        assert without_times(getattr(wire.get(type_, key), "status", None)) == status


@needs("patch elasticquotas.scheduling.sigs.k8s.io")
def test_annotations_that_tell_of_a_quota(wire: Wire, real: LiveCluster) -> None:
    key = made_queue(real, ElasticQuota)
    for said in ({"example.com/a": "1", "example.com/b": "2"}, {"example.com/a": "3"}):
        wire.carry_out(PatchAnnotations(ElasticQuota, key, said))
    found = wire.get(ElasticQuota, key).metadata.annotations
    assert found == {"example.com/a": "3", "example.com/b": "2"}


# Suspended jobs --------------------------------------------------------------------------------

WORKLOAD_STATUSES = (
    KueueWorkloadStatus(
        (KueueCondition("QuotaReserved", "False", "Pending", "no room"),),
        resource_requests=(PodSetRequest("main", {"cpu": Quantity("2")}),),
    ),
    KueueWorkloadStatus(
        (KueueCondition("QuotaReserved", "True", "QuotaReserved", "now"),),
        QuotaAdmission("q", (AssignedPodSet("main", {"cpu": "f"}, {"cpu": Quantity("2")}, 2),)),
        RequeueState(1, "2026-01-01T00:00:00Z"),
        (ReclaimablePods("main", 1),),
        (AdmissionCheckState("c", "Pending", last_transition_time="2026-01-01T00:00:00Z"),),
        scheduling_stats=SchedulingStats((EvictionCount("Preempted", "", 1),)),
        preemption_gates=(PreemptionGateState("g", "Open", "2026-01-01T00:00:00Z"),),
    ),
)


@needs("create pods", "delete pods")
def test_a_stand_in_is_made_and_deleted(wire: Wire, real: LiveCluster) -> None:
    spec = PodSpec(containers=(Container("c", "i"),), termination_grace_period_seconds=0)
    labels = {STAND_IN_LABEL: "x"}
    made = Pod(ObjectMeta(name="s", namespace=STAND_IN_NAMESPACE, labels=labels), spec)
    for _ in range(2):
        wire.carry_out(CreateObject(made, STAND_IN_FIELDS))
    found = wire.get(Pod, made.key)
    assert found.metadata.labels == labels
    with pytest.raises(Conflict):
        wire.carry_out(DeleteObject(Pod, made.key, "another"))
    for _ in range(2):
        # The answer to the first one may have been lost.
        wire.carry_out(DeleteObject(Pod, made.key, found.metadata.uid))


@needs(
    "create podtemplates",
    "delete podtemplates",
    "create provisioningrequests.autoscaling.x-k8s.io",
    "delete provisioningrequests.autoscaling.x-k8s.io",
)
def test_a_provisioning_request_with_its_template(wire: Wire, real: LiveCluster) -> None:
    template = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    meta = ObjectMeta(name="t", namespace="default")
    wire.carry_out(CreateObject(StoredPodTemplate(meta, template)))
    sets = (ProvisioningPodSet(PodTemplateReference("t"), 2),)
    spec = ProvisioningRequestSpec(sets, "check-capacity.autoscaling.x-k8s.io", {"a": "b"})
    made = ProvisioningRequest(ObjectMeta(name="r", namespace="default"), spec)
    wire.carry_out(CreateObject(made))
    found = wire.get(ProvisioningRequest, made.key)
    assert found.spec == spec
    wire.carry_out(DeleteObject(ProvisioningRequest, made.key, found.metadata.uid))
    wire.carry_out(DeleteObject(StoredPodTemplate, "default/t"))


@needs("patch admissionchecks.kueue.x-k8s.io/status")
def test_whether_an_admission_check_is_active(wire: Wire, real: LiveCluster) -> None:
    check = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "AdmissionCheck",
        "metadata": {"name": "nodes"},
        "spec": {"controllerName": "kueue.x-k8s.io/provisioning-request"},
    }
    real.apply([check])
    at = "2026-01-01T00:00:00Z"
    status = AdmissionCheckStatus((KueueCondition("Active", "True", "Active", "on", at),))
    wire.carry_out(PatchStatus(AdmissionCheck, "nodes", status))
    (condition,) = wire.get(AdmissionCheck, "nodes").status.conditions
    assert (condition.type, condition.status) == ("Active", "True")


def suspended_job(real: LiveCluster, variables: Sequence[Content] = ()) -> None:
    template = pod("p")["spec"] | {"restartPolicy": "Never"}
    template["containers"][0] |= {"env": list(variables)} if variables else {}
    spec = {"suspend": True, "template": {"spec": template}}
    meta = {"name": "j", "namespace": "default"}
    real.apply([{"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}])


@needs(
    "create workloads.kueue.x-k8s.io",
    "patch workloads.kueue.x-k8s.io",
    "patch workloads.kueue.x-k8s.io/status",
)
def test_a_workload_and_its_status(wire: Wire, real: LiveCluster) -> None:
    suspended_job(real)
    job = wire.get(Job, "default/j")
    owner = OwnerReference("Job", "j", job.metadata.uid, "batch/v1", controller=True)
    meta = ObjectMeta(
        name="job-j", namespace="default", labels={"a": "b"}, owner_references=(owner,)
    )
    sets = (PodSet("main", job.spec.template, 2, 1),)
    for _ in range(2):
        # The answer to the first one may have been lost.
        made = KueueWorkload(meta, KueueWorkloadSpec(sets, "q", priority=3))
        wire.carry_out(CreateObject(made))
    found = wire.get(KueueWorkload, "default/job-j")
    real.used(head_of(KueueWorkload, "job-j"))
    assert found.spec == made.spec
    assert found.metadata.owner_references == (owner,)
    for status in (*WORKLOAD_STATUSES, *reversed(WORKLOAD_STATUSES)):
        wire.carry_out(PatchStatus(KueueWorkload, found.key, status))
        assert without_times(wire.get(KueueWorkload, found.key).status) == status
    fields = {"/spec/queueName": "other", "/spec/active": False, "/spec/priority": None}
    wire.carry_out(PatchFields(KueueWorkload, found.key, found.metadata.uid, fields))
    spec = wire.get(KueueWorkload, found.key).spec
    assert (spec.queue_name, spec.active, spec.priority) == ("other", False, None)


@needs("create workloads.kueue.x-k8s.io")
def test_the_workload_of_a_job_that_names_a_variable_twice(wire: Wire, real: LiveCluster) -> None:
    variables = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    suspended_job(real, variables)
    job = wire.get(Job, "default/j")
    meta = ObjectMeta(name="job-j", namespace="default")
    made = KueueWorkload(meta, KueueWorkloadSpec((PodSet("main", job.spec.template, 1),), "q"))
    source = TemplateSource(Job, "default/j", "/spec/template")
    wire.carry_out(CreateObject(made, templates={"/spec/podSets/0/template": source}))
    real.used(head_of(KueueWorkload, "job-j"))
    path = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads/job-j"
    (container,) = real.client.get(path).json["spec"]["podSets"][0]["template"]["spec"][
        "containers"
    ]
    assert container["env"] == [{"name": "A", "value": "2"}]


@needs(
    "create workloads.kueue.x-k8s.io",
    "patch workloads.kueue.x-k8s.io",
    "patch workloads.kueue.x-k8s.io/status",
)
def test_a_slice_with_quota_is_lowered(wire: Wire, real: LiveCluster) -> None:
    marks = {"kueue.x-k8s.io/workload-slice-replacement-for": "default/old"}
    meta = ObjectMeta(name="slice", namespace="default", annotations=marks)
    sets = (PodSet("main", PodTemplate(spec=PodSpec(containers=(Container("c", "i"),))), 2),)
    wire.carry_out(CreateObject(KueueWorkload(meta, KueueWorkloadSpec(sets, "q"))))
    real.used(head_of(KueueWorkload, "slice"))
    found = wire.get(KueueWorkload, "default/slice")
    assert found.metadata.annotations == marks
    assert found.metadata.generation == 1
    wire.carry_out(PatchStatus(KueueWorkload, found.key, WORKLOAD_STATUSES[1]))
    lowered = msgspec.to_builtins((replace(sets[0], count=1),))
    fields = {"/spec/podSets": lowered}
    wire.carry_out(PatchFields(KueueWorkload, found.key, found.metadata.uid, fields))
    assert wire.get(KueueWorkload, found.key).spec.pod_sets[0].count == 1


@needs("create workloads.kueue.x-k8s.io", "delete workloads.kueue.x-k8s.io")
def test_the_workload_of_a_replica_that_is_gone_is_deleted(wire: Wire, real: LiveCluster) -> None:
    meta = ObjectMeta(name="leaderworkerset-l-1", namespace="default")
    sets = (PodSet("main", PodTemplate(spec=PodSpec(containers=(Container("c", "i"),))), 2),)
    wire.carry_out(CreateObject(KueueWorkload(meta, KueueWorkloadSpec(sets, "q"))))
    found = wire.get(KueueWorkload, "default/leaderworkerset-l-1")
    with pytest.raises(Conflict):
        wire.carry_out(DeleteObject(KueueWorkload, found.key, "another"))
    for _ in range(2):
        # The answer to the first one may have been lost.
        wire.carry_out(DeleteObject(KueueWorkload, found.key, found.metadata.uid))
    workloads = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads"
    assert found.metadata.name not in real.client.names(workloads)


@needs(
    "create workloads.kueue.x-k8s.io",
    "patch workloads.kueue.x-k8s.io",
    "patch clusterqueues.kueue.x-k8s.io",
    "patch resourceflavors.kueue.x-k8s.io",
    "patch topologies.kueue.x-k8s.io",
    "patch admissionchecks.kueue.x-k8s.io",
)
def test_finalizers_that_kueues_manager_left(wire: Wire, real: LiveCluster) -> None:
    check = {"controllerName": "kueue.x-k8s.io/provisioning-request"}
    specs: dict[type[ApiObject], dict[str, Any]] = {
        ClusterQueue: {"namespaceSelector": {}},
        ResourceFlavor: {},
        Topology: {"levels": [{"nodeLabel": "rack"}]},
        AdmissionCheck: check,
    }
    for type_, spec in specs.items():
        content = {**head_of(type_, "x"), "spec": spec}
        content["metadata"] = {"name": "x", "finalizers": [IN_USE, "example.com/other"]}
        real.apply([content])
        found = wire.get(type_, "x")
        fields = {"/metadata/finalizers": ["example.com/other"]}
        wire.carry_out(PatchFields(type_, "x", found.metadata.uid, fields))
        assert wire.get(type_, "x").metadata.finalizers == ("example.com/other",)
        wire.carry_out(PatchFields(type_, "x", found.metadata.uid, {"/metadata/finalizers": []}))


def change_suspended(wire: Wire, uid: str, fields: Mapping[str, Any]) -> bool:
    """Try to change the template of a Job that was suspended; tell whether it is changed.

    Its start time goes first; its controller may remove that too. From 1.36 the API server
    refuses until the controller has counted that no pod is left.
    """
    removed = {"/status/startTime": None}
    try:
        if wire.get(Job, "default/j").status.start_time is not None:
            wire.carry_out(PatchFields(Job, "default/j", uid, removed, "status"))
        wire.carry_out(PatchFields(Job, "default/j", uid, fields))
    except Conflict:
        return False
    return True


@needs("patch jobs.batch", "patch jobs.batch/status")
def test_a_job_that_runs_is_suspended_and_gets_its_template_back(
    wire: Wire, real: LiveCluster
) -> None:
    suspended_job(real)
    uid = wire.get(Job, "default/j").metadata.uid
    template = "/spec/template/spec"
    toleration = {"key": "spot", "operator": "Exists"}
    chosen = {
        f"{template}/nodeSelector": {"kind": "b"},
        f"{template}/tolerations": [toleration],
        f"{template}/schedulingGates": [{"name": "kueue.x-k8s.io/elastic-job"}],
    }
    wire.carry_out(PatchFields(Job, "default/j", uid, {**chosen, "/spec/suspend": False}))
    wait_until(lambda: wire.get(Job, "default/j").status.start_time, "the job has started")
    wire.carry_out(PatchFields(Job, "default/j", uid, {"/spec/suspend": True}))
    restored = {name: [] for name in chosen} | {f"{template}/nodeSelector": {}}
    wait_until(lambda: change_suspended(wire, uid, restored), "the template may change")
    found = wire.get(Job, "default/j").spec
    assert found.suspend
    assert not found.template.spec.node_selector
    assert not found.template.spec.tolerations
    assert not found.template.spec.scheduling_gates


WRAPPERS = "/apis/workload.codeflare.dev/v1beta2/namespaces/default/appwrappers"


@needs(
    "patch appwrappers.workload.codeflare.dev",
    "patch jaxjobs.kubeflow.org",
    "patch jobsets.jobset.x-k8s.io",
    "patch mpijobs.kubeflow.org",
    "patch paddlejobs.kubeflow.org",
    "patch pytorchjobs.kubeflow.org",
    "patch rayclusters.ray.io",
    "patch rayjobs.ray.io",
    "patch rayservices.ray.io",
    "patch sparkapplications.sparkoperator.k8s.io",
    "patch tfjobs.kubeflow.org",
    "patch trainjobs.trainer.kubeflow.org",
    "patch xgboostjobs.kubeflow.org",
)
def test_every_kind_of_job_is_resumed(wire: Wire, real: LiveCluster) -> None:
    real.apply([runtime()])
    for type_ in queued_kinds():
        kind = type_.__name__
        if kind == "Job":
            continue
        real.apply([suspended_content(kind, "x")])
        found = queued_job(wire.get(type_, "default/x"), wire.get)
        own = [PodSetInfo.of(one.content) for one in found.pods]
        added = [PodSetInfo(node_selector={"kind": "b"}, labels={"a": "b"})] * len(own)
        fields = started_fields(found, own, added, [None] * len(own))
        wire.carry_out(PatchFields(type_, "default/x", found.obj.metadata.uid, fields))
        after = queued_job(wire.get(type_, "default/x"), wire.get)
        assert not after.suspended
        templates = [one.template for one in after.pods]
        if kind == "AppWrapper":
            # Its operator adds what it names beside each component.
            wrapped = real.client.get(f"{WRAPPERS}/x").json
            made = [one["spec"]["template"] for one in components_of(wrapped)]
            templates = [decode_part(PodTemplate, one) for one in made]
        assert [one.metadata.labels.get("a") for one in templates] == ["b"] * len(own), kind
        assert [one.spec.node_selector for one in templates] == [{"kind": "b"}] * len(own)


@needs(
    "patch elasticjobs.ai.example.com",
    "patch elasticjobs.bayplan.dev",
    "patch jobs.batch",
    "patch jobs.batch.volcano.sh",
    "patch jobsets.jobset.x-k8s.io",
    "patch pytorchjobs.kubeflow.org",
    "patch rayclusters.ray.io",
)
def test_every_kind_of_elastic_job_is_resized(wire: Wire, real: LiveCluster) -> None:
    for content in (made() for made in ELASTIC.values()):
        real.apply([content])
        type_ = type(make_object(content))
        (part,) = elastic_parts(wire.get(type_, "default/a"))
        size = part.size.most - 1
        fields = {
            **part.fields(size, ["gone"]),
            "/metadata/annotations": {
                **part.obj.metadata.annotations,
                RESIZED_ANNOTATION: "2026-01-01T00:00:00Z",
            },
        }
        wire.carry_out(PatchFields(type_, "default/a", part.obj.metadata.uid, fields))
        (after,) = elastic_parts(wire.get(type_, "default/a"))
        assert after.size.now == size
        assert RESIZED_ANNOTATION in after.obj.metadata.annotations


@needs(
    "create jobs.batch",
    "create services",
    "patch elasticjobs.ai.example.com",
    "patch elasticjobs.bayplan.dev",
    "patch jobs.batch",
    "patch elasticjobs.ai.example.com/status",
    "patch elasticjobs.bayplan.dev/status",
)
@pytest.mark.parametrize("type_", [ElasticJob, AiElasticJob], ids=lambda one: str(one.__name__))
def test_a_job_makes_the_pods_of_an_elastic_job(
    wire: Wire, real: LiveCluster, type_: type[ElasticJob]
) -> None:
    kind = kind_of(type_())
    spec = {"scaling": {"minReplicas": 2, "maxReplicas": 4}, "template": {"spec": TEMPLATE}}
    meta = {"name": "a", "namespace": "default"}
    head = {"apiVersion": f"{kind.group}/{kind.versions[0]}", "kind": kind.name}
    real.apply([{**head, "metadata": meta, "spec": spec}])
    for made in (
        {"apiVersion": "v1", "kind": "Service"},
        {"apiVersion": "batch/v1", "kind": "Job"},
    ):
        real.used({**made, "metadata": meta})

    def look() -> Job:
        reconcile(wire, type_, key)
        return wire.get(Job, key)

    key = "default/a"
    job = look()
    assert (job.spec.parallelism, job.spec.completions, job.spec.completion_mode) == (
        2,
        2,
        "Indexed",
    )
    look()
    found = wire.get(type_, key)
    assert (found.status.phase, found.status.replicas) == ("Pending", 2)
    fields = {"/spec/replicas": 3}
    wire.carry_out(PatchFields(type_, key, found.metadata.uid, fields))
    look()
    assert wire.get(Job, key).spec.parallelism == 3


JOB = {"apiVersion": "batch/v1", "kind": "Job"}
TEMPLATE = {**pod("p")["spec"], "restartPolicy": "Never", "schedulerName": "nobody"}


class Now:
    """The objects as they are now, in place of a cache that follows them."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.resource_of, self.is_absent = wire.resource_of, wire.is_absent

    def get(self, type_: type[Any], key: str) -> Any:
        resource = self._wire.resource_of(type_)
        answer = self._wire.client.get(resource.path(key))
        return resource.read(answer.body) if answer.code == 200 else None

    def all(self, type_: type[Any]) -> list[Any]:
        resource = self._wire.resource_of(type_)
        found = self._wire.client.get(resource.collection).json["items"]
        return [resource.read(json.dumps(one).encode()) for one in found]


def reconcile(wire: Wire, type_: type[ElasticJob], key: str) -> list[Event]:
    """Make the Job of an elastic job; return the events that it got."""
    told: list[Event] = []
    wire.do(
        lambda http: ElasticJobs(http, Now(wire), lambda: True, told.append).reconcile(type_, key)
    )
    return told


@needs(
    "create jobs.batch",
    "create services",
    "patch elasticjobs.bayplan.dev/status",
)
def test_the_priority_of_an_elastic_job_is_that_of_a_class(wire: Wire, real: LiveCluster) -> None:
    head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    real.apply([{**head, "metadata": {"name": "high"}, "value": 1234}])
    kind = {"apiVersion": "bayplan.dev/v1alpha1", "kind": "ElasticJob"}
    for name, priority in (("a", 1234), ("b", 1235)):
        meta = {"name": name, "namespace": "default"}
        scaling = {"minReplicas": 1, "maxReplicas": 2}
        spec = {"priority": priority, "scaling": scaling, "template": {"spec": TEMPLATE}}
        real.apply([{**kind, "metadata": meta, "spec": spec}])
        for made in ({"apiVersion": "v1", "kind": "Service"}, JOB):
            real.used({**made, "metadata": meta})
    assert reconcile(wire, ElasticJob, "default/a") == []
    assert wire.get(Job, "default/a").spec.template.spec.priority_class_name == "high"
    (event,) = reconcile(wire, ElasticJob, "default/b")
    assert (event.pod, event.about, event.reason) == ("default/b", "ElasticJob", "NoPriorityClass")
    assert "expected a PriorityClass with the value 1235" in event.message
    assert wire.get(Job, "default/b").spec.template.spec.priority_class_name == ""


@needs("patch pods/status")
def test_a_pod_has_notice_of_its_eviction_through_its_status(wire: Wire, real: LiveCluster) -> None:
    uid = made_pod(wire, real).metadata.uid
    notice = {GOING_AT: "2026-01-01T00:00:00Z", EVICTION_NOTICE: "preempted"}
    fields = {"/metadata/annotations": notice}
    wire.carry_out(PatchFields(Pod, "default/p", uid, fields, "status"))
    assert wire.get(Pod, "default/p").metadata.annotations == notice
    gone = dict.fromkeys(
        (f"/metadata/annotations/{one.replace('/', '~1')}" for one in notice), None
    )
    wire.carry_out(PatchFields(Pod, "default/p", uid, gone, "status"))
    assert wire.get(Pod, "default/p").metadata.annotations == {}


@needs("patch pods")
def test_a_pod_is_told_when_it_goes(wire: Wire, real: LiveCluster) -> None:
    uid = made_pod(wire, real).metadata.uid
    at = "2026-01-01T00:00:00Z"
    for fields in (
        {"/metadata/annotations": {"example.com/a": "b"}},
        {"/metadata/annotations/bayplan.dev~1going-at": at},
    ):
        wire.carry_out(PatchFields(Pod, "default/p", uid, fields))
    found = wire.get(Pod, "default/p").metadata.annotations
    assert found == {"example.com/a": "b", GOING_AT: at}


@needs("patch pods")
@pytest.mark.parametrize("gate", ["kueue.x-k8s.io/admission", "kueue.x-k8s.io/elastic-job"])
def test_a_gate_is_opened(wire: Wire, real: LiveCluster, gate: str) -> None:
    gates = [{"name": gate}, {"name": "example.com/other"}]
    uid = made_pod(wire, real, pod("p", schedulingGates=gates)).metadata.uid
    fields = {
        "/spec/schedulingGates": gates[1:],
        "/spec/nodeSelector": {"kind": "b"},
    }
    wire.carry_out(PatchFields(Pod, "default/p", uid, fields))
    spec = wire.get(Pod, "default/p").spec
    assert [one.name for one in spec.scheduling_gates] == ["example.com/other"]
    assert spec.node_selector == {"kind": "b"}
    with pytest.raises(Conflict):
        wire.carry_out(PatchFields(Pod, "default/p", "another", fields))


def head_of(type_: type[ApiObject], name: str) -> Content:
    """Return what names an object of the namespace default."""
    kind = next(kind for kind in KINDS.values() if kind.type is type_)
    version = f"{kind.group}/{kind.versions[0]}"
    return {
        "apiVersion": version,
        "kind": kind.name,
        "metadata": {"name": name, "namespace": "default"},
    }


@needs("create configmaps", "patch configmaps")
def test_a_config_map_holds_what_was_put_last(wire: Wire, real: LiveCluster) -> None:
    found = documents(DEPLOY / "nccl-configmaps.yaml")
    for content in found:
        real.client.post(path_of(content, name=False), content)
    owner = OwnerReference("Pod", "p", made_pod(wire, real).metadata.uid, "v1")
    for data in ({}, {"a": "", "b": "1"}, {"b": "2"}, {}):
        meta = ObjectMeta(
            name="p-nccl",
            namespace="default",
            annotations={f"example.com/{key}": value for key, value in data.items()},
            owner_references=(owner,),
        )
        wire.carry_out(PutConfigMap(ConfigMap(meta, data)))
        got = real.client.get("/api/v1/namespaces/default/configmaps/p-nccl").json
        assert got.get("data", {}) == data
        assert got["metadata"].get("annotations", {}) == meta.annotations
        (reference,) = got["metadata"]["ownerReferences"]
        assert reference == {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner.uid}
    for content in found:
        real.client.delete(path_of(content))


# Claims ----------------------------------------------------------------------------------------

HERE = NodeSelector(
    (
        NodeSelectorTerm(match_fields=(NodeSelectorRequirement("metadata.name", "In", ("n",)),)),
        NodeSelectorTerm((NodeSelectorRequirement("example.com/gpus", "Exists"),)),
    )
)
DEVICE = AllocatedDevice("r", "example.com", "n", "gpu-0")
ALLOCATIONS = {
    "nothing": AllocationResult(),
    "a device": AllocationResult(DeviceAllocation((DEVICE,))),
    "a device with everything": AllocationResult(
        DeviceAllocation(
            (
                replace(
                    DEVICE,
                    admin_access=False,
                    tolerations=(
                        Toleration("a"),
                        Toleration("a", "Equal", "b", "NoExecute", 0),
                        Toleration(operator="Exists"),
                    ),
                    binding_conditions=("example.com/ready",),
                    binding_failure_conditions=("example.com/failed",),
                    share_id="a671734a-e8e5-11e4-8fde-42010af09327",
                    consumed_capacity={"none": Quantity("0"), "some": Quantity("1536Mi")},
                ),
            ),
            (
                DeviceConfiguration(
                    ("r",), OpaqueConfiguration("example.com", {"a": 0}), "FromClaim"
                ),
                DeviceConfiguration(
                    opaque=OpaqueConfiguration("example.com", {}), source="FromClass"
                ),
            ),
        ),
        HERE,
        "2026-01-01T00:00:00Z",
    ),
}


def _claim(count: int) -> Content:
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}
    return {
        "apiVersion": f"{DRA}/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    }


@needs("patch resourceclaims.resource.k8s.io", "patch resourceclaims.resource.k8s.io/status")
@pytest.mark.parametrize("allocation", ALLOCATIONS.values(), ids=ALLOCATIONS)
def test_an_allocation(wire: Wire, real: LiveCluster, allocation: AllocationResult) -> None:
    user = made_pod(wire, real)
    real.apply([_claim(1)])
    uid = wire.get(ResourceClaim, "default/c").metadata.uid
    wire.carry_out(ReserveClaim("default/c", uid, user.key, user.metadata.uid, allocation))
    found = wire.get(ResourceClaim, "default/c").status
    assert found.allocation == allocation
    assert [one.uid for one in found.reserved_for] == [user.metadata.uid]
    wire.carry_out(ReleaseClaim("default/c", uid, user.metadata.uid, deallocate=True))
    assert wire.get(ResourceClaim, "default/c").status.allocation is None


REQUESTS = {
    "bare": DeviceRequest("r", ExactDeviceRequest(device_class_name="gpu")),
    "counted": DeviceRequest(
        "r", ExactDeviceRequest(device_class_name="gpu", allocation_mode="ExactCount", count=1)
    ),
}


@needs(
    "create resourceclaims.resource.k8s.io",
    "patch resourceclaims.resource.k8s.io",
    "patch resourceclaims.resource.k8s.io/status",
    "patch pods/status",
)
@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_a_claim_of_extended_resources(
    wire: Wire, real: LiveCluster, request_: DeviceRequest
) -> None:
    content = pod("p", schedulerName="nobody")
    amounts = {"limits": {"example.com/gpu": "1"}, "requests": {"example.com/gpu": "1"}}
    content["spec"]["containers"][0]["resources"] = amounts
    user = made_pod(wire, real, content)
    claim = ResourceClaim(spec=ResourceClaimSpec(DeviceClaim((request_,))))
    mapping = ExtendedResourceMapping("main", "example.com/gpu", "r")
    allocation = AllocationResult(DeviceAllocation((DEVICE,)))
    wire.carry_out(CreateClaim(user.key, user.metadata.uid, claim, allocation, [mapping]))
    status = wire.get(Pod, "default/p").status.extended_resource_claim_status
    assert status is not None
    assert status.request_mappings == (mapping,)
    found = wire.get(ResourceClaim, f"default/{status.resource_claim_name}")
    assert found.status.allocation == allocation
    (request,) = found.spec.devices.requests
    assert request == REQUESTS["counted"]


# Volumes ---------------------------------------------------------------------------------------


@needs("patch persistentvolumes", "patch persistentvolumeclaims")
def test_a_volume_and_the_node_of_a_claim(wire: Wire, real: LiveCluster) -> None:
    modes = {"accessModes": ["ReadWriteOnce"], "storageClassName": "none"}
    claim_spec = {**modes, "resources": {"requests": {"storage": "1Gi"}}}
    source = {"driver": "example.com", "volumeHandle": "v"}
    volume_spec = {**modes, "capacity": {"storage": "2Gi"}, "csi": source}
    real.apply(
        [
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": "none"},
                "provisioner": "example.com",
                "volumeBindingMode": "WaitForFirstConsumer",
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "c", "namespace": "default"},
                "spec": claim_spec,
            },
        ]
    )
    uid = wire.get(PersistentVolumeClaim, "default/c").metadata.uid
    for name in ("n", ""):
        wire.carry_out(SelectNode("default/c", uid, name))
        claim = wire.get(PersistentVolumeClaim, "default/c")
        assert claim.metadata.annotations.get(SELECTED_NODE, "") == name
    head = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}}
    real.apply([{**head, "spec": volume_spec}])
    wait_until(lambda: wire.get(PersistentVolume, "v").status.phase == "Available", "available")
    wire.carry_out(BindVolume("v", "default/c", uid))
    assert wire.get(PersistentVolume, "v").spec.claim_ref == reference_to(claim)


# The scheduler itself --------------------------------------------------------------------------


@needs("create leases.coordination.k8s.io", "patch leases.coordination.k8s.io")
def test_a_lease_is_held_renewed_and_released(wire: Wire) -> None:
    path = "/apis/coordination.k8s.io/v1/namespaces/bayplan-system/leases/bayplan"
    times = LeaderElection(
        resource_namespace="bayplan-system",
        lease_duration=3.0,
        renew_deadline=2.0,
        retry_period=0.02,
    )

    def lease() -> Content:
        content: Content = wire.client.get(path).json
        return content

    wire.client.delete(path)

    async def lead(transport: Transport) -> None:
        election = Election(transport, times, "me", lambda leads: None)
        holding = asyncio.create_task(election.run())
        async with asyncio.timeout(SECONDS):
            while not election.leads():
                await asyncio.sleep(0.01)
            first = lease()
            while lease()["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]:
                await asyncio.sleep(0.01)
        spec = lease()["spec"]
        assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("me", 3)
        assert spec["acquireTime"] == first["spec"]["acquireTime"]
        assert spec["leaseTransitions"] == 0
        holding.cancel()
        await election.release()

    wire.do(lead)
    released = lease()["spec"]
    assert (released["holderIdentity"], released["leaseDurationSeconds"]) == ("", 1)
    wire.client.delete(path)


@needs(
    "create tokenreviews.authentication.k8s.io", "create subjectaccessreviews.authorization.k8s.io"
)
def test_whether_a_token_may_read_metrics(wire: Wire, plane: ControlPlane) -> None:
    token = yaml.safe_load(plane.kubeconfig.read_text())["users"][0]["user"]["token"]
    own = yaml.safe_load(wire.kubeconfig.read_text())["users"][0]["user"]["token"]

    async def ask(transport: Transport) -> list[bool]:
        reviews = TokenReviews(transport)
        return [await reviews.allows(one, "/metrics") for one in (token, own, "nobody's")]

    assert wire.do(ask) == [True, False, False]


# The driver ------------------------------------------------------------------------------------


@needs(
    "create resourceslices.resource.k8s.io",
    "delete resourceslices.resource.k8s.io",
    "update resourceslices.resource.k8s.io",
)
@pytest.mark.parametrize("name", known_machines())
def test_the_slices_of_a_machine_are_stored_as_they_are_published(
    name: str, real: LiveCluster, plane: ControlPlane
) -> None:
    machine = known_machine(name)
    half = machine.gpus[0].memory // 2
    parts = (Mig("MIG-a", 1, 0, half), Mig("MIG-b", 2, 0, half))
    parted = replace(machine.gpus[0], uuid="GPU-0", mig=parts)
    machine = replace(machine, gpus=(parted, *machine.gpus[1:]))
    inventory = inventory_of(machine, cpus=True)
    real.apply([node("n")])
    api = KubernetesApi(plane.kubeconfig)
    publisher = Publisher(api, DRIVER, api.owner("n"))
    taints = {"gpu-1": (DeviceTaint("dra.bayplan.dev/xid", "NoExecute", "79"),)}
    try:
        for wanted in ({}, taints):
            assert publisher.publish(inventory, wanted) > 0
            # One that starts again has only what the API server stores to compare with.
            again = Publisher(api, DRIVER, api.owner("n"))
            assert again.publish(inventory, wanted) == 0
            assert publisher.warnings == []
    finally:
        publisher.withdraw()
    assert real.items("/apis/resource.k8s.io/v1/resourceslices") == []
