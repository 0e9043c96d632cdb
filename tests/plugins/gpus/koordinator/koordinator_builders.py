"""Nodes with Koordinator's Device objects, and pods that request of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bayplan.api import ApiObject, KoordinatorDevice, Node, Pod
from bayplan.testing import Cluster, make_node, make_object, make_pod

__all__ = ["allocated", "device", "devices", "gpu", "machine", "minors", "nic", "node", "pod"]

DOMAIN = "scheduling.koordinator.sh/"


def gpu(minor: int, pcie: str = "", numa: int = 0, memory: str = "80Gi", **more: Any) -> Any:
    """Return a GPU of a Device; without a PCIe switch it does not say where it is."""
    resources = {"gpu-core": "100", "gpu-memory-ratio": "100", "gpu-memory": memory}
    return device("gpu", minor, resources, pcie, numa, id=f"GPU-{minor}", **more)


def nic(minor: int, pcie: str = "", numa: int = 0, functions: int = 2, **more: Any) -> Any:
    """Return a NIC with virtual functions ``0000:0<minor>:00.<n>`` of type general."""
    group = {
        "labels": {"type": "general"},
        "vfs": [{"minor": n, "busID": f"0000:0{minor}:00.{n}"} for n in range(functions)],
    }
    own = {"vfGroups": [group]} if functions else {}
    return device("rdma", minor, {"rdma": "100"}, pcie, numa, **own, **more)


def device(
    kind: str, minor: int, resources: Mapping[str, str], pcie: str, numa: int, **more: Any
) -> dict[str, Any]:
    """Return one device of a Device; resources without a domain are Koordinator's."""
    found = {
        "type": kind,
        "minor": minor,
        "health": True,
        "resources": {_full(name): amount for name, amount in resources.items()},
    }
    if pcie:
        found["topology"] = {"socketID": numa, "nodeID": numa, "pcieID": pcie}
    return {**found, **more}


def devices(name: str, *found: Any, **metadata: Any) -> KoordinatorDevice:
    """Return the Device of a node."""
    obj = make_object(
        {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Device",
            "metadata": {"name": name, **metadata},
            "spec": {"devices": list(found)},
        }
    )
    assert isinstance(obj, KoordinatorDevice)
    return obj


def node(name: str, labels: Mapping[str, str] | None = None, gpus: int = 8, **more: Any) -> Node:
    """Return a node that offers GPUs and NICs in Koordinator's resources, and others."""
    percent = dict.fromkeys(("gpu", "gpu-core", "gpu-memory-ratio", "rdma"), gpus * 100)
    own: dict[str, Any] = {"gpu.shared": gpus * 100, "gpu-memory": f"{gpus * 80}Gi", **percent}
    resources = {_full(key): own[key] for key in own} | {"nvidia.com/gpu": gpus} | more
    return make_node(name, cpu=64, labels=labels, **resources)


def pod(
    name: str,
    requests: Mapping[str, str | int],
    priority: int | None = None,
    labels: Mapping[str, str] | None = None,
    **annotations: Any,
) -> Pod:
    """Return a pod; resources without a domain are Koordinator's.

    ``device_allocate_hint`` and so on are annotations, as text or as a value of JSON.
    """
    texts = {
        f"{DOMAIN}{key.replace('_', '-')}": value if isinstance(value, str) else json.dumps(value)
        for key, value in annotations.items()
    }
    full: dict[str, Any] = {_full(key): requests[key] for key in requests}
    return make_pod(name, annotations=texts, priority=priority, labels=labels, **full)


def _full(name: str) -> str:
    return name if "/" in name else f"koordinator.sh/{name}"


def allocated(cluster: Cluster, name: str) -> dict[str, list[dict[str, Any]]]:
    """Return what the annotation of a bound pod says that it got."""
    found = cluster.api.get(Pod, f"default/{name}")
    assert found is not None
    text = found.metadata.annotations[f"{DOMAIN}device-allocated"]
    content: dict[str, list[dict[str, Any]]] = json.loads(text)
    return content


def minors(cluster: Cluster, name: str, kind: str = "gpu") -> list[int]:
    """Return the devices of a type that a bound pod got."""
    return [one["minor"] for one in allocated(cluster, name).get(kind, ())]


def machine(name: str = "n1", **metadata: Any) -> list[ApiObject]:
    """Return a node with 8 GPUs and 4 NICs, two GPUs and a NIC at each PCIe switch."""
    labels = metadata.pop("node_labels", None)
    gpus = [gpu(n, pcie=str(n // 2), numa=n // 4) for n in range(8)]
    nics = [nic(n + 1, pcie=str(n), numa=n // 2) for n in range(4)]
    return [node(name, labels), devices(name, *gpus, *nics, **metadata)]
