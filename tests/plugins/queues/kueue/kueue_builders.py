"""Kueue's objects in few words, and an admission that runs until nothing changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bayplan.api.kueue import (
    AdmissionCheck,
    ClusterQueue,
    Cohort,
    KueueWorkload,
    LocalQueue,
    ResourceFlavor,
)
from bayplan.api.objects import decode_part
from bayplan.api.times import rfc3339
from bayplan_plugins.queues.kueue import Admission, CycleResult
from bayplan_plugins.queues.kueue.store import KueueObject

NOW = 1_750_000_000.0
Limits = tuple[int | None, int | None, int | None]
"""A quota: nominal, borrowing limit, lending limit."""


def quotas(flavors: Mapping[str, Mapping[str, Limits | int]]) -> list[dict[str, Any]]:
    """Return one resource group with a quota for each resource of each flavor."""
    if not flavors:
        return []
    given = []
    for flavor, by in flavors.items():
        resources = []
        for name, limits in by.items():
            nominal, borrow, lend = limits if isinstance(limits, tuple) else (limits, None, None)
            quota = {"nominalQuota": nominal, "borrowingLimit": borrow, "lendingLimit": lend}
            resources.append({"name": name, **quota})
        given.append({"name": flavor, "resources": resources})
    covered = list(next(iter(flavors.values())))
    return [{"coveredResources": covered, "flavors": given}]


def cluster_queue(
    name: str, flavors: Mapping[str, Mapping[str, Limits | int]], cohort: str = "", **spec: Any
) -> ClusterQueue:
    """Return a ClusterQueue that takes all namespaces."""
    given = {
        "cohortName": cohort,
        "resourceGroups": quotas(flavors),
        "namespaceSelector": {},
        **spec,
    }
    return decode_part(ClusterQueue, {"metadata": {"name": name}, "spec": given})


def cohort(
    name: str,
    parent: str = "",
    flavors: Mapping[str, Mapping[str, Limits | int]] | None = None,
    **spec: Any,
) -> Cohort:
    """Return a Cohort."""
    given = {"parentName": parent, "resourceGroups": quotas(flavors or {}), **spec}
    return decode_part(Cohort, {"metadata": {"name": name}, "spec": given})


def local_queue(name: str, target: str, **spec: Any) -> LocalQueue:
    """Return a LocalQueue of the namespace default."""
    metadata = {"name": name, "namespace": "default"}
    return decode_part(LocalQueue, {"metadata": metadata, "spec": {"clusterQueue": target, **spec}})


def flavor(name: str, **spec: Any) -> ResourceFlavor:
    """Return a ResourceFlavor."""
    return decode_part(ResourceFlavor, {"metadata": {"name": name}, "spec": spec})


def check(
    name: str = "budget", controller: str = "example.com/own", active: bool | None = True
) -> AdmissionCheck:
    """Return an AdmissionCheck; its controller has not looked at it yet if ``active`` is None."""
    stated = {"type": "Active", "status": str(active), "reason": "Active", "message": ""}
    status = {"conditions": [stated]} if active is not None else {}
    given = {"metadata": {"name": name}, "spec": {"controllerName": controller}, "status": status}
    return decode_part(AdmissionCheck, given)


def workload(
    name: str,
    queue: str,
    requests: Mapping[str, Any] | None = None,
    count: int = 1,
    priority: int = 0,
    created: float = 0.0,
    min_count: int | None = None,
    annotations: Mapping[str, str] | None = None,
    pods: Mapping[str, Any] | None = None,
    **spec: Any,
) -> KueueWorkload:
    """Return a pending Workload with one pod set; ``created`` is in seconds after NOW."""
    container = {"name": "c", "resources": {"requests": dict(requests or {"cpu": 1})}}
    pod_set = {
        "name": "main",
        "count": count,
        "minCount": min_count,
        "template": {"spec": {"containers": [container], **(pods or {})}},
    }
    metadata = {
        "name": name,
        "namespace": "default",
        "uid": name,
        "creationTimestamp": rfc3339(NOW + created),
        "annotations": dict(annotations or {}),
    }
    given = {"podSets": [pod_set], "queueName": queue, "priority": priority, **spec}
    return decode_part(KueueWorkload, {"metadata": metadata, "spec": given})


def load(admission: Admission, objects: Iterable[KueueObject], now: float = NOW) -> Admission:
    """Return an admission that knows the objects."""
    for obj in objects:
        admission.set(obj, now)
    return admission


def settle(admission: Admission, most: int, now: float = NOW) -> int:
    """Run cycles, in which victims end at once, until nothing changes; return how many changed.

    Nothing changes any more when everybody has had a turn since the last change.
    """
    quiet = changes = 0
    while quiet <= len(admission.store.workloads) + 1:
        result = admission.cycle(now)
        release(admission, result, now)
        changed = bool(result.admitted or result.evicted)
        quiet, changes = (0, changes + 1) if changed else (quiet + 1, changes)
        assert changes <= most, f"not settled after {most} changes"
    return changes


def release(admission: Admission, result: CycleResult, now: float = NOW) -> None:
    """End the pods of all victims of a cycle."""
    for key in result.evicted:
        admission.release(key, now)


def admitted(admission: Admission) -> dict[str, str]:
    """Return the flavor of each workload that has quota, by name."""
    found = {}
    for one in admission.store.workloads.values():
        if one.status.admission is not None:
            (first,) = one.status.admission.pod_set_assignments
            found[one.metadata.name] = next(iter(first.flavors.values()), "")
    return found
