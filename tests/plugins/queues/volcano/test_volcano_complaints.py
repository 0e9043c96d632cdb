"""What users of Volcano report, and bayplan's answer to each."""

from __future__ import annotations

from tests.plugins.queues.volcano.volcano_worlds import (
    cluster_of,
    evictions,
    group,
    phase,
    pods,
    queue,
    settle,
)

from bayplan.testing import make_node

GPUS = [make_node(f"n{index}", cpu=64, gpu=8) for index in range(2)]


def test_a_full_cluster_hides_no_job_from_reclaim() -> None:
    """volcano-sh/volcano 4679, 4817: the gate of a full cluster keeps jobs Pending."""
    cluster = cluster_of(
        [
            *GPUS,
            queue("lender", deserved={"gpu": 8}),
            queue("borrower", deserved={"gpu": 8}),
            group("big", "borrower", least=0),
            *pods("big", 16, ["n0"] * 8 + ["n1"] * 8, gpu=1),
            group("mine", "lender", 4, {"gpu": 4}, phase="Pending"),
            *pods("mine", 4, gpu=1),
        ]
    )
    cluster.schedule()
    assert phase(cluster, "mine") == "Inqueue"
    assert len(evictions(cluster)) == 4


def test_a_job_beyond_what_its_queue_deserves_waits_for_room() -> None:
    """The gate still holds back what the queue could not reclaim."""
    cluster = cluster_of(
        [
            *GPUS,
            queue("lender", deserved={"gpu": 2}),
            queue("borrower", deserved={"gpu": 14}),
            group("big", "borrower", least=0),
            *pods("big", 16, ["n0"] * 8 + ["n1"] * 8, gpu=1),
            group("mine", "lender", 4, {"gpu": 4}, phase="Pending"),
            *pods("mine", 4, gpu=1),
        ]
    )
    cluster.schedule()
    assert phase(cluster, "mine") == "Pending"
    assert "the cluster is overcommitted: no more nvidia.com/gpu" in cluster.message("mine-0")
    assert evictions(cluster) == []


def test_the_victims_queue_does_not_reclaim_back_for_ever() -> None:
    """volcano-sh/volcano 4949, 561: the victim's queue falls below its share and reclaims back."""
    cluster = cluster_of(
        [
            make_node("n0", cpu=5),
            queue("q1", deserved={"cpu": 3}),
            queue("q2", deserved={"cpu": 5}),
            group("a", "q1"),
            *pods("a", 1, ["n0"], cpu=4),
            group("b", "q2"),
            *pods("b", 1, ["n0"], cpu=1),
            group("c", "q2"),
            *pods("c", 1, cpu=4),
        ]
    )
    assert settle(cluster) <= 2
    assert cluster.placements()["c-0"] == "n0"
    assert evictions(cluster) == ["a-0"]


def test_queues_that_lack_different_resources_do_not_exchange_pods_for_ever() -> None:
    """Each queue is below its share of one resource and beyond that of the other."""
    cluster = cluster_of(
        [
            make_node("n0", cpu=8, memory="8Gi"),
            queue("q1", deserved={"cpu": 6, "memory": "2Gi"}),
            queue("q2", deserved={"cpu": 2, "memory": "6Gi"}),
            group("a", "q1", least=0),
            *pods("a", 4, ["n0"] * 4, cpu=1, memory="1Gi"),
            group("b", "q2", least=0),
            *pods("b", 4, ["n0"] * 4, cpu=1, memory="1Gi"),
            *pods("a", 4, first=4, cpu=1, memory="1Gi"),
            *pods("b", 4, first=4, cpu=1, memory="1Gi"),
        ]
    )
    settle(cluster)


def test_elastic_jobs_do_not_reclaim_each_others_pods() -> None:
    """volcano-sh/volcano 3869: a pending pod of an elastic job makes it starve."""
    cluster = cluster_of(
        [
            *GPUS,
            queue("q1", deserved={"gpu": 8}),
            queue("q2", deserved={"gpu": 8}),
            group("a", "q1", least=2),
            *pods("a", 12, gpu=1),
            group("b", "q2", least=2),
            *pods("b", 12, gpu=1),
        ],
        {
            "actions": "enqueue, allocate, reclaim, preempt",
            "tiers": [{"plugins": [{"name": "priority"}, {"name": "capacity"}]}],
        },
    )
    cluster.schedule()
    assert settle(cluster) <= 2
    used = [pod[0] for pod in cluster.placements()]
    assert used.count("a") == used.count("b") == 8


def test_no_more_pods_are_evicted_than_are_in_the_way() -> None:
    """volcano-sh/volcano 1256."""
    nodes = [make_node(f"n{index}", cpu=64, gpu=8) for index in range(6)]
    where = [f"n{index % 6}" for index in range(48)]
    cluster = cluster_of(
        [
            *nodes,
            queue("lender", deserved={"gpu": 40}),
            queue("borrower", deserved={"gpu": 8}),
            group("many", "borrower", least=0),
            *pods("many", 48, where, gpu=1),
            group("mine", "lender"),
            *pods("mine", 1, gpu=3),
        ]
    )
    cluster.schedule()
    assert len(evictions(cluster)) == 3


def test_a_share_of_gpus_alone_and_no_minimum_is_enough_to_reclaim() -> None:
    """volcano-sh/volcano 4658, 4536."""
    cluster = cluster_of(
        [
            make_node("n0", cpu=64, gpu=8),
            queue("q1", deserved={"gpu": 4}),
            queue("q2", deserved={"gpu": 4}),
            group("a", "q1", least=0),
            *pods("a", 8, ["n0"] * 8, cpu=1, gpu=1),
            group("b", "q2", least=0),
            *pods("b", 2, cpu=1, gpu=1),
        ]
    )
    settle(cluster)
    assert {"b-0", "b-1"} <= cluster.placements().keys()


def test_the_refusal_says_which_resource_is_missing() -> None:
    """volcano-sh/volcano 1094."""
    cluster = cluster_of(
        [
            make_node("n0", cpu=64, gpu=8),
            queue("q1", capability={"gpu": 3}),
            group("a", "q1", 5),
            *pods("a", 5, gpu=1),
        ]
    )
    cluster.schedule()
    message = cluster.message("a-0")
    assert 'queue "q1": capability of nvidia.com/gpu exceeded' in message
    assert "5 requested, 0 of 3 used, 2 missing" in message


def test_a_gang_is_never_left_below_its_minimum() -> None:
    """Reclaim takes the surplus of a job, then the whole job, never a part of its minimum."""
    cluster = cluster_of(
        [
            make_node("n0", cpu=64, gpu=8),
            queue("q1", deserved={"gpu": 2}),
            queue("q2", deserved={"gpu": 6}),
            group("a", "q1", least=4),
            *pods("a", 8, ["n0"] * 8, gpu=1),
            group("b", "q2", least=6),
            *pods("b", 6, gpu=1),
        ],
        {
            "actions": "enqueue, allocate, reclaim",
            "tiers": [
                {"plugins": [{"name": "priority"}, {"name": "capacity"}]},
            ],
        },
    )
    settle(cluster)
    placed = [name for name in cluster.placements() if name.startswith("a-")]
    assert len(placed) in (0, 4, 5, 6, 7, 8)
