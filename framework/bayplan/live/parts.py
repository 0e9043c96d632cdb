"""Of which kinds only some objects are read: ConfigMaps of queues and profiles, Kueue's Lease."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bayplan.api import KINDS, Kind
from bayplan.api.objects import WATCHED_LOADS
from bayplan.cluster.kubernetes.resources import Part
from bayplan.dialects import queue_configmap
from bayplan.dialects.kueue import MANAGER_LEASE
from bayplan.live.load_sources import load_source_of
from bayplan.profiles.loading import ProfileSet

__all__ = ["parts_of"]


def parts_of(profiles: ProfileSet) -> Mapping[Kind, Sequence[Part]]:
    """Return the objects that are read of kinds that are not read as a whole.

    ConfigMaps are those that define queues, which have the label and are beside the scheduler's
    Lease, and those that arguments of plugins name. So nobody needs the right to read all of them.
    """
    queues = Part(profiles.leader_election.resource_namespace, queue_configmap.LABEL)
    arguments = [one for profile in profiles.profiles for one in profile.args.values()]
    keys = sorted({key for one in arguments for key in one.config_maps})
    named = [Part(key.partition("/")[0], name=key.partition("/")[2]) for key in keys]
    manager = Part(name=MANAGER_LEASE)
    loads = {WATCHED_LOADS: [Part()]} if load_source_of(profiles) is not None else {}
    return {
        **loads,
        KINDS["", "ConfigMap"]: [queues, *named],
        KINDS["coordination.k8s.io", "Lease"]: [manager],
    }
