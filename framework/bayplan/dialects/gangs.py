"""Which gang a pod or an object belongs to, whatever ecosystem it was written for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from bayplan.api import ApiObject, Pod, Workload
from bayplan.api.gang import Gang, Membership
from bayplan.dialects import (
    gpu_topology,
    grove,
    kai,
    koordinator,
    kubernetes,
    kueue,
    scheduler_plugins,
    tensor_fusion,
    volcano,
)
from bayplan.dialects.elastic_job import PREEMPTIBLE_LABEL
from bayplan.dialects.kai.shares import is_reservation

__all__ = ["MEMBERS_BY", "gang_of", "may_be_evicted", "may_be_member", "membership_of"]

_DIALECTS = (koordinator, scheduler_plugins, volcano, kueue, kai, kubernetes)
_NONE = Membership(None)
MEMBERS_BY = frozenset[str]().union(
    *(one.MEMBERS_BY for one in (*_DIALECTS, gpu_topology, grove, tensor_fusion))
)
"""The names without any of which, as label or annotation, no pod is in a gang or has a rank."""
_NOTHING: Mapping[str, str] = {}
_READERS: tuple[Callable[[ApiObject], Gang | None], ...] = (
    koordinator.gang_of,
    scheduler_plugins.gang_of,
    volcano.gang_of,
    kueue.gang_of,
    kai.gang_of,
    gpu_topology.gang_of,
    grove.gang_of,
)


def membership_of(pod: Pod, inherited: Mapping[str, str] = _NOTHING) -> Membership:
    """Return the pod's gang and rank, as the ecosystem of its manifest defines them.

    A pod that two ecosystems put into gangs gets a problem that names both.

    :param inherited: the annotations that the pod takes over from its Job.
    """
    if not may_be_member(pod, inherited):
        return _NONE
    found = [(d.NAME, member) for d in _DIALECTS if (member := d.membership_of(pod)) is not None]
    claims = [(name, member) for name, member in found if member.gang is not None]
    for name, member in claims:
        # Such are the keys of gangs of owners, which nobody joins by a name.
        if ":" in (member.gang or ""):
            return Membership(None, problem=f'{name}: "{member.gang}" is no name of a group')
    if len(claims) > 1:
        both = " and ".join(f'{name} ("{member.gang}")' for name, member in claims)
        return Membership(claims[0][1].gang, problem=f"two systems claim it for a gang: {both}")
    if not claims:
        # A Job that says how its nodes are chosen is a gang, unless a pod group already is.
        # So are a pod that uses GPUs over the network and the worker that serves it.
        # Grove's operator may have written a group of another system for its own.
        gang = grove.membership_of(pod)
        if gang is not None:
            return gang
        job = gpu_topology.membership_of(pod, inherited) or tensor_fusion.membership_of(pod)
        claims = [(gpu_topology.NAME, job)] if job is not None else []
    member = claims[0][1] if claims else found[0][1] if found else _NONE
    problem = member.problem or next((m.problem for _, m in found if m.problem), None)
    rank = member.rank
    if rank is None:
        rank = next((m.rank for _, m in found if m.rank is not None), kubernetes.rank_of(pod))
    if rank == member.rank and problem == member.problem:
        return member
    return replace(member, rank=rank, problem=problem)


def may_be_member(pod: Pod, inherited: Mapping[str, str] = _NOTHING) -> bool:
    """Tell whether a pod says something of a gang: by the names of what it says alone.

    Most pods do not, each of which is read once for every change of its needs.
    """
    names = (pod.metadata.labels, pod.metadata.annotations, inherited)
    return pod.spec.scheduling_group is not None or not all(map(MEMBERS_BY.isdisjoint, names))


def gang_of(obj: ApiObject, workloads: Mapping[str, Workload] | None = None) -> Gang | None:
    """Return the gang that an object describes, None if it describes none.

    :param workloads: the Workloads by key, from whose templates Kubernetes' pod groups take
        policies.
    """
    for read in _READERS:
        gang = read(obj)
        if gang is not None:
            return gang
    return kubernetes.gang_of(obj, workloads)


_NOT_PREEMPTIBLE = (
    ("scheduling.koordinator.sh/disable-preemptible", "true"),
    ("quota.scheduling.koordinator.sh/preemptible", "false"),
    ("volcano.sh/preemptable", "false"),
    (PREEMPTIBLE_LABEL, "false"),
)
_NOT_PREEMPTIBLE_KEYS = frozenset(key for key, _ in _NOT_PREEMPTIBLE)


def may_be_evicted(pod: Pod) -> bool:
    """Tell whether a pod's labels and annotations allow its preemption.

    A reservation pod of KAI ends with the pods for which it holds a GPU.
    """
    if is_reservation(pod):
        return False
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    keys = _NOT_PREEMPTIBLE_KEYS
    # Preemption asks of every pod of the cluster.
    if keys.isdisjoint(labels) and keys.isdisjoint(annotations):
        return True
    return not any(
        labels.get(key) == value or annotations.get(key) == value for key, value in _NOT_PREEMPTIBLE
    )
