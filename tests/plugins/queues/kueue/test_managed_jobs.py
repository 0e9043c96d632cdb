"""Jobs and pods that name no queue, where Kueue's configuration says that they are held."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.plugins.queues.kueue.kueue_builders import local_queue
from tests.plugins.queues.kueue.queued_job_builders import (
    LABEL,
    conditions,
    job,
    on_nodes,
    one_queue,
    running,
    started,
    workload_of,
)

from bayplan.api import ApiObject, Job, KueueWorkload, LocalQueue, Namespace, ObjectMeta, Pod
from bayplan.errors import InputError
from bayplan.queues.held_jobs import HeldJobs
from bayplan.testing import Cluster, make_node, make_pod

HOLDS: dict[str, Any] = {"manageJobsWithoutQueueName": True}
PODS = {**HOLDS, "integrations": {"frameworks": ["batch/job", "pod"]}}
TEAMS = {"managedJobsNamespaceSelector": {"matchLabels": {"team": "x"}}}
ON_NODE = [make_node("n", gpu=8), *one_queue(8)]


def nameless(name: str, namespace: str = "default", **spec: Any) -> Job:
    made = job(name, 2, **spec)
    meta = msgspec.structs.replace(made.metadata, labels={}, namespace=namespace)
    return msgspec.structs.replace(made, metadata=meta)


def namespace(name: str, **labels: str) -> Namespace:
    return Namespace(ObjectMeta(name=name, labels=labels))


def given(args: dict[str, Any], *objects: ApiObject) -> Cluster:
    return started(*ON_NODE, *objects, args={"kueue": args})


def labelled(cluster: Cluster, name: str, queue: str) -> None:
    (found,) = [one for one in cluster.api.list(Job) if one.metadata.name == name]
    meta = msgspec.structs.replace(found.metadata, labels={LABEL: queue})
    cluster.api.update(msgspec.structs.replace(found, metadata=meta))
    cluster.advance(10.0)


def test_a_job_without_a_queue_is_suspended_until_it_names_one() -> None:
    cluster = given(HOLDS, nameless("a", suspend=False))
    assert running(cluster) == set()
    assert on_nodes(cluster) == {}
    made = workload_of(cluster, "a")
    assert made.spec.queue_name == ""
    (stated,) = [one for one in made.status.conditions if one.type == "QuotaReserved"]
    assert (stated.status, stated.reason) == ("False", "Misconfigured")
    labelled(cluster, "a", "lq")
    assert on_nodes(cluster) == {"a": 2}
    assert workload_of(cluster, "a").spec.queue_name == "lq"
    assert conditions(cluster, "a")["Admitted"] == "True"


def test_a_job_that_is_held_says_what_it_lacks() -> None:
    cluster = given(HOLDS, nameless("a"))
    (held,) = HeldJobs(cluster.scheduler.snapshot).all()
    assert (held.key, held.pods, held.queue) == ("default/a", 2, "")
    assert held.why == f"it names no queue by the label {LABEL}"


def test_jobs_without_a_queue_are_left_alone_by_default() -> None:
    cluster = given({}, nameless("a", suspend=False), nameless("b"))
    assert on_nodes(cluster) == {"a": 2}
    assert cluster.api.list(KueueWorkload) == []
    assert not list(HeldJobs(cluster.scheduler.snapshot).all())


def test_namespaces_of_the_system_are_left_alone() -> None:
    cluster = given(HOLDS, nameless("a", "kube-system", suspend=False))
    assert on_nodes(cluster) == {"a": 2}
    assert cluster.api.list(KueueWorkload) == []


def test_only_selected_namespaces_are_managed_and_labels_count_when_they_change() -> None:
    objects = [namespace("red", team="x"), namespace("blue")]
    jobs = [nameless("r", "red", suspend=False), nameless("b", "blue", suspend=False)]
    cluster = given(HOLDS | TEAMS, *objects, *jobs)
    assert running(cluster) == {"b"}
    cluster.api.update(namespace("blue", team="x"))
    cluster.advance(10.0)
    assert running(cluster) == set()
    cluster.api.update(namespace("red"))
    cluster.advance(10.0)
    (left,) = [one for one in cluster.api.list(Job) if one.metadata.name == "r"]
    cluster.api.update(
        msgspec.structs.replace(left, spec=msgspec.structs.replace(left.spec, suspend=False))
    )
    cluster.advance(10.0)
    assert on_nodes(cluster) == {"r": 2}


def test_a_job_with_a_queue_in_another_namespace_is_not_queued() -> None:
    cluster = given(TEAMS, job("a", 2, suspend=False))
    assert on_nodes(cluster) == {"a": 2}
    assert cluster.api.list(KueueWorkload) == []


@pytest.mark.parametrize(
    ("frameworks", "held"), [(["batch/job"], True), (["ray.io/rayjob"], False)]
)
def test_only_kinds_of_the_integrations_are_held(frameworks: list[str], held: bool) -> None:
    args = {**HOLDS, "integrations": {"frameworks": frameworks}}
    cluster = given(args, nameless("a", suspend=False))
    assert on_nodes(cluster) == ({} if held else {"a": 2})


def test_a_job_without_a_queue_gets_the_default_one_once_there_is_one() -> None:
    cluster = given(HOLDS, nameless("a", suspend=False), nameless("b", "other"))
    assert running(cluster) == set()
    cluster.api.create(local_queue("default", "cq"))
    cluster.advance(10.0)
    assert on_nodes(cluster) == {"a": 2}
    labels = {one.metadata.name: one.metadata.labels for one in cluster.api.list(Job)}
    assert labels == {"a": {LABEL: "default"}, "b": {}}
    assert workload_of(cluster, "a").spec.queue_name == "default"
    assert workload_of(cluster, "b").spec.queue_name == ""


def test_pods_without_a_queue_wait_where_pods_are_an_integration() -> None:
    pods = [
        make_pod("p", None, None, gpu=1),
        make_pod("d", None, None, gpu=1, owner="DaemonSet/ds"),
    ]
    assert set(given(HOLDS, *pods).placements()) == {"p", "d"}
    cluster = given(PODS, *pods)
    assert set(cluster.placements()) == {"d"}
    (made,) = cluster.api.list(KueueWorkload)
    assert (made.metadata.owner_references[0].name, made.spec.queue_name) == ("p", "")
    assert "waiting for a queue: it names none" in cluster.message("p")
    cluster.api.create(local_queue("default", "cq"))
    cluster.advance(10.0)
    assert set(cluster.placements()) == {"p", "d"}


def test_pods_that_run_already_go_on() -> None:
    cluster = given(PODS, make_pod("p", node="n", gpu=1))
    assert cluster.placements() == {"p": "n"}
    assert cluster.api.list(KueueWorkload) == []
    assert [one.metadata.labels for one in cluster.api.list(Pod)] == [{}]


def test_a_pod_that_ended_before_the_first_queue_came_gets_no_quota() -> None:
    cluster = started(make_node("n", gpu=8), namespace("default"), args={"kueue": TEAMS})
    cluster.add(make_pod("gone", None, None, gpu=8, labels={LABEL: "lq"}))
    cluster.api.update(namespace("default", team="x"))
    cluster.advance(1.0)
    cluster.remove("gone")
    cluster.add(*one_queue(8), make_pod("p", None, None, gpu=8, labels={LABEL: "lq"}))
    assert cluster.schedule() == {"p": "n"}
    assert len(cluster.api.list(KueueWorkload)) == 1


def test_a_selector_that_is_none_is_refused() -> None:
    wrong = {"managedJobsNamespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}
    with pytest.raises(InputError, match="managedJobsNamespaceSelector"):
        given(wrong)


# The LocalQueue default ------------------------------------------------------------------------

WITH_PODS: dict[str, Any] = {"integrations": {"frameworks": ["batch/job", "pod"]}}


def with_default_queue(args: dict[str, Any], gpus: int = 8) -> Cluster:
    """Return a cluster whose namespace got a LocalQueue ``default`` ten seconds ago."""
    cluster = started(make_node("n", gpu=8), *one_queue(gpus), args={"kueue": args})
    cluster.add(local_queue("default", "cq"))
    cluster.advance(10.0)
    return cluster


def label_of(cluster: Cluster, name: str) -> str:
    (found,) = [one for one in cluster.api.list(Pod) if one.metadata.name == name]
    return found.metadata.labels.get(LABEL, "")


def test_a_pod_that_names_no_queue_gets_the_default_one_and_waits_for_its_quota() -> None:
    cluster = with_default_queue(WITH_PODS, gpus=1)
    cluster.add(make_pod("a", None, None, gpu=1), make_pod("b", None, None, gpu=1))
    cluster.schedule()
    cluster.advance(10.0)
    assert len(cluster.placements()) == 1
    assert [label_of(cluster, name) for name in ("a", "b")] == ["default", "default"]
    assert {one.spec.queue_name for one in cluster.api.list(KueueWorkload)} == {"default"}
    (waits,) = {"a", "b"} - cluster.placements().keys()
    assert 'waiting for admission by ClusterQueue "cq"' in cluster.message(waits)


def test_pods_get_no_queue_where_they_are_no_integration() -> None:
    cluster = with_default_queue({})
    cluster.add(make_pod("a", None, None, gpu=1))
    cluster.schedule()
    assert cluster.placements() == {"a": "n"}
    assert label_of(cluster, "a") == ""
    assert cluster.api.list(KueueWorkload) == []


def test_a_pod_that_is_older_than_the_default_queue_is_left_alone() -> None:
    cluster = started(make_node("n", gpu=8), *one_queue(8), args={"kueue": WITH_PODS})
    cluster.add(make_pod("old", None, None, gpu=9))
    cluster.schedule()
    cluster.advance(10.0)
    cluster.add(local_queue("default", "cq"))
    cluster.advance(10.0)
    assert label_of(cluster, "old") == ""
    assert "Insufficient nvidia.com/gpu" in cluster.message("old")


def test_a_pod_of_a_daemon_set_or_of_another_namespace_gets_no_queue() -> None:
    cluster = with_default_queue(WITH_PODS)
    cluster.add(
        make_pod("d", None, None, gpu=1, owner="DaemonSet/ds"),
        make_pod("o", None, None, gpu=1, namespace="other"),
    )
    cluster.schedule()
    assert set(cluster.placements()) == {"d", "other/o"}
    assert cluster.api.list(KueueWorkload) == []


def test_a_pod_whose_queue_goes_before_it_got_its_label_runs_without() -> None:
    cluster = with_default_queue(WITH_PODS)
    cluster.api.delete(LocalQueue, "default/default")
    cluster.add(make_pod("a", None, None, gpu=1))
    cluster.schedule()
    assert cluster.placements() == {"a": "n"}


def test_a_job_that_names_no_queue_gets_the_default_one() -> None:
    cluster = with_default_queue({}, gpus=2)
    cluster.add(nameless("a", suspend=False), nameless("b", suspend=False))
    cluster.schedule()
    cluster.advance(10.0)
    assert sorted(on_nodes(cluster).values()) == [2]
    assert {one.metadata.labels.get(LABEL) for one in cluster.api.list(Job)} == {"default"}
    assert len(running(cluster)) == 1


def test_a_job_that_is_older_than_the_default_queue_goes_on_without() -> None:
    cluster = started(make_node("n", gpu=8), *one_queue(8), args={"kueue": WITH_PODS})
    cluster.add(nameless("old", suspend=False))
    cluster.schedule()
    cluster.advance(10.0)
    cluster.add(local_queue("default", "cq"))
    cluster.advance(10.0)
    assert on_nodes(cluster) == {"old": 2}
    assert [one.metadata.labels for one in cluster.api.list(Job)] == [{}]
    assert cluster.api.list(KueueWorkload) == []


def test_a_job_that_ran_before_the_first_cluster_queue_came_goes_on_without() -> None:
    cluster = started(make_node("n", gpu=8), local_queue("default", "cq"))
    cluster.add(nameless("a", suspend=False))
    cluster.schedule()
    cluster.advance(10.0)
    assert on_nodes(cluster) == {"a": 2}
    cluster.add(*one_queue(8), nameless("b", suspend=False))
    cluster.advance(10.0)
    assert on_nodes(cluster) == {"a": 2, "b": 2}
    labels = {one.metadata.name: one.metadata.labels for one in cluster.api.list(Job)}
    assert labels == {"a": {}, "b": {LABEL: "default"}}
    assert workload_of(cluster, "b").spec.queue_name == "default"
    assert len(cluster.api.list(KueueWorkload)) == 1


def test_pods_of_jobs_of_another_integration_queue_by_themselves() -> None:
    cluster = with_default_queue({"integrations": {"frameworks": ["pod"]}})
    cluster.add(nameless("a", suspend=False))
    cluster.schedule()
    cluster.advance(10.0)
    assert on_nodes(cluster) == {"a": 2}
    assert {one.spec.queue_name for one in cluster.api.list(KueueWorkload)} == {"default"}
    assert {one.metadata.labels[LABEL] for one in cluster.api.list(Pod)} == {"default"}
    assert [one.metadata.labels for one in cluster.api.list(Job)] == [{}]
