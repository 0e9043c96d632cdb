"""The directory of gangs: definitions, members, groups, and what was complete."""

from __future__ import annotations

import pytest

from bayplan.api.gang import Gang, Gather
from bayplan.gangs.directory import GangDirectory
from bayplan.snapshot import PodInfo
from bayplan.testing import make_pod

KEY = "default/job"


class Directory(GangDirectory):
    """A directory that notes which gangs it reports as changed."""

    def __init__(self) -> None:
        self.reported: list[str] = []
        super().__init__(self.reported.append)


@pytest.fixture
def gangs() -> Directory:
    return Directory()


def member(name: str, gang: str = "job", owner: str = "") -> PodInfo:
    return PodInfo(make_pod(name, gang=gang, owner=owner))


def annotated(name: str, min_available: int) -> PodInfo:
    """Return a pod whose own annotations define its gang."""
    notes = {
        "gang.scheduling.koordinator.sh/name": "job",
        "gang.scheduling.koordinator.sh/min-available": str(min_available),
    }
    return PodInfo(make_pod(name, annotations=notes))


# Members ---------------------------------------------------------------------------------------


def test_a_pod_without_a_gang_is_its_own_unit_and_in_no_gang(gangs: Directory) -> None:
    alone = PodInfo(make_pod("alone"))
    assert gangs.unit_of(alone) == "default/alone"
    assert gangs.set_pending(alone) == gangs.set_bound(alone, "n") == gangs.remove(alone) == set()
    assert not gangs.all()
    assert gangs.reported == []


def test_a_member_is_pending_or_bound_never_both(gangs: Directory) -> None:
    pod = member("job-0")
    gangs.set_pending(pod)
    assert (list(gangs[KEY].pending), list(gangs[KEY].bound)) == (["default/job-0"], [])
    gangs.set_bound(pod, "n")
    assert gangs[KEY].pending == {}
    assert gangs[KEY].bound == {"default/job-0": (pod, "n")}
    gangs.set_pending(pod)
    assert (gangs[KEY].present, gangs[KEY].bound) == (1, {})


def test_every_change_of_members_is_reported(gangs: Directory) -> None:
    pod = member("job-0")
    gangs.set_pending(pod)
    gangs.set_bound(pod, "n")
    gangs.set_ended(pod, "Failed")
    gangs.remove(pod)
    assert gangs.reported == [KEY] * 4


def test_a_gang_is_dropped_with_its_last_member_unless_an_object_defines_it(
    gangs: Directory,
) -> None:
    pod = member("job-0")
    gangs.set_pending(pod)
    gangs.remove(pod)
    assert not gangs.all()
    gangs.define(Gang(KEY, 1), "PodGroup")
    gangs.set_pending(pod)
    gangs.remove(pod)
    assert list(gangs.all()) == [KEY]
    gangs.undefine(KEY, "PodGroup")
    assert not gangs.all()


def test_a_gang_was_complete_from_its_minimum_of_bound_members_on(gangs: Directory) -> None:
    gangs.define(Gang(KEY, 2), "PodGroup")
    first, second = member("job-0"), member("job-1")
    gangs.set_pending(second)
    gangs.set_bound(first, "n")
    assert not gangs.is_satisfied([KEY])
    gangs.set_bound(second, "n")
    assert gangs.is_satisfied([KEY])
    gangs.remove(second)
    assert gangs.is_satisfied([KEY])


def test_a_gang_counts_as_complete_where_its_object_says_so(gangs: Directory) -> None:
    gangs.define(Gang(KEY, 2, satisfied=True), "PodGroup")
    assert gangs.is_satisfied([KEY])
    assert not gangs.is_satisfied([KEY, "default/unknown"])


def test_owners_are_counted_once_for_each_living_member(gangs: Directory) -> None:
    pods = [member(f"job-{index}", owner="Job/train") for index in range(2)]
    for pod in pods:
        gangs.set_pending(pod)
        gangs.set_bound(pod, "n")
    gangs.set_pending(member("loose"))
    assert gangs[KEY].owners == {("Job", "default/train"): 2, ("", ""): 1}
    gangs.remove(pods[0])
    gangs.remove(pods[0])
    assert gangs[KEY].owners["Job", "default/train"] == 1


def test_ended_members_are_counted_by_phase_until_they_are_deleted(gangs: Directory) -> None:
    gangs.define(Gang(KEY, 1), "PodGroup")
    pods = [member(f"job-{index}") for index in range(3)]
    gangs.set_ended(pods[0], "Succeeded")
    gangs.set_ended(pods[1], "Failed")
    gangs.set_ended(pods[2], "Failed")
    assert gangs[KEY].count_ended("Failed") == 2
    gangs.set_ended(pods[1], None)
    assert (gangs[KEY].count_ended("Failed"), gangs[KEY].count_ended("Succeeded")) == (1, 1)


# Definitions -----------------------------------------------------------------------------------


def test_a_definition_is_reported_only_when_it_differs(gangs: Directory) -> None:
    assert gangs.define(Gang(KEY, 2), "PodGroup") == {KEY}
    assert gangs.define(Gang(KEY, 2), "PodGroup") == set()
    assert gangs.define(Gang(KEY, 3), "PodGroup") == {KEY}
    defined = gangs[KEY].gang
    assert defined is not None
    assert defined.min_member == 3


def test_an_object_overrides_what_pods_define(gangs: Directory) -> None:
    assert gangs.set_pending(annotated("job-0", 5)) == {KEY}
    gangs.define(Gang(KEY, 2), "PodGroup")
    assert gangs[KEY].gang == Gang(KEY, 2)
    gangs.undefine(KEY, "PodGroup")
    by_pods = gangs[KEY].gang
    assert by_pods is not None
    assert by_pods.min_member == 5


def test_pods_that_define_a_gang_differently_make_a_problem_until_one_is_gone(
    gangs: Directory,
) -> None:
    gangs.set_pending(annotated("job-0", 2))
    other = annotated("job-1", 3)
    assert gangs.set_pending(other) == {KEY}
    gang = gangs[KEY].gang
    assert gang is not None
    assert gang.problem == "its pods default/job-0 and default/job-1 define it differently"
    assert gangs.remove(other) == {KEY}
    gang = gangs[KEY].gang
    assert gang is not None
    assert gang.problem is None


def test_two_kinds_of_object_may_not_define_one_gang(gangs: Directory) -> None:
    gangs.define(Gang(KEY, 2), "PodGroup")
    gangs.define(Gang(KEY, 2), "Workload")
    gang = gangs[KEY].gang
    assert gang is not None
    assert gang.problem == "is defined by a PodGroup and by a Workload"
    gangs.undefine(KEY, "Workload")
    assert gangs[KEY].gang == Gang(KEY, 2)


# Groups of gangs -------------------------------------------------------------------------------

BOTH = ("default/a", "default/b")


def test_gangs_that_name_each_other_are_one_unit(gangs: Directory) -> None:
    assert gangs.define(Gang("default/a", 1, together=BOTH), "PodGroup") == {"default/a"}
    gangs.define(Gang("default/b", 1, together=BOTH), "PodGroup")
    pods = [member("a-0", "a"), member("b-0", "b")]
    for pod in pods:
        gangs.set_pending(pod)
    assert {gangs.unit_of(pod) for pod in pods} == {"default/a,default/b"}
    assert gangs.gangs_of("default/a,default/b") == BOTH
    assert gangs.gangs_of("default/single") == ("default/single",)


def test_a_gang_that_does_not_name_the_group_makes_a_problem_for_all(gangs: Directory) -> None:
    gangs.define(Gang("default/a", 1, together=BOTH), "PodGroup")
    changed = gangs.define(Gang("default/b", 1), "PodGroup")
    assert changed == {"default/a", "default/b"}
    gang = gangs["default/a"].gang
    assert gang is not None
    assert gang.problem == (
        "the gangs of one group disagree: default/a names [default/a, default/b], "
        "default/b names []"
    )
    assert gangs.unit_of(member("a-0", "a")) == "default/a"


def test_gangs_of_a_group_have_to_ask_for_the_same_topology(gangs: Directory) -> None:
    rack = (Gather("rack", required=True),)
    gangs.define(Gang("default/a", 1, together=BOTH, gather=rack), "PodGroup")
    gangs.define(Gang("default/b", 1, together=BOTH), "PodGroup")
    problems = [found.gang.problem for found in gangs.all().values() if found.gang is not None]
    assert problems == [
        "the gangs of one group disagree: default/a and default/b "
        "ask for different network topologies",
        "the gangs of one group disagree: default/b and default/a "
        "ask for different network topologies",
    ]
    gangs.define(Gang("default/b", 1, together=BOTH, gather=rack), "PodGroup")
    assert gangs.unit_of(member("a-0", "a")) == "default/a,default/b"
