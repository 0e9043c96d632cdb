"""Units: from pending pods to what one cycle places."""

from __future__ import annotations

from bayplan.api.gang import Gang, Gather, Slice, SubGroup
from bayplan.api.selectors import Requirement, Selector
from bayplan.gangs.directory import GangDirectory
from bayplan.scheduler.nominator import Nomination
from bayplan.scheduler.units import make_unit
from bayplan.snapshot import PodInfo
from bayplan.testing import make_pod

KEY = "default/job"
RACK = (Gather("rack", required=True),)


def member(name: str, gang: str = "job", **labels: str) -> PodInfo:
    return PodInfo(make_pod(name, gang=gang, labels=labels))


def directory(*gangs: Gang) -> GangDirectory:
    found = GangDirectory(lambda key: None)
    for gang in gangs:
        found.define(gang, "PodGroup")
    return found


def is_(key: str, value: str) -> Selector:
    return Selector((Requirement(key, "In", frozenset({value})),))


def names(pods: object) -> list[str]:
    return [pod.name for pod in pods]  # type: ignore[attr-defined]


def test_a_pod_without_a_gang_is_a_unit_of_one() -> None:
    pod = PodInfo(make_pod("p"))
    unit = make_unit("default/p", [pod], directory())
    assert (unit.key, list(unit.pods), unit.gang, list(unit.parts)) == (
        "default/p",
        [pod],
        None,
        [],
    )
    assert unit.min_placed == 1


def test_a_unit_knows_its_nominated_nodes_and_their_domain() -> None:
    pod = PodInfo(make_pod("p"))
    nomination = Nomination("default/p", [pod], {"default/p": "n"}, 60.0, set(), "rack-1")
    unit = make_unit("default/p", [pod], directory(), nomination)
    assert (unit.nominated, unit.nominated_domain) == ({"default/p": "n"}, "rack-1")


def test_members_stand_in_rank_order_pending_and_bound() -> None:
    gangs = directory(Gang(KEY, 3))
    for name in ("job-11", "job-3"):
        gangs.set_bound(member(name), f"node-of-{name}")
    unit = make_unit(KEY, [member("job-10"), member("job-2")], gangs)
    assert names(unit.pods) == ["job-2", "job-10"]
    assert [(pod.name, node) for pod, node in unit.bound] == [
        ("job-3", "node-of-job-3"),
        ("job-11", "node-of-job-11"),
    ]
    assert unit.gang == Gang(KEY, 3)


def test_a_unit_says_whether_its_gang_was_complete_before() -> None:
    gangs = directory(Gang(KEY, 1))
    assert not make_unit(KEY, [member("job-0")], gangs).satisfied
    gangs.set_bound(member("job-1"), "n")
    assert make_unit(KEY, [member("job-0")], gangs).satisfied


# Sub-groups ------------------------------------------------------------------------------------


def test_sub_groups_are_parts_the_largest_first_with_their_own_constraints() -> None:
    slices = (Slice("rack", 2),)
    gang = Gang(
        KEY,
        3,
        gather=RACK,
        sub_groups=(
            SubGroup("ps", is_("role", "ps"), size=1),
            SubGroup("worker", is_("role", "worker"), size=2, gather=RACK, slices=slices),
        ),
        roles=(("ps", 1),),
    )
    pods = [member("ps-0", role="ps"), *(member(f"w-{i}", role="worker") for i in range(2))]
    unit = make_unit(KEY, pods, directory(gang))
    workers, ps = unit.parts
    assert (names(workers.pods), names(ps.pods)) == (["w-0", "w-1"], ["ps-0"])
    assert (workers.key, workers.kind, workers.min_placed) == (f"{KEY}/worker", "worker", 2)
    assert workers.gang is not None
    assert (workers.gang.gather, workers.gang.slices) == (RACK, slices)
    assert ps.gang is not None
    # The constraints on the whole gang stay with the whole.
    assert (ps.gang.gather, ps.gang.roles, ps.gang.sub_groups) == ((), (), ())


def test_members_of_no_sub_group_are_a_last_part_that_needs_none() -> None:
    gang = Gang(KEY, 1, sub_groups=(SubGroup("ps", is_("role", "ps")),))
    loose = [member("a"), member("b")]
    unit = make_unit(KEY, [*loose, member("ps-0", role="ps")], directory(gang))
    ps, others = unit.parts
    assert names(ps.pods) == ["ps-0"]
    assert (names(others.pods), others.kind, others.needed) == (["a", "b"], f"{KEY}/others", 0)
    assert others.gang is not None
    assert others.gang.min_member == 0


def test_each_combination_of_label_values_is_a_group() -> None:
    gang = Gang(KEY, 4, sub_groups=(SubGroup("part", label_keys=("index",), size=2, min_groups=2),))
    pods = [member(f"p-{i}", index=str(i % 2)) for i in range(4)]
    unit = make_unit(KEY, [*pods, member("unlabelled")], directory(gang))
    first, second, others = unit.parts
    assert (first.key, names(first.pods)) == (f"{KEY}/part-0", ["p-0", "p-2"])
    assert (second.key, names(second.pods)) == (f"{KEY}/part-1", ["p-1", "p-3"])
    assert (first.kind, first.needed) == (second.kind, second.needed) == ("part", 2)
    assert names(others.pods) == ["unlabelled"]


def test_bound_members_are_in_the_part_of_their_sub_group() -> None:
    gang = Gang(KEY, 3, sub_groups=(SubGroup("worker", is_("role", "worker"), size=2),))
    gangs = directory(gang)
    gangs.set_bound(member("w-0", role="worker"), "n")
    unit = make_unit(KEY, [member("w-1", role="worker")], gangs)
    (workers,) = unit.parts
    assert [(pod.name, node) for pod, node in workers.bound] == [("w-0", "n")]
    assert workers.min_placed == 1


def test_members_that_have_succeeded_count_in_the_part_of_their_sub_group() -> None:
    worker = SubGroup("worker", is_("role", "worker"), size=2)
    gang = Gang(KEY, 3, sub_groups=(worker,), match_policy="staying-and-succeeded")
    gangs = directory(gang)
    gangs.set_ended(member("w-0", role="worker"), "Succeeded")
    unit = make_unit(KEY, [member("w-1", role="worker"), member("x")], gangs)
    assert (names(unit.succeeded), unit.min_placed) == (["w-0"], 2)
    assert (names(unit.parts[0].pods), unit.parts[0].min_placed) == (["w-1"], 1)


def test_a_sub_group_without_members_is_an_empty_part_when_it_is_needed() -> None:
    gang = Gang(
        KEY,
        2,
        sub_groups=(
            SubGroup("worker", is_("role", "worker")),
            SubGroup("ps", is_("role", "ps"), size=1),
            SubGroup("spare", is_("role", "spare"), min_groups=0),
        ),
    )
    unit = make_unit(KEY, [member("w-0", role="worker")], directory(gang))
    assert [(part.kind, len(part.pods), part.min_placed) for part in unit.parts] == [
        ("worker", 1, 1),
        ("ps", 0, 1),
    ]


def test_sub_groups_nest() -> None:
    gang = Gang(
        KEY,
        2,
        sub_groups=(
            SubGroup("outer", is_("side", "left"), size=2),
            SubGroup("inner", is_("role", "ps"), size=1, parent="outer"),
        ),
    )
    pods = [member("a", side="left", role="ps"), member("b", side="left")]
    (outer,) = make_unit(KEY, pods, directory(gang)).parts
    inner, others = outer.parts
    assert (inner.kind, inner.needed, names(inner.pods)) == ("inner", 1, ["a"])
    assert (others.needed, names(others.pods)) == (0, ["b"])


# Groups of gangs -------------------------------------------------------------------------------


def test_a_group_of_gangs_is_one_unit_with_a_part_for_each_gang() -> None:
    both = ("default/a", "default/b")
    gangs = directory(
        Gang("default/a", 1, together=both, gather=RACK, roles=(("x", 1),)),
        Gang("default/b", 2, together=both, gather=RACK),
    )
    pods = [member("a-0", "a"), member("b-0", "b"), member("b-1", "b")]
    for pod in pods:
        gangs.set_pending(pod)
    key = gangs.unit_of(pods[0])
    gangs.set_bound(member("a-9", "a"), "n")
    unit = make_unit(key, pods, gangs)
    assert unit.gang is not None
    assert (unit.gang.key, unit.gang.min_member, unit.gang.gather) == (key, 3, RACK)
    assert unit.gang.roles == ()
    assert names(unit.pods) == ["a-0", "b-0", "b-1"]
    assert [pod.name for pod, _ in unit.bound] == ["a-9"]
    assert [(part.key, names(part.pods)) for part in unit.parts] == [
        ("default/b", ["b-0", "b-1"]),
        ("default/a", ["a-0"]),
    ]
    # One domain for all: the parts do not ask for one of their own.
    assert all(part.gang is not None and part.gang.gather == () for part in unit.parts)


def test_a_group_was_complete_only_if_all_of_its_gangs_were() -> None:
    both = ("default/a", "default/b")
    gangs = directory(Gang("default/a", 1, together=both), Gang("default/b", 1, together=both))
    pods = [member("a-0", "a"), member("b-0", "b")]
    for pod in pods:
        gangs.set_pending(pod)
    gangs.set_bound(member("a-1", "a"), "n")
    key = gangs.unit_of(pods[0])
    assert not make_unit(key, pods, gangs).satisfied
    gangs.set_bound(member("b-1", "b"), "n")
    assert make_unit(key, pods, gangs).satisfied
