"""The unit cycle: gangs, domains, reserve and permit, plugins that fail."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bayplan import (
    Args,
    CycleState,
    NodeRow,
    Placement,
    Placements,
    Plugin,
    PodInfo,
    StateKey,
    Unit,
    Wait,
    hookimpl,
)
from bayplan.api import ApiObject, ClusterNetworkTopology, Node
from bayplan.plugin.decision import Outcome
from bayplan.testing import (
    Cluster,
    assert_pending,
    assert_placed,
    make_gang,
    make_network,
    make_node,
    make_pod,
)

SPEC = "gang.scheduling.koordinator.sh/network-topology-spec"
INDEX = "gang.scheduling.koordinator.sh/network-topology-index"


def network(*layers: str) -> ApiObject:
    """A topology whose layers, from the outermost, are named by node labels of their names."""
    return make_network(**{layer: layer.lower() for layer in layers})


def racks(**sizes: int) -> list[Node]:
    """Nodes of one core each, numbered through, in racks of the given sizes."""
    names = [rack for rack, size in sizes.items() for _ in range(size)]
    return [
        make_node(f"node-{index}", cpu=1, labels={"rack": rack}) for index, rack in enumerate(names)
    ]


def gather(**strategies: str) -> dict[str, str]:
    rules = [{"layer": layer, "strategy": name} for layer, name in strategies.items()]
    return {SPEC: json.dumps({"gatherStrategy": rules})}


def job(size: int, cpu: str = "1", **strategies: str) -> list[ApiObject]:
    pods = [make_pod(f"job-{i}", cpu, None, gang="job") for i in range(size)]
    return [make_gang("job", size, gather(**strategies) if strategies else None), *pods]


# Gangs -------------------------------------------------------------------------------------


def test_gang_waits_until_min_member_exists() -> None:
    cluster = Cluster([make_node("n")])
    cluster.add(make_gang("job", 2), make_pod("job-0", gang="job"))
    assert_pending(cluster, "job-0", 'gang "default/job"', "is waiting for members: 1 of 2 exist")
    cluster.add(make_pod("job-1", gang="job"))
    assert_placed(cluster, job_0="n", job_1="n")


def test_gang_waits_for_its_pod_group() -> None:
    cluster = Cluster([make_node("n")])
    cluster.add(make_pod("job-0", gang="job"))
    assert_pending(cluster, "job-0", 'waiting for PodGroup "default/job", which does not exist')
    cluster.add(make_gang("job", 1))
    assert_placed(cluster, job_0="n")


def test_a_gang_that_does_not_fit_holds_nothing() -> None:
    cluster = Cluster([make_node("n", cpu=3)])
    cluster.add(*job(4), make_pod("single", "3", None))
    assert cluster.schedule() == {"single": "n"}
    assert "of the 4 members it needs have a node" in cluster.message("job-0")


def test_members_beyond_the_minimum_run_if_they_can() -> None:
    cluster = Cluster([make_node("n", cpu=3)])
    members = [make_pod(f"job-{i}", "1", None, gang="job") for i in range(5)]
    cluster.add(make_gang("job", 2), *members)
    assert cluster.schedule() == {"job-0": "n", "job-1": "n", "job-2": "n"}
    assert "Insufficient cpu" in cluster.message("job-4")


def test_a_late_member_joins_its_running_gang() -> None:
    cluster = Cluster([make_node("n", cpu=8)])
    cluster.add(*job(2))
    cluster.schedule()
    cluster.add(make_pod("job-late", "1", None, gang="job"))
    assert_placed(cluster, job_late="n")


def test_members_of_different_schedulers_are_refused_by_name() -> None:
    from bayplan.profiles.loading import ProfileSet, default_profiles

    profile = default_profiles().profiles[0]
    cluster = Cluster([make_node("n")], ProfileSet((profile, _renamed(profile, "other"))))
    other = {"schedulerName": "other"}
    cluster.add(
        make_gang("job", 2), make_pod("a", gang="job"), make_pod("b", gang="job", spec=other)
    )
    assert_pending(cluster, "a", "name different schedulers: default-scheduler, other")


def _renamed(profile: Any, name: str) -> Any:
    from msgspec.structs import replace

    return replace(profile, scheduler_name=name)


# Gathering ---------------------------------------------------------------------------------


def test_must_gather_takes_the_domain_that_wastes_least() -> None:
    cluster = Cluster([network("Rack"), *racks(a=5, b=3, c=4)])
    cluster.add(*job(3, Rack="MustGather"))
    assert_placed(cluster, job_0="node-5", job_1="node-6", job_2="node-7")


def test_must_gather_is_refused_where_no_domain_is_large_enough() -> None:
    cluster = Cluster([network("Rack"), *racks(a=3, b=2)])
    cluster.add(*job(4, Rack="MustGather"))
    assert_pending(
        cluster,
        "job-0",
        "no candidate topology nodes can accommodate job, desiredOfferSlot: 4",
        "Rack/a: 3",
        "Rack/b: 2",
    )


def test_prefer_gather_falls_back_to_the_whole_cluster() -> None:
    cluster = Cluster([network("Rack"), *racks(a=3, b=2)])
    cluster.add(*job(4, Rack="PreferGather"))
    assert len(cluster.schedule()) == 4
    assert cluster.decision("job").domain == "cluster"


def test_the_innermost_layer_that_holds_the_job_wins() -> None:
    nodes = [
        make_node(f"node-{i}", cpu=1, labels={"spine": f"s{i // 4}", "block": f"b{i // 2}"})
        for i in range(8)
    ]
    cluster = Cluster([network("Spine", "Block"), *nodes, make_pod("busy", "1", node="node-0")])
    cluster.add(*job(2, Spine="PreferGather", Block="PreferGather"))
    cluster.schedule()
    assert cluster.decision("job").domain == "Block/b1"


def test_inside_a_spine_as_few_blocks_as_possible_are_used() -> None:
    blocks = ["b0", "b0", "b1", "b1", "b1", "b2"]
    nodes = [
        make_node(f"node-{i}", cpu=1, labels={"spine": "s", "block": block})
        for i, block in enumerate(blocks)
    ]
    cluster = Cluster([network("Spine", "Block"), *nodes])
    cluster.add(*job(4, Spine="MustGather"))
    # b1 holds three; the fourth goes to b2, the tightest for one.
    assert set(cluster.schedule().values()) == {"node-2", "node-3", "node-4", "node-5"}


def test_blocks_of_one_name_under_two_spines_are_two_blocks() -> None:
    nodes = [
        make_node(f"node-{i}", cpu=1, labels={"spine": f"s{i // 2}", "block": "b"})
        for i in range(4)
    ]
    cluster = Cluster([network("Spine", "Block"), *nodes])
    cluster.add(*job(4, Block="MustGather"))
    assert_pending(cluster, "job-0", "desiredOfferSlot: 4")


def test_members_take_nodes_by_rank_not_by_name() -> None:
    cluster = Cluster([network("Rack"), *racks(a=12)])
    cluster.add(make_gang("job", 12, gather(Rack="MustGather")))
    for rank in range(12):
        annotations = {INDEX: str(11 - rank)}
        pod = make_pod(f"job-{rank}", "1", None, gang="job", annotations=annotations)
        cluster.add(pod)
    placements = cluster.schedule()
    assert placements == {f"job-{rank}": f"node-{11 - rank}" for rank in range(12)}


def test_names_count_as_numbers_where_no_rank_is_given() -> None:
    cluster = Cluster([network("Rack"), *racks(a=11)])
    cluster.add(*job(11, Rack="MustGather"))
    assert cluster.schedule() == {f"job-{i}": f"node-{i}" for i in range(11)}


def test_a_late_member_stays_in_the_domain_of_its_gang() -> None:
    cluster = Cluster([network("Rack"), *racks(a=3, b=1)])
    cluster.add(*job(2, Rack="MustGather"))
    cluster.schedule()
    cluster.add(make_pod("job-2", "1", None, gang="job"))
    # Rack b would be the tighter one for a single pod.
    assert_placed(cluster, job_2="node-2")


def test_a_node_without_the_label_is_outside_of_every_domain() -> None:
    cluster = Cluster([network("Rack"), make_node("stray", cpu=9), *racks(a=1)])
    cluster.add(*job(2, Rack="MustGather"))
    assert_pending(cluster, "job-0", "Rack/a: 1")


def test_a_plan_that_a_node_cannot_keep_is_made_anew() -> None:
    # Required anti-affinity between members: the slots of a node are an upper bound only.
    apart = {
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {"app": "job"}},
                    }
                ]
            }
        }
    }
    nodes = [make_node(f"node-{i}", cpu=4, labels={"rack": "a"}) for i in range(3)]
    cluster = Cluster([network("Rack"), *nodes, make_gang("job", 3, gather(Rack="MustGather"))])
    labels = {"app": "job"}
    members = (make_pod(f"job-{i}", "1", None, labels, gang="job", spec=apart) for i in range(3))
    cluster.add(*members)
    assert_placed(cluster, job_0="node-0", job_1="node-1", job_2="node-2")


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        ("{not json", "not JSON"),
        ('{"gatherStrategy": [{"strategy": "MustGather"}]}', '"layer" is missing'),
        (
            '{"gatherStrategy": [{"layer": "Rack", "strategy": "Must"}]}',
            "gatherStrategy[0].strategy: expected MustGather or PreferGather, got 'Must'",
        ),
        (
            '{"gatherStrategy": [{"layer": "Row", "strategy": "MustGather"}]}',
            'there is no network layer "Row" (Rack, NodeTopologyLayer)',
        ),
    ],
)
def test_a_gather_spec_that_cannot_work_keeps_the_gang_pending(
    annotation: str, message: str
) -> None:
    cluster = Cluster([network("Rack"), *racks(a=2)])
    cluster.add(make_gang("job", 1, {SPEC: annotation}), make_pod("job-0", gang="job"))
    cluster.add(make_pod("other", "1", None))
    assert_pending(cluster, "job-0", message)
    assert "other" in cluster.placements()


def test_gathering_without_a_topology_says_what_is_missing() -> None:
    cluster = Cluster(racks(a=2))
    cluster.add(*job(2, Rack="MustGather"))
    assert_pending(cluster, "job-0", "no object describes the network")
    cluster.add(network("Rack"))
    assert len(cluster.advance(10)) == 2
    assert cluster.snapshot.objects(ClusterNetworkTopology)


# Hooks of a cycle --------------------------------------------------------------------------


class Journal(Plugin[Args]):
    """Notes reserve, unreserve and bind; refuses what the class attributes say."""

    notes: list[str] = []
    refuse_on = ""
    permit_answer: Wait | str | None = None

    @hookimpl
    def reserve(self, pod: PodInfo, node: NodeRow) -> str | None:
        self.notes.append(f"reserve {pod.name}")
        return "no licence left" if node.name == self.refuse_on else None

    @hookimpl
    def unreserve(self, pod: PodInfo) -> None:
        self.notes.append(f"unreserve {pod.name}")

    @hookimpl
    def permit(self) -> Wait | str | None:
        return self.permit_answer

    @hookimpl
    def bind(self, pod: PodInfo) -> dict[str, str]:
        return {"example.com/seat": pod.name}


@pytest.fixture
def journal() -> type[Journal]:
    return type("Fresh", (Journal,), {"notes": []})


def test_unreserve_runs_in_reverse_order(journal: type[Journal]) -> None:
    cluster = Cluster([make_node("n", cpu=2)], plugins=[journal])
    cluster.add(*job(3))
    cluster.schedule()
    assert journal.notes == [
        "reserve job-0",
        "reserve job-1",
        "unreserve job-1",
        "unreserve job-0",
    ]
    assert cluster.snapshot.nodes.used("cpu").tolist() == [0]


def test_a_refusal_in_reserve_is_told_and_undone(journal: type[Journal]) -> None:
    journal.refuse_on = "n"
    cluster = Cluster([make_node("n")], plugins=[journal])
    cluster.add(make_pod("p"))
    assert_pending(cluster, "p", "no licence left")
    assert cluster.snapshot.nodes.used("cpu").tolist() == [0]


def test_bind_annotations_are_written_with_the_binding(journal: type[Journal]) -> None:
    from bayplan.api import Pod

    cluster = Cluster([make_node("n")], plugins=[journal])
    cluster.add(make_pod("p"))
    cluster.schedule()
    pod = cluster.api.get(Pod, "default/p")
    assert pod is not None
    assert pod.metadata.annotations == {"example.com/seat": "p"}


def test_a_unit_that_waits_at_permit_holds_its_place_until_its_time_is_over(
    journal: type[Journal],
) -> None:
    journal.permit_answer = Wait(30)
    cluster = Cluster([make_node("n", cpu=1)], plugins=[journal])
    cluster.add(make_pod("first", "1", None))
    cluster.schedule()
    assert cluster.decision("first").outcome is Outcome.WAITING
    cluster.add(make_pod("second", "1", None))
    assert_pending(cluster, "second", "Insufficient cpu")
    assert cluster.scheduler.allow("default/first")
    assert_placed(cluster, first="n")


def test_a_wait_that_is_over_gives_everything_back(journal: type[Journal]) -> None:
    journal.permit_answer = Wait(30)
    cluster = Cluster([make_node("n", cpu=1)], plugins=[journal])
    cluster.add(make_pod("p", "1", None))
    cluster.schedule()
    journal.permit_answer = "closed"
    assert cluster.advance(31) == {}
    assert "unreserve p" in journal.notes
    assert cluster.snapshot.nodes.used("cpu").tolist() == [0]


def test_a_refusal_at_permit_is_told(journal: type[Journal]) -> None:
    journal.permit_answer = "not on Fridays"
    cluster = Cluster([make_node("n")], plugins=[journal])
    cluster.add(make_pod("p"))
    assert_pending(cluster, "p", "not on Fridays")


class Halves(Plugin[Args]):
    """Offers the two halves of the cluster and likes the second."""

    @hookimpl
    def placement_generate(self, unit: Unit, nodes: Any) -> Placements:
        import numpy as np

        rows = np.arange(len(nodes))
        half = len(nodes) // 2
        return Placements((Placement("left", rows[:half]), Placement("right", rows[half:])))

    @hookimpl
    def placement_score(self, placement: Placement) -> float:
        return 100.0 if placement.name == "right" else 0.0


def test_the_best_scored_placement_wins() -> None:
    cluster = Cluster([make_node(f"node-{i}", cpu=1) for i in range(4)], plugins=[Halves])
    cluster.add(*job(2))
    assert_placed(cluster, job_0="node-2", job_1="node-3")


VISITED: StateKey[list[str]] = StateKey("visited", copy=list)


class Remembers(Halves):
    """Writes into the unit's state while a placement is tried."""

    seen: list[list[str]] = []

    @hookimpl
    def placement_score(self, placement: Placement, state: CycleState) -> float:
        if VISITED not in state:
            state[VISITED] = []
        self.seen.append(list(state[VISITED]))
        state[VISITED].append(placement.name)
        return 0.0


def test_a_trial_restores_the_state_of_the_cycle() -> None:
    cluster = Cluster([make_node(f"node-{i}", cpu=1) for i in range(4)], plugins=[Remembers])
    Remembers.seen = []
    cluster.add(*job(2))
    cluster.schedule()
    # Neither half sees what the other wrote, nor does the final placement.
    assert Remembers.seen == [[], [], []]


# Plugins that fail -------------------------------------------------------------------------


class Broken(Plugin[Args]):
    """Raises for pods that are labelled so."""

    @hookimpl
    def filter_node(self, pod: PodInfo) -> None:
        if "breaks" in pod.labels:
            raise KeyError("rack")


def test_a_plugin_that_raises_fails_its_own_pod_and_no_other() -> None:
    cluster = Cluster([make_node("n")], plugins=[Broken])
    cluster.add(make_pod("bad", labels={"breaks": "yes"}), make_pod("good"))
    assert_placed(cluster, good="n")
    assert_pending(cluster, "bad", 'plugin "Broken" failed in filter_node: KeyError')


def test_a_plugin_that_raises_is_tried_again_with_growing_delay() -> None:
    cluster = Cluster([make_node("n")], plugins=[Broken])
    cluster.add(make_pod("bad", labels={"breaks": "yes"}))
    cluster.advance(60)
    # Delays of 1, 2, 4, 8, 10, 10 ... seconds: tries at 0, 1, 3, 7, 15, 25, 35, 45, 55.
    assert cluster.scheduler.statistics.cycles == 9


class WrongShape(Plugin[Args]):
    """Answers with one score for all nodes."""

    @hookimpl
    def score(self) -> Any:
        import numpy as np

        return np.zeros(1)


def test_an_answer_of_the_wrong_shape_names_the_plugin() -> None:
    cluster = Cluster([make_node("a"), make_node("b")], plugins=[WrongShape])
    cluster.add(make_pod("p"))
    assert_pending(cluster, "p", 'plugin "WrongShape" failed in score', "expected 2 scores")


class BrokenEverywhereElse(Plugin[Args]):
    """Raises where a cycle has to go on all the same."""

    @hookimpl
    def queue_sort(self) -> Any:
        raise ValueError("sort")

    @hookimpl
    def reserve(self, pod: PodInfo) -> str | None:
        return "refused" if pod.name == "bad" else None

    @hookimpl
    def unreserve(self) -> None:
        raise ValueError("unreserve")

    @hookimpl
    def post_bind(self) -> None:
        raise ValueError("post_bind")


def test_no_hook_that_raises_stops_the_scheduler() -> None:
    from bayplan.profiles.loading import ProfileSet, default_profiles

    profile = default_profiles().profiles[0]
    points = {**profile.points, "queue_sort": ()}
    profiles = ProfileSet((_with_points(profile, points),), any_scheduler=True)
    cluster = Cluster([make_node("n")], profiles, plugins=[BrokenEverywhereElse])
    cluster.add(make_pod("bad"), make_pod("good"))
    assert_placed(cluster, good="n")
    assert_pending(cluster, "bad", "refused")
    told = {event.message for _, event in cluster.api.events if event.reason == "PluginError"}
    assert {text.split(": ")[2].split(" ")[0] for text in told} == {
        "sort",
        "unreserve",
        "post_bind",
    }
    assert cluster.snapshot.nodes.used("cpu").tolist() == [1000]


def _with_points(profile: Any, points: Any) -> Any:
    from msgspec.structs import replace

    return replace(profile, points=points)


def test_a_unit_that_waits_while_its_node_vanishes_is_tried_elsewhere(
    journal: type[Journal],
) -> None:
    journal.permit_answer = Wait(30)
    cluster = Cluster([make_node("a", cpu=4), make_node("b", cpu=2)], plugins=[journal])
    cluster.add(make_pod("p"))
    cluster.schedule()
    cluster.api.vanish_node("a")
    cluster.schedule()
    journal.permit_answer = None
    cluster.scheduler.allow("default/p")
    assert cluster.advance(5) == {"p": "b"}
