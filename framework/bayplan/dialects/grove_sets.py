"""What Grove's operator makes of a PodCliqueSet: grove.io/v1alpha1, scheduler.grove.io/v1alpha1.

Each replica has a PodGang of its cliques and of the first ``minAvailable`` replicas of each scaling
group. Every further replica of a scaling group has a PodGang of its own, so that growth keeps
nobody from starting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bayplan.dialects.reading import entries_of, text_of

__all__ = ["BASE_LABEL", "GANG_LABEL", "objects_of"]

BASE_LABEL = "grove.io/base-podgang"
"""Of pods and cliques that come on top of a PodGang: its name."""
GANG_LABEL = "grove.io/podgang"

Content = Mapping[str, Any]
_MOST = 10_000


class _Clique(msgspec.Struct, frozen=True):
    """A PodClique: its name, what it is made of, its labels, and the group that it grows with."""

    name: str
    entry: Content
    labels: Mapping[str, str]
    group: str = ""

    @property
    def replicas(self) -> int:
        return _number(self.entry.get("spec") or {}, "replicas", 1)

    @property
    def least(self) -> int:
        return _number(self.entry.get("spec") or {}, "minAvailable", self.replicas)


def objects_of(content: Content) -> Iterator[dict[str, Any]]:
    """Yield the PodGangs and PodCliques of a PodCliqueSet, all as JSON.

    A domain of its topology constraints is used as the name of a layer, or the label of nodes.

    :raises ValueError: for what is no number, or no list of objects, where one has to be.
    """
    spec = content.get("spec") or {}
    template = spec.get("template") or {}
    for index in range(_number(spec, "replicas", 1)):
        yield from _replica(content["metadata"]["name"], index, template)


def _number(entry: Content, key: str, default: int) -> int:
    """Return a number of replicas.

    :raises ValueError: for anything else.
    """
    value = entry.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise ValueError(f"{key}: expected a number, 0 to {_MOST}, got {str(value)[:40]}")
    return value


def _replica(name: str, index: int, template: Content) -> Iterator[dict[str, Any]]:
    base = f"{name}-{index}"
    groups = entries_of(template, "podCliqueScalingGroups", "spec.template.")
    entries = {
        text_of(one, "name"): one for one in entries_of(template, "cliques", "spec.template.")
    }
    grouped = {clique for one in groups for clique in one.get("cliqueNames") or ()}
    own = {
        "app.kubernetes.io/part-of": name,
        "grove.io/podcliqueset-replica-index": str(index),
    }
    gangs: dict[str, list[_Clique]] = {base: []}
    constraints: list[tuple[str, list[str], Content]] = []
    for clique, entry in entries.items():
        if clique not in grouped:
            labels = {**own, GANG_LABEL: base}
            gangs[base].append(_Clique(f"{base}-{clique}", entry, labels))
    for group in groups:
        full = f"{base}-{text_of(group, 'name')}"
        least = _number(group, "minAvailable", 1)
        for replica in range(_number(group, "replicas", 1)):
            gang = base if replica < least else f"{full}-{replica - least}"
            labels = {
                **own,
                GANG_LABEL: gang,
                "grove.io/podcliquescalinggroup": full,
                "grove.io/podcliquescalinggroup-replica-index": str(replica),
            }
            if gang != base:
                labels[BASE_LABEL] = base
            made = [
                _Clique(f"{full}-{replica}-{clique}", entries[clique], labels, f"{full}-{replica}")
                for clique in group.get("cliqueNames") or ()
                if clique in entries
            ]
            gangs.setdefault(gang, []).extend(made)
            constraint = group.get("topologyConstraint")
            if isinstance(constraint, Mapping):
                constraints.append((f"{full}-{replica}", [one.name for one in made], constraint))
    for gang, cliques in gangs.items():
        if cliques:
            yield _gang(gang, cliques, constraints, template)
            yield from map(_clique, cliques)


def _clique(clique: _Clique) -> dict[str, Any]:
    given = clique.entry
    labels = {**(given.get("labels") or {}), **clique.labels, "grove.io/podclique": clique.name}
    meta = {
        "name": clique.name,
        "labels": labels,
        "annotations": dict(given.get("annotations") or {}),
    }
    spec = dict(given.get("spec") or {})
    return {"apiVersion": "grove.io/v1alpha1", "kind": "PodClique", "metadata": meta, "spec": spec}


def _gang(
    name: str,
    cliques: Sequence[_Clique],
    constraints: Sequence[tuple[str, list[str], Content]],
    template: Content,
) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "podgroups": [
            {
                "name": one.name,
                "minReplicas": max(1, one.least),
                # Pods are known by their labels.
                "podReferences": [],
                **_packed(one.entry.get("topologyConstraint")),
            }
            for one in cliques
        ],
        **_packed(template.get("topologyConstraint")),
    }
    there = {one.name for one in cliques}
    configs = [
        {"name": part, "podGroupNames": names, **_packed(constraint)}
        for part, names, constraint in constraints
        if there.issuperset(names)
    ]
    if configs:
        spec["topologyConstraintGroupConfigs"] = configs
    if template.get("priorityClassName"):
        spec["priorityClassName"] = template["priorityClassName"]
    version = "scheduler.grove.io/v1alpha1"
    return {"apiVersion": version, "kind": "PodGang", "metadata": {"name": name}, "spec": spec}


def _packed(constraint: Any) -> dict[str, Any]:
    """Return a constraint of a PodCliqueSet as one of a PodGang; nothing for none."""
    if not isinstance(constraint, Mapping):
        return {}
    pack = constraint.get("pack") or {"required": constraint.get("packDomain")}
    levels = {key: pack[key] for key in ("required", "preferred") if pack.get(key)}
    return {"topologyConstraint": {"packConstraint": levels}} if levels else {}
