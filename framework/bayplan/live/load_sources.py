"""What nodes use, from a program beside the API server: load-watcher, or Prometheus.

Its answers are followed as objects of a kind that is listed again and again, so that they come,
change and go as those of the API server do. While it does not answer, what it said last stays, and
gets old.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import msgspec

from bayplan.api import ObjectMeta, WatchedLoad, WatchedMetric
from bayplan.api.objects import WATCHED_LOADS
from bayplan.cluster.kubernetes.credentials import Endpoint, Tls
from bayplan.cluster.kubernetes.reflector import Reader
from bayplan.cluster.kubernetes.resources import WatchedResource
from bayplan.cluster.kubernetes.transport import Requests, Transport
from bayplan.errors import ClusterError, Transient
from bayplan.plugin.base import LoadSource
from bayplan.profiles.loading import ProfileSet

__all__ = ["ReaderWithLoads", "load_source_of"]

_PATH = WatchedResource(WATCHED_LOADS, WATCHED_LOADS.versions[0]).watched
_WINDOW = "15m"
_QUERIES = tuple(
    (f"{function}({series}[{_WINDOW}])", kind, operator)
    for function, operator in (("avg_over_time", "AVG"), ("stddev_over_time", "STD"))
    for series, kind in (
        ("instance:node_cpu:ratio", "CPU"),
        ("instance:node_memory_utilisation:ratio", "Memory"),
    )
)
"""The queries of load-watcher: series of the usual rules for Prometheus, with values 0 to 1."""


def load_source_of(profiles: ProfileSet) -> LoadSource | None:
    """Return the program that the profiles name, the first of several."""
    arguments = (one for profile in profiles.profiles for one in profile.args.values())
    return next((found for one in arguments if (found := one.load_source) is not None), None)


class ReaderWithLoads:
    """Reads from the API server, and the loads from their source.

    :param ask: sends requests to the source; None for a client of its own.
    """

    def __init__(self, server: Reader, source: LoadSource, ask: Requests | None = None) -> None:
        self._server = server
        self._source = source
        self._ask = ask or Transport(_Named(source))

    async def request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None
    ) -> bytes:
        """Return the body of an answer of the server, or a list of loads.

        :raises ClusterError: when the server does; Transient for whatever the source answers else.
        """
        if path != _PATH:
            return await self._server.request(method, path, query=query)
        read = _of_watcher if self._source.kind == "load-watcher" else _of_prometheus
        try:
            loads = await read(self._ask)
        except (ClusterError, msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise Transient(f"{self._source.kind} {self._source.url}: {exc}") from None
        return msgspec.json.encode({"metadata": {"resourceVersion": "0"}, "items": loads})

    def lines(
        self, path: str, query: Mapping[str, str], begun: Callable[[], None]
    ) -> AsyncIterator[bytes]:
        """Yield the lines of a watch of the server's."""
        return self._server.lines(path, query, begun)


class _Named:
    """The source as a server: its address, and a token that does not change."""

    def __init__(self, source: LoadSource) -> None:
        tls = Tls(verify=source.verify) if source.url.startswith("https://") else None
        self._endpoint = Endpoint(source.url.rstrip("/"), tls)
        self._authorization = f"Bearer {source.token}" if source.token else None

    async def endpoint(self) -> Endpoint:
        return self._endpoint

    async def authorization(self, refused: str | None = None) -> str | None:
        return self._authorization


# load-watcher ------------------------------------------------------------------------------


class _Window(msgspec.Struct):
    end: float = 0.0


class _Node(msgspec.Struct):
    metrics: tuple[WatchedMetric, ...] = ()


class _Data(msgspec.Struct):
    nodes: dict[str, _Node] = msgspec.field(default_factory=dict, name="NodeMetricsMap")


class _Watched(msgspec.Struct):
    timestamp: float = 0.0
    window: _Window = msgspec.field(default_factory=_Window)
    data: _Data = msgspec.field(default_factory=_Data)


async def _of_watcher(ask: Requests) -> Sequence[WatchedLoad]:
    answer = msgspec.json.decode(await ask.request("GET", "/watcher"), type=_Watched)
    end = answer.window.end or answer.timestamp
    return [
        WatchedLoad(ObjectMeta(name=name), end, node.metrics)
        for name, node in answer.data.nodes.items()
    ]


# Prometheus --------------------------------------------------------------------------------


class _Sample(msgspec.Struct):
    value: tuple[float, str]
    metric: dict[str, str] = msgspec.field(default_factory=dict)


class _Vector(msgspec.Struct):
    result: tuple[_Sample, ...] = ()


class _Result(msgspec.Struct):
    data: _Vector = msgspec.field(default_factory=_Vector)


async def _of_prometheus(ask: Requests) -> Sequence[WatchedLoad]:
    found: dict[str, list[WatchedMetric]] = {}
    end = 0.0
    for query, kind, operator in _QUERIES:
        body = await ask.request("GET", "/api/v1/query", query={"query": query})
        for sample in msgspec.json.decode(body, type=_Result).data.result:
            value = _number(sample.value[1])
            # An instance is a node, with the port of its exporter unless that was relabelled.
            name = sample.metric.get("instance", "").partition(":")[0]
            if name and math.isfinite(value):
                end = max(end, sample.value[0])
                found.setdefault(name, []).append(WatchedMetric(kind, operator, value * 100))
    return [
        WatchedLoad(ObjectMeta(name=name), end, tuple(metrics)) for name, metrics in found.items()
    ]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
