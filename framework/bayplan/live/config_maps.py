"""Which ConfigMaps are read of a cluster: those of queues, and those that profiles name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bayplan.api import KINDS, Kind
from bayplan.cluster.kubernetes.resources import Part
from bayplan.dialects import queue_configmap
from bayplan.profiles.loading import ProfileSet

__all__ = ["config_maps"]


def config_maps(profiles: ProfileSet) -> Mapping[Kind, Sequence[Part]]:
    """Return the ConfigMaps that define queues, and those that arguments of plugins name.

    The former are those beside the scheduler's Lease with the label. So nobody needs the right to
    read all ConfigMaps of other namespaces.
    """
    queues = Part(profiles.leader_election.resource_namespace, queue_configmap.LABEL)
    arguments = [one for profile in profiles.profiles for one in profile.args.values()]
    keys = sorted({key for one in arguments for key in one.config_maps})
    named = [Part(key.partition("/")[0], name=key.partition("/")[2]) for key in keys]
    return {KINDS["", "ConfigMap"]: [queues, *named]}
