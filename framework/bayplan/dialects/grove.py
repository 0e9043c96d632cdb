"""Grove: PodGangs (scheduler.grove.io), which its operator makes of PodCliqueSets.

A PodGang has a minimum for each of its pod groups, and constraints of topology at three levels. It
means what a PodGroup of KAI with sub-groups means.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from bayplan.api import ApiObject, KaiPodGroup, Pod
from bayplan.api.gang import Gang, Membership
from bayplan.api.object_key import object_key
from bayplan.api.objects import DecodeError, decode_part
from bayplan.api.operated import PodGang
from bayplan.api.podgroup import KaiPodGroupSpec, KaiSubGroup, TopologyConstraint
from bayplan.dialects.kai.queues import gang_by_label
from bayplan.dialects.reading import entries_of, text_of

__all__ = ["MEMBERS_BY", "NAME", "gang_of", "membership_of"]

NAME = "Grove"
_GANG_LABEL = "grove.io/podgang"
_CLIQUE_LABEL = "grove.io/podclique"
_TOPOLOGY = ("grove.io/topology-name", "kai.scheduler/topology")
MEMBERS_BY = frozenset((_GANG_LABEL,))
"""The names without any of which, as label or annotation, no pod is in a gang or has a rank."""


def membership_of(pod: Pod) -> Membership | None:
    """Return the pod's gang by the label that Grove gives it."""
    labels = pod.metadata.labels
    name = labels.get(_GANG_LABEL)
    if not name:
        return None
    return Membership(f"{pod.metadata.namespace}/{name}", role=labels.get(_CLIQUE_LABEL, ""))


def gang_of(obj: ApiObject) -> Gang | None:
    """Return the gang that a PodGang describes."""
    if not isinstance(obj, PodGang):
        return None
    try:
        group = KaiPodGroup(obj.metadata, _spec_of(obj))
    except (DecodeError, ValueError) as exc:
        return Gang(object_key(obj), 1, problem=str(exc))
    gang, before = gang_by_label(group, _CLIQUE_LABEL), obj.spec.get("reuseReservationRef")
    if isinstance(before, dict) and before.get("name"):
        namespace = before.get("namespace") or obj.metadata.namespace
        gang = replace(gang, predecessors=(f"{namespace}/{before['name']}",))
    return gang


def _spec_of(gang: PodGang) -> KaiPodGroupSpec:
    """Return a PodGang as a spec of KAI's.

    :raises ValueError: for what is none.
    """
    annotations = gang.metadata.annotations
    topology = next((annotations[name] for name in _TOPOLOGY if name in annotations), "")
    configs = entries_of(gang.spec, "topologyConstraintGroupConfigs", "spec.")
    parents = {
        child: text_of(one, "name")
        for one in configs
        for child in one.get("podGroupNames") or ()
        if isinstance(child, str)
    }
    groups = [
        KaiSubGroup(text_of(one, "name"), 0, topology_constraint=_constraint(one, topology))
        # One without pod groups asks for nothing.
        for one in configs
        if text_of(one, "name") in parents.values()
    ]
    groups += _groups(gang, parents, topology)
    needed = sum(one.min_member for one in groups)
    return KaiPodGroupSpec(
        needed,
        topology_constraint=_constraint(gang.spec, topology),
        sub_groups=tuple(groups),
    )


def _groups(gang: PodGang, parents: dict[str, str], topology: str) -> Iterator[KaiSubGroup]:
    for index, one in enumerate(entries_of(gang.spec, "podgroups", "spec.")):
        name, least = text_of(one, "name"), one.get("minReplicas")
        if isinstance(least, bool) or not isinstance(least, int) or least < 1:
            expected = "expected 1 or more"
            raise ValueError(f"spec.podgroups[{index}].minReplicas: {expected}, got {least}")
        yield KaiSubGroup(
            name,
            least,
            parent=parents.get(name, ""),
            topology_constraint=_constraint(one, topology),
        )


def _constraint(entry: Any, topology: str) -> TopologyConstraint | None:
    """Return the constraint of topology of a PodGang, or of a part of it."""
    stated = entry.get("topologyConstraint")
    pack = stated.get("packConstraint") if isinstance(stated, dict) else None
    if not isinstance(pack, dict):
        return None
    levels = {
        "requiredTopologyLevel": pack.get("required") or "",
        "preferredTopologyLevel": pack.get("preferred") or "",
    }
    if not any(levels.values()):
        return None
    return decode_part(TopologyConstraint, {"topology": topology, **levels})
