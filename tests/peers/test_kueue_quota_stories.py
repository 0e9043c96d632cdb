"""Quota with Kueue's manager and with bayplan in its place: who gets it, and who has to go."""

from __future__ import annotations

from tests.peers.kueue_stories import Story, condition, quota


def borrowed(story: Story, queue: str) -> tuple[str, str]:
    """Return what a ClusterQueue says that it uses, and has borrowed, of its first flavor."""
    (used, *_) = story.cluster_queue(queue)["status"]["flavorsReservation"]
    (cpu,) = used["resources"]
    return cpu["total"], cpu.get("borrowed", "0")


def test_a_queue_borrows_up_to_its_limit(story: Story) -> None:
    story.flavor()
    story.queue("a", quota("main", 4, borrowingLimit=2), cohortName="team")
    story.queue("b", quota("main", 4), cohortName="team")
    story.job("large", "a", 7)
    story.job("fits", "a", 6)
    story.wait_for_pods(fits=6)
    story.wait_for("large", "False", "ExceedsMaxQuota")
    story.wait(lambda: borrowed(story, "a") == ("6", "2"), "the queue says what it borrows")
    story.job("own", "b", 4)
    story.job("more", "b", 2)
    # What a uses is no longer there to be borrowed.
    story.wait_for("own", "False", "WaitingForQuota")
    story.wait_for_pods(more=2)


def test_a_queue_keeps_what_it_does_not_lend(story: Story) -> None:
    story.flavor()
    story.queue("a", quota("main", 2), cohortName="team")
    story.queue("b", quota("main", 6, lendingLimit=2), cohortName="team")
    story.job("five", "a", 5)
    story.job("four", "a", 4)
    story.wait_for_pods(four=4)
    story.wait_for("five", "False", "ExceedsMaxQuota")
    story.job("own", "b", 4)
    story.wait_for_pods(own=4)
    story.job("lent", "b", 1)
    story.wait_for("lent", "False", "WaitingForQuota")
    story.finish("four")
    story.wait_for_pods(lent=1)


def test_a_queue_takes_back_what_it_has_lent(story: Story) -> None:
    story.flavor()
    story.queue("a", quota("main", 4), cohortName="team")
    story.queue("b", quota("main", 4), cohortName="team", preemption={"reclaimWithinCohort": "Any"})
    story.job("own", "a", 4)
    story.wait_for_pods(own=4)
    story.next_second()
    story.job("borrowing", "a", 3)
    story.wait_for_pods(borrowing=3)
    story.job("owner", "b", 4)
    story.wait_for_pods(owner=4, borrowing=0, own=4)
    story.wait_for("borrowing", "True", "InCohortReclamation", "Preempted")
    assert story.reason("borrowing", "Evicted") == ("True", "Preempted")
    story.wait_for("borrowing", "False", "WaitingForQuota")
    assert story.reason("borrowing", "Requeued") == ("True", "Preempted")
    story.finish("owner")
    story.wait_for_pods(borrowing=3)
    assert story.reason("borrowing", "Evicted") == ("False", "QuotaReserved")


def test_a_queue_that_may_not_reclaim_waits(story: Story) -> None:
    story.flavor()
    story.queue("a", quota("main", 4), cohortName="team")
    story.queue("b", quota("main", 4), cohortName="team")
    story.job("borrowing", "a", 6)
    story.wait_for_pods(borrowing=6)
    story.job("owner", "b", 4)
    story.wait_for("owner", "False", "WaitingForQuota")
    message = story.condition("owner", "QuotaReserved")[2]
    assert "insufficient unused quota for cpu in flavor" in message
    story.finish("borrowing")
    story.wait_for_pods(owner=4)


def test_a_queue_reclaims_from_lower_priorities_only(story: Story) -> None:
    story.flavor()
    story.priority("high", 100)
    story.queue("a", quota("main", 4), cohortName="team")
    policy = {"reclaimWithinCohort": "LowerPriority"}
    story.queue("b", quota("main", 4), cohortName="team", preemption=policy)
    story.job("vital", "a", 4, priority="high")
    story.wait_for_pods(vital=4)
    story.job("more", "a", 3, priority="high")
    story.wait_for_pods(more=3)
    story.job("same", "b", 2, priority="high")
    story.wait_for("same", "False", "WaitingForQuota")
    story.finish("more")
    story.wait_for_pods(same=2)
    story.job("low", "a", 2)
    story.wait_for_pods(low=2)
    story.job("next", "b", 2, priority="high")
    story.wait_for_pods(next=2, low=0, vital=4)
    story.wait_for("low", "True", "InCohortReclamation", "Preempted")


def test_a_queue_preempts_others_while_it_borrows(story: Story) -> None:
    story.flavor()
    story.priority("high", 100)
    story.priority("middle", 50)
    story.queue("a", quota("main", 4), cohortName="team")
    within = {"policy": "LowerPriority", "maxPriorityThreshold": 10}
    policy = {"reclaimWithinCohort": "LowerPriority", "borrowWithinCohort": within}
    story.queue("b", quota("main", 4), cohortName="team", preemption=policy)
    story.job("above", "a", 2, priority="middle")
    story.wait_for_pods(above=2)
    story.job("below", "a", 4)
    story.wait_for_pods(below=4)
    story.job("borrower", "b", 6, priority="high")
    story.wait_for_pods(borrower=6, below=0, above=2)
    story.wait_for("below", "True", "InCohortReclaimWhileBorrowing", "Preempted")


def test_an_older_job_preempts_a_newer_one_of_its_priority(story: Story) -> None:
    story.flavor()
    story.queue("a", preemption={"withinClusterQueue": "LowerOrNewerEqualPriority"})
    story.add(story.head("LocalQueue", "late", True) | {"spec": {"clusterQueue": story.of("a")}})
    story.change("LocalQueue", "late", {"spec": {"stopPolicy": "Hold"}})
    story.job("older", "late", 4)
    story.wait_for("older", "False", "Suspended")
    story.next_second()
    story.job("newer", "a", 4)
    story.wait_for_pods(newer=4)
    story.change("LocalQueue", "late", {"spec": {"stopPolicy": "None"}})
    story.wait_for_pods(older=4, newer=0)
    story.wait_for("newer", "True", "InClusterQueue", "Preempted")
    # It is newer, and preempts nobody.
    story.wait_for("newer", "False", "WaitingForQuota")


def test_the_fewest_and_lowest_are_preempted(story: Story) -> None:
    story.flavor()
    for name, value in (("low", 1), ("middle", 5), ("high", 9)):
        story.priority(name, value)
    story.queue("a", preemption={"withinClusterQueue": "LowerPriority"})
    story.job("first", "a", 2, priority="middle")
    story.wait_for_pods(first=2)
    story.next_second()
    story.job("second", "a", 2, priority="low")
    story.wait_for_pods(second=2)
    story.next_second()
    story.job("third", "a", 2, priority="middle")
    story.wait_for_pods(third=2)
    story.job("urgent", "a", 3, priority="high")
    # The lowest goes, and of those above it the newest.
    story.wait_for_pods(urgent=3, second=0, third=0, first=2)


def test_a_strict_queue_waits_for_its_first_job(story: Story) -> None:
    story.flavor()
    story.queue("strict", queueingStrategy="StrictFIFO")
    story.job("running", "strict", 4)
    story.wait_for_pods(running=4)
    story.job("large", "strict", 5)
    story.wait_for("large", "False", "WaitingForQuota")
    story.next_second()
    story.job("small", "strict", 1)
    story.next_second()
    assert story.placed("small") == 0
    story.change("ClusterQueue", "strict", {"spec": {"queueingStrategy": "BestEffortFIFO"}})
    story.wait_for_pods(small=1, large=0)


def test_a_queue_that_is_held_runs_what_it_has(story: Story) -> None:
    story.flavor()
    story.queue("a")
    story.job("running", "a", 2)
    story.wait_for_pods(running=2)
    story.change("ClusterQueue", "a", {"spec": {"stopPolicy": "Hold"}})
    story.job("waiting", "a", 2)
    story.wait_for("waiting", "False", "Suspended")
    active = ("False", "Stopped", "Can't admit new workloads: is stopped.")
    story.wait(lambda: condition(story.cluster_queue("a"), "Active") == active, "it is stopped")
    submits = ("False", "ClusterQueueIsInactive", "Can't submit new workloads to clusterQueue")
    story.wait(lambda: condition(story.local_queue("a"), "Active") == submits, "so is the other")
    assert story.placed("running") == 2
    story.change("ClusterQueue", "a", {"spec": {"stopPolicy": "None"}})
    story.wait_for_pods(waiting=2)
    story.change("LocalQueue", "a", {"spec": {"stopPolicy": "Hold"}})
    story.job("late", "a", 2)
    story.wait_for("late", "False", "Suspended")
    stopped = ("False", "Stopped", "LocalQueue is stopped")
    story.wait(lambda: condition(story.local_queue("a"), "Active") == stopped, "it says so")
    assert story.placed("running") == story.placed("waiting") == 2


def test_flavors_are_tried_in_order_and_by_what_pods_tolerate(story: Story) -> None:
    taint = {"key": "spot", "value": "yes", "effect": "NoSchedule"}
    story.flavor("spot", nodeTaints=[taint])
    story.flavor("fixed")
    story.queue("a", quota("spot", 4), quota("fixed", 4))
    tolerating = [{"key": "spot", "operator": "Exists"}]
    story.job("plain", "a", 1)
    story.job("tolerant", "a", 2, tolerations=tolerating)
    story.job("picky", "a", 1, tolerations=tolerating, nodeSelector=story.labels("fixed"))
    story.wait_for_pods(plain=1, tolerant=2, picky=1)
    assert story.assigned("plain") == [("main", 1, {"cpu": "fixed"})]
    assert story.assigned("tolerant") == [("main", 2, {"cpu": "spot"})]
    assert story.assigned("picky") == [("main", 1, {"cpu": "fixed"})]
    story.job("nowhere", "a", 1, nodeSelector=story.labels("other"))
    story.wait_for("nowhere", "False", "NoMatchingFlavor")
    story.job("third", "a", 3, tolerations=tolerating)
    # The first flavor has too little left, and nobody has the second one to itself.
    story.wait_for("third", "False", "WaitingForQuota")


def test_a_queue_borrows_before_it_tries_another_flavor(story: Story) -> None:
    for name in ("first", "second"):
        story.flavor(name)
    quotas = quota("first", 3), quota("second", 3)
    story.queue("a", *quotas, cohortName="team")
    stop = {"whenCanBorrow": "MayStopSearch"}
    story.queue("lender", quota("first", 3), cohortName="team")
    story.queue("next", *quotas, cohortName="other")
    story.queue("lends", quota("first", 3), cohortName="other")
    story.change("ClusterQueue", "a", {"spec": {"flavorFungibility": stop}})
    on = {"whenCanBorrow": "TryNextFlavor"}
    story.change("ClusterQueue", "next", {"spec": {"flavorFungibility": on}})
    for queue in ("a", "next"):
        story.job(f"{queue}-1", queue, 2)
        story.wait_for_pods(**{f"{queue}-1": 2})
        story.job(f"{queue}-2", queue, 2)
        story.wait_for_pods(**{f"{queue}-2": 2})
    assert story.assigned("a-2") == [("main", 2, {"cpu": "first"})]
    assert story.assigned("next-2") == [("main", 2, {"cpu": "second"})]


def test_a_queue_preempts_before_it_tries_another_flavor(story: Story) -> None:
    for name in ("first", "second"):
        story.flavor(name)
    story.priority("high", 9)
    within = {"withinClusterQueue": "LowerPriority"}
    for queue, policy in (("stops", "MayStopSearch"), ("goes", "TryNextFlavor")):
        story.queue(
            queue,
            quota("first", 3),
            quota("second", 3),
            preemption=within,
            flavorFungibility={"whenCanPreempt": policy},
        )
        story.job(f"low-{queue}", queue, 2)
        story.wait_for_pods(**{f"low-{queue}": 2})
        story.job(f"high-{queue}", queue, 2, priority="high")
        story.wait_for_pods(**{f"high-{queue}": 2})
    assert story.assigned("high-stops") == [("main", 2, {"cpu": "first"})]
    story.wait_for_pods(**{"low-stops": 2})
    assert story.evictions("low-stops") == [("Preempted", "", 1)]
    assert story.assigned("low-stops") == [("main", 2, {"cpu": "second"})]
    assert story.assigned("high-goes") == [("main", 2, {"cpu": "second"})]
    assert story.evictions("low-goes") == []


def test_queues_share_what_their_parent_has(story: Story) -> None:
    story.flavor()
    groups = [{"coveredResources": ["cpu"], "flavors": [story.own(quota("main", 4))]}]
    story.add(story.head("Cohort", "root") | {"spec": {"resourceGroups": groups}})
    for name in ("left", "right"):
        story.add(story.head("Cohort", name) | {"spec": {"parentName": story.of("root")}})
    story.queue("a", quota("main", 1), cohortName="left")
    story.queue("b", quota("main", 1, borrowingLimit=2), cohortName="right")
    story.job("all", "a", 7)
    story.wait_for("all", "False", "ExceedsMaxQuota")
    story.job("four", "a", 4)
    story.wait_for_pods(four=4)
    story.job("three", "b", 3)
    story.wait_for("three", "False", "WaitingForQuota")
    story.job("two", "b", 2)
    story.wait_for_pods(two=2)
    story.wait(lambda: borrowed(story, "b") == ("2", "1"), "it borrows one of them")


def test_a_class_that_changes_moves_a_job_up(story: Story) -> None:
    story.flavor()
    story.priority("low", 1)
    story.priority("high", 9)
    story.queue("a", queueingStrategy="StrictFIFO")
    story.job("running", "a", 6)
    story.wait_for_pods(running=6)
    story.job("first", "a", 6)
    story.wait_for("first", "False", "WaitingForQuota")
    story.next_second()
    story.job("second", "a", 6, priority="low")
    story.wait(lambda: story.workload("second")["spec"].get("priority") == 1, "it has a class")
    story.label("second", **{"kueue.x-k8s.io/priority-class": story.of("high")})
    story.wait(lambda: story.workload("second")["spec"]["priority"] == 9, "it has another")
    story.finish("running")
    story.wait_for_pods(second=6, first=0)


def test_a_job_moves_to_another_queue_while_it_waits(story: Story) -> None:
    story.flavor()
    story.queue("full", quota("main", 1))
    story.queue("free", quota("main", 4))
    story.job("job", "full", 3)
    story.wait_for("job", "False", "ExceedsMaxQuota")
    story.label("job", **{"kueue.x-k8s.io/queue-name": "free"})
    story.wait_for_pods(job=3)
    assert story.workload("job")["spec"]["queueName"] == "free"
    admission = story.workload("job")["status"]["admission"]
    assert admission["clusterQueue"] == story.of("free")
    assert story.cluster_queue("full")["status"]["pendingWorkloads"] == 0


def test_a_queue_selects_the_namespaces_of_its_jobs(story: Story) -> None:
    story.flavor()
    story.queue("a", namespaceSelector={"matchLabels": {"team": "vision"}})
    story.job("job", "a", 2)
    story.wait_for("job", "False", "Misconfigured")
    message = story.condition("job", "QuotaReserved")[2]
    assert message == "workload namespace doesn't match ClusterQueue selector"
    story.changed(f"/api/v1/namespaces/{story.name}", {"metadata": {"labels": {"team": "vision"}}})
    story.wait_for_pods(job=2)


def test_a_smaller_job_gives_way_to_the_owner_of_its_quota(story: Story) -> None:
    story.flavor()
    story.queue("a", quota("main", 2), cohortName="team")
    policy = {"reclaimWithinCohort": "Any"}
    story.queue("b", quota("main", 4), cohortName="team", preemption=policy)
    least = {"kueue.x-k8s.io/job-min-parallelism": "2"}
    story.job("elastic", "a", 8, annotations=least)
    story.wait_for_pods(elastic=6)
    assert story.assigned("elastic") == [("main", 6, {"cpu": "main"})]
    story.job("owner", "b", 3)
    story.wait_for_pods(owner=3, elastic=3)
    story.wait_for("elastic", "True", "QuotaReserved")
    assert story.assigned("elastic") == [("main", 3, {"cpu": "main"})]
    assert story.object(story.job_path("elastic"))["spec"]["parallelism"] == 3
    assert story.workload("elastic")["spec"]["podSets"][0]["count"] == 8
