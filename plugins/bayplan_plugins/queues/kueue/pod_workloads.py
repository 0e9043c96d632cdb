"""The workloads of pods: those of a job, of a pod group, or one for each other pod with a queue.

Each is a Workload object. What runs although nobody has made one is counted by the nodes that it
has.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bayplan import Handle, PodInfo
from bayplan.api import OwnerReference, Pod
from bayplan.api.kueue import (
    AssignedPodSet,
    KueueWorkload,
    KueueWorkloadStatus,
    QuotaAdmission,
    ResourceFlavor,
)
from bayplan.api.resources import effective_requests
from bayplan.api.times import seconds_of
from bayplan.cluster.protocol import TemplateSource
from bayplan.dialects.kueue import GROUP_MARK, group_of, total_of
from bayplan.dialects.queued_job_checks import GATES_ANNOTATION, gates_of
from bayplan.dialects.queued_jobs import QUEUE_LABEL, is_part
from bayplan.queues.workload_owners import is_lone
from bayplan_plugins.queues.kueue import pod_groups
from bayplan_plugins.queues.kueue.admission import Admission
from bayplan_plugins.queues.kueue.amounts import quantity_of
from bayplan_plugins.queues.kueue.conditions import (
    Reason,
    evicted,
    finished,
    has_quota,
    is_true,
    pending,
    reserved,
)
from bayplan_plugins.queues.kueue.following import follow_from_first_queue
from bayplan_plugins.queues.kueue.gates import is_gated
from bayplan_plugins.queues.kueue.job_workloads import (
    JobWorkloads,
    is_of_pod,
)
from bayplan_plugins.queues.kueue.lone_workloads import pods_of
from bayplan_plugins.queues.kueue.managed_jobs import ManagedJobs, own_queue
from bayplan_plugins.queues.kueue.part_workloads import PartWorkloads
from bayplan_plugins.queues.kueue.pod_groups import with_replacements
from bayplan_plugins.queues.kueue.pods_to_come import JOB_LABEL, PodToCome, Wanted
from bayplan_plugins.queues.kueue.released import Released
from bayplan_plugins.queues.kueue.slices import unfinished
from bayplan_plugins.queues.kueue.store import Store
from bayplan_plugins.queues.kueue.workload_making import WorkloadMaker
from bayplan_plugins.queues.kueue.workloads import local_queue_key

__all__ = ["PodWorkloads", "pod_set_pointer"]

_NO_PODS = "Scaled to zero: it needs no quota"


class PodWorkloads:
    """Follows the pods of workloads, and keeps admission in step with them and with jobs."""

    def __init__(self, handle: Handle, jobs: JobWorkloads, managed: ManagedJobs) -> None:
        self._handle = handle
        self._jobs = jobs
        self._managed = managed
        self._members: dict[str, dict[str, PodInfo]] = {}
        self._present: dict[str, int] = {}
        """How many of them there are, not counting those that nothing but finalizers keeps."""
        self._ended: dict[str, dict[str, Pod]] = {}
        """By the keys of workloads that are no job's, and uid, their pods that have ended."""
        self._own_keys: dict[str, str] = {}
        """By uid, the keys of the workloads of pods that are no job's."""
        self._key_by_owner: dict[str, str] = {}
        """By the uids of pods, the keys of the Workloads that they control."""
        self._taken: dict[str, str] = {}
        """By key, why a workload has no Workload yet."""
        self._set_of: dict[str, Mapping[str, str]] = {}
        self._nameless: dict[str, PodInfo] = {}
        """By uid, the pods that wait as they name no queue, and are no job's."""
        self._changed: dict[str, None] = {}
        self._orphans: dict[str, dict[str, PodInfo]] = {}
        """By the uids of their owners, pods of jobs that are not known."""
        self._released = Released(handle)
        self._parts = PartWorkloads(handle, managed, self._part_changed)
        self._maker = WorkloadMaker(handle, managed, self._parts)
        if managed.without_queue:
            self._following = handle.snapshot.on_living(self._lives)
        else:
            self._following = follow_from_first_queue(handle.snapshot, self._lives)
        handle.snapshot.on_ended(self._has_ended)
        handle.snapshot.on_object(KueueWorkload, self._workload_changed)

    def key_of(self, pod: PodInfo) -> str:
        """Return the key of a pod's workload."""
        home = self._jobs.home_of_pod(pod)
        if home is not None:
            return self._jobs.current(home)
        known = self._own_keys.get(pod.uid)
        return known if known is not None else self._own_key(pod)

    def _own_key(self, pod: PodInfo) -> str:
        if pod.part is not None:
            return self._parts.key_of(pod.namespace, pod.part)
        known = self._key_by_owner.get(pod.uid) if pod.gang is None else None
        return known if known is not None else pod_groups.key_of(pod)

    def owns(self, key: str) -> bool:
        """Tell whether a workload is that of pods that are no job's."""
        known = key in self._members or key in self._ended or self._parts.knows(key)
        return known and not self._jobs.knows(key)

    def name_of(self, key: str) -> str:
        """Return ``namespace/name`` of the pod, the group or the part that a workload is of."""
        if self._parts.knows(key):
            return self._parts.name_of(key)
        pod = next(iter(self._members.get(key, {}).values()), None)
        if pod is not None:
            return pod.gang or pod.key
        seen = self._handle.snapshot.objects(KueueWorkload).get(key)
        owners = seen.metadata.owner_references if seen is not None else ()
        name = next((one.name for one in owners if one.controller), "")
        return f"{key.partition('/')[0]}/{name}" if name else key

    def queue_of(self, pod: PodInfo) -> str | None:
        """Return the name of the LocalQueue of a pod, or of the job that it belongs to."""
        home = self._jobs.home_of_pod(pod)
        job = self._jobs.jobs.get(home) if home is not None else None
        if home is not None and job is not None:
            # What was admitted stays in its queue, whatever the label says by now.
            objects = self._handle.snapshot.objects(KueueWorkload)
            running = objects.get(self._jobs.current(home))
            if running is not None and has_quota(running) and not job.suspended:
                return running.spec.queue_name or None
        if job is not None:
            return job.obj.metadata.labels.get(QUEUE_LABEL) or None
        return (self._managed.queue_of_pod(pod) or None) if self._is_queued(pod) else None

    def is_held(self, pod: PodInfo) -> bool:
        """Tell whether a pod waits because it, or its job, names no queue."""
        home = self._jobs.home_of_pod(pod)
        if home is not None:
            job = self._jobs.jobs.get(home)
            return job is not None and not job.obj.metadata.labels.get(QUEUE_LABEL)
        return not self._managed.queue_of_pod(pod) and self._managed.holds_pod(pod)

    def nameless(self) -> Sequence[PodInfo]:
        """Return the pods that wait as they name no queue, and are no job's."""
        return list(self._nameless.values())

    def _is_queued(self, pod: PodInfo) -> bool:
        """Tell whether a pod that is no job's waits for a queue, whether it names one or not."""
        if own_queue(pod):
            return self._managed.selects(pod.namespace)
        return self._managed.holds_pod(pod)

    def members(self, key: str) -> Sequence[PodInfo]:
        """Return the living pods of a workload, and of the other slices of its job."""
        return list(self._members.get(self._jobs.home_of(key), {}).values())

    def ended_of(self, key: str) -> Mapping[str, Pod]:
        """Return the pods of a workload that have ended, by uid; none of a job's."""
        return self._ended.get(key, {})

    def staying(self, key: str) -> list[PodInfo]:
        """Return the pods of a workload that do not end: what ends is replaced at once."""
        return [pod for pod in self.members(key) if not pod.pod.metadata.deletion_timestamp]

    def would_grow(self, pod: PodInfo) -> bool:
        """Tell whether an elastic job has no such pod, but would if it grew."""
        home = self._jobs.home_of_pod(pod)
        job = self._jobs.jobs.get(home) if home is not None else None
        if home is None or job is None or not job.elastic or job.suspended:
            return False
        return pod.key not in self._members.get(home, {})

    def within(self, key: str, counts: Mapping[str, int]) -> list[PodInfo]:
        """Return as many pods of a workload as it was admitted with, in rank order.

        Those with nodes come first, then those that were let go to get one; none that ends.

        :param counts: the number of pods of each pod set.
        """
        members, left = self.staying(key), Counter(counts)
        if len(members) <= left.total():
            return members
        placed = self._handle.snapshot.placed
        members.sort(key=lambda one: (one.key not in placed, is_gated(one), one.rank or 0, one.key))
        sets = [(pod, self.pod_set_of(pod)) for pod in members]
        found, others = [], []
        for pod, name in sets:
            if name not in counts:
                others.append(pod)
            elif left[name] > 0:
                left[name] -= 1
                found.append(pod)
        return [*found, *others[: max(0, left.total())]]

    def pod_set_of(self, pod: PodInfo) -> str:
        """Return the name of the pod set that a pod belongs to; "" before its workload is made."""
        home = self._jobs.home_of_pod(pod)
        if home is not None and home in self._jobs.jobs:
            return self._jobs.pod_set_of(pod, home)
        key = self.key_of(pod)
        return self._set_of.get(key, {}).get(pod.key, "")

    def without_node(self, key: str, counts: Mapping[str, int] | None = None) -> list[PodInfo]:
        """Return the pods of a workload that have no node in the snapshot.

        :param counts: the number of pods of each pod set, if only so many count.
        """
        placed = self._handle.snapshot.placed
        pods = self.members(key) if counts is None else self.within(key, counts)
        return [pod for pod in pods if pod.key not in placed]

    def to_come(
        self, key: str, counts: Mapping[str, int], flavors: Mapping[str, Sequence[ResourceFlavor]]
    ) -> list[PodToCome]:
        """Return the pods that a job does not have yet.

        :param counts: the number of pods of each pod set.
        :param flavors: the flavors of each pod set.
        """
        home = self._jobs.home_of(key)
        job = self._jobs.jobs.get(home)
        if job is None:
            seen = self._handle.snapshot.objects(KueueWorkload).get(key)
            alone = seen is not None and not self.owns(key) and is_lone(seen)
            if seen is None or not alone:
                return []
            room = int(self._handle.snapshot.nodes.allocatable("pods").sum())
            return pods_of(seen, counts, flavors, room)
        if job.state.end is not None:
            return []
        present: dict[str, Counter[str]] = {name: Counter() for name in counts}
        for pod in self.staying(key):
            name = self._jobs.pod_set_of(pod, home)
            if name in present:
                present[name][pod.labels.get(JOB_LABEL, "")] += 1
        wanted: dict[str, Wanted] = {}
        for name, count in counts.items():
            there, spare = present[name], job.state.spare.get(name, 0)
            left = max(0, count - spare - there.total())
            of_set = tuple(flavors.get(name, ()))
            wanted[name] = Wanted(count, left, tuple(there.items()), of_set)
        return self._jobs.to_come(home, wanted)

    def is_of_job(self, key: str) -> bool:
        """Tell whether a workload is a job's, which may have pods to come."""
        return self._jobs.job_of(key) is not None

    def home_of(self, key: str) -> str:
        """Return what all slices of a job share; the key itself for other workloads."""
        return self._jobs.home_of(key)

    def with_node(self, key: str) -> list[PodInfo]:
        """Return the pods of a workload that have a node in the snapshot."""
        placed = self._handle.snapshot.placed
        return [pod for pod in self.members(key) if pod.key in placed]

    def holding(self, key: str, now: float) -> list[PodInfo]:
        """Return the pods of a workload that have a node, and may still be there.

        One that should have ended by now is on a node that is silent; nothing else comes there.

        :param now: seconds since 1970.
        """
        return [pod for pod in self.with_node(key) if now < pod_groups.last_until(pod.pod)]

    def end_of_holding(self, key: str) -> float | None:
        """Return when the last pod of an evicted workload ends, in seconds since 1970."""
        ends = (pod_groups.last_until(pod.pod) for pod in self.with_node(key))
        until = max(ends, default=math.inf)
        return until if until < math.inf else None

    def missing(self, pod: PodInfo) -> str | None:
        """Return why a pod, or its group, is no workload yet; None for nothing."""
        if self._jobs.home_of_pod(pod) is not None:
            return None
        key = self.key_of(pod)
        if problem := pod.problem or self._parts.problem_of(key):
            return problem
        gates = gates_of(pod.annotations)
        if key in self._taken or gates:
            return self._taken.get(key) or f"{GATES_ANNOTATION}: waits for {', '.join(gates)}"
        gang = self._handle.gang(pod.gang).gang if pod.gang is not None else None
        present = self._present_of(key)
        if gang is None or present >= gang.min_member:
            return None
        return f"its group has {present} of {gang.min_member} pods"

    def _present_of(self, key: str) -> int:
        """Return how many pods a workload has; each of them asks."""
        if key not in self._present:
            runs = pod_groups.runs_or_succeeded
            self._present[key] = sum(runs(one.pod) for one in self.members(key))
        return self._present[key]

    def owners_of(self, key: str) -> list[OwnerReference]:
        """Return the references to the pods of a workload that is no job's, or to their owner."""
        if self._parts.knows(key):
            return [self._parts.owner_of(key)]
        members = self.members(key)
        pods = [*(one.pod for one in members), *self._ended.get(key, {}).values()]
        alone = bool(members) and members[0].gang is None
        return [pod_groups.owner_of(one, alone) for one in pods]

    def labels_of_part(self, key: str) -> Mapping[str, str]:
        """Return the labels that the pods of a part have of its object; {} for other workloads."""
        return self._parts.labels_of(key) if self._parts.knows(key) else {}

    def excess(self, workload: KueueWorkload) -> list[Pod]:
        """Return the pods of a group of Kueue's beyond those that it has, which are deleted."""
        members = self.members(workload.key)
        if not members or not pod_groups.is_group_of(members[0]):
            return []
        pods = [*(one.pod for one in members), *self._ended.get(workload.key, {}).values()]
        return pod_groups.excess_of(pods, workload.spec.pod_sets if has_quota(workload) else ())

    def sources_of(self, workload: KueueWorkload) -> dict[str, TemplateSource]:
        """Return which pods the pod sets of a workload that is no job's are copies of."""
        key = workload.key
        if self._parts.knows(key):
            of_sets = self._parts.sources_of(key)
            return {
                pod_set_pointer(index): of_sets[one.name]
                for index, one in enumerate(workload.spec.pod_sets)
                if one.name in of_sets
            }
        members = self.members(key)
        first = {self.pod_set_of(one): one for one in reversed(members)}
        return {
            pod_set_pointer(index): TemplateSource(Pod, first[one.name].key)
            for index, one in enumerate(workload.spec.pod_sets)
            if one.name in first
        }

    # Following ---------------------------------------------------------------------------

    def _lives(self, pod: PodInfo, added: bool) -> None:
        job = self._jobs.home_of_pod(pod)
        self._jobs.lives(pod, added)
        self._note_orphan(pod, added and job is None)
        known = not added and pod.uid in self._own_keys
        if job is None and not known and not self._is_queued(pod):
            return
        if added and job is None and not own_queue(pod):
            self._nameless[pod.uid] = pod
        else:
            self._nameless.pop(pod.uid, None)
        key = self._place_of(pod, added) if job is None else job
        members = self._members.setdefault(key, {})
        self._present.pop(key, None)
        if added:
            members[pod.key] = pod
        else:
            members.pop(pod.key, None)
            if not members:
                del self._members[key]
        self._changed[key] = None

    def _place_of(self, pod: PodInfo, added: bool) -> str:
        """Return the key of the workload that a pod belongs to from now on, or did so far."""
        if not added:
            return self._own_keys.pop(pod.uid, None) or self._own_key(pod)
        key = self._own_keys[pod.uid] = self._own_key(pod)
        return key

    def _has_ended(self, pod: PodInfo, there: bool) -> None:
        """Note a pod that has ended: its Workload is finished, or waits for another pod."""
        if self._jobs.home_of_pod(pod) is not None or not self._is_queued(pod):
            return
        key = self._own_key(pod)
        if there and pod.pod.status.phase in ("Succeeded", "Failed"):
            self._ended.setdefault(key, {})[pod.uid] = pod.pod
        elif key in self._ended:
            self._ended[key].pop(pod.uid, None)
            if not self._ended[key]:
                del self._ended[key]
        self._changed[key] = None

    def _workload_changed(self, old: KueueWorkload | None, new: KueueWorkload | None) -> None:
        one = new if new is not None else old
        assert one is not None, "a change is of something"
        if one.key in self._members or one.key in self._ended:
            self._changed[one.key] = None
        owner = next((o.uid for o in one.metadata.owner_references if o.controller), "")
        if not is_of_pod(one):
            return
        if new is None:
            self._key_by_owner.pop(owner, None)
        elif self._key_by_owner.get(owner) != one.key:
            self._key_by_owner[owner] = one.key
            self._move(owner, one.key)

    def _look_again(self) -> None:
        """Look again which jobs and pods wait for queues, where that may have changed."""
        namespaces = self._managed.take_changed()
        if not namespaces:
            return
        self._jobs.look_again(namespaces)
        if not self._following.listens:
            # Nobody would say when they end.
            return
        for pod in list(self._handle.snapshot.living.values()):
            if pod.namespace in namespaces and self._jobs.home_of_pod(pod) is None:
                self._lives(pod, added=False)
                self._lives(pod, added=True)

    def _part_changed(self, key: str) -> None:
        self._changed[key] = None

    def _move(self, uid: str, key: str) -> None:
        """Have a pod belong to the Workload that it controls, whatever name that has."""
        before = self._own_keys.get(uid, key)
        pods = [pod for pod in self._members.get(before, {}).values() if pod.uid == uid]
        for pod in pods if before != key else ():
            self._lives(pod, added=False)
            self._lives(pod, added=True)

    def _note_orphan(self, pod: PodInfo, alone: bool) -> None:
        """Note a pod whose owner may be a job's that is seen later."""
        owner = next((one for one in pod.pod.metadata.owner_references if one.controller), None)
        if owner is None:
            return
        if alone and is_part(pod.pod.metadata):
            self._orphans.setdefault(owner.uid, {})[pod.key] = pod
        elif owner.uid in self._orphans:
            self._orphans[owner.uid].pop(pod.key, None)
            if not self._orphans[owner.uid]:
                del self._orphans[owner.uid]

    def _adopt(self) -> None:
        """Count pods for their jobs, which have become known after them."""
        adopted, self._jobs.adopted = self._jobs.adopted, []
        for uid in adopted:
            for pod in self._orphans.pop(uid, {}).values():
                own = self._own_keys.pop(pod.uid, "")
                if self._members.get(own, {}).pop(pod.key, None) is not None:
                    self._present.pop(own, None)
                    self._changed[own] = None
                self._lives(pod, added=True)

    def changed(self, key: str) -> None:
        """Have a workload looked at again."""
        home = self._jobs.home_of(key)
        (self._jobs.changed if home in self._jobs.jobs else self._changed)[home] = None

    def queues_changed(self, keys: Iterable[str]) -> None:
        """Have workloads compared with their queues again, if their pods or jobs are there."""
        for key in keys:
            home = self._jobs.home_of(key)
            if home in self._jobs.jobs:
                self._jobs.changed[home] = None
            elif home in self._members or home in self._ended:
                self._changed[home] = None

    def all_changed(self) -> None:
        """Have every workload compared with its queue again."""
        self._changed |= dict.fromkeys((*self._members, *self._ended))
        self._jobs.all_changed()

    def refresh(self, admission: Admission, now: float) -> list[str]:
        """Bring admission in step with the pods that changed; return the keys of their workloads.

        :param now: seconds since 1970.
        """
        self._look_again()
        jobs = self._refresh_jobs(admission, now)
        self._adopt()
        changed, self._changed = self._changed, {}
        for key in changed:
            if not self._jobs.knows(key):
                self._refresh_own(key, admission, now)
        return [*changed, *jobs]

    def _refresh_own(self, key: str, admission: Admission, now: float) -> None:
        """Bring admission in step with a workload that is no job's."""
        members, ended = self.members(key), self._ended.get(key, {})
        stored = admission.store.workloads.get(key)
        known = self._jobs.known(key, stored if stored is not None else self._released.get(key))
        if stored is None and known is not None and self._begins_again(key, known):
            # Its quota went with its pods: others may have it by now.
            known = msgspec.structs.replace(known, status=KueueWorkloadStatus())
        self._taken.pop(key, None)
        if self._parts.is_empty(key):
            self._scaled_to_zero(key, known, admission, now)
        elif not members and not ended:
            self._set_of.pop(key, None)
            if self._parts.knows(key):
                self._without_pods(key, known, admission, now)
            elif known is None or not (_is_anothers(known) or is_lone(known)):
                _drop(admission, key, now)
        elif known is not None and self._is_taken(key, known):
            _drop(admission, key, now)
        elif known is not None and is_true(known, "Finished"):
            self._leave_finished(key, known, admission, now)
        elif (end := self._end_of(key)) is not None:
            if known is not None:
                admission.set(finished(known, *end, now), now)
            else:
                del self._ended[key]
        elif (known is not None and has_quota(known)) or (
            members and self.missing(members[0]) is None
        ):
            try:
                self._update(admission, key, known, now)
            except ValueError as exc:
                self._taken[key] = str(exc)

    def _scaled_to_zero(
        self, key: str, known: KueueWorkload | None, admission: Admission, now: float
    ) -> None:
        """Have the Workload of a part without pods say so; those that still end keep its quota."""
        if known is None or self.with_node(key):
            return
        requests = known.status.resource_requests
        admission.set(pending(known, Reason.ON_HOLD, _NO_PODS, requests, now), now)
        self._released.report([key], admission.store)
        _drop(admission, key, now)

    def _without_pods(
        self, key: str, known: KueueWorkload | None, admission: Admission, now: float
    ) -> None:
        """Keep the quota of a part whose pods are made again; forget one that is gone."""
        if known is not None and self._parts.stays(key, known):
            if known != admission.store.workloads.get(key):
                admission.set(known, now)
            return
        if self._parts.is_gone(key):
            self._parts.delete(key)
        else:
            admission.release(key, now)
            self._released.report([key], admission.store)
        _drop(admission, key, now)
        if known is None:
            self._parts.forget(key)

    def _is_taken(self, key: str, known: KueueWorkload) -> bool:
        """Tell whether a Workload of this name is another's, or of pods that are gone."""
        name = key.partition("/")[2]
        if _is_anothers(known):
            self._taken[key] = f'another job has a Workload "{name}"'
        elif self._is_of_others(key, known) and not self._begins_again(key, known):
            self._taken[key] = f'the Workload "{name}" of pods that are gone is being deleted'
        return key in self._taken

    def _is_of_others(self, key: str, known: KueueWorkload) -> bool:
        """Tell whether a Workload is of pods that are gone, and of none that are there."""
        uids = {one.uid for one in self.members(key)}.union(self._ended.get(key, ()))
        return pod_groups.without_owner(known.metadata, uids)

    def _begins_again(self, key: str, known: KueueWorkload) -> bool:
        """Tell whether a gang of another system has new pods after all of its pods have gone."""
        first = next(iter(self.members(key)), None)
        is_gang = first is not None and bool(first.gang) and not pod_groups.is_group_of(first)
        return is_gang and self._is_of_others(key, known)

    def _leave_finished(
        self, key: str, known: KueueWorkload, admission: Admission, now: float
    ) -> None:
        """Forget a Workload that has finished, once that is written; a gang may begin again."""
        seen = self._handle.snapshot.objects(KueueWorkload).get(key)
        members = self.members(key)
        if members and not pod_groups.is_group_of(members[0]):
            self._ended.pop(key, None)
            again = msgspec.structs.replace(known, status=KueueWorkloadStatus())
            self._update(admission, key, again, now)
        elif seen is None or is_true(seen, "Finished"):
            self._ended.pop(key, None)
            _drop(admission, key, now)
            if members:
                self._taken[key] = "its group has finished"

    def _end_of(self, key: str) -> tuple[str, str] | None:
        """Return reason and message of the end of a workload, None while it has not ended."""
        members, ended = self.members(key), self._ended.get(key, {})
        if not ended or self._parts.knows(key):
            # What owns parts runs until it is deleted.
            return None
        pods = [*(one.pod for one in members), *ended.values()]
        is_group = bool(group_of(pods[0].metadata))
        total = total_of(pods[0].metadata) if is_group else None
        return pod_groups.end_of(pods, is_group or len(pods) > 1, total)

    def _refresh_jobs(self, admission: Admission, now: float) -> list[str]:
        """Bring admission in step with the jobs that changed, or whose pods did.

        :return: the keys of their Workloads.
        """
        jobs, keys = self._jobs, []
        homes = jobs.changed | dict.fromkeys(filter(jobs.knows, self._changed))
        jobs.changed.clear()
        for home in filter(jobs.knows, homes):
            keys += jobs.slices_of(home)
            if home in jobs.nameless and self._goes_on(home):
                jobs.leave(home)
                continue
            if home in jobs.jobs and jobs.jobs[home].problem:
                self._stop_waiting(home, admission, now)
            if home in jobs.jobs and self._is_refused(home, admission.store):
                if jobs.jobs[home].state.on_hold:
                    self._put_on_hold(home, admission, now)
                self._released.report(jobs.slices_of(home), admission.store)
                jobs.refuse(home)
            if home in jobs.jobs:
                for workload in self._of_job(home, admission.store, now):
                    keys.append(workload.key)
                    if workload != admission.store.workloads.get(workload.key):
                        admission.set(workload, now)
            elif not self.members(home):
                # Pods that still end keep the quota: others would have to share it with them.
                for key in jobs.slices_of(home):
                    _drop(admission, key, now)
                self._changed.pop(home, None)
                jobs.forget(home)
        return keys

    def _goes_on(self, home: str) -> bool:
        """Tell whether a job ran without a queue before its namespace had one for it."""
        if self._managed.without_queue or self._jobs.jobs[home].suspended:
            return False
        return bool(self.with_node(home))

    def _stop_waiting(self, home: str, admission: Admission, now: float) -> None:
        """Take back the quota of a job that may not be queued, as long as it does not run."""
        job = self._jobs.jobs[home]
        if self.with_node(home) or not (job.suspended or job.state.on_hold):
            return
        for key in self._jobs.slices_of(home):
            one = admission.store.workloads.get(key)
            if one is not None and has_quota(one) and not is_true(one, "Evicted"):
                admission.set(evicted(one, "NotQueued", job.problem, now), now)

    def _put_on_hold(self, home: str, admission: Admission, now: float) -> None:
        """Have the Workloads of a job say that it has no quota until it is mended."""
        for key in self._jobs.slices_of(home):
            one = admission.store.workloads.get(key)
            if one is not None and not is_true(one, "Finished"):
                requests = one.status.resource_requests
                admission.set(pending(one, Reason.ON_HOLD, "Job is on hold", requests, now), now)

    def _is_refused(self, home: str, store: Store) -> bool:
        """Tell whether a job may not be queued; what has quota keeps it until it is stopped."""
        if not self._jobs.jobs[home].problem:
            return False
        objects = self._handle.snapshot.objects(KueueWorkload)
        known = [store.workloads.get(key) or objects.get(key) for key in self._jobs.slices_of(home)]
        return not any(one is not None and has_quota(one) for one in known)

    def _of_job(self, home: str, store: Store, now: float) -> list[KueueWorkload]:
        """Return the Workloads of a job as they have to be."""
        job = self._jobs.jobs[home]
        found = self._jobs.workloads_of(home, store.workloads, now)
        if (
            not found
            or job.suspended
            or job.state.end is not None
            or any(map(has_quota, unfinished(found)))
        ):
            return found
        # It ran before anybody asked: what runs has its quota.
        (waiting,) = [one for one in found if one.key == self._jobs.current(home)]
        quota = _found_running(self._handle, store, waiting, self.with_node(home))
        if quota is None:
            return found
        held = reserved(waiting, quota, (), now)
        return [held if one is waiting else one for one in found]

    def _update(
        self, admission: Admission, key: str, known: KueueWorkload | None, now: float
    ) -> None:
        members = [one for one in self.members(key) if pod_groups.runs_or_succeeded(one.pod)]
        made = None
        if members:
            made = self._maker.make(key, members, self.ended_of(key), self.owners_of(key))
        if made is not None:
            # Those of roles keep their names when others of the group are replaced.
            before = self._set_of.get(key, {})
            self._set_of[key] = {pod: before.get(pod, name) for pod, name in made.set_of.items()}
        if known is not None and self._parts.knows(key) and not self.with_node(key):
            known = self._parts.as_asked(key, known)
        if known is not None and has_quota(known):
            # What was admitted stays as it is; pods that are replaced use the same quota.
            workload = self._followed(key, known, now)
        elif made is not None:
            workload = self._waiting(admission, key, made.workload, known, now)
        else:
            return
        if workload != admission.store.workloads.get(key):
            admission.set(workload, now)

    def _followed(self, key: str, known: KueueWorkload, now: float) -> KueueWorkload:
        """Return a workload with quota with what has become of the pods of its group."""
        is_group = GROUP_MARK in known.metadata.annotations.items()
        if not is_group or self._parts.knows(key):
            return known
        pods = [*(one.pod for one in self.members(key)), *self._ended.get(key, {}).values()]
        spare = pod_groups.reclaimable(pods)
        status = msgspec.structs.replace(known.status, reclaimable_pods=spare)
        return with_replacements(msgspec.structs.replace(known, status=status), pods, now)

    def _waiting(
        self,
        admission: Admission,
        key: str,
        made: KueueWorkload,
        known: KueueWorkload | None,
        now: float,
    ) -> KueueWorkload:
        """Return a workload without quota as its pods are, or with that of pods that run."""
        if known is not None:
            spec = msgspec.structs.replace(
                made.spec, active=known.spec.active, preemption_gates=known.spec.preemption_gates
            )
            made = KueueWorkload(known.metadata, spec, known.status)
        running = self.holding(key, now)
        found = _found_running(self._handle, admission.store, made, running)
        if found is None:
            return made
        return reserved(made, found, (), _running_since(running, now))


def pod_set_pointer(index: int) -> str:
    """Return the JSON pointer of the template of a Workload's pod set."""
    return f"/spec/podSets/{index}/template"


def _is_anothers(workload: KueueWorkload) -> bool:
    """Tell whether a Workload is of something that is neither a pod nor a group of pods."""
    if GROUP_MARK in workload.metadata.annotations.items():
        return False
    return any(one.controller and one.kind != "Pod" for one in workload.metadata.owner_references)


def _running_since(running: Sequence[PodInfo], now: float) -> float:
    """Return when the first of some pods started, in seconds since 1970; now if none has."""
    stated = (pod.pod.status.start_time for pod in running)
    return min((seconds_of(at) for at in stated if at), default=now)


def _drop(admission: Admission, key: str, now: float) -> None:
    """Give back the quota of a workload that is gone with its pods."""
    known = admission.store.workloads.get(key)
    if known is not None:
        admission.delete(known, now)


def _found_running(
    handle: Handle, store: Store, workload: KueueWorkload, running: Sequence[PodInfo]
) -> QuotaAdmission | None:
    """Return the quota of pods that have nodes already, by the flavors of these nodes."""
    local = store.local_queues.get(local_queue_key(workload))
    queue = local.spec.cluster_queue if local is not None else ""
    if not running or queue not in store.cluster_queues:
        return None
    node = handle.snapshot.node(handle.snapshot.placed[running[0].key][1])
    flavors = _flavors_on(store, queue, node.metadata.labels if node is not None else {})
    sets = []
    for one in workload.spec.pod_sets:
        requests = effective_requests(one.template.spec)
        known = {name: flavors[name] for name in requests if name in flavors}
        usage = {name: quantity_of(name, requests[name] * one.count) for name in known}
        sets.append(AssignedPodSet(one.name, known, usage, one.count))
    return QuotaAdmission(queue, tuple(sets))


def _flavors_on(store: Store, queue: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Return, by resource, the first flavor of a queue that has a node with these labels."""
    found: dict[str, str] = {}
    for group in store.cluster_queues[queue].spec.resource_groups:
        for quotas in group.flavors:
            flavor = store.flavors.get(quotas.name)
            if flavor is not None and flavor.spec.node_labels.items() <= labels.items():
                for resource in group.covered_resources:
                    found.setdefault(resource, quotas.name)
    return found
