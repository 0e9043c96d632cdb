"""What becomes of jobs in Kueue's queues when all their nodes fail."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.plugins.queues.kueue.kueue_builders import cluster_queue, flavor, local_queue
from tests.plugins.queues.kueue.queued_job_builders import GPU, job, workload_of

from bayplan.api import ApiObject, JobSet, Node, Pod
from bayplan.api.node import NodeCondition
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.profiles.loading import default_profiles
from bayplan.testing import Cluster, make_node, make_object

QUEUE = {"kueue.x-k8s.io/queue-name": "lq"}
ASKS = {"bayplan.dev/gang": "true"}


class World:
    """Four nodes of a GPU each, nodes without any, and a queue that may have all GPUs."""

    def __init__(self, made: ApiObject) -> None:
        named = default_profiles(scheduler_names=("default-scheduler",))
        plugins: dict[Any, Any] = {"Recovery": {}, "Queues": {}}
        self.cluster = Cluster((), named, plugins)
        start_controllers(self.cluster.api)
        # Others, so that four nodes are no outage of all.
        nodes = [*(make_node(f"g{i}", gpu=1) for i in range(4)), *map(make_node, "abcdef")]
        queue = cluster_queue("cq", {"f": {GPU: 4}})
        self.cluster.add(*nodes, flavor("f"), queue, local_queue("lq", "cq"), made)
        self.cluster.advance(20.0)

    def ready(self, status: str, *numbers: int) -> None:
        """Let kubelets fall silent (Unknown), or come back (True)."""
        for number in numbers:
            node = self.cluster.api.get(Node, f"g{number}")
            assert node is not None
            conditions = (NodeCondition("Ready", status),)
            self.cluster.api.update(
                replace(node, status=replace(node.status, conditions=conditions))
            )

    def on_nodes(self) -> list[str]:
        """Return the nodes of the pods that do not end, "" for none."""
        pods = self.cluster.api.list(Pod)
        return sorted(p.spec.node_name for p in pods if not p.metadata.deletion_timestamp)

    def states(self, name: str) -> dict[str, tuple[str, str]]:
        stated = workload_of(self.cluster, name).status.conditions
        return {one.type: (one.status, one.reason) for one in stated}


def gang(count: int) -> ApiObject:
    made = job("train", count)
    return replace(made, metadata=replace(made.metadata, annotations=ASKS))


def job_set() -> ApiObject:
    """Return a set of two Jobs of two pods, one after the other: each is a gang."""
    container = {"name": "c", "image": "x", "resources": {"limits": {GPU: "1"}}}
    pod = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 5}
    spec = {"parallelism": 2, "completions": 2, "backoffLimit": 100, "template": {"spec": pod}}
    groups = [{"name": name, "replicas": 1, "template": {"spec": spec}} for name in "ab"]
    groups[1]["dependsOn"] = [{"name": "a", "status": "Ready"}]
    meta = {"name": "train", "labels": QUEUE}
    head = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta}
    return make_object(head | {"spec": {"suspend": True, "replicatedJobs": groups}})


@pytest.mark.parametrize("made", [gang(4), job_set()], ids=["one gang", "two gangs"])
@pytest.mark.parametrize("killed", [False, True])
def test_a_job_that_lost_all_nodes_waits_in_its_queue_without_quota(
    made: ApiObject, killed: bool
) -> None:
    world = World(made)
    assert world.on_nodes() == ["g0", "g1", "g2", "g3"]
    world.ready("Unknown", 0, 1, 2, 3)
    world.cluster.advance(60.0)
    if killed:
        world.cluster.restart()
    world.cluster.advance(240.0)
    states = world.states("train")
    assert states["Evicted"] == ("True", "NodeFailures")
    assert states["QuotaReserved"][0] == "False"
    assert world.on_nodes() == []
    world.ready("True", 0, 1, 2, 3)
    world.cluster.advance(900.0)
    assert world.on_nodes() == ["g0", "g1", "g2", "g3"]
    assert world.states("train")["Admitted"][0] == "True"


def test_a_gang_keeps_its_quota_while_members_find_other_nodes() -> None:
    world = World(gang(2))
    before = world.on_nodes()
    world.ready("Unknown", *(int(name[1]) for name in before))
    world.cluster.advance(120.0)
    assert "Evicted" not in world.states("train")
    after = world.on_nodes()
    assert len(after) == 2
    assert all(after)
    assert set(after).isdisjoint(before)


def test_one_gang_of_a_job_that_is_given_up_gives_up_the_whole_job() -> None:
    world = World(job_set())
    (owner,) = world.cluster.api.list(JobSet)
    assert not owner.spec.suspend
    world.ready("Unknown", 0)
    world.cluster.advance(200.0)
    assert world.states("train")["Evicted"] == ("True", "NodeFailures")
    assert world.on_nodes() == []
    world.ready("True", 0)
    world.cluster.advance(900.0)
    assert len([name for name in world.on_nodes() if name]) == 4
