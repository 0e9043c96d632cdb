"""Nodes whose CPUs Koordinator's agent publishes, and pods that get some of them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from bayplan.api import ApiObject, Pod
from bayplan.testing import Cluster, make_object, make_pod

__all__ = ["QOS", "SPEC", "STATUS", "cpu_pod", "cpu_report", "cpu_topology", "cpus_given"]

QOS = "koordinator.sh/qosClass"
SPEC = "scheduling.koordinator.sh/resource-spec"
STATUS = "scheduling.koordinator.sh/resource-status"
_DOMAIN = "node.koordinator.sh/"
_ANNOTATIONS = {
    "kubelet": "kubelet.koordinator.sh/cpu-manager-policy",
    "pods": f"{_DOMAIN}pod-cpu-allocs",
    "reservation": f"{_DOMAIN}reservation",
    "system": f"{_DOMAIN}system-qos-resource",
    "topology": f"{_DOMAIN}cpu-topology",
}


def cpu_topology(sockets: int = 2, cores: int = 4, threads: int = 2) -> str:
    """Return the CPUs of a node with one NUMA node in each socket."""
    numbers = [(cpu, cpu // threads) for cpu in range(sockets * cores * threads)]
    listed = [
        {"id": cpu, "core": core, "socket": core // cores, "node": core // cores}
        for cpu, core in numbers
    ]
    return json.dumps({"detail": listed})


def cpu_report(name: str = "n", zones: int = 0, **published: str) -> ApiObject:
    """Return what the agent publishes of a node whose kubelet aligns nothing.

    :param zones: the number of NUMA nodes, of 8 CPUs each, to describe besides.
    :param published: annotations by the names above.
    """
    amounts = [
        {"name": key, "capacity": amount, "allocatable": amount, "available": amount}
        for key, amount in (("cpu", "8"), ("memory", "16Gi"))
    ]
    texts = {"topology": cpu_topology(), **published}
    return make_object(
        {
            "apiVersion": "topology.node.k8s.io/v1alpha1",
            "kind": "NodeResourceTopology",
            "metadata": {
                "name": name,
                "annotations": {_ANNOTATIONS[key]: text for key, text in texts.items()},
            },
            "topologyPolicies": ["None"],
            "zones": [
                {"name": f"node-{i}", "type": "Node", "resources": amounts} for i in range(zones)
            ],
        }
    )


def cpu_pod(
    name: str,
    cpu: str = "4",
    qos: str = "LSR",
    spec: Mapping[str, str] | None = None,
    **resources: str,
) -> Pod:
    """Return a guaranteed pod; ``spec`` is what it asks of its CPUs."""
    amounts = {"cpu": cpu, "memory": "1Gi"}
    amounts |= {key.replace("__", "/").replace("_", "."): text for key, text in resources.items()}
    return make_pod(
        name,
        labels={QOS: qos} if qos else {},
        annotations={SPEC: json.dumps(spec)} if spec else {},
        spec={"containers": [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]},
    )


def cpus_given(cluster: Cluster, name: str) -> str:
    """Return the CPUs that a pod's annotation lists, "" without any."""
    found = cluster.api.get(Pod, f"default/{name}")
    text = found.metadata.annotations.get(STATUS, "{}") if found is not None else "{}"
    return str(json.loads(text).get("cpuset", ""))
