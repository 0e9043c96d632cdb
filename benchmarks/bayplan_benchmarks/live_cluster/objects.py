"""What a run creates on a cluster: nodes, devices, pod groups and pods.

Everything carries the run's label or is in its namespace. The nodes have a taint that keeps all
other pods away, and no operating system label, so the DaemonSets of most systems pass them by.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from bayplan.api import (
    ApiObject,
    Container,
    DeviceClass,
    NativePodGroup,
    Node,
    ObjectMeta,
    Pod,
    PodSpec,
    Quantity,
    ResourceClaimTemplate,
    ResourceSlice,
    Taint,
    Toleration,
)
from bayplan.api.dra import (
    CelSelector,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceClaim,
    DeviceClassSpec,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    ExactDeviceRequest,
    ResourceClaimSpec,
    ResourceClaimTemplateSpec,
    ResourcePool,
    ResourceSliceSpec,
)
from bayplan.api.node import NodeCondition, NodeSpec, NodeStatus
from bayplan.api.pod import ContainerClaim, PodResourceClaim, ResourceRequirements, SchedulingGroup
from bayplan.api.podgroup import (
    GangPolicy,
    NativePodGroupSpec,
    SchedulingConstraints,
    SchedulingPolicy,
    TopologyKey,
)

__all__ = ["DEVICES", "GANG", "LABEL", "Workload", "bound_pods", "pods", "surroundings"]

LABEL = "bayplan.dev/bench"
"""The label and the taint of what belongs to a run; the value is the run's."""
GANG = 4
"""The number of pods of a gang."""
DEVICES = 8
"""The number of GPUs of a node, and of its NICs."""
_RACK = "bayplan.dev/bench-rack"
_RACK_NODES = 20
_PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
_KOORDINATOR = "gang.scheduling.koordinator.sh"
_NODE = {"cpu": Quantity("32"), "memory": Quantity("256Gi"), "pods": Quantity("110")}
_POD = {"cpu": Quantity("100m"), "memory": Quantity("500Mi")}


class Workload(msgspec.Struct, frozen=True):
    """One workload of a run.

    :param kind: plain, dra, gang or gangrack.
    :param scheduler: the name of the scheduler of its pods.
    :param pod_groups: whether gangs are PodGroups of Kubernetes; otherwise they are annotations of
        Koordinator.
    """

    run: str
    kind: str
    nodes: int
    pods: int
    scheduler: str
    pod_groups: bool

    @property
    def namespace(self) -> str:
        """The namespace of the run."""
        return f"bayplan-bench-{self.run}"

    @property
    def is_gang(self) -> bool:
        """Whether its pods are in gangs."""
        return self.kind in ("gang", "gangrack")


def surroundings(workload: Workload) -> Iterable[ApiObject]:
    """Yield what has to exist before the pods of a workload."""
    for index in range(workload.nodes):
        node = _node(workload, index)
        yield node
        if workload.kind == "dra":
            yield _slice(node, workload, "gpu")
            yield _slice(node, workload, "nic")
    if workload.kind == "dra":
        yield _device_class(workload, "gpu")
        yield _device_class(workload, "nic")
        yield _claim_template(workload)
    if workload.is_gang and workload.pod_groups:
        for index in range(workload.pods // GANG):
            yield _pod_group(workload, f"gang-{index}")


def bound_pods(workload: Workload, count: int) -> Iterable[Pod]:
    """Yield pods that are on the nodes already, evenly."""
    for index in range(count):
        yield _pod(workload, f"bound-{index}", node=_node_name(workload, index % workload.nodes))


def _node_name(workload: Workload, index: int) -> str:
    return f"{workload.namespace}-{index}"


def pods(workload: Workload) -> Iterable[Pod]:
    """Yield the pods of a workload."""
    for index in range(workload.pods):
        gang = f"gang-{index // GANG}" if workload.is_gang else ""
        yield _pod(workload, f"{workload.kind}-{index}", gang)


def _labelled(name: str, workload: Workload) -> ObjectMeta:
    return ObjectMeta(name=name, labels={LABEL: workload.run})


def _named(workload: Workload, name: str) -> ObjectMeta:
    return ObjectMeta(name=name, namespace=workload.namespace)


def _node(workload: Workload, index: int) -> Node:
    name = _node_name(workload, index)
    labels = {
        LABEL: workload.run,
        _RACK: f"rack-{index // _RACK_NODES}",
        "kubernetes.io/hostname": name,
    }
    ready = (NodeCondition("Ready", "True"),)
    taint = Taint(LABEL, "NoSchedule", workload.run)
    return Node(
        ObjectMeta(name=name, labels=labels),
        NodeSpec(taints=(taint,)),
        NodeStatus(_NODE, _NODE, ready),
    )


def _pod(workload: Workload, name: str, gang: str = "", node: str = "") -> Pod:
    annotations, group = {}, None
    claims: tuple[PodResourceClaim, ...] = ()
    resources = ResourceRequirements(_POD)
    if workload.kind == "dra":
        claims = (PodResourceClaim("pair", resource_claim_template_name="pair"),)
        resources = ResourceRequirements(_POD, claims=(ContainerClaim("pair"),))
    if gang and workload.pod_groups:
        group = SchedulingGroup(gang)
    elif gang:
        annotations = {f"{_KOORDINATOR}/name": gang, f"{_KOORDINATOR}/min-available": str(GANG)}
    spec = PodSpec(
        containers=(Container("main", "registry.k8s.io/pause:3.10", resources),),
        node_selector={LABEL: workload.run},
        tolerations=_tolerations(workload.run),
        scheduling_group=group,
        node_name=node,
        scheduler_name=workload.scheduler,
        resource_claims=claims,
    )
    meta = ObjectMeta(name=name, namespace=workload.namespace, annotations=annotations)
    return Pod(meta, spec)


def _tolerations(run: str) -> tuple[Toleration, ...]:
    # No kubelet reports for the nodes, so controllers taint them after a while.
    without_kubelet = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    return (
        Toleration(LABEL, value=run, effect="NoSchedule"),
        *(Toleration(key, "Exists") for key in without_kubelet),
    )


# Gangs ---------------------------------------------------------------------------------------


def _pod_group(workload: Workload, name: str) -> NativePodGroup:
    constraints = SchedulingConstraints()
    if workload.kind == "gangrack":
        constraints = SchedulingConstraints((TopologyKey(_RACK),))
    spec = NativePodGroupSpec(
        scheduling_policy=SchedulingPolicy(gang=GangPolicy(GANG)),
        scheduling_constraints=constraints,
    )
    return NativePodGroup(_named(workload, name), spec)


# Devices -------------------------------------------------------------------------------------


def _driver(kind: str) -> str:
    return f"{kind}.bench.bayplan.dev"


def _slice(node: Node, workload: Workload, kind: str) -> ResourceSlice:
    name = node.metadata.name
    devices = tuple(
        Device(
            f"{kind}-{index}",
            {_PCIE_ROOT: DeviceAttribute(string=f"pci0000:{index:02x}")},
            {"memory": DeviceCapacity(Quantity("80Gi"))} if kind == "gpu" else {},
        )
        for index in range(DEVICES)
    )
    spec = ResourceSliceSpec(_driver(kind), ResourcePool(name, 1), node_name=name, devices=devices)
    return ResourceSlice(spec, _labelled(f"{name}-{kind}", workload))


def _device_class(workload: Workload, kind: str) -> DeviceClass:
    selector = DeviceSelector(CelSelector(f'device.driver == "{_driver(kind)}"'))
    name = _class_name(workload, kind)
    return DeviceClass(_labelled(name, workload), DeviceClassSpec((selector,)))


def _class_name(workload: Workload, kind: str) -> str:
    return f"{workload.namespace}-{kind}"


def _claim_template(workload: Workload) -> ResourceClaimTemplate:
    requests = tuple(
        DeviceRequest(kind, ExactDeviceRequest(device_class_name=_class_name(workload, kind)))
        for kind in ("gpu", "nic")
    )
    claim = DeviceClaim(requests, (DeviceConstraint(match_attribute=_PCIE_ROOT),))
    return ResourceClaimTemplate(
        _named(workload, "pair"), ResourceClaimTemplateSpec(spec=ResourceClaimSpec(claim))
    )
