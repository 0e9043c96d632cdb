"""The same stories with Kueue's manager and with bayplan in its place: users see the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
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
CLUSTER_QUEUE = f"/apis/{KUEUE}/clusterqueues/q"


@pytest.fixture(params=["kueue", "bayplan"])
def admitting(request: pytest.FixtureRequest, peers: Peers, tmp_path: Path) -> Iterator[Peers]:
    """A cluster on which the one or the other admits; bayplan places. The quota is 6 cores."""
    with ExitStack() as stack:
        stack.enter_context(peers.scheduler(tmp_path, expected=MANAGER))
        if request.param == "kueue":
            stack.enter_context(peers.running("kueue", KUEUE_FRAMEWORKS=FRAMEWORKS))
        else:
            peers.define("kueue.x-k8s.io_*")
        yield peers


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
