"""Announced maintenance: new work stays off, running jobs move, and a report says what remains."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace
from tests.console import bayplan
from tests.recovery.test_recovery import World, job

from bayplan.api import ApiObject, Job, Node, ObjectMeta, Pod
from bayplan.api.node import Taint
from bayplan.api.times import rfc3339
from bayplan.testing import make_gang, make_network, make_node, make_pod

AT = "bayplan.dev/maintenance-at"
NOTICE = "bayplan.dev/eviction-notice"


def announce(world: World, *names: str, seconds: float | None) -> None:
    """Announce maintenance in so many seconds, or take it back."""
    for name in names:
        node = world.api.get(Node, name)
        assert node is not None
        annotations = {k: v for k, v in node.metadata.annotations.items() if k != AT}
        if seconds is not None:
            annotations[AT] = rfc3339(world.api.unix_time + seconds)
        world.api.update(replace(node, metadata=replace(node.metadata, annotations=annotations)))
    world.passes(1)


def node_of(world: World, name: str) -> str:
    pod = world.api.get(Pod, f"default/{name}")
    return pod.spec.node_name if pod is not None else "gone"


def on(world: World, prefix: str) -> set[str]:
    """Return the nodes of the pods of a job that are not deleted."""
    return {
        pod.spec.node_name
        for pod in world.api.list(Pod)
        if pod.metadata.name.startswith(f"{prefix}-") and not pod.metadata.deletion_timestamp
    }


def saying(name: str, count: int, **annotations: str) -> list[ApiObject]:
    """Return a gang whose pods say something of their work."""
    made = job(name, count)
    assert hasattr(made, "spec")
    template = made.spec.template
    said = {f"bayplan.dev/{key.replace('_', '-')}": text for key, text in annotations.items()}
    meta = replace(template.metadata, annotations=said)
    spec = replace(made.spec, template=replace(template, metadata=meta))
    return [make_gang(name, count), replace(made, spec=spec)]


def asking(name: str, count: int, seconds: int) -> list[ApiObject]:
    """Return a gang whose pods want so many seconds to save their work."""
    return saying(name, count, checkpoint_seconds=str(seconds))


def lasting(name: str, seconds: int, **more: Any) -> Pod:
    annotations = {"bayplan.dev/duration": f"{seconds}s"}
    return make_pod(name, gpu=8, annotations=annotations, **more)


def test_new_work_stays_off_unless_it_ends_in_time() -> None:
    world = World(1)
    announce(world, "n0", seconds=1000)
    world.add(lasting("long", 1200), make_pod("endless", gpu=1))
    world.passes(5)
    assert node_of(world, "long") == ""
    assert node_of(world, "endless") == ""
    world.add(lasting("short", 600))
    world.passes(5)
    assert node_of(world, "short") == "n0"
    pod = world.api.get(Pod, "default/long")
    assert pod is not None
    (why,) = (one.message for one in pod.status.conditions if one.type == "PodScheduled")
    assert "go into maintenance before it would end" in str(why)


def test_the_window_closes_as_time_passes_and_opens_when_it_is_taken_back() -> None:
    world = World(1)
    announce(world, "n0", seconds=1000)
    world.passes(600)
    world.add(lasting("late", 600))
    world.passes(5)
    assert node_of(world, "late") == ""
    announce(world, "n0", seconds=None)
    world.passes(30)
    assert node_of(world, "late") == "n0"


def test_a_time_that_nobody_can_read_counts_as_now() -> None:
    world = World(1)
    node = world.api.get(Node, "n0")
    assert node is not None
    meta = replace(node.metadata, annotations={AT: "tomorrow"})
    world.api.update(replace(node, metadata=meta))
    world.add(lasting("short", 1))
    world.passes(5)
    assert node_of(world, "short") == ""


def test_a_member_moves_and_the_others_go_on() -> None:
    world = World(4)
    world.gang("g", 3)
    world.passes(5)
    before = {pod.metadata.name for pod in world.api.list(Pod) if pod.spec.node_name != "n0"}
    announce(world, "n0", seconds=3600)
    world.passes(60)
    assert on(world, "g") == {"n1", "n2", "n3"}
    after = {pod.metadata.name for pod in world.api.list(Pod)}
    assert before <= after


def test_a_gang_moves_whole_where_its_domain_has_no_room() -> None:
    world = World(0)
    for rack in "ab":
        for number in range(2):
            world.add(make_node(f"{rack}{number}", gpu=8, labels={"rack": rack}))
    spec = '{"gatherStrategy": [{"layer": "rack", "strategy": "MustGather"}]}'
    said = {"gang.scheduling.koordinator.sh/network-topology-spec": spec}
    world.add(make_network(rack="rack"), make_gang("g", 2, annotations=said), job("g", 2))
    world.passes(5)
    (rack,) = {node[0] for node in on(world, "g")}
    other = "b" if rack == "a" else "a"
    announce(world, f"{rack}0", seconds=3600)
    world.passes(90)
    assert on(world, "g") == {f"{other}0", f"{other}1"}


def test_a_member_of_its_owners_gang_moves_to_a_spare() -> None:
    world = World(3, spares=[{"nodes": 1}])
    made = job("g", 2)
    assert isinstance(made, Job)
    meta = ObjectMeta(annotations={"bayplan.dev/min-member": "2"})
    template = replace(made.spec.template, metadata=meta)
    world.add(replace(made, spec=replace(made.spec, template=template)))
    world.passes(5)
    assert on(world, "g") == {"n0", "n1"}
    announce(world, "n0", seconds=3600)
    world.passes(60)
    assert on(world, "g") == {"n1", "n2"}


def test_without_room_a_job_stays_until_there_is_some() -> None:
    world = World(2)
    world.gang("g", 2)
    world.passes(5)
    announce(world, "n0", seconds=7200)
    world.passes(600)
    assert on(world, "g") == {"n0", "n1"}
    world.add(make_node("n2", gpu=8))
    world.passes(120)
    assert on(world, "g") == {"n1", "n2"}


def test_a_job_that_ends_in_time_is_left_alone() -> None:
    world = World(2)
    world.add(*saying("g", 1, duration="1000s"))
    world.passes(5)
    (where,) = on(world, "g")
    announce(world, where, seconds=1500)
    world.passes(900)
    assert on(world, "g") == {where}


def test_its_work_is_saved_before_a_job_moves() -> None:
    world = World(2)
    world.add(*asking("g", 1, 300))
    world.passes(5)
    (where,) = on(world, "g")
    announce(world, where, seconds=3600)
    world.passes(200)
    (pod,) = (pod for pod in world.api.list(Pod) if not pod.metadata.deletion_timestamp)
    assert pod.spec.node_name == where
    assert "maintenance" in pod.metadata.annotations["bayplan.dev/eviction-notice"]
    world.passes(200)
    assert on(world, "g") == {"n0", "n1"} - {where}


def test_what_nobody_makes_again_stays() -> None:
    world = World(2)
    world.add(make_pod("alone-0", gpu=8))
    world.passes(5)
    (where,) = on(world, "alone")
    announce(world, where, seconds=3600)
    world.passes(300)
    assert on(world, "alone") == {where}


def test_nodes_that_go_are_no_spares() -> None:
    world = World(3, spares=[{"nodes": 1}])
    announce(world, "n2", seconds=3600)
    world.add(*(make_pod(f"p{number}", gpu=8) for number in range(2)))
    world.passes(5)
    # n1 is the spare now.
    assert sorted(node_of(world, f"p{number}") for number in range(2)) == ["", "n0"]


# While a job has its notice -----------------------------------------------------------------------


def notices(world: World) -> set[str]:
    pods = world.api.list(Pod)
    return {pod.spec.node_name for pod in pods if NOTICE in pod.metadata.annotations}


def test_a_job_stays_when_the_maintenance_is_taken_back() -> None:
    world = World(2)
    world.add(*asking("g", 1, 300))
    world.passes(5)
    (where,) = on(world, "g")
    announce(world, where, seconds=3600)
    world.passes(60)
    assert notices(world) == {where}
    announce(world, where, seconds=None)
    world.passes(400)
    assert on(world, "g") == {where}
    assert notices(world) == set()


def test_a_job_stays_when_its_place_is_taken_meanwhile() -> None:
    world = World(2)
    world.add(*asking("g", 1, 300))
    world.passes(5)
    (where,) = on(world, "g")
    announce(world, where, seconds=36000)
    world.passes(60)
    world.add(make_pod("other", gpu=8))
    world.passes(400)
    assert on(world, "g") == {where}
    assert notices(world) == set()


def test_two_jobs_do_not_move_to_the_same_place() -> None:
    world = World(3)
    world.add(*asking("a", 1, 1000), *asking("b", 1, 1000))
    world.passes(5)
    announce(world, *(on(world, "a") | on(world, "b")), seconds=36000)
    world.passes(4000)
    assert len(on(world, "a") | on(world, "b")) == 2
    assert "" not in on(world, "a") | on(world, "b")


def test_a_node_that_is_lost_meanwhile_takes_one_member_along() -> None:
    world = World(4)
    world.add(*asking("g", 3, 1800))
    world.passes(5)
    before = {pod.metadata.name for pod in world.api.list(Pod)}
    where = min(on(world, "g"))
    announce(world, where, seconds=36000)
    world.passes(30)
    world.ready(where, "Unknown")
    world.passes(150)
    there = [pod for pod in world.api.list(Pod) if not pod.metadata.deletion_timestamp]
    assert len(before & {pod.metadata.name for pod in there}) == 2
    assert len(on(world, "g")) == 3


def test_a_restart_keeps_the_notice() -> None:
    world = World(2)
    world.add(*asking("g", 1, 300))
    world.passes(5)
    (where,) = on(world, "g")
    announce(world, where, seconds=36000)
    world.passes(200)
    world.cluster.restart()
    world.passes(60)
    assert on(world, "g") == {where}
    world.passes(90)
    assert on(world, "g") == {"n0", "n1"} - {where}


def test_a_pod_is_tried_again_when_another_node_becomes_the_spare() -> None:
    world = World(3, spares=[{"nodes": 1}])
    world.add(make_pod("x", gpu=8, node="n2"))
    world.passes(5)
    wanted = make_pod("p", gpu=8)
    selector = {"kubernetes.io/hostname": "n1"}
    world.add(replace(wanted, spec=replace(wanted.spec, node_selector=selector)))
    world.passes(5)
    assert node_of(world, "p") == ""
    world.api.delete(Pod, "default/x", 0)
    world.passes(30)
    assert node_of(world, "p") == "n1"


# The command -------------------------------------------------------------------------------------

EXAMPLE = ("-f", "configs/examples/recovery", "--config", "configs/profiles/recovery.yaml")


def test_the_command_says_what_becomes_of_jobs() -> None:
    moved = bayplan("drain", "a1", "--by", "2h", *EXAMPLE)
    assert moved.status == 0, moved.stderr
    assert "1  moves to a5 " in moved.stdout
    found = json.loads(bayplan("drain", "rack/a", "--by", "8h", *EXAMPLE, "-o", "json").stdout)
    assert found["nodes"] == ["a1", "a2", "a3", "a4", "a5"]
    assert [one["outcome"] for one in found["jobs"]] == ["ends"]
    assert "1 job: 1 stays" in bayplan("drain", "a", "--by", "2h", *EXAMPLE).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a9", "--by", "2h", *EXAMPLE), 'there is no node and no network domain "a9"'),
        (("a1", "--by", "soon", *EXAMPLE), "--by"),
        (("a1", "--by", "0s", *EXAMPLE), "expected a time to come"),
        (("a1", "--by", "2001-01-01T00:00:00Z", *EXAMPLE), "expected a time to come"),
        (("a1", "--by", "2031-01-01T00:00:00", *EXAMPLE), "expected a time with its zone"),
        (("a1", "--by", "500d", *EXAMPLE), "expected a time to come"),
        (("a1", "--by", "2h", *EXAMPLE[:2]), "no profile enables the plugin Recovery"),
        (("a1", *EXAMPLE), "--by"),
    ],
)
def test_bad_input_is_named(arguments: tuple[str, ...], message: str) -> None:
    answer = bayplan("drain", *arguments)
    assert answer.status == 2
    assert message in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    "key",
    ["cloud.google.com/impending-node-termination", "aws-node-termination-handler/spot-itn"],
)
def test_a_cloud_that_takes_a_node_away_moves_its_jobs(key: str) -> None:
    world = World(5)
    world.gang("train", 4)
    world.passes(10)
    going = min(on(world, "train"))
    node = world.api.get(Node, going)
    assert node is not None
    taint = Taint(key, effect="NoSchedule")
    world.api.update(replace(node, spec=replace(node.spec, taints=(taint,))))
    world.passes(120)
    assert going not in on(world, "train")
    assert len(on(world, "train")) == 4
