"""Which ConfigMaps are read of a cluster: those that define queues."""

from __future__ import annotations

from collections.abc import Mapping

from bayplan.api import KINDS, Kind
from bayplan.cluster.kubernetes.resources import Part
from bayplan.dialects import queue_configmap
from bayplan.profiles.settings import LeaderElection

__all__ = ["queue_config_maps"]


def queue_config_maps(lease: LeaderElection) -> Mapping[Kind, Part]:
    """Return the ConfigMaps that define queues: those beside the scheduler's Lease with the label.

    So nobody needs the right to read the ConfigMaps of other namespaces.
    """
    return {KINDS["", "ConfigMap"]: Part(lease.resource_namespace, queue_configmap.LABEL)}
