"""All objects that admission knows, and what follows from them: quotas, usage, pending queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bayplan.api.kueue import (
    ClusterQueue,
    Cohort,
    KueueWorkload,
    LocalQueue,
    ResourceFlavor,
    ResourceGroup,
)
from bayplan.api.policy import Namespace
from bayplan.api.selectors import Selector, compile_selector
from bayplan.queues.tree import QueueTree
from bayplan_plugins.queues.cluster_queue.conditions import has_quota, is_true
from bayplan_plugins.queues.cluster_queue.pending import PendingQueue
from bayplan_plugins.queues.cluster_queue.quotas import QuotaForest, queues_of
from bayplan_plugins.queues.cluster_queue.settings import Settings
from bayplan_plugins.queues.cluster_queue.snapshot import QueueView, Snapshot
from bayplan_plugins.queues.cluster_queue.usage_over_time import UsageLedger, counts_usage, go_on
from bayplan_plugins.queues.cluster_queue.workloads import WorkloadInfo, local_queue_key

__all__ = ["KueueObject", "Store"]

KueueObject = ClusterQueue | Cohort | LocalQueue | ResourceFlavor | KueueWorkload | Namespace


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
        self.workloads: dict[str, KueueWorkload] = {}
        self.pending: dict[str, PendingQueue] = {}
        self.reserving: dict[str, dict[str, WorkloadInfo]] = {}
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._selectors: dict[str, Selector] = {}
        self._of_local: dict[str, set[str]] = {}
        self._waits_in: dict[str, str] = {}
        self._holds: dict[str, str] = {}
        self._generations: dict[str, int] = {}
        self._forest: QuotaForest | None = None
        self._views: dict[str, QueueView] = {}
        self._inactive: dict[str, tuple[str, str] | None] = {}

    # Objects -----------------------------------------------------------------------------

    def set(self, obj: KueueObject, now: float) -> None:
        """Add an object, or replace it.

        :param now: seconds since 1970.
        """
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
                self._quotas_changed(self.cluster_queues, now)
        elif isinstance(obj, ResourceFlavor):
            old = self.flavors.get(obj.metadata.name)
            self.flavors[obj.metadata.name] = obj
            if old is None or old.spec != obj.spec:
                self._quotas_changed(self.cluster_queues, now)
        else:
            self._set_namespace(obj, now)

    def delete(self, obj: KueueObject, now: float) -> None:
        """Remove an object."""
        name = obj.metadata.name
        if isinstance(obj, KueueWorkload):
            if self.workloads.pop(obj.key, None) is not None:
                self._of_local.get(local_queue_key(obj), set()).discard(obj.key)
                self._forget(obj.key, now)
        elif isinstance(obj, ClusterQueue):
            self.cluster_queues.pop(name, None)
            self.pending.pop(name, None)
            self._quotas_changed(self.cluster_queues, now)
        elif isinstance(obj, LocalQueue):
            key = f"{obj.metadata.namespace}/{name}"
            self.local_queues.pop(key, None)
            if self.ledger is not None:
                self.ledger.forget(key)
            for workload in self._of_local.get(key, ()):
                self._unqueue(workload)
        elif isinstance(obj, Cohort):
            self.cohorts.pop(name, None)
            self._quotas_changed(self.cluster_queues, now)
        elif isinstance(obj, ResourceFlavor):
            self.flavors.pop(name, None)
            self._quotas_changed(self.cluster_queues, now)
        else:
            self._namespaces.pop(name, None)

    def _set_namespace(self, namespace: Namespace, now: float) -> None:
        name, labels = namespace.metadata.name, namespace.metadata.labels
        if self._namespaces.get(name) != labels:
            self._namespaces[name] = labels
            for queue in self.cluster_queues:
                self.flush(queue, now)

    # Queues ------------------------------------------------------------------------------

    def _set_cluster_queue(self, queue: ClusterQueue, now: float) -> None:
        name = queue.metadata.name
        known = self.cluster_queues.get(name)
        before = self.cohort_of(name)
        self.cluster_queues[name] = queue
        if known is not None and known.spec == queue.spec:
            return
        self._forest = None
        self._selectors[name] = compile_selector(queue.spec.namespace_selector)
        waiting = list(self.pending.get(name, ()))
        ledger = self.ledger
        usage = counts_usage(queue, self.settings.usage_sharing) and ledger is not None
        self.pending[name] = PendingQueue(
            self.settings,
            queue.spec.queueing_strategy == "StrictFIFO",
            self.usage_share if usage else None,
            (lambda: ledger.version) if ledger is not None else (lambda: 0),
        )
        for one in waiting:
            self.pending[name].push(one, now)
        for key, local in self.local_queues.items():
            if local.spec.cluster_queue == name:
                self._enqueue(self._of_local.get(key, ()), now)
        self._quotas_changed({name, *before, *self.cohort_of(name)}, now)

    def _set_local_queue(self, queue: LocalQueue, now: float) -> None:
        key = f"{queue.metadata.namespace}/{queue.metadata.name}"
        known = self.local_queues.get(key)
        self.local_queues[key] = queue
        if self.ledger is not None:
            self.ledger.version += 1
            go_on(self.ledger, key, queue.status)
        if known is not None and known.spec == queue.spec:
            return
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
        if name not in self._inactive:
            self._inactive[name] = self._find_inactive_reason(name)
        return self._inactive[name]

    def _find_inactive_reason(self, name: str) -> tuple[str, str] | None:
        queue = self.cluster_queues[name]
        found: list[tuple[str, str]] = []
        if queue.spec.stop_policy in ("Hold", "HoldAndDrain"):
            found.append(("Stopped", "is stopped"))
        missing = [
            flavor.name
            for group in queue.spec.resource_groups
            for flavor in group.flavors
            if flavor.name not in self.flavors
        ]
        if missing:
            text = f"references missing ResourceFlavor(s): {','.join(missing)}"
            found.append(("FlavorNotFound", text))
        problem = self.forest().tree.queues[self.forest().row_of[name]].problem
        if problem is not None:
            found.append(("CohortCycle", problem))
        if not found:
            return None
        texts = ", ".join(text for _, text in found)
        return found[0][0], f"Can't admit new workloads: {texts}."

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
        pending = self.pending.get(local.spec.cluster_queue) if local is not None else None
        if stopped or pending is None or workload.spec.active is False:
            self._unqueue(workload.key)
            return
        assert local is not None
        name = local.spec.cluster_queue
        if self._waits_in.get(workload.key, name) != name:
            self._unqueue(workload.key)
        self._waits_in[workload.key] = name
        pending.push(WorkloadInfo.of(workload, name), now)

    def _unqueue(self, key: str) -> None:
        name = self._waits_in.pop(key, None)
        if name in self.pending:
            self.pending[name].delete(key)

    def _forget(self, key: str, now: float) -> None:
        self._unqueue(key)
        self._release(key, now)

    def _reserve(self, info: WorkloadInfo, now: float) -> None:
        """Count a workload's quota, in place of what it had."""
        known = self.reserving.get(info.queue, {}).get(info.key)
        if known is not None and known.usage == info.usage:
            self.reserving[info.queue][info.key] = info
            return
        self._release(info.key, now)
        self._holds[info.key] = info.queue
        self.reserving.setdefault(info.queue, {})[info.key] = info
        if self._forest is not None and info.queue in self._forest.row_of:
            self._forest.add(self._forest.row_of[info.queue], info.usage)

    def _release(self, key: str, now: float) -> None:
        """Give back the quota of a workload, so others may be tried again."""
        name = self._holds.pop(key, None)
        if name is None:
            return
        info = self.reserving[name].pop(key)
        if self._forest is not None and name in self._forest.row_of:
            self._forest.remove(self._forest.row_of[name], info.usage)
        self._generations[name] = self._generations.get(name, 0) + 1
        self._views.pop(name, None)
        for queue in self.cohort_of(name):
            self.flush(queue, now)

    # Derived -----------------------------------------------------------------------------

    def _quotas_changed(self, queues: Iterable[str], now: float) -> None:
        self._forest = None
        self._views.clear()
        self._inactive.clear()
        for name in list(queues):
            self._generations[name] = self._generations.get(name, 0) + 1
            self.flush(name, now)

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
        if name in self.pending:
            self.pending[name].flush(self.namespace_fits, now)

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

    def snapshot(self) -> Snapshot:
        """Return quotas, usage and workloads for one cycle."""
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
        return Snapshot(forest.copy(), dict(self._views), self.flavors, self.reserving)

    def _weigh(self) -> None:
        """Note the usage over time that orders the victims in queues that go by it."""
        for name, reserving in self.reserving.items():
            queue = self.cluster_queues.get(name)
            usage = queue is not None and counts_usage(queue, self.settings.usage_sharing)
            for info in reserving.values():
                key = local_queue_key(info.workload)
                info.usage_share = self.usage_share(key) if usage else None
