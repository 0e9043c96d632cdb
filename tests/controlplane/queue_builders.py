"""Queues and suspended jobs of stories."""

from __future__ import annotations

from tests.controlplane.live_cluster import Content
from tests.controlplane.story_builders import asking

__all__ = ["KUEUE", "MOST", "cluster_queue", "head", "suspended_job"]

MOST = 6
"""Cores that a queue may have: it never has all that it asks for."""


KUEUE = "kueue.x-k8s.io/v1beta2"


def head(version: str, kind: str, name: str, namespaced: bool = True) -> Content:
    meta = {"name": name, **({"namespace": "default"} if namespaced else {})}
    return {"apiVersion": version, "kind": kind, "metadata": meta}


def cluster_queue(name: str) -> list[Content]:
    flavor = head(KUEUE, "ResourceFlavor", name, False)
    quota = {"name": name, "resources": [{"name": "cpu", "nominalQuota": MOST}]}
    groups = [{"coveredResources": ["cpu"], "flavors": [quota]}]
    local = head(KUEUE, "LocalQueue", name)
    local["spec"] = {"clusterQueue": name}
    queue = head(KUEUE, "ClusterQueue", name, False)
    queue["spec"] = {"namespaceSelector": {}, "resourceGroups": groups}
    return [flavor, local, queue]


def suspended_job(name: str, queue: str, count: int) -> list[Content]:
    job = head("batch/v1", "Job", name)
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": queue}
    spec = {**asking(name, schedulerName="bayplan")["spec"], "restartPolicy": "Never"}
    job["spec"] = {
        "suspend": True,
        "parallelism": count,
        "completions": count,
        "template": {"spec": spec},
    }
    return [job]
