"""Every in-tree plugin keeps the contract that authors are held to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from bayplan import (
    NOTES,
    Args,
    CycleState,
    NodeRow,
    NodeView,
    Plugin,
    PodInfo,
    Reads,
    Reject,
    StateKey,
    hookimpl,
)
from bayplan.api import Toleration
from bayplan.profiles.finder import PluginFinder
from bayplan.testing import Cluster, PluginCheckError, check_plugin, make_node
from bayplan_plugins.pod_topology_spread import ELIGIBLE

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


@pytest.mark.parametrize("name", sorted(PluginFinder().entry_points))
def test_every_in_tree_plugin_says_by_what_it_tells_pods_apart(name: str) -> None:
    cluster = Cluster([make_node("n1")], plugins=[name])
    runtime = cluster.profile.runtime
    assert runtime.refusing_signs is not None, "equal jobs of a queue are tried one by one"
    assert runtime.signs_of(("pre_score", "score", "score_node")) is not None


def test_every_plugin_can_be_imported_on_its_own() -> None:
    modules = {PluginFinder().find(name).__module__ for name in PluginFinder().entry_points}
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    for loaded in [m for m in sys.modules if m.startswith('bayplan_plugins')]:\n"
        "        del sys.modules[loaded]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *sorted(modules)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


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


class ReadsLabels(Plugin[Args]):
    """Says that the spec is all that counts, and keeps tenants apart by a label."""

    reads = Reads.PODS
    by_spec = True

    @hookimpl
    def filter_node(self, pod: PodInfo, node: NodeRow) -> str | None:
        mine = pod.labels.get("tenant") or pod.namespace
        others = (other.labels.get("tenant") or other.namespace for other in node.pods.values())
        return None if all(other == mine for other in others) else "other tenants"


class ReadsAnnotations(Plugin[Args]):
    """Says that the spec is all that counts, and scores by one value of an annotation."""

    reads = Reads.NODE
    by_spec = True

    @hookimpl
    def score_node(self, pod: PodInfo, node: NodeRow) -> float:
        return 100.0 if pod.annotations.get("nice") == "very" and node.row else 0.0


class ReadsNamespace(Plugin[Args]):
    """Says that the spec is all that counts, and looks at the namespace."""

    reads = Reads.NODE
    by_spec = True

    @hookimpl
    def filter_node(self, pod: PodInfo, node: NodeRow) -> str | None:
        return "not here" if node.row and pod.namespace != "default" else None


class SignsTooLittle(Plugin[Args]):
    """Signs one label, and counts the pods that are alike in two."""

    reads = Reads.PODS

    @hookimpl
    def sign(self, pod: PodInfo) -> object:
        return pod.labels.get("team")

    @hookimpl
    def score_node(self, pod: PodInfo, node: NodeRow) -> float:
        both = (pod.labels.get("team"), pod.labels.get("tier"))
        if both[1] is None:
            return 0.0
        alike = [
            p for p in node.pods.values() if (p.labels.get("team"), p.labels.get("tier")) == both
        ]
        return float(len(alike))


class SignsWhatItReads(Plugin[Args]):
    """Looks at one label or the namespace, and signs that."""

    reads = Reads.PODS

    @hookimpl
    def sign(self, pod: PodInfo) -> object:
        return pod.labels.get("tenant") or pod.namespace

    filter_node = ReadsLabels.filter_node


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
        (
            LiesAboutSign,
            r"share answers \(equal spec and sign, different names\) differ in the nodes",
        ),
        (ReadsLabels, 'filter_node reads the label "tenant" of a pod, but by_spec = True says'),
        (ReadsAnnotations, 'score_node reads the annotation "nice" of a pod, but by_spec = True'),
        (ReadsNamespace, r"share answers \(equal spec, different namespaces\) differ in the nodes"),
        (SignsTooLittle, r'share answers \(equal spec and sign, different labels "tier"\) differ'),
        (TooHigh, r"score 8000 of node node-\d+ is not in 0..100; set normalize_scores"),
        (Meddles, "Meddles: filter changes the pods on nodes, the status of node node-0"),
        (WritesColumns, "read-only"),
        (NoHooks, "implements no hook"),
    ],
)
def test_check_plugin_finds_what_is_wrong(plugin: type[Plugin[Any]], message: str) -> None:
    with pytest.raises(PluginCheckError, match=message):
        check_plugin(plugin)


def test_a_plugin_may_read_what_it_signs() -> None:
    check_plugin(SignsWhatItReads)


def filters(change: Callable[[PodInfo, NodeView], object]) -> type[Plugin[Any]]:
    """Return a plugin that changes something in each of its filter calls, and refuses nothing."""

    class Changes(Plugin[Args]):
        """Changes what it is given."""

        @hookimpl
        def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
            change(pod, nodes)
            yield Reject(np.zeros(len(nodes), dtype=np.bool_), "never")

    return Changes


def first(nodes: NodeView) -> Any:
    return next(iter(nodes))


def tolerate(pod: PodInfo) -> None:
    spec = replace(pod.spec, tolerations=(Toleration(operator="Exists"),))
    pod.pod = replace(pod.pod, spec=spec)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda pod, nodes: pod.pod.metadata.labels.update(mine="yes"), "the labels of pod"),
        (lambda pod, nodes: pod.pod.metadata.annotations.update(a="b"), "the annotations of pod"),
        (lambda pod, nodes: tolerate(pod), "the spec of pod"),
        (lambda pod, nodes: setattr(pod, "priority", 7), "what is derived of pod"),
        (lambda pod, nodes: setattr(pod, "labels", {"mine": "yes"}), "the labels of pod"),
        (lambda pod, nodes: first(nodes).node.metadata.labels.pop("disk", 0), "the labels of node"),
        (
            lambda pod, nodes: first(nodes).node.metadata.annotations.update(a="b"),
            "the annotations of node",
        ),
        (lambda pod, nodes: first(nodes).node.status.allocatable.clear(), "the status of node"),
        (lambda pod, nodes: nodes.table.names.reverse(), "the names of the nodes"),
        (lambda pod, nodes: nodes.table.taint_sets.pop(), "the sets of taints"),
        (
            lambda pod, nodes: nodes.table.used_columns["cpu"].__iadd__(1),
            "the column of used cpu",
        ),
        (
            lambda pod, nodes: np.logical_not(
                nodes.table.unschedulable, out=nodes.table.unschedulable
            ),
            "the column of cordoned nodes",
        ),
    ],
)
def test_check_plugin_names_what_a_plugin_changes(
    change: Callable[[PodInfo, NodeView], object], what: str
) -> None:
    with pytest.raises(PluginCheckError, match=f"Changes: filter changes .*{what}"):
        check_plugin(filters(change))


@pytest.mark.parametrize(
    "change",
    [
        lambda pod, nodes: pod.labels.update(mine="yes"),
        lambda pod, nodes: pod.annotations.update(mine="yes"),
        lambda pod, nodes: pod.requests.update(cpu=0),
        lambda pod, nodes: first(nodes).labels.update(mine="yes"),
        lambda pod, nodes: first(nodes).annotations.update(mine="yes"),
        lambda pod, nodes: first(nodes).pods.clear(),
        lambda pod, nodes: nodes.used("cpu").fill(0),
        lambda pod, nodes: nodes.unschedulable.fill(True),
        lambda pod, nodes: nodes.taint_codes.fill(0),
        lambda pod, nodes: nodes.label("disk").codes.fill(0),
        lambda pod, nodes: nodes.label("disk").values.append("new"),
        lambda pod, nodes: nodes.image_size("x").fill(7),
    ],
)
def test_what_a_plugin_is_given_is_read_only(
    change: Callable[[PodInfo, NodeView], object],
) -> None:
    message = "failed in filter: (AttributeError|TypeError|ValueError): .*(read-only|no attribute)"
    with pytest.raises(PluginCheckError, match=message):
        check_plugin(filters(change))


@pytest.mark.parametrize(
    "hook", ["pre_enqueue", "slots", "permit", "pre_bind", "bind", "post_bind", "requeue_hint"]
)
def test_check_plugin_looks_at_every_hook(hook: str) -> None:
    def meddle(self: Any, pod: PodInfo) -> Any:
        pod.pod.metadata.labels["mine"] = "yes"
        answers = {"slots": np.full(12, 5), "requeue_hint": True}
        return answers.get(hook)

    plugin = type("Changes", (Plugin,), {hook: hookimpl(meddle), "__doc__": "Changes labels."})
    with pytest.raises(PluginCheckError, match=f"Changes: {hook} changes the labels of pod"):
        check_plugin(plugin)


class TakesForGood(Plugin[Args]):
    """Marks nodes in reserve, and forgets to undo that."""

    @hookimpl
    def reserve(self, node: NodeRow) -> None:
        node.node.metadata.annotations["taken"] = "yes"

    @hookimpl
    def unreserve(self) -> None:
        """Forget it."""


def test_unreserve_has_to_undo_reserve() -> None:
    message = "unreserve does not undo reserve, which changes the annotations of node"
    with pytest.raises(PluginCheckError, match=message):
        check_plugin(TakesForGood)


@pytest.mark.parametrize("in_place", [True, False])
def test_check_plugin_guards_the_state_of_other_plugins(in_place: bool) -> None:
    class Intrudes(Plugin[Args]):
        """Changes what the plugin for spreading has written."""

        @hookimpl
        def pre_score(self, state: CycleState) -> None:
            if ELIGIBLE in state:
                if in_place:
                    state[ELIGIBLE].clear()
                else:
                    state[ELIGIBLE] = {}

    message = "Intrudes: pre_score changes .*spread.eligible.* of another plugin"
    with pytest.raises(PluginCheckError, match=message):
        check_plugin(Intrudes)


class Remembers(Plugin[Args]):
    """Writes to the cycle's state what is its own, and changes it."""

    SEEN: StateKey[list[int]] = StateKey("seen", copy=list)

    @hookimpl
    def pre_filter(self, nodes: NodeView, state: CycleState) -> None:
        state[self.SEEN] = [len(nodes)]
        state[NOTES] = ("seen",)

    @hookimpl
    def score(self, nodes: NodeView, state: CycleState) -> Any:
        state[self.SEEN].append(len(nodes))
        return np.zeros(len(nodes))


def test_a_plugin_may_change_its_own_state() -> None:
    check_plugin(Remembers)
