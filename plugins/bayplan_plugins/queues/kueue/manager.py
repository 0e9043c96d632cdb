"""Whether Kueue's own manager is at work: by its Lease, or by what it does and leaves undone.

Where the Lease is seen it decides: a manager is at work while it renews it. Without one (leader
election is off, or nobody may read it) a manager is at work once a pod of it gets ready, or it does
something, until a job waits for long, while it does nothing at all, for what it does at once: a job
gets a Workload, that of one that has ended is finished, one that is deleted goes, and a pod of an
admitted one gets its nodes by topology.

That a pod of it is ready only counts for it, and the lack of one not against it: it may run outside
of the cluster, or be there and do nothing. Its webhooks, APIServices and conditions stay when it
goes, and say nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from bayplan import Handle, PodInfo
from bayplan.api import ApiObject, ClusterQueue, KueueWorkload
from bayplan.api.lease import Lease
from bayplan.dialects.kueue import MANAGER_LEASE, MANAGER_PODS
from bayplan.dialects.queued_jobs import QueuedJob, queued_kinds
from bayplan.queues.workload_owners import is_of_followed_kind, parent_of
from bayplan_plugins.queues.kueue.conditions import has_quota, is_true
from bayplan_plugins.queues.kueue.finalizers import IN_USE
from bayplan_plugins.queues.kueue.following import follow_from_first_queue
from bayplan_plugins.queues.kueue.gates import waits_for_topology
from bayplan_plugins.queues.kueue.job_slices import home_of, is_own
from bayplan_plugins.queues.kueue.job_workloads import JobWorkloads
from bayplan_plugins.queues.kueue.pod_groups import is_ready

__all__ = ["KueueManager"]

_log = logging.getLogger("bayplan.queues.kueue")
_PATIENCE = 30.0
"""Seconds for which a manager may do nothing; a leader that fails is replaced within 15."""
_PAUSE = 1.0
"""Seconds between two trials of what waits."""
_RELIES = "bayplan leaves the ClusterQueues to it"


class KueueManager:
    """Follows what Kueue's manager does in this cluster.

    :param jobs: the jobs that wait for its queues, which have heard of a change before.
    """

    def __init__(self, handle: Handle, jobs: JobWorkloads) -> None:
        self._handle = handle
        self._jobs = jobs
        self._foreign: dict[str, None] = {}
        """Workloads that it made and has not finished."""
        self._own: dict[str, None] = {}
        """Workloads that are bayplan's."""
        self._deleted: dict[str, float] = {}
        """Since when those that it made are being deleted, which its finalizer keeps."""
        self._in_use: dict[str, None] = {}
        """ClusterQueues that it has taken into use."""
        self._kinds: set[str] = set()
        """The kinds of what it has made Workloads for, those that bayplan has taken over too."""
        self._undone: dict[str, float] = {}
        """Since when each job waits for what a manager does at once, by home."""
        self._gated: dict[str, tuple[PodInfo, float]] = {}
        """Pods that wait for the nodes that it chooses, and since when."""
        self._pods: dict[str, PodInfo] = {}
        """By uid, the pods of managers."""
        self._ready: frozenset[str] = frozenset()
        """The uids of those that were ready when it was last looked."""
        self._did = -_PATIENCE
        """When it did something last."""
        self._lease: Lease | None = None
        self._renewed = 0.0
        """When the Lease was last seen to change."""
        self._fits_since: float | None = None
        """Since when a Workload of its waits that could be admitted."""
        self._asked = -_PAUSE
        self._gone = False
        self._reported = ""
        snapshot = handle.snapshot
        snapshot.on_object(KueueWorkload, self._workload_changed)
        snapshot.on_object(ClusterQueue, self._queue_changed)
        snapshot.on_object(Lease, self._lease_changed)
        follow_from_first_queue(snapshot, self._pod_changed)
        for type_ in queued_kinds():
            snapshot.on_object(type_, self._job_changed)

    # Evidence ----------------------------------------------------------------------------

    def _workload_changed(self, old: KueueWorkload | None, new: KueueWorkload | None) -> None:
        if new is not None and (not is_own(new) or IN_USE in new.metadata.finalizers):
            self._kinds.add(_owner_kind(new))
        key = (new or old).key  # type: ignore[union-attr]
        self._own.pop(key, None)
        self._foreign.pop(key, None)
        if new is not None and is_own(new):
            self._own[key] = None
            if old is not None and has_quota(new) and not has_quota(old) and self.at_work:
                # It admits those that bayplan made, too.
                self._kinds.add(_owner_kind(new))
                self._did = self._handle.now
        elif new is not None and (is_of_followed_kind(new) or parent_of(new)):
            # It makes those of the kinds that it knows; others are their controllers', or a user's.
            self._did, self._gone = self._handle.now, False
            if not is_true(new, "Finished"):
                self._foreign[key] = None
        if key not in self._foreign or new is None or new.metadata.deletion_timestamp is None:
            self._deleted.pop(key, None)
        else:
            self._deleted.setdefault(key, self._handle.now)
        self._review(self._jobs.home_of(key))

    def _queue_changed(self, old: ClusterQueue | None, new: ClusterQueue | None) -> None:
        name = (new or old).metadata.name  # type: ignore[union-attr]
        self._in_use.pop(name, None)
        if new is not None and IN_USE in new.metadata.finalizers:
            self._in_use[name] = None

    def _lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        one = new if new is not None else old
        if one is not None and one.metadata.name == MANAGER_LEASE:
            self._lease, self._renewed = new, self._handle.now

    def _job_changed(self, old: ApiObject | None, new: ApiObject | None) -> None:
        for one in (old, new):
            if one is not None:
                self._review(home_of(one))

    def _pod_changed(self, pod: PodInfo, added: bool) -> None:
        if added and pod.pod.metadata.labels.items() >= MANAGER_PODS.items():
            self._pods[pod.uid] = pod
        elif self._pods:
            self._pods.pop(pod.uid, None)
        known = self._gated.get(pod.key)
        if added and waits_for_topology(pod):
            since = known[1] if known is not None and known[0].uid == pod.uid else None
            self._gated[pod.key] = pod, self._handle.now if since is None else since
        elif added or not self._handle.snapshot.is_living(pod):
            self._gated.pop(pod.key, None)

    def _review(self, home: str) -> None:
        """Note whether a job waits for what a manager does at once."""
        job = self._jobs.jobs.get(home)
        if job is not None and self._is_undone(home, job):
            self._undone.setdefault(home, self._handle.now)
        else:
            self._undone.pop(home, None)

    def _is_undone(self, home: str, job: QueuedJob) -> bool:
        known = self._handle.snapshot.objects(KueueWorkload)
        workloads = [known[key] for key in self._jobs.slices_of(home) if key in known]
        if job.state.end is None:
            return not workloads
        return any(not is_true(one, "Finished") for one in workloads)

    # The answer --------------------------------------------------------------------------

    @property
    def foreign(self) -> Iterable[str]:
        """The keys of the Workloads that it made and has not finished."""
        return self._foreign

    @property
    def at_work(self) -> str:
        """What is said where it is at work, and so bayplan admits nothing; "" where it is not."""
        lease = self._lease
        if lease is not None:
            if not lease.spec.holder_identity or self._handle.now >= self._lease_ends:
                return ""
            meta = lease.metadata
            return f"Kueue's manager holds the Lease {meta.namespace}/{meta.name}: {_RELIES}"
        if self._gone or not self._was_here:
            return ""
        if self._ends is not None and self._handle.now >= self._ends:
            return ""
        what = next(iter(self._foreign), "")
        if not what and self._ready:
            pod = next(self._pods[uid] for uid in reversed(self._pods) if uid in self._ready)
            return f"{pod.key} is a pod of Kueue's manager, and ready: {_RELIES}"
        made = f"the Workload {what} is" if what else "the ClusterQueues are"
        return f"{made} of Kueue's manager, which seems to be at work: {_RELIES}"

    @property
    def _was_here(self) -> bool:
        """Whether it has left anything that bayplan has not taken over."""
        here = bool(self._foreign) or bool(self._ready)
        return here or (bool(self._in_use) and not self._own)

    @property
    def _lease_ends(self) -> float:
        assert self._lease is not None, "asked where there is one"
        return self._renewed + max(_PATIENCE, 2.0 * self._lease.spec.lease_duration_seconds)

    @property
    def _ends(self) -> float | None:
        """When it has left something undone for too long; None while there is nothing to do."""
        kinds, jobs = self._kinds, self._jobs.jobs
        waits = [
            since
            for home, since in self._undone.items()
            if home in jobs and (not kinds or jobs[home].kind in kinds)
        ]
        if self._fits_since is not None:
            waits.append(self._fits_since)
        waits += self._deleted.values()
        waits += [since for pod, since in self._gated.values() if self._would_be_let_go(pod)]
        return max(min(waits), self._did) + _PATIENCE if waits else None

    def _would_be_let_go(self, pod: PodInfo) -> bool:
        """Tell whether a manager would have chosen a node for a pod by now."""
        home = self._jobs.home_of_pod(pod)
        key = self._jobs.current(home) if home is not None else ""
        workload = self._handle.snapshot.objects(KueueWorkload).get(key)
        if workload is None or is_true(workload, "Evicted") or workload.status.unhealthy_nodes:
            # It looks for what replaces a node, and may find nothing.
            return False
        job, admission = self._jobs.jobs.get(home or ""), workload.status.admission
        given = {one.name: one.count for one in admission.pod_set_assignments} if admission else {}
        if job is None or any((given.get(name) or 0) < n for name, n in job.counts.items()):
            # Pods beyond what was admitted wait for a reason.
            return False
        return is_true(workload, "Admitted")

    def next_time(self) -> float | None:
        """Return when it may turn out to be gone, in seconds; None where nothing tells."""
        if not self.at_work:
            return None
        return self._lease_ends if self._lease is not None else self._ends

    def look(self, fits: Callable[[], bool]) -> str | None:
        """Return what is to be reported since this was last asked, which the log has, too.

        :param fits: tells whether any Workload of its waits that could be admitted.
        :return: None for nothing.
        """
        now = self._handle.now
        self._look_at_pods()
        if self._lease is not None or self._gone or not self._foreign:
            self._fits_since = None
        elif now >= self._asked + _PAUSE:
            self._asked = now
            since = now if self._fits_since is None else self._fits_since
            self._fits_since = since if fits() else None
        text = self.at_work
        self._gone = self._gone or (self._lease is None and self._was_here and not text)
        if text == self._reported:
            return None
        before, self._reported = self._reported, text
        if before and text:
            return None
        if text:
            _log.warning("%s", text)
            return text
        why = "renews its Lease no more" if self._lease is not None else "lets jobs wait"
        text = f"Kueue's manager is gone, as it {why}: bayplan admits"
        _log.warning("%s", text)
        return text

    def _look_at_pods(self) -> None:
        """Note which pods of managers are ready: no event tells that one has become so."""
        ready = frozenset(uid for uid, pod in self._pods.items() if is_ready(pod.pod))
        if ready - self._ready:
            self._did, self._gone = self._handle.now, False
        self._ready = ready


def _owner_kind(workload: KueueWorkload) -> str:
    owners = workload.metadata.owner_references
    return next((one.kind for one in owners if one.controller), "")
