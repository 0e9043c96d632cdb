"""Objects for tests, each in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bayplan.api import (
    ApiObject,
    ClusterNetworkTopology,
    Container,
    Node,
    ObjectMeta,
    Pod,
    PodGroup,
    PodSpec,
    Quantity,
    Taint,
)
from bayplan.api.meta import OwnerReference
from bayplan.api.network import ClusterNetworkTopologySpec, NetworkTopologyLayer
from bayplan.api.node import NodeSpec, NodeStatus
from bayplan.api.objects import KINDS, decode_object, decode_part, kind_of
from bayplan.api.pod import PodTemplate, ResourceRequirements
from bayplan.api.podgroup import PodGroupSpec
from bayplan.kinds import KINDS_OF_WORKLOADS, pods_of
from bayplan.schemas.fieldcheck import check_fields
from bayplan.topology.network.tree import NODE_LAYER

__all__ = [
    "make_gang",
    "make_network",
    "make_node",
    "make_object",
    "make_pod",
    "make_pods_of",
]


def make_node(
    name: str,
    cpu: str | int = "8",
    memory: str = "32Gi",
    pods: int = 110,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[str] = (),
    unschedulable: bool = False,
    annotations: Mapping[str, str] | None = None,
    **resources: str | int,
) -> Node:
    """Return a node. Taints are written ``key=value:Effect`` or ``key:Effect``.

    ``gpu`` stands for nvidia.com/gpu; any other resource is given by its name.
    """
    amounts = {"cpu": cpu, "memory": memory, "pods": pods, **_resource_names(resources)}
    quantities = {key: Quantity(value) for key, value in amounts.items()}
    all_labels = {"kubernetes.io/hostname": name, **(labels or {})}
    spec = NodeSpec(unschedulable, tuple(_taint(text) for text in taints))
    meta = ObjectMeta(name=name, labels=all_labels, annotations=dict(annotations or {}))
    return Node(meta, spec, NodeStatus(quantities, quantities))


def make_pod(
    name: str,
    cpu: str | int | None = "1",
    memory: str | None = "1Gi",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    namespace: str = "default",
    priority: int | None = None,
    node: str = "",
    gang: str | None = None,
    spec: Mapping[str, Any] | None = None,
    owner: str = "",
    **resources: str | int,
) -> Pod:
    """Return a pod of one container; ``spec`` adds any fields of a pod's spec, as in YAML.

    ``owner`` is its controller, written ``Job/train``. Amounts are those of the one container; they
    are ignored if ``spec`` has containers.
    """
    asked = {"cpu": cpu, "memory": memory, **_resource_names(resources)}
    requests = {key: Quantity(value) for key, value in asked.items() if value is not None}
    content = dict(spec or {})
    all_labels = dict(labels or {})
    if gang is not None:
        all_labels["pod-group.scheduling.sigs.k8s.io"] = gang
    main = Container("main", "busybox", ResourceRequirements(requests))
    decoded = decode_part(PodSpec, content)
    fields = {field: getattr(decoded, field) for field in PodSpec.__struct_fields__}
    fields["containers"] = decoded.containers or (main,)
    fields["priority"] = decoded.priority if priority is None else priority
    fields["node_name"] = node or decoded.node_name
    kind, _, owner_name = owner.partition("/")
    meta = ObjectMeta(
        name=name,
        namespace=namespace,
        labels=all_labels,
        annotations=dict(annotations or {}),
        owner_references=(OwnerReference(kind, owner_name, controller=True),) if owner else (),
    )
    return Pod(meta, PodSpec(**fields))


def make_gang(name: str, min_member: int, annotations: Mapping[str, str] | None = None) -> PodGroup:
    """Return a PodGroup in the namespace "default"."""
    meta = ObjectMeta(name=name, namespace="default", annotations=dict(annotations or {}))
    return PodGroup(meta, PodGroupSpec(min_member))


def make_network(**layers: str) -> ClusterNetworkTopology:
    """Return the network of these layers, the outermost first; each is named by a node label."""
    found: list[NetworkTopologyLayer] = []
    parent = ""
    for name, label in layers.items():
        found.append(NetworkTopologyLayer(name, parent, (label,)))
        parent = name
    found.append(NetworkTopologyLayer(NODE_LAYER, parent))
    spec = ClusterNetworkTopologySpec(tuple(found))
    return ClusterNetworkTopology(ObjectMeta(name="default"), spec)


def make_object(content: Mapping[str, Any]) -> ApiObject:
    """Return any object from the mapping that its manifest would parse to."""
    kind = KINDS[str(content["apiVersion"]).rpartition("/")[0], content["kind"]]
    check_fields(kind, content)
    return decode_object(kind, dict(content))


def make_pods_of(owner: ApiObject) -> list[Pod]:
    """Return the pods that the operator of a workload makes, by the table of kinds.

    :param owner: an object of a kind whose row names its pods; give it a UID.
    :raises ValueError: for an object of any other kind, or what is no number of pods.
    """
    kind = kind_of(owner)
    row = KINDS_OF_WORKLOADS.get((kind.group, kind.name))
    if row is None or not all(one.pod for one in row.pods):
        raise ValueError(f"no row of the table of kinds names the pods of {kind.name}")
    meta = owner.metadata
    version = f"{kind.group}/{kind.versions[0]}"
    reference = OwnerReference(kind.name, meta.name, meta.uid, version, controller=True)
    found = []
    for plan in pods_of(row, msgspec.to_builtins(owner)):
        template = decode_part(PodTemplate, dict(plan.template))
        labels = {**template.metadata.labels, **plan.labels}
        annotations = template.metadata.annotations
        own = ObjectMeta(
            name=plan.name,
            namespace=meta.namespace,
            labels=labels,
            annotations=annotations,
            owner_references=(reference,),
        )
        found.append(Pod(own, template.spec))
    return found


def _resource_names(resources: Mapping[str, str | int]) -> dict[str, str | int]:
    return {"nvidia.com/gpu" if key == "gpu" else key: value for key, value in resources.items()}


def _taint(text: str) -> Taint:
    pair, _, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    return decode_part(Taint, {"key": key, "value": value, "effect": effect})
