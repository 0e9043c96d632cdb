"""What the Workload of a pod, or of a group of pods, says, as Kueue's pod integration writes it.

A pod without a group has a Workload that it controls. A group has one of its own name, which each
of its pods owns; pods of one shape, a role, are a pod set. A gang of another system is a group to
bayplan alone: its Workload has a name that Kueue's manager does not ask for.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from bayplan import PodInfo
from bayplan.api import Pod
from bayplan.api.conditions import set_condition
from bayplan.api.kueue import KueueCondition, KueueWorkload, PodSet, ReclaimablePods
from bayplan.api.meta import ObjectMeta, OwnerReference
from bayplan.api.pod import Container, PodSpec, PodTemplate
from bayplan.api.times import seconds_of
from bayplan.dialects.kueue import (
    ADMISSION_GATE,
    INDEX_LABEL,
    MANAGED_MARK,
    POD_FINALIZER,
    RETRIABLE,
    gather_of,
    group_of,
    is_fast,
    is_serving,
    topology_request_of,
    total_of,
)
from bayplan.dialects.queued_job_checks import MOST_SETS, QUEUE_LABEL, is_subdomain
from bayplan.dialects.reading import is_index
from bayplan_plugins.queues.kueue.conditions import condition, is_true
from bayplan_plugins.queues.kueue.job_slices import workload_name

__all__ = [
    "end_of",
    "excess_of",
    "is_group_of",
    "is_ready",
    "kept_of",
    "key_of",
    "last_until",
    "marks_of",
    "owner_of",
    "pod_set_of",
    "pod_sets_of",
    "reclaimable",
    "refusal_of",
    "role_of",
    "runs_or_succeeded",
    "with_replacements",
    "without_owner",
]

_ROLE = "kueue.x-k8s.io/role-hash"
"""On a pod of a group, "false": the group ends once none of its pods runs."""
_WAITING = "WaitingForReplacementPods"
_ENDED = ("Succeeded", "Failed")
_MAIN = "main"
_DIGITS = 8
_OTHER_NAMES = re.compile(r"[^a-z0-9.-]+")


# Names and owners ----------------------------------------------------------------------------


def key_of(pod: PodInfo) -> str:
    """Return ``namespace/name`` of the Workload of a pod that is no job's, or of its group."""
    meta = pod.pod.metadata
    if pod.gang is None:
        return f"{meta.namespace}/{workload_name('', 'Pod', meta.name, pod.uid)}"
    if is_group_of(pod):
        return pod.gang
    namespace, _, name = pod.gang.partition("/")
    plain = _OTHER_NAMES.sub("-", name.lower()).strip("-.")
    return f"{namespace}/{workload_name('', 'Group', plain, pod.gang)}"


def is_group_of(pod: PodInfo) -> bool:
    """Tell whether a pod is in a group of Kueue's."""
    name = group_of(pod.pod.metadata)
    return bool(name) and pod.gang == f"{pod.namespace}/{name}"


def owner_of(pod: Pod, controls: bool) -> OwnerReference:
    """Return the reference from a Workload to one of its pods.

    :param controls: whether it is the only one.
    """
    meta = pod.metadata
    return OwnerReference("Pod", meta.name, meta.uid or pod.key, "v1", controls)


def marks_of(pod: PodInfo, pod_set: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the labels and the annotations by which Kueue's manager knows a pod that it queued.

    Without the label it leaves the pod alone, whatever its Workload says.
    """
    label = dict([MANAGED_MARK])
    if pod.part is not None:
        return label, {_ROLE: pod_set} if pod_set else {}
    if pod.gang is None:
        return label, {}
    return (label, {_ROLE: role_of(pod.pod)}) if is_group_of(pod) else ({}, {})


# Pod sets ------------------------------------------------------------------------------------


def role_of(pod: Pod) -> str:
    """Return the name of the pod set of a group's pod: that of its role.

    Kueue's webhook has written it; of other pods it follows from what matters for admission.
    """
    return pod.metadata.annotations.get(_ROLE) or _hash_of(pod.spec)


def _hash_of(spec: PodSpec) -> str:
    """Return the hash of what matters for admission, as Kueue's webhook computes it.

    That is of Go's JSON, in which what is not there is null. The runtime class is not read.
    """
    shape: dict[str, Any] = {
        "affinity": spec.affinity,
        "containers": [_shape(one) for one in spec.containers],
        "initContainers": [_shape(one) for one in spec.init_containers],
        "nodeSelector": spec.node_selector,
        "overhead": spec.overhead,
        "priority": spec.priority,
        "resourceClaims": spec.resource_claims,
        "runtimeClassName": None,
        "tolerations": spec.tolerations,
        "topologySpreadConstraints": spec.topology_spread_constraints,
    }
    found = {key: None if value in ((), [], {}, "") else value for key, value in shape.items()}
    if spec.resources is not None:
        found["resources"] = spec.resources.requests or None
    text = msgspec.json.encode(
        {"spec": found}, enc_hook=lambda quantity: quantity.text, order="deterministic"
    )
    return hashlib.sha256(text).hexdigest()[:_DIGITS]


def _shape(container: Container) -> dict[str, Any]:
    requests = container.resources.requests or None
    return {"ports": container.ports or None, "resources": {"requests": requests}}


def refusal_of(pods: Sequence[Pod]) -> str:
    """Return why Kueue makes no Workload of the pods of a group; "" where it does."""
    name = group_of(pods[0].metadata)
    if not is_subdomain(name):
        return f'"{name[:80]}" is no name of a group: expected a DNS subdomain'
    for one in pods[1:]:
        names = [pod.metadata.labels.get(QUEUE_LABEL, "") for pod in (pods[0], one)]
        if names[0] != names[1]:
            return (
                f"pods {pods[0].key} and {one.key} are in different queues: {' and '.join(names)}"
            )
    for one in pods:
        index, total = one.metadata.labels.get(INDEX_LABEL), total_of(one.metadata)
        if index is not None and not (is_index(index) and int(index) < (total or 0)):
            return f'{one.key}: label {INDEX_LABEL}: expected an index below {total}, got "{index}"'
    if len({role_of(one) for one in pods}) > MOST_SETS:
        return f"a group has at most {MOST_SETS} roles of pods"
    return ""


def pod_sets_of(pods: Sequence[Pod]) -> tuple[PodSet, ...]:
    """Return the pod sets of a group of Kueue's, by the names of its roles.

    :param pods: those that run, may run or have succeeded.
    :raises ValueError: for a topology request that cannot be read.
    """
    first: dict[str, Pod] = {}
    counts = Counter[str]()
    for pod in pods:
        role = role_of(pod)
        first.setdefault(role, pod)
        counts[role] += 1
    if pods and is_fast(pods[0].metadata):
        role = role_of(pods[0])
        first, counts = {role: pods[0]}, Counter({role: total_of(pods[0].metadata) or 1})
    return tuple(pod_set_of(first[role], role, counts[role]) for role in sorted(first))


def pod_set_of(pod: Pod, name: str = _MAIN, count: int = 1) -> PodSet:
    """Return the pod set of pods that are like one.

    :raises ValueError: for a topology request that cannot be read.
    """
    gather_of(pod.metadata.annotations)
    template = PodTemplate(spec=msgspec.structs.replace(pod.spec, node_name=""))
    request = topology_request_of(pod.metadata.annotations, INDEX_LABEL)
    return PodSet(name, template, count, topology_request=request)


# What becomes of it --------------------------------------------------------------------------


def end_of(pods: Sequence[Pod], is_group: bool, total: int | None = None) -> tuple[str, str] | None:
    """Return reason and message of the end of a Workload, None as long as it has not ended.

    :param pods: those that are there, also those that have ended.
    :param is_group: whether they are a group; then ``total`` says of how many pods it is, None for
        a gang of another system, which has ended with the last of its pods.
    """
    succeeded = sum(one.status.phase == "Succeeded" for one in pods)
    active = any(one.status.phase not in _ENDED for one in pods)
    if not is_group:
        one = pods[0]
        reason = "Succeeded" if succeeded else "Failed"
        return None if active else (reason, one.status.message)
    if total is None:
        reason = "Succeeded" if succeeded == len(pods) else "Failed"
        return None if active else (reason, f"Pods succeeded: {succeeded}/{len(pods)}.")
    if is_serving(pods[0].metadata):
        return None
    stays = any(one.metadata.annotations.get(RETRIABLE) == "false" for one in pods)
    if succeeded == total or (not active and stays):
        return "Succeeded", f"Pods succeeded: {succeeded}/{total}."
    return None


def reclaimable(pods: Iterable[Pod]) -> tuple[ReclaimablePods, ...]:
    """Return how many pods of each role of a group of Kueue's need no quota any more."""
    counts: Counter[str] = Counter()
    for pod in pods:
        if pod.status.phase == "Succeeded" and not is_serving(pod.metadata):
            counts[role_of(pod)] += 1
    return tuple(ReclaimablePods(role, count) for role, count in counts.items())


def with_replacements(workload: KueueWorkload, pods: Sequence[Pod], now: float) -> KueueWorkload:
    """Return the Workload of a group of Kueue's, which says whether pods of it are to be replaced.

    :param pods: those that are there, also those that have ended.
    """
    absent, stated = _absent(workload, pods), condition(workload, _WAITING)
    if stated is None and not absent:
        return workload
    new = KueueCondition(_WAITING, "False", "PodsReady", "No pods need replacement")
    if absent:
        gone = condition(workload, "Evicted")
        why = ("PodsFailed", "Some Failed pods need replacement")
        if gone is not None and gone.status == "True":
            why = (gone.reason, gone.message)
        elif stated is not None and stated.status == "True":
            why = (stated.reason, stated.message)
        new = KueueCondition(_WAITING, "True", *why)
    if stated is not None and (stated.status, stated.reason) == (new.status, new.reason):
        return workload
    conditions = set_condition(workload.status.conditions, new, now, workload.metadata.generation)
    status = msgspec.structs.replace(workload.status, conditions=conditions)
    return msgspec.structs.replace(workload, status=status)


def _absent(workload: KueueWorkload, pods: Sequence[Pod]) -> bool:
    """Tell whether a group lacks pods that it was made of."""
    there = Counter(role_of(one) for one in pods if runs_or_succeeded(one))
    fast = any(is_fast(one.metadata) for one in pods)
    wanted: Mapping[str, int] = {one.name: one.count for one in workload.spec.pod_sets}
    return any(there[name] < (min(1, count) if fast else count) for name, count in wanted.items())


def runs_or_succeeded(pod: Pod) -> bool:
    """Tell whether a pod may run yet, runs, or has succeeded."""
    if pod.status.phase in _ENDED:
        return pod.status.phase == "Succeeded"
    meta = pod.metadata
    if not meta.deletion_timestamp:
        return True
    # Without any grace nothing but finalizers keeps it.
    return bool(pod.spec.node_name) and meta.deletion_grace_period_seconds != 0


def excess_of(pods: Sequence[Pod], sets: Sequence[PodSet] = ()) -> list[Pod]:
    """Return the pods of a group of Kueue's beyond the number that it has: those that came last.

    What is let go already goes before what is not. Services may have more for a while, as they are
    updated.

    :param pods: those that are there, also those that have ended.
    :param sets: those that the group has quota for, if any: then each role has a number.
    """
    alive = [one for one in pods if runs_or_succeeded(one) and not one.metadata.deletion_timestamp]
    total = total_of(alive[0].metadata) if alive else None
    if total is None or len(alive) <= total or is_serving(alive[0].metadata):
        return []
    alive.sort(key=_staying)
    if not sets:
        return alive[total:]
    left = Counter({one.name: one.count for one in sets})
    found = []
    for pod in alive:
        role = role_of(pod)
        if left[role] > 0:
            left[role] -= 1
        elif role in left:
            found.append(pod)
    return found


def _staying(pod: Pod) -> tuple[bool, bool, str, str]:
    """Sort key: what stays rather than others, if a group has too many pods."""
    meta = pod.metadata
    waits = any(gate.name == ADMISSION_GATE for gate in pod.spec.scheduling_gates)
    return (
        POD_FINALIZER not in meta.finalizers,
        waits,
        meta.creation_timestamp or "",
        meta.name,
    )


def kept_of(workload: KueueWorkload, pods: Sequence[Pod]) -> set[str]:
    """Return the uids of the pods that a group of Kueue's still needs, also once they have ended.

    Those that succeeded count for its end; those that failed or were deleted stay until they are
    replaced, the last of them first. A group all of whose pods are deleted, by its user and not by
    an eviction, needs none.

    :param pods: those that are there, also those that have ended.
    """
    if is_true(workload, "Finished"):
        return set()
    deleted = all(one.metadata.deletion_timestamp for one in pods)
    if deleted and not is_true(workload, "Evicted"):
        return set()
    kept = [one for one in pods if runs_or_succeeded(one)]
    lacking = Counter({one.name: one.count for one in workload.spec.pod_sets})
    lacking.subtract(role_of(one) for one in kept)
    inactive = (one for one in pods if not runs_or_succeeded(one))
    for pod in sorted(
        inactive, key=lambda one: one.metadata.deletion_timestamp or "", reverse=True
    ):
        role = role_of(pod)
        if lacking[role] > 0:
            lacking[role] -= 1
            kept.append(pod)
    return {one.metadata.uid for one in kept}


def last_until(pod: Pod) -> float:
    """Return when a pod has ended at the latest, in seconds since 1970; infinity: it stays."""
    at = pod.metadata.deletion_timestamp
    return seconds_of(at) if at else math.inf


def is_ready(pod: Pod) -> bool:
    """Tell whether a pod says that it is ready."""
    return any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions)


def without_owner(metadata: ObjectMeta, uids: Iterable[str]) -> bool:
    """Tell whether all that a Workload is owned by are pods, and none of some: it goes with them.

    :param uids: of these.
    """
    known = set(uids)
    owners = metadata.owner_references
    return bool(owners) and all(one.kind == "Pod" and one.uid not in known for one in owners)
