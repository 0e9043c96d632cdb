"""Assemble an embedded cluster: start its controllers, create its objects in order."""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.api import (
    ApiObject,
    ClusterColocationProfile,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    DeviceClass,
    KoordinatorDevice,
    Namespace,
    Node,
    NodeMetric,
    NodeMetrics,
    NodeResourceTopology,
    PersistentVolume,
    PersistentVolumeClaim,
    PriorityClass,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
    StorageClass,
    TensorFusionGpu,
)
from bayplan.cluster.embedded.claims import ClaimController
from bayplan.cluster.embedded.controllers import WorkloadControllers
from bayplan.cluster.embedded.device_plugins import VirtualDevicePlugins
from bayplan.cluster.embedded.device_taint_eviction import DeviceTaintEviction
from bayplan.cluster.embedded.disruption import DisruptionController
from bayplan.cluster.embedded.fabric import VirtualFabric
from bayplan.cluster.embedded.gpu_reservations import GpuReservations
from bayplan.cluster.embedded.kubelet import VirtualKubelet
from bayplan.cluster.embedded.pod_finalizers import PodFinalizers
from bayplan.cluster.embedded.pod_gc import PodGarbageCollector
from bayplan.cluster.embedded.remote_workers import RemoteWorkers
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.embedded.taint_eviction import TaintEviction
from bayplan.cluster.embedded.volcano_jobs import VolcanoJobs
from bayplan.cluster.embedded.volumes import VolumeController
from bayplan.cluster.embedded.workload_garbage import WorkloadGarbage
from bayplan.errors import InputError

__all__ = ["create_in_order", "place_of", "start_controllers"]

_FIRST: tuple[type, ...] = (
    Namespace,
    PriorityClass,
    ClusterColocationProfile,
    Node,
    DeviceClass,
    ResourceSlice,
    NodeMetric,
    NodeMetrics,
    NodeResourceTopology,
    KoordinatorDevice,
    TensorFusionGpu,
    ResourceClaimTemplate,
    ResourceClaim,
    StorageClass,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
)
_PLACES = {type_: place for place, type_ in enumerate(_FIRST)}


def start_controllers(cluster: MemoryCluster) -> VirtualKubelet:
    """Start the kubelet and the controllers of a cluster; return the kubelet."""
    VirtualDevicePlugins(cluster)
    kubelet = VirtualKubelet(cluster)
    GpuReservations(cluster)
    RemoteWorkers(cluster)
    WorkloadControllers(cluster)
    VolcanoJobs(cluster)
    DisruptionController(cluster)
    ClaimController(cluster)
    VirtualFabric(cluster)
    VolumeController(cluster)
    TaintEviction(cluster)
    DeviceTaintEviction(cluster)
    PodFinalizers(cluster)
    PodGarbageCollector(cluster)
    WorkloadGarbage(cluster)
    return kubelet


def place_of(type_: type) -> int:
    """Return the position of a type in creation order: referenced types come first."""
    return _PLACES.get(type_, len(_PLACES))


def create_in_order(
    cluster: MemoryCluster, objects: Iterable[ApiObject], restore: bool = False
) -> None:
    """Create objects, referenced ones first.

    An object that admission refuses is reported and skipped, as kubectl apply does.

    :param restore: keep their creationTimestamps: they are those of another cluster.
    """
    for obj in sorted(objects, key=lambda obj: place_of(type(obj))):
        try:
            cluster.create(obj, obj.metadata.creation_timestamp if restore else None)
        except InputError as exc:
            cluster.report(obj, exc)
