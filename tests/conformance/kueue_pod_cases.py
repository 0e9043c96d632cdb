"""Kueue's integration of pods and groups of pods, run on what makes their Workloads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.conformance.kind_cases import UnmodelledError
from tests.conformance.kueue_objects import NOW

from bayplan import PodInfo
from bayplan.api import KueueWorkload, Pod
from bayplan.api.objects import decode_part
from bayplan.dialects.kueue import GROUP_MARK, total_of
from bayplan_plugins.queues.kueue.gates import is_gated
from bayplan_plugins.queues.kueue.job_workloads import longest_time
from bayplan_plugins.queues.kueue.pod_groups import (
    is_ready,
    key_of,
    owner_of,
    pod_set_of,
    pod_sets_of,
    refusal_of,
    runs_or_succeeded,
    with_replacements,
)

Content = dict[str, Any]
_PARTS = ("metadata", "spec", "status")


def pods_of(given: Content) -> list[Pod]:
    """Return the pods of a group, or the one without."""
    listed = given.get("list", {}).get("items") or [] if given.get("is_group") else [given["pod"]]
    return [decode_part(Pod, {key: one.get(key, {}) for key in _PARTS}) for one in listed]


def workload_of(content: Content) -> KueueWorkload:
    return decode_part(KueueWorkload, {key: content.get(key, {}) for key in _PARTS})


def sets_of_pods(given: Content) -> tuple[Any, ...]:
    """Return the pod sets of pods.

    :raises ValueError: where there are none.
    """
    pods = pods_of(given)
    if not given.get("is_group"):
        return (pod_set_of(pods[0]),)
    return pod_sets_of([one for one in pods if runs_or_succeeded(one)])


def workload(given: Content, expected: Content) -> None:
    """Compare the Workload that pods get."""
    if given.get("feature_gates", {}).get("CustomMetricLabels"):
        raise UnmodelledError("bayplan copies no annotations of pods into metrics")
    pods, is_group = pods_of(given["pods"]), bool(given["pods"].get("is_group"))
    there = [one for one in pods if runs_or_succeeded(one)] if is_group else pods
    if not there or (is_group and refusal_of(there)):
        assert "error" in expected
        return
    total = total_of(there[0].metadata) if is_group else 1
    if total is not None and len(there) > total:
        raise UnmodelledError("pods beyond the number of their group wait, and none is deleted")
    complete = total is not None and len(there) >= total
    assert complete == ("error" not in expected)
    if not complete:
        return
    found = sets_of_pods(given["pods"])
    wanted = workload_of(expected["workload"])
    assert [(one.name, one.count) for one in found] == [
        (one.name, one.count) for one in wanted.spec.pod_sets
    ]
    assert key_of(PodInfo(there[0])) == wanted.key
    assert longest_time(there[0].metadata) == wanted.spec.maximum_execution_time_seconds
    owners = {(one.kind, one.name, one.uid) for one in wanted.metadata.owner_references}
    made = (owner_of(one, not is_group) for one in pods)
    assert owners <= {(one.kind, one.name, one.uid) for one in made}


def conditions(given: Content, expected: Content) -> None:
    """Compare what a group's Workload says of pods that are to be replaced."""
    before = workload_of(given["workload"])
    if GROUP_MARK not in before.metadata.annotations.items():
        assert not expected["changed"]
        return
    after = with_replacements(before, pods_of(given["pods"]), NOW)
    assert (after != before) == expected["changed"]
    stated = {one.type: one for one in after.status.conditions}
    for one in expected["conditions"]:
        found = stated[one["type"]]
        assert (found.status, found.reason, found.message) == (
            one["status"],
            one["reason"],
            one["message"],
        )


def state(given: Content, expected: Content) -> None:
    """Compare whether pods are to be let go, hold their nodes, or are all ready."""
    listed, is_group = given["pods"].get("list"), bool(given["pods"].get("is_group"))
    pods = pods_of({**given["pods"], "is_group": is_group or listed is not None})
    if given["question"] == "suspended":
        ended = [one.status.phase in ("Succeeded", "Failed") for one in pods]
        found = any(ended) or any(is_gated(PodInfo(one)) for one in pods)
    elif given["question"] == "active":
        # A pod that runs has a node.
        runs = [one for one in pods if one.status.phase == "Running"]
        found = any(one.metadata.deletion_timestamp is None for one in runs)
        if runs and not found:
            raise UnmodelledError("the case does not say at what time a pod has not ended yet")
    else:
        (named,) = pods_of({"pod": given["pods"]["pod"]}) if is_group else [None]
        total = total_of(named.metadata) if named is not None else 1
        found = total is not None and sum(map(is_ready, pods)) >= total
    assert found == expected["value"]


RUNNERS: dict[str, Callable[[Content, Content], None]] = {
    "pod-workload": workload,
    "pod-workload-conditions": conditions,
}
