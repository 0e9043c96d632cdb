"""Of equal priority, preemption takes what loses the least: GPU hours since the last checkpoint."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from tests.plugins.test_preemption import evicted, urgent

from bayplan.api import ApiObject, Pod, ResourceClaim
from bayplan.api.pod import PodCondition
from bayplan.api.times import rfc3339
from bayplan.queues.lost_work import LostWork
from bayplan.testing import Cluster, make_gang, make_node, make_object, make_pod
from bayplan_plugins.preemption.known import KnownEvictions

HOUR = 3600
SAVED = "bayplan.dev/checkpointed-at"
START = Cluster().api.unix_time


def running(name: str, node: str, hours: float, gpu: int = 0, **fields: str | int) -> Pod:
    """Return a pod that has run for so many hours."""
    pod = make_pod(name, node=node, priority=1, gpu=gpu, **fields)
    return replace(pod, status=replace(pod.status, start_time=rfc3339(START - hours * HOUR)))


def saved(pod: Pod, hours: float) -> Pod:
    """Let a pod say that its work was saved so many hours ago."""
    said = {SAVED: rfc3339(START - hours * HOUR)}
    return replace(pod, metadata=replace(pod.metadata, annotations=said))


def nodes(*gpus: int) -> list[ApiObject]:
    return [make_node(f"n{index}", gpu=count) for index, count in enumerate(gpus)]


def test_few_gpus_for_long_go_before_many_for_a_shorter_time() -> None:
    # 5 GPU hours against 16.
    cluster = Cluster([*nodes(8, 8), running("one", "n0", 5, 1), running("many", "n1", 2, 8)])
    cluster.add(make_pod("filler", node="n0", priority=200, gpu=7))
    cluster.add(urgent(gpu=1))
    cluster.schedule()
    assert evicted(cluster) == ["one"]


def test_a_gang_that_has_saved_its_work_goes_before_a_smaller_one_that_has_not() -> None:
    cluster = Cluster(nodes(8, 8, 8, 8, 8))
    cluster.add(make_gang("big", 3), make_gang("small", 2))
    cluster.add(*(running(f"big-{i}", f"n{i}", 10, 8, gang="big") for i in range(1, 3)))
    # One member says it for all of them.
    cluster.add(saved(running("big-0", "n0", 10, 8, gang="big"), 0.1))
    cluster.add(*(running(f"small-{i}", f"n{3 + i}", 10, 8, gang="small") for i in range(2)))
    cluster.add(make_gang("next", 2))
    cluster.add(*(urgent(f"next-{i}", gpu=8, gang="next") for i in range(2)))
    cluster.schedule()
    assert sorted(evicted(cluster)) == ["big-0", "big-1", "big-2"]


def test_a_condition_says_the_same_as_the_annotation() -> None:
    old, new = running("old", "n0", 9, 8), running("new", "n1", 5, 8)
    at = rfc3339(START - HOUR)
    told = PodCondition("bayplan.dev/Checkpointed", "True", last_transition_time=at)
    cluster = Cluster([*nodes(8, 8), old, new])
    cluster.schedule()
    cluster.api.update(replace(old, status=replace(old.status, conditions=(told,))))
    cluster.add(urgent(gpu=8))
    cluster.schedule()
    assert evicted(cluster) == ["old"]


def claim(name: str, devices: int, users: int = 1, **result: object) -> ApiObject:
    """Return a claim with devices that so many pods use: name-0 and so on, or name."""
    common = {"request": "g", "driver": "gpu.example.com", "pool": "p", **result}
    results = [{**common, "device": f"g{index}"} for index in range(devices)]
    pods = [name] if users == 1 else [f"{name}-{index}" for index in range(users)]
    return make_object(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": []}},
            "status": {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [
                    {"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods
                ],
            },
        }
    )


def claiming(pod: Pod, name: str) -> Pod:
    """Let a pod use a claim."""
    named = {"name": "g", "resourceClaimName": name}
    spec = make_pod("p", spec={"resourceClaims": [named]}).spec
    return replace(pod, spec=replace(pod.spec, resource_claims=spec.resource_claims))


def costs(*objects: ApiObject) -> dict[str, float]:
    """Return the GPU hours that single victims of a pod that needs a core would lose, by pod."""
    cluster = Cluster(objects)
    cluster.add(urgent(cpu="1"))
    cluster.schedule()
    found = {}
    for trial in cluster.decision("urgent").preemption:
        hours = re.search(r"up to ([0-9.,]+) GPU hours", trial.cost)
        (victim,) = trial.victims
        found[victim.removeprefix("default/")] = float(hours[1]) if hours else 0.0
    return found


def one_each(*pods: Pod) -> list[ApiObject]:
    """Return the pods, each on a node of one core and many GPUs of all kinds."""
    kinds = dict.fromkeys((*OTHERS, "nvidia.com/gpu"), 16)
    return [*(make_node(pod.spec.node_name, cpu=1, **kinds) for pod in pods), *pods]


OTHERS = {
    "amd.com/gpu": 8.0,
    "gpu.intel.com/i915": 8.0,
    "nvidia.com/mig-1g.10gb": 8 / 7,
    "nvidia.com/gpu.shared": 8.0,
    "nvidia.com/hostdev": 0.0,
}
"""What eight of other resources count, in GPUs."""


def test_gpus_of_claims_count_as_much_as_requested_ones() -> None:
    four = claiming(running("four", "n0", 3), "four")
    found = costs(*one_each(four, running("two", "n1", 3, 2)), claim("four", 4))
    assert found == {"four": pytest.approx(12.2, abs=0.3), "two": pytest.approx(6.1, abs=0.2)}


def test_devices_for_administrators_cost_nothing_and_users_share_a_claim() -> None:
    watcher = claiming(running("watcher", "n0", 3), "watcher")
    sharing = claiming(running("sharing-0", "n1", 3), "sharing")
    found = costs(
        *one_each(watcher, sharing),
        claim("watcher", 8, adminAccess=True),
        claim("sharing", 4, users=4),
    )
    assert found == {"watcher": 0.0, "sharing-0": pytest.approx(3.0, abs=0.15)}


def test_a_claim_that_shrinks_costs_less_at_once() -> None:
    four = claiming(running("four", "n0", 3), "four")
    cluster = Cluster([*one_each(four), claim("four", 4)])
    cluster.add(make_pod("low", cpu="1", priority=-1))
    cluster.schedule()
    handle = cluster.scheduler.handle_for("DefaultPreemption", "default-scheduler")
    known = KnownEvictions(handle)
    before = known.columns(10).lost.tolist()
    current = cluster.api.get(ResourceClaim, "default/four")
    fewer = claim("four", 1)
    assert current is not None
    assert isinstance(fewer, ResourceClaim)
    cluster.api.update(replace(current, status=fewer.status))
    cluster.schedule()
    assert [4 * one for one in known.columns(10).lost.tolist()] == before
    assert before[0] > 0


@pytest.mark.parametrize("resource", OTHERS)
def test_other_accelerators_and_parts_of_gpus_count(resource: str) -> None:
    pod = running("other", "n0", 10, **{resource: 8})
    (hours,) = costs(*one_each(pod)).values()
    assert hours == pytest.approx(10 * OTHERS[resource], rel=0.01, abs=0.06)


def test_an_absurd_request_stops_nobody() -> None:
    mad = running("mad", "n0", 100_000, 10**12)
    cluster = Cluster([make_node("n0", cpu=2, gpu=8), mad, running("x", "n0", 1, 1)])
    cluster.add(make_node("n1", cpu=1), running("small", "n1", 1), urgent(cpu="1"))
    cluster.schedule()
    assert evicted(cluster) == ["small"]


def test_a_clock_that_is_set_back_changes_nothing() -> None:
    found = LostWork(Cluster().snapshot)
    found.advance(1_000_000.0)
    before = found.as_of
    found.advance(999_000.0)
    assert found.as_of == before


@pytest.mark.parametrize("hours_ago", [0.0, -5.0])
def test_what_was_saved_just_now_or_by_a_clock_that_is_ahead_loses_nothing(
    hours_ago: float,
) -> None:
    just_saved = saved(running("saved", "n0", 9, 8), hours_ago)
    cluster = Cluster([*nodes(8, 1), just_saved, running("small", "n1", 1, 1)])
    cluster.add(urgent(gpu=1))
    cluster.schedule()
    assert evicted(cluster) == ["saved"]


def test_pods_without_gpus_go_as_in_kubernetes() -> None:
    cluster = Cluster([make_node("n0", cpu=1), make_node("n1", cpu=1)])
    cluster.add(running("old", "n0", 9), running("new", "n1", 1))
    cluster.add(urgent(cpu="1"))
    cluster.schedule()
    assert evicted(cluster) == ["new"]


def test_the_cost_is_told_in_gpu_hours() -> None:
    cluster = Cluster([*nodes(8), running("only", "n0", 2, 8)])
    cluster.add(urgent(gpu=8))
    cluster.schedule()
    (trial,) = cluster.decision("urgent").preemption
    assert "up to 16.7 GPU hours of work lost" in trial.cost
