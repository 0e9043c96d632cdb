"""Whether the pods of an admission would get nodes: tried on the snapshot before it is decided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from bayplan import Handle, PodInfo
from bayplan_plugins.queues.cluster_queue.flavor_assignment import Assignment
from bayplan_plugins.queues.cluster_queue.pod_workloads import PodWorkloads
from bayplan_plugins.queues.cluster_queue.store import Store
from bayplan_plugins.queues.cluster_queue.workloads import WorkloadInfo

__all__ = ["Rehearsal"]

_NO_NODES = "its pods would not get nodes"


class Rehearsal:
    """The trials of some cycles, in which what is admitted stays placed until all are over."""

    def __init__(self, handle: Handle, pods: PodWorkloads, store: Callable[[], Store]) -> None:
        self._handle = handle
        self._pods = pods
        self._store = store
        self._tried: dict[str, Assignment] = {}

    def flavors_of(self, key: str) -> Mapping[str, Mapping[str, str]] | None:
        """Return the flavors, by pod set and resource, that a workload is tried with now."""
        tried = self._tried.get(key)
        return tried.flavors() if tried is not None else None

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
                self._tried.clear()

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
        self._tried[workload.key] = assignment
        self._place(workload.key)

    def _try(self, key: str, assignment: Assignment) -> bool:
        self._tried[key] = assignment
        try:
            return self._place(key)
        finally:
            del self._tried[key]

    def _place(self, key: str) -> bool:
        """Place the pods of a workload that have no nodes; tell whether that worked."""
        units: dict[str, list[PodInfo]] = {}
        for pod in (*self._pods.without_node(key), *self._to_come(key)):
            units.setdefault(pod.gang or pod.key, []).append(pod)
        return all(self._place_unit(pods) for pods in units.values())

    def _to_come(self, key: str) -> list[PodInfo]:
        """Return the pods that a job will have, as it is tried now or was admitted."""
        given = self._tried.get(key)
        if given is not None:
            sets = given.as_status()
        else:
            known = self._store().workloads.get(key)
            admission = known.status.admission if known is not None else None
            sets = admission.pod_set_assignments if admission is not None else ()
        flavors = self._store().flavors
        return self._pods.to_come(
            key,
            {one.name: one.count or 0 for one in sets},
            {
                one.name: [flavors[name] for name in dict.fromkeys(one.flavors.values())]
                for one in sets
            },
        )

    def _place_unit(self, pods: Sequence[PodInfo]) -> bool:
        unit = self._handle.unit(pods)
        for candidate in self._handle.offers(unit).candidates:
            if self._handle.place(unit, candidate) is not None:
                return True
        return False
