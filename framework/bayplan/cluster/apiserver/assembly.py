"""A served cluster with everything that runs in one."""

from __future__ import annotations

from bayplan.cluster.apiserver.garbage_collector import GarbageCollector, NamespaceEnd
from bayplan.cluster.apiserver.job_status import JobStatus
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.embedded.assembly import start_controllers

__all__ = ["start_all"]


def start_all(cluster: ServedCluster) -> ServedCluster:
    """Let the kubelet and all controllers work on a cluster from now on; return it."""
    start_controllers(cluster)
    GarbageCollector(cluster)
    NamespaceEnd(cluster)
    JobStatus(cluster)
    return cluster
