"""Scores that do not come to 0..100 are an error of their plugin, as in kube-scheduler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bayplan import Args, NodeRow, NodeView, Normalize, Plugin, PodInfo, Reads, hookimpl
from bayplan.testing import Cluster, assert_pending, assert_placed, make_node, make_pod

SCORE = "example.com/score"


def nodes(*scores: object) -> list[Any]:
    """Return nodes called a, b, ... that score what they are labelled with."""
    return [
        make_node(name, labels={SCORE: str(score)})
        for name, score in zip("abcdef", scores, strict=False)
    ]


class Columns(Plugin[Args]):
    """Scores nodes by label, as columns; refuses those that are labelled refused."""

    reads = Reads.NODE
    factor = 1.0

    @hookimpl
    def sign(self, pod: PodInfo) -> object:
        return pod.facts

    @hookimpl
    def score(self, nodes: NodeView) -> Any:
        return np.array([self.factor * float(node.labels[SCORE]) for node in nodes])


class Single(Plugin[Args]):
    """Scores nodes by label, one at a time."""

    reads = Reads.NODE

    @hookimpl
    def sign(self, pod: PodInfo) -> object:
        return pod.facts

    @hookimpl
    def score_node(self, node: NodeRow) -> float:
        return float(node.labels[SCORE])


def kind(base: type[Plugin[Any]], normalize: Normalize) -> type[Plugin[Any]]:
    """Return the plugin with a way to normalise; as hook, one that leaves scores as they are."""

    def given(self: Any, scores: Any) -> Any:
        return scores

    more = {"normalize": hookimpl(given)} if normalize is Normalize.HOOK else {}
    return type("Mine", (base,), {"normalize_scores": normalize, **more})


@pytest.mark.parametrize("base", [Columns, Single])
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize(
    ("normalize", "score", "hook", "message"),
    [
        (Normalize.NONE, 101, "", "score 101 of node b is not in 0..100; set normalize_scores"),
        (Normalize.NONE, -1, "", "score -1 of node b is not in 0..100"),
        (Normalize.HOOK, 101, "normalize", "score 101 of node b is not in 0..100"),
        (Normalize.MAX, -1, "", "score -1 of node b is negative"),
        (Normalize.MAX_REVERSED, -1, "", "score -1 of node b is negative"),
    ],
)
def test_a_score_out_of_range_is_the_plugins_error(
    base: type[Plugin[Any]],
    cached: bool,
    normalize: Normalize,
    score: float,
    hook: str,
    message: str,
) -> None:
    cluster = Cluster(nodes(50, score), plugins=[kind(base, normalize)], cached=cached)
    cluster.add(make_pod("p"))
    spelling = hook or ("score" if base is Columns else "score_node")
    assert_pending(cluster, "p", f'plugin "Mine" failed in {spelling}: ValueError: {message}')


@pytest.mark.parametrize("base", [Columns, Single])
@pytest.mark.parametrize("normalize", [Normalize.MAX, Normalize.MAX_REVERSED])
def test_what_the_framework_normalises_may_be_large(
    base: type[Plugin[Any]], normalize: Normalize
) -> None:
    cluster = Cluster(nodes(50, 5000), plugins=[kind(base, normalize)])
    assert_placed_one(cluster)


def assert_placed_one(cluster: Cluster) -> None:
    cluster.add(make_pod("p"))
    assert set(cluster.schedule()) == {"p"}


@pytest.mark.parametrize("normalize", list(Normalize))
def test_the_bounds_themselves_are_fine(normalize: Normalize) -> None:
    assert_placed_one(Cluster(nodes(0, 100), plugins=[kind(Columns, normalize)]))


def test_what_a_node_scores_that_cannot_take_the_pod_does_not_count() -> None:
    full = make_node("full", cpu=0, labels={SCORE: "500"})
    cluster = Cluster([*nodes(50), full], plugins=[Columns])
    cluster.add(make_pod("p"), make_pod("q"))
    assert_placed(cluster, p="a", q="a")


@pytest.mark.parametrize("base", [Columns, Single])
def test_a_score_that_goes_out_of_range_later_is_found(base: type[Plugin[Any]]) -> None:
    class ByPods(base):  # type: ignore[misc, valid-type]
        """Scores by the pods on a node."""

        reads = Reads.NODE | Reads.PODS

        if base is Columns:

            @hookimpl
            def score(self, nodes: NodeView) -> Any:
                return 60.0 * nodes.used("pods")

        else:

            @hookimpl
            def score_node(self, node: NodeRow) -> float:
                return 60.0 * node.used("pods")

    cluster = Cluster(nodes(*[1] * 6), plugins=[ByPods])
    assert_placed_one(cluster)
    cluster.add(make_pod("filler", node="a"))
    cluster.add(make_pod("q"))
    assert_pending(cluster, "q", 'plugin "ByPods" failed in score', "of node a is not in 0..100")


def test_a_node_that_comes_free_brings_its_wrong_score() -> None:
    cluster = Cluster(
        [*nodes(50, 60, 70), make_node("d", cpu=1, labels={SCORE: "500"})], plugins=[Columns]
    )
    cluster.add(make_pod("blocker", "1", None, node="d"), make_pod("p"))
    assert set(cluster.schedule()) == {"blocker", "p"}
    cluster.remove("blocker")
    cluster.add(make_pod("q"))
    assert_pending(cluster, "q", "score 500 of node d is not in 0..100")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda size: np.full(size, np.nan), "a score is not a finite number"),
        (lambda size: np.full(size, np.inf), "a score is not a finite number"),
        (lambda size: np.array([-np.inf, *[0.0] * (size - 1)]), "a score is not a finite number"),
        (lambda size: np.zeros(size - 1), "expected 2 scores, got shape (1,)"),
        (lambda size: np.zeros((size, 1)), "expected 2 scores, got shape (2, 1)"),
        (lambda size: 3.0, "expected 2 scores, got shape ()"),
        (lambda size: None, "expected 2 scores, got shape ()"),
        (lambda size: ["1"] * size, "expected 2 scores, got <U1"),
        (lambda size: [None] * size, "expected 2 scores, got object"),
        (lambda size: np.zeros(size, dtype=np.complex128), "expected 2 scores, got complex128"),
    ],
)
def test_an_answer_that_is_no_column_of_numbers_is_named(answer: Any, message: str) -> None:
    class Wrong(Plugin[Args]):
        """Scores nonsense."""

        @hookimpl
        def score(self, nodes: NodeView) -> Any:
            return answer(len(nodes))

    cluster = Cluster(nodes(1, 1), plugins=[Wrong])
    cluster.add(make_pod("p"))
    assert_pending(cluster, "p", f'plugin "Wrong" failed in score: ValueError: {message}')


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.float32, np.bool_])
def test_any_real_numbers_will_do(dtype: Any) -> None:
    class Right(Plugin[Args]):
        """Scores with another type of number."""

        @hookimpl
        def score(self, nodes: NodeView) -> Any:
            return np.arange(len(nodes)).astype(dtype)

    cluster = Cluster(nodes(1, 1), plugins=[Right])
    cluster.add(make_pod("p"))
    assert_placed(cluster, p="b")
