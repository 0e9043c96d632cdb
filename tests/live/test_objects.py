"""Objects of a cluster that are not as they should be: each has its answer, and no loop ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.live.stage import Stage, stage

from bayplan.api import Node
from bayplan.live.election import Election
from bayplan.profiles.finder import PluginFinder
from bayplan.profiles.loading import default_profiles, load_profiles
from bayplan.profiles.settings import LeaderElection
from bayplan.testing import make_gang, make_node, make_pod

PODS = "/api/v1/namespaces/default/pods"


def condition(made: Stage, key: str) -> str:
    found = next(c for c in made.pods()[key].status.conditions if c.type == "PodScheduled")
    return found.message


async def test_a_malformed_annotation_of_a_gang_is_told_to_its_pods_and_the_others_go_on() -> None:
    bad = {"gang.scheduling.koordinator.sh/network-topology-spec": "{no json"}
    async with stage([make_node("n0")]) as made:
        await made.start()
        made.create(make_gang("g", 1, annotations=bad), make_pod("g0", gang="g"))
        made.create(make_pod("fine"))
        await made.run_out(5)
        assert made.placements() == {"default/fine": "n0"}
        assert "network-topology-spec" in condition(made, "default/g0")
        told = [event["message"] for event in made.events() if event["type"] == "Warning"]
        assert any("network-topology-spec" in message for message in told)


async def test_a_node_with_a_negative_capacity_is_passed_over_with_a_reason() -> None:
    async with stage([make_node("good")]) as made:
        app = await made.start()
        made.create(make_node("bad", cpu="-4"), make_pod("p"))
        await made.run_out(5)
        assert made.placements() == {"default/p": "good"}
        assert "-4" in app.cache.unreadable["Node", "bad"]
        (event,) = (e for e in made.events() if e["involvedObject"]["kind"] == "Node")
        assert (event["reason"], event["type"]) == ("Unreadable", "Warning")
        # It is used as soon as it makes sense.
        wrong = made.cluster.get(Node, "bad")
        assert wrong is not None
        made.cluster.update(make_node("bad"))
        made.create(make_pod("wide", spec={"nodeName": ""}, cpu=8))
        await made.run_out(20)
        assert ("Node", "bad") not in app.cache.unreadable
        assert made.placements()["default/wide"] == "bad"


async def test_what_a_pod_uses_counts_even_if_this_program_cannot_read_it() -> None:
    async with stage([make_node("n0", cpu=4), make_pod("strange", 3, node="n0")]) as made:
        resource = made.cluster.resources.of_kind("", "Pod")
        assert resource is not None
        content = made.cluster.records(resource)["default/strange"].content
        spec = {**content["spec"], "tolerations": [{"operator": "Likes", "key": "newer"}]}
        made.cluster.store_content(resource, "default/strange", {**content, "spec": spec})
        app = await made.start()
        made.create(make_pod("two", cpu=2), make_pod("one", cpu=1))
        await made.run_out(5)
        assert "Likes" in app.cache.unreadable["Pod", "default/strange"]
        assert "default/one" in made.placements()
        assert "default/two" not in made.placements()


async def test_clocks_that_jump_cost_a_leader_its_lease_and_nobody_a_pod() -> None:
    now = 0.0
    async with stage([make_node("n0")]) as made:
        app = await made.start()
        election = Election(
            app.transport, LeaderElection(), "me", lambda leading: None, clock=lambda: now
        )
        task = asyncio.create_task(election.run())
        await made.until(election.leads)
        # Forwards: the machine was suspended, so another one may lead by now.
        now += 11
        assert not election.leads()
        task.cancel()
        # Backwards: nothing waits for a time that was.
        now -= 3600
        made.create(make_pod("p"))
        await made.run_out(5)
        assert made.placements() == {"default/p": "n0"}


BOMB = """
from bayplan import Plugin, PodInfo, hookimpl


class Bomb(Plugin):
    @hookimpl
    def filter_node(self, pod: PodInfo) -> str | None:
        if pod.name == "bomb":
            raise RuntimeError("boom")
        return None
"""
PROFILE = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  plugins:
    multiPoint:
      enabled:
      - name: Bomb
"""


async def test_a_plugin_that_raises_fails_its_own_pod_and_not_the_loop(tmp_path: Path) -> None:
    (tmp_path / "bomb.py").write_text(BOMB)
    (tmp_path / "profile.yaml").write_text(PROFILE)
    profiles = load_profiles(tmp_path / "profile.yaml", PluginFinder(tmp_path))

    async with stage([make_node("n0")]) as made:
        await made.start(profiles)
        made.create(make_pod("bomb"), make_pod("fine"))
        await made.run_out(3)
        assert made.placements() == {"default/fine": "n0"}
        assert "boom" in condition(made, "default/bomb")


async def test_schedulers_that_know_nothing_of_each_other_leave_no_node_overloaded() -> None:
    def named(name: str) -> Any:
        profiles = default_profiles()
        only = replace(profiles.profiles[0], scheduler_name=name)
        return replace(profiles, profiles=(only,), any_scheduler=False)

    async with stage([make_node(f"n{index}", cpu=4) for index in range(10)]) as made:
        made.server.faults.latency = 0.003
        clock = {"clock": asyncio.get_running_loop().time}
        ticker = asyncio.create_task(made.tick())
        for name in ("one", "two"):
            await made.start(named(name), **clock)
        for index in range(60):
            name = ("one", "two")[index % 2]
            made.create(make_pod(f"p{index}", spec={"schedulerName": name}))
        await asyncio.sleep(120)
        made.check_nodes()
        pods = made.pods().values()
        running = [p for p in pods if p.spec.node_name and p.status.phase == "Running"]
        refused = [p for p in pods if p.status.reason == "OutOfcpu"]
        waiting = [p for p in pods if not p.spec.node_name]
        assert len(running) == 40
        assert len(running) + len(refused) + len(waiting) == 60
        for one in waiting:
            assert "Insufficient cpu" in condition(made, one.key)
        assert made.server.calls["create", "", "pods/binding", True] == len(pods) - len(waiting)
        ticker.cancel()


async def test_pods_of_other_schedulers_use_their_nodes_and_are_left_alone() -> None:
    async with stage([make_node("n0", cpu=4)]) as made:
        ours = replace(default_profiles(), any_scheduler=False)
        await made.start(ours)
        made.create(make_pod("theirs", cpu=1, spec={"schedulerName": "other"}))
        bound = make_pod("bound", cpu=3, node="n0", spec={"schedulerName": "other"})
        made.create(bound, make_pod("ours", cpu=2))
        await made.run_out(3)
        assert made.placements() == {"default/bound": "n0"}
        assert made.pods()["default/theirs"].status.conditions == ()
        assert "Insufficient cpu" in condition(made, "default/ours")


async def test_a_profile_is_reloaded_without_a_server_and_the_scheduler_can_still_be_stopped() -> (
    None
):
    async with stage([make_node("n0")]) as made:
        app = await made.start(clock=asyncio.get_running_loop().time)
        port = made.server.port
        await made.server.stop()
        app.reload()
        await asyncio.sleep(5)
        assert await made.stop(app) == 0
        made.server.port = port
        await made.server.start()


async def test_a_reload_places_nothing_twice() -> None:
    async with stage([make_node(f"n{index}", cpu=4) for index in range(10)]) as made:
        made.server.faults.latency = 0.003
        ticker = asyncio.create_task(made.tick())
        app = await made.start(clock=asyncio.get_running_loop().time)
        for index in range(8):
            made.create(*(make_pod(f"p{index}-{n}") for n in range(5)))
            app.reload()
            await asyncio.sleep(0.02)
        await asyncio.sleep(30)
        assert len(made.placements()) == 40
        made.check_nodes()
        assert made.server.calls["create", "", "pods/binding", True] == 40
        ticker.cancel()
