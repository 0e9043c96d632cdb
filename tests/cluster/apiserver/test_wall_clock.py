"""A cluster in real time: things happen by themselves, and the clock can be stopped."""

from __future__ import annotations

import asyncio

from bayplan.cluster.apiserver import ServedCluster, WallClock


async def happens(events: list[str], text: str) -> None:
    async with asyncio.timeout(60):
        while text not in events:
            await asyncio.sleep(0.001)


async def test_what_is_due_happens_without_anybody_asking() -> None:
    clock, events = WallClock(), []
    cluster = ServedCluster(clock=clock)
    clock.call_later(0.002, lambda: events.append("second"))
    clock.call_later(0.001, lambda: events.append("first"))
    cluster.settle()
    await happens(events, "second")
    assert events == ["first", "second"]
    assert clock.now >= 0.002


async def test_an_earlier_action_replaces_the_alarm() -> None:
    clock, events = WallClock(), []
    cluster = ServedCluster(clock=clock)
    clock.call_later(3600, lambda: events.append("late"))
    cluster.settle()
    clock.call_later(0.001, lambda: events.append("soon"))
    cluster.settle()
    await happens(events, "soon")
    assert events == ["soon"]


async def test_a_stopped_clock_stands_still() -> None:
    clock, events = WallClock(), []
    cluster = ServedCluster(clock=clock)
    cluster.settle()
    clock.stop()
    stopped = clock.now
    clock.call_later(0.001, lambda: events.append("never"))
    cluster.settle()
    await asyncio.sleep(0.01)
    cluster.settle()
    assert clock.now == stopped
    assert events == []
