"""What ``bayplan explain`` was asked about: a pod, a gang, or an object that makes pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from bayplan.api import (
    KINDS,
    AiElasticJob,
    DaemonSet,
    Deployment,
    ElasticJob,
    KueueWorkload,
    ObjectMeta,
    Pod,
    VolcanoJob,
)
from bayplan.dialects.kueue import GROUP_MARK
from bayplan.errors import InputError, did_you_mean
from bayplan.gangs.completeness import rank_order
from bayplan.kinds import KINDS_OF_WORKLOADS
from bayplan.naming import natural_key
from bayplan.queues.held_jobs import WORKLOAD, HeldJobs
from bayplan.queues.workload_owners import is_lone
from bayplan.scheduler.scheduler import Scheduler
from bayplan.snapshot import PodInfo

__all__ = ["Target", "nearest", "pods_of", "target_of", "what_has"]

_GROUPS = frozenset(("pg", "podgroup", "podgroups", "gang", "podgang", "podgangs"))
"""Names of what defines a gang, whatever kind it is."""
_WITHOUT_ROWS = (
    Pod,
    Deployment,
    DaemonSet,
    VolcanoJob,
    ElasticJob,
    AiElasticJob,
    KueueWorkload,
)
"""Types of what makes pods, or is one, without a row in the table of workload kinds."""
_ANY = ""
_MOST_LEVELS = 10


class Target(msgspec.Struct, frozen=True):
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


def _kind_called(name: str) -> str | None:
    """Return a kind by its name, its plural or a short name; its group may follow."""
    if name in _GROUPS:
        return "PodGroup"
    for (group, kind), known in KINDS.items():
        if known.type not in _WITHOUT_ROWS and (group, kind) not in KINDS_OF_WORKLOADS:
            continue
        names = (kind.lower(), known.plural)
        if name in (*names, *known.short, *(f"{one}.{group}" for one in names)):
            return kind
    return None


def target_of(text: str, namespace: str = "default") -> Target:
    """Read NAME, NAMESPACE/NAME, KIND/NAME or KIND/NAMESPACE/NAME.

    :param namespace: where a name without one is looked for.
    :raises InputError: for anything else.
    """
    first, *rest = text.split("/")
    kind = _kind_called(first.lower()) if rest else None
    parts = rest if kind is not None else [first, *rest]
    if not all(parts) or not 1 <= len(parts) <= 2:
        raise InputError(f'expected NAME, NAMESPACE/NAME or KIND/NAME, got "{text[:80]}"')
    key = "/".join(parts) if len(parts) == 2 else f"{namespace}/{parts[0]}"
    return Target(kind or _ANY, key)


def what_has(scheduler: Scheduler, target: Target) -> Target:
    """Return what has the Workload of Kueue's that a target names; any other target as it is."""
    if target.kind != WORKLOAD:
        return target
    found = scheduler.snapshot.objects(KueueWorkload).get(target.key)
    if found is None or is_lone(found):
        return target
    meta = found.metadata
    if GROUP_MARK in meta.annotations.items():
        return Target("PodGroup", target.key)
    owner = next((one for one in meta.owner_references if one.controller), None)
    return Target(owner.kind, f"{meta.namespace}/{owner.name}") if owner is not None else target


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
    namespace = pod.metadata.namespace
    for label, kind in _names_of_owners().items():
        # Between them and their pods may be objects that are not known.
        if label in pod.metadata.labels:
            yield kind, f"{namespace}/{pod.metadata.labels[label]}"
    meta: ObjectMeta | None = pod.metadata
    for _ in range(_MOST_LEVELS):
        owners = meta.owner_references if meta is not None else ()
        owner = next((one for one in owners if one.controller), None)
        if owner is None:
            return
        key = f"{namespace}/{owner.name}"
        yield owner.kind, key
        known = KINDS.get((owner.api_version.rpartition("/")[0], owner.kind))
        if known is not None and known.type is Pod:
            info = scheduler.snapshot.living.get(key)
            meta = info.pod.metadata if info is not None else None
        else:
            objects = scheduler.snapshot.objects(known.type) if known is not None else {}
            found = objects.get(key)
            meta = found.metadata if found is not None else None


def _names_of_owners() -> dict[str, str]:
    """Return the labels of pods that name an object of one kind, and that kind."""
    found: dict[str, list[str]] = {}
    for row in KINDS_OF_WORKLOADS.values():
        for label, text in row.labels.items():
            if text == "{object}":
                found.setdefault(label, []).append(row.name)
    return {label: kinds[0] for label, kinds in found.items() if len(kinds) == 1}


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
