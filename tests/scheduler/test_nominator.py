"""Nominated nodes: what is held for a unit, and when it is free for the unit itself."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from bayplan.scheduler.nominator import Nomination, Nominator
from bayplan.snapshot import PodInfo, Snapshot
from bayplan.testing import make_node, make_pod


@pytest.fixture
def snapshot() -> Snapshot:
    made = Snapshot()
    for name in ("a", "b"):
        made.set_node(make_node(name, cpu=4))
    made.sync()
    return made


@pytest.fixture
def nominator(snapshot: Snapshot) -> Nominator:
    return Nominator(snapshot, lambda unit: None)


def nomination(unit: str = "default/job", victims: Iterable[str] = (), **nodes: str) -> Nomination:
    """Return a nomination of one-core pods, by name."""
    pods = [PodInfo(make_pod(name, "1", None)) for name in nodes]
    return Nomination(
        unit, pods, {f"default/{name}": node for name, node in nodes.items()}, 60.0, set(victims)
    )


def used(snapshot: Snapshot) -> list[int]:
    """Return the milli-CPU taken on each node."""
    column: list[int] = snapshot.nodes.used("cpu").tolist()
    return column


def test_nominated_nodes_are_taken_until_the_nomination_is_dropped(
    snapshot: Snapshot, nominator: Nominator
) -> None:
    made = nomination(p="a", q="b")
    nominator.add(made)
    assert used(snapshot) == [1000, 1000]
    assert nominator.get("default/job") is made
    assert nominator.unit_of("default/p") == "default/job"
    assert "default/q" in nominator
    nominator.drop("default/job")
    assert used(snapshot) == [0, 0]
    assert nominator.get("default/job") is None
    assert nominator.unit_of("default/p") is None
    assert "default/q" not in nominator


def test_a_new_nomination_replaces_the_earlier_one_of_its_unit(
    snapshot: Snapshot, nominator: Nominator
) -> None:
    nominator.add(nomination(p="a", q="a"))
    later = nomination(p="b")
    nominator.add(later)
    assert used(snapshot) == [0, 1000]
    assert list(nominator.all()) == [later]
    assert "default/q" not in nominator


def test_units_keep_their_nominations_apart(snapshot: Snapshot, nominator: Nominator) -> None:
    nominator.add(nomination("default/one", p="a"))
    nominator.add(nomination("default/two", q="a"))
    nominator.drop("default/one")
    assert used(snapshot) == [1000, 0]
    assert [one.unit for one in nominator.all()] == ["default/two"]


def test_a_suspended_nomination_frees_its_nodes_and_is_resumed_in_place(
    snapshot: Snapshot, nominator: Nominator
) -> None:
    nominator.add(nomination(p="a", q="b"))
    nominator.suspend("default/job")
    assert used(snapshot) == [0, 0]
    assert "default/p" in nominator
    nominator.resume("default/job")
    assert used(snapshot) == [1000, 1000]


def test_resuming_leaves_a_pod_that_has_a_node_by_now(
    snapshot: Snapshot, nominator: Nominator
) -> None:
    made = nomination(p="a")
    nominator.add(made)
    nominator.suspend("default/job")
    snapshot.add_pod(made.pods[0], "b")
    nominator.resume("default/job")
    assert used(snapshot) == [0, 1000]


def test_forgetting_a_nomination_leaves_what_its_unit_placed(
    snapshot: Snapshot, nominator: Nominator
) -> None:
    made = nomination(p="a")
    nominator.add(made)
    nominator.suspend("default/job")
    snapshot.add_pod(made.pods[0], "b")
    nominator.forget("default/job")
    assert used(snapshot) == [0, 1000]
    assert "default/p" not in nominator


def test_a_victim_that_ended_is_not_waited_for_any_more(nominator: Nominator) -> None:
    first = nomination("default/one", victims=["default/v", "default/w"], p="a")
    second = nomination("default/two", victims=["default/v"], q="a")
    nominator.add(first)
    nominator.add(second)
    nominator.victim_ended("default/v")
    nominator.victim_ended("default/unknown")
    assert (first.victims, second.victims) == ({"default/w"}, set())


def test_units_without_a_nomination_are_left_alone(
    snapshot: Snapshot, nominator: Nominator
) -> None:
    nominator.add(nomination(p="a"))
    nominator.suspend("default/other")
    nominator.resume("default/other")
    nominator.forget("default/other")
    nominator.drop("default/other")
    assert used(snapshot) == [1000, 0]
