"""Builders for tests with volumes: classes, volumes, claims, pods that use them, and clusters."""

from __future__ import annotations

from typing import Any

from bayplan.api import PersistentVolumeClaim, Pod
from bayplan.api.volumes import is_bound
from bayplan.cluster.embedded.kubelet import VirtualKubelet
from bayplan.cluster.embedded.volumes import VolumeController
from bayplan.testing import (
    Cluster,
    make_node,
    make_object,
    make_pod,
)

ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"
SELECTED = "volume.kubernetes.io/selected-node"
DRIVER = "disks.example.com"
AFFINITY = "node(s) didn't match PersistentVolume's node affinity"
NO_VOLUMES = "node(s) didn't find available persistent volumes to bind"
NO_STORAGE = "node(s) did not have enough free storage"
FULL = "node(s) exceed max volume count"
IN_USE = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already "
    "in-use by another pod"
)


def obj(kind: str, name: str, version: str = "v1", **content: Any) -> Any:
    meta = {"name": name, **content.pop("metadata", {})}
    return make_object({"apiVersion": version, "kind": kind, "metadata": meta, **content})


def storage(kind: str, name: str, **content: Any) -> Any:
    return obj(kind, name, "storage.k8s.io/v1", **content)


def storage_class(name: str, provisioner: str = DRIVER, delayed: bool = True, **more: Any) -> Any:
    mode = "WaitForFirstConsumer" if delayed else "Immediate"
    content = {"provisioner": provisioner, "volumeBindingMode": mode, **more}
    return storage("StorageClass", name, **content)


LOCAL = storage_class("local", "kubernetes.io/no-provisioner")
FAST = storage_class("fast")


def on(key: str, *values: str) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}
    return {"required": {"nodeSelectorTerms": [term]}}


def volume(name: str, node: str = "", size: str = "10Gi", cls: str = "local", **spec: Any) -> Any:
    metadata = spec.pop("metadata", {})
    content: dict[str, Any] = {
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": cls,
    }
    if node:
        content["nodeAffinity"] = on(HOST, node)
    return obj("PersistentVolume", name, metadata=metadata, spec={**content, **spec})


def claim(name: str, size: str = "10Gi", cls: str | None = "local", **spec: Any) -> Any:
    metadata = spec.pop("metadata", {})
    status = spec.pop("status", {})
    content: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}},
        **({"storageClassName": cls} if cls is not None else {}),
    }
    spec = {**content, **spec}
    return obj("PersistentVolumeClaim", name, metadata=metadata, spec=spec, status=status)


def bound(name: str, to: str, **spec: Any) -> Any:
    metadata = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    return claim(name, volumeName=to, metadata=metadata, status={"phase": "Bound"}, **spec)


def pod(name: str, *claims: str, **more: Any) -> Pod:
    volumes = [
        {"name": f"v{index}", "persistentVolumeClaim": {"claimName": one}}
        for index, one in enumerate(claims)
    ]
    return make_pod(name, spec={"volumes": volumes, **more.pop("spec", {})}, **more)


def with_scratch(name: str, cls: str = "fast", size: str = "1Gi", **more: Any) -> Pod:
    wanted = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": cls,
        "resources": {"requests": {"storage": size}},
    }
    scratch = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": wanted}}}
    return make_pod(name, spec={"volumes": [scratch]}, **more)


def csi_node(name: str, count: int | None = None, keys: tuple[str, ...] = ()) -> Any:
    driver: dict[str, Any] = {"name": DRIVER, "nodeID": name, "topologyKeys": list(keys)}
    if count is not None:
        driver["allocatable"] = {"count": count}
    return storage("CSINode", name, spec={"drivers": [driver]})


def nodes(*names: str, **labels: str) -> list[Any]:
    return [make_node(name, labels={ZONE: labels.get(name, "z")}) for name in names]


def live(*objects: Any, **options: Any) -> Cluster:
    """Return a cluster whose volumes have their controller."""
    made = Cluster(**options)
    VolumeController(made.api)
    VirtualKubelet(made.api)
    made.add(*objects)
    return made


def volumes_of(made: Cluster) -> dict[str, str]:
    """Return the volume of every bound claim, by name."""
    found = made.api.list(PersistentVolumeClaim)
    return {one.metadata.name: one.spec.volume_name for one in found if is_bound(one)}


def phase(made: Cluster, name: str) -> str:
    found = made.api.get(Pod, f"default/{name}")
    assert found is not None
    return found.status.phase


def disk(name: str, handle: str = "") -> list[Any]:
    csi = {"driver": DRIVER, "volumeHandle": handle or name}
    return [volume(f"pv-{name}", csi=csi), bound(name, to=f"pv-{name}")]


def exclusive(*more: Any) -> Cluster:
    pv = volume("pv", accessModes=["ReadWriteOncePod"])
    data = bound("data", to="pv", accessModes=["ReadWriteOncePod"])
    return Cluster([*nodes("a", "b"), pv, data, *more])
