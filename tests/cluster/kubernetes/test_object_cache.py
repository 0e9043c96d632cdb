"""The object cache: lists become events, events wait, and one bad handler call stops nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from msgspec.structs import replace

from bayplan.api import KINDS, Node, NodeMetrics, Pod
from bayplan.cluster.apiserver.unknown_fields import plain
from bayplan.cluster.kubernetes.object_cache import ObjectCache
from bayplan.cluster.protocol import WatchEvent
from bayplan.errors import NotFound
from bayplan.testing import make_node, make_pod

POD, NODE = KINDS["", "Pod"], KINDS["", "Node"]


class Reader:
    """Serves one list for each path; watches never send anything."""

    def __init__(self, **items: list[Any]) -> None:
        self.items = items

    async def request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None
    ) -> bytes:
        plural = path.rpartition("/")[2]
        if plural not in self.items:
            raise NotFound(plural)
        return json.dumps(
            {"metadata": {"resourceVersion": "7"}, "items": self.items[plural]}
        ).encode()

    async def lines(
        self, path: str, query: Mapping[str, str], begun: Callable[[], None]
    ) -> AsyncIterator[bytes]:
        begun()
        await asyncio.Event().wait()
        yield b""


def stored(obj: Any, version: str) -> Any:
    content = plain(obj)
    content["metadata"]["resourceVersion"] = version
    content["metadata"]["uid"] = f"uid-{version}"
    return content


async def listed(reader: Reader, **options: Any) -> ObjectCache:
    cache = ObjectCache(reader, (NODE, POD), **options)
    await cache.start()
    async with asyncio.timeout(60):
        await cache.settle()
    return cache


async def test_a_watcher_gets_the_oldest_objects_first() -> None:
    pods = [stored(make_pod("b"), "2"), stored(make_pod("a"), "3")]
    cache = await listed(Reader(nodes=[stored(make_node("n"), "1")], pods=pods))
    seen: list[WatchEvent] = []
    cache.watch(seen.append)
    assert (cache.undelivered, seen) == (3, [])
    assert cache.deliver()
    assert [event.obj.metadata.name for event in seen if event.obj] == ["n", "b", "a"]
    assert not cache.deliver()
    await cache.stop()


async def test_events_are_delivered_in_parts() -> None:
    pods = [stored(make_pod(f"p{index}"), str(index + 1)) for index in range(5)]
    cache = await listed(Reader(nodes=[], pods=pods))
    seen: list[WatchEvent] = []
    cache.watch(seen.append)
    assert cache.deliver(most=3)
    assert (len(seen), cache.undelivered) == (3, 2)
    await cache.stop()


async def test_a_handler_that_fails_on_one_object_gets_all_others() -> None:
    pods = [stored(make_pod(f"p{index}"), str(index + 1)) for index in range(3)]
    cache = await listed(Reader(nodes=[], pods=pods))
    seen: list[str] = []

    def handle(event: WatchEvent) -> None:
        assert event.obj is not None
        if event.obj.metadata.name == "p1":
            raise ValueError("boom")
        seen.append(event.obj.metadata.name)

    cache.watch(handle)
    cache.deliver()
    assert seen == ["p0", "p2"]
    await cache.stop()


async def test_objects_are_found_by_type_and_key() -> None:
    cache = await listed(Reader(nodes=[stored(make_node("n"), "1")], pods=[]))
    assert isinstance(cache.get(Node, "n"), Node)
    assert cache.get(Node, "m") is None
    assert cache.get(Pod, "default/p") is None
    resource = cache.resource_of(Pod)
    assert resource is not None
    assert resource.path("default/p") == "/api/v1/namespaces/default/pods/p"
    await cache.stop()


async def test_an_object_that_cannot_be_decoded_is_reported_and_left_out() -> None:
    bad = stored(make_node("bad"), "1")
    bad["status"] = {"allocatable": {"cpu": "many"}}
    found: list[tuple[str, str]] = []
    cache = await listed(
        Reader(nodes=[bad, stored(make_node("n"), "2")], pods=[]),
        on_unreadable=lambda kind, key, problem: found.append((kind.name, key)),
    )
    assert found == [("Node", "bad")]
    assert list(cache.unreadable) == [("Node", "bad")]
    assert cache.get(Node, "bad") is None
    assert cache.get(Node, "n") is not None
    await cache.stop()


async def test_once_a_kind_is_installed_the_others_of_its_group_are_soon_followed() -> None:
    """Not only after the half minute in which a kind that is absent is left alone."""
    reader = Reader()
    queue, local, gang = (
        KINDS[place]
        for place in (
            ("kueue.x-k8s.io", "ClusterQueue"),
            ("kueue.x-k8s.io", "LocalQueue"),
            ("scheduling.volcano.sh", "PodGroup"),
        )
    )
    cache = ObjectCache(reader, (queue, local, gang))
    await cache.start()
    async with asyncio.timeout(60):
        await cache.settle()
    assert all(cache.is_absent(kind.type) for kind in (queue, local, gang))
    reader.items |= {kind.plural: [] for kind in (queue, local, gang)}
    cache.reflectors[0].look_up()
    async with asyncio.timeout(10):
        while not cache.follows(local.type):
            await asyncio.sleep(0)
    assert cache.follows(queue.type)
    assert not cache.is_absent(local.type)
    assert cache.is_absent(gang.type), "another group's are looked up in their time"
    await cache.stop()


async def test_a_kind_that_cannot_be_watched_is_listed_again_and_again() -> None:
    kind = replace(KINDS["metrics.k8s.io", "NodeMetrics"], poll_seconds=0.001)
    used = iter(("1", "1", "2", "2"))

    class Metrics(Reader):
        async def request(
            self, method: str, path: str, *, query: Mapping[str, str] | None = None
        ) -> bytes:
            assert path == "/apis/metrics.k8s.io/v1beta1/nodes"
            usage = {"cpu": next(used, "2"), "memory": "1Gi"}
            return json.dumps(
                {"metadata": {}, "items": [{"metadata": {"name": "n"}, "usage": usage}]}
            ).encode()

        async def lines(
            self, path: str, query: Mapping[str, str], begun: Callable[[], None]
        ) -> AsyncIterator[bytes]:
            raise AssertionError("nobody may watch it")
            yield b""

    cache = ObjectCache(Metrics(), (kind,))
    seen: list[object] = []

    def handle(event: WatchEvent) -> None:
        assert isinstance(event.obj, NodeMetrics)
        seen.append(event.obj.usage["cpu"])

    cache.watch(handle)
    await cache.start()
    async with asyncio.timeout(60):
        while len(seen) < 2:
            cache.deliver()
            await asyncio.sleep(0)
    await cache.stop()
    # An answer like the last one is no news.
    assert seen == ["1", "2"]


class Pages(Reader):
    """Serves lists page by page; each page but the first one waits for ``next``."""

    def __init__(self, **pages: list[Any]) -> None:
        super().__init__()
        self.pages = pages
        self.next = asyncio.Semaphore(0)

    async def request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None
    ) -> bytes:
        pages = self.pages[path.rpartition("/")[2]]
        number = int((query or {}).get("continue", 0))
        if number:
            await self.next.acquire()
        more = str(number + 1) if number + 1 < len(pages) else ""
        meta = {"resourceVersion": "7", "continue": more}
        return json.dumps({"metadata": meta, "items": pages[number]}).encode()


async def test_what_needs_no_order_is_handed_out_page_by_page_while_the_list_is_read() -> None:
    placed = [make_pod(name, node="n") for name in ("a", "c")]
    old, new = stored(make_pod("d"), "2"), stored(make_pod("b"), "9")
    pages = [[stored(placed[0], "5"), new], [stored(placed[1], "4"), old]]
    reader = Pages(nodes=[[stored(make_node("n"), "1")]], pods=pages)
    cache = ObjectCache(reader, (NODE, POD))
    seen: list[str] = []
    cache.watch(lambda event: seen.append(event.obj.metadata.name if event.obj else ""))

    await cache.start()
    async with asyncio.timeout(60):
        while len(seen) < 2:
            cache.deliver()
            await asyncio.sleep(0)
    assert sorted(seen) == ["a", "n"]
    reader.next.release()
    async with asyncio.timeout(60):
        await cache.settle()
    cache.deliver()

    assert seen[2:] == ["c", "d", "b"]
    assert not cache.deliver()
    await cache.stop()


async def test_pages_hold_about_as_many_bytes_whatever_the_objects_are() -> None:
    asked: list[str] = []
    small = [[stored(make_node(f"n{page}"), str(page + 1))] for page in range(2)]
    large = [
        [stored(make_node(f"l{page}", labels={"x": "y" * 2**22}), str(page + 1))]
        for page in range(2)
    ]

    class Counting(Pages):
        async def request(
            self, method: str, path: str, *, query: Mapping[str, str] | None = None
        ) -> bytes:
            asked.append((query or {})["limit"])
            return await super().request(method, path, query=query)

    for pages in (small, large):
        reader = Counting(nodes=pages)
        reader.next.release()
        cache = ObjectCache(reader, (NODE,))
        await cache.start()
        async with asyncio.timeout(60):
            await cache.settle()
        await cache.stop()

    assert asked == ["1000", "20000", "1000", "3"]


async def test_pods_are_handed_out_once_everything_else_is_listed() -> None:
    nodes = [[stored(make_node("n"), "1")], [stored(make_node("m"), "2")]]
    reader = Pages(nodes=nodes, pods=[[stored(make_pod("a", node="n"), "3")]])
    cache = ObjectCache(reader, (POD, NODE))
    seen: list[str] = []
    cache.watch(lambda event: seen.append(event.obj.metadata.name if event.obj else ""))
    pods, all_nodes = cache.reflectors

    await cache.start()
    async with asyncio.timeout(60):
        await pods.settled.wait()
        while "n" not in seen:
            cache.deliver()
            await asyncio.sleep(0)
    assert seen == ["n"]
    assert cache.undelivered == 1
    reader.next.release()
    async with asyncio.timeout(60):
        await all_nodes.settled.wait()
    cache.deliver()

    assert seen == ["n", "m", "a"]
    await cache.stop()
