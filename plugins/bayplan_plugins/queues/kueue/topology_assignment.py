"""The domains of a workload's pods, as its ``status.admission`` states them.

Names as in kubernetes-sigs/kueue (apis/kueue/v1beta2, TopologyAssignment): levels are node labels,
from coarse to fine, or only the host name where that is the finest; slices hold domains, level by
level, each value either one for all or a root for each domain between a prefix and a suffix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from bayplan import Handle, PodInfo
from bayplan.api.kueue import AssignedPodSet, KueueWorkload, ResourceFlavor
from bayplan.api.network import Topology
from bayplan.topology.network.tree import HOSTNAME
from bayplan_plugins.queues.kueue.conditions import has_quota, is_true
from bayplan_plugins.queues.kueue.pod_workloads import PodWorkloads
from bayplan_plugins.queues.kueue.store import Store

__all__ = ["Domains", "TopologyAssignments", "assignment_of", "domains_of"]

Domains = Mapping[tuple[str, ...], int]
"""The number of pods in each domain, by the values of its levels."""


def domains_of(assignment: Mapping[str, Any] | None) -> Domains | None:
    """Return the domains of an assignment; None for none, and for one that cannot be read."""
    if assignment is None:
        return None
    try:
        if "domains" in assignment:  # v1beta1
            found = [(tuple(one["values"]), int(one["count"])) for one in assignment["domains"]]
        else:
            found = [pair for part in assignment["slices"] for pair in _of_slice(part)]
    except (AttributeError, KeyError, TypeError, ValueError, IndexError):
        return None
    counts: Counter[tuple[str, ...]] = Counter()
    for values, count in found:
        counts[values] += count
    return counts


def _of_slice(part: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], int]]:
    for index in range(part["domainCount"]):
        values = tuple(_value(level, index) for level in part["valuesPerLevel"])
        yield values, int(_either(part["podCounts"], index))


def _value(level: Mapping[str, Any], index: int) -> str:
    if "universal" in level:
        return str(level["universal"])
    own = level["individual"]
    return f"{own.get('prefix', '')}{own['roots'][index]}{own.get('suffix', '')}"


def _either(counts: Mapping[str, Any], index: int) -> Any:
    return counts["universal"] if "universal" in counts else counts["individual"][index]


def _level(values: Sequence[str]) -> dict[str, Any]:
    """Return the values of a level, what they have in common once, as Kueue writes them."""
    if len(set(values)) == 1:
        return {"universal": values[0]}
    prefix = _start(values)
    rests = [one[len(prefix) :] for one in values]
    suffix = _start([one[::-1] for one in rests])[::-1]
    own = {"prefix": prefix, "roots": [one.removesuffix(suffix) for one in rests], "suffix": suffix}
    return {"individual": {name: one for name, one in own.items() if one}}


def _start(values: Sequence[str]) -> str:
    """Return what all values begin with."""
    low, high = min(values), max(values)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(low, high, strict=False))
    return "".join(one for one, _ in same)


def assignment_of(levels: Sequence[str], domains: Domains) -> dict[str, Any]:
    """Return domains as an assignment of one slice, in the order of their values."""
    ordered = sorted(domains.items())
    counts = [count for _, count in ordered]
    same = len(set(counts)) == 1
    return {
        "levels": list(levels),
        "slices": [
            {
                "domainCount": len(ordered),
                "valuesPerLevel": [
                    _level([values[index] for values, _ in ordered]) for index in range(len(levels))
                ],
                "podCounts": {"universal": counts[0]} if same else {"individual": counts},
            }
        ],
    }


class TopologyAssignments:
    """Keeps the assignments of workloads in step with where their pods are.

    A workload is admitted with the nodes on which its pods would be placed. Pods are placed by the
    scheduler; that they are where a workload says counts once a manager of Kueue takes it back. One
    whose pods are not all on nodes keeps what it says.
    """

    def __init__(self, handle: Handle, pods: PodWorkloads) -> None:
        self._handle = handle
        self._pods = pods
        self._moved: dict[str, None] = {}

    def moved(self, pod: PodInfo) -> None:
        """Note that a pod has got a node."""
        if not self._handle.snapshot.objects(Topology):
            return
        key = self._pods.key_of(pod)
        if self._pods.is_of_job(key) or self._pods.owns(key):
            self._moved[key] = None

    def plan(self, key: str, nodes: Mapping[str, Sequence[str]], store: Store, now: float) -> None:
        """Write into a workload that was just admitted where its pods are going to be.

        :param nodes: one for each pod, by pod set; :param now: seconds since 1970.
        """
        workload = store.workloads.get(key)
        if nodes and workload is not None and has_quota(workload):
            self._write(workload, nodes, store, now)

    def follow(self, store: Store, now: float) -> None:
        """Write into the workloads of pods that have moved where these are.

        :param now: seconds since 1970.
        """
        moved, self._moved = self._moved, {}
        for key in moved:
            workload = store.workloads.get(key)
            if workload is not None and has_quota(workload) and not is_true(workload, "Evicted"):
                self._write(workload, self._nodes_of(key), store, now)

    def _nodes_of(self, key: str) -> dict[str, list[str]]:
        """Return the nodes of a workload's pods, by pod set."""
        placed = self._handle.snapshot.placed
        found: dict[str, list[str]] = {}
        for pod in self._pods.staying(key):
            if pod.key in placed:
                found.setdefault(self._pods.pod_set_of(pod), []).append(placed[pod.key][1])
        return found

    def _write(
        self,
        workload: KueueWorkload,
        nodes: Mapping[str, Sequence[str]],
        store: Store,
        now: float,
    ) -> None:
        admission = workload.status.admission
        assert admission is not None, "it has quota"
        before = admission.pod_set_assignments
        sets = tuple(self._assigned(one, nodes.get(one.name, ()), store.flavors) for one in before)
        if sets == before:
            return
        admission = msgspec.structs.replace(admission, pod_set_assignments=sets)
        status = msgspec.structs.replace(workload.status, admission=admission, unhealthy_nodes=())
        store.set(msgspec.structs.replace(workload, status=status), now)

    def _assigned(
        self, assigned: AssignedPodSet, there: Sequence[str], flavors: Mapping[str, ResourceFlavor]
    ) -> AssignedPodSet:
        levels = self._levels(assigned, flavors)
        if not levels or len(there) != assigned.count:
            return assigned
        domains = Counter(self._values(node, levels) for node in there)
        if None in domains or domains == domains_of(assigned.topology_assignment):
            return assigned
        made = assignment_of(levels, {values: n for values, n in domains.items() if values})
        return msgspec.structs.replace(assigned, topology_assignment=made)

    def _levels(
        self, assigned: AssignedPodSet, flavors: Mapping[str, ResourceFlavor]
    ) -> tuple[str, ...]:
        """Return the levels of the topology of a pod set's flavor, as an assignment has them."""
        known = self._handle.snapshot.objects(Topology)
        for name in dict.fromkeys(assigned.flavors.values()):
            flavor = flavors.get(name)
            topology = known.get(flavor.spec.topology_name) if flavor is not None else None
            if topology is not None:
                levels = tuple(one.node_label for one in topology.spec.levels)
                return levels[-1:] if levels[-1:] == (HOSTNAME,) else levels
        return ()

    def _values(self, node: str, levels: Sequence[str]) -> tuple[str, ...] | None:
        """Return the domain of a node; None if it lacks a label."""
        found = self._handle.snapshot.node(node)
        labels = found.metadata.labels if found is not None else {}
        values = tuple(labels.get(one, "") for one in levels)
        return values if all(values) else None
