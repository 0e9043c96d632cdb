"""Nodes of admitted workloads that fail: others take their place in the same domains, as in Kueue.

Where a Workload says on which nodes its pods are, this is decided before they are made again. One
that gets no others waits again with all of its pods, so that another domain may take it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from bayplan import Handle, PodInfo
from bayplan.api import Taint, Toleration, Topology
from bayplan.api.kueue import KueueWorkload
from bayplan.api.tolerations import tolerated
from bayplan.snapshot.nodes import NodeTable
from bayplan.topology.network.tree import HOSTNAME
from bayplan_plugins.queues.kueue.admission import Admission
from bayplan_plugins.queues.kueue.conditions import evicted, is_true
from bayplan_plugins.queues.kueue.dry_run import DryRun
from bayplan_plugins.queues.kueue.pod_workloads import PodWorkloads
from bayplan_plugins.queues.kueue.store import Store
from bayplan_plugins.queues.kueue.topology_assignment import TopologyAssignments, domains_of

__all__ = ["NodeFailures"]

_KEEPS_OFF = ("NoSchedule", "NoExecute")
_NO_OTHERS = "no other node takes the pods of {}"


class NodeFailures:
    """Follows the nodes that Workloads name."""

    def __init__(
        self,
        handle: Handle,
        pods: PodWorkloads,
        dry_run: DryRun,
        topologies: TopologyAssignments,
    ) -> None:
        self._handle = handle
        self._pods = pods
        self._dry_run = dry_run
        self._topologies = topologies
        self._looked = -1
        """The version of the nodes at the last look."""
        self._hosts: dict[str, tuple[KueueWorkload, frozenset[str]]] = {}
        """By key, workloads with the nodes that they name."""
        self._failed: dict[str, frozenset[str]] = {}
        """By the keys of workloads, those of their nodes that failed."""

    def replace(self, admission: Admission, now: float) -> None:
        """Give workloads other nodes for those that failed, or evict them.

        :param now: seconds since 1970.
        """
        self._look(admission.store)
        for key, names in list(self._failed.items()):
            workload = admission.store.workloads.get(key)
            if workload is None or not _runs(workload):
                del self._failed[key]
                continue
            lost = self._lost(key)
            if not lost and not self._lacks_pods(workload):
                continue
            found = self._dry_run.replaced(key, lost)
            if found is not None:
                self._topologies.plan(key, found, admission.store, now)
            else:
                why = _NO_OTHERS.format(", ".join(sorted(names)))
                admission.set(evicted(workload, "NodeFailures", why, now), now)
                self._pods.changed(key)
            del self._failed[key]

    def _look(self, store: Store) -> None:
        """Look which workloads name nodes that failed, if any node changed."""
        nodes = self._handle.snapshot.nodes
        if self._looked == nodes.node_version:
            return
        self._looked = nodes.node_version
        known, self._hosts, self._failed = self._hosts, {}, {}
        if not self._handle.snapshot.objects(Topology):
            return
        tainted = _tainted(nodes)
        for holders in store.reserving.values():
            for key, info in holders.items():
                workload, hosts = known.get(key, (None, frozenset()))
                if workload is not info.workload:
                    hosts = _hosts_of(info.workload)
                self._hosts[key] = info.workload, hosts
                if hosts.isdisjoint(tainted) and hosts <= nodes.row_of.keys():
                    continue
                failed = hosts - nodes.row_of.keys()
                failed |= {name for name in hosts & tainted if self._refuses(key, name)}
                if failed:
                    self._failed[key] = failed

    def _refuses(self, key: str, name: str) -> bool:
        """Tell whether a node takes no pods like those of a workload any more, by its taints."""
        node, pods = self._handle.snapshot.node(name), self._pods.members(key)
        taints = node.spec.taints if node is not None else ()
        return any(
            one.effect in _KEEPS_OFF
            and not all(tolerated(one, _lasting(one, pod.spec.tolerations)) for pod in pods)
            for one in taints
        )

    def leaving(self, pod: PodInfo) -> frozenset[tuple[Taint, ...]]:
        """Return the sets of taints of nodes that a pod of a topology would have to leave again.

        It would come back to a node that it tolerates for a time over and over.
        """
        snapshot = self._handle.snapshot
        if not snapshot.objects(Topology):
            return frozenset()
        tolerations = pod.spec.tolerations
        found = frozenset(one for one in snapshot.nodes.taint_sets if _leaves(one, tolerations))
        if not found:
            return found
        flavors = self._dry_run.flavors_for(pod)
        return found if any(one.spec.topology_name for one in flavors) else frozenset()

    def _lost(self, key: str) -> list[PodInfo]:
        """Return the pods of a workload that went with their nodes."""
        rows, placed = self._handle.snapshot.nodes.row_of, self._handle.snapshot.placed
        return [pod for pod in self._pods.with_node(key) if placed[pod.key][1] not in rows]

    def _lacks_pods(self, workload: KueueWorkload) -> bool:
        """Tell whether pods of a workload are to be made again, or wait for nodes."""
        admission, placed = workload.status.admission, self._handle.snapshot.placed
        sets = admission.pod_set_assignments if admission is not None else ()
        there = [pod for pod in self._pods.staying(workload.key) if pod.key in placed]
        return len(there) < sum(one.count or 0 for one in sets)


def _leaves(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> bool:
    """Tell whether a pod tolerates a taint for a time only: it would have to leave again."""
    return any(
        one.effect == "NoExecute"
        and tolerated(one, tolerations)
        and not tolerated(one, _lasting(one, tolerations))
        for one in taints
    )


def _lasting(taint: Taint, tolerations: Iterable[Toleration]) -> list[Toleration]:
    """Return the tolerations by which a pod may stay on a node with a taint, and not for a time."""
    ends = taint.effect == "NoExecute"
    return [one for one in tolerations if not ends or one.toleration_seconds is None]


def _tainted(nodes: NodeTable) -> frozenset[str]:
    """Return the nodes with taints that keep pods off; thousands of nodes have few sets of them."""
    codes = [
        code
        for code, taints in enumerate(nodes.taint_sets)
        if any(one.effect in _KEEPS_OFF for one in taints)
    ]
    rows = np.flatnonzero(np.isin(nodes.taint_codes, codes))
    return frozenset(nodes.names[row] for row in rows.tolist())


def _runs(workload: KueueWorkload) -> bool:
    finished = is_true(workload, "Finished")
    return is_true(workload, "Admitted") and not is_true(workload, "Evicted") and not finished


def _hosts_of(workload: KueueWorkload) -> frozenset[str]:
    """Return the nodes that a workload names."""
    admission = workload.status.admission
    found: set[str] = set()
    for one in admission.pod_set_assignments if admission is not None else ():
        assigned = one.topology_assignment
        if assigned is not None and list(assigned.get("levels", ()))[-1:] == [HOSTNAME]:
            domains: Collection[tuple[str, ...]] = domains_of(assigned) or ()
            found |= {values[-1] for values in domains}
    return frozenset(found)
