"""What an administrator configures, with Kueue's manager and with bayplan in its place."""

from __future__ import annotations

from tests.controlplane.queue_builders import suspended_job
from tests.peers.kueue_stories import QUEUE, Story, quota

SLICES, FREE, CREDITS = "example.com/slices", "example.com/free-ports", "example.com/credits"
SETTINGS = {
    "fairSharing": True,
    "preemptionStrategies": ["LessThanOrEqualToFinalShare", "LessThanInitialShare"],
    "manageJobsWithoutQueueName": True,
    "resources": {
        "excludeResourcePrefixes": ["example.com/free"],
        "transformations": [
            {"input": SLICES, "strategy": "Replace", "outputs": {CREDITS: "2"}},
        ],
    },
    "waitForPodsReady": {
        "timeout": "4s",
        "requeuingStrategy": {"backoffBaseSeconds": 1, "backoffLimitCount": 1},
    },
}


def shares(story: Story, *queues: str) -> list[int]:
    """Return the weighted shares that ClusterQueues say they have."""
    return [
        story.cluster_queue(name)["status"].get("fairSharing", {}).get("weightedShare", -1)
        for name in queues
    ]


def test_a_job_without_a_queue_is_held_until_it_names_one(story: Story) -> None:
    story.flavor()
    story.queue("q")
    (job,) = suspended_job("job", "q", 4)
    job["metadata"] |= {"namespace": story.name, "labels": {}}
    job["spec"]["suspend"] = False
    story.add(job)
    missing = ("False", "Misconfigured", "LocalQueue  doesn't exist")
    story.wait(lambda: story.condition("job", "QuotaReserved") == missing, "it has a Workload")
    story.wait(lambda: story.object(story.job_path("job"))["spec"]["suspend"], "it is suspended")
    assert "queueName" not in story.workload("job")["spec"]
    assert story.placed("job") == 0
    story.label("job", **{QUEUE: "q"})
    story.wait_for_pods(job=4)
    assert story.workload("job")["spec"]["queueName"] == "q"


def test_a_job_whose_pods_do_not_get_ready_comes_back_and_is_given_up(story: Story) -> None:
    story.flavor(count=0)
    story.silence(*story.nodes("main", 1))
    story.queue("q")
    story.job("job", "q", 2)
    story.wait_for_pods(job=2)
    story.wait_for("job", "False", "WaitForStart", "PodsReady")
    story.wait(lambda: story.workload("job")["spec"].get("active") is False, "it is given up")
    story.wait_for("job", "True", "DeactivatedDueToRequeuingLimitExceeded", "Evicted")
    assert story.evictions("job") == [
        ("PodsReadyTimeout", "WaitForStart", 1),
        ("Deactivated", "RequeuingLimitExceeded", 1),
    ]
    story.wait_for("job", "False", "Deactivated")
    assert "requeueState" not in story.workload("job")["status"]


def test_a_job_whose_pods_are_ready_goes_on(story: Story) -> None:
    story.flavor()
    story.queue("q")
    story.job("job", "q", 2)
    story.wait_for("job", "True", "Started", "PodsReady")
    assert story.placed("job") == 2


def test_a_queue_of_more_weight_gets_more_of_what_is_lent(story: Story) -> None:
    story.flavor()
    policy = {"reclaimWithinCohort": "Any"}
    for name, weight in (("heavy", "2"), ("light", "1")):
        story.queue(
            name,
            quota("main", 0),
            cohortName="team",
            preemption=policy,
            fairSharing={"weight": weight},
        )
    story.queue("lender", quota("main", 6), cohortName="team")
    for index in range(6):
        story.job(f"light-{index}", "light", 1)
        story.wait_for_pods(**{f"light-{index}": 1})
    for index in range(6):
        story.job(f"heavy-{index}", "heavy", 1)

    def running(queue: str) -> int:
        return sum(story.placed(f"{queue}-{index}") for index in range(6))

    story.wait(lambda: (running("heavy"), running("light")) == (4, 2), "heavy has twice as much")
    story.wait(lambda: shares(story, "heavy", "light") == [334, 334], "their shares are equal")
    preempted = [f"light-{index}" for index in range(6) if not story.placed(f"light-{index}")]
    for name in preempted:
        story.wait_for(name, "True", "InCohortFairSharing", "Preempted")


def test_resources_are_charged_as_others_or_not_at_all(story: Story) -> None:
    story.flavor(count=0)
    (node,) = story.nodes("main", 1)
    story.has(node, {SLICES: "8", FREE: "8"})
    amounts = quota("main", 6)
    amounts["resources"].append({"name": CREDITS, "nominalQuota": "10"})
    story.queue("q", amounts)
    asked = {SLICES: "2", FREE: "1"}
    story.job("job", "q", 2, requests=asked)
    story.wait_for_pods(job=2)
    (assigned,) = story.workload("job")["status"]["admission"]["podSetAssignments"]
    assert assigned["resourceUsage"] == {"cpu": "2", CREDITS: "8"}
    story.job("next", "q", 1, requests=asked)
    story.wait_for("next", "False", "WaitingForQuota")
    message = story.condition("next", "QuotaReserved")[2]
    assert f"insufficient unused quota for {CREDITS}" in message
