"""What policies refuse of jobs in Kueue's queues, evaluated by bayplan's own CEL."""

from __future__ import annotations

from typing import Any

import pytest
from tests.admission.evaluated_policies import refused, watches

from bayplan.admission import Defaults, validating_policies
from bayplan.api import KINDS
from bayplan.api.objects import decode_part
from bayplan.dialects.kueue import RETRIABLE
from bayplan.dialects.queued_job_checks import (
    ELASTIC_ANNOTATION,
    GATES_ANNOTATION,
    LEAST_PODS,
    LONGEST_TIME,
    PREBUILT,
    QUEUE_LABEL,
    SAME_COMPLETIONS,
    Why,
    refusals_of,
)

Content = dict[str, Any]
POLICIES = [
    one
    for one in validating_policies(Defaults())
    if one["kind"] == "ValidatingAdmissionPolicy" and "warnings" not in one["metadata"]["name"]
]
GROUP, TOTAL = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"


def job(suspend: bool, parallelism: int = 4, **annotations: str) -> Content:
    meta = {"name": "j", "namespace": "n", "labels": {QUEUE_LABEL: "q"}, "annotations": annotations}
    spec = {"suspend": suspend, "parallelism": parallelism, "template": {}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


def pod(node: str = "", **annotations: str) -> Content:
    marks = {TOTAL: "2", **annotations}
    meta = {"name": "p", "namespace": "n", "labels": {GROUP: "g"}, "annotations": marks}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"nodeName": node}}


def with_labels(content: Content, **labels: str) -> Content:
    meta = content["metadata"]
    return {**content, "metadata": {**meta, "labels": {**meta["labels"], **labels}}}


def said_of(new: Content, old: Content | None, *groups: str, default: bool = False) -> list[str]:
    kind = KINDS[new["apiVersion"].rpartition("/")[0], new["kind"]]
    operation = "UPDATE" if old is not None else "CREATE"
    found: list[str] = []
    for policy in POLICIES:
        needs_queue = policy["spec"].get("paramKind", {}).get("kind") == "LocalQueue"
        if watches(policy, kind.group, kind.plural, operation) and (default or not needs_queue):
            params = {"metadata": {"name": "default"}}
            found += refused(policy, new, old, params, groups)
    return found


def test_the_size_of_a_job_that_may_run_with_fewer_pods_changes_only_while_it_waits() -> None:
    least = {LEAST_PODS: "2"}
    refusal = f"spec.parallelism: Forbidden: {Why.PARTIAL}"
    assert said_of(job(False, 3, **least), job(False, **least)) == [refusal]
    assert said_of(job(True, 3, **least), job(False, **least)) == [refusal]
    assert said_of(job(False, 3, **least), job(True, **least)) == []
    assert said_of(job(False, 3), job(False)) == []


def test_whether_completions_follow_parallelism_changes_only_while_it_waits() -> None:
    same = {SAME_COMPLETIONS: "true"}
    refusal = f"metadata.annotations[{SAME_COMPLETIONS}]: Forbidden: {Why.RUNS}"
    assert said_of(job(False), job(False, **same)) == [refusal]
    assert said_of(job(True), job(True, **same)) == []
    assert said_of(job(False, **{SAME_COMPLETIONS: "1"}), job(False, **same)) == []


def test_what_bayplan_writes_and_what_is_being_deleted_is_not_asked() -> None:
    old, new = job(False), with_labels(job(False), **{QUEUE_LABEL: "other"})
    assert said_of(new, old) == [f"metadata.labels[{QUEUE_LABEL}]: Invalid value: {Why.RUNS}"]
    assert said_of(new, old, "system:serviceaccounts:bayplan-system") == []
    assert said_of(new, old, "system:serviceaccounts:other") != []
    deleted = {**new, "metadata": {**new["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert said_of(deleted, old) == []


def test_a_name_that_was_wrong_before_holds_up_no_other_change() -> None:
    wrong = with_labels(job(True), **{LONGEST_TIME: "soon"})
    assert said_of(wrong, None) == [
        f"metadata.labels[{LONGEST_TIME}]: Invalid value: {Why.SECONDS}"
    ]
    assert said_of({**wrong, "status": {"ready": 1}}, wrong) == []
    assert said_of(wrong, job(True)) != []


def test_a_job_keeps_a_queue_where_jobs_without_one_get_the_default_one() -> None:
    without = job(True)
    without["metadata"].pop("labels")
    assert said_of(without, job(True)) == []
    refusal = f"metadata.labels[{QUEUE_LABEL}]: Invalid value: {Why.DEFAULT_QUEUE}"
    assert said_of(without, job(True), default=True) == [refusal]


def test_a_pod_whose_failure_is_final_stays_so() -> None:
    old = pod(**{RETRIABLE: "false"})
    refusal = f"metadata.annotations[{RETRIABLE}]: Forbidden: {Why.UNRETRIABLE}"
    assert said_of(pod(), old) == [refusal]
    assert said_of(old, pod()) == []


def test_a_pod_of_a_group_may_be_let_go() -> None:
    assert said_of(pod("n"), pod()) == []
    refusal = f"metadata.labels[{GROUP}]: Invalid value: {Why.IMMUTABLE}"
    assert said_of(with_labels(pod(), **{GROUP: "h"}), pod()) == [refusal]


def stateful_set(replicas: int | None, there: int = 0, **pods: Any) -> Content:
    container = {"name": "c", "image": "a", "resources": {"requests": {"cpu": "1"}}}
    spec: Content = {"template": {"spec": {"containers": [container], **pods}}}
    if replicas is not None:
        spec["replicas"] = replicas
    meta = {"name": "s", "namespace": "n", "labels": {QUEUE_LABEL: "q"}}
    status = {"replicas": there}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": meta,
        "spec": spec,
        "status": status,
    }


@pytest.mark.parametrize(
    ("old", "new", "there", "why"),
    [
        (3, 2, 3, f"Invalid value: {Why.SIZE}"),
        (None, 2, 1, f"Invalid value: {Why.SIZE}"),
        (3, 0, 3, ""),
        (0, 3, 0, ""),
        (0, 3, 1, f"Forbidden: {Why.ENDING}"),
        (3, 3, 3, ""),
    ],
)
def test_a_stateful_set_changes_its_size_to_zero_and_from_zero(
    old: int | None, new: int, there: int, why: str
) -> None:
    found = said_of(stateful_set(new, there), stateful_set(old, there))
    assert found == ([f"spec.replicas: {why}"] if why else [])
    free = [stateful_set(one, there) for one in (new, old)]
    for one in free:
        one["metadata"]["labels"].clear()
    assert said_of(*free) == []


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}, "containers"),
        ({"initContainers": [{"name": "i"}]}, "initContainers"),
        ({"nodeSelector": {"a": "b"}}, "nodeSelector"),
        ({"tolerations": [{"operator": "Exists"}]}, "tolerations"),
        ({"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}, ""),
        ({"terminationGracePeriodSeconds": 1}, ""),
    ],
    ids=str,
)
def test_what_the_pods_of_a_stateful_set_ask_for_stays(changed: Content, field: str) -> None:
    found = said_of(stateful_set(3, **changed), stateful_set(3))
    refusal = f"spec.template.spec.{field}: Invalid value: {Why.ASKED}"
    assert found == ([refusal] if field else [])


def test_jobs_in_no_queue_are_left_alone() -> None:
    old, new = job(False), with_labels(job(False), **{LONGEST_TIME: "0"})
    for one in (old, new):
        one["metadata"]["labels"].pop(QUEUE_LABEL)
    assert said_of(new, old) == said_of(new, None) == []


@pytest.mark.parametrize("gates", ["a.b/c", "a.b/c,a.b/d", "a", "a.b/c,a.b/c", "A/b", " ", "a.b/,"])
@pytest.mark.parametrize("elastic", ["", "true"])
@pytest.mark.parametrize(
    "labels",
    [
        {},
        {QUEUE_LABEL: "A"},
        {QUEUE_LABEL: "a" * 254},
        {LONGEST_TIME: "0"},
        {LONGEST_TIME: "010"},
        {LONGEST_TIME: "-1"},
        {PREBUILT: "a_b"},
        {PREBUILT: "a.b"},
    ],
    ids=str,
)
def test_names_are_refused_in_the_words_that_would_hold_the_job(
    labels: dict[str, str], elastic: str, gates: str
) -> None:
    annotations = {GATES_ANNOTATION: gates} | ({ELASTIC_ANNOTATION: elastic} if elastic else {})
    content = with_labels(job(True, **annotations), **labels)
    own = decode_part(KINDS["batch", "Job"].type, {"metadata": content["metadata"], "spec": {}})
    expected = sorted(map(str, refusals_of(own, content, ())))
    assert sorted(said_of(content, None)) == expected
