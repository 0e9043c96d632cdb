"""What load-watcher and Prometheus know of nodes is followed, and their absence stops nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.live.stage import stage

from bayplan.api import WatchedLoad, WatchedMetric
from bayplan.api.objects import WATCHED_LOADS
from bayplan.cluster.kubernetes.object_cache import ObjectCache
from bayplan.cluster.protocol import WatchEvent
from bayplan.errors import NotFound, Transient
from bayplan.live.load_sources import ReaderWithLoads, load_source_of
from bayplan.live.parts import parts_of
from bayplan.plugin.base import LoadSource
from bayplan.profiles.loading import load_profiles
from bayplan.testing import make_node, make_pod

WATCHER = LoadSource("load-watcher", "http://load-watcher:2020")
PROMETHEUS = LoadSource("Prometheus", "http://prometheus:9090", "secret")
ANSWER = {
    "timestamp": 1556987522,
    "window": {"duration": "15m", "start": 1556984522, "end": 1556985422},
    "source": "Prometheus",
    "data": {
        "NodeMetricsMap": {
            "a": {
                "metrics": [
                    {"name": "m", "type": "CPU", "operator": "AVG", "rollup": "15m", "value": 20},
                    {"name": "m", "type": "CPU", "operator": "STD", "rollup": "15m", "value": 5},
                ],
                "tags": {},
                "metadata": {},
            },
            "b": {"metrics": [{"type": "Memory", "operator": "Latest", "value": 7.5}]},
        }
    },
}


class Asked:
    """A source that gives prepared answers, by path and query."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = dict(answers)

    async def request(
        self, method: str, path: str, *_: Any, query: Mapping[str, str] | None = None, **__: Any
    ) -> bytes:
        key = (query or {}).get("query", path)
        found = self.answers.get(key, NotFound(f"{method} {path}: 404"))
        if isinstance(found, Exception):
            raise found
        return found if isinstance(found, bytes) else json.dumps(found).encode()


class Server:
    """An API server that nobody asks anything here."""

    async def request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None
    ) -> bytes:
        raise AssertionError(path)

    def lines(
        self, path: str, query: Mapping[str, str], begun: Callable[[], None]
    ) -> AsyncIterator[bytes]:
        raise AssertionError(path)


async def followed(source: LoadSource, asked: Asked) -> Mapping[str, WatchedLoad]:
    """Return the loads after the first answer, by node."""
    cache = ObjectCache(ReaderWithLoads(Server(), source, asked), [WATCHED_LOADS])
    found: dict[str, WatchedLoad] = {}

    def take(event: WatchEvent) -> None:
        assert isinstance(event.obj, WatchedLoad)
        found[event.obj.key] = event.obj

    cache.watch(take)
    await cache.start()
    await asyncio.wait_for(cache.settle(), 10)
    while cache.deliver():
        pass
    await cache.stop()
    return found


async def test_the_answer_of_load_watcher_becomes_a_load_of_each_node() -> None:
    found = await followed(WATCHER, Asked({"/watcher": ANSWER}))
    assert found.keys() == {"a", "b"}
    assert found["a"].end == 1556985422
    assert found["a"].metrics == (
        WatchedMetric("CPU", "AVG", 20.0),
        WatchedMetric("CPU", "STD", 5.0),
    )
    assert found["b"].metrics == (WatchedMetric("Memory", "Latest", 7.5),)


def vector(**values: str) -> Any:
    samples = [
        {"metric": {"instance": name.replace("_", ":")}, "value": [1700000000.5, value]}
        for name, value in values.items()
    ]
    return {"status": "success", "data": {"resultType": "vector", "result": samples}}


async def test_prometheus_is_asked_for_means_and_deviations() -> None:
    cpu, memory = "instance:node_cpu:ratio[15m]", "instance:node_memory_utilisation:ratio[15m]"
    answers = {
        f"avg_over_time({cpu})": vector(a="0.25", b_9100="0.5"),
        f"avg_over_time({memory})": vector(a="NaN"),
        f"stddev_over_time({cpu})": vector(a="0.125"),
        f"stddev_over_time({memory})": vector(),
    }
    found = await followed(PROMETHEUS, Asked(answers))
    assert {name: one.metrics for name, one in found.items()} == {
        "a": (WatchedMetric("CPU", "AVG", 25.0), WatchedMetric("CPU", "STD", 12.5)),
        "b": (WatchedMetric("CPU", "AVG", 50.0),),
    }
    assert found["a"].end == 1700000000.5


@pytest.mark.parametrize(
    "answer",
    [Transient("no connection"), NotFound("404"), b"<html>", b'{"data": 4}', b"\xff"],
    ids=["unreachable", "no such path", "no JSON", "other JSON", "no text"],
)
async def test_a_source_that_does_not_answer_holds_back_nobody(answer: Any) -> None:
    assert await followed(WATCHER, Asked({"/watcher": answer})) == {}


def profiles_of(folder: Path, plugin: str, args: Any) -> Any:
    path = folder / "profiles.yaml"
    plugins = {"multiPoint": {"enabled": [{"name": plugin}]}}
    profile = {"plugins": plugins, "pluginConfig": [{"name": plugin, "args": args}]}
    kind = "KubeSchedulerConfiguration"
    path.write_text(yaml.safe_dump({"kind": kind, "profiles": [profile]}))
    return load_profiles(path)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({}, None),
        ({"metricProvider": {"type": "KubernetesMetricsServer"}}, None),
        ({"watcherAddress": "http://load-watcher:2020"}, WATCHER),
        (
            {"metricProvider": {"type": "Prometheus", "insecureSkipVerify": False}},
            LoadSource("Prometheus", "http://prometheus-k8s:9090"),
        ),
        (
            {"metricProvider": {"type": "Prometheus", "address": "https://p"}},
            LoadSource("Prometheus", "https://p", verify=False),
        ),
        (
            {"metricProvider": {"type": "Prometheus", "address": "https://p", "token": "t"}},
            LoadSource("Prometheus", "https://p", "t", verify=True),
        ),
    ],
    ids=["nothing", "metrics-server", "load-watcher", "Prometheus", "as Trimaran", "with a token"],
)
def test_profiles_name_the_source(args: Any, expected: LoadSource | None, tmp_path: Path) -> None:
    profiles = profiles_of(tmp_path, "TargetLoadPacking", args)
    assert load_source_of(profiles) == expected
    assert (WATCHED_LOADS in parts_of(profiles)) is (expected is not None)


async def test_a_scheduler_starts_and_binds_though_its_load_watcher_is_away(
    tmp_path: Path,
) -> None:
    args = {"watcherAddress": "http://127.0.0.1:9"}
    profiles = profiles_of(tmp_path, "TargetLoadPacking", args)
    async with stage([make_node("n0")]) as made:
        await made.start(load=lambda: profiles)
        made.create(make_pod("p"))
        await made.run_out(5)
        assert made.placements() == {"default/p": "n0"}
