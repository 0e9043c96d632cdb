"""Nodes, devices and pods of stories, and waiting for what has to happen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.cluster.apiserver.faces import node, pod
from tests.controlplane.live_cluster import Content
from tests.controlplane.plane import SECONDS

__all__ = ["DRA", "DRIVER", "asking", "devices", "happens", "nodes", "with_device"]

DRA = "resource.k8s.io/v1"


DRIVER = "gpu.example.com"


def nodes(count: int) -> list[Content]:
    """Nodes of eight cores."""
    return [node(f"n{i}", **{"kubernetes.io/hostname": f"n{i}"}) for i in range(count)]


def asking(name: str, cpu: int = 1, **spec: Any) -> Content:
    """A pod that requests so many cores, and ends soon when it has to."""
    made = pod(name, terminationGracePeriodSeconds=1, **spec)
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": str(cpu)}}
    return made


async def happens(true: Callable[[], Any], seconds: float = SECONDS) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.05)


def devices(count: int, gpus: int) -> list[Content]:
    """A class of GPUs, a template of claims for one, and so many of them on every node."""
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
    claim = {"spec": {"devices": {"requests": [request]}}}
    made = [
        {"apiVersion": DRA, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}},
        {
            "apiVersion": DRA,
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "gpu", "namespace": "default"},
            "spec": claim,
        },
    ]
    for index in range(count):
        name = f"n{index}"
        spec = {
            "driver": DRIVER,
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"gpu-{gpu}"} for gpu in range(gpus)],
        }
        meta = {"name": f"{name}-gpus"}
        made.append({"apiVersion": DRA, "kind": "ResourceSlice", "metadata": meta, "spec": spec})
    return made


def with_device(name: str, **spec: Any) -> Content:
    """A pod with a claim of its own, made from the template."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    return asking(name, resourceClaims=claims, **spec)
