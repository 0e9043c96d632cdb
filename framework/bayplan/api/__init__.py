"""The Kubernetes objects that scheduling reads, as frozen msgspec structs.

Fields that scheduling does not read are ignored, as the API server ignores unknown fields;
a wrong type is an error that names the path. Lists are tuples, so that objects can be shared.
"""

from bayplan.api.meta import LabelSelector, ObjectMeta, OwnerReference, SelectorRequirement
from bayplan.api.network import ClusterNetworkTopology
from bayplan.api.node import Node, Taint
from bayplan.api.objects import KINDS, ApiObject, Kind, decode_object, kind_of
from bayplan.api.pod import Container, Pod, PodCondition, PodSpec, Toleration
from bayplan.api.podgroup import PodGroup
from bayplan.api.policy import Namespace, PodDisruptionBudget, PriorityClass, Service
from bayplan.api.quantity import Quantity
from bayplan.api.resources import pod_requests
from bayplan.api.workloads import Deployment, Job, ReplicaSet, StatefulSet

__all__ = [
    "KINDS",
    "ApiObject",
    "ClusterNetworkTopology",
    "Container",
    "Deployment",
    "Job",
    "Kind",
    "LabelSelector",
    "Namespace",
    "Node",
    "ObjectMeta",
    "OwnerReference",
    "Pod",
    "PodCondition",
    "PodDisruptionBudget",
    "PodGroup",
    "PodSpec",
    "PriorityClass",
    "Quantity",
    "ReplicaSet",
    "SelectorRequirement",
    "Service",
    "StatefulSet",
    "Taint",
    "Toleration",
    "decode_object",
    "kind_of",
    "pod_requests",
]
