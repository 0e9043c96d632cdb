"""Start the controllers of a served cluster."""

from __future__ import annotations

from bayplan.cluster.apiserver.garbage_collector import GarbageCollector
from bayplan.cluster.apiserver.namespace_controller import NamespaceController
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.embedded.assembly import start_controllers

__all__ = ["start_all"]


def start_all(cluster: ServedCluster) -> ServedCluster:
    """Start the kubelet and all controllers of a cluster; return the cluster."""
    start_controllers(cluster)
    GarbageCollector(cluster)
    NamespaceController(cluster)
    return cluster
