"""The seam between scheduler and queues: one owner a profile, whose failures cost no others."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bayplan import Args, InputError, Plugin, PluginError, Queueing, Unit, hookimpl
from bayplan.profiles.finder import PluginFinder
from bayplan.profiles.loading import ProfileSet, load_profiles
from bayplan.testing import Cluster, make_gang, make_node, make_pod

PROFILE = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {multiPoint: {enabled: [ENABLED], disabled: [DISABLED]}}
"""
PLUGIN = """
from bayplan import Args, Plugin, Queueing, hookimpl

class Own(Queueing):
    def queue_of(self, unit): return "own/all"
    def next_queue(self, heads, action): return next(iter(heads))

class Mine(Plugin[Args]):
    @hookimpl
    def queueing(self): return Own()
"""


def profiles(folder: Path, enabled: str, disabled: str) -> ProfileSet:
    (folder / "mine.py").write_text(PLUGIN)
    (folder / "profile.yaml").write_text(
        PROFILE.replace("ENABLED", enabled).replace("DISABLED", disabled)
    )
    return load_profiles(folder / "profile.yaml", PluginFinder(folder))


def test_a_profile_takes_one_plugin_with_queues(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="takes one plugin with queues, this one has Queues and M"):
        profiles(tmp_path, "{name: Mine}", "")
    cluster = Cluster([make_node("n")], profiles(tmp_path, "{name: Mine}", "{name: Queues}"))
    cluster.add(make_pod("p"))
    assert cluster.schedule() == {"p": "n"}


class Failing(Queueing):
    """Has a queue for all, and fails in one method."""

    def __init__(self, method: str, answer: Any = None) -> None:
        setattr(self, method, self._fail if answer is None else lambda *_: answer)

    def _fail(self, *_: Any) -> Any:
        raise ValueError("boo")

    def queue_of(self, unit: Unit) -> str:
        return "own/all"

    def next_queue(self, heads: Mapping[str, Unit], action: str) -> str | None:
        return next(iter(heads))


def plugin(made: object) -> type[Plugin[Args]]:
    class Own(Plugin[Args]):
        """Has the queues."""

        @hookimpl
        def queueing(self) -> object:
            return made

    return Own


METHODS = ["queue_of", "order", "next_queue", "is_strict", "pods_to_place", "actions", "statuses"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("answer", [None, object()], ids=["raises", "wrong answer"])
def test_queues_that_fail_hold_no_pod_back(
    method: str, answer: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    set_ = profiles(tmp_path, "", "{name: Queues}")
    with caplog.at_level(logging.ERROR, "bayplan.plugins"):
        cluster = Cluster([make_node("n")], set_, [plugin(Failing(method, answer))])
        cluster.add(make_pod("a"), make_pod("b"))
        assert cluster.schedule() == {"a": "n", "b": "n"}
    assert any(f'"Own" failed in {method}: ' in one.getMessage() for one in caplog.records)


def test_what_is_no_queueing_is_refused_when_the_profile_is_made(tmp_path: Path) -> None:
    set_ = profiles(tmp_path, "", "{name: Queues}")
    with pytest.raises(PluginError, match='"Own" failed in queueing: TypeError: expected a Queue'):
        Cluster([make_node("n")], set_, [plugin(object())])


def test_a_group_status_that_fails_is_logged_and_the_gang_is_bound(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Tells(Plugin[Args]):
        """Fails when it is asked."""

        @hookimpl
        def group_status(self) -> Any:
            raise ValueError("boo")

    cluster = Cluster([make_node("n")], plugins=[Tells])
    with caplog.at_level(logging.ERROR, "bayplan.plugins"):
        cluster.add(make_gang("g", 1), make_pod("m", gang="g"))
        assert cluster.schedule() == {"m": "n"}
    assert any('"Tells" failed in group_status' in one.getMessage() for one in caplog.records)
