"""Ways to place a unit: plans, replanning, the bounded search, parts, slices, and going back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from bayplan import (
    Args,
    CycleState,
    NodeRow,
    NodeView,
    Placement,
    Placements,
    Plugin,
    PodInfo,
    Reads,
    Reject,
    Unit,
    hookimpl,
)
from bayplan.api import Node
from bayplan.api.gang import Gang, Gather, MatchPolicy, Slice
from bayplan.cycle.attempt import Attempt, SearchBudget, lacking
from bayplan.cycle.evaluator import Evaluator
from bayplan.cycle.placer import EVERYWHERE, Placer, as_plan
from bayplan.cycle.reservations import Reserved, Unreserve
from bayplan.errors import PluginError
from bayplan.profiles.runtime import Runtime
from bayplan.snapshot import Snapshot
from bayplan.testing import fingerprints, make_node, make_pod

PLACES = "only"


class Room(Plugin[Args]):
    """A pod needs its CPU on a node, and goes to those only that its label names, if any."""

    reads = Reads.CLUSTER

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> list[Reject]:
        found = [Reject(nodes.free("cpu") < pod.requests.get("cpu", 0), "full")]
        if PLACES in pod.labels:
            allowed = pod.labels[PLACES].split("_")
            found.append(Reject(~np.isin(nodes.names, allowed), "elsewhere"))
        return found

    @hookimpl
    def slots(self, pod: PodInfo, nodes: NodeView) -> Any:
        return nodes.free("cpu") // max(1, pod.requests.get("cpu", 1))


class Keeper(Plugin[Args]):
    """Refuses in Reserve: on each node all pods beyond those that ``takes`` allows.

    ``journal`` notes every pod that is reserved (+) and unreserved (-) with its node.
    """

    takes: Mapping[str, int] = {}
    journal: list[str] = []

    @hookimpl
    def reserve(self, pod: PodInfo, node: NodeRow) -> str | None:
        self.journal.append(f"+{pod.name}@{node.name}")
        return "no seat" if len(node.pods) > self.takes.get(node.name, 99) else None

    @hookimpl
    def unreserve(self, pod: PodInfo, node: NodeRow) -> None:
        self.journal.append(f"-{pod.name}@{node.name}")


class Racks(Plugin[Args]):
    """Offers every rack to gangs that have to be gathered, and notes for whom."""

    asked: list[tuple[str, list[str]]] = []

    @hookimpl
    def placement_generate(self, unit: Unit, nodes: NodeView) -> Placements | None:
        assert unit.gang is not None
        self.asked.append((unit.key, [pod.name for pod in unit.pods]))
        if not unit.gang.gather:
            return None
        codes = nodes.label("rack").codes
        return Placements(
            [
                Placement(f"rack-{code}", np.flatnonzero(codes == code))
                for code in sorted(set(codes))
            ]
        )


def keeper(**takes: int) -> type[Keeper]:
    return type("Keeper", (Keeper,), {"takes": takes, "journal": []})


def racks() -> type[Racks]:
    return type("Racks", (Racks,), {"asked": []})


class World:
    """Nodes with a placer of a few plugins."""

    def __init__(self, nodes: Sequence[Node], *plugins: type[Plugin[Any]]) -> None:
        self.snapshot = Snapshot()
        for node in nodes:
            self.snapshot.set_node(node)
        self.snapshot.sync()
        made = {cls.__name__: cls(Args(), None) for cls in (Room, *plugins)}  # type: ignore[arg-type]
        runtime = Runtime.compiled(made, {})
        evaluator = Evaluator(runtime, self.snapshot)
        self.failures: list[PluginError] = []
        unreserve = Unreserve(runtime, self.snapshot, lambda pod, exc: self.failures.append(exc))
        self.placer = Placer(runtime, evaluator, self.snapshot, unreserve)

    def ways(
        self,
        unit: Unit,
        placement: Placement = EVERYWHERE,
        attempt: Attempt | None = None,
        most: int | None = None,
    ) -> list[dict[str, str]]:
        """Return the ways to place a unit, each as the nodes of its pods, by name."""
        attempt = attempt or Attempt(placement, SearchBudget())
        found: list[dict[str, str]] = []
        with self.snapshot.trial():
            for _ in self.placer.ways(unit, placement, attempt, CycleState()):
                placed = {one.pod.name: one.node for one in attempt.reserved}
                assert {
                    k.removeprefix("default/"): node for k, node in self.held().items()
                } == placed
                found.append(placed)
                if len(found) == most:
                    break
        return found

    def first(self, unit: Unit, placement: Placement = EVERYWHERE) -> dict[str, str]:
        """Return the first way to place a unit."""
        return self.ways(unit, placement, most=1)[0]

    def held(self) -> dict[str, str]:
        return {key: node for key, (_, node) in self.snapshot.placed.items()}


def nodes(**cores: int) -> list[Node]:
    return [make_node(name, cpu=cpu, labels={"rack": name[0]}) for name, cpu in cores.items()]


def pod(name: str, cpu: int = 1, only: str = "") -> PodInfo:
    """Return a member; ``only`` are the names of the nodes that it may go to, joined by "_"."""
    labels = {PLACES: only} if only else {}
    return PodInfo(make_pod(name, str(cpu), None, labels=labels, gang="job"))


def gang(*pods: PodInfo, least: int | None = None, key: str = "default/job", **more: Any) -> Unit:
    """Return a unit of a gang that needs ``least`` of its pods, all of them by default."""
    minimum = len(pods) if least is None else least
    return Unit(key, list(pods), Gang(key, minimum, **more))


def single(made: PodInfo) -> Unit:
    return Unit(made.key, [made])


# Single pods -----------------------------------------------------------------------------------


def test_a_pod_has_one_way_the_first_of_the_best_nodes() -> None:
    world = World(nodes(a=1, b=4, c=4))
    assert world.ways(single(pod("p", 2))) == [{"p": "b"}]


def test_only_the_rows_of_the_placement_are_used_in_their_order() -> None:
    world = World(nodes(a=4, b=4, c=4))
    assert world.ways(single(pod("p")), Placement("", np.array([2, 1]))) == [{"p": "c"}]
    assert world.ways(single(pod("p")), Placement("", np.array([], dtype=np.intp))) == []


def test_a_pod_that_fits_nowhere_has_no_way_and_a_record_of_why() -> None:
    world = World(nodes(a=1))
    attempt = Attempt(EVERYWHERE, SearchBudget())
    assert world.ways(single(pod("p", 2)), attempt=attempt) == []
    assert attempt.closest is not None
    placed, _, (failed,) = attempt.closest
    assert (placed, failed.pod) == (0, "default/p")
    assert failed.message == "0/1 nodes are available: 1 full."


# Plans -----------------------------------------------------------------------------------------


class Plan:
    """A plan that fills its rows one by one, and notes what it is asked.

    :param seats: how many pods a row takes.
    """

    def __init__(self, *rows: int, seats: int = 1) -> None:
        self.rows = rows
        self.seats = seats
        self.asked: list[tuple[list[str], dict[int, int]]] = []

    def __call__(self, pods: Sequence[PodInfo], limits: Mapping[int, int]) -> Sequence[int]:
        self.asked.append(([one.name for one in pods], dict(limits)))
        found = [row for row in self.rows for _ in range(min(self.seats, limits.get(row, 99)))]
        return found[: len(pods)]


def planned(plan: Plan, exact: bool = False) -> Placement:
    return Placement("planned", np.array(plan.rows), None, plan, exact)


def test_a_plan_gives_members_their_nodes() -> None:
    world, plan = World(nodes(a=4, b=4, c=4)), Plan(2, 0)
    assert world.first(gang(pod("p"), pod("q")), planned(plan)) == {"p": "c", "q": "a"}
    assert plan.asked == [(["p", "q"], {})]


def test_a_node_that_refuses_in_reserve_is_left_out_of_the_next_plan() -> None:
    world, plan = World(nodes(a=4, b=4, c=4), keeper(b=0)), Plan(0, 1, 2)
    unit = gang(pod("p"), pod("q"))
    assert world.first(unit, planned(plan)) == {"p": "a", "q": "a"}
    # The pod that has its node keeps it; the plan is for the rest.
    assert plan.asked == [(["p", "q"], {}), (["q"], {1: 0})]


def test_an_exact_plan_is_made_again_as_a_whole_with_what_the_node_took() -> None:
    keeps, plan = keeper(a=1), Plan(0, 1, seats=2)
    world = World(nodes(a=4, b=4), keeps)
    unit = gang(pod("p"), pod("q"), pod("r"))
    assert world.first(unit, planned(plan, exact=True)) == {"p": "a", "q": "b", "r": "b"}
    assert plan.asked == [(["p", "q", "r"], {}), (["p", "q", "r"], {0: 1})]
    assert keeps.journal[:4] == ["+p@a", "+q@a", "-q@a", "-p@a"]


def test_an_exact_plan_that_cannot_be_kept_is_not_searched_for_other_nodes() -> None:
    world, plan = World(nodes(a=4, b=4), keeper(a=0)), Plan(0)
    attempt = Attempt(EVERYWHERE, SearchBudget())
    assert world.ways(gang(pod("p")), planned(plan, exact=True), attempt) == []
    assert attempt.budget.steps == SearchBudget().steps
    # Without ``exact`` all of its rows are searched.
    rows = Placement("", np.array([0, 1]), None, plan)
    assert world.ways(gang(pod("p")), rows) == [{"p": "b"}]


def test_each_kind_of_pod_is_planned_in_turn_the_largest_first() -> None:
    world, plan = World(nodes(a=4, b=4)), Plan(0, 1, seats=2)
    world.first(gang(pod("p"), pod("large", 3), pod("q")), planned(plan))
    assert [asked for asked, _ in plan.asked[:2]] == [["large"], ["p", "q"]]


def test_a_plan_need_not_place_members_beyond_the_minimum() -> None:
    world, plan = World(nodes(a=4, b=4)), Plan(0, 1)
    attempt = Attempt(EVERYWHERE, SearchBudget())
    unit = gang(pod("p"), pod("q"), pod("r"), least=2)
    assert world.ways(unit, planned(plan), attempt, most=1) == [{"p": "a", "q": "b"}]


def test_nominated_nodes_are_an_exact_plan() -> None:
    p, q = pod("p"), pod("q")
    placement = as_plan({p.key: 1, q.key: 0}, "rack-1")
    assert (placement.name, placement.exact, placement.offered) == ("rack-1", True, 2)
    assert World(nodes(a=4, b=4)).first(gang(p, q), placement) == {"p": "b", "q": "a"}


def test_nominated_nodes_that_do_not_hold_are_given_up() -> None:
    p, q = pod("p"), pod("q")
    world = World(nodes(a=4, b=4), keeper(a=0))
    assert world.ways(gang(p, q), as_plan({p.key: 1, q.key: 0}, "")) == []
    # A pod without a nominated node ends the plan.
    assert world.ways(gang(p, q), as_plan({p.key: 1}, "")) == []


# The search ------------------------------------------------------------------------------------


def test_members_give_way_to_each_other() -> None:
    # Taken one by one, "p" would get node "a", the only one for "q".
    world = World(nodes(a=1, b=1))
    assert world.ways(gang(pod("p"), pod("q", only="a"))) == [{"p": "b", "q": "a"}]


@pytest.mark.parametrize("order", ["pqr", "qpr", "rqp"])
def test_members_give_way_to_each_other_whoever_is_asked_first(order: str) -> None:
    world = World(nodes(a=1, b=1, c=1))
    only = {"p": "", "q": "a_b", "r": "a"}
    ways = world.ways(gang(*(pod(name, only=only[name]) for name in order)))
    assert ways
    assert all(way == {"p": "c", "q": "b", "r": "a"} for way in ways)


def test_equal_pods_are_not_tried_in_every_order() -> None:
    world = World(nodes(a=1, b=1, c=1))
    found = world.ways(gang(pod("p"), pod("q")))
    assert found[0] == {"p": "a", "q": "b"}
    assert found[1:] == [{"p": "a", "q": "b"}, {"p": "a", "q": "c"}, {"p": "b", "q": "c"}]


def test_the_search_ends_with_its_budget() -> None:
    world = World(nodes(a=1, b=1))
    unit = gang(pod("p"), pod("q", only="a"))
    for steps in range(5):
        attempt = Attempt(EVERYWHERE, SearchBudget(steps))
        found = world.ways(unit, attempt=attempt)
        # "p" on "a", then "p" on "b", then "q" on "a".
        assert len(found) == (1 if steps >= 3 else 0), steps
        assert attempt.budget.steps == max(0, steps - 3)


def test_every_tentative_placement_is_counted() -> None:
    world = World(nodes(a=1, b=1))
    attempt = Attempt(EVERYWHERE, SearchBudget())
    world.ways(gang(pod("p"), pod("q", only="a")), attempt=attempt)
    # One in order of the members, and three of the search.
    assert attempt.budget.placed == 4


def test_a_gang_that_cannot_fit_is_not_searched() -> None:
    world = World(nodes(a=1, b=1))
    attempt = Attempt(EVERYWHERE, SearchBudget())
    assert world.ways(gang(pod("p"), pod("q"), pod("r")), attempt=attempt) == []
    assert attempt.budget.steps == SearchBudget().steps


def test_large_gangs_are_not_searched() -> None:
    world = World(nodes(a=100, b=100))
    pods = [pod(f"p-{index}", only="a" if index else "") for index in range(65)]
    attempt = Attempt(EVERYWHERE, SearchBudget())
    assert len(world.ways(gang(*pods), attempt=attempt)) == 1
    assert attempt.budget.steps == SearchBudget().steps


def test_members_beyond_the_minimum_may_be_left_out() -> None:
    world = World(nodes(a=1))
    attempt = Attempt(EVERYWHERE, SearchBudget())
    unit = gang(pod("p", only="a"), pod("q", only="a"), least=1)
    assert world.ways(unit, attempt=attempt)[0] == {"p": "a"}
    assert {"p": "a"} in world.ways(unit)
    assert {"q": "a"} in world.ways(unit)


def test_the_way_that_came_furthest_is_kept_to_explain_a_refusal() -> None:
    world = World(nodes(a=2, b=1))
    attempt = Attempt(EVERYWHERE, SearchBudget(steps=0))
    unit = gang(pod("p"), pod("q"), pod("r"), pod("s"))
    assert world.ways(unit, attempt=attempt) == []
    assert attempt.closest is not None
    placed, decisions, failed = attempt.closest
    assert placed == 3
    assert [one.pod for one in failed] == ["default/s"]
    assert [decisions[f"default/{name}"].node for name in "pqrs"] == ["a", "a", "b", None]
    assert (attempt.reserved, attempt.pods, attempt.failed) == ([], {}, [])


def test_of_several_domains_the_one_that_took_most_is_explained() -> None:
    world = World(nodes(a1=1, b1=2, c1=1), racks())
    near = part("near", pod("p"), pod("q"), pod("r"))
    near.gang = Gang(near.key, 3, gather=(Gather("rack", required=True),))
    attempt = Attempt(EVERYWHERE, SearchBudget())
    assert world.ways(whole(near, least=3), attempt=attempt) == []
    assert attempt.closest is not None
    placed, decisions, _ = attempt.closest
    assert (placed, decisions["default/q"].node) == (2, "b1")


def test_a_refusal_in_reserve_is_what_the_pod_is_told() -> None:
    attempt = Attempt(EVERYWHERE, SearchBudget())
    assert World(nodes(a=4), keeper(a=0)).ways(single(pod("p")), attempt=attempt) == []
    assert attempt.refusal == ("Keeper", "no seat")
    assert attempt.closest is not None
    assert attempt.closest[2][0].message == "no seat"


# Parts -----------------------------------------------------------------------------------------


def part(name: str, *pods: PodInfo, least: int | None = None, needed: int = 1) -> Unit:
    made = gang(*pods, least=least, key=f"default/job/{name}")
    made.kind, made.needed = name.partition("-")[0], needed
    return made


def whole(*parts: Unit, least: int = 1, **more: Any) -> Unit:
    made = gang(*(one for own in parts for one in own.pods), least=least, **more)
    made.parts = parts
    return made


def test_parts_are_placed_by_backtracking_over_the_ways_of_each() -> None:
    world = World(nodes(a=1, b=1))
    unit = whole(part("one", pod("p")), part("two", pod("q", only="a")), least=2)
    ways = world.ways(unit)
    assert ways[0] == {"p": "b", "q": "a"}
    assert all(way == ways[0] for way in ways)


def test_a_part_may_be_left_out_while_enough_of_its_kind_are_placed() -> None:
    world = World(nodes(a=2))
    parts = [part(f"slice-{index}", pod(f"p-{index}"), needed=2) for index in range(3)]
    attempt = Attempt(EVERYWHERE, SearchBudget())
    found = world.ways(whole(*parts, least=2), attempt=attempt)
    assert [sorted(way) for way in found[:1]] == [["p-0", "p-1"]]
    assert {frozenset(way) for way in found} == {
        frozenset(pair) for pair in (("p-0", "p-1"), ("p-0", "p-2"), ("p-1", "p-2"))
    }


def test_too_few_parts_of_a_kind_are_no_way() -> None:
    world = World(nodes(a=1))
    parts = [part(f"slice-{index}", pod(f"p-{index}"), needed=2) for index in range(2)]
    attempt = Attempt(EVERYWHERE, SearchBudget())
    assert world.ways(whole(*parts), attempt=attempt) == []
    assert world.held() == {}


def test_parts_of_nested_sub_groups_are_left_out_group_by_group() -> None:
    def group(name: str) -> Unit:
        pods = (pod(f"{name}-0"), pod(f"{name}-1", only="none"))
        return whole(*(part("inner", one) for one in pods), key=f"default/job/{name}")

    world = World(nodes(a=4))
    unit = whole(group("x"), group("y"), least=2)
    # One of the two inner parts of each group is enough.
    assert {"x-0": "a", "y-0": "a"} in world.ways(unit)


def test_a_nested_sub_group_needs_its_minimum_of_its_own_members() -> None:
    inner = [part("inner-0", pod("y-0")), part("inner-1", pod("y-1", only="none"))]
    nested = whole(*inner, least=2, key="default/job/nested")
    attempt = Attempt(EVERYWHERE, SearchBudget())
    unit = whole(part("first", pod("x-0"), pod("x-1")), nested, least=2)
    assert World(nodes(a=4)).ways(unit, attempt=attempt) == []
    assert attempt.lack == "1 of 2 members have a node"


def test_a_gang_of_a_group_needs_its_roles() -> None:
    homeless = worker("w-1", only="none")
    one = gang(
        worker("w-0"), homeless, pod("p"), least=2, key="default/one", roles=(("worker", 2),)
    )
    attempt = Attempt(EVERYWHERE, SearchBudget())
    unit = whole(one, part("other", pod("q")), least=3)
    assert World(nodes(a=4)).ways(unit, attempt=attempt) == []
    assert attempt.lack == '1 of 2 members of role "worker" have a node'


def test_a_part_with_too_few_members_says_so() -> None:
    world = World(nodes(a=4))
    attempt = Attempt(EVERYWHERE, SearchBudget())
    assert world.ways(whole(part("ps", pod("p"), least=2)), attempt=attempt) == []
    assert attempt.lack == 'sub-group "default/job/ps" has 1 of the 2 members it needs'
    empty = part("worker", least=1)
    assert world.ways(whole(part("ps", pod("p")), empty), attempt=attempt) == []
    assert attempt.lack == 'sub-group "default/job/worker" has none of the members it needs'


def test_all_parts_together_have_to_be_enough_for_the_gang() -> None:
    world = World(nodes(a=4))
    attempt = Attempt(EVERYWHERE, SearchBudget())
    unit = whole(part("ps", pod("p"), needed=0), least=2)
    assert world.ways(unit, attempt=attempt) == []
    assert attempt.lack == "0 of 2 members have a node"


def test_parts_are_placed_in_what_plugins_offer_them() -> None:
    plugin = racks()
    world = World(nodes(a1=1, b1=1, b2=1), plugin)
    near = part("near", pod("p"), pod("q"))
    assert near.gang is not None
    near.gang = Gang(near.key, 2, gather=(Gather("rack", required=True),))
    attempt = Attempt(EVERYWHERE, SearchBudget())
    chosen = []
    with world.snapshot.trial():
        for _ in world.placer.ways(whole(near, least=2), EVERYWHERE, attempt, CycleState()):
            chosen.append([trial.name for trial in attempt.domains])
    assert set(map(tuple, chosen)) == {("default/job/near: rack-1",)}
    assert plugin.asked == [("default/job/near", ["p", "q"])]


# Slices ----------------------------------------------------------------------------------------


def sliced(*pods: PodInfo, least: int | None = None) -> Unit:
    return gang(*pods, least=least, slices=(Slice("rack", 2),))


def test_differing_pods_are_sliced_by_rank_each_slice_in_one_domain() -> None:
    plugin = racks()
    world = World(nodes(a1=1, a2=2, b1=2, b2=1), plugin)
    unit = sliced(pod("p-0"), pod("p-1", 2), pod("p-2", 2), pod("p-3"))
    assert world.first(unit) == {"p-1": "a2", "p-0": "a1", "p-2": "b1", "p-3": "b2"}
    assert plugin.asked[0] == ("default/job/slice-0", ["p-0", "p-1"])
    assert ("default/job/slice-1", ["p-2", "p-3"]) in plugin.asked


def test_slices_beyond_the_minimum_may_be_left_out() -> None:
    world = World(nodes(a1=1, a2=2), racks())
    unit = sliced(pod("p-0"), pod("p-1", 2), pod("p-2", 2), pod("p-3"), least=2)
    assert {"p-0": "a1", "p-1": "a2"} in world.ways(unit)
    assert world.ways(sliced(*unit.pods)) == []


def test_equal_pods_are_not_sliced_into_parts() -> None:
    plugin = racks()
    world = World(nodes(a1=4), plugin)
    assert world.first(sliced(pod("p-0"), pod("p-1"))) == {"p-0": "a1", "p-1": "a1"}
    assert plugin.asked == []


# Going back ------------------------------------------------------------------------------------


def test_the_snapshot_is_as_before_when_all_ways_are_tried() -> None:
    world = World(nodes(a=2, b=2), keeper(a=2))
    for index in range(2):
        world.snapshot.add_pod(PodInfo(make_pod(f"there-{index}", "100m", None)), "a")
    unit = whole(part("one", pod("p"), pod("q"), least=1), part("two", pod("r", only="b")), least=2)
    attempt = Attempt(EVERYWHERE, SearchBudget())
    before = fingerprints.of_objects(world.snapshot)
    assert before
    with world.snapshot.trial():
        ways = 0
        for _ in world.placer.ways(unit, EVERYWHERE, attempt, CycleState()):
            ways += 1
        # Nothing is left for the trial to undo.
        assert fingerprints.changed(before, fingerprints.of_objects(world.snapshot)) == []
    assert ways > 1
    assert (attempt.reserved, attempt.pods, attempt.failed) == ([], {}, [])


def test_everything_reserved_is_unreserved_the_last_pod_first() -> None:
    plugin = keeper()
    world = World(nodes(a=4), plugin)
    attempt = Attempt(EVERYWHERE, SearchBudget(steps=0))
    assert world.ways(gang(pod("p"), pod("q")), attempt=attempt) == [{"p": "a", "q": "a"}]
    assert plugin.journal == ["+p@a", "+q@a", "-q@a", "-p@a"]


def test_a_pod_refused_in_reserve_is_unreserved_at_once() -> None:
    plugin = keeper(a=0)
    world = World(nodes(a=4), plugin)
    assert world.ways(single(pod("p"))) == []
    assert plugin.journal == ["+p@a", "-p@a"]
    assert world.held() == {}


# What plugins offer ----------------------------------------------------------------------------


def test_a_pod_without_a_gang_is_offered_the_parent_alone() -> None:
    plugin = racks()
    world = World(nodes(a1=1), plugin)
    parent = Placement("zone", np.array([0]))
    assert list(world.placer.offers(single(pod("p")), parent, CycleState()).candidates) == [parent]
    assert plugin.asked == []


def test_the_first_plugin_with_an_answer_offers() -> None:
    class Other(Plugin[Args]):
        """Offers one row."""

        @hookimpl
        def placement_generate(self, parent: Placement) -> Placements:
            return Placements([Placement("other", np.array([0]))])

    world = World(nodes(a1=1, b1=1), racks(), Other)
    gathered = gang(pod("p"), gather=(Gather("rack", required=True),))

    def names(unit: Unit) -> list[str]:
        offered = world.placer.offers(unit, EVERYWHERE, CycleState())
        return [one.name for one in offered.candidates]

    assert names(gathered) == ["rack-0", "rack-1"]
    assert names(gang(pod("p"))) == ["other"]


def test_rows_that_are_no_nodes_are_the_plugins_error() -> None:
    class Wrong(Plugin[Args]):
        """Offers a row too many."""

        @hookimpl
        def placement_generate(self, parent: Placement) -> Placements:
            return Placements([Placement("wrong", np.array([0, 2]))])

    world = World(nodes(a=1, b=1), Wrong)
    with pytest.raises(PluginError, match=r'"Wrong" failed in placement_generate.* 2 nodes'):
        list(world.placer.offers(gang(pod("p")), EVERYWHERE, CycleState()).candidates)


def test_free_slots_are_the_fewest_that_any_plugin_states_and_none_where_refused() -> None:
    class Two(Plugin[Args]):
        """Two pods a node."""

        @hookimpl
        def slots(self, nodes: NodeView) -> Any:
            return np.full(len(nodes), 2)

    world = World(nodes(a=1, b=9, c=9), Two)
    assert world.placer.free_slots(pod("p", only="a_b")).tolist() == [1, 2, 0]


def test_slots_of_the_wrong_length_are_the_plugins_error() -> None:
    class Wrong(Plugin[Args]):
        """Gives a number too many."""

        @hookimpl
        def slots(self, nodes: NodeView) -> Any:
            return np.zeros((len(nodes), 1), dtype=np.int64)

    with pytest.raises(PluginError, match='"Wrong" failed in slots'):
        World(nodes(a=1, b=1), Wrong).placer.free_slots(pod("p"))


# What a gang lacks -----------------------------------------------------------------------------


def reserved(*pods: PodInfo) -> list[Reserved]:
    return [Reserved(one, "n", CycleState()) for one in pods]


def worker(name: str, only: str = "") -> PodInfo:
    notes = {"scheduling.k8s.io/group-name": "job", "volcano.sh/task-spec": "worker"}
    labels = {PLACES: only} if only else {}
    return PodInfo(make_pod(name, annotations=notes, labels=labels))


def test_a_pod_of_its_own_lacks_nothing() -> None:
    assert lacking(single(pod("p")), []) is None


def test_a_gang_lacks_members_until_its_minimum_has_a_node() -> None:
    p, q = pod("p"), pod("q")
    assert lacking(gang(p, q), reserved(p)) == "1 of 2 members have a node"
    assert lacking(gang(p, q), reserved(p, q)) is None


def test_members_with_a_node_count_towards_minimum_and_roles() -> None:
    unit = gang(worker("w-0"), least=2, roles=(("worker", 2),))
    unit.bound = [(worker("w-1"), "n")]
    assert lacking(unit, reserved(*unit.pods)) is None
    unit.bound = [(pod("other"), "n")]
    assert lacking(unit, reserved(*unit.pods)) == ('1 of 2 members of role "worker" have a node')


@pytest.mark.parametrize(
    ("policy", "lack"),
    [
        ("once-satisfied", None),
        ("waiting-and-running", '1 of 2 members of role "worker" have a node'),
    ],
)
def test_a_gang_that_was_complete_lacks_no_role_when_once_is_enough(
    policy: MatchPolicy, lack: str | None
) -> None:
    unit = gang(worker("w-0"), least=1, roles=(("worker", 2),), match_policy=policy)
    unit.satisfied = True
    assert lacking(unit, reserved(*unit.pods)) == lack
