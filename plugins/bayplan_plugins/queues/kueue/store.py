"""All objects that admission knows, and what follows from them: quotas, usage, pending queues."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from bayplan.api.kueue import (
    AdmissionCheck,
    ClusterQueue,
    Cohort,
    KueueWorkload,
    LocalQueue,
    ResourceFlavor,
    ResourceGroup,
)
from bayplan.api.network import Topology
from bayplan.api.policy import Namespace
from bayplan.api.selectors import Selector, compile_selector
from bayplan.queues.tree import QueueTree
from bayplan_plugins.queues.kueue.conditions import Reason, has_quota, is_true
from bayplan_plugins.queues.kueue.inactive import Fault, faults_of, inactive_message, is_active
from bayplan_plugins.queues.kueue.lifecycle import next_change
from bayplan_plugins.queues.kueue.pending import PendingQueue
from bayplan_plugins.queues.kueue.quotas import QuotaForest, cohort_row_name, queues_of
from bayplan_plugins.queues.kueue.settings import Settings
from bayplan_plugins.queues.kueue.snapshot import QueueView, Snapshot
from bayplan_plugins.queues.kueue.usage_over_time import UsageLedger, counts_usage, go_on
from bayplan_plugins.queues.kueue.workloads import WorkloadInfo, local_queue_key
from bayplan_plugins.shared.deadlines import Deadlines

__all__ = ["BLOCKED", "KueueObject", "Store"]

BLOCKED = (" is inactive", " doesn't exist", " is deactivated")
"""How the messages of workloads end that may not be admitted, or whose queues take none."""

KueueObject = (
    AdmissionCheck
    | ClusterQueue
    | Cohort
    | LocalQueue
    | ResourceFlavor
    | Topology
    | KueueWorkload
    | Namespace
)


class Store:
    """The objects, with usage and pending queues kept up to date change by change.

    ``ledger`` is the usage over time of LocalQueues; without admission fair sharing it is None.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        sharing = settings.usage_sharing
        self.ledger = UsageLedger(sharing) if sharing is not None else None
        self.cluster_queues: dict[str, ClusterQueue] = {}
        self.cohorts: dict[str, Cohort] = {}
        self.local_queues: dict[str, LocalQueue] = {}
        self.flavors: dict[str, ResourceFlavor] = {}
        self.checks: dict[str, AdmissionCheck] = {}
        self._topologies: set[str] = set()
        self.workloads: dict[str, KueueWorkload] = {}
        self._pending: dict[str, PendingQueue] = {}
        self._redefined: dict[str, float] = {}
        """When the quotas of rows, their trees included, changed; looked at by :meth:`_settle`."""
        self._all_redefined: float | None = None
        self._freed: dict[str, float] = {}
        """When a workload of a queue gave its quota back, likewise."""
        self.reserving: dict[str, dict[str, WorkloadInfo]] = {}
        self._reserving_of: dict[str, dict[str, WorkloadInfo]] = {}
        """The same by LocalQueue."""
        self._uses: dict[str, int] = {}
        """Counts what has changed in ``reserving``, by ClusterQueue and by LocalQueue."""
        self._times = Deadlines()
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._selectors: dict[str, Selector] = {}
        self._of_local: dict[str, set[str]] = {}
        self._locals_of: dict[str, dict[str, None]] = {}
        """The keys of the LocalQueues of each ClusterQueue."""
        self._to_look: dict[str, None] = {}
        """The workloads that they themselves or their queues may change, not yet taken."""
        self._faulty: dict[str, bool] = {}
        """Whether each ClusterQueue took no workloads when that was last compared."""
        self._faults_changed = False
        self._waits_in: dict[str, str] = {}
        self._holds: dict[str, str] = {}
        self._generations: dict[str, int] = {}
        self._forest: QuotaForest | None = None
        self._views: dict[str, QueueView] = {}
        self._faults: dict[str, Sequence[Fault]] = {}
        self._version = 0

    @property
    def version(self) -> tuple[int, int]:
        """What changes with all that statuses of queues are made of."""
        return self._version, self.ledger.version if self.ledger is not None else 0

    @property
    def pending(self) -> Mapping[str, PendingQueue]:
        """The pending queues by ClusterQueue; what changes have made possible is active again."""
        self._settle()
        return self._pending

    # Objects -----------------------------------------------------------------------------

    def set(self, obj: KueueObject, now: float) -> None:
        """Add an object, or replace it.

        :param now: seconds since 1970.
        """
        self._version += 1
        if isinstance(obj, KueueWorkload):
            self._set_workload(obj, now)
        elif isinstance(obj, ClusterQueue):
            self._set_cluster_queue(obj, now)
        elif isinstance(obj, LocalQueue):
            self._set_local_queue(obj, now)
        elif isinstance(obj, Cohort):
            known = self.cohorts.get(obj.metadata.name)
            self.cohorts[obj.metadata.name] = obj
            if known is None or known.spec != obj.spec:
                self._quotas_changed(now)
        elif isinstance(obj, ResourceFlavor):
            old = self.flavors.get(obj.metadata.name)
            self.flavors[obj.metadata.name] = obj
            if old is None or old.spec != obj.spec:
                self._quotas_changed(now)
        elif isinstance(obj, AdmissionCheck):
            self._set_check(obj, now)
        elif isinstance(obj, Topology):
            if obj.metadata.name not in self._topologies:
                self._topologies.add(obj.metadata.name)
                self._quotas_changed(now)
        else:
            self._set_namespace(obj, now)

    def delete(self, obj: KueueObject, now: float) -> None:
        """Remove an object."""
        self._version += 1
        name = obj.metadata.name
        if isinstance(obj, KueueWorkload):
            if self.workloads.pop(obj.key, None) is not None:
                self._times.put(obj.key, None)
                self._to_look.pop(obj.key, None)
                self._of_local.get(local_queue_key(obj), set()).discard(obj.key)
                self._forget(obj.key, now)
        elif isinstance(obj, ClusterQueue):
            self.cluster_queues.pop(name, None)
            self._pending.pop(name, None)
            self._look_at(self.workloads_of(obj))
            self._quotas_changed(now)
        elif isinstance(obj, LocalQueue):
            key = f"{obj.metadata.namespace}/{name}"
            self.local_queues.pop(key, None)
            self._locals_of.get(obj.spec.cluster_queue, {}).pop(key, None)
            self._look_at(self._of_local.get(key, ()))
            if self.ledger is not None:
                self.ledger.forget(key)
            for workload in self._of_local.get(key, ()):
                self._unqueue(workload)
        elif isinstance(obj, Cohort):
            self.cohorts.pop(name, None)
            self._quotas_changed(now)
        elif isinstance(obj, ResourceFlavor):
            self.flavors.pop(name, None)
            self._quotas_changed(now)
        elif isinstance(obj, AdmissionCheck):
            self.checks.pop(name, None)
            self._check_changed(name, now)
        elif isinstance(obj, Topology):
            self._topologies.discard(name)
            self._quotas_changed(now)
        else:
            self._namespaces.pop(name, None)

    def _set_namespace(self, namespace: Namespace, now: float) -> None:
        name, labels = namespace.metadata.name, namespace.metadata.labels
        if self._namespaces.get(name) != labels:
            self._namespaces[name] = labels
            prefix = f"{name}/"
            if any(keys and key.startswith(prefix) for key, keys in self._of_local.items()):
                for queue in self.cluster_queues:
                    self.flush(queue, now)

    def _set_check(self, check: AdmissionCheck, now: float) -> None:
        name = check.metadata.name
        known = self.checks.get(name)
        self.checks[name] = check
        if known is None or is_active(known) is not is_active(check):
            self._check_changed(name, now)

    def _check_changed(self, name: str, now: float) -> None:
        """Try the parked workloads again of queues that ask for a check."""
        self._forget_faults()
        for queue in self.cluster_queues.values():
            rules = queue.spec.admission_checks_strategy.admission_checks
            if any(rule.name == name for rule in rules):
                self.flush(queue.metadata.name, now)

    # Queues ------------------------------------------------------------------------------

    def _set_cluster_queue(self, queue: ClusterQueue, now: float) -> None:
        name = queue.metadata.name
        known = self.cluster_queues.get(name)
        self.cluster_queues[name] = queue
        if known is not None and known.spec == queue.spec:
            return
        if known is not None and known.spec.cohort_name != queue.spec.cohort_name:
            # Those that it leaves behind may have more, or less.
            self._redefined[cohort_row_name(known.spec.cohort_name)] = now
        self._selectors[name] = compile_selector(queue.spec.namespace_selector)
        waiting = list(self._pending.get(name, ()))
        ledger = self.ledger
        usage = counts_usage(queue, self.settings.usage_sharing) and ledger is not None
        self._pending[name] = PendingQueue(
            self.settings,
            queue.spec.queueing_strategy == "StrictFIFO",
            self.usage_share if usage else None,
            (lambda: ledger.version) if ledger is not None else (lambda: 0),
        )
        for one in waiting:
            self._pending[name].push(one, now)
        for key in self._locals_of.get(name, ()):
            self._enqueue(self._of_local.get(key, ()), now)
        self._look_at(self.workloads_of(queue))
        self._redefined[name] = now
        self._forget_quotas()

    def _set_local_queue(self, queue: LocalQueue, now: float) -> None:
        key = f"{queue.metadata.namespace}/{queue.metadata.name}"
        known = self.local_queues.get(key)
        self.local_queues[key] = queue
        if self.ledger is not None:
            self.ledger.version += 1
            go_on(self.ledger, key, queue.status)
        if known is not None and known.spec == queue.spec:
            return
        if known is not None:
            self._locals_of.get(known.spec.cluster_queue, {}).pop(key, None)
        self._locals_of.setdefault(queue.spec.cluster_queue, {})[key] = None
        self._look_at(self._of_local.get(key, ()))
        for workload in self._of_local.get(key, ()):
            self._unqueue(workload)
        self._enqueue(self._of_local.get(key, ()), now)

    def _enqueue(self, keys: Iterable[str], now: float) -> None:
        for key in sorted(keys):
            workload = self.workloads[key]
            if not has_quota(workload):
                self._queue(workload, now)

    def usage_share(self, local: str) -> float:
        """Return the weighted usage over time of a LocalQueue."""
        queue = self.local_queues.get(local)
        sharing = queue.spec.fair_sharing if queue is not None else None
        weight = sharing.weight if sharing is not None else None
        assert self.ledger is not None
        return self.ledger.share(local, float(weight.amount) if weight is not None else 1.0)

    def inactive_reason(self, name: str) -> tuple[str, str] | None:
        """Return (reason, message) if a ClusterQueue takes no workloads; None if it does."""
        return inactive_message(self.faults(name))

    def faults(self, name: str) -> Sequence[Fault]:
        """Return all that keeps a ClusterQueue from taking workloads."""
        if name not in self._faults:
            queue = self.cluster_queues[name]
            problem = self.forest().tree.queues[self.forest().row_of[name]].problem
            known = self.flavors, self.checks, self._topologies
            self._faults[name] = faults_of(queue, *known, problem)
        return self._faults[name]

    def blocker(self, workload: KueueWorkload) -> tuple[Reason, str] | None:
        """Return (reason, message) if a workload may not be admitted; None if it may.

        It may be inactive, or its queues take no workloads.
        """
        if workload.spec.active is False:
            return Reason.DEACTIVATED, "The workload is deactivated"
        local = self.local_queues.get(local_queue_key(workload))
        if local is None:
            return Reason.MISCONFIGURED, f"LocalQueue {workload.spec.queue_name} doesn't exist"
        if local.spec.stop_policy in ("Hold", "HoldAndDrain"):
            return Reason.SUSPENDED, f"LocalQueue {local.metadata.name} is inactive"
        name = local.spec.cluster_queue
        if name not in self.cluster_queues:
            return Reason.MISCONFIGURED, f"ClusterQueue {name} doesn't exist"
        if self.faults(name):
            return Reason.SUSPENDED, f"ClusterQueue {name} is inactive"
        return None

    def namespace_fits(self, workload: WorkloadInfo) -> bool:
        """Tell whether a workload's ClusterQueue takes workloads of its namespace."""
        name = workload.workload.metadata.namespace
        labels = {"kubernetes.io/metadata.name": name, **self._namespaces.get(name, {})}
        return self._selectors[workload.queue].matches(labels)

    # Workloads ---------------------------------------------------------------------------

    def _set_workload(self, workload: KueueWorkload, now: float) -> None:
        key = workload.key
        known = self.workloads.get(key)
        self.workloads[key] = workload
        self._to_look[key] = None
        self._times.put(key, next_change(workload, self.settings.pods_ready))
        if known is not None and local_queue_key(known) != local_queue_key(workload):
            self._of_local.get(local_queue_key(known), set()).discard(key)
            self._unqueue(key)
        self._of_local.setdefault(local_queue_key(workload), set()).add(key)
        if is_true(workload, "Finished"):
            self._forget(key, now)
        elif has_quota(workload) and workload.status.admission is not None:
            self._unqueue(key)
            self._reserve(WorkloadInfo.of(workload, workload.status.admission.cluster_queue), now)
        else:
            self._release(key, now)
            self._queue(workload, now)

    def _queue(self, workload: KueueWorkload, now: float) -> None:
        local = self.local_queues.get(local_queue_key(workload))
        stopped = local is not None and local.spec.stop_policy in ("Hold", "HoldAndDrain")
        pending = self._pending.get(local.spec.cluster_queue) if local is not None else None
        if stopped or pending is None or workload.spec.active is False:
            self._unqueue(workload.key)
            return
        assert local is not None
        name = local.spec.cluster_queue
        if self._waits_in.get(workload.key, name) != name:
            self._unqueue(workload.key)
        self._waits_in[workload.key] = name
        pending.push(WorkloadInfo.of(workload, name, self.settings.charged), now)

    def _unqueue(self, key: str) -> None:
        name = self._waits_in.pop(key, None)
        if name in self._pending:
            self._pending[name].delete(key)

    def _forget(self, key: str, now: float) -> None:
        self._unqueue(key)
        self._release(key, now)

    def _reserve(self, info: WorkloadInfo, now: float) -> None:
        """Count a workload's quota, in place of what it had."""
        known = self.reserving.get(info.queue, {}).get(info.key)
        if known is not None and known.usage == info.usage:
            self._set_reserving(info)
            return
        self._release(info.key, now)
        self._holds[info.key] = info.queue
        self._set_reserving(info)
        if self._forest is not None and info.queue in self._forest.row_of:
            self._forest.add(self._forest.row_of[info.queue], info.usage)

    def _set_reserving(self, info: WorkloadInfo) -> None:
        local = local_queue_key(info.workload)
        known = self.reserving.setdefault(info.queue, {}).get(info.key)
        if known is not None and (before := local_queue_key(known.workload)) != local:
            del self._reserving_of[before][info.key]
            self._uses_changed(before)
        self.reserving[info.queue][info.key] = info
        self._reserving_of.setdefault(local, {})[info.key] = info
        self._uses_changed(info.queue, local)

    def _uses_changed(self, *queues: str) -> None:
        for name in queues:
            self._uses[name] = self._uses.get(name, 0) + 1

    def reserving_of(self, local: str) -> Mapping[str, WorkloadInfo]:
        """Return the workloads of a LocalQueue that hold quota, by key."""
        return self._reserving_of.get(local, {})

    def uses(self, queue: str) -> int:
        """Return what changes with the workloads of a queue, of either kind, that hold quota."""
        return self._uses.get(queue, 0)

    def next_change(self) -> float | None:
        """Return when time alone may change a workload, in seconds since 1970; None for never."""
        return self._times.next_time()

    def take_due(self, now: float) -> list[KueueWorkload]:
        """Return the workloads that time, their queues or they themselves may change by now.

        That is those that changed since this was last asked, or whose queues did, and those whose
        time has come. Every other one would be found as it was.

        :param now: seconds since 1970.
        """
        if self._faults_changed:
            self._faults_changed = False
            faulty = {name: bool(self.faults(name)) for name in self.cluster_queues}
            for name, queue in self.cluster_queues.items():
                if self._faulty.get(name) is not faulty[name]:
                    self._look_at(self.workloads_of(queue))
            self._faulty = faulty
        for key in self._times.take(now):
            # It stays due until it changes.
            self._to_look[key] = None
            self._times.put(key, next_change(self.workloads[key], self.settings.pods_ready))
        keys, self._to_look = self._to_look, {}
        return [self.workloads[key] for key in keys]

    def workloads_of(self, obj: KueueObject) -> Collection[str]:
        """Return the keys of the workloads that depend on a queue, a flavor, a check or another."""
        if isinstance(obj, LocalQueue):
            return self._of_local.get(f"{obj.metadata.namespace}/{obj.metadata.name}", ())
        if isinstance(obj, Cohort | KueueWorkload | Namespace):
            return self.workloads.keys()
        names = [obj.metadata.name]
        if not isinstance(obj, ClusterQueue):
            names = [one for one, queue in self.cluster_queues.items() if self._names(queue, obj)]
        found: dict[str, None] = {}
        for name in names:
            found |= dict.fromkeys(self.reserving.get(name, ()))
            for local in self._locals_of.get(name, ()):
                found |= dict.fromkeys(self._of_local.get(local, ()))
        return found.keys()

    def _names(self, queue: ClusterQueue, obj: AdmissionCheck | ResourceFlavor | Topology) -> bool:
        """Tell whether a ClusterQueue names a check or a flavor, or one of a topology."""
        name = obj.metadata.name
        if isinstance(obj, AdmissionCheck):
            rules = queue.spec.admission_checks_strategy.admission_checks
            return any(rule.name == name for rule in rules)
        of_queue = {one.name for group in queue.spec.resource_groups for one in group.flavors}
        if isinstance(obj, ResourceFlavor):
            return name in of_queue
        known = (self.flavors.get(one) for one in of_queue)
        return any(one is not None and one.spec.topology_name == name for one in known)

    def _look_at(self, keys: Iterable[str]) -> None:
        self._to_look |= dict.fromkeys(key for key in keys if key in self.workloads)

    def _forget_faults(self) -> None:
        self._faults.clear()
        self._faults_changed = True

    def _release(self, key: str, now: float) -> None:
        """Give back the quota of a workload, so others may be tried again."""
        name = self._holds.pop(key, None)
        if name is None:
            return
        info = self.reserving[name].pop(key)
        local = local_queue_key(info.workload)
        del self._reserving_of[local][key]
        self._uses_changed(name, local)
        if self._forest is not None and name in self._forest.row_of:
            self._forest.remove(self._forest.row_of[name], info.usage)
        self._generations[name] = self._generations.get(name, 0) + 1
        self._views.pop(name, None)
        self._freed[name] = now

    # Derived -----------------------------------------------------------------------------

    def _quotas_changed(self, now: float) -> None:
        """Try the parked workloads of all queues again, once somebody asks for any."""
        self._all_redefined = now
        self._forget_quotas()

    def _forget_quotas(self) -> None:
        self._forest = None
        self._views.clear()
        self._forget_faults()

    def _settle(self) -> None:
        """Try the parked workloads again of queues whose cohort has changed since the last time.

        Changes that come together, as at the start, cost as much as one of them.
        """
        every, redefined, freed = self._all_redefined, self._redefined, self._freed
        if every is None and not redefined and not freed:
            return
        self._all_redefined, self._redefined, self._freed = None, {}, {}
        if every is not None:
            again = dict.fromkeys(self.cluster_queues, every)
        else:
            again = self._in_cohorts_of(redefined)
        for name in again:
            self._generations[name] = self._generations.get(name, 0) + 1
            self._views.pop(name, None)
        for name, now in (again | self._in_cohorts_of(freed)).items():
            self.flush(name, now)

    def _in_cohorts_of(self, rows: Mapping[str, float]) -> dict[str, float]:
        """Return all ClusterQueues of the trees of some queues and cohorts, each with its time."""
        forest = self.forest()
        found: dict[str, float] = {}
        roots: dict[int, float] = {}
        for row, now in rows.items():
            if row in forest.row_of:
                roots[forest.root(forest.row_of[row])] = now
        for root, now in roots.items():
            names = (root,) if not forest.is_cohort(root) else forest.queues_below(root)
            found |= dict.fromkeys(map(forest.name, names), now)
        return found

    def cohort_of(self, name: str) -> list[str]:
        """Return all ClusterQueues of the cohort tree that a queue belongs to."""
        if name not in self.cluster_queues:
            return []
        forest = self.forest()
        row = forest.row_of[name]
        if forest.parent[row] < 0:
            return [name]
        return [forest.name(other) for other in forest.queues_below(forest.root(row))]

    def flush(self, name: str, now: float) -> None:
        """Try the parked workloads of a queue again."""
        if name in self._pending:
            self._pending[name].flush(self.namespace_fits, now)

    def forest(self) -> QuotaForest:
        """Return the quotas with what is used of them."""
        if self._forest is None:
            queues = queues_of(self.cluster_queues.values(), self.cohorts.values())
            self._forest = QuotaForest(QueueTree(queues))
            for name, reserving in self.reserving.items():
                if name not in self._forest.row_of:
                    continue
                for info in reserving.values():
                    self._forest.add(self._forest.row_of[name], info.usage)
        return self._forest

    def snapshot(self, now: float = math.inf) -> Snapshot:
        """Return quotas, usage and workloads for one cycle.

        :param now: seconds since 1970; by default nobody is too new to be preempted.
        """
        self._settle()
        forest = self.forest()
        for name, queue in self.cluster_queues.items():
            if name not in self._views:
                group_of: dict[str, ResourceGroup] = {}
                for group in queue.spec.resource_groups:
                    for resource in group.covered_resources:
                        group_of.setdefault(resource, group)
                generation = self._generations.get(name, 0)
                self._views[name] = QueueView(queue, forest.row_of[name], generation, group_of)
        if self.ledger is not None:
            self._weigh()
        return Snapshot(forest.copy(), dict(self._views), self.flavors, self.reserving, now)

    def _weigh(self) -> None:
        """Note the usage over time that orders the victims in queues that go by it."""
        for name, reserving in self.reserving.items():
            queue = self.cluster_queues.get(name)
            usage = queue is not None and counts_usage(queue, self.settings.usage_sharing)
            for info in reserving.values():
                key = local_queue_key(info.workload)
                info.usage_share = self.usage_share(key) if usage else None
