"""Clusters whose GPUs are attached by a fabric."""

from __future__ import annotations

from typing import Any

import yaml
from msgspec.structs import replace
from tests.plugins.gpus.gpu_builders import (
    GPU,
    device_class,
    node,
    obj,
    request,
    slice_of,
    template,
)

from bayplan.api import Node, Pod, ResourceClaim, ResourceSlice
from bayplan.api.configmap import ConfigMap
from bayplan.cluster.embedded.claims import ClaimController
from bayplan.cluster.embedded.fabric import VirtualFabric
from bayplan.cluster.embedded.kubelet import VirtualKubelet
from bayplan.testing import Cluster

PREFIX = "cohdi.io"
Content = dict[str, Any]


def fabric(devices: dict[str, int], apart: bool = False, **double: Any) -> ConfigMap:
    """Return the ConfigMap of a fabric that attaches in 20 s.

    :param devices: how many GPUs of each model it has.
    :param apart: whether the first model may not be beside the others.
    """
    models: list[Content] = [
        {
            "index": index,
            "k8s-device-name": name,
            "driver-name": GPU,
            "dra-attributes": {"model": name},
        }
        for index, name in enumerate(devices)
    ]
    if apart:
        models[0]["cannot-coexist-with"] = list(range(1, len(models)))
    given = {"fabrics": [{"id": 1, "devices": devices}], "attachTime": "20s", **double}
    data = {
        "label-prefix": PREFIX,
        "device-info": yaml.safe_dump(models),
        "double": yaml.safe_dump(given),
    }
    found = obj("ConfigMap", "", "v1", metadata={"name": "fabric", "namespace": "f"}, data=data)
    assert isinstance(found, ConfigMap)
    return found


def host(name: str, *models: str, **limits: str) -> Node:
    """Return a node that the fabric reaches; ``limits`` such as ``a_size_max="2"``."""
    labels = {f"{PREFIX}/fabric": "1", **{f"{PREFIX}/{model}": "true" for model in models}}
    labels |= {f"{PREFIX}/{key.replace('_', '-')}": value for key, value in limits.items()}
    return node(name, **labels)


def of_model(model: str) -> Content:
    expression = f'device.attributes["{GPU}"].model == "{model}"'
    return {"selectors": [{"cel": {"expression": expression}}]}


def fabric_cluster(config: ConfigMap, *objects: Any, **options: Any) -> Cluster:
    """Return a cluster with a fabric, the class "gpu" and the template "one"."""
    made = Cluster(**options)
    ClaimController(made.api)
    VirtualKubelet(made.api)
    VirtualFabric(made.api)
    made.add(device_class(), template("one", request()), config, *objects)
    return made


def local_gpu(node_name: str, model: str = "a") -> ResourceSlice:
    return slice_of(node_name, [{"name": "local", "attributes": {"model": {"string": model}}}])


def gpu_of(made: Cluster, pod: str) -> str:
    """Return the node and the device of a pod's claim, such as "n1: a-0"."""
    for claim in made.api.list(ResourceClaim):
        users = {reference.name for reference in claim.status.reserved_for}
        if pod in users and claim.status.allocation is not None:
            results = claim.status.allocation.devices.results
            names = ", ".join(result.device for result in results)
            return f"{claim.status.allocation.bound_node}: {names}"
    return ""


def places(made: Cluster) -> dict[str, str]:
    """Return where the GPUs of the fabric are: by name their node, "" for the pool."""
    return {
        device.name: device.node_name or one.spec.node_name
        for one in made.api.list(ResourceSlice)
        for device in one.spec.devices
        if device.name != "local"
    }


def events(made: Cluster, pod: str) -> list[str]:
    return [e.message for _, e in made.api.events if e.pod == f"default/{pod}"]


def finish(made: Cluster, name: str) -> None:
    """Let a pod succeed."""
    found = made.api.get(Pod, f"default/{name}")
    assert found is not None
    made.api.update(replace(found, status=replace(found.status, phase="Succeeded")))
    made.api.deliver()
    made.schedule()
