"""Whether the pods of an admission would get nodes: tried on the snapshot before it is decided."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from bayplan import Handle, PodInfo
from bayplan_plugins.queues.cluster_queue.flavor_assignment import Assignment
from bayplan_plugins.queues.cluster_queue.pod_workloads import PodWorkloads
from bayplan_plugins.queues.cluster_queue.workloads import WorkloadInfo

__all__ = ["Rehearsal"]

_NO_NODES = "its pods would not get nodes"


class Rehearsal:
    """The trials of some cycles, in which what is admitted stays placed until all are over."""

    def __init__(self, handle: Handle, pods: PodWorkloads) -> None:
        self._handle = handle
        self._pods = pods
        self._flavors: dict[str, Mapping[str, Mapping[str, str]]] = {}

    def flavors_of(self, key: str) -> Mapping[str, Mapping[str, str]] | None:
        """Return the flavors, by pod set and resource, that a workload is tried with now."""
        return self._flavors.get(key)

    @contextmanager
    def running(self, admitted: Iterable[str]) -> Iterator[None]:
        """Try admissions while the context is open.

        :param admitted: the keys of workloads that are admitted; their pods without nodes are
            placed first.
        """
        with self._handle.snapshot.trial():
            for key in admitted:
                self._place(key)
            try:
                yield
            finally:
                self._flavors.clear()

    def fits(
        self, workload: WorkloadInfo, assignment: Assignment, removed: Iterable[WorkloadInfo]
    ) -> str | None:
        """Return why a workload gets no nodes, as a Placement of the admission does."""
        with self._handle.snapshot.trial():
            for one in removed:
                for pod in self._pods.with_node(one.key):
                    self._handle.snapshot.remove_pod(pod.key)
            return None if self._try(workload.key, assignment) else _NO_NODES

    def assume(self, workload: WorkloadInfo, assignment: Assignment) -> None:
        """Keep a workload placed, as it is admitted."""
        self._flavors[workload.key] = assignment.flavors()
        self._place(workload.key)

    def _try(self, key: str, assignment: Assignment) -> bool:
        self._flavors[key] = assignment.flavors()
        try:
            return self._place(key)
        finally:
            del self._flavors[key]

    def _place(self, key: str) -> bool:
        """Place the pods of a workload that have no nodes; tell whether that worked."""
        pods: list[PodInfo] = self._pods.without_node(key)
        if not pods:
            return True
        unit = self._handle.unit(pods)
        for candidate in self._handle.offers(unit).candidates:
            if self._handle.place(unit, candidate) is not None:
                return True
        return False
