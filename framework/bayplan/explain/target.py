"""What ``bayplan explain`` was asked about: a pod, a gang, or an object that makes pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from bayplan.api import KINDS, ApiObject, Job, JobSet, ObjectMeta, Pod, RayCluster, ReplicaSet
from bayplan.api.operated import OperatedObject
from bayplan.errors import InputError, did_you_mean
from bayplan.gangs.completeness import rank_order
from bayplan.naming import natural_key
from bayplan.queues.held_jobs import HeldJobs
from bayplan.scheduler.scheduler import Scheduler
from bayplan.snapshot import PodInfo

__all__ = ["Target", "pods_of", "target_of"]

_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("po", "pod", "pods"), "Pod"),
    **dict.fromkeys(("deploy", "deployment", "deployments", "deployment.apps"), "Deployment"),
    **dict.fromkeys(("rs", "replicaset", "replicasets", "replicaset.apps"), "ReplicaSet"),
    **dict.fromkeys(("sts", "statefulset", "statefulsets", "statefulset.apps"), "StatefulSet"),
    **dict.fromkeys(("ds", "daemonset", "daemonsets", "daemonset.apps"), "DaemonSet"),
    **dict.fromkeys(("job", "jobs", "job.batch"), "Job"),
    **dict.fromkeys(("vj", "vcjob", "vcjobs", "job.batch.volcano.sh"), "Job"),
    **dict.fromkeys(("jobset", "jobsets", "jobset.jobset.x-k8s.io"), "JobSet"),
    **dict.fromkeys(
        ("lws", "leaderworkerset", "leaderworkersets", "leaderworkerset.leaderworkerset.x-k8s.io"),
        "LeaderWorkerSet",
    ),
    **dict.fromkeys(("trainjob", "trainjobs", "trainjob.trainer.kubeflow.org"), "TrainJob"),
    **dict.fromkeys(("mpijob", "mpijobs", "mpijob.kubeflow.org"), "MPIJob"),
    **dict.fromkeys(("pytorchjob", "pytorchjobs", "pytorchjob.kubeflow.org"), "PyTorchJob"),
    **dict.fromkeys(("rayjob", "rayjobs", "rayjob.ray.io"), "RayJob"),
    **dict.fromkeys(("raycluster", "rayclusters", "raycluster.ray.io"), "RayCluster"),
    **dict.fromkeys(("elasticjob", "elasticjobs", "ej"), "ElasticJob"),
    **dict.fromkeys(("pg", "podgroup", "podgroups", "gang", "podgang", "podgangs"), "PodGroup"),
}
_ANY = ""
_OWNED: Mapping[str, type[ApiObject]] = {
    "ReplicaSet": ReplicaSet,
    "Job": Job,
    "JobSet": JobSet,
    "RayCluster": RayCluster,
}
"""Owners of pods that may have an owner themselves."""
_NAME_OF_LWS = "leaderworkerset.sigs.k8s.io/name"


@dataclass(frozen=True)
class Target:
    """A kind, "" for a pod or else a gang, and the key ``namespace/name`` of an object."""

    kind: str
    key: str

    @property
    def makes_pods(self) -> bool:
        """Whether it is an object whose controller makes pods."""
        return self.kind not in (_ANY, "Pod", "PodGroup")

    def __str__(self) -> str:
        """Return the target as people write it."""
        return f"{self.kind} {self.key}" if self.kind else f'pod or gang "{self.key}"'


def _operated_kind(name: str) -> str | None:
    """Return a kind of an operator, a user's own among them, by its name or plural.

    Its group may follow.
    """
    for (group, kind), known in KINDS.items():
        names = (kind.lower(), known.plural)
        if issubclass(known.type, OperatedObject) and name in (
            *names,
            *(f"{one}.{group}" for one in names),
        ):
            return kind
    return None


def target_of(text: str, namespace: str = "default") -> Target:
    """Read NAME, NAMESPACE/NAME, KIND/NAME or KIND/NAMESPACE/NAME.

    :param namespace: where a name without one is looked for.
    :raises InputError: for anything else.
    """
    first, *rest = text.split("/")
    kind = (_KINDS.get(first.lower()) or _operated_kind(first.lower())) if rest else None
    parts = rest if kind is not None else [first, *rest]
    if not all(parts) or not 1 <= len(parts) <= 2:
        raise InputError(f'expected NAME, NAMESPACE/NAME or KIND/NAME, got "{text[:80]}"')
    key = "/".join(parts) if len(parts) == 2 else f"{namespace}/{parts[0]}"
    return Target(kind or _ANY, key)


def pods_of(
    scheduler: Scheduler,
    pods: Iterable[Pod],
    get: Callable[[str], Pod | None],
    target: Target,
) -> list[Pod]:
    """Return the pods of a target, pending ones first.

    :param pods: every pod that there is.
    :param get: returns a pod by its key.
    """
    if target.kind in ("Pod", _ANY):
        found = get(target.key)
        if found is not None or target.kind == "Pod":
            return [found] if found is not None else []
    if target.kind in ("PodGroup", _ANY):
        return _members(scheduler, get, target.key)
    wanted = (target.kind, target.key)
    owned = [pod for pod in pods if wanted in _owners(scheduler, pod)]
    return sorted(owned, key=lambda pod: (bool(pod.spec.node_name), natural_key(pod.key)))


def _members(scheduler: Scheduler, get: Callable[[str], Pod | None], key: str) -> list[Pod]:
    gangs = scheduler.gangs.all()
    if key not in gangs:
        return []
    members = gangs[key]
    # Pending members come before running ones.
    infos: list[PodInfo] = sorted(members.pending.values(), key=rank_order)
    infos += sorted((pod for pod, _ in members.bound.values()), key=rank_order)
    return [pod for info in infos if (pod := get(info.key)) is not None]


def _owners(scheduler: Scheduler, pod: Pod) -> Iterator[tuple[str, str]]:
    """Yield kind and key of a pod's owner, of that one's owner, and so on."""
    if _NAME_OF_LWS in pod.metadata.labels:
        # Between it and its pods are StatefulSets and other pods.
        yield "LeaderWorkerSet", f"{pod.metadata.namespace}/{pod.metadata.labels[_NAME_OF_LWS]}"
    meta: ObjectMeta | None = pod.metadata
    while meta is not None:
        owner = next((one for one in meta.owner_references if one.controller), None)
        if owner is None:
            return
        key = f"{pod.metadata.namespace}/{owner.name}"
        yield owner.kind, key
        type_ = _OWNED.get(owner.kind)
        found = scheduler.snapshot.objects(type_).get(key) if type_ is not None else None
        meta = found.metadata if found is not None else None


def nearest(target: Target, pods: Iterable[Pod], scheduler: Scheduler) -> str:
    """Return ``'; did you mean "ns/name"?'`` for the most similar name, or "".

    Owners are known by their pods, and those that a queue holds back by themselves.
    """
    if target.makes_pods:
        owners = {owner for pod in pods for owner in _owners(scheduler, pod)}
        owners |= {(held.kind, held.key) for held in HeldJobs(scheduler.snapshot).all()}
        known = sorted(key for kind, key in owners if kind == target.kind)
    else:
        known = [*(pod.key for pod in pods), *scheduler.gangs.all()]
    keys = {key.partition("/")[2]: key for key in known if key != target.key}
    name = target.key.partition("/")[2]
    if name in keys:
        return f'; did you mean "{keys[name]}"?'
    near = did_you_mean(name, keys)
    for short, key in keys.items():
        near = near.replace(f'"{short}"', f'"{key}"') if near else near
    return near
