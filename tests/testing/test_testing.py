"""What bayplan.testing gives to plugin authors."""

from __future__ import annotations

import pytest

from bayplan import Args, NodeRow, Plugin, PodInfo, hookimpl
from bayplan.errors import InputError
from bayplan.testing import (
    Cluster,
    assert_pending,
    assert_placed,
    make_node,
    make_pod,
    refusals,
)


class BudgetArgs(Args):
    """Arguments of Budget."""

    teams: list[str] = []


class Budget(Plugin[BudgetArgs]):
    """Refuses pods of teams that have a budget, and says where they would be cheap."""

    Args = BudgetArgs

    @hookimpl
    def filter_node(self, pod: PodInfo, node: NodeRow) -> str | None:
        if pod.labels.get("team") not in self.args.teams:
            return None
        return f"node(s) that cost {node.annotations.get('price', 'nothing')}"


class Never(Plugin[Args]):
    """Refuses every node."""

    @hookimpl
    def filter_node(self) -> str | None:
        return "never"


def test_plugins_take_arguments() -> None:
    cluster = Cluster([make_node("n")], plugins={Budget: {"teams": ["x"]}})
    cluster.add(make_pod("a", labels={"team": "x"}), make_pod("b", labels={"team": "y"}))
    assert_placed(cluster, b="n")
    assert_pending(cluster, "a", "cost nothing")


def test_plugins_without_arguments_stay_a_list() -> None:
    cluster = Cluster([make_node("n")], plugins=[Budget, Never])
    cluster.add(make_pod("a", labels={"team": "x"}))
    assert_pending(cluster, "a", "1 never.")


def test_an_installed_plugin_goes_by_its_name() -> None:
    least = Cluster([make_node("a"), make_node("b")])
    most = Cluster(
        [make_node("a"), make_node("b")],
        plugins={"NodeResourcesFit": {"scoringStrategy": {"type": "MostAllocated"}}},
    )
    for cluster, node in ((least, "a"), (most, "b")):
        cluster.add(make_pod("there", "4", "16Gi", node="b"), make_pod("p", "1", "4Gi"))
        assert_placed(cluster, p=node)
    names = [
        name for name, _ in most.scheduler.profiles["default-scheduler"].profile.points["score"]
    ]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"teams": "x"}, 'plugin "Budget": teams: expected a list'),
        ({"team": ["x"]}, 'plugin "Budget": team: "team" is not known here; did you mean "teams"'),
    ],
)
def test_wrong_arguments_are_told_as_those_of_a_profile(
    args: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Cluster(plugins={Budget: args})
    with pytest.raises(InputError, match=message):
        refusals(Budget, make_pod("p"), Cluster(), args)


def test_a_plugin_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match='there is no plugin "NodeResourceFit"; did you mean'):
        Cluster(plugins=["NodeResourceFit"])


def test_two_plugins_of_one_name_are_an_error() -> None:
    other = type("Never", (Never,), {"__doc__": "Another."})
    with pytest.raises(InputError, match='two plugins are named "Never"'):
        Cluster(plugins=[Never, other])


def test_nodes_have_annotations() -> None:
    cluster = Cluster([make_node("n", annotations={"price": "10"})])
    found = refusals(Budget, make_pod("a", labels={"team": "x"}), cluster, {"teams": ["x"]})
    assert found == {"n": "node(s) that cost 10"}


def test_pods_have_owners() -> None:
    (owner,) = make_pod("train-0", owner="Job/train").metadata.owner_references
    assert (owner.kind, owner.name, owner.controller) == ("Job", "train", True)
    assert make_pod("alone").metadata.owner_references == ()
