"""The phase of Volcano's pod groups while members run, end, leave and come again."""

from __future__ import annotations

from msgspec.structs import replace
from tests.plugins.queues.volcano.volcano_worlds import cluster_of, group, phase, pods, queue

from bayplan.api import Node, Pod, VolcanoPodGroup
from bayplan.cluster.embedded.kubelet import VirtualKubelet
from bayplan.testing import Cluster, make_node

FULL = {
    "actions": "enqueue, allocate",
    "tiers": [{"plugins": [{"name": "gang"}, {"name": "overcommit"}, {"name": "proportion"}]}],
}


def running(count: int, least: int) -> Cluster:
    """Return a cluster full of the pods of one job, which run."""
    cluster = cluster_of(
        [
            make_node("n0", cpu=count),
            queue("q"),
            group("job", "q", least, {"cpu": least}, phase="Pending"),
            *pods("job", count, cpu=1),
        ],
        FULL,
    )
    VirtualKubelet(cluster.api)
    cluster.advance(5)
    assert phase(cluster, "job") == "Running"
    return cluster


def end(cluster: Cluster, pod: str, how: str) -> None:
    found = cluster.api.get(Pod, f"default/{pod}")
    assert found is not None
    cluster.api.update(replace(found, status=replace(found.status, phase=how)))
    cluster.advance(5)


def cordon(cluster: Cluster, cordoned: bool) -> None:
    node = cluster.api.get(Node, "n0")
    assert node is not None
    cluster.api.update(replace(node, spec=replace(node.spec, unschedulable=cordoned)))


def test_a_job_in_a_full_cluster_gets_a_pod_again_that_it_lost() -> None:
    """Its group is not admitted again for one pod: the cluster has no room for all of them."""
    cluster = running(4, 4)
    cluster.remove("job-2")
    cluster.advance(1)
    assert phase(cluster, "job") == "Running"
    cluster.add(*pods("job", 1, first=2, cpu=1))
    cluster.advance(5)
    assert len(cluster.placements()) == 4
    assert phase(cluster, "job") == "Running"


def test_a_group_that_runs_and_finds_no_place_for_a_member_is_unknown() -> None:
    """Jobs may have a policy for this, such as to restart."""
    cluster = running(4, 4)
    cordon(cluster, True)
    cluster.remove("job-2")
    cluster.add(*pods("job", 1, first=2, cpu=1))
    cluster.advance(5)
    assert phase(cluster, "job") == "Unknown"
    cordon(cluster, False)
    cluster.advance(600)
    assert phase(cluster, "job") == "Running"


def test_a_group_that_runs_and_gets_no_member_again_is_unknown_after_seconds() -> None:
    cluster = running(2, 2)
    cluster.remove("job-0")
    cluster.advance(1)
    assert phase(cluster, "job") == "Running"
    cluster.advance(5)
    assert phase(cluster, "job") == "Unknown"
    group = cluster.api.get(VolcanoPodGroup, "default/job")
    assert group is not None
    (condition,) = group.status.conditions
    assert (condition.type, condition.reason) == ("Unschedulable", "NotEnoughTasks")
    cluster.add(*pods("job", 1, cpu=1))
    cluster.advance(5)
    assert phase(cluster, "job") == "Running"


def test_who_is_made_again_does_not_wait_for_members_that_have_succeeded() -> None:
    cluster = running(3, 3)
    end(cluster, "job-0", "Succeeded")
    cluster.remove("job-1")
    cluster.add(*pods("job", 1, first=1, cpu=1))
    cluster.advance(5)
    assert cluster.placements()["job-1"] == "n0"
    assert phase(cluster, "job") == "Running"


def test_a_scheduler_that_restarts_counts_members_that_succeeded_before() -> None:
    cluster = running(3, 3)
    end(cluster, "job-0", "Succeeded")
    cluster.remove("job-1")
    cluster.restart()
    cluster.add(*pods("job", 1, first=1, cpu=1))
    cluster.advance(5)
    assert cluster.placements()["job-1"] == "n0"


def test_who_is_made_again_waits_until_members_that_leave_are_made_again_too() -> None:
    """A job that Volcano restarts deletes all its pods, and some of them take long to end."""
    cluster = cluster_of(
        [make_node("n0", cpu=4), queue("q"), group("job", "q", 2), *pods("job", 2, cpu=1)], FULL
    )
    VirtualKubelet(cluster.api)
    cluster.advance(5)
    cluster.remove("job-0")
    leaving = cluster.api.get(Pod, "default/job-1")
    assert leaving is not None
    meta = replace(leaving.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    cluster.api.update(replace(leaving, metadata=meta))
    cluster.add(*pods("job", 1, cpu=1))
    cluster.advance(5)
    assert "job-0" not in cluster.placements()
    cluster.remove("job-1")
    cluster.add(*pods("job", 1, first=1, cpu=1))
    cluster.advance(5)
    assert cluster.placements() == {"job-0": "n0", "job-1": "n0"}


def test_a_group_whose_pods_all_leave_is_admitted_again() -> None:
    cluster = running(2, 2)
    for pod in ("job-0", "job-1"):
        cluster.remove(pod)
    cluster.advance(5)
    assert phase(cluster, "job") == "Inqueue"


def test_members_that_end_one_by_one_leave_the_group_running_until_the_last() -> None:
    cluster = running(3, 3)
    end(cluster, "job-0", "Succeeded")
    assert phase(cluster, "job") == "Running"
    end(cluster, "job-1", "Failed")
    assert phase(cluster, "job") == "Running"
    end(cluster, "job-2", "Succeeded")
    assert phase(cluster, "job") == "Completed"


def test_an_elastic_group_whose_minimum_has_succeeded_still_runs() -> None:
    cluster = running(3, 1)
    end(cluster, "job-0", "Succeeded")
    assert phase(cluster, "job") == "Running"


def test_a_group_whose_pods_have_failed_is_completed() -> None:
    cluster = running(1, 1)
    end(cluster, "job-0", "Failed")
    assert phase(cluster, "job") == "Completed"


def test_groups_are_admitted_without_the_action_enqueue_too() -> None:
    """Volcano's controller makes no pods before; no plugin is asked then."""
    cluster = cluster_of(
        [
            make_node("n0", cpu=1),
            queue("q"),
            group("job", "q", 4, {"cpu": 4}, phase="Pending"),
            group("nowhere", "other", 1, phase="Pending"),
        ],
        {**FULL, "actions": "allocate, backfill"},
    )
    cluster.advance(5)
    assert phase(cluster, "job") == "Inqueue"
    assert phase(cluster, "nowhere") == "Pending"


def test_a_group_without_pods_says_once_why_it_is_not_admitted() -> None:
    cluster = running(2, 2)
    cluster.add(group("large", "q", 2, {"cpu": 2}, phase="Pending"))
    cluster.advance(60)
    said = [one for _, one in cluster.api.events if one.pod == "default/large"]
    assert [(one.about, one.reason) for one in said] == [("PodGroup", "Unschedulable")]
    assert "overcommitted" in said[0].message
