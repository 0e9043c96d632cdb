"""What a plugin raises is told with plugin, hook, file and line, and the other units go on."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from bayplan import (
    Args,
    ClusterEvent,
    Handle,
    Normalize,
    Plugin,
    PluginError,
    PodInfo,
    Preparation,
    Reads,
    Wait,
    hookimpl,
)
from bayplan.cluster.protocol import Event
from bayplan.profiles.loading import ProfileSet, default_profiles
from bayplan.testing import (
    Cluster,
    PluginCheckError,
    assert_pending,
    assert_placed,
    check_plugin,
    make_gang,
    make_node,
    make_pod,
)


def boo() -> None:
    raise ValueError("boo") from KeyError("deeper")


LINE = f"test_failures.py:{boo.__code__.co_firstlineno + 1})"

GOOD: dict[str, str] = {
    "pre_enqueue": "pod: None",
    "queue_sort": "unit: (0.0,)",
    "sign": "pod: pod.key",
    "pre_filter": "pod: None",
    "filter": "pod: ()",
    "filter_node": "pod: None",
    "pre_score": "pod: None",
    "score": "pod, nodes: np.zeros(len(nodes))",
    "score_node": "pod: 0",
    "placement_generate": "unit: None",
    "placement_score": "unit: 0",
    "reserve": "pod: None",
    "permit": "pod: None",
    "pre_bind": "pod: None",
    "bind": "pod: None",
    "post_bind": "pod: None",
}
"""Hooks that every pod comes by, with an answer that is fine."""


def method(hook: str, source: str = "") -> Any:
    """Return a hook that raises for the unit called bad."""
    arguments, _, answer = (source or GOOD[hook]).partition(": ")
    subject = arguments.partition(",")[0]
    text = f"def {hook}(self, {arguments}):\n    if 'bad' in {subject}.key: boo()\n"
    namespace: dict[str, Any] = {}
    exec(f"{text}    return {answer}", globals(), namespace)  # noqa: S102 - a table of hooks
    return hookimpl(namespace[hook])


def plugin(name: str = "Breaks", **attributes: Any) -> type[Plugin[Any]]:
    return type(name, (Plugin,), {"__doc__": "Raises for the unit called bad.", **attributes})


def run(broken: type[Plugin[Any]], **needs: Any) -> Cluster:
    """Return a cluster where a bad and a good gang of one have had their cycles."""
    first = default_profiles().profiles[0]
    if hasattr(broken, "queue_sort"):
        first = replace(first, points={**first.points, "queue_sort": ()})
    cluster = Cluster(
        [make_node("a"), make_node("b")],
        ProfileSet((first,), any_scheduler=True),
        plugins=[broken],
    )
    cluster.add(make_gang("bad", 1), make_gang("good", 1))
    cluster.add(make_pod("bad-0", gang="bad", **needs), make_pod("good-0", gang="good"))
    cluster.schedule()
    return cluster


def told(cluster: Cluster) -> set[str]:
    """Return what warnings say of plugins."""
    return {
        event.message
        for _, event in cluster.api.events
        if event.type == "Warning" and "plugin" in event.message
    }


def assert_told(cluster: Cluster, hook: str, name: str = "Breaks") -> None:
    (message,) = told(cluster)
    assert message.startswith(f'plugin "{name}" failed in {hook}: ValueError: boo (')
    assert message.endswith(LINE)


@pytest.fixture
def lines() -> Iterator[list[logging.LogRecord]]:
    """Return what is logged, whatever other tests did to the logger."""
    found: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = found.append  # type: ignore[method-assign]
    logger = logging.getLogger("bayplan.plugins")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(before)


@pytest.mark.parametrize("hook", GOOD)
def test_a_hook_that_raises_is_told_with_its_line_and_the_others_go_on(
    hook: str, lines: list[logging.LogRecord]
) -> None:
    cluster = run(plugin(**{hook: method(hook)}))
    assert cluster.placements()["good-0"]
    assert_told(cluster, hook)
    first = next(line for line in lines if line.levelno == logging.ERROR)
    assert first.exc_info is not None
    text = logging.Formatter().format(first)
    assert "in boo" in text
    assert "KeyError: 'deeper'" in text


def test_normalize_is_named() -> None:
    normalize = method("normalize", "pod, scores: scores")
    score = hookimpl(lambda self, nodes: np.zeros(len(nodes)))
    cluster = run(plugin(normalize=normalize, score=score, normalize_scores=Normalize.HOOK))
    assert "good-0" in cluster.placements()
    assert_told(cluster, "normalize")


def test_post_filter_is_named() -> None:
    cluster = run(plugin(post_filter=method("post_filter", "unit: None")), cpu=100)
    assert "good-0" in cluster.placements()
    assert_told(cluster, "post_filter")


def test_unreserve_is_named() -> None:
    reserve = hookimpl(lambda self, pod: "no licence" if "bad" in pod.key else None)
    cluster = run(plugin(reserve=reserve, unreserve=method("unreserve", "pod: None")))
    assert "good-0" in cluster.placements()
    messages = [text for text in told(cluster) if "failed" in text]
    assert messages[0].startswith('plugin "Breaks" failed in unreserve: ValueError: boo (')
    assert cluster.snapshot.nodes.used("cpu").sum() == 1000


def test_what_is_read_beforehand_may_fail(lines: list[logging.LogRecord]) -> None:
    calls: list[int] = []

    def prepare(self: Plugin[Any]) -> None:
        calls.append(1)
        boo()

    cluster = run(plugin(prepare=hookimpl(prepare)))
    assert set(cluster.placements()) == {"bad-0", "good-0"}
    (first,) = (line for line in lines if line.levelno == logging.ERROR)
    assert "failed in prepare: ValueError: boo" in first.getMessage()
    before = len(calls)
    cluster.schedule()
    assert len(calls) == before, "nothing is new"
    cluster.add(make_node("c"))
    cluster.schedule()
    assert len(calls) == before + 1


def test_requeue_hint_is_named_and_the_pod_is_tried_again() -> None:
    refuse = hookimpl(lambda self, pod: "closed" if "bad" in pod.key else None)
    hint = method("requeue_hint", "pod: True")
    cluster = run(plugin(pre_filter=refuse, requeue_hint=hint))
    cycles = cluster.scheduler.statistics.cycles
    cluster.add(make_node("c"))
    cluster.advance(5)
    cluster.add(make_node("d"))
    cluster.advance(5)
    assert cluster.scheduler.statistics.cycles == cycles + 2
    # The same failure of a pod is told once.
    found = [e for _, e in cluster.api.events if e.reason == "PluginError"]
    assert len(found) == 1
    assert_told(cluster, "requeue_hint")


def test_what_waits_before_a_binding_is_named() -> None:
    def ready() -> bool:
        boo()
        return True

    def pre_bind(self: Any, pod: PodInfo) -> Preparation | None:
        return Preparation((), ready, 10) if "bad" in pod.key else None

    cluster = run(plugin(pre_bind=hookimpl(pre_bind)))
    assert "good-0" in cluster.placements()
    assert_told(cluster, "pre_bind")


def test_a_plugin_that_cannot_be_made_is_named() -> None:
    class Unmade(Plugin[Args]):
        """Raises when it is made."""

        def __init__(self, args: Args, handle: Handle) -> None:
            boo()

        @hookimpl
        def post_bind(self) -> None:
            """Do nothing."""

    with pytest.raises(
        PluginError, match=r'"Unmade" failed in __init__: ValueError: boo'
    ) as caught:
        Cluster(plugins=[Unmade])
    assert str(caught.value).endswith(LINE)


def test_what_is_for_hooks_says_so_while_plugins_are_made() -> None:
    class Early(Plugin[Args]):
        """Asks for what is not there yet."""

        def __init__(self, args: Args, handle: Handle) -> None:
            handle.serves(PodInfo(make_pod("a")))

        @hookimpl
        def post_bind(self) -> None:
            """Do nothing."""

    with pytest.raises(PluginError, match="the plugins of the profile are still being made"):
        Cluster(plugins=[Early])


def test_an_answer_to_a_write_that_raises_is_logged(lines: list[logging.LogRecord]) -> None:
    class Writes(Plugin[Args]):
        """Raises when its write is answered."""

        @hookimpl
        def post_bind(self, pod: PodInfo) -> None:
            event = Event(pod.key, "Normal", "Noted", "bound")
            self.handle.submit(event, lambda error: boo())

    cluster = Cluster([make_node("n")], plugins=[Writes])
    cluster.add(make_pod("p"), make_pod("q"))
    assert_placed(cluster, p="n", q="n")
    first, second = lines
    assert first.getMessage().startswith('plugin "Writes" failed in submit: ValueError: boo (')
    assert (first.levelno, second.levelno) == (logging.ERROR, logging.DEBUG)


def test_a_plugin_that_exits_does_not_end_the_scheduler() -> None:
    def exits(self: Any, pod: PodInfo) -> None:
        if "bad" in pod.key:
            raise SystemExit(3)

    cluster = run(plugin(filter_node=hookimpl(exits)))
    assert "good-0" in cluster.placements()
    (message,) = told(cluster)
    assert 'plugin "Breaks" failed in filter_node: SystemExit: 3 (' in message


def test_a_wrong_answer_points_at_the_hook() -> None:
    def permit(self: Any, pod: PodInfo) -> Any:
        return True if "bad" in pod.key else None

    cluster = run(plugin(permit=hookimpl(permit)))
    (message,) = told(cluster)
    assert message.endswith(f"test_failures.py:{permit.__code__.co_firstlineno})")


def wrapped(function: Callable[..., Any]) -> Any:
    @functools.wraps(function)
    def call(self: Any, pod: PodInfo) -> Any:
        return function(self, pod)

    return call


def test_a_decorated_hook_has_its_line_too() -> None:
    def reserve(self: Any, pod: PodInfo) -> None:
        if "bad" in pod.key:
            boo()

    assert_told(run(plugin(reserve=hookimpl(wrapped(reserve)))), "reserve")


def test_the_checker_names_the_line() -> None:
    broken = plugin(filter_node=hookimpl(lambda self, pod: boo()))
    with pytest.raises(PluginCheckError, match=r"failed in filter_node: .*test_failures\.py:\d+"):
        check_plugin(broken)


def test_after_a_failure_nothing_stale_is_kept() -> None:
    class Fails(Plugin[Args]):
        """Scores by the pods on a node, and raises when it is told to."""

        reads = Reads.NODE | Reads.PODS
        broken = False

        @hookimpl
        def sign(self, pod: PodInfo) -> object:
            return pod.facts

        @hookimpl
        def filter_node(self, pod: PodInfo, node: Any) -> str | None:
            if Fails.broken:
                boo()
            return "taken" if node.used("pods") else None

    cluster = Cluster([make_node("a"), make_node("b")], plugins=[Fails])
    cluster.add(make_pod("first"))
    assert_placed(cluster, first="a")
    Fails.broken = True
    cluster.add(make_pod("second"))
    cluster.schedule()
    Fails.broken = False
    assert cluster.advance(5) == {"first": "a", "second": "b"}


def test_a_wait_is_not_taken_for_an_event() -> None:
    waits = hookimpl(lambda self: Wait(30))
    quiet = plugin(permit=waits, requeue_on=ClusterEvent.NONE)
    cluster = run(quiet)
    assert "Waiting on permit" in cluster.message("bad-0")
    assert told(cluster) == set()


def test_what_is_raised_in_concerns_holds_the_pods_of_that_kind_back() -> None:
    cluster = Cluster([make_node("a")], plugins=[plugin(concerns=method("concerns", "pod: True"))])
    cluster.add(make_pod("bad", "2"), make_pod("good", "1"))
    assert_placed(cluster, good="a")
    assert_pending(cluster, "bad", 'plugin "Breaks" failed in concerns: ValueError: boo')


def test_concerns_answers_yes_or_no() -> None:
    class Vague(Plugin[Args]):
        """Answers neither."""

        @hookimpl
        def concerns(self, pod: PodInfo) -> None:
            """Say nothing."""

    cluster = Cluster([make_node("a")], plugins=[Vague])
    cluster.add(make_pod("p"))
    cluster.schedule()
    assert_pending(cluster, "p", 'plugin "Vague" failed in concerns: TypeError: expected True or')
