"""Kueue's objects in both versions, and what its webhooks refuse."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bayplan.api.kueue import (
    AdmissionCheckState,
    ClusterQueue,
    Cohort,
    EvictionCount,
    KueueCondition,
    KueueWorkload,
    KueueWorkloadStatus,
    LocalQueue,
    SchedulingStats,
)
from bayplan.api.objects import KINDS, ApiObject, DecodeError, decode_json, decode_object
from bayplan.api.times import rfc3339, seconds_of

Content = dict[str, Any]
QUOTA = {"name": "cpu", "nominalQuota": "8"}
GROUP = {"coveredResources": ["cpu"], "flavors": [{"name": "a", "resources": [QUOTA]}]}
POD_SET = {"name": "main", "count": 2, "template": {"spec": {"containers": [{"name": "c"}]}}}


def decode(kind: str, spec: Content, version: str = "v1beta2") -> ApiObject:
    content = {
        "apiVersion": f"kueue.x-k8s.io/{version}",
        "kind": kind,
        "metadata": {"name": "x"},
        "spec": spec,
    }
    return decode_object(KINDS["kueue.x-k8s.io", kind], content)


def test_a_cluster_queue_of_the_older_version_reads_as_one_of_the_newer() -> None:
    old = decode(
        "ClusterQueue",
        {
            "cohort": "team",
            "resourceGroups": [GROUP],
            "admissionChecks": ["budget"],
            "flavorFungibility": {"whenCanBorrow": "Borrow", "whenCanPreempt": "Preempt"},
        },
        "v1beta1",
    )
    new = decode(
        "ClusterQueue",
        {
            "cohortName": "team",
            "resourceGroups": [GROUP],
            "admissionChecksStrategy": {"admissionChecks": [{"name": "budget"}]},
            "flavorFungibility": {
                "whenCanBorrow": "MayStopSearch",
                "whenCanPreempt": "MayStopSearch",
            },
        },
    )
    assert isinstance(old, ClusterQueue)
    assert old == new


def test_what_an_api_server_sends_in_the_older_version_is_converted() -> None:
    content = b'{"metadata": {"name": "x"}, "spec": {"cohort": "team"}}'
    found = decode_json(KINDS["kueue.x-k8s.io", "ClusterQueue"], "v1beta1", content)
    assert isinstance(found, ClusterQueue)
    assert found.spec.cohort_name == "team"


def test_a_workloads_priority_class_of_the_older_version_is_read() -> None:
    spec = {
        "podSets": [POD_SET],
        "priorityClassName": "high",
        "priorityClassSource": "kueue.x-k8s.io/workloadpriorityclass",
    }
    found = decode("Workload", spec, "v1beta1")
    assert isinstance(found, KueueWorkload)
    assert found.key == "default/x"
    assert found.spec.priority_class_ref is not None
    assert found.spec.priority_class_ref.kind == "WorkloadPriorityClass"


def test_a_cohorts_parent_of_the_oldest_version_is_read() -> None:
    found = decode("Cohort", {"parent": "org"}, "v1alpha1")
    assert isinstance(found, Cohort)
    assert found.spec.parent_name == "org"


def test_a_status_survives_reading() -> None:
    content = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "LocalQueue",
        "metadata": {"name": "x"},
        "spec": {"clusterQueue": "team"},
        "status": {"pendingWorkloads": 3},
    }
    found = decode_object(KINDS["kueue.x-k8s.io", "LocalQueue"], content)
    assert isinstance(found, LocalQueue)
    assert found.status.pending_workloads == 3


def _group(**quota: str) -> Content:
    flavor = {"name": "a", "resources": [{**QUOTA, **quota}]}
    return {"coveredResources": ["cpu"], "flavors": [flavor]}


REFUSED: list[tuple[str, Content, str, str]] = [
    (
        "ClusterQueue",
        {"resourceGroups": [_group(nominalQuota="-1")]},
        "$.spec.resourceGroups[0].flavors[0].resources[0].nominalQuota",
        "expected 0 or more, got -1",
    ),
    (
        "ClusterQueue",
        {"resourceGroups": [_group(borrowingLimit="1")]},
        "$.spec.resourceGroups[0].flavors[0].resources[0].borrowingLimit",
        "means nothing without a cohort",
    ),
    (
        "Cohort",
        {"resourceGroups": [_group(lendingLimit="1")]},
        "$.spec.resourceGroups[0].flavors[0].resources[0].lendingLimit",
        "means nothing without a parent",
    ),
    (
        "ClusterQueue",
        {"cohortName": "team", "resourceGroups": [_group(lendingLimit="9")]},
        "$.spec.resourceGroups[0].flavors[0].resources[0].lendingLimit",
        "9 is more than the nominal quota, 8",
    ),
    (
        "ClusterQueue",
        {"resourceGroups": [GROUP, {**GROUP, "flavors": [{"name": "b", "resources": [QUOTA]}]}]},
        "$.spec.resourceGroups[1].coveredResources",
        'the resource "cpu" is in two resource groups',
    ),
    (
        "ClusterQueue",
        {"resourceGroups": [{**GROUP, "flavors": GROUP["flavors"] * 2}]},
        "$.spec.resourceGroups[0].flavors[1].name",
        'the flavor "a" is listed twice',
    ),
    (
        "ClusterQueue",
        {"resourceGroups": [{**GROUP, "coveredResources": ["cpu", "memory"]}]},
        "$.spec.resourceGroups[0].flavors[0].resources",
        "expected a quota for each covered resource in the same order: cpu, memory",
    ),
    (
        "ClusterQueue",
        {"preemption": {"borrowWithinCohort": {"policy": "LowerPriority"}}},
        "$.spec.preemption.borrowWithinCohort.policy",
        "needs a reclaimWithinCohort other than Never",
    ),
    (
        "ClusterQueue",
        {"preemption": {"reclaimWithinCohort": "Sometimes"}},
        "$.spec.preemption.reclaimWithinCohort",
        '"Sometimes" is not one of the allowed values '
        "(Any, LowerOrNewerEqualPriority, LowerPriority, Never)",
    ),
    (
        "ClusterQueue",
        {"fairSharing": {"weight": "-2"}},
        "$.spec.fairSharing.weight",
        "expected 0 or more, got -2",
    ),
    ("Cohort", {"parentName": "x"}, "$.spec.parentName", "a cohort cannot be its own parent"),
    (
        "Workload",
        {"podSets": [POD_SET, POD_SET]},
        "$.spec.podSets[1].name",
        'two pod sets are named "main"',
    ),
    (
        "Workload",
        {"podSets": [{**POD_SET, "minCount": 3}]},
        "$.spec.podSets[0].minCount",
        "expected 1 to 2, the count, got 3",
    ),
    (
        "ResourceFlavor",
        {"topologyName": "racks"},
        "$.spec.nodeLabels",
        "a flavor with a topology needs one label or more",
    ),
]


@pytest.mark.parametrize(("kind", "spec", "path", "message"), REFUSED)
def test_bad_input_is_refused_with_its_place(
    kind: str, spec: Content, path: str, message: str
) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(kind, spec)
    assert (path, message) in caught.value.problems


def test_times_are_read_and_written_in_utc() -> None:
    assert seconds_of("1970-01-01T00:01:00Z") == 60.0
    assert seconds_of("1970-01-01T01:01:00+01:00") == 60.0
    assert seconds_of(None) == seconds_of("yesterday") == 0.0
    assert rfc3339(60.4) == "1970-01-01T00:01:00Z"


def test_a_status_says_what_the_definition_of_workloads_requires_though_it_is_empty() -> None:
    """An API server refuses a whole status for one such field."""
    status = KueueWorkloadStatus(
        conditions=(KueueCondition("Finished", "True", "Succeeded"),),
        admission_checks=(AdmissionCheckState("check", "Pending"),),
        scheduling_stats=SchedulingStats((EvictionCount("Preempted", count=1),)),
    )
    plain = msgspec.to_builtins(status)
    assert plain["conditions"][0]["message"] == ""
    assert plain["admissionChecks"][0]["message"] == ""
    assert plain["schedulingStats"]["evictions"][0]["underlyingCause"] == ""
