"""The same stories with Kueue's manager and with bayplan in its place: users see the same."""

from __future__ import annotations

from tests.controlplane.story_builders import asking
from tests.peers.kueue_stories import QUEUE, Story, condition, quota
from tests.peers.real_peers import SCHEDULER

STRATEGY = "admissionChecksStrategy"


def test_jobs_wait_for_quota_and_follow_each_other(story: Story) -> None:
    story.flavor()
    story.queue("q")
    story.priority("urgent", 9)
    story.job("first", "q", 4)
    story.wait_for_pods(first=4)
    # A job is named, its class is referred to, and its quota is charged the same way.
    story.job("second", "q", 3, priority="urgent")
    story.wait_for("second", "False", "WaitingForQuota")
    first, second = story.workload("first"), story.workload("second")
    assert first["metadata"]["name"].startswith("job-first-")
    assert second["spec"]["priority"] == 9
    assert second["spec"]["priorityClassRef"]["kind"] == "WorkloadPriorityClass"
    text = f"insufficient unused quota for cpu in flavor {story.of('main')}, 1 more needed"
    assert text in story.condition("second", "QuotaReserved")[2]
    assert story.assigned("first") == [("main", 4, {"cpu": "main"})]
    (assigned,) = first["status"]["admission"]["podSetAssignments"]
    assert assigned["resourceUsage"] == {"cpu": "4"}
    story.finish("first")
    story.wait_for_pods(second=3)
    story.wait_for("first", "True", "Succeeded", "Finished")


def test_a_workload_that_is_made_inactive_stops_and_comes_back(story: Story) -> None:
    story.flavor()
    story.queue("q")
    story.job("job", "q", 4)
    story.wait_for_pods(job=4)
    story.set_active("job", False)
    story.wait_for_pods(job=0)
    story.wait(lambda: "admission" not in story.workload("job")["status"], "quota is free")
    assert story.reason("job", "Evicted") == ("True", "Deactivated")
    story.set_active("job", True)
    story.wait_for_pods(job=4)
    assert story.reason("job", "Requeued") == ("True", "Reactivated")


def test_a_queue_that_is_held_and_drained_evicts_and_goes_on(story: Story) -> None:
    story.flavor()
    story.queue("q")
    story.job("job", "q", 4)
    story.wait_for_pods(job=4)
    story.change("ClusterQueue", "q", {"spec": {"stopPolicy": "HoldAndDrain"}})
    story.wait_for_pods(job=0)
    story.wait(lambda: "admission" not in story.workload("job")["status"], "quota is free")
    assert story.reason("job", "Evicted") == ("True", "ClusterQueueStopped")
    story.change("ClusterQueue", "q", {"spec": {"stopPolicy": "None"}})
    story.wait_for_pods(job=4)
    assert story.reason("job", "Requeued") == ("True", "ClusterQueueRestarted")


def test_a_local_queue_that_is_held_and_drained_evicts_and_goes_on(story: Story) -> None:
    story.flavor()
    story.queue("q")
    story.job("job", "q", 4)
    story.wait_for_pods(job=4)
    story.change("LocalQueue", "q", {"spec": {"stopPolicy": "HoldAndDrain"}})
    story.wait_for_pods(job=0)
    held = ("False", "Suspended", "LocalQueue q is inactive")
    story.wait(lambda: story.condition("job", "QuotaReserved") == held, "it waits")
    assert story.reason("job", "Evicted") == ("True", "LocalQueueStopped")
    story.change("LocalQueue", "q", {"spec": {"stopPolicy": "None"}})
    story.wait_for_pods(job=4)
    assert story.reason("job", "Requeued") == ("True", "LocalQueueRestarted")


def test_a_job_of_higher_priority_preempts_in_its_queue(story: Story) -> None:
    story.flavor()
    story.priority("urgent", 9)
    story.queue("q", preemption={"withinClusterQueue": "LowerPriority"})
    story.job("low", "q", 4)
    story.wait_for_pods(low=4)
    story.job("high", "q", 4, priority="urgent")
    story.wait_for_pods(high=4)
    assert story.reason("low", "Evicted") == ("True", "Preempted")
    assert story.reason("low", "Preempted") == ("True", "InClusterQueue")
    story.finish("high")
    story.wait_for_pods(low=4)


def test_a_single_pod_is_queued_and_admitted(story: Story) -> None:
    story.flavor()
    story.queue("q")
    pod = asking("single", schedulerName=SCHEDULER, restartPolicy="Never")
    pod["metadata"] |= {"labels": {QUEUE: "q"}, "namespace": story.name}
    story.add(pod)
    story.wait(lambda: all("nodeName" in one["spec"] for one in story.pods), "it has its node")
    assert story.workload("single")["metadata"]["name"].startswith("pod-single-")
    story.wait_for("single", "True", "Admitted", "Admitted")
    mark = "kueue.x-k8s.io/managed"
    story.wait(lambda: story.pods[0]["metadata"]["labels"].get(mark) == "true", "it is marked")


def test_a_queue_with_an_inactive_check_takes_no_jobs_until_it_is_active(story: Story) -> None:
    story.flavor()
    story.check_kind("budget", active=False)
    story.queue("q", **{STRATEGY: {"admissionChecks": [{"name": story.of("budget")}]}})
    story.job("job", "q", 4)
    inactive = ("False", "Suspended", f"ClusterQueue {story.of('q')} is inactive")
    story.wait(lambda: story.condition("job", "QuotaReserved") == inactive, "it waits")
    text = f"Can't admit new workloads: references inactive AdmissionCheck(s): {story.of('budget')}"
    found = condition(story.cluster_queue("q"), "Active")
    assert found == ("False", "AdmissionCheckInactive", f"{text}.")
    story.activate("budget")
    story.wait_for("job", "True", "QuotaReserved")
    found = condition(story.cluster_queue("q"), "Active")
    assert found == ("True", "Ready", "Can admit new workloads")
    story.wait(lambda: story.checks("job") == {"budget": "Pending"}, "it is checked")
    assert story.placed("job") == 0
    story.check("job", "budget", "Ready")
    story.wait_for_pods(job=4)


def test_a_check_that_is_tried_again_evicts(story: Story) -> None:
    story.flavor()
    story.check_kind("budget")
    story.queue("q", **{STRATEGY: {"admissionChecks": [{"name": story.of("budget")}]}})
    story.job("job", "q", 4)
    story.wait(lambda: story.checks("job") == {"budget": "Pending"}, "it is checked")
    assert story.reason("job", "Admitted") in (("", ""), ("False", "UnsatisfiedAdmissionChecks"))
    story.check("job", "budget", "Ready")
    story.wait_for_pods(job=4)
    story.check("job", "budget", "Retry")
    story.wait_for_pods(job=0)
    story.wait(lambda: story.checks("job") == {"budget": "Pending"}, "it begins again")
    story.wait_for("job", "True", "QuotaReserved")
    assert story.evictions("job") == [("AdmissionCheck", "", 1)]
    story.check("job", "budget", "Ready")
    story.wait_for_pods(job=4)


def test_a_check_that_rejects_deactivates(story: Story) -> None:
    story.flavor()
    story.check_kind("budget")
    story.queue("q", **{STRATEGY: {"admissionChecks": [{"name": story.of("budget")}]}})
    story.job("job", "q", 4)
    story.wait(lambda: story.checks("job") == {"budget": "Pending"}, "it is checked")
    story.check("job", "budget", "Rejected", message="too expensive")
    story.wait(lambda: story.workload("job")["spec"].get("active") is False, "it is inactive")
    story.wait(lambda: "admission" not in story.workload("job")["status"], "quota is free")
    assert story.reason("job", "Evicted") == ("True", "DeactivatedDueToAdmissionCheck")
    assert story.placed("job") == 0


def test_a_check_says_where_the_pods_of_a_job_go(story: Story) -> None:
    story.flavor()
    (picked,) = story.nodes("main", 1, pool="new")
    story.check_kind("budget")
    story.queue("q", **{STRATEGY: {"admissionChecks": [{"name": story.of("budget")}]}})
    story.job("job", "q", 2)
    story.wait(lambda: story.checks("job") == {"budget": "Pending"}, "it is checked")
    update = {"name": "main", "nodeSelector": {"pool": "new"}, "labels": {"paid": "yes"}}
    story.check("job", "budget", "Ready", podSetUpdates=[update])
    story.wait_for_pods(job=2)
    for pod in story.pods_of("job"):
        assert pod["metadata"]["labels"]["paid"] == "yes"
        assert pod["spec"]["nodeName"] == picked
    story.set_active("job", False)
    story.wait_for_pods(job=0)

    def is_restored() -> bool:
        template = story.object(story.job_path("job"))["spec"]["template"]
        labels = template["metadata"].get("labels", {})
        return "nodeSelector" not in template["spec"] and "paid" not in labels

    story.wait(is_restored, "its template is as it was")


def test_a_check_of_some_flavors_is_asked_for_them_only(story: Story) -> None:
    for name in ("first", "second"):
        story.flavor(name)
    story.check_kind("budget")
    rule = {"name": story.of("budget"), "onFlavors": [story.of("second")]}
    story.queue(
        "q", quota("first", 2), quota("second", 2), **{STRATEGY: {"admissionChecks": [rule]}}
    )
    story.job("free", "q", 2)
    story.wait_for_pods(free=2)
    assert story.checks("free") == {}
    story.job("paid", "q", 2)
    story.wait(lambda: story.checks("paid") == {"budget": "Pending"}, "it is checked")
    story.check("paid", "budget", "Ready")
    story.wait_for_pods(paid=2)


def test_a_queue_is_inactive_until_all_that_it_names_is_there(story: Story) -> None:
    story.queue("q", **{STRATEGY: {"admissionChecks": [{"name": story.of("budget")}]}})
    texts = [
        f"references missing ResourceFlavor(s): {story.of('main')}",
        f"references missing AdmissionCheck(s): {story.of('budget')}",
    ]

    def is_inactive(reason: str, *texts: str) -> bool:
        text = f"Can't admit new workloads: {', '.join(texts)}."
        return condition(story.cluster_queue("q"), "Active") == ("False", reason, text)

    story.wait(lambda: is_inactive("FlavorNotFound", *texts), "it has no flavor, and no check")
    story.check_kind("budget")
    story.wait(lambda: is_inactive("FlavorNotFound", texts[0]), "it has no flavor")
    story.flavor(topologyName=story.of("racks"))
    missing = f'there is no Topology "{story.of("racks")}" for TAS flavor "{story.of("main")}"'
    story.wait(lambda: is_inactive("TopologyNotFound", missing), "it has no topology")
    story.job("job", "q", 2)
    story.wait_for("job", "False", "Suspended")
    story.topology("racks", "example.com/rack")
    story.wait(
        lambda: condition(story.cluster_queue("q"), "Active")[:2] == ("True", "Ready"), "it is"
    )


def test_a_job_that_may_be_smaller_runs_with_what_there_is(story: Story) -> None:
    story.flavor()
    story.queue("q")
    story.job("large", "q", 8, annotations={"kueue.x-k8s.io/job-min-parallelism": "2"})
    story.wait_for_pods(large=6)
    assert story.object(story.job_path("large"))["spec"]["parallelism"] == 6
    (assigned,) = story.workload("large")["status"]["admission"]["podSetAssignments"]
    assert (assigned["count"], assigned["resourceUsage"]) == (6, {"cpu": "6"})


def test_a_job_gives_its_quota_back_pod_by_pod(story: Story) -> None:
    story.flavor()
    story.queue("q")
    story.job("large", "q", 6)
    story.wait_for_pods(large=6)
    story.job("next", "q", 2)
    story.wait_for("next", "False", "WaitingForQuota")
    story.succeed(story.pods_of("large")[:4])
    story.wait_for_pods(next=2)

    def reclaimed() -> list[tuple[str, int]]:
        given_back = story.workload("large")["status"].get("reclaimablePods", ())
        return [(one["name"], one["count"]) for one in given_back]

    story.wait(lambda: reclaimed() == [("main", 4)], "its Workload says what it gave back")


def test_a_job_ends_when_its_time_is_over(story: Story) -> None:
    story.flavor()
    story.queue("q")
    story.job("job", "q", 4, labels={"kueue.x-k8s.io/max-exec-time-seconds": "3"})
    story.wait_for_pods(job=4)
    assert story.workload("job")["spec"]["maximumExecutionTimeSeconds"] == 3
    story.wait_for_pods(job=0)
    story.wait(lambda: story.workload("job")["spec"].get("active") is False, "it is inactive")
    story.wait(lambda: "admission" not in story.workload("job")["status"], "quota is free")
    reason = ("True", "DeactivatedDueToMaximumExecutionTimeExceeded")
    assert story.reason("job", "Evicted") == reason
    assert story.object(story.job_path("job"))["spec"]["suspend"] is True


def test_a_job_whose_size_changes_while_it_runs_waits_again(story: Story) -> None:
    story.flavor()
    story.queue("q")
    story.job("job", "q", 4)
    story.wait_for_pods(job=4)
    story.changed(story.job_path("job"), {"spec": {"parallelism": 2}})
    story.wait_for_pods(job=2)
    story.wait(lambda: story.assigned("job") == [("main", 2, {"cpu": "main"})], "it has less")
    story.job("next", "q", 4)
    story.wait_for_pods(next=4)


def test_an_elastic_job_goes_on_while_its_size_changes(story: Story) -> None:
    story.flavor()
    story.queue("q")
    elastic = {"kueue.x-k8s.io/elastic-job": "true"}
    story.job("job", "q", 4, annotations=elastic)
    story.wait_for_pods(job=4)
    before = {pod["metadata"]["uid"] for pod in story.pods_of("job")}
    story.changed(story.job_path("job"), {"spec": {"parallelism": 2}})
    story.wait_for_pods(job=2)
    assert {pod["metadata"]["uid"] for pod in story.pods_of("job")} < before
    story.wait(lambda: story.count("job") == 2, "its Workload is smaller, too")
    story.job("next", "q", 4)
    story.wait_for_pods(next=4)
    # A slice for more waits for quota, and the job runs on.
    story.changed(story.job_path("job"), {"spec": {"parallelism": 4}})
    story.wait(lambda: len(story.slices("job")) == 2, "it has a second slice")
    assert story.placed("job") == 2
    story.finish("next")
    story.wait_for_pods(job=4)
    story.wait(
        lambda: (
            [condition(one, "Finished")[1] for one in story.slices("job")]
            in (["WorkloadSliceReplaced", ""], ["", "WorkloadSliceReplaced"])
        ),
        "the first slice is replaced",
    )


def test_a_group_of_pods_is_queued_as_one(story: Story) -> None:
    story.flavor()
    story.queue("q")
    story.group("first", "q", 4)
    story.wait(lambda: len(story.of_group("first")) == 4, "it runs")
    assert story.workload("first-0")["metadata"]["name"] == "first"
    story.group("next", "q", 3)
    story.wait_for("next-0", "False", "WaitingForQuota")
    assert story.of_group("next") == []
    story.succeed(story.of_group("first")[:1])
    story.wait(lambda: len(story.of_group("next")) == 3, "it has what the first needs no more")
    story.succeed(story.of_group("first"))
    story.wait_for("first-0", "True", "Succeeded", "Finished")


def test_a_group_of_pods_waits_until_it_is_complete(story: Story) -> None:
    story.flavor()
    story.queue("q")
    story.group("three", "q", 2, total=3)
    story.next_second()
    assert story.of_group("three") == []
    story.group("three", "q", 1, total=3, first=2)
    story.wait(lambda: len(story.of_group("three")) == 3, "all run")
    assert [sizes[1:] for sizes in story.assigned("three-0")] == [(3, {"cpu": "main"})]
