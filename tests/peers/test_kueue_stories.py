"""The same stories with Kueue's manager and with bayplan in its place: users see the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.controlplane.live_cluster import PODS, Content
from tests.controlplane.queue_builders import KUEUE, cluster_queue, head, suspended_job
from tests.controlplane.story_builders import asking, nodes
from tests.peers.real_peers import SCHEDULER, Peers
from tests.peers.test_kueue import FRAMEWORKS, MANAGER, WORKLOADS, finish, is_true, placed

LABEL = "kueue.x-k8s.io/queue-name"
LOCAL_QUEUE = f"/apis/{KUEUE}/namespaces/default/localqueues/q"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
CLUSTER_QUEUE = f"/apis/{KUEUE}/clusterqueues/q"


@contextmanager
def admission(who: str, peers: Peers, folder: Path, **settings: Any) -> Iterator[Peers]:
    """Have Kueue's manager or bayplan admit; bayplan places.

    :param settings: what both have in their configurations.
    """
    with ExitStack() as stack:
        plugins = {"Queues": {"kueue": settings}} if settings else {}
        stack.enter_context(peers.scheduler(folder, expected=MANAGER, plugins=plugins))
        if who == "kueue":
            config = "\n".join(f"{name}: {json.dumps(one)}" for name, one in settings.items())
            more = {"KUEUE_CONFIG": config} if settings else {}
            stack.enter_context(peers.running("kueue", KUEUE_FRAMEWORKS=FRAMEWORKS, **more))
        else:
            peers.define("kueue.x-k8s.io_*")
        # One that Kueue's finalizer keeps would hold back whoever admits next.
        peers.cluster.used(head(KUEUE, "Workload", "any"))
        yield peers


@pytest.fixture(params=["kueue", "bayplan"])
def admitting(request: pytest.FixtureRequest, peers: Peers, tmp_path: Path) -> Iterator[Peers]:
    """A cluster on which the one or the other admits; bayplan places. The quota is 6 cores."""
    with admission(request.param, peers, tmp_path) as found:
        yield found


@pytest.fixture(params=["kueue", "bayplan"])
def holding(request: pytest.FixtureRequest, peers: Peers, tmp_path: Path) -> Iterator[Peers]:
    """The same, where jobs without a queue are held."""
    with admission(request.param, peers, tmp_path, manageJobsWithoutQueueName=True) as found:
        yield found


def workload(peers: Peers, owner: str) -> Content:
    """Return the Workload of a job or a pod."""
    (found,) = [
        one
        for one in peers.cluster.items(WORKLOADS)
        if one["metadata"]["ownerReferences"][0]["name"] == owner
    ]
    return found


def waits_for(peers: Peers, owner: str, true: Callable[[Content], Any], what: str) -> None:
    def holds() -> bool:
        owners = [
            one["metadata"]["ownerReferences"][0]["name"] for one in peers.cluster.items(WORKLOADS)
        ]
        return owner in owners and bool(true(workload(peers, owner)))

    peers.wait(holds, what)


def condition(content: Content, type_: str) -> Content:
    conditions = content.get("status", {}).get("conditions", ())
    found: Content = next((one for one in conditions if one["type"] == type_), {})
    return found


def classed(name: str, count: int, priority: str = "") -> list[Content]:
    (made,) = suspended_job(name, "q", count)
    if priority:
        made["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = priority
    return [made]


def test_jobs_wait_for_quota_and_follow_each_other(admitting: Peers) -> None:
    urgent = head(KUEUE, "WorkloadPriorityClass", "urgent", False) | {"value": 9}
    admitting.cluster.apply([*nodes(2), *cluster_queue("q"), urgent, *classed("first", 4)])
    admitting.wait(lambda: placed(admitting, "first") == 4, "the first has its nodes")
    # A job is named, its class is referred to, and its quota is charged the same way.
    admitting.cluster.apply(classed("second", 3, "urgent"))
    waits_for(admitting, "second", lambda one: condition(one, "QuotaReserved"), "it is told why")
    first, second = workload(admitting, "first"), workload(admitting, "second")
    assert first["metadata"]["name"].startswith("job-first-")
    assert second["spec"]["priority"] == 9
    assert second["spec"]["priorityClassRef"]["kind"] == "WorkloadPriorityClass"
    refused = condition(second, "QuotaReserved")
    assert (refused["status"], refused["reason"]) == ("False", "WaitingForQuota")
    assert "insufficient unused quota for cpu in flavor q, 1 more needed" in refused["message"]
    (assigned,) = first["status"]["admission"]["podSetAssignments"]
    assert (assigned["count"], assigned["flavors"], assigned["resourceUsage"]) == (
        4,
        {"cpu": "q"},
        {"cpu": "4"},
    )
    finish(admitting, "first")
    admitting.wait(lambda: placed(admitting, "second") == 3, "the second follows")
    waits_for(admitting, "first", lambda one: is_true(one, "Finished"), "the first has finished")
    assert condition(workload(admitting, "first"), "Finished")["reason"] == "Succeeded"


def test_a_workload_that_is_made_inactive_stops_and_comes_back(admitting: Peers) -> None:
    client = admitting.cluster.client
    admitting.cluster.apply([*nodes(2), *cluster_queue("q"), *classed("job", 4)])
    admitting.wait(lambda: placed(admitting, "job") == 4, "it has its nodes")
    path = f"{WORKLOADS}/{workload(admitting, 'job')['metadata']['name']}"
    assert client.patch(path, {"spec": {"active": False}}).code == 200
    admitting.wait(lambda: placed(admitting, "job") == 0, "it has stopped")
    waits_for(admitting, "job", lambda one: "admission" not in one["status"], "quota is free")
    assert condition(workload(admitting, "job"), "Evicted")["reason"] == "Deactivated"
    assert client.patch(path, {"spec": {"active": True}}).code == 200
    admitting.wait(lambda: placed(admitting, "job") == 4, "it runs again")


def test_a_queue_that_is_held_and_drained_evicts_and_goes_on(admitting: Peers) -> None:
    client = admitting.cluster.client
    admitting.cluster.apply([*nodes(2), *cluster_queue("q"), *classed("job", 4)])
    admitting.wait(lambda: placed(admitting, "job") == 4, "it has its nodes")
    assert client.patch(CLUSTER_QUEUE, {"spec": {"stopPolicy": "HoldAndDrain"}}).code == 200
    admitting.wait(lambda: placed(admitting, "job") == 0, "it is evicted")
    waits_for(admitting, "job", lambda one: "admission" not in one["status"], "quota is free")
    assert condition(workload(admitting, "job"), "Evicted")["reason"] == "ClusterQueueStopped"
    assert client.patch(CLUSTER_QUEUE, {"spec": {"stopPolicy": "None"}}).code == 200
    admitting.wait(lambda: placed(admitting, "job") == 4, "it runs again")


def test_a_job_of_higher_priority_preempts_in_its_queue(admitting: Peers) -> None:
    urgent = head(KUEUE, "WorkloadPriorityClass", "urgent", False) | {"value": 9}
    flavor, local, queue = cluster_queue("q")
    queue["spec"]["preemption"] = {"withinClusterQueue": "LowerPriority"}
    admitting.cluster.apply([*nodes(2), flavor, local, queue, urgent, *classed("low", 4)])
    admitting.wait(lambda: placed(admitting, "low") == 4, "the first has its nodes")
    admitting.cluster.apply(classed("high", 4, "urgent"))
    admitting.wait(lambda: placed(admitting, "high") == 4, "the other preempts it")
    victim = workload(admitting, "low")
    assert condition(victim, "Evicted")["reason"] == "Preempted"
    assert condition(victim, "Preempted")["reason"] == "InClusterQueue"
    finish(admitting, "high")
    admitting.wait(lambda: placed(admitting, "low") == 4, "it runs again")


def test_a_single_pod_is_queued_and_admitted(admitting: Peers) -> None:
    pod = asking("single", schedulerName=SCHEDULER, restartPolicy="Never")
    pod["metadata"]["labels"] = {LABEL: "q"}
    admitting.cluster.apply([*nodes(2), *cluster_queue("q"), pod])
    client = admitting.cluster.client
    admitting.wait(
        lambda: "nodeName" in client.get(f"{PODS}/single").json["spec"], "it has its node"
    )
    found = workload(admitting, "single")
    assert found["metadata"]["name"].startswith("pod-single-")
    waits_for(admitting, "single", lambda one: is_true(one, "Admitted"), "it is admitted")
    waits_for(
        admitting,
        "single",
        lambda _: (
            client.get(f"{PODS}/single").json["metadata"]["labels"].get("kueue.x-k8s.io/managed")
            == "true"
        ),
        "it is marked",
    )


def nameless(name: str, count: int) -> list[Content]:
    """Return a job that names no queue, and is not suspended."""
    (made,) = suspended_job(name, "q", count)
    del made["metadata"]["labels"]
    made["spec"]["suspend"] = False
    return [made]


def quota_reserved(peers: Peers, name: str) -> tuple[str, str, str]:
    """Return status, reason and message of whether a job has quota."""
    found = condition(workload(peers, name), "QuotaReserved")
    return found.get("status", ""), found.get("reason", ""), found.get("message", "")


def test_a_queue_with_an_inactive_check_takes_no_jobs_until_it_is_active(admitting: Peers) -> None:
    client, now = admitting.cluster.client, "2026-01-01T00:00:00Z"
    check = head(KUEUE, "AdmissionCheck", "budget", False)
    check["spec"] = {"controllerName": "example.com/budget"}
    flavor, local, queue = cluster_queue("q")
    queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": [{"name": "budget"}]}
    admitting.cluster.apply([*nodes(2), check, flavor, local, queue, *classed("job", 4)])
    inactive = ("False", "Suspended", "ClusterQueue q is inactive")
    waits_for(admitting, "job", lambda _: quota_reserved(admitting, "job") == inactive, "it waits")

    def active() -> tuple[str, str, str]:
        found = condition(client.get(CLUSTER_QUEUE).json, "Active")
        return found.get("status", ""), found.get("reason", ""), found.get("message", "")

    text = "Can't admit new workloads: references inactive AdmissionCheck(s): budget."
    assert active() == ("False", "AdmissionCheckInactive", text)
    stated = {"type": "Active", "status": "True", "reason": "R", "message": ""}
    body = {"status": {"conditions": [{**stated, "lastTransitionTime": now}]}}
    assert client.patch(f"/apis/{KUEUE}/admissionchecks/budget/status", body).code == 200
    waits_for(admitting, "job", lambda one: is_true(one, "QuotaReserved"), "it has quota")
    assert active() == ("True", "Ready", "Can admit new workloads")
    waits_for(admitting, "job", lambda one: one["status"].get("admissionChecks"), "it is checked")
    assert placed(admitting, "job") == 0
    ready = {"name": "budget", "state": "Ready", "message": "", "lastTransitionTime": now}
    path = f"{WORKLOADS}/{workload(admitting, 'job')['metadata']['name']}/status"
    assert client.patch(path, {"status": {"admissionChecks": [ready]}}).code == 200
    admitting.wait(lambda: placed(admitting, "job") == 4, "it runs")


def test_a_local_queue_that_is_held_and_drained_evicts_and_goes_on(admitting: Peers) -> None:
    client = admitting.cluster.client
    admitting.cluster.apply([*nodes(2), *cluster_queue("q"), *classed("job", 4)])
    admitting.wait(lambda: placed(admitting, "job") == 4, "it has its nodes")
    assert client.patch(LOCAL_QUEUE, {"spec": {"stopPolicy": "HoldAndDrain"}}).code == 200
    admitting.wait(lambda: placed(admitting, "job") == 0, "it is evicted")
    held = ("False", "Suspended", "LocalQueue q is inactive")
    waits_for(admitting, "job", lambda _: quota_reserved(admitting, "job") == held, "it waits")
    assert condition(workload(admitting, "job"), "Evicted")["reason"] == "LocalQueueStopped"
    assert client.patch(LOCAL_QUEUE, {"spec": {"stopPolicy": "None"}}).code == 200
    admitting.wait(lambda: placed(admitting, "job") == 4, "it runs again")


def test_a_job_that_may_be_smaller_runs_with_what_there_is(admitting: Peers) -> None:
    (large,) = suspended_job("large", "q", 8)
    large["metadata"]["annotations"] = {"kueue.x-k8s.io/job-min-parallelism": "2"}
    admitting.cluster.apply([*nodes(2), *cluster_queue("q"), large])
    admitting.wait(lambda: placed(admitting, "large") == 6, "it runs with what there is")
    assert admitting.cluster.client.get(f"{JOBS}/large").json["spec"]["parallelism"] == 6
    (assigned,) = workload(admitting, "large")["status"]["admission"]["podSetAssignments"]
    assert (assigned["count"], assigned["resourceUsage"]) == (6, {"cpu": "6"})


def test_a_job_gives_its_quota_back_pod_by_pod(admitting: Peers) -> None:
    admitting.cluster.apply([*nodes(2), *cluster_queue("q"), *classed("large", 6)])
    admitting.wait(lambda: placed(admitting, "large") == 6, "it runs")
    admitting.cluster.apply(classed("next", 2))
    waits_for(admitting, "next", lambda one: condition(one, "QuotaReserved"), "it waits")
    for pod in [one for one in admitting.cluster.items(PODS) if "nodeName" in one["spec"]][:4]:
        path = f"{PODS}/{pod['metadata']['name']}/status"
        body = {"status": {"phase": "Succeeded"}}
        assert admitting.cluster.client.patch(path, body).code == 200
    admitting.wait(lambda: placed(admitting, "next") == 2, "the other has what it needs no more")
    reclaimed = workload(admitting, "large")["status"]["reclaimablePods"]
    assert [(one["name"], one["count"]) for one in reclaimed] == [("main", 4)]


def test_a_job_without_a_queue_is_held_until_it_names_one(holding: Peers) -> None:
    client = holding.cluster.client
    holding.cluster.apply([*nodes(2), *cluster_queue("q"), *nameless("job", 4)])
    waits_for(holding, "job", lambda one: condition(one, "QuotaReserved"), "it has a Workload")
    holding.wait(lambda: client.get(f"{JOBS}/job").json["spec"]["suspend"], "it is suspended")
    assert "queueName" not in workload(holding, "job")["spec"]
    missing = ("False", "Misconfigured", "LocalQueue  doesn't exist")
    assert quota_reserved(holding, "job") == missing
    assert placed(holding, "job") == 0
    labels = {"metadata": {"labels": {LABEL: "q"}}}
    assert client.patch(f"{JOBS}/job", labels).code == 200
    holding.wait(lambda: placed(holding, "job") == 4, "it runs")
    assert workload(holding, "job")["spec"]["queueName"] == "q"
