"""Every in-tree plugin keeps the contract that authors are held to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bayplan import Args, NodeRow, NodeView, Plugin, PodInfo, Reads, Reject, hookimpl
from bayplan.discovery import PluginFinder
from bayplan.testing import PluginCheckError, check_plugin

RATIO = {
    "type": "RequestedToCapacityRatio",
    "resources": [{"name": "cpu", "weight": 2}, {"name": "nvidia.com/gpu", "weight": 5}],
    "requestedToCapacityRatio": {
        "shape": [{"utilization": 0, "score": 3}, {"utilization": 70, "score": 10}]
    },
}
THREE = {"resources": [{"name": "cpu"}, {"name": "memory"}, {"name": "nvidia.com/gpu"}]}


@pytest.mark.parametrize("name", sorted(PluginFinder().entry_points))
def test_in_tree_plugins_keep_the_contract(name: str) -> None:
    check_plugin(PluginFinder().find(name))


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("NodeResourcesFit", {"scoringStrategy": {"type": "MostAllocated"}}),
        ("NodeResourcesFit", {"scoringStrategy": RATIO}),
        ("NodeResourcesBalancedAllocation", THREE),
    ],
    ids=["most allocated", "ratio", "balanced over three"],
)
def test_both_spellings_agree_with_other_arguments(name: str, args: dict[str, Any]) -> None:
    check_plugin(PluginFinder().find(name), args)


class Disagrees(Plugin[Args]):
    """Its two spellings differ."""

    @hookimpl
    def filter(self, nodes: NodeView) -> Iterator[Reject]:
        yield Reject(nodes.free("cpu") < 1000, "busy")

    @hookimpl
    def filter_node(self, node: NodeRow) -> str | None:
        return "busy" if node.free("cpu") < 2000 else None


class LiesAboutPods(Plugin[Args]):
    """Says that it reads node objects only, and counts pods."""

    reads = Reads.NODE

    @hookimpl
    def sign(self) -> object:
        return None

    @hookimpl
    def score(self, nodes: NodeView) -> Any:
        return np.minimum(nodes.used("pods"), 100)


class LiesAboutSign(Plugin[Args]):
    """Signs nothing and looks at the name."""

    reads = Reads.NODE

    @hookimpl
    def sign(self) -> object:
        return None

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        yield Reject(np.full(len(nodes), pod.name.endswith("0")), "no zeros")


class TooHigh(Plugin[Args]):
    """Scores beyond 100."""

    @hookimpl
    def score(self, nodes: NodeView) -> Any:
        return nodes.allocatable("cpu")


class Meddles(Plugin[Args]):
    """Changes the snapshot while it filters."""

    @hookimpl
    def filter(self, nodes: NodeView) -> Iterator[Reject]:
        for node in nodes:
            node.node.status.allocatable.clear()
            node.table.pods[node.row].clear()
        yield Reject(np.zeros(len(nodes), dtype=np.bool_), "never")


class WritesColumns(Plugin[Args]):
    """Writes into a column, which is read only."""

    @hookimpl
    def filter(self, nodes: NodeView) -> Iterator[Reject]:
        nodes.used("cpu")[0] += 1
        yield Reject(np.zeros(len(nodes), dtype=np.bool_), "never")


class NoHooks(Plugin[Args]):
    """Forgot @hookimpl."""

    def filter_node(self) -> None:
        return None


class Async(Plugin[Args]):
    """Hooks are plain functions."""

    @hookimpl
    async def filter_node(self) -> str | None:
        return None


class Misspelt(Plugin[Args]):
    """A hook that does not exist."""

    @hookimpl
    def filter_nodes(self) -> None:
        return None


class WrongArgument(Plugin[Args]):
    """An argument that the hook does not have."""

    @hookimpl
    def filter_node(self, pods: PodInfo) -> None:
        return None


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        (Async, "filter_node is async; hooks are plain functions"),
        (Misspelt, 'there is no hook "filter_nodes"; did you mean "filter_node"'),
        (WrongArgument, 'filter_node takes no argument "pods"; did you mean "pod"'),
        (Disagrees, "filter and filter_node disagree"),
        (LiesAboutPods, "an evaluation that was kept and one from scratch differ in scores"),
        (LiesAboutSign, "an evaluation that was kept and one from scratch differ in the nodes"),
        (TooHigh, "expected 0 to 100, or set normalize_scores"),
        (Meddles, "changes the snapshot"),
        (WritesColumns, "read-only"),
        (NoHooks, "implements no hook"),
    ],
)
def test_check_plugin_finds_what_is_wrong(plugin: type[Plugin[Any]], message: str) -> None:
    with pytest.raises(PluginCheckError, match=message):
        check_plugin(plugin)
