"""Kueue's finalizers: they go when its manager would have removed them.

Pods of groups get theirs at creation, as the group counts what has ended; all others are left by
Kueue's manager. Without their manager they would keep objects, and their namespaces, for ever. So
would Workloads whose job was deleted without what it owns: they are finished.
"""

from __future__ import annotations

from collections.abc import Iterable

from bayplan import Handle, PodInfo
from bayplan.api import ApiObject, Pod, Topology
from bayplan.api.kueue import AdmissionCheck, ClusterQueue, KueueWorkload, ResourceFlavor
from bayplan.api.object_key import object_key
from bayplan.cluster.protocol import PatchFields, PatchStatus, Write
from bayplan.dialects.kueue import JOB_UID, POD_FINALIZER
from bayplan.errors import ClusterError, Conflict, NotFound
from bayplan_plugins.queues.kueue.conditions import finished, is_true
from bayplan_plugins.queues.kueue.pod_groups import is_group_of, kept_of
from bayplan_plugins.queues.kueue.pod_workloads import PodWorkloads
from bayplan_plugins.queues.kueue.store import Store

__all__ = ["IN_USE", "Finalizers"]

IN_USE = "kueue.x-k8s.io/resource-in-use"
"""The finalizer that Kueue's manager, and nobody else, gives its objects."""
_FINALIZERS = "/metadata/finalizers"
_AGAIN = 60.0
"""Seconds after which a write that was refused is repeated."""
_KINDS: tuple[type[ApiObject], ...] = (
    AdmissionCheck,
    ClusterQueue,
    KueueWorkload,
    ResourceFlavor,
    Topology,
)


_NO_OWNER = "OwnerNotFound", "The workload's owner no longer exists"


class Finalizers:
    """Follows what waits for a finalizer: objects that are deleted, and what has ended."""

    def __init__(self, handle: Handle, pods: PodWorkloads) -> None:
        self._handle = handle
        self._pods = pods
        self._going: dict[tuple[type[ApiObject], str], ApiObject] = {}
        """Objects with a finalizer that are deleted, and Workloads that have finished."""
        self._ended: dict[str, PodInfo] = {}
        """By uid, pods with a finalizer that have ended, and are looked at."""
        self._kept: dict[str, dict[str, PodInfo]] = {}
        """By the keys of their groups, and uid, pods that have ended and still count there."""
        self._orphans: dict[str, KueueWorkload] = {}
        """Workloads without the job that they were of."""
        self._not_before: dict[str, float] = {}
        """By the uids of objects, when a write that is under way or was refused is repeated."""
        for type_ in _KINDS:
            handle.snapshot.on_object(type_, self._object_changed)
        handle.snapshot.on_living(self._lives)
        handle.snapshot.on_ended(self._has_ended)

    def _object_changed(self, old: ApiObject | None, new: ApiObject | None) -> None:
        one = new if new is not None else old
        assert one is not None, "a change is of something"
        place, meta = (type(one), object_key(one)), one.metadata
        goes = meta.deletion_timestamp is not None or _has_finished(one)
        if new is not None and goes and IN_USE in meta.finalizers:
            self._going[place] = new
        else:
            self._going.pop(place, None)
            self._not_before.pop(meta.uid, None)
        if isinstance(one, KueueWorkload):
            self._workload_changed(one, new is not None)

    def _workload_changed(self, one: KueueWorkload, there: bool) -> None:
        self.look_again([one.key])
        if there and _is_orphan(one):
            self._orphans[one.key] = one
        else:
            self._orphans.pop(one.key, None)

    def _lives(self, pod: PodInfo, added: bool) -> None:
        """Note a pod that nothing but finalizers keeps on its node."""
        kept = pod.pod.metadata.deletion_grace_period_seconds == 0
        if kept or self._ended or self._kept:
            self._note(pod, added and kept)

    def _has_ended(self, pod: PodInfo, there: bool) -> None:
        self._note(pod, there)

    def _note(self, pod: PodInfo, ended: bool) -> None:
        of_group = self._kept.get(pod.gang or "", {})
        before = of_group.pop(pod.uid, None) or self._ended.pop(pod.uid, None)
        if ended and POD_FINALIZER in pod.pod.metadata.finalizers:
            self._ended[pod.uid] = pod
        elif before is not None:
            self._not_before.pop(pod.uid, None)

    def look_again(self, keys: Iterable[str]) -> None:
        """Look again which pods some groups need, by the keys of their Workloads."""
        for key in keys if self._kept else ():
            self._ended |= self._kept.pop(key, {})

    def release(self, store: Store) -> None:
        """Remove the finalizers of what nothing needs any more.

        :param store: says what still has quota, and what names what.
        """
        for (type_, key), obj in list(self._going.items()):
            if not _is_used(obj, store):
                self._remove(type_, key, obj, IN_USE)
        self._release_pods(store)
        for key, workload in list(self._orphans.items()):
            if is_true(workload, "Finished"):
                self._remove(KueueWorkload, key, workload, IN_USE)
            else:
                ended = finished(workload, *_NO_OWNER, self._handle.unix_time)
                self._write(workload, PatchStatus(KueueWorkload, key, ended.status))

    def _release_pods(self, store: Store) -> None:
        """Remove the finalizers of the pods that have ended, but of those that a group needs."""
        of_groups: dict[str, list[PodInfo]] = {}
        for pod in list(self._ended.values()):
            if pod.gang is not None and is_group_of(pod):
                of_groups.setdefault(pod.gang, []).append(pod)
            else:
                self._remove(Pod, pod.key, pod.pod, POD_FINALIZER)
        for key, pods in of_groups.items():
            needed = self._needed_of(key, pods, store)
            for pod in pods:
                if pod.uid in needed:
                    self._kept.setdefault(key, {})[pod.uid] = self._ended.pop(pod.uid)
                else:
                    self._remove(Pod, pod.key, pod.pod, POD_FINALIZER)

    def _needed_of(self, key: str, ended: Iterable[PodInfo], store: Store) -> set[str]:
        """Return the uids of the pods that a group needs; none once its Workload is gone."""
        workload = self._handle.snapshot.objects(KueueWorkload).get(key)
        if workload is None or workload.metadata.deletion_timestamp:
            return set()
        there = (*self._pods.members(key), *self._kept.get(key, {}).values(), *ended)
        pods = {one.uid: one.pod for one in there} | dict(self._pods.ended_of(key))
        # Its eviction is known here before it is written.
        return kept_of(store.workloads.get(key, workload), list(pods.values()))

    def _remove(self, type_: type[ApiObject], key: str, obj: ApiObject, finalizer: str) -> None:
        meta = obj.metadata
        left = [one for one in meta.finalizers if one != finalizer]
        self._write(obj, PatchFields(type_, key, meta.uid, {_FINALIZERS: left}))

    def _write(self, obj: ApiObject, write: Write) -> None:
        meta = obj.metadata
        if self._handle.now < self._not_before.get(meta.uid, 0.0):
            return
        self._not_before[meta.uid] = self._handle.now + _AGAIN

        def answered(error: ClusterError | None) -> None:
            if error is None or isinstance(error, NotFound | Conflict):
                self._ended.pop(meta.uid, None)
                self._not_before.pop(meta.uid, None)

        self._handle.submit(write, answered)


def _has_finished(obj: ApiObject) -> bool:
    """Tell whether an object is a Workload whose job has ended: nothing needs it any more."""
    return isinstance(obj, KueueWorkload) and is_true(obj, "Finished")


def _is_orphan(workload: KueueWorkload) -> bool:
    """Tell whether a job was deleted without its Workload, which nobody has finished yet."""
    meta = workload.metadata
    if meta.owner_references or meta.deletion_timestamp is not None or JOB_UID not in meta.labels:
        return False
    return not is_true(workload, "Finished") or IN_USE in meta.finalizers


def _is_used(obj: ApiObject, store: Store) -> bool:
    """Tell whether something still needs an object, as Kueue's manager does."""
    name = obj.metadata.name
    if isinstance(obj, KueueWorkload):
        # One that is deleted while its job runs is made again.
        return False
    if isinstance(obj, ClusterQueue):
        return bool(store.reserving.get(name))
    if isinstance(obj, Topology):
        return any(one.spec.topology_name == name for one in store.flavors.values())
    for queue in store.cluster_queues.values():
        groups, checks = queue.spec.resource_groups, queue.spec.admission_checks_strategy
        if isinstance(obj, ResourceFlavor):
            if any(one.name == name for group in groups for one in group.flavors):
                return True
        elif isinstance(obj, AdmissionCheck):
            if any(rule.name == name for rule in checks.admission_checks):
                return True
    return False
