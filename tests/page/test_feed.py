"""What viewers of a live page get: every change, once, and not more than they can read."""

from __future__ import annotations

import json

import pytest

from bayplan.page import feed as module
from bayplan.page.feed import MOST_VIEWERS, Feed, TooManyViewers
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation
from bayplan.testing import make_node, make_pod


def live(wall: bool = False) -> tuple[Feed, Simulation]:
    simulation = Simulation(default_profiles())
    feed = Feed("test", wall=wall)
    feed.follow(simulation.scheduler)
    simulation.cluster.watch(feed.handle)
    simulation.create([make_node("n", cpu=1000, pods=1000)])
    simulation.run()
    feed.look(0.0)
    return feed, simulation


def happens(feed: Feed, simulation: Simulation, name: str) -> None:
    simulation.create([make_pod(name, cpu=1)])
    simulation.run()
    feed.look(0.0)


def received(viewer) -> list[dict]:
    found = []
    while not viewer.empty():
        patch = viewer.get_nowait()
        assert patch is not None
        found.append(json.loads(patch.text))
    return found


def test_ten_viewers_get_every_change_once() -> None:
    feed, simulation = live()
    start = json.loads(feed.everything())["version"]
    viewers = [feed.join(start) for _ in range(10)]
    for index in range(5):
        happens(feed, simulation, f"p{index}")
    for viewer in viewers:
        patches = received(viewer)
        assert [list(one["pods"]) for one in patches] == [[f"default/p{i}"] for i in range(5)]
        assert [one["version"] for one in patches] == [start + i + 1 for i in range(5)]


def test_a_page_of_another_process_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = [1_790_000_000, 1_790_000_060]
    monkeypatch.setattr(module.time, "time_ns", lambda: begun.pop(0) * 10**9)
    before, (after, simulation) = Feed("before", wall=True), live(wall=True)
    for index in range(3):
        happens(after, simulation, f"p{index}")
    assert after.join(before.version + 2).get_nowait() is None
    assert before.join(after.version).get_nowait() is None


def test_a_viewer_that_comes_later_gets_what_it_missed() -> None:
    feed, simulation = live()
    start = json.loads(feed.everything())["version"]
    happens(feed, simulation, "between")
    (patch,) = received(feed.join(start))
    assert "default/between" in patch["pods"]


def test_a_viewer_that_missed_too_much_starts_again() -> None:
    feed, simulation = live()
    start = json.loads(feed.everything())["version"]
    for index in range(module._KEPT + 1):
        happens(feed, simulation, f"p{index}")
    assert feed.join(start).get_nowait() is None
    assert feed.join(10**9).get_nowait() is None, "that of an earlier process"


def test_a_viewer_that_does_not_read_is_left_behind_without_limitless_memory() -> None:
    feed, simulation = live()
    viewer = feed.join(feed.version)
    for index in range(2 * module._BEHIND):
        happens(feed, simulation, f"p{index}")
    assert viewer.qsize() == module._BEHIND + 1
    last = [viewer.get_nowait() for _ in range(viewer.qsize())][-1]
    assert last is None


def test_more_viewers_than_are_served_are_refused() -> None:
    feed, _ = live()
    viewers = [feed.join(feed.version) for _ in range(MOST_VIEWERS)]
    with pytest.raises(TooManyViewers):
        feed.join(feed.version)
    feed.leave(viewers[0])
    feed.join(feed.version)


def test_everything_and_the_changes_since_make_the_same_rows() -> None:
    feed, simulation = live()
    rows = json.loads(feed.everything())
    viewer = feed.join(rows["version"])
    for index in range(8):
        happens(feed, simulation, f"p{index}")
    for patch in received(viewer):
        for kind in ("nodes", "pods", "units"):
            rows[kind].update(patch.get(kind, {}))
    fresh = json.loads(feed.everything())
    for kind in ("nodes", "pods", "units"):
        assert rows[kind] == fresh[kind]


def test_looks_at_a_few_nodes_each_show_all_in_the_end() -> None:
    feed, simulation = live()
    start = json.loads(feed.everything())["version"]
    simulation.create([make_node(f"more-{index}", cpu=10) for index in range(30)])
    simulation.create([make_pod(f"p{index}", cpu=1) for index in range(20)])
    simulation.run()
    viewer, looks = feed.join(start), 0
    while feed.is_behind:
        feed.look(0.0, most=7)
        looks += 1
    assert 5 <= looks <= 8
    seen: dict[str, set[str]] = {"nodes": set(), "pods": set(), "units": set()}
    for patch in received(viewer):
        for kind, names in seen.items():
            assert len(patch.get(kind, ())) <= 7
            names.update(patch.get(kind, ()))
    assert {f"more-{index}" for index in range(30)} <= seen["nodes"]
    assert {f"default/p{index}" for index in range(20)} <= seen["pods"] & seen["units"]
    rows = json.loads(feed.everything())
    assert rows["pods"].keys() >= {f"default/p{index}" for index in range(20)}
