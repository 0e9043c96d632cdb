"""What is wrong with the queues of one system: a message, and everything else goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plugins.queues.koordinator.quota_builders import PREFIX

from bayplan.api import ApiObject, ElasticQuota, KaiQueue, Node, Pod, VolcanoQueue
from bayplan.testing import Cluster, make_node, make_object, make_pod
from bayplan_plugins.queues.plugin import Queues

GPU = "nvidia.com/gpu"
HIERARCHY = {
    "tiers": [{"plugins": [{"name": "capacity", "enableHierarchy": True}]}],
    "actions": "enqueue, allocate",
}


@dataclass(frozen=True)
class System:
    """How one system spells a queue (of GPUs: name, parent, amount, weight) and a pod's queue."""

    kind: str
    type: type[Any]
    queue: Callable[[str, str, float, float], ApiObject]
    marks: Callable[[str], Mapping[str, Mapping[str, str]]]
    args: Mapping[str, Any] = field(default_factory=dict)


def volcano_queue(name: str, parent: str, gpus: float, weight: float) -> ApiObject:
    amounts = {GPU: gpus}
    return make_object(
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "Queue",
            "metadata": {"name": name},
            "spec": {
                "weight": weight,
                "parent": parent,
                "deserved": amounts,
                "capability": amounts,
                "guarantee": {"resource": amounts},
            },
        }
    )


def kai_queue(name: str, parent: str, gpus: float, weight: float) -> ApiObject:
    free = {"quota": -1, "limit": -1, "overQuotaWeight": weight}
    gpu = {"quota": gpus, "limit": gpus, "overQuotaWeight": weight}
    return make_object(
        {
            "apiVersion": "scheduling.run.ai/v2",
            "kind": "Queue",
            "metadata": {"name": name},
            "spec": {
                "parentQueue": parent,
                "resources": {"gpu": gpu, "cpu": free, "memory": free},
            },
        }
    )


def elastic_quota(name: str, parent: str, gpus: float, weight: float) -> ApiObject:
    labels = {f"{PREFIX}parent": parent} if parent else {}
    weights = {f"{PREFIX}shared-weight": f'{{"{GPU}": {weight:g}}}'}
    amounts = {GPU: gpus}
    return make_object(
        {
            "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
            "kind": "ElasticQuota",
            "metadata": {"name": name, "labels": labels, "annotations": weights},
            "spec": {"min": amounts, "max": amounts},
        }
    )


SYSTEMS = {
    "volcano": System(
        "Queue",
        VolcanoQueue,
        volcano_queue,
        lambda queue: {"annotations": {"scheduling.volcano.sh/queue-name": queue}},
        {"volcano": HIERARCHY},
    ),
    "kai": System(
        "Queue", KaiQueue, kai_queue, lambda queue: {"labels": {"kai.scheduler/queue": queue}}
    ),
    "koordinator": System(
        "quota",
        ElasticQuota,
        elastic_quota,
        lambda queue: {"labels": {f"{PREFIX}name": queue}},
    ),
}
GATED = ("volcano", "kai")
"""Systems whose pods wait for a queue that does not exist; Koordinator's use the default quota."""


class World:
    """Nodes with eight GPUs together, and queues of one system."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.cluster = Cluster([make_node("n", gpu=8)], plugins={Queues: system.args})

    def queue(self, name: str, parent: str = "", gpus: float = 4, weight: float = 1) -> None:
        """Create a queue."""
        self.cluster.add(self.system.queue(name, parent, gpus, weight))

    def drop(self, name: str) -> None:
        """Delete a queue."""
        namespaced = self.system.type is ElasticQuota
        self.cluster.api.delete(self.system.type, f"default/{name}" if namespaced else name)
        self.cluster.api.deliver()

    def pod(self, name: str, queue: str) -> Pod:
        """Create a pod of one GPU in a queue."""
        made = make_pod(name, "1", None, gpu=1, **self.system.marks(queue))  # type: ignore[arg-type]
        self.cluster.add(made)
        return made

    def told(self, pod: str) -> str:
        """Return why a pod waits."""
        assert pod not in self.cluster.advance(30)
        return self.cluster.message(pod)

    def problems(self) -> dict[str, str]:
        """Return what is wrong with queues."""
        reports = self.cluster.scheduler.queues.reports()
        return {one.name: one.problem for one in reports if one.problem}

    def notes(self, name: str) -> list[str]:
        """Return the notes on a queue."""
        (found,) = (one for one in self.cluster.scheduler.queues.reports() if one.name == name)
        return list(found.notes)

    def used(self, name: str) -> float:
        """Return the GPUs that a queue uses."""
        (found,) = (one for one in self.cluster.scheduler.queues.reports() if one.name == name)
        return found.resources[GPU].used


@pytest.fixture(params=SYSTEMS)
def world(request: pytest.FixtureRequest) -> World:
    """A cluster with queues of each system."""
    return World(SYSTEMS[request.param])


def test_a_cycle_holds_back_its_own_jobs_only(world: World) -> None:
    for name, parent in (("a", "b"), ("b", "a"), ("c", "b"), ("good", "")):
        world.queue(name, parent)
    for name in ("a", "c", "good"):
        world.pod(f"p-{name}", name)
    placed = world.cluster.advance(30)
    assert placed == {"p-good": "n"}
    assert "queues are their own ancestors: " in world.problems()["a"] + world.told("p-a")
    assert set(world.problems()) == {"a", "b", "c"}
    assert "own ancestors: " in world.told("p-a")
    assert "own ancestors: " in world.told("p-c")


def test_a_missing_parent_holds_back_its_own_jobs_until_it_comes(world: World) -> None:
    world.queue("a", "gone")
    world.queue("good")
    world.pod("p-a", "a")
    world.pod("p-good", "good")
    assert world.cluster.advance(30) == {"p-good": "n"}
    assert world.problems() == {"a": 'its parent "gone" does not exist'}
    assert '"gone"' in world.told("p-a")
    assert "does not exist" in world.told("p-a")
    world.queue("gone")
    assert world.cluster.advance(30)["p-a"] == "n"
    assert world.problems() == {}


def test_children_that_have_more_than_their_parent_are_noted_and_held_within_it(
    world: World,
) -> None:
    world.queue("top", gpus=4)
    world.queue("a", "top", gpus=3)
    world.queue("b", "top", gpus=3)
    for name in ("a", "b"):
        for index in range(3):
            world.pod(f"{name}{index}", name)
    placed = world.cluster.advance(30)
    assert any(
        "6 nvidia.com/gpu together, more than its own 4" in one for one in world.notes("top")
    )
    if world.system.type is not ElasticQuota:
        # Koordinator checks the quotas above only with enableCheckParentQuota.
        assert len(placed) == 4
        assert world.used("top") == 4


def test_a_resource_that_no_node_offers_is_noted(world: World) -> None:
    world.cluster.api.delete(Node, "n")
    world.cluster.add(make_node("plain"))
    world.queue("a")
    world.pod("p", "a")
    world.cluster.advance(30)
    assert "it has a quota of nvidia.com/gpu, which no node offers" in world.notes("a")
    assert "Insufficient nvidia.com/gpu" in world.told("p")


def test_a_queue_that_is_deleted_while_it_is_used(world: World) -> None:
    world.queue("a", gpus=2)
    world.queue("other")
    for index in range(2):
        world.pod(f"p{index}", "a")
    assert len(world.cluster.advance(30)) == 2
    world.drop("a")
    world.pod("more", "a")
    world.pod("good", "other")
    placed = world.cluster.advance(30)
    assert {"p0", "p1", "good"} <= placed.keys()
    if world.system is SYSTEMS["koordinator"]:
        assert placed["more"] == "n"
        world.cluster.remove("more")
    else:
        assert world.told("more") == 'waiting for Queue "a", which does not exist'
    world.queue("a", gpus=2)
    world.pod("last", "a")
    placed = world.cluster.advance(30)
    assert not {"more", "last"} & placed.keys()
    assert world.used("a") == 2


@pytest.mark.parametrize("name", GATED)
def test_jobs_that_wait_in_a_queue_do_not_get_through_when_it_goes(name: str) -> None:
    world = World(SYSTEMS[name])
    world.queue("other")
    world.queue("a", gpus=1)
    for pod in ("p", "waits"):
        world.pod(pod, "a")
    assert len(world.cluster.advance(30)) == 1
    world.drop("a")
    placed = world.cluster.advance(60)
    assert len(placed) == 1
    (waits,) = {"p", "waits"} - placed.keys()
    assert 'waiting for Queue "a", which does not exist' in world.told(waits)
    world.queue("a", gpus=2)
    assert len(world.cluster.advance(60)) == 2


@pytest.mark.parametrize("name", GATED)
def test_a_queue_that_becomes_a_parent_while_it_has_jobs(name: str) -> None:
    world = World(SYSTEMS[name])
    world.queue("a", gpus=4)
    world.pod("p", "a")
    assert world.cluster.advance(30) == {"p": "n"}
    world.queue("b", "a", gpus=2)
    world.pod("more", "a")
    world.pod("below", "b")
    placed = world.cluster.advance(30)
    assert placed == {"p": "n", "below": "n"}
    assert world.told("more") == 'Queue "a" has child queues and takes no jobs itself'
    assert world.used("a") == 2


def test_a_weight_of_zero(world: World) -> None:
    if world.system is SYSTEMS["volcano"]:
        with pytest.raises(ValueError, match="expected 1 to 65535, got 0"):
            world.queue("a", weight=0)
        return
    world.queue("a", weight=0)
    world.pod("p", "a")
    assert world.cluster.advance(30) == {"p": "n"}


def test_a_weight_below_zero_is_refused(world: World) -> None:
    with pytest.raises(ValueError, match=r"expected (0 or more|1 to 65535), got -1"):
        world.queue("a", weight=-1)


PARENTS = st.dictionaries(
    st.sampled_from("abcde"), st.sampled_from(["", "", "a", "b", "c", "d", "gone"]), min_size=1
)


def hangs_on_a_root(name: str, parents: Mapping[str, str]) -> bool:
    """Tell whether the way up from a queue ends at a root."""
    for _ in parents:
        if name not in parents:
            return False
        if not parents[name]:
            return True
        name = parents[name]
    return False


@pytest.mark.parametrize("name", SYSTEMS)
@given(parents=PARENTS)
@settings(max_examples=25, deadline=None)
def test_whatever_the_tree_only_jobs_of_broken_queues_and_of_parents_wait(
    name: str, parents: Mapping[str, str]
) -> None:
    # That a queue is its own parent is refused when its object is read.
    defined = {one: parent for one, parent in parents.items() if one != parent}
    world = World(SYSTEMS[name])
    for one, parent in defined.items():
        world.queue(one, parent, gpus=8)
    for one in defined:
        world.pod(f"p-{one}", one)
    placed = world.cluster.advance(30)
    sound = {one for one in defined if hangs_on_a_root(one, defined)}
    takes = sound if name not in GATED else sound - set(defined.values())
    assert placed.keys() == {f"p-{one}" for one in takes}
    assert world.problems().keys() == defined.keys() - sound
