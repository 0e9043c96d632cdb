"""For which pods of each system's queues autoscalers add nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace
from tests.paths import ROOT
from tests.plugins.queues.koordinator.quota_builders import PREFIX, quota
from tests.plugins.queues.volcano.volcano_worlds import cluster_of, group, pods, queue

from bayplan.api import ApiObject, Pod, VolcanoPodGroup
from bayplan.profiles.loading import load_profiles
from bayplan.testing import Cluster, make_node, make_object, make_pod

LACKS_NODES = "Unschedulable"
NOT_READY = "NotReadyForScheduling"


def reasons(cluster: Cluster) -> dict[str, list[str]]:
    """Return the pending pods by the reason of their condition."""
    found: dict[str, list[str]] = {}
    for pod in cluster.api.list(Pod):
        for condition in pod.status.conditions:
            if condition.type == "PodScheduled" and condition.status == "False":
                found.setdefault(condition.reason, []).append(pod.metadata.name)
    return found


def koordinator(*objects: ApiObject, count: int = 3) -> dict[str, list[str]]:
    labels = {f"{PREFIX}name": "team"}
    waiting = [make_pod(f"p{index}", "1", None, labels=labels, gpu=8) for index in range(count)]
    cluster = Cluster([*objects, *waiting])
    cluster.schedule()
    return reasons(cluster)


def test_nodes_are_added_up_to_the_max_of_a_koordinator_quota() -> None:
    found = koordinator(quota("team", 0, 16), make_node("n", cpu=8))
    assert found == {LACKS_NODES: ["p0", "p1"], NOT_READY: ["p2"]}


def test_a_koordinator_quota_that_has_its_share_of_all_nodes_gets_more_nodes() -> None:
    others = [
        make_pod(f"r{index}", "1", None, {f"{PREFIX}name": "rest"}, gpu=4, node="n")
        for index in range(2)
    ]
    quotas = quota("team", 0, 8), quota("rest", 8, 8)
    found = koordinator(*quotas, make_node("n", cpu=8, gpu=8), *others, count=2)
    assert found == {LACKS_NODES: ["p0"], NOT_READY: ["p1"]}


def volcano(capability: Mapping[str, Any] | None, policy: str) -> dict[str, list[str]]:
    jobs: list[ApiObject] = []
    for job in ("a", "b", "c"):
        jobs += [group(job, "q", 1), *pods(job, 1, gpu=8)]
    own = queue("q", capability=capability), make_node("n", cpu=8)
    cluster = cluster_of([*own, *jobs], {"policy": policy})
    cluster.schedule()
    return reasons(cluster)


def test_nodes_are_added_up_to_the_capability_of_a_volcano_queue() -> None:
    for policy in ("capacity", "proportion"):
        found = volcano({"gpu": 16}, policy)
        assert found == {LACKS_NODES: ["a-0", "b-0"], NOT_READY: ["c-0"]}


def test_nodes_are_added_for_all_jobs_of_a_volcano_queue_without_capability() -> None:
    assert volcano(None, "capacity") == {LACKS_NODES: ["a-0", "b-0", "c-0"]}


def kai_queue(name: str, limit: int, parent: str = "") -> ApiObject:
    free = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    gpu = {"quota": 0, "limit": limit, "overQuotaWeight": 1}
    spec = {"resources": {"gpu": gpu, "cpu": free, "memory": free}, "parentQueue": parent}
    kind = {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue"}
    return make_object({**kind, "metadata": {"name": name}, "spec": spec})


def test_nodes_are_added_up_to_the_limit_above_two_kai_queues() -> None:
    cluster = Cluster(profiles=load_profiles(ROOT / "configs/profiles/kai.yaml"))
    cluster.add(make_node("n", cpu=64), kai_queue("all", 8))
    for team in ("a", "b"):
        labels = {"kai.scheduler/queue": team}
        spec = {"schedulerName": "kai-scheduler"}
        cluster.add(kai_queue(team, -1, "all"), make_pod(team, labels=labels, gpu=8, spec=spec))
    cluster.schedule()
    assert reasons(cluster) == {LACKS_NODES: ["a"], NOT_READY: ["b"]}


def test_jobs_count_for_the_volcano_queue_that_they_came_to() -> None:
    own = [group("a", "new", 1), *pods("a", 2, gpu=4), group("b", "q", 3), *pods("b", 3, gpu=4)]
    others = group("c", "q", 1), *pods("c", 3, gpu=4)
    objects = [make_node("n", cpu=8), queue("q"), *own, *others]
    cluster = Cluster(objects, plugins=["Queues"])
    cluster.schedule()
    (moved,) = [one for one in cluster.api.list(VolcanoPodGroup) if one.metadata.name == "b"]
    cluster.api.update(replace(moved, spec=replace(moved.spec, queue="new")))
    cluster.add(queue("new", capability={"gpu": 16}))
    cluster.advance(400)
    asked = [one.unit for one in cluster.scheduler.asked_nodes(9)]
    assert asked == ["default/a", "default/b", "default/c"]
