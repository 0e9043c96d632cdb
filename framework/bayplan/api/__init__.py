"""The Kubernetes objects that scheduling reads, as frozen msgspec structs.

Fields that scheduling does not read are ignored; a wrong type is an error that names the path.
Lists are tuples, so objects can be shared.
"""

from bayplan.api.autoscaling import HorizontalPodAutoscaler
from bayplan.api.colocation import ClusterColocationProfile
from bayplan.api.dra import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from bayplan.api.elastic_quota import ElasticQuota, ElasticQuotaProfile
from bayplan.api.jobset import JobSet
from bayplan.api.koordinator_device import KoordinatorDevice
from bayplan.api.kubeflow import PyTorchJob
from bayplan.api.kueue import (
    ClusterQueue,
    Cohort,
    KueueWorkload,
    LocalQueue,
    ResourceFlavor,
    WorkloadPriorityClass,
)
from bayplan.api.load import NodeMetric, NodeMetrics, WatchedLoad, WatchedMetric
from bayplan.api.meta import LabelSelector, ObjectMeta, OwnerReference, SelectorRequirement
from bayplan.api.network import ClusterNetworkTopology, HyperNode, KaiTopology, Topology
from bayplan.api.node import Node, Taint
from bayplan.api.numa import NodeResourceTopology
from bayplan.api.objects import KINDS, ApiObject, Kind, decode_object, kind_of
from bayplan.api.pod import Container, Pod, PodCondition, PodSpec, Toleration
from bayplan.api.podgroup import (
    CompositePodGroup,
    KaiPodGroup,
    NativePodGroup,
    PodGroup,
    SchedulerPluginsPodGroup,
    VolcanoPodGroup,
    Workload,
)
from bayplan.api.policy import (
    Namespace,
    PodDisruptionBudget,
    PriorityClass,
    ResourceQuota,
    Service,
)
from bayplan.api.pools import AiComputePool, AiElasticJob, ComputePool, ElasticJob
from bayplan.api.quantity import Quantity
from bayplan.api.queue_objects import KaiQueue, VolcanoQueue
from bayplan.api.ray import RayCluster, RayJob
from bayplan.api.reservation import Reservation
from bayplan.api.resources import pod_requests
from bayplan.api.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from bayplan.api.tensor_fusion import TensorFusionGpu
from bayplan.api.workloads import (
    ControllerRevision,
    DaemonSet,
    Deployment,
    Job,
    ReplicaSet,
    StatefulSet,
    VolcanoCommand,
    VolcanoJob,
)

__all__ = [
    "KINDS",
    "AiComputePool",
    "AiElasticJob",
    "ApiObject",
    "CSIDriver",
    "CSINode",
    "CSIStorageCapacity",
    "ClusterColocationProfile",
    "ClusterNetworkTopology",
    "ClusterQueue",
    "Cohort",
    "CompositePodGroup",
    "ComputePool",
    "Container",
    "ControllerRevision",
    "DaemonSet",
    "Deployment",
    "DeviceClass",
    "DeviceTaintRule",
    "ElasticJob",
    "ElasticQuota",
    "ElasticQuotaProfile",
    "HorizontalPodAutoscaler",
    "HyperNode",
    "Job",
    "JobSet",
    "KaiPodGroup",
    "KaiQueue",
    "KaiTopology",
    "Kind",
    "KoordinatorDevice",
    "KueueWorkload",
    "LabelSelector",
    "LocalQueue",
    "Namespace",
    "NativePodGroup",
    "Node",
    "NodeMetric",
    "NodeMetrics",
    "NodeResourceTopology",
    "ObjectMeta",
    "OwnerReference",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PodCondition",
    "PodDisruptionBudget",
    "PodGroup",
    "PodSpec",
    "PriorityClass",
    "PyTorchJob",
    "Quantity",
    "RayCluster",
    "RayJob",
    "ReplicaSet",
    "Reservation",
    "ResourceClaim",
    "ResourceClaimTemplate",
    "ResourceFlavor",
    "ResourceQuota",
    "ResourceSlice",
    "SchedulerPluginsPodGroup",
    "SelectorRequirement",
    "Service",
    "StatefulSet",
    "StorageClass",
    "Taint",
    "TensorFusionGpu",
    "Toleration",
    "Topology",
    "VolcanoCommand",
    "VolcanoJob",
    "VolcanoPodGroup",
    "VolcanoQueue",
    "WatchedLoad",
    "WatchedMetric",
    "Workload",
    "WorkloadPriorityClass",
    "decode_object",
    "kind_of",
    "pod_requests",
]
