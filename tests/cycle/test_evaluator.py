"""Filter and Score for one pod over all nodes: what is called again, and what stays right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan import (
    SKIP,
    Args,
    NodeRow,
    NodeView,
    Normalize,
    Plugin,
    PodInfo,
    Reads,
    Refusal,
    Reject,
    hookimpl,
)
from bayplan.api import Node
from bayplan.cycle.evaluation import NOWHERE, Evaluation
from bayplan.cycle.evaluator import Evaluator, Trace
from bayplan.errors import PluginError
from bayplan.plugin.base import Skip
from bayplan.profiles.runtime import Runtime
from bayplan.snapshot import Snapshot
from bayplan.testing import check_plugin, make_node, make_pod


class World:
    """A snapshot with an evaluator of a few plugins, and the plain path beside it."""

    def __init__(self, *plugins: type[Plugin[Any]], nodes: Sequence[str] = ("a", "b")) -> None:
        self.snapshot = Snapshot()
        self.show(*(make_node(name) for name in nodes))
        made = {cls.__name__: cls(Args(), None) for cls in plugins}  # type: ignore[arg-type]
        self.runtime = Runtime.compiled(made, {})
        self.cached = Evaluator(self.runtime, self.snapshot)
        self.plain = Evaluator(self.runtime, self.snapshot, cached=False)

    def show(self, *nodes: Node) -> None:
        for node in nodes:
            self.snapshot.set_node(node)
        self.snapshot.sync()

    def place(self, name: str, node: str, **labels: str) -> None:
        self.snapshot.add_pod(PodInfo(make_pod(name, labels=labels)), node)

    def evaluate(self, pod: PodInfo) -> Evaluation:
        return self.cached.evaluate(pod)


def pod(name: str = "p", cpu: str = "1", **labels: str) -> PodInfo:
    return PodInfo(make_pod(name, cpu, labels=labels))


def unresolvable(found: Evaluation) -> list[bool]:
    """Return for each row whether no eviction could help there."""
    masks = [refusal.unresolvable for refusal in found.refusals()]
    return [any(mask[row] for mask in masks) for row in range(len(found.feasible))]


def answers(found: Evaluation) -> dict[str, object]:
    """Return everything that an evaluation says of the nodes."""
    return {
        "refusal": found.refusal,
        "feasible": found.feasible.tolist(),
        "total": found.total.tolist(),
        "best": found.best(),
        "unresolvable": unresolvable(found),
        "failure": None if found.failure is None else found.failure.rows.tolist(),
        "reasons": {
            (column.call.name, reason, resolvable): mask.tolist()
            for column in found.filters
            for (reason, resolvable), mask in column.refusals.items()
            if mask.any()
        },
    }


# Pods that do not concern a plugin ----------------------------------------------------------


class ForPorts(Plugin[Args]):
    """Has to do with pods that want a port, and refuses them everywhere."""

    reads = Reads.NODE
    asked: ClassVar[list[str]] = []

    @hookimpl
    def concerns(self, pod: PodInfo) -> bool:
        self.asked.append(f"concerns {pod.name}")
        return "port" in pod.labels

    @hookimpl
    def sign(self, pod: PodInfo) -> str:
        self.asked.append(f"sign {pod.name}")
        return pod.labels["port"]

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> list[Reject]:
        assert "port" in pod.labels
        return [Reject(np.full(len(nodes), pod.labels["port"] == "taken"), "port is taken")]


def test_a_plugin_is_asked_once_for_each_kind_of_pod_whether_it_is_concerned() -> None:
    ForPorts.asked.clear()
    world = World(ForPorts)
    for name, labels in (("a", {}), ("b", {}), ("c", {"port": "taken"}), ("d", {"port": "free"})):
        taken = labels.get("port") == "taken"
        assert world.evaluate(pod(name, **labels)).feasible.tolist() == [not taken] * 2
    assert ForPorts.asked == ["concerns a", "concerns c", "sign c", "sign d"]


def test_pods_of_other_specs_and_names_of_labels_are_of_another_kind() -> None:
    kinds = [pod("a"), pod("b"), pod("c", cpu="2"), pod("d", app="x"), pod("e", app="y")]
    a, b, c, d, e = (one.kind for one in kinds)
    assert a == b
    assert d == e
    assert len({a, c, d}) == 3


# A filter that cannot tell -----------------------------------------------------------------


class CannotTell(Plugin[Args]):
    """Cannot tell about the nodes that are labelled so."""

    reads = Reads.NODE

    @hookimpl
    def filter(self, nodes: NodeView) -> list[Reject]:
        return [Reject(nodes.has_label("odd"), "odd", resolvable=False, error=True)]


class OnlyGood(Plugin[Args]):
    """Refuses the nodes that are labelled so."""

    reads = Reads.NODE

    @hookimpl
    def filter(self, nodes: NodeView) -> list[Reject]:
        return [Reject(nodes.has_label("bad"), "bad")]


def feasible(*plugins: type[Plugin[Any]], many: int = 1, **labels: str) -> int:
    """Return how many nodes are feasible, of a few plain ones and one with labels."""
    world = World(*plugins, nodes=[f"n{index}" for index in range(many)])
    world.show(make_node("other", labels=labels))
    return int(np.count_nonzero(world.plain.evaluate(pod()).feasible))


def test_a_filter_that_cannot_tell_of_one_node_leaves_none() -> None:
    assert feasible(CannotTell, many=3) == 4
    assert feasible(CannotTell, many=3, odd="") == 0
    assert feasible(CannotTell, many=99, odd="") == 0


def test_it_is_not_asked_of_nodes_that_filters_before_refuse() -> None:
    assert feasible(OnlyGood, CannotTell, bad="", odd="") == 1
    assert feasible(CannotTell, OnlyGood, bad="", odd="") == 0


def test_enough_feasible_nodes_keep_kubernetes_from_asking() -> None:
    assert feasible(CannotTell, many=100, odd="") == 100


class CannotTellOfFirst(Plugin[Args]):
    """Cannot tell about the first node."""

    reads = Reads.NODE

    @hookimpl
    def filter(self, nodes: NodeView) -> list[Reject]:
        first = np.array([node.row == 0 for node in nodes], dtype=np.bool_)
        return [Reject(first, "first", resolvable=False, error=True)]

    @hookimpl
    def filter_node(self, node: NodeRow) -> Refusal | None:
        return Refusal(("first",), False, error=True) if node.row == 0 else None


def test_the_spellings_of_a_filter_that_cannot_tell_agree() -> None:
    check_plugin(CannotTellOfFirst)


# What is called again --------------------------------------------------------------------------


class Watched(Plugin[Args]):
    """Notes which nodes its hooks are called for; takes all, and scores by pods on the node."""

    asked: list[str] = []

    @hookimpl
    def sign(self, pod: PodInfo) -> object:
        return pod.labels.get("app")


class PerNode(Watched):
    """The spelling for one node."""

    @hookimpl
    def filter_node(self, node: NodeRow) -> str | None:
        self.asked.append(f"filter {node.name}")
        return "busy" if any(pod.name == "full" for pod in node.pods.values()) else None

    @hookimpl
    def score_node(self, node: NodeRow) -> float:
        self.asked.append(f"score {node.name}")
        return 10.0 * len(node.pods)


class Columns(Watched):
    """The spelling over columns."""

    @hookimpl
    def filter(self, nodes: NodeView) -> Iterable[Reject]:
        self.asked.append(f"filter {' '.join(nodes.names)}")
        yield Reject(np.zeros(len(nodes), dtype=np.bool_), "never")

    @hookimpl
    def score(self, nodes: NodeView) -> Any:
        self.asked.append(f"score {' '.join(nodes.names)}")
        return np.array([10.0 * len(node.pods) for node in nodes])


def watched(base: type[Watched], reads: Reads) -> type[Watched]:
    return type(base.__name__, (base,), {"asked": [], "reads": reads})


def asked_again(base: type[Watched], reads: Reads, change: str) -> list[str]:
    """Return which calls the second pod of a signature costs, after a change of node "b"."""
    plugin = watched(base, reads)
    world = World(plugin)
    world.evaluate(pod("first"))
    del plugin.asked[:]
    if change == "pods":
        world.place("other", "b")
    elif change == "node":
        world.show(make_node("b", labels={"disk": "ssd"}))
    found = world.evaluate(pod("second"))
    asked = list(plugin.asked)
    assert answers(found) == answers(world.plain.evaluate(pod("second")))
    return asked


BOTH = pytest.mark.parametrize("base", [PerNode, Columns])
ALL = {
    PerNode: ["filter a", "filter b", "score a", "score b"],
    Columns: ["filter a b", "score a b"],
}


@BOTH
@pytest.mark.parametrize("reads", [Reads.NODE, Reads.PODS, Reads.CLUSTER])
def test_pods_of_one_signature_are_evaluated_once_while_nothing_changes(
    base: type[Watched], reads: Reads
) -> None:
    assert asked_again(base, reads, "nothing") == []


@BOTH
def test_a_plugin_that_reads_nodes_is_not_asked_when_pods_change(base: type[Watched]) -> None:
    plugin = watched(base, Reads.NODE)
    world = World(plugin)
    world.evaluate(pod())
    del plugin.asked[:]
    world.place("other", "b")
    world.evaluate(pod())
    assert plugin.asked == []


@BOTH
def test_a_plugin_that_reads_pods_is_asked_for_the_changed_nodes_only(
    base: type[Watched],
) -> None:
    assert asked_again(base, Reads.PODS, "pods") == ["filter b", "score b"]


@BOTH
def test_a_plugin_that_reads_the_cluster_is_asked_for_all_nodes(base: type[Watched]) -> None:
    assert asked_again(base, Reads.CLUSTER, "pods") == ALL[base]


@BOTH
@pytest.mark.parametrize("reads", [Reads.NODE, Reads.PODS, Reads.CLUSTER])
def test_every_plugin_is_asked_for_all_nodes_when_a_node_changes(
    base: type[Watched], reads: Reads
) -> None:
    assert asked_again(base, reads, "node") == ALL[base]


def test_pods_of_different_signatures_are_evaluated_apart() -> None:
    plugin = watched(PerNode, Reads.PODS)
    world = World(plugin)
    world.evaluate(pod(app="web"))
    world.evaluate(pod(app="db"))
    assert len(plugin.asked) == 8


def test_pods_of_equal_spec_share_where_a_plugin_looks_at_nothing_else() -> None:
    asked: list[str] = []

    class BySpec(Plugin[Args]):
        """Notes for which pods it is asked."""

        reads = Reads.NODE
        by_spec = True

        @hookimpl
        def score_node(self, pod: PodInfo, node: NodeRow) -> float:
            asked.append(f"{pod.key} {node.name}")
            return 0.0

    world = World(BySpec)
    for one in (pod("p", app="web"), pod("q", app="db"), pod("r", cpu="2")):
        world.evaluate(one)
    assert asked == ["default/p a", "default/p b", "default/r a", "default/r b"]


def test_nothing_is_kept_while_a_plugin_that_is_asked_does_not_sign() -> None:
    class Unsigned(Plugin[Args]):
        """Scores without a signature."""

        @hookimpl
        def score_node(self, node: NodeRow) -> float:
            return 0.0

    plugin = watched(PerNode, Reads.PODS)
    world = World(plugin, Unsigned)
    world.evaluate(pod())
    world.evaluate(pod())
    assert len(plugin.asked) == 8


def test_the_plain_path_keeps_nothing() -> None:
    plugin = watched(PerNode, Reads.PODS)
    world = World(plugin)
    world.plain.evaluate(pod())
    world.plain.evaluate(pod())
    assert len(plugin.asked) == 8


def test_a_node_that_becomes_feasible_is_scored() -> None:
    world = World(watched(PerNode, Reads.PODS))
    world.place("other", "b")
    world.place("full", "a")
    first = world.evaluate(pod())
    assert (first.feasible.tolist(), first.total.tolist()) == ([False, True], [NOWHERE, 10.0])
    world.snapshot.remove_pod("default/full")
    second = world.evaluate(pod())
    assert (second.feasible.tolist(), second.total.tolist()) == ([True, True], [0.0, 10.0])


def test_an_evaluation_is_of_the_pod_that_asked_for_it() -> None:
    world = World(watched(PerNode, Reads.PODS))
    assert world.evaluate(pod("first")).describe(["a", "b"], False).pod == "default/first"
    assert world.evaluate(pod("second")).describe(["a", "b"], False).pod == "default/second"


# Both spellings, and skipping ------------------------------------------------------------------


def test_nodes_that_a_column_refuses_get_no_call_of_their_own() -> None:
    class OnlyB(Plugin[Args]):
        """Refuses the node "a"."""

        reads = Reads.NODE

        @hookimpl
        def sign(self) -> object:
            return None

        @hookimpl
        def filter(self, nodes: NodeView) -> list[Reject]:
            return [Reject(np.array([name == "a" for name in nodes.names]), "no", resolvable=False)]

    plugin = watched(PerNode, Reads.PODS)
    found = World(plugin, OnlyB).evaluate(pod())
    assert plugin.asked == ["filter b", "score b"]
    assert unresolvable(found) == [True, False]
    assert found.best() == 1


def test_a_plugin_with_both_spellings_is_asked_over_columns_first_and_by_row_later() -> None:
    class Twice(Watched):
        """Both spellings."""

        reads = Reads.PODS
        asked: list[str] = []

        @hookimpl
        def filter(self, nodes: NodeView) -> Iterable[Reject]:
            self.asked.append("columns")
            yield Reject(np.array([bool(node.pods) for node in nodes]), "busy")

        @hookimpl
        def filter_node(self, node: NodeRow) -> str | None:
            self.asked.append(f"row {node.name}")
            return "busy" if node.pods else None

    world = World(Twice)
    world.evaluate(pod())
    world.place("other", "b")
    found = world.evaluate(pod())
    assert Twice.asked == ["columns", "row b"]
    assert found.feasible.tolist() == [True, False]


class Choosy(Plugin[Args]):
    """Skips, refuses or goes on in ``pre_filter`` and ``pre_score``, as its label "app" says."""

    reads = Reads.NODE
    asked: list[str] = []

    @hookimpl
    def sign(self, pod: PodInfo) -> object:
        return pod.labels.get("app")

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> Skip | str | None:
        app = pod.labels["app"]
        return SKIP if app == "no-filter" else "never" if app == "refused" else None

    @hookimpl
    def filter_node(self, node: NodeRow) -> str | None:
        self.asked.append("filter")
        return "odd" if node.name == "a" else None

    @hookimpl
    def pre_score(self, pod: PodInfo) -> Skip | None:
        return SKIP if pod.labels["app"] == "no-score" else None

    @hookimpl
    def score_node(self, node: NodeRow) -> float:
        self.asked.append("score")
        return 5.0


@pytest.mark.parametrize(
    ("app", "asked", "total"),
    [
        ("web", ["filter", "filter", "score"], [NOWHERE, 5.0]),
        ("no-filter", ["score", "score"], [5.0, 5.0]),
        ("no-score", ["filter", "filter"], [NOWHERE, 0.0]),
    ],
)
def test_a_plugin_that_skips_is_not_asked(app: str, asked: list[str], total: list[float]) -> None:
    plugin = type("Choosy", (Choosy,), {"asked": []})
    found = World(plugin).evaluate(pod(app=app))
    assert plugin.asked == asked
    assert found.total.tolist() == total


def test_a_refusal_in_pre_filter_is_one_of_all_nodes() -> None:
    plugin = type("Choosy", (Choosy,), {"asked": []})
    world = World(plugin)
    for name in ("first", "second"):
        found = world.evaluate(pod(name, app="refused"))
        assert found.refusal == ("Choosy", "never")
        assert found.best() is None
        assert unresolvable(found) == [True, True]
    assert plugin.asked == []
    world.place("other", "a")
    assert world.evaluate(pod(app="refused")).refusal == ("Choosy", "never")


def test_a_plugin_of_the_cluster_that_stops_skipping_is_asked() -> None:
    class Late(Plugin[Args]):
        """Has something to say once there is a pod."""

        @hookimpl
        def sign(self) -> object:
            return None

        @hookimpl
        def pre_filter(self, nodes: NodeView) -> Skip | None:
            return None if any(node.pods for node in nodes) else SKIP

        @hookimpl
        def filter(self, nodes: NodeView) -> Iterable[Reject]:
            yield Reject(np.ones(len(nodes), dtype=np.bool_), "occupied")

    world = World(Late)
    assert world.evaluate(pod()).feasible.tolist() == [True, True]
    world.place("other", "a")
    assert world.evaluate(pod()).feasible.tolist() == [False, False]
    world.snapshot.remove_pod("default/other")
    assert world.evaluate(pod()).feasible.tolist() == [True, True]


# Plugins that fail -----------------------------------------------------------------------------


@pytest.mark.parametrize("hook", ["filter_node", "score_node"])
def test_a_plugin_that_raises_leaves_nothing_half_done(hook: str) -> None:
    broken: set[str] = set()

    def call(self: Any, node: NodeRow) -> Any:
        if node.name in broken:
            raise ValueError("boo")
        if hook == "score_node":
            return 10.0 * len(node.pods)
        return "busy" if node.pods else None

    content = {"reads": Reads.PODS, hook: hookimpl(call), "__doc__": "Raises for broken nodes."}
    first = watched(PerNode, Reads.PODS)
    world = World(first, type("Raises", (Watched,), {"asked": [], **content}))
    world.evaluate(pod())
    for name in ("a", "b"):
        world.place(f"other-{name}", name)
    broken.add("b")
    with pytest.raises(PluginError, match=f'"Raises" failed in {hook}: ValueError: boo'):
        world.evaluate(pod())
    with pytest.raises(PluginError):
        world.evaluate(pod())
    broken.clear()
    assert answers(world.evaluate(pod())) == answers(world.plain.evaluate(pod()))


def test_a_score_that_goes_out_of_range_names_plugin_and_node() -> None:
    plugin = watched(PerNode, Reads.PODS)
    world = World(plugin)
    world.evaluate(pod())
    for index in range(11):
        world.place(f"other-{index}", "b")
    with pytest.raises(PluginError, match=r'"PerNode" failed in score_node: .*110.*b'):
        world.evaluate(pod())
    world.snapshot.remove_pod("default/other-0")
    assert world.evaluate(pod()).total.tolist() == [0.0, 100.0]


def test_a_signature_that_cannot_be_hashed_is_the_plugins_error() -> None:
    class Listed(Plugin[Args]):
        """Signs with a list."""

        @hookimpl
        def sign(self, pod: PodInfo) -> Any:
            return ["a"]

    with pytest.raises(PluginError, match='"Listed" failed in sign: TypeError: unhashable'):
        World(Listed).evaluate(pod())


# Trace -----------------------------------------------------------------------------------------


def test_a_traced_pod_is_logged_hook_by_hook() -> None:
    lines: list[str] = []
    plugin = type("Choosy", (Choosy,), {"asked": []})
    world = World(plugin)
    traced = Evaluator(world.runtime, world.snapshot, trace=Trace("default/p", lines.append))
    found = traced.evaluate(pod(app="web"))
    assert answers(found) == answers(world.plain.evaluate(pod(app="web")))
    assert lines[0] == "trace default/p: 2 nodes, 1 feasible"
    assert [line.split()[:2] for line in lines[1:]] == [
        ["pre_filter", "Choosy"],
        ["filter_node", "Choosy"],
        ["pre_score", "Choosy"],
        ["score_node", "Choosy"],
    ]
    assert lines[2].endswith("refuses 1 nodes")
    assert all(" us" in line for line in lines[1:])


def test_other_pods_are_not_logged() -> None:
    lines: list[str] = []
    world = World(watched(PerNode, Reads.PODS))
    traced = Evaluator(world.runtime, world.snapshot, trace=Trace("default/p", lines.append))
    traced.evaluate(pod("other"))
    assert lines == []


# The cached path is the plain path -------------------------------------------------------------


class Signed(Plugin[Args]):
    """Answers depend on the pod's label "app" and its CPU."""

    @hookimpl
    def sign(self, pod: PodInfo) -> object:
        return pod.labels.get("app"), pod.requests.get("cpu")


def same_app(pod: PodInfo, node: NodeRow) -> int:
    return sum(other.labels.get("app") == pod.labels.get("app") for other in node.pods.values())


class Disk(Signed):
    """By the node alone; pods of "db" need an SSD, and like a fast one."""

    reads = Reads.NODE

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> Skip | None:
        return None if pod.labels["app"] == "db" else SKIP

    @hookimpl
    def filter_node(self, node: NodeRow) -> str | None:
        return None if node.labels.get("disk") == "ssd" else "no ssd"

    @hookimpl
    def score(self, nodes: NodeView) -> Any:
        return 50.0 * nodes.has_label("disk")


class Room(Signed):
    """By nodes and their pods, over columns; the larger the rest the better."""

    reads = Reads.NODE | Reads.PODS
    normalize_scores = Normalize.MAX

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> list[Reject]:
        cpu = pod.requests["cpu"]
        return [
            Reject(nodes.allocatable("cpu") < cpu, "small", resolvable=False),
            Reject(nodes.free("cpu") < cpu, "full"),
        ]

    @hookimpl
    def score(self, nodes: NodeView) -> Any:
        return np.maximum(nodes.free("cpu"), 0)


class Apart(Signed):
    """By the pods on a node, row by row; few of an app, and few of it are better."""

    reads = Reads.PODS
    normalize_scores = Normalize.MAX_REVERSED

    @hookimpl
    def filter_node(self, pod: PodInfo, node: NodeRow) -> str | None:
        return "enough" if same_app(pod, node) >= 2 else None

    @hookimpl
    def score_node(self, pod: PodInfo, node: NodeRow) -> float:
        return same_app(pod, node)


class Ranked(Signed):
    """Normalised by a hook of its own, which sees feasible nodes only."""

    reads = Reads.PODS
    normalize_scores = Normalize.HOOK

    @hookimpl
    def score(self, nodes: NodeView) -> Any:
        return np.array([len(node.pods) for node in nodes])

    @hookimpl
    def normalize(self, scores: Any) -> Any:
        return 100.0 * np.argsort(np.argsort(scores, kind="stable")) / len(scores)


class Zone(Signed):
    """By pods on other nodes, over columns: at most three of an app in a zone."""

    reads = Reads.CLUSTER
    normalize_scores = Normalize.MAX

    def count(self, pod: PodInfo, nodes: NodeView) -> Any:
        found: dict[str | None, int] = {}
        for node in nodes.all():
            zone = node.labels.get("zone")
            found[zone] = found.get(zone, 0) + same_app(pod, node)
        return np.array([found[node.labels.get("zone")] for node in nodes])

    @hookimpl
    def pre_filter(self, pod: PodInfo, nodes: NodeView) -> Skip | None:
        return None if any(same_app(pod, node) for node in nodes) else SKIP

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> list[Reject]:
        return [Reject(self.count(pod, nodes) >= 3, "zone full")]

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> Any:
        return self.count(pod, nodes)


class Busiest(Signed):
    """By pods on other nodes, row by row: not the node with the most pods."""

    reads = Reads.CLUSTER

    @hookimpl
    def filter_node(self, node: NodeRow) -> str | None:
        most = max(len(pods) for pods in node.table.pods)
        return "busiest" if most > 1 and len(node.pods) == most else None

    @hookimpl
    def score_node(self, node: NodeRow) -> float:
        return 100.0 / (1 + sum(len(pods) for pods in node.table.pods))


class Unsure(Signed):
    """By the pods on a node, row by row: cannot tell where there is one of the app."""

    reads = Reads.PODS

    @hookimpl
    def filter_node(self, pod: PodInfo, node: NodeRow) -> Refusal | None:
        unsure = Refusal(("unsure",), resolvable=False, error=True)
        return unsure if same_app(pod, node) == 1 else None


class UnsureColumns(Signed):
    """By the pods on the nodes, over columns: cannot tell where there are two of the app."""

    reads = Reads.PODS

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> list[Reject]:
        some = np.array([same_app(pod, node) == 2 for node in nodes], dtype=np.bool_)
        return [Reject(some, "unsure", resolvable=False, error=True)]


ZOO = [Disk, Room, Apart, Ranked, Zone, Busiest, Unsure, UnsureColumns]
NAMES = st.sampled_from(["n0", "n1", "n2", "n3", "n4"])
CHANGES = st.one_of(
    st.tuples(st.just("place"), NAMES, st.sampled_from(["web", "db"])),
    st.tuples(st.just("remove"), st.integers(0, 20), st.none()),
    st.tuples(st.just("node"), NAMES, st.tuples(st.sampled_from([2, 4]), st.booleans())),
    st.tuples(st.just("delete"), NAMES, st.none()),
    st.tuples(st.just("undo"), NAMES, st.sampled_from(["web", "db"])),
    st.tuples(st.just("evaluate"), st.sampled_from(["1", "3"]), st.sampled_from(["web", "db"])),
)


def changed_node(name: str, cpu: int, ssd: bool) -> Node:
    labels = {"zone": "even" if int(name[1:]) % 2 else "odd", **({"disk": "ssd"} if ssd else {})}
    return make_node(name, cpu=cpu, labels=labels)


@settings(max_examples=60)
@given(
    plugins=st.lists(st.sampled_from(ZOO), min_size=1, unique=True),
    changes=st.lists(CHANGES, min_size=4, max_size=25),
)
def test_a_cached_evaluation_is_what_a_fresh_one_would_be(
    plugins: list[type[Plugin[Any]]], changes: list[tuple[str, Any, Any]]
) -> None:
    world = World(*plugins, nodes=())
    world.show(*(changed_node(f"n{index}", 4, index > 1) for index in range(4)))
    placed = 0

    def check(cpu: str, app: str) -> None:
        wanted = pod("p", cpu, app=app)
        assert answers(world.evaluate(wanted)) == answers(world.plain.evaluate(wanted))

    for kind, what, how in changes:
        if kind == "place":
            world.place(f"placed-{placed}", what, app=how)
            placed += 1
        elif kind == "remove":
            world.snapshot.remove_pod(f"default/placed-{what}")
        elif kind == "node":
            world.show(changed_node(what, *how))
        elif kind == "delete":
            world.snapshot.delete_node(what)
            world.snapshot.sync()
        elif kind == "undo":
            with world.snapshot.trial():
                world.place("tried", what, app=how)
                check("1", how)
        else:
            check(what, how)
    for app in ("web", "db"):
        check("1", app)
