"""What warnings need to know of a cluster, as a ConfigMap: the parameter of policies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from bayplan.api import (
    KINDS,
    ApiObject,
    ClusterQueue,
    KaiQueue,
    Kind,
    LocalQueue,
    Node,
    Topology,
    VolcanoQueue,
)
from bayplan.api.kueue import AdmissionCheck
from bayplan.api.network import KaiTopology
from bayplan.dialects.kueue import MULTI_CLUSTER_CONTROLLER
from bayplan.topology.network.tree import HOSTNAME

__all__ = ["FACTS", "KINDS_OF_FACTS", "facts_of"]

FACTS = "bayplan-admission-facts"
"""The name of the ConfigMap."""
_TYPES = (
    AdmissionCheck,
    ClusterQueue,
    KaiQueue,
    KaiTopology,
    LocalQueue,
    Node,
    Topology,
    VolcanoQueue,
)
KINDS_OF_FACTS = tuple(kind for kind in KINDS.values() if kind.type in _TYPES)
"""The kinds that facts are read from."""
_KEPT = ("cpu", "memory", "ephemeral-storage", "pods", "hugepages-")
"""Resources that no warning is about: what is free of them changes with what else runs."""


def facts_of(
    objects: Mapping[Kind, Sequence[ApiObject]], namespace: str, now: datetime
) -> Mapping[str, Any]:
    """Return the ConfigMap of a cluster's queues, topology levels and largest domains.

    ``remoteQueues`` are the LocalQueues whose jobs run in other clusters.

    Each value has one fact a line. A line of ``capacity`` is a resource, the label of a level, and
    the amount of the resource in the largest domain of that level, in whole units.

    :param namespace: of the ConfigMap.
    """
    found = [one for group in objects.values() for one in group]
    nodes = [one for one in found if isinstance(one, Node)]
    levels = sorted({HOSTNAME, *_levels(found)})
    data = {
        "localQueues": _lines(
            f"{one.metadata.namespace}/{one.metadata.name}"
            for one in found
            if isinstance(one, LocalQueue)
        ),
        "remoteQueues": _lines(_remote_queues(found)),
        "kaiQueues": _lines(one.metadata.name for one in found if isinstance(one, KaiQueue)),
        "volcanoQueues": _lines(
            one.metadata.name for one in found if isinstance(one, VolcanoQueue)
        ),
        "levels": _lines(levels),
        "capacity": _lines(_capacities(nodes, levels)),
        "readAt": now.isoformat(timespec="seconds"),
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": FACTS, "namespace": namespace},
        "data": data,
    }


def _lines(facts: Iterable[str]) -> str:
    return "\n".join(sorted(facts))


def _remote_queues(found: Sequence[ApiObject]) -> Iterator[str]:
    """Yield the LocalQueues whose jobs run in other clusters, by a check of MultiKueue."""
    checks = {
        one.metadata.name
        for one in found
        if isinstance(one, AdmissionCheck) and one.spec.controller_name == MULTI_CLUSTER_CONTROLLER
    }
    remote = {
        one.metadata.name
        for one in found
        if isinstance(one, ClusterQueue)
        and any(r.name in checks for r in one.spec.admission_checks_strategy.admission_checks)
    }
    for one in found:
        if isinstance(one, LocalQueue) and one.spec.cluster_queue in remote:
            yield f"{one.metadata.namespace}/{one.metadata.name}"


def _levels(found: Iterable[ApiObject]) -> Iterator[str]:
    for one in found:
        if isinstance(one, Topology | KaiTopology):
            yield from (level.node_label for level in one.spec.levels)


def _capacities(nodes: Sequence[Node], levels: Sequence[str]) -> Iterator[str]:
    """Yield what the largest domain of each level has of each extended resource."""
    sums: dict[tuple[str, str, str], int] = defaultdict(int)
    for node in nodes:
        for resource, amount in node.status.allocatable.items():
            if resource.startswith(_KEPT):
                continue
            for level in levels:
                # A node always is a domain of its own.
                domain = node.metadata.labels.get(level, "")
                domain = node.metadata.name if level == HOSTNAME else domain
                if domain:
                    sums[resource, level, domain] += int(amount.units)
    largest: dict[tuple[str, str], int] = defaultdict(int)
    for (resource, level, _), units in sums.items():
        largest[resource, level] = max(largest[resource, level], units)
    for (resource, level), units in largest.items():
        yield f"{resource} {level} {units}"
