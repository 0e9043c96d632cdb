"""GangRestart: nobody takes the nodes of a gang while its pods are made again."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.gangs.test_owned import add, owned_by
from tests.gangs.test_owned_topology import template

from bayplan.api import ApiObject, Pod
from bayplan.api.operated import LeaderWorkerSet
from bayplan.testing import Cluster, make_node, make_object, make_pod, make_pods_of

KEPT = "node(s) are kept for LeaderWorkerSet default/l:0, whose pods are made again"


def worker_set(replicas: int = 1, **meta: Any) -> ApiObject:
    sizes = {"size": 2, "leaderTemplate": template(), "workerTemplate": template()}
    return make_object(
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "l", **meta},
            "spec": {"replicas": replicas, "leaderWorkerTemplate": sizes},
        }
    )


def running(**args: Any) -> tuple[Cluster, Any]:
    """Return a cluster of two nodes of one core each, both used by the only group of a set."""
    plugins = {"GangRestart": args} if args else {}
    made = Cluster([make_node(f"n{index}", cpu=1) for index in range(2)], plugins=plugins)
    owner = add(made, worker_set())
    made.add(*make_pods_of(owner))
    assert set(made.schedule()) == {"l-0", "l-0-1"}
    return made, owner


def recreated(made: Cluster) -> None:
    """End the pods of the group, one after the other, as it is made again."""
    made.remove("l-0-1")
    made.schedule()
    made.remove("l-0")


def batch(name: str = "batch", priority: int = 0) -> Pod:
    return make_pod(name, "1", None, priority=priority)


def test_a_group_that_is_made_again_gets_its_nodes_back() -> None:
    made, owner = running()
    made.add(batch())
    recreated(made)
    assert made.advance(3) == {}
    assert KEPT in made.message("batch")
    made.add(*make_pods_of(owner))
    assert set(made.advance(3)) == {"l-0", "l-0-1"}
    assert "Insufficient cpu" in made.message("batch")


def test_a_node_is_kept_from_the_first_pod_that_goes_on() -> None:
    made, owner = running()
    made.add(batch())
    made.remove("l-0-1")
    assert set(made.advance(3)) == {"l-0"}
    made.add(*(one for one in make_pods_of(owner) if one.metadata.name == "l-0-1"))
    assert set(made.advance(3)) == {"l-0", "l-0-1"}


def test_nodes_are_kept_for_a_short_time_only() -> None:
    made, _ = running()
    made.add(batch())
    recreated(made)
    assert made.advance(29) == {}
    assert set(made.advance(2)) == {"batch"}


def test_a_profile_says_for_how_long() -> None:
    made, _ = running(seconds=5)
    made.add(batch())
    recreated(made)
    assert made.advance(4) == {}
    assert set(made.advance(2)) == {"batch"}


def test_with_0_seconds_nothing_is_kept() -> None:
    made, _ = running(seconds=0)
    made.add(batch())
    recreated(made)
    assert set(made.advance(1)) == {"batch"}


def test_what_is_more_important_does_not_wait() -> None:
    made, _ = running()
    made.add(batch("usual"))
    recreated(made)
    made.add(batch("urgent", priority=1))
    assert set(made.advance(3)) == {"urgent"}


def test_nothing_is_kept_for_a_set_that_shrinks() -> None:
    made, owner = running()
    made.add(batch())
    made.api.update(replace(owner, spec={**owner.spec, "replicas": 0}))
    recreated(made)
    assert set(made.advance(1)) == {"batch"}


def test_nothing_is_kept_once_what_owned_the_pods_is_gone() -> None:
    made, _ = running()
    made.add(batch())
    recreated(made)
    assert made.advance(1) == {}
    made.api.delete(LeaderWorkerSet, "default/l")
    assert set(made.advance(5)) == {"batch"}


def test_nothing_is_kept_of_what_bayplan_evicts_for_others() -> None:
    made, _ = running()
    made.add(make_pod("urgent", "1", None, priority=10))
    made.advance(60)
    assert set(made.placements()) == {"urgent"}
    made.add(batch())
    assert set(made.advance(1)) == {"urgent", "batch"}


def test_only_what_the_pods_held_is_kept_of_a_node() -> None:
    made = Cluster([make_node("n", cpu=3)])
    owner = add(made, worker_set())
    made.add(*make_pods_of(owner))
    made.schedule()
    recreated(made)
    made.add(batch("a"), batch("b"))
    assert len(made.advance(3)) == 1


def test_another_group_that_is_made_again_does_not_take_them_either() -> None:
    made, owner = running()
    made.api.update(replace(owner, spec={**owner.spec, "replicas": 2}))
    larger = made.api.get(LeaderWorkerSet, "default/l")
    assert larger is not None
    made.add(*(one for one in make_pods_of(larger) if one.metadata.name.startswith("l-1")))
    made.schedule()
    recreated(made)
    assert made.advance(3) == {}
    made.add(*(one for one in make_pods_of(larger) if one.metadata.name.startswith("l-0")))
    assert set(made.advance(3)) == {"l-0", "l-0-1"}


@pytest.mark.parametrize("suspend", [False, True])
def test_a_job_set_that_restarts_gets_its_nodes_back_unless_it_is_suspended(suspend: bool) -> None:
    spec = {"parallelism": 2, "completions": 2, "template": template()}
    jobs = [{"name": "w", "replicas": 1, "template": {"spec": spec}}]
    kind = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
    made = Cluster([make_node(f"n{index}", cpu=1) for index in range(2)])
    content = {**kind, "metadata": {"name": "s"}, "spec": {"replicatedJobs": jobs}}
    owner = add(made, make_object(content))
    labels = {"jobset.sigs.k8s.io/replicatedjob-name": "w", "jobset.sigs.k8s.io/job-index": "0"}

    def pods(attempt: str) -> list[Pod]:
        return [
            owned_by(make_pod(f"s-w-0-{index}-{attempt}", "1", None, labels=labels), owner)
            for index in range(2)
        ]

    made.add(*pods("x"), batch())
    assert len(made.schedule()) == 2
    if suspend:
        made.api.update(replace(owner, spec=replace(owner.spec, suspend=True)))
    for pod in pods("x"):
        made.remove(pod.metadata.name)
    found = made.advance(3)
    assert set(found) == ({"batch"} if suspend else set())
    if not suspend:
        made.add(*pods("y"))
        assert set(made.advance(3)) == {"s-w-0-0-y", "s-w-0-1-y"}


# Groups that somebody wrote ------------------------------------------------------------------


def pod_group(api: str, members: int) -> ApiObject:
    spec = {"minMember": members}
    return make_object(
        {"apiVersion": api, "kind": "PodGroup", "metadata": {"name": "g"}, "spec": spec}
    )


def grouped(owner: ApiObject | None, api: str, marks: dict[str, Any]) -> tuple[Cluster, list[Pod]]:
    """Return a cluster whose two nodes are used by a group of two pods, and these pods."""
    made = Cluster([make_node(f"n{index}", cpu=1) for index in range(2)])
    pods = [make_pod(f"m-{index}", "1", None) for index in range(2)]
    if owner is not None:
        owner = add(made, owner)
        pods = [owned_by(pod, owner) for pod in pods]
    pods = [replace(pod, metadata=replace(pod.metadata, **marks)) for pod in pods]
    made.add(pod_group(api, 2), *pods)
    assert set(made.schedule()) == {"m-0", "m-1"}
    return made, pods


VOLCANO = "scheduling.volcano.sh/v1beta1", {"annotations": {"scheduling.k8s.io/group-name": "g"}}
COSCHEDULING = "scheduling.x-k8s.io/v1alpha1", {"labels": {"scheduling.x-k8s.io/pod-group": "g"}}


def volcano_job(phase: str = "Running") -> ApiObject:
    task = {"name": "t", "replicas": 2, "template": template()}
    return make_object(
        {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "metadata": {"name": "v"},
            "spec": {"minAvailable": 2, "tasks": [task]},
            "status": {"state": {"phase": phase}},
        }
    )


def plain_job(parallelism: int = 2) -> ApiObject:
    spec = {"parallelism": parallelism, "completions": parallelism, "template": template()}
    return make_object(
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": spec}
    )


@pytest.mark.parametrize(
    ("owner", "kept"),
    [
        (volcano_job("Running"), True),
        (volcano_job("Restarting"), True),
        (volcano_job("Aborting"), False),
        (volcano_job("Completed"), False),
        (None, False),
    ],
    ids=["runs", "restarts", "is aborted", "has ended", "nobody"],
)
def test_the_nodes_of_a_volcano_job_are_kept_while_it_makes_pods_again(
    owner: ApiObject | None, kept: bool
) -> None:
    made, pods = grouped(owner, *VOLCANO)
    made.add(batch())
    for pod in pods:
        made.remove(pod.metadata.name)
    assert set(made.advance(3)) == (set() if kept else {"batch"})
    if kept:
        assert "are kept for" in made.message("batch")
        made.add(*pods)
        assert set(made.advance(3)) == {"m-0", "m-1"}


def test_the_nodes_of_another_schedulers_group_are_kept_by_what_owns_its_pods() -> None:
    made, pods = grouped(plain_job(), *COSCHEDULING)
    made.add(batch())
    made.remove("m-0")
    assert set(made.advance(3)) == {"m-1"}
    assert "are kept for" in made.message("batch")
    made.add(pods[0])
    assert set(made.advance(3)) == {"m-0", "m-1"}


def test_nothing_is_kept_for_a_job_of_a_group_that_needs_fewer_pods() -> None:
    made, _ = grouped(plain_job(1), *COSCHEDULING)
    made.add(batch())
    made.remove("m-0")
    assert set(made.advance(3)) == {"m-1", "batch"}
