"""How writes go to the API server: in order, as few as possible, and not faster than is allowed."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from tests.live.stage import Stage, stage

from bayplan.api import Node, Pod, PodCondition
from bayplan.api.configmap import ConfigMap
from bayplan.api.kueue import ResourceFlavor
from bayplan.api.meta import ObjectMeta
from bayplan.cluster.kubernetes.events import EventRecorder
from bayplan.cluster.kubernetes.rate_limiter import RateLimiter
from bayplan.cluster.kubernetes.transport import Requests
from bayplan.cluster.kubernetes.writer import Writer
from bayplan.cluster.protocol import (
    Bind,
    BindLock,
    CreateObject,
    Event,
    Evict,
    PatchPodStatus,
    PutConfigMap,
)
from bayplan.dialects.hami.node_lock import lock_text
from bayplan.errors import ClusterError, Conflict, NotFound, Stopped
from bayplan.live.app import LiveApp
from bayplan.profiles.loading import default_profiles
from bayplan.testing import make_gang, make_node, make_pod

PATCHES = ("patch", "", "pods/status", True)


async def writing(made: Stage) -> tuple[LiveApp, Writer]:
    """Start an app whose scheduler has nothing to do; return its writer."""
    profiles = default_profiles()
    nobody = replace(profiles.profiles[0], scheduler_name="nobody")
    app = await made.start(replace(profiles, profiles=(nobody,), any_scheduler=False))
    assert app.writer is not None
    return app, app.writer


async def answers(writer: Writer, *writes: Any) -> list[ClusterError | None]:
    """Return what became of writes, in their order."""
    found: dict[int, ClusterError | None] = {}
    for index, write in enumerate(writes):
        writer.submit(write, partial(found.__setitem__, index))
    assert await writer.drain(10)
    return [found[index] for index in range(len(writes))]


def waiting(pod: Pod, message: str, node: str | None = None) -> PatchPodStatus:
    condition = PodCondition("PodScheduled", "False", "Unschedulable", message)
    return PatchPodStatus(pod.key, pod.metadata.uid, condition, node)


LOCK = BindLock("hami.io/mutex.lock", 300.0)
OWN_LOCK = BindLock(LOCK.annotation, 300.0, own=True)


def lock_of(made: Stage) -> str | None:
    node = made.cluster.get(Node, "n")
    assert node is not None
    return node.metadata.annotations.get(LOCK.annotation)


def set_lock(made: Stage, value: str | None) -> None:
    node = made.cluster.get(Node, "n")
    assert node is not None
    annotations = {LOCK.annotation: value} if value is not None else {}
    made.cluster.update(replace(node, metadata=replace(node.metadata, annotations=annotations)))


async def test_a_binding_waits_for_the_lock_of_its_node() -> None:
    async with stage([make_node("n"), make_pod("p"), make_pod("other")]) as made:
        _, writer = await writing(made)
        set_lock(made, lock_text(time.time(), "default", "other"))
        await made.until(lambda: writer.retries == 0)
        uid = made.pods()["default/p"].metadata.uid
        answered: list[ClusterError | None] = []
        writer.submit(Bind("default/p", uid, "n", lock=LOCK), answered.append)
        await made.until(lambda: writer.retries >= 2)
        assert made.placements() == {}
        set_lock(made, None)
        await made.until(lambda: answered == [None])
        assert made.placements() == {"default/p": "n"}
        assert (lock_of(made) or "").endswith(",default,p")


async def test_a_lock_that_is_too_old_is_broken() -> None:
    async with stage([make_node("n"), make_pod("p"), make_pod("other")]) as made:
        _, writer = await writing(made)
        set_lock(made, lock_text(time.time() - 301, "default", "other"))
        uid = made.pods()["default/p"].metadata.uid
        assert await answers(writer, Bind("default/p", uid, "n", lock=LOCK)) == [None]
        assert (lock_of(made) or "").endswith(",default,p")


async def test_of_two_schedulers_at_once_one_gets_the_lock() -> None:
    async with stage([make_node("n"), make_pod("p"), make_pod("q")]) as made:
        _, one = await writing(made)
        _, other = await writing(made)
        uids = {key: pod.metadata.uid for key, pod in made.pods().items()}
        answered: list[ClusterError | None] = []
        one.submit(Bind("default/p", uids["default/p"], "n", lock=LOCK), answered.append)
        other.submit(Bind("default/q", uids["default/q"], "n", lock=LOCK), answered.append)
        await made.until(lambda: answered == [None])
        await made.until(lambda: one.retries + other.retries >= 2)
        assert len(made.placements()) == 1
        set_lock(made, None)
        await made.until(lambda: answered == [None, None])
        assert len(made.placements()) == 2


async def test_bayplans_own_lock_is_free_once_its_pod_is_bound() -> None:
    async with stage([make_node("n"), make_pod("p"), make_pod("q")]) as made:
        _, writer = await writing(made)
        uids = {key: pod.metadata.uid for key, pod in made.pods().items()}
        binds = [Bind(key, uid, "n", lock=OWN_LOCK) for key, uid in uids.items()]
        assert await answers(writer, *binds) == [None, None]
        assert len(made.placements()) == 2
        assert (lock_of(made) or "").endswith((",default,p", ",default,q"))


async def test_bayplans_own_lock_is_waited_for_while_its_pod_has_no_node() -> None:
    async with stage([make_node("n"), make_pod("p"), make_pod("other")]) as made:
        _, writer = await writing(made)
        set_lock(made, lock_text(time.time(), "default", "other"))
        pods = made.pods()
        answered: list[ClusterError | None] = []
        bind = Bind("default/p", pods["default/p"].metadata.uid, "n", lock=OWN_LOCK)
        writer.submit(bind, answered.append)
        await made.until(lambda: writer.retries >= 2)
        assert made.placements() == {}
        other = pods["default/other"]
        made.cluster.update(replace(other, spec=replace(other.spec, node_name="n")))
        await made.until(lambda: answered == [None])


async def test_who_is_alone_takes_no_lock_of_bayplans_own() -> None:
    async with stage([make_node("n"), make_pod("p")]) as made:
        app, _ = await writing(made)
        recorder = EventRecorder(app.transport, "bayplan", "leader")
        writer = Writer(app.transport, recorder, app.cache, alone=lambda: True)
        uid = made.pods()["default/p"].metadata.uid
        assert await answers(writer, Bind("default/p", uid, "n", lock=OWN_LOCK)) == [None]
        assert lock_of(made) is None


async def test_a_refused_binding_gives_the_lock_back() -> None:
    async with stage([make_node("n"), make_pod("p")]) as made:
        _, writer = await writing(made)
        (error,) = await answers(writer, Bind("default/p", "other", "n", lock=LOCK))
        assert isinstance(error, Conflict)
        assert lock_of(made) is None


MARK = "example.com/shares"
MARKED = replace(OWN_LOCK, marks=MARK)


def sharer(name: str, node: str | None = None) -> Pod:
    return make_pod(name, node=node, annotations={MARK: "half"})


def uid_of(made: Stage, name: str) -> str:
    return made.pods()[f"default/{name}"].metadata.uid


async def test_a_binding_that_needs_another_pod_is_refused_once_that_is_gone() -> None:
    async with stage([make_node("n"), make_pod("p"), make_pod("holder", node="n")]) as made:
        _, writer = await writing(made)
        lock = replace(MARKED, needs=frozenset({"default/holder", "default/second"}))
        bind = Bind("default/p", uid_of(made, "p"), "n", lock=lock)
        (error,) = await answers(writer, bind)
        assert isinstance(error, Conflict)
        assert str(error) == "Node n has no default/second any more"
        assert lock_of(made) is None
        made.create(make_pod("second", node="n"))
        assert await answers(writer, bind) == [None]


async def test_an_eviction_under_a_lock_is_refused_if_pods_came_that_it_does_not_know() -> None:
    pods = [make_pod("holder", node="n"), sharer("mine", "n"), sharer("theirs", "n")]
    async with stage([make_node("n"), *pods]) as made:
        _, writer = await writing(made)
        uid = uid_of(made, "holder")
        lock = replace(MARKED, known=frozenset({uid_of(made, "mine")}))
        evict = Evict("default/holder", uid, "nobody shares it", "n", lock)
        (error,) = await answers(writer, evict)
        assert isinstance(error, Conflict)
        assert str(error) == "Node n has got default/theirs as well"
        assert lock_of(made) is None
        known = frozenset({*lock.known, uid_of(made, "theirs")})
        assert await answers(writer, replace(evict, lock=replace(lock, known=known))) == [None]
        assert made.pods()["default/holder"].metadata.deletion_timestamp is not None
        assert lock_of(made) is None


async def test_an_eviction_waits_for_the_lock_of_its_node() -> None:
    waiting_pods = [make_pod("other"), make_pod("holder", node="n")]
    async with stage([make_node("n"), *waiting_pods]) as made:
        _, writer = await writing(made)
        set_lock(made, lock_text(time.time(), "default", "other"))
        answered: list[ClusterError | None] = []
        uid = uid_of(made, "holder")
        writer.submit(Evict("default/holder", uid, "unused", "n", MARKED), answered.append)
        await made.until(lambda: writer.retries >= 2)
        assert "default/holder" in made.pods()
        assert (lock_of(made) or "").endswith(",default,other")
        set_lock(made, None)
        await made.until(lambda: answered == [None])


async def test_of_statuses_that_wait_only_the_last_is_written() -> None:
    async with stage([make_node("n"), make_pod("p")]) as made:
        _, writer = await writing(made)
        (pod,) = made.pods().values()
        writes = [waiting(pod, f"try {n}", "n" if n == 3 else None) for n in range(20)]
        assert await answers(writer, *writes) == [None] * 20
        assert made.server.calls[PATCHES] == 2
        status = made.pods()["default/p"].status
        (condition,) = status.conditions
        assert (condition.message, status.nominated_node_name) == ("try 19", "n")


async def test_a_condition_that_is_there_is_not_written_again_by_the_next_process() -> None:
    async with stage([make_node("n", cpu=1), make_pod("p", cpu=2)]) as made:
        app = await made.start()
        await made.run_out(1)
        written = made.server.calls[PATCHES]
        assert written == 1
        since = made.pods()["default/p"].status.conditions[0].last_transition_time
        await made.stop(app)
        await made.start()
        await made.run_out(1)
        assert made.server.calls[PATCHES] == written
        assert made.pods()["default/p"].status.conditions[0].last_transition_time == since


async def test_a_pod_that_was_made_anew_is_neither_bound_nor_told_for_the_old_one() -> None:
    async with stage([make_node("n"), make_pod("p")]) as made:
        _, writer = await writing(made)
        (old,) = made.pods().values()
        made.cluster.delete(Pod, "default/p", grace=0)
        made.create(make_pod("p"))
        uid = old.metadata.uid
        found = await answers(
            writer,
            Bind("default/p", uid, "n"),
            waiting(old, "old"),
            Evict("default/p", uid, "make room"),
            Bind("default/gone", "x", "n"),
        )
        assert [type(error) for error in found] == [Conflict, Conflict, Conflict, NotFound]
        assert made.placements() == {}
        assert made.pods()["default/p"].status.conditions == ()


async def test_a_binding_sets_and_removes_labels() -> None:
    pod = make_pod("p", labels={"old": "1", "app": "web"})
    async with stage([make_node("n"), pod]) as made:
        _, writer = await writing(made)
        (pod,) = made.pods().values()
        bind = Bind(pod.key, pod.metadata.uid, "n", {}, None, {"old": None, "group": "g"})
        assert await answers(writer, bind) == [None]
        (found,) = made.pods().values()
        assert found.metadata.labels == {"app": "web", "group": "g"}
        assert found.spec.node_name == "n"


async def test_a_created_object_gets_fields_that_bayplan_does_not_know() -> None:
    async with stage([make_node("n")]) as made:
        _, writer = await writing(made)
        fields = {"/spec/terminationGracePeriodSeconds": 5, "/spec/containers/0/image": "other"}
        assert await answers(writer, CreateObject(make_pod("p"), fields)) == [None]
        (found,) = made.pods().values()
        assert found.spec.termination_grace_period_seconds == 5
        assert found.spec.containers[0].image == "other"


async def test_nothing_is_created_of_a_kind_that_may_have_been_installed_just_now() -> None:
    """Others may have made what is not seen yet."""
    async with stage([make_node("n")]) as made:
        made.server.faults.fail(None, "list", "resourceflavors", code=404)
        app, writer = await writing(made)
        made.server.faults.clear()
        flavor = ResourceFlavor(ObjectMeta(name="f"))
        (error,) = await answers(writer, CreateObject(flavor))
        assert isinstance(error, NotFound)
        assert made.cluster.list(ResourceFlavor) == []
        assert app.cache is not None
        for reflector in app.cache.reflectors:
            reflector.look_up()
        await made.until(lambda: app.cache.follows(ResourceFlavor))
        assert await answers(writer, CreateObject(flavor)) == [None]
        assert len(made.cluster.list(ResourceFlavor)) == 1


async def test_a_binding_whose_answer_got_lost_is_not_taken_for_refused() -> None:
    async with stage([make_node("n"), make_node("m"), make_pod("p")]) as made:
        _, writer = await writing(made)
        (pod,) = made.pods().values()
        made.server.faults.close(1, "create", "pods/binding", after=True)
        assert await answers(writer, Bind(pod.key, pod.metadata.uid, "n")) == [None]
        (error,) = await answers(writer, Bind(pod.key, pod.metadata.uid, "m"))
        assert isinstance(error, Conflict)
        assert made.placements() == {"default/p": "n"}


async def test_the_same_event_again_is_counted_and_too_many_are_kept_back() -> None:
    async with stage([make_node("n"), make_pod("p")]) as made:
        _, writer = await writing(made)
        same = [Event("default/p", "Warning", "FailedScheduling", "no room")] * 3
        for event in same:
            await answers(writer, event)
        (written,) = made.events()
        assert written["count"] == 3
        many = [Event("default/p", "Normal", "Told", f"story {n}") for n in range(100)]
        for event in many:
            await answers(writer, event)
        assert len(made.events()) == 1 + 25 - 3


async def test_the_status_of_a_gang_is_not_written_for_every_member() -> None:
    size = 32
    async with stage([make_node(f"n{n}") for n in range(size)]) as made:
        await made.start(hold=0.05)
        made.create(make_gang("g", size), *(make_pod(f"g{n}", 5, gang="g") for n in range(size)))
        await made.run_out(5)
        assert len(made.placements()) == size
        assert made.server.calls["patch", "scheduling.sigs.k8s.io", "podgroups/status", True] < 8
        (group,) = (
            record.content
            for resource in made.cluster.resources.all()
            if (resource.group, resource.kind) == ("scheduling.sigs.k8s.io", "PodGroup")
            for record in made.cluster.records(resource).values()
        )
        assert group["status"]["phase"] == "Running"
        assert group["status"]["running"] == size


async def test_a_config_map_that_is_put_again_keeps_nothing_of_the_old_one() -> None:
    async with stage([make_node("n")]) as made:
        _, writer = await writing(made)
        for data in ({"a": "1", "b": "1"}, {"b": "2"}, {}):
            meta = ObjectMeta(name="c", namespace="default", annotations=data)
            assert await answers(writer, PutConfigMap(ConfigMap(meta, data))) == [None]
            found = made.cluster.get(ConfigMap, "default/c")
            assert (found.data, found.metadata.annotations) == (data, data)


def test_a_rate_lets_a_burst_through_and_the_rest_in_time() -> None:
    rate = RateLimiter(per_second=10, burst=5)
    delays = [rate.delay(0.0) for _ in range(8)]
    assert delays == pytest.approx([0, 0, 0, 0, 0, 0.1, 0.2, 0.3])
    assert rate.delay(10.0) == 0


async def test_after_a_halt_nothing_is_written_and_everybody_is_told() -> None:
    async with stage([make_node("n"), *(make_pod(f"p{n}") for n in range(50))]) as made:
        _, writer = await writing(made)
        made.server.faults.latency = 0.05
        found: list[ClusterError | None] = []
        for pod in made.pods().values():
            writer.submit(Bind(pod.key, pod.metadata.uid, "n"), found.append)
        await asyncio.sleep(0)
        writer.halt("enough")
        writer.submit(Bind("default/p0", "", "n"), found.append)
        await asyncio.sleep(0.1)
        assert len(found) == 51
        assert all(isinstance(error, Stopped) for error in found)
        assert writer.waiting == 0


async def test_a_write_that_comes_as_all_workers_end_is_written() -> None:
    """Their last writes are answered in one turn of the loop, and it comes later in that turn."""
    pods = [make_pod(f"p{index}") for index in range(5)]
    async with stage([make_node("n"), *pods]) as made:
        app, _ = await writing(made)
        slow = Slow(app.transport)
        writer = Writer(
            slow, EventRecorder(slow, "bayplan", "t"), app.cache, concurrency=4, hold=0.0
        )
        found: list[ClusterError | None] = []
        for pod in pods[:4]:
            writer.submit(waiting(app.cache.get(Pod, pod.key), "a"), found.append)
        await made.until(lambda: slow.waiting == 4)
        slow.answer.set()
        last = waiting(app.cache.get(Pod, pods[4].key), "b")
        asyncio.get_running_loop().call_soon(writer.submit, last, found.append)
        await made.until(lambda: len(found) == 5)
        assert found == [None] * 5


class Slow(Requests):
    """Answers nothing before ``answer`` is set, then all in one turn of the loop."""

    def __init__(self, inner: Requests) -> None:
        self.answer = asyncio.Event()
        self.waiting = 0
        self._inner = inner

    async def request(self, *arguments: Any, **named: Any) -> bytes:
        if not self.answer.is_set():
            body = await self._inner.request(*arguments, **named)
            self.waiting += 1
            await self.answer.wait()
            return body
        return await self._inner.request(*arguments, **named)


async def test_events_that_are_too_many_are_dropped_and_counted() -> None:
    async with stage([make_node("n"), make_pod("p")]) as made:
        registry = CollectorRegistry()
        app = await made.start(registry=registry)
        writer = app.writer
        assert writer is not None
        made.server.faults.latency = 0.05
        for index in range(1200):
            writer.submit(Event(f"default/p{index}", "Normal", "Told", "a story"))
        assert writer.dropped_events == 200
        text = generate_latest(registry).decode()
        assert "gpu_scheduler_events_dropped_total 200.0" in text
