"""Kueue's objects as the reference's vectors spell them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bayplan.api.kueue import ClusterQueue, Cohort, KueueWorkload, LocalQueue, ResourceFlavor
from bayplan.api.objects import decode_part
from bayplan.api.policy import Namespace
from bayplan.api.times import rfc3339

NOW = 1_750_000_000.0
"""The vectors' second 0, in seconds since 1970."""

Case = Mapping[str, Any]
_CONDITION = ("type", "status", "reason", "message")


def at(seconds: float | None) -> str | None:
    """Return a vector's time as text."""
    return None if seconds is None else rfc3339(NOW + seconds)


def _groups(groups: Iterable[Case]) -> list[dict[str, Any]]:
    return [_group(group) for group in groups]


def _group(group: Case) -> dict[str, Any]:
    flavors = []
    for flavor in group.get("flavors", ()):
        resources = [
            {
                "name": name,
                "nominalQuota": quota.get("nominal", "0"),
                "borrowingLimit": quota.get("borrowing_limit"),
                "lendingLimit": quota.get("lending_limit"),
            }
            for name, quota in flavor["resources"].items()
        ]
        flavors.append({"name": flavor["flavor"], "resources": resources})
    covered = list(dict.fromkeys(r["name"] for flavor in flavors for r in flavor["resources"]))
    return {"coveredResources": covered, "flavors": flavors}


def _weight(case: Case) -> dict[str, Any] | None:
    return {"weight": case["fair_weight"]} if "fair_weight" in case else None


def cluster_queue(case: Case) -> ClusterQueue:
    """Return a ClusterQueue; without a selector it takes all namespaces, as in the tests."""
    given = case.get("preemption", {})
    preemption: dict[str, Any] = {
        "reclaimWithinCohort": given.get("reclaim_within_cohort", "Never"),
        "withinClusterQueue": given.get("within_cluster_queue", "Never"),
    }
    if "borrow_within_cohort" in given:
        borrow = given["borrow_within_cohort"]
        preemption["borrowWithinCohort"] = {
            "policy": borrow.get("policy", "Never"),
            "maxPriorityThreshold": borrow.get("max_priority_threshold"),
        }
    checks = [{"name": name} for name in case.get("admission_checks", ())]
    spec = {
        "resourceGroups": _groups(case.get("resource_groups", ())),
        "cohortName": case.get("cohort"),
        "queueingStrategy": case.get("queueing_strategy", "BestEffortFIFO"),
        "namespaceSelector": case.get("namespace_selector", {}),
        "flavorFungibility": case.get("flavor_fungibility", {}),
        "preemption": preemption,
        "fairSharing": _weight(case),
        "admissionScope": case.get("admission_scope"),
        "admissionChecksStrategy": {"admissionChecks": checks},
        "stopPolicy": case.get("stop_policy"),
        "concurrentAdmissionPolicy": case.get("concurrent_admission_policy"),
    }
    return decode_part(ClusterQueue, {"metadata": {"name": case["name"]}, "spec": spec})


def cohort(case: Case) -> Cohort:
    """Return a Cohort."""
    spec = {
        "parentName": case.get("parent"),
        "resourceGroups": _groups(case.get("resource_groups", ())),
        "fairSharing": _weight(case),
    }
    return decode_part(Cohort, {"metadata": {"name": case["name"]}, "spec": spec})


def local_queue(case: Case) -> LocalQueue:
    """Return a LocalQueue."""
    metadata = {"name": case["name"], "namespace": case.get("namespace", "")}
    spec = {
        "clusterQueue": case.get("cluster_queue", ""),
        "fairSharing": _weight(case),
        "stopPolicy": case.get("stop_policy"),
    }
    return decode_part(LocalQueue, {"metadata": metadata, "spec": spec})


def flavor(case: Case) -> ResourceFlavor:
    """Return a ResourceFlavor."""
    spec = {
        "nodeLabels": case.get("node_labels", {}),
        "nodeTaints": case.get("node_taints", []),
        "tolerations": case.get("tolerations", []),
        "topologyName": case.get("topology"),
    }
    return decode_part(ResourceFlavor, {"metadata": {"name": case["name"]}, "spec": spec})


def namespaces(case: Mapping[str, Mapping[str, str]]) -> list[Namespace]:
    """Return namespaces by name and labels."""
    return [
        decode_part(Namespace, {"metadata": {"name": name, "labels": dict(labels)}})
        for name, labels in case.items()
    ]


def _pod_set(case: Case) -> dict[str, Any]:
    containers = [{"name": "c", "resources": {"requests": case.get("requests") or {}}}]
    spec = {
        "containers": containers,
        "nodeSelector": case.get("node_selector", {}),
        "tolerations": case.get("tolerations", []),
        "affinity": case.get("affinity"),
    }
    topology = case.get("topology_request")
    return {
        "name": case.get("name", "main"),
        "count": case.get("count", 1),
        "minCount": case.get("min_count"),
        "template": {"spec": spec},
        "topologyRequest": topology,
    }


def _admission(case: Case | None) -> dict[str, Any] | None:
    if case is None:
        return None
    sets = [
        {
            "name": one.get("name", "main"),
            "flavors": one.get("flavors", {}),
            "resourceUsage": one.get("usage", {}),
            "count": one.get("count"),
        }
        for one in case.get("pod_sets", ())
    ]
    return {"clusterQueue": case["cluster_queue"], "podSetAssignments": sets}


def _conditions(cases: Iterable[Case]) -> list[dict[str, Any]]:
    return [
        {
            **{key: one.get(key, "") for key in _CONDITION},
            "lastTransitionTime": at(one.get("at", 0.0)),
        }
        for one in cases
    ]


def workload(case: Case) -> KueueWorkload:
    """Return a Workload; a missing UID is its name."""
    created = case.get("created")
    metadata = {
        "name": case["name"],
        "namespace": case.get("namespace", ""),
        "uid": case.get("uid", ""),
        "labels": case.get("labels", {}),
        "annotations": case.get("annotations", {}),
        "ownerReferences": case.get("ownerReferences", []),
        "creationTimestamp": at(created) if created is not None else None,
    }
    state = case.get("requeue_state")
    stats = case.get("scheduling_stats")
    spec = {
        "podSets": [_pod_set(one) for one in case.get("pod_sets", ())],
        "queueName": case.get("queue"),
        "priority": case.get("priority"),
        "active": case.get("active"),
        "priorityClassRef": case.get("priority_class"),
        "preemptionGates": case.get("preemption_gates", []),
    }
    status = {
        "conditions": _conditions(case.get("conditions", ())),
        "admission": _admission(case.get("admission")),
        "requeueState": {"count": state.get("count"), "requeueAt": at(state.get("requeueAt"))}
        if state
        else None,
        "reclaimablePods": case.get("reclaimable_pods", []),
        "admissionChecks": case.get("admission_checks", []),
        "resourceRequests": case.get("resource_requests", []),
        "schedulingStats": stats,
        "preemptionGates": case.get("preemption_gate_states", []),
    }
    return decode_part(KueueWorkload, {"metadata": metadata, "spec": spec, "status": status})


def columns(usage: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return amounts by flavor and resource as columns."""
    return {
        f"{flavor}/{resource}": amount
        for flavor, by in usage.items()
        for resource, amount in by.items()
    }
