"""Kueue's objects as the reference's vectors spell them.

What has no short form is a field of the API, and stands in the object as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from tests.conformance.case_format import ApiFields, UnknownFieldError, api_spelling, fields_of

from bayplan.api.kueue import ClusterQueue, Cohort, KueueWorkload, LocalQueue, ResourceFlavor
from bayplan.api.objects import DecodeError, decode_part
from bayplan.api.policy import Namespace
from bayplan.api.times import rfc3339

NOW = 1_750_000_000.0
"""The vectors' second 0, in seconds since 1970."""

Case = Mapping[str, Any]
Made = TypeVar("Made")
_API = "kueue.x-k8s.io/v1beta2"


def at(time: float | str | None) -> str | None:
    """Return a vector's time as text: in seconds after NOW, or as an object would have it."""
    return rfc3339(NOW + time) if isinstance(time, int | float) else time


def _spelt(part: Case, **short: str) -> dict[str, Any]:
    """Return a part with the API's names instead of short forms."""
    return {short.get(name, api_spelling(name)): value for name, value in part.items()}


def _made(type_: type[Made], content: dict[str, Any]) -> Made:
    """Return an object of the product.

    :raises UnknownFieldError: for a value that the product does not take.
    """
    parts = {name: content[name] for name in ("metadata", "spec", "status") if name in content}
    try:
        return decode_part(type_, parts)
    except DecodeError as exc:
        raise UnknownFieldError(f"{content['kind']}: {exc.path}: {exc}") from None


def _groups(groups: Iterable[Case]) -> list[dict[str, Any]]:
    return [_group(group) for group in groups]


def _group(group: Case) -> dict[str, Any]:
    flavors = []
    for flavor in group.get("flavors", ()):
        rest = {k: v for k, v in flavor.items() if k not in ("flavor", "resources")}
        resources = [
            {"name": name, "nominalQuota": "0", **_spelt(quota, nominal="nominalQuota")}
            for name, quota in flavor.get("resources", {}).items()
        ]
        name = flavor.get("flavor", "")
        flavors.append({"name": name, "resources": resources, **_spelt(rest)})
    covered = list(dict.fromkeys(r["name"] for flavor in flavors for r in flavor["resources"]))
    rest = {k: v for k, v in group.items() if k != "flavors"}
    return {"coveredResources": covered, "flavors": flavors, **_spelt(rest)}


def _weight(fields: ApiFields) -> dict[str, Any] | None:
    weight, given = fields.take("fair_weight"), fields.take("fair_sharing")
    return {"weight": weight} if weight is not None else given


def _checks(given: Iterable[Any]) -> dict[str, Any]:
    checks = [{"name": one} if isinstance(one, str) else _spelt(one) for one in given]
    return {"admissionChecks": checks}


def cluster_queue(case: Case) -> ClusterQueue:
    """Return a ClusterQueue; without a selector it takes all namespaces, as in the tests.

    ``usage`` is what the queue uses apart from its workloads, which the object does not say.
    """
    fields = ApiFields(_API, "ClusterQueue", case)
    fields.take("usage")
    preemption = _spelt(fields.take("preemption", {}))
    borrow = preemption.pop("borrowWithinCohort", None)
    if borrow is not None:
        preemption["borrowWithinCohort"] = {"policy": "Never", **_spelt(borrow)}
    spec = {
        "resourceGroups": _groups(fields.take("resource_groups", ())),
        "cohortName": fields.take("cohort"),
        "queueingStrategy": fields.take("queueing_strategy", "BestEffortFIFO"),
        "namespaceSelector": fields.take("namespace_selector", {}),
        "flavorFungibility": _spelt(fields.take("flavor_fungibility", {})),
        "preemption": {"reclaimWithinCohort": "Never", "withinClusterQueue": "Never", **preemption},
        "fairSharing": _weight(fields),
        "admissionChecksStrategy": _checks(fields.take("admission_checks", ())),
    }
    return _made(ClusterQueue, fields.object(spec, {"name": fields.take("name")}))


def cohort(case: Case) -> Cohort:
    """Return a Cohort."""
    fields = ApiFields(_API, "Cohort", case)
    spec = {
        "parentName": fields.take("parent"),
        "resourceGroups": _groups(fields.take("resource_groups", ())),
        "fairSharing": _weight(fields),
    }
    return _made(Cohort, fields.object(spec, {"name": fields.take("name")}))


def local_queue(case: Case) -> LocalQueue:
    """Return a LocalQueue."""
    fields = ApiFields(_API, "LocalQueue", case)
    metadata = {"name": fields.take("name"), "namespace": fields.take("namespace", "")}
    spec = {"clusterQueue": fields.take("cluster_queue", ""), "fairSharing": _weight(fields)}
    return _made(LocalQueue, fields.object(spec, metadata))


def flavor(case: Case) -> ResourceFlavor:
    """Return a ResourceFlavor."""
    fields = ApiFields(_API, "ResourceFlavor", case)
    spec = {"topologyName": fields.take("topology")}
    return _made(ResourceFlavor, fields.object(spec, {"name": fields.take("name")}))


def namespaces(case: Mapping[str, Mapping[str, str]]) -> list[Namespace]:
    """Return namespaces by name and labels."""
    return [
        decode_part(Namespace, {"metadata": {"name": name, "labels": dict(labels)}})
        for name, labels in case.items()
    ]


def _pod_set(case: Case) -> dict[str, Any]:
    """Return a pod set: what the API does not give it or its template belongs to its pods."""
    left = {name: value for name, value in case.items() if value is not None}
    resources = {k: left.pop(k) for k in ("requests", "limits") if k in left}
    own: dict[str, Any] = {"name": left.pop("name", "main"), "count": left.pop("count", 1)}
    own_fields = fields_of(_API, "Workload", "spec", "podSets")
    pods_metadata = fields_of("v1", "Pod", "metadata")
    metadata: dict[str, Any] = {}
    spec: dict[str, Any] = {"containers": [{"name": "c", "resources": resources}]}
    for name, value in left.items():
        spelt = api_spelling(name)
        if spelt == "topologyRequest":
            own[spelt] = _spelt(value)
        elif spelt in own_fields:
            own[spelt] = value
        elif spelt in pods_metadata:
            metadata[spelt] = value
        else:
            spec[spelt] = value
    return {"template": {"metadata": metadata, "spec": spec}, **own}


def _admission(case: Case | None) -> dict[str, Any] | None:
    if case is None:
        return None
    left = {name: value for name, value in case.items() if name != "pod_sets"}
    sets = [
        {"name": "main", **_spelt(one, usage="resourceUsage")} for one in case.get("pod_sets", ())
    ]
    return {"clusterQueue": "", **_spelt(left), "podSetAssignments": sets}


def _conditions(cases: Iterable[Case]) -> list[dict[str, Any]]:
    nothing = dict.fromkeys(("type", "status", "reason", "message"), "")
    return [
        {
            **nothing,
            **_spelt({name: value for name, value in one.items() if name != "at"}),
            "lastTransitionTime": at(one.get("at", 0.0)),
        }
        for one in cases
    ]


def _timed(part: Case | None, *times: str) -> dict[str, Any] | None:
    """Return a part of an object whose named fields are times."""
    if part is None:
        return None
    spelt = _spelt(part)
    return {**spelt, **{name: at(spelt[name]) for name in times if name in spelt}}


def workload(case: Case) -> KueueWorkload:
    """Return a Workload; a missing UID is its name."""
    fields = ApiFields(_API, "Workload", case)
    metadata = {
        "name": fields.take("name", ""),
        "namespace": fields.take("namespace", ""),
        "creationTimestamp": at(fields.take("created")),
    }
    spec = {
        "podSets": [_pod_set(one) for one in fields.take("pod_sets", ())],
        "queueName": fields.take("queue"),
        "priorityClassRef": fields.take("priority_class"),
    }
    checks = fields.take("admission_checks", ())
    stats = fields.take("scheduling_stats")
    if stats is not None:
        evictions = [{"reason": "", **_spelt(one)} for one in stats.get("evictions", ())]
        stats = {**stats, "evictions": evictions}
    status = {
        "conditions": _conditions(fields.take("conditions", ())),
        "admission": _admission(fields.take("admission")),
        "requeueState": _timed(fields.take("requeue_state"), "requeueAt"),
        "admissionChecks": [
            _timed({"name": "", "state": "Pending", **one}, "lastTransitionTime") for one in checks
        ],
        "resourceRequests": [
            {"name": "", **_spelt(one)} for one in fields.take("resource_requests", ())
        ],
        "schedulingStats": stats,
        "preemptionGates": fields.take("preemption_gate_states", []),
    }
    return _made(KueueWorkload, fields.object(spec, metadata, status))


def columns(usage: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return amounts by flavor and resource as columns."""
    return {
        f"{flavor}/{resource}": amount
        for flavor, by in usage.items()
        for resource, amount in by.items()
    }
