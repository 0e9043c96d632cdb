"""The scheduling gate of Volcano's queues, which pods opt into by an annotation."""

from __future__ import annotations

import pytest
from tests.plugins.queues.volcano.volcano_worlds import cluster_of, group, queue

from bayplan.api import ApiObject, Pod
from bayplan.cluster.protocol import PatchFields
from bayplan.errors import Forbidden
from bayplan.testing import Cluster, make_node, make_pod

GATE = "scheduling.volcano.sh/queue-allocation-gate"
NOWHERE = {"example.com/no": "such-node"}


def opted_in(name: str, *gates: str, job: str = "job", **spec: object) -> ApiObject:
    """Return a pod of one core that opted in, with these gates."""
    return make_pod(
        name,
        memory=None,
        annotations={"scheduling.k8s.io/group-name": job, GATE: "true"},
        spec={"schedulingGates": [{"name": gate} for gate in gates], **spec},
    )


def world(*objects: ApiObject, policy: str = "capacity", cores: int = 1) -> Cluster:
    limit = {"cpu": cores}
    return cluster_of(
        [
            make_node("n0", cpu=8),
            queue("q", capability=limit),
            group("job", "q", 1, {"cpu": 1}, phase="Pending"),
            *objects,
        ],
        {"policy": policy},
    )


def gated(cluster: Cluster) -> set[str]:
    return {pod.metadata.name for pod in cluster.api.list(Pod) if pod.spec.scheduling_gates}


@pytest.mark.parametrize("policy", ["capacity", "proportion"])
def test_a_pod_loses_the_gate_and_runs_where_its_queue_has_room(policy: str) -> None:
    cluster = world(opted_in("a", GATE), opted_in("b", GATE), policy=policy)
    cluster.advance(5)
    assert cluster.placements() == {"a": "n0"}
    assert gated(cluster) == {"b"}
    cluster.remove("a")
    cluster.advance(5)
    assert cluster.placements() == {"b": "n0"}


def test_an_autoscaler_sees_no_pod_that_only_its_queue_keeps_out() -> None:
    cluster = world(opted_in("a", GATE), opted_in("b", GATE))
    cluster.advance(5)
    (condition,) = cluster.api.get(Pod, "default/b").status.conditions
    assert (condition.status, condition.reason) == ("False", "SchedulingGated")


def test_what_has_lost_its_gate_holds_its_part_of_the_queue_without_a_node() -> None:
    cluster = world(opted_in("stuck", GATE, nodeSelector=NOWHERE))
    cluster.advance(5)
    cluster.add(opted_in("next", GATE))
    cluster.advance(5)
    assert gated(cluster) == {"next"}
    assert cluster.placements() == {}
    cluster.remove("stuck")
    cluster.advance(5)
    assert cluster.placements() == {"next": "n0"}


def test_the_gate_stays_while_there_is_another_one() -> None:
    cluster = world(opted_in("a", "example.com/other", GATE))
    cluster.advance(5)
    assert gated(cluster) == {"a"}


def test_a_pod_that_did_not_opt_in_keeps_the_gate() -> None:
    pod = make_pod(
        "a",
        memory=None,
        annotations={"scheduling.k8s.io/group-name": "job"},
        spec={"schedulingGates": [{"name": GATE}]},
    )
    cluster = world(pod)
    cluster.advance(5)
    assert gated(cluster) == {"a"}


def test_a_closed_queue_opens_no_gate() -> None:
    cluster = cluster_of(
        [
            make_node("n0", cpu=8),
            queue("q", state="Closed"),
            group("job", "q", 1),
            opted_in("a", GATE),
        ]
    )
    cluster.advance(5)
    assert gated(cluster) == {"a"}


def test_the_pods_of_a_gang_lose_their_gates_together() -> None:
    cluster = cluster_of(
        [
            make_node("n0", cpu=8),
            queue("q", capability={"cpu": 2}),
            group("job", "q", 2, {"cpu": 2}, phase="Pending"),
            *(opted_in(name, GATE) for name in "ab"),
        ]
    )
    cluster.advance(5)
    assert cluster.placements() == {"a": "n0", "b": "n0"}


def test_a_gate_that_may_not_be_removed_is_tried_again_after_a_minute() -> None:
    cluster = world()
    cluster.api.faults.fail_next(PatchFields, Forbidden("pods is forbidden"))
    cluster.add(opted_in("a", GATE))
    cluster.advance(30)
    assert gated(cluster) == {"a"}
    cluster.advance(60)
    assert cluster.placements() == {"a": "n0"}
