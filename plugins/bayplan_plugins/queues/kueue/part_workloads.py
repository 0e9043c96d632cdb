"""The Workloads of parts of objects that are never suspended, as of replicas of LeaderWorkerSets.

A StatefulSet is a single part. Each Workload is named as Kueue names it, and lasts as long as its
part: while all pods of that are made again, it keeps its quota.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from bayplan import Handle
from bayplan.api import KINDS, ApiObject, OwnerReference, Pod
from bayplan.api.gang import OwnedPart
from bayplan.api.kueue import KueueWorkload, KueueWorkloadStatus, PodSet
from bayplan.api.meta import ObjectMeta
from bayplan.api.object_key import object_key
from bayplan.api.resources import effective_requests
from bayplan.cluster.protocol import DeleteObject, TemplateSource
from bayplan.dialects.kueue import GROUP_MARK, JOB_UID
from bayplan.dialects.queued_job_checks import PRIORITY_LABEL, QUEUE_LABEL
from bayplan.dialects.queued_parts import (
    QueuedParts,
    kinds_in_parts,
    part_of,
    queued_parts,
    title_of_part,
)
from bayplan_plugins.queues.kueue.conditions import has_quota, is_true
from bayplan_plugins.queues.kueue.job_slices import MANAGED_BY, workload_name
from bayplan_plugins.queues.kueue.job_workloads import provisioning_parameters
from bayplan_plugins.queues.kueue.managed_jobs import ManagedJobs

__all__ = ["PartWorkloads", "name_of_part"]

_NUMBER = "kueue.x-k8s.io/component-workload-index"
"""The annotation of a Workload with the number of the part that it is of."""
_OWNER_KIND = "kueue.x-k8s.io/job-owner-gvk"
_OWNER_NAME = "kueue.x-k8s.io/job-owner-name"
_COPIED = (QUEUE_LABEL, PRIORITY_LABEL)
"""The labels of an object that its pods have, too."""


def name_of_part(part: OwnedPart) -> str:
    """Return the name of the Workload of a part, as Kueue makes it."""
    owner = part.owner
    name = f"{owner.name}-{part.number}" if part.number else owner.name
    return workload_name(owner.api_version.rpartition("/")[0], owner.kind, name, owner.uid)


class PartWorkloads:
    """Follows the objects whose parts queue.

    :param managed: which pods are queued.
    :param changed: called with the key of a Workload whose object changed.
    """

    def __init__(
        self, handle: Handle, managed: ManagedJobs, changed: Callable[[str], None]
    ) -> None:
        self._handle = handle
        self._managed = managed
        self._changed = changed
        self._parts: dict[str, OwnedPart] = {}
        """By the keys of their Workloads."""
        self._keys: dict[tuple[str, OwnedPart], str] = {}
        self._of_owner: dict[str, dict[str, None]] = {}
        """The keys of Workloads by the uids of objects."""
        self._read: dict[str, QueuedParts] = {}
        """What is known of objects, by uid."""
        for type_ in kinds_in_parts():
            handle.snapshot.on_object(type_, self._object_changed)
        handle.snapshot.on_object(KueueWorkload, self._workload_changed)

    # Following ---------------------------------------------------------------------------

    def key_of(self, namespace: str, part: OwnedPart) -> str:
        """Return ``namespace/name`` of the Workload of a part."""
        known = self._keys.get((namespace, part))
        if known is None:
            known = self._keys[namespace, part] = f"{namespace}/{name_of_part(part)}"
            self._parts[known] = part
            self._of_owner.setdefault(part.owner.uid, {})[known] = None
        return known

    def _object_changed(self, old: ApiObject | None, new: ApiObject | None) -> None:
        one = new if new is not None else old
        assert one is not None, "a change is of something"
        self._read.pop(one.metadata.uid, None)
        for key in self._of_owner.get(one.metadata.uid, ()):
            self._changed(key)

    def _workload_changed(self, old: KueueWorkload | None, new: KueueWorkload | None) -> None:
        """Know a Workload whose pods are not there from its object and its number."""
        if new is None:
            if old is not None and old.key in self._parts:
                self._changed(old.key)
            return
        if GROUP_MARK not in new.metadata.annotations.items():
            return
        number = new.metadata.annotations.get(_NUMBER, "")
        for owner in new.metadata.owner_references:
            part = part_of(owner, number)
            if part is not None and name_of_part(part) == new.metadata.name:
                self._changed(self.key_of(new.metadata.namespace, part))

    def forget(self, key: str) -> None:
        """Forget a Workload that is gone."""
        part = self._parts.pop(key, None)
        if part is None:
            return
        self._keys.pop((key.partition("/")[0], part), None)
        others = self._of_owner.get(part.owner.uid, {})
        others.pop(key, None)
        if not others:
            self._of_owner.pop(part.owner.uid, None)
            self._read.pop(part.owner.uid, None)

    # Questions ---------------------------------------------------------------------------

    def knows(self, key: str) -> bool:
        """Tell whether a Workload is that of a part."""
        return key in self._parts

    def number_of(self, key: str) -> str:
        """Return the number of the part that a Workload is of."""
        return self._parts[key].number

    def object_of(self, key: str) -> QueuedParts | None:
        """Return what is known of the object of a Workload's part, None if it is not there."""
        part = self._parts.get(key)
        if part is None:
            return None
        owner = part.owner
        known = self._read.get(owner.uid)
        if known is not None:
            return known
        kind = KINDS.get((owner.api_version.rpartition("/")[0], owner.kind))
        place = f"{key.partition('/')[0]}/{owner.name}"
        found = self._handle.snapshot.objects(kind.type).get(place) if kind is not None else None
        if found is None or found.metadata.uid != owner.uid:
            return None
        made = self._read[owner.uid] = queued_parts(found)
        return made

    def name_of(self, key: str) -> str:
        """Return what a Workload is of, as the gang of its pods is called."""
        return f"{key.partition('/')[0]}/{title_of_part(self._parts[key])}"

    def problem_of(self, key: str) -> str:
        """Return why a part cannot be queued; "" for nothing."""
        found = self.object_of(key)
        return found.problem if found is not None else ""

    def stays(self, key: str, workload: KueueWorkload) -> bool:
        """Tell whether a Workload without pods keeps its quota, until these are made again.

        What asks for something else by now waits again.
        """
        found = self.object_of(key)
        if found is None or not has_quota(workload):
            return False
        if is_true(workload, "Evicted"):
            # Its quota is given back, which is written before it is forgotten.
            return True
        return not self.is_gone(key) and _same(self.pod_sets_of(key), workload.spec.pod_sets)

    def as_asked(self, key: str, workload: KueueWorkload) -> KueueWorkload:
        """Return a Workload whose pods have no nodes: without quota if it was for other pods."""
        sets = self.pod_sets_of(key)
        if not sets or not has_quota(workload) or _same(sets, workload.spec.pod_sets):
            return workload
        return msgspec.structs.replace(workload, status=KueueWorkloadStatus())

    def is_gone(self, key: str) -> bool:
        """Tell whether an object has no such part in a queue any more.

        With the object its Workloads go.
        """
        found = self.object_of(key)
        if found is None or found.problem:
            return False
        meta = found.obj.metadata
        queued = QUEUE_LABEL in meta.labels or self._managed.holds_pods_of(meta)
        return not queued or not found.has(self.number_of(key))

    def is_empty(self, key: str) -> bool:
        """Tell whether a part is to have no pods for now, as its object was scaled to zero."""
        found = self.object_of(key)
        if found is None or found.problem:
            return False
        return not sum(one.count for one in found.pods)

    def labels_of(self, key: str) -> Mapping[str, str]:
        """Return the labels by which the pods of a part tell their queue, and their priority."""
        found = self.object_of(key)
        labels = found.obj.metadata.labels if found is not None else {}
        return {name: labels[name] for name in _COPIED if labels.get(name)}

    def delete(self, key: str) -> None:
        """Delete the Workload of a part that is gone."""
        seen = self._handle.snapshot.objects(KueueWorkload).get(key)
        if seen is not None and seen.metadata.deletion_timestamp is None:
            self._handle.submit(DeleteObject(KueueWorkload, key, seen.metadata.uid))

    # Making ------------------------------------------------------------------------------

    def metadata_of(self, key: str, created: str | None) -> ObjectMeta:
        """Return the metadata of a new Workload."""
        part, (namespace, _, name) = self._parts[key], key.partition("/")
        found = self.object_of(key)
        own = found.obj.metadata if found is not None else ObjectMeta()
        marks = {**provisioning_parameters(own.annotations), **dict([GROUP_MARK])}
        marks |= _owner_marks(part.owner)
        if part.number:
            marks[_NUMBER] = part.number
        return ObjectMeta(
            name=name,
            namespace=namespace,
            uid=key,
            labels={
                **self._managed.copied(own.labels),
                JOB_UID: part.owner.uid,
                **dict([MANAGED_BY]),
            },
            annotations=marks,
            owner_references=(part.owner,),
            creation_timestamp=created,
        )

    def owner_of(self, key: str) -> OwnerReference:
        """Return the reference from a Workload to the object of its part."""
        return self._parts[key].owner

    def pod_sets_of(self, key: str) -> tuple[PodSet, ...]:
        """Return the pod sets of a part, as its object's templates are now."""
        found = self.object_of(key)
        of_sets = found.pods if found is not None else ()
        return tuple(
            PodSet(one.name, one.template, one.count, topology_request=one.topology)
            for one in of_sets
        )

    def pod_set_of(self, key: str, pod: Pod) -> str:
        """Return the name of the pod set of a part's pod; "" if it tells of none."""
        found = self.object_of(key)
        return found.pod_set_of(pod.metadata.labels) if found is not None else ""

    def sources_of(self, key: str) -> Mapping[str, TemplateSource]:
        """Return, by pod set, which templates of the object the pod sets are copies of."""
        found = self.object_of(key)
        if found is None:
            return {}
        where = type(found.obj), object_key(found.obj)
        return {one.name: TemplateSource(*where, one.pointer) for one in found.pods}


def _owner_marks(owner: OwnerReference) -> dict[str, str]:
    """Return the annotations that name an object, for those who cannot follow the reference."""
    group, _, version = owner.api_version.rpartition("/")
    return {_OWNER_KIND: f"{group}/{version}, Kind={owner.kind}", _OWNER_NAME: owner.name}


def _same(sets: tuple[PodSet, ...], others: tuple[PodSet, ...]) -> bool:
    """Tell whether pod sets ask for the same, whatever their templates have besides.

    Kueue writes limits into a Workload as requests.
    """
    return [_asked(one) for one in sets] == [_asked(one) for one in others]


def _asked(one: PodSet) -> object:
    return one.name, one.count, effective_requests(one.template.spec)
