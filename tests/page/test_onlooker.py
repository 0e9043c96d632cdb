"""A scheduler that only looks on leaves its cluster alone."""

from __future__ import annotations

import logging

import pytest

from bayplan.api import Pod
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import Bind, WatchEvent
from bayplan.errors import ClusterError
from bayplan.page.shadow_cluster import ShadowCluster
from bayplan.testing import make_node, make_pod


def test_what_a_handler_cannot_take_does_not_end_the_watch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster, seen = MemoryCluster(1), []

    def handler(event: WatchEvent) -> None:
        if isinstance(event.obj, Pod):
            raise KeyError("a fault")
        seen.append(event.obj)

    ShadowCluster(cluster).watch(handler)
    cluster.create(make_pod("p"))
    cluster.create(make_node("n"))
    with caplog.at_level(logging.ERROR):
        cluster.deliver()
    assert [one.metadata.name for one in seen] == ["n"]
    assert "the page is not up to date" in caplog.text


def test_it_writes_nothing() -> None:
    cluster, answers = MemoryCluster(1), []
    cluster.create(make_pod("p"))
    cluster.create(make_node("n"))
    ShadowCluster(cluster).submit(Bind("default/p", "", "n"), answers.append)
    assert [type(one) for one in answers] == [ClusterError]
    (pod,) = cluster.list(Pod)
    assert pod.spec.node_name == ""
