"""Whether the pods of an admission would get nodes: tried on the snapshot before it is decided."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
from msgspec.structs import replace

from bayplan import DomainTrial, PodInfo
from bayplan.api.gang import Gang
from bayplan.api.kueue import AdmissionCheck, AssignedPodSet, ResourceFlavor
from bayplan.dialects.kueue import MULTI_CLUSTER_CONTROLLER
from bayplan.snapshot import Trial
from bayplan_plugins.queues.kueue.flavor_assignment import Assignment, Mode
from bayplan_plugins.queues.kueue.gates import as_admitted, is_gated
from bayplan_plugins.queues.kueue.handles import Handles
from bayplan_plugins.queues.kueue.lifecycle import checks_with
from bayplan_plugins.queues.kueue.pod_workloads import PodWorkloads
from bayplan_plugins.queues.kueue.pods_to_come import PodToCome
from bayplan_plugins.queues.kueue.provisioning_checks import ProvisioningChecks
from bayplan_plugins.queues.kueue.snapshot import Awaited
from bayplan_plugins.queues.kueue.store import Store
from bayplan_plugins.queues.kueue.tried_sizes import TriedSizes, kind_of
from bayplan_plugins.queues.kueue.workloads import WorkloadInfo, local_queue_key

__all__ = ["DryRun"]

_NO_NODES = "its pods would not get nodes"
_LEFT_TO_OTHERS = "its pods would take nodes that victims are leaving for others"


class _Together(msgspec.Struct):
    """Pods that are placed together, and the definition of their gang, if objects lack it."""

    pods: list[PodInfo] = msgspec.field(default_factory=list)
    gang: Gang | None = None


class DryRun:
    """The trials of some cycles, in which what is admitted stays placed until all are over."""

    def __init__(
        self,
        handles: Handles,
        pods: PodWorkloads,
        checks: ProvisioningChecks,
        store: Callable[[], Store],
    ) -> None:
        self._checks = checks
        self._handles = handles
        self._handle = handles.first
        self._pods = pods
        self._store = store
        self._tried: dict[str, Assignment] = {}
        """By home: one slice of a job is tried at a time."""
        self._trial: Trial | None = None
        self._held: tuple[str, Assignment, int] | None = None
        """What fitted last is left in place until something else is asked, with its mark."""
        self._sizes = TriedSizes()
        self._expected: dict[str, set[str]] = {}
        """The nodes that workloads would get once others are gone, as last tried."""
        self._nodes: dict[str, dict[str, list[str]]] = {}
        """By the keys of what was admitted in these cycles: the nodes by pod set."""

    def flavors_of(self, key: str) -> Mapping[str, Mapping[str, str]] | None:
        """Return the flavors, by pod set and resource, that a workload is tried with now.

        They are those of another slice of the same job, if that is what is tried.
        """
        tried = self._tried_of(key)
        return tried.flavors() if tried is not None else None

    def _tried_of(self, key: str) -> Assignment | None:
        return self._tried.get(self._pods.home_of(key))

    @property
    def is_running(self) -> bool:
        """Whether admissions are being tried."""
        return self._trial is not None

    @contextmanager
    def running(self, admitted: Iterable[str]) -> Iterator[None]:
        """Try admissions while the context is open.

        :param admitted: the keys of workloads that are admitted; their pods without nodes are
            placed first.
        """
        with self._handle.snapshot.trial() as trial:
            self._trial, self._sizes = trial, TriedSizes()
            try:
                for key in admitted:
                    self._place(key)
                yield
            finally:
                self._trial = self._held = None
                self._tried.clear()
                self._nodes.clear()
                self._expected.clear()

    @contextmanager
    def without(self, pods: Iterable[PodInfo]) -> Iterator[None]:
        """Try admissions without some pods while the context is open."""
        self._let_go()
        outer, sizes = self._trial, self._sizes
        with self._handle.snapshot.trial() as trial:
            for pod in pods:
                self._handle.snapshot.remove_pod(pod.key)
            self._trial, self._sizes = trial, TriedSizes()
            try:
                yield
            finally:
                self._trial, self._sizes, self._held = outer, sizes, None

    def fits(
        self,
        workload: WorkloadInfo,
        assignment: Assignment,
        removed: Iterable[WorkloadInfo],
        awaited: Sequence[Awaited] = (),
    ) -> str | None:
        """Return why a workload gets no nodes, as a Placement of the admission does.

        One whose nodes are provisioned needs none yet.
        """
        if self._brings_nodes(workload, assignment):
            return None
        if assignment.mode is Mode.FIT:
            awaited = [pair for pair in awaited if not self._brings_nodes(*pair)]
        else:
            # It does not come now, so it takes nothing from others.
            awaited = ()
        home = self._pods.home_of(workload.key)
        # The pods of the slice that is replaced stay.
        gone = [one for one in removed if self._pods.home_of(one.key) != home]
        held = self._held
        if not gone and held and held[0] == workload.key and held[1] is assignment:
            # Nothing was tried since: it still is on its nodes.
            return None
        self._let_go()
        if not gone and not awaited:
            return self._beside(workload.key, assignment)
        with self._handle.snapshot.trial() as trial:
            if awaited:
                return self._leaving_room(awaited, workload.key, assignment, gone, trial)
            self._remove(gone)
            refusal = self._try(workload.key, assignment)
            if refusal is None:
                self._expected[workload.key] = self._on_nodes(workload.key, assignment)
            return refusal

    def _leaving_room(
        self,
        awaited: Sequence[Awaited],
        key: str,
        assignment: Assignment,
        gone: Iterable[WorkloadInfo],
        trial: Trial,
    ) -> str | None:
        """Return why a workload gets no nodes, or would take those of others that are awaited.

        The scheduler keeps no nodes free for these: whoever comes now takes what it finds now.
        """
        mark = trial.mark()
        comes_now = self._try(key, assignment) is None
        if comes_now:
            nodes = self._on_nodes(key, assignment)
            # Those of whom it is not known may be the same.
            expected = (self._expected.get(one.key, nodes) for one, _ in awaited)
            if all(nodes.isdisjoint(its) for its in expected):
                return None
        else:
            trial.back_to(mark)
        self._remove(gone)
        if any(self._try(one.key, its) is not None for one, its in awaited):
            return _LEFT_TO_OTHERS
        return None if comes_now else self._try(key, assignment)

    def _brings_nodes(self, workload: WorkloadInfo, assignment: Assignment) -> bool:
        return self._checks.brings_nodes(workload, assignment, self._store())

    def _remove(self, workloads: Iterable[WorkloadInfo]) -> None:
        """Take the pods of workloads off their nodes."""
        for one in workloads:
            for pod in self._pods.with_node(one.key):
                self._handle.snapshot.remove_pod(pod.key)

    def _beside(self, key: str, assignment: Assignment) -> str | None:
        """Return why a workload gets no nodes while nobody goes; leave it on them if it does."""
        assert self._trial is not None, "asked while the context is open"
        mark = self._trial.mark()
        kind, count = self._kind(key, assignment)
        known = self._sizes.answer(kind, count, mark) if kind is not None else None
        if known is not None:
            return None if known else _NO_NODES
        refusal = self._try(key, assignment)
        if refusal is None:
            self._held = (key, assignment, mark)
        else:
            self._trial.back_to(mark)
        if kind is not None:
            self._sizes.add(kind, count, refusal is None)
        return refusal

    def _kind(self, key: str, assignment: Assignment) -> tuple[Hashable | None, int]:
        """Return the kind and the number of a workload's pods; None if they differ."""
        pods, flavors = self._pods.without_node(key), list(assignment.flavors().values())
        if len(flavors) != 1 or not pods or self._pods.is_of_job(key):
            return None, 0
        return kind_of(self._handles.of(pods[0]), pods, flavors[0]), len(pods)

    def _let_go(self) -> None:
        """Take what fitted last off its nodes."""
        if self._held is not None and self._trial is not None:
            self._trial.back_to(self._held[2])
        self._held = None

    def assume(self, workload: WorkloadInfo, assignment: Assignment) -> None:
        """Keep a workload placed, as it is admitted."""
        self._tried[self._pods.home_of(workload.key)] = assignment
        held = self._held
        if held is not None and held[0] == workload.key and held[1] is assignment:
            self._held = None
        else:
            self._let_go()
            self._place(workload.key)
        self._nodes[workload.key] = self._planned(workload.key)

    def nodes_of(self, key: str) -> Mapping[str, Sequence[str]]:
        """Return on which nodes a workload was admitted, a name for each pod, by pod set.

        Only those of flavors with a topology are known.
        """
        return self._nodes.get(key, {})

    def replaced(self, key: str, lost: Sequence[PodInfo]) -> Mapping[str, Sequence[str]] | None:
        """Return on which nodes an admitted workload would be, if what it lacks were placed.

        :param lost: pods of it that went with their nodes.
        :return: as of ``nodes_of``; None where nodes take only some of its pods.
        """
        snapshot = self._handle.snapshot
        with snapshot.trial():
            counts = {one.name: one.count or 0 for one in self._assigned(key)}
            waiting = self._pods.without_node(key, counts)
            for pod in lost:
                snapshot.remove_pod(pod.key)
            again = [
                pod.changed(replace(pod.pod, spec=replace(pod.spec, node_name=""))) for pod in lost
            ]
            if self._place_pods(key, [*waiting, *again]) is not None:
                return None
            return self._planned(key)

    def _planned(self, key: str) -> dict[str, list[str]]:
        """Return the nodes on which the pods of a workload are in the trial, by pod set."""
        sets = self._assigned(key)
        found: dict[str, list[str]] = {
            one.name: []
            for one in sets
            if any(flavor.spec.topology_name for flavor in self._flavors(one))
        }
        if not found:
            return found
        counts = {one.name: one.count or 0 for one in sets}
        pods = [(one.key, self._pods.pod_set_of(one)) for one in self._pods.within(key, counts)]
        pods += ((one.pod.key, one.pod_set) for one in self._to_come(key))
        placed = self._handle.snapshot.placed
        for pod, name in pods:
            if pod in placed and name in found:
                found[name].append(placed[pod][1])
        return found

    def _try(self, key: str, assignment: Assignment) -> str | None:
        with self._trying(key, assignment):
            return self._place(key)

    def _on_nodes(self, key: str, assignment: Assignment) -> set[str]:
        """Return the nodes on which the pods of a workload are that was tried last."""
        with self._trying(key, assignment):
            placed = self._handle.snapshot.placed
            pods = [pod.key for pod in self._pods.members(key)]
            pods += (one.pod.key for one in self._to_come(key))
            return {placed[pod][1] for pod in pods if pod in placed}

    @contextmanager
    def _trying(self, key: str, assignment: Assignment) -> Iterator[None]:
        """Have a workload assigned something while the context is open."""
        home = self._pods.home_of(key)
        before = self._tried.get(home)
        self._tried[home] = assignment
        try:
            yield
        finally:
            del self._tried[home]
            if before is not None:
                self._tried[home] = before

    def _place(self, key: str) -> str | None:
        """Place the pods of a workload that have no nodes; return why that did not work.

        Where it will run in another cluster, it needs none here.
        """
        if self.runs_elsewhere(key):
            return None
        counts = {one.name: one.count or 0 for one in self._assigned(key)}
        return self._place_pods(key, self._pods.without_node(key, counts or None))

    def _place_pods(self, key: str, pods: Iterable[PodInfo]) -> str | None:
        """Place pods of a workload, and those that it does not have yet."""
        units: dict[str, _Together] = {}
        for pod in map(self._as_admitted, pods):
            units.setdefault(pod.gang or pod.key, _Together()).pods.append(pod)
        for one in self._to_come(key):
            unit = units.setdefault(one.pod.gang or one.pod.key, _Together())
            unit.pods.append(one.pod)
            unit.gang = one.gang
        return next(filter(None, map(self._place_unit, units.values())), None)

    def runs_elsewhere(self, key: str) -> bool:
        """Tell whether an admission check sends a workload to another cluster."""
        checks = self._handle.snapshot.objects(AdmissionCheck)
        others = {
            one.metadata.name
            for one in checks.values()
            if one.spec.controller_name == MULTI_CLUSTER_CONTROLLER
        }
        if not others:
            return False
        store = self._store()
        workload = store.workloads.get(key)
        local = store.local_queues.get(local_queue_key(workload)) if workload is not None else None
        queue = store.cluster_queues.get(local.spec.cluster_queue) if local is not None else None
        return queue is not None and not others.isdisjoint(checks_with(queue, self._assigned(key)))

    def _as_admitted(self, pod: PodInfo) -> PodInfo:
        return as_admitted(pod, self.flavors_for(pod)) if is_gated(pod) else pod

    def flavors_for(self, pod: PodInfo) -> list[ResourceFlavor]:
        """Return the flavors of a pod's pod set, as it is tried now or was admitted."""
        name = self._pods.pod_set_of(pod)
        sets = self._assigned(self._pods.key_of(pod))
        return next((self._flavors(one) for one in sets if one.name == name), [])

    def _to_come(self, key: str) -> list[PodToCome]:
        """Return the pods that a job will have, as it is tried now or was admitted."""
        sets = self._assigned(key)
        counts = {one.name: one.count or 0 for one in sets}
        return self._pods.to_come(key, counts, {one.name: self._flavors(one) for one in sets})

    def _assigned(self, key: str) -> Sequence[AssignedPodSet]:
        given = self._tried_of(key)
        if given is not None:
            return given.as_status()
        known = self._store().workloads.get(key)
        admission = known.status.admission if known is not None else None
        return admission.pod_set_assignments if admission is not None else ()

    def _flavors(self, assigned: AssignedPodSet) -> list[ResourceFlavor]:
        known = self._store().flavors
        names = dict.fromkeys(assigned.flavors.values())
        return [known[name] for name in names if name in known]

    def _place_unit(self, together: _Together) -> str | None:
        handle = self._handles.of(together.pods[0])
        unit = handle.unit(together.pods, together.gang)
        if unit.gang is not None and unit.gang.problem is not None:
            return f"{_NO_NODES}: {unit.gang.problem}"
        offered = handle.offers(unit)
        for candidate in offered.candidates:
            if handle.place(unit, candidate) is not None:
                return None
        return _no_domain(offered.refused) or _NO_NODES


def _no_domain(refused: Iterable[DomainTrial]) -> str | None:
    """Say how many pods the best domain takes, if that is why there are no nodes."""
    counted = [one for one in refused if one.offered is not None and one.offered < one.needed]
    best = max(counted, key=lambda one: one.offered or 0, default=None)
    if best is None:
        return None
    room = f"for {best.needed} of them, the best, {best.name}, for {best.offered}"
    return f"{_NO_NODES}: no domain has room {room}"
