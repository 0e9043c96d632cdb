"""Pods that ask for time to save their work get it before they are evicted, whoever evicts them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bayplan.api import ApiObject, Node, Pod
from bayplan.api.node import NodeCondition
from bayplan.api.times import rfc3339, seconds_of
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.dialects.progress import notice_wanted
from bayplan.profiles.loading import default_profiles
from bayplan.testing import Cluster, make_gang, make_node, make_object, make_pod

ASKS = {"bayplan.dev/checkpoint-seconds": "120"}
GOING, WHY = "bayplan.dev/going-at", "bayplan.dev/eviction-notice"


class World:
    """One node with eight GPUs, a pod that has them, and a scheduler that can be killed."""

    def __init__(self, annotations: dict[str, str], grace: int = 0) -> None:
        named = default_profiles(scheduler_names=("default-scheduler",))
        self.cluster = Cluster((), named)
        self.api = self.cluster.api
        start_controllers(self.api)
        self.add(make_node("n", gpu=8), make_pod("low", gpu=8, annotations=annotations))
        self.passes(10)

    def add(self, *objects: ApiObject) -> None:
        self.cluster.add(*objects)

    def passes(self, seconds: float) -> None:
        self.cluster.advance(seconds)

    def pod(self, name: str) -> Pod | None:
        return self.api.get(Pod, f"default/{name}")

    def is_going(self, name: str) -> bool:
        pod = self.pod(name)
        return pod is None or pod.metadata.deletion_timestamp is not None

    def notice(self, name: str) -> tuple[str | None, str | None]:
        pod = self.pod(name)
        found = pod.metadata.annotations if pod is not None else {}
        return found.get(GOING), found.get(WHY)

    def says(self, name: str, **annotations: str) -> None:
        pod = self.pod(name)
        assert pod is not None
        own = {f"bayplan.dev/{key.replace('_', '-')}": text for key, text in annotations.items()}
        meta = replace(pod.metadata, annotations={**pod.metadata.annotations, **own})
        self.api.update(replace(pod, metadata=meta))


def test_a_victim_is_told_when_and_why_it_goes_and_goes_then() -> None:
    world = World(ASKS)
    world.add(make_pod("high", gpu=8, priority=10))
    world.passes(5)
    at, why = world.notice("low")
    assert seconds_of(at) == pytest.approx(world.api.unix_time + 115, abs=1)
    assert why is not None
    assert "high" in why or "preempt" in why.lower()
    world.passes(100)
    assert not world.is_going("low")
    world.passes(60)
    assert world.is_going("low")
    high = world.pod("high")
    assert high is not None
    assert high.spec.node_name == "n"


def test_it_goes_as_soon_as_its_work_is_saved() -> None:
    world = World(ASKS)
    world.add(make_pod("high", gpu=8, priority=10))
    world.passes(20)
    # One from before the notice says nothing.
    world.says("low", checkpointed_at=rfc3339(world.api.unix_time - 100))
    world.passes(10)
    assert not world.is_going("low")
    world.says("low", checkpointed_at=rfc3339(world.api.unix_time))
    world.passes(40)
    high = world.pod("high")
    assert high is not None
    assert high.spec.node_name == "n"


def test_without_the_wish_nothing_changes() -> None:
    world = World({})
    world.add(make_pod("high", gpu=8, priority=10))
    world.passes(1)
    assert world.is_going("low")
    assert world.notice("low") == (None, None)


def test_a_notice_is_taken_back_when_nobody_needs_the_place_any_more() -> None:
    world = World(ASKS)
    world.add(make_pod("high", gpu=8, priority=10))
    world.passes(20)
    world.api.delete(Pod, "default/high", 0)
    world.passes(200)
    assert not world.is_going("low")
    assert world.notice("low") == (None, None)


def test_a_restart_neither_forgets_a_notice_nor_begins_it_again() -> None:
    world = World(ASKS)
    world.add(make_pod("high", gpu=8, priority=10))
    world.passes(60)
    before = world.notice("low")
    world.cluster.restart()
    world.passes(30)
    assert world.notice("low") == before
    assert not world.is_going("low")
    world.passes(60)
    assert world.is_going("low")


def test_a_notice_of_a_dead_process_is_taken_back() -> None:
    world = World(ASKS)
    world.add(make_pod("high", gpu=8, priority=10))
    world.passes(60)
    world.api.delete(Pod, "default/high", 0)
    world.cluster.restart()
    world.passes(300)
    assert world.notice("low") == (None, None)
    assert not world.is_going("low")


def test_all_of_a_gang_gets_notice() -> None:
    named = default_profiles(scheduler_names=("default-scheduler",))
    cluster = Cluster((), named)
    start_controllers(cluster.api)
    nodes = [make_node(f"n{number}", gpu=8) for number in range(2)]
    members = [make_pod(f"g-{n}", gpu=8, gang="g", annotations=ASKS) for n in range(2)]
    cluster.add(*nodes, make_gang("g", 2), *members)
    cluster.advance(10)
    cluster.add(make_pod("high", gpu=8, priority=10))
    cluster.advance(30)
    pods = [pod for pod in cluster.api.list(Pod) if pod.metadata.name.startswith("g-")]
    assert all(GOING in pod.metadata.annotations for pod in pods)
    assert not any(pod.metadata.deletion_timestamp for pod in pods)
    cluster.advance(180)
    high = cluster.api.get(Pod, "default/high")
    assert high is not None
    assert high.spec.node_name


def test_who_cannot_save_gets_no_time() -> None:
    """Members on a node that is lost go at once, and so does what is left of their gang."""
    named = default_profiles(scheduler_names=("default-scheduler",))
    cluster = Cluster((), named, {"Recovery": {}})
    start_controllers(cluster.api)
    nodes = [make_node(f"n{number}", gpu=8) for number in range(2)]
    members = [make_pod(f"g-{n}", gpu=8, gang="g", annotations=ASKS) for n in range(2)]
    cluster.add(*nodes, make_gang("g", 2), *members)
    cluster.advance(10)
    node = cluster.api.get(Node, "n0")
    assert node is not None
    silent = replace(node.status, conditions=(NodeCondition("Ready", "Unknown"),))
    cluster.api.update(replace(node, status=silent))
    cluster.advance(31)
    deleted = [p for p in cluster.api.list(Pod) if p.metadata.deletion_timestamp]
    assert [pod.spec.node_name for pod in deleted] == ["n0"]
    # The name of the member there is taken for as long as its kubelet is silent.
    cluster.advance(600)
    assert not [p for p in cluster.api.list(Pod) if not p.metadata.deletion_timestamp]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0.5", 0.5),
        ("99999999", 3600),
        ("-1", 0),
        ("nan", 0),
        ("inf", 0),
        ("1m", 0),
        ("", 0),
        ("1e400", 0),
    ],
)
def test_the_time_is_a_number_of_seconds_up_to_an_hour(text: str, seconds: float) -> None:
    assert notice_wanted({"bayplan.dev/checkpoint-seconds": text}) == seconds
    assert notice_wanted({"bayplan.io/checkpoint-seconds": text}) == seconds


# Whoever needs it, and until when ----------------------------------------------------------------


def test_a_more_important_pod_takes_over_what_was_noticed_for_another() -> None:
    world = World(ASKS)
    world.add(make_pod("first", gpu=8, priority=10))
    world.passes(10)
    at, _ = world.notice("low")
    world.add(make_pod("second", gpu=8, priority=20))
    world.passes(10)
    assert world.notice("low")[0] == at
    world.passes(180)
    second = world.pod("second")
    assert second is not None
    assert second.spec.node_name == "n"


def test_two_that_share_a_victim_need_its_notice_until_the_last_is_gone() -> None:
    world = World(ASKS)
    world.add(*(make_pod(name, gpu=4, priority=10) for name in ("a", "b")))
    world.passes(10)
    world.api.delete(Pod, "default/a", 0)
    world.passes(180)
    b = world.pod("b")
    assert b is not None
    assert b.spec.node_name == "n"


def test_a_notice_is_taken_back_as_soon_as_there_is_room_elsewhere() -> None:
    world = World({"bayplan.dev/checkpoint-seconds": "3600"})
    world.add(make_pod("high", gpu=8, priority=10))
    world.passes(10)
    assert world.notice("low") != (None, None)
    world.add(make_node("m", gpu=8))
    world.passes(60)
    high = world.pod("high")
    assert high is not None
    assert high.spec.node_name == "m"
    assert world.notice("low") == (None, None)


def budget(name: str, least: int, labels: dict[str, str]) -> ApiObject:
    spec = {"minAvailable": least, "selector": {"matchLabels": labels}}
    head = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}}
    return make_object({**head, "spec": spec})


def test_a_notice_is_taken_back_when_a_budget_refuses_the_eviction() -> None:
    world = World({})
    labels = {"app": "x"}
    world.api.delete(Pod, "default/low", 0)
    low = make_pod("low", gpu=8, labels=labels, annotations=ASKS)
    world.add(budget("b", 1, labels), low)
    world.passes(10)
    world.add(make_pod("high", gpu=8, priority=10))
    world.passes(10)
    notices = 0
    for _ in range(240):
        before = world.notice("low")[0]
        world.passes(10)
        after = world.notice("low")[0]
        notices += after is not None and after != before
    assert not world.is_going("low")
    # In forty minutes, and not one after the other.
    assert notices <= 2
    world.api.delete(Pod, "default/high", 0)
    world.passes(200)
    assert world.notice("low") == (None, None)


def test_victims_with_a_budget_have_their_notice_at_the_same_time() -> None:
    world = World({})
    world.api.delete(Pod, "default/low", 0)
    asks = {"bayplan.dev/checkpoint-seconds": "400"}
    labels = {"app": "x"}
    pods = [make_pod(f"l{n}", gpu=4, labels=labels, annotations=asks) for n in range(2)]
    world.add(budget("b", 0, labels), *pods)
    world.passes(10)
    world.add(make_pod("high", gpu=8, priority=10))
    world.passes(10)
    assert world.notice("l0")[0] == world.notice("l1")[0] is not None
    world.passes(450)
    high = world.pod("high")
    assert high is not None
    assert high.spec.node_name == "n"


def test_members_of_a_gang_go_together_with_the_last_that_saves() -> None:
    world = World({})
    world.api.delete(Pod, "default/low", 0)
    world.add(
        make_gang("g", 2),
        make_pod("g-0", gpu=4, gang="g", annotations=ASKS),
        make_pod("g-1", gpu=2, gang="g"),
        make_pod("g-2", gpu=2, gang="g", annotations=ASKS),
    )
    world.passes(10)
    world.add(make_pod("high", gpu=8, priority=10))
    world.passes(30)
    world.says("g-0", checkpointed_at=rfc3339(world.api.unix_time))
    world.passes(10)
    assert not any(world.is_going(f"g-{number}") for number in range(3))
    world.says("g-2", checkpointed_at=rfc3339(world.api.unix_time))
    world.passes(3)
    assert all(world.is_going(f"g-{number}") for number in range(3))


def test_a_checkpoint_of_the_future_is_none() -> None:
    world = World({**ASKS, "bayplan.dev/checkpointed-at": "2099-01-01T00:00:00Z"})
    world.add(make_pod("high", gpu=8, priority=10))
    world.passes(60)
    assert not world.is_going("low")


def test_a_notice_that_bayplan_never_gave_is_taken_back() -> None:
    world = World({GOING: "9999-01-01T00:00:00Z", WHY: "because"})
    world.passes(3800)
    assert world.notice("low") == (None, None)


def test_the_rest_of_a_gang_goes_when_the_one_that_saves_is_lost() -> None:
    """Two nodes: who asks for time is on the one that is lost, who does not is on the other."""
    world = World({})
    world.api.delete(Pod, "default/low", 0)
    world.add(make_node("m", gpu=8), make_gang("g", 2))
    world.add(
        make_pod("g-0", gpu=8, gang="g", annotations={"bayplan.dev/checkpoint-seconds": "3000"}),
        make_pod("g-1", gpu=8, gang="g"),
    )
    world.passes(10)
    world.add(make_pod("high", gpu=8, priority=10))
    world.passes(10)
    saving = world.pod("g-0")
    assert saving is not None
    world.api.delete(Pod, "default/g-0", 0)
    world.passes(120)
    high = world.pod("high")
    assert high is not None
    assert high.spec.node_name


def test_what_two_wait_for_is_evicted_once() -> None:
    world = World(ASKS)
    world.add(*(make_pod(name, gpu=4, priority=10) for name in ("a", "b")))
    world.passes(300)
    evicted = [one.pod for one in world.cluster.scheduler.evictor.evicted]
    assert evicted == ["default/low"]
    assert all(world.pod(name).spec.node_name == "n" for name in "ab")  # type: ignore[union-attr]
