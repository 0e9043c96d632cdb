"""A scheduler that dies while GPUs are being attached, and the one that follows it."""

from __future__ import annotations

from tests.plugins.dynamic_resources.fabric_builders import (
    fabric,
    fabric_cluster,
    gpu_of,
    host,
    places,
)
from tests.plugins.gpus.gpu_builders import group, ledger, message, pod

from bayplan.api import ResourceClaim
from bayplan.api.configmap import ConfigMap
from bayplan.profiles.loading import default_profiles
from bayplan.scheduler.scheduler import Scheduler
from bayplan.testing import Cluster


def restart(made: Cluster) -> None:
    """Replace the scheduler by one that knows only what the API says."""
    made.restart()
    made.schedule()


def attaching(config: ConfigMap, seconds: float) -> Cluster:
    """Return a cluster whose scheduler dies some seconds after it allocated a GPU for pod p."""
    made = fabric_cluster(config, host("n1", "a"), host("n2", "a"), pod("p", "one"))
    made.schedule()
    made.advance(seconds)
    assert made.placements() == {}
    return made


def test_the_next_scheduler_waits_for_the_gpu_that_is_being_attached() -> None:
    made = attaching(fabric({"a": 2}), 12)
    before = gpu_of(made, "p")
    restart(made)
    assert gpu_of(made, "p") == before
    node = before.partition(":")[0]
    text = made.scheduler.awaited("default/p")[0]
    assert (text.since, text.limit) == (0.0, 600.0)
    assert f"waits for device a-0 to be attached to node {node}" in message(made, "p")
    assert made.advance(8) == {"p": node}


def test_the_next_scheduler_keeps_the_time_limit_of_the_first() -> None:
    made = attaching(fabric({"a": 2}, failures=[{"card": "a-0", "result": "Silent"}]), 500)
    restart(made)
    made.advance(99)
    assert gpu_of(made, "p").endswith("a-0")
    made.advance(1)
    assert "waited 600 s for device a-0" in message(made, "p")
    made.advance(60)
    assert gpu_of(made, "p").endswith("a-1")
    assert "p" in made.placements()


def test_the_next_scheduler_undoes_what_failed_meanwhile() -> None:
    made = attaching(fabric({"a": 2}, failures=[{"card": "a-0"}]), 12)
    made.crash()
    made.api.clock.advance(25)
    made.api.deliver()
    restart(made)
    made.advance(60)
    assert gpu_of(made, "p").endswith("a-1")
    assert "p" in made.placements()


def test_the_next_scheduler_takes_the_gpu_that_was_handed_over_meanwhile() -> None:
    made = attaching(fabric({"a": 1}, handsOver=True), 12)
    made.crash()
    made.api.clock.advance(25)
    made.add(pod("other", "one"))
    restart(made)
    assert "p" in made.placements()
    assert "other" not in made.placements()


def test_a_pod_that_went_while_nobody_scheduled_leaves_no_gpu_taken() -> None:
    made = attaching(fabric({"a": 1}), 12)
    made.crash()
    made.remove("p")
    restart(made)
    assert made.api.list(ResourceClaim) == []
    assert ledger(made).state.devices == set()
    made.advance(8)
    assert set(places(made).values()) <= {"n1", "n2"}
    made.add(pod("q", "one"))
    made.schedule()
    made.advance(20)
    assert "q" in made.placements()


def test_a_gang_goes_on_after_a_restart_between_its_writes() -> None:
    made = fabric_cluster(fabric({"a": 3}), host("n1", "a"), host("n2", "a"), group("g", 3))
    made.add(*(pod(f"g-{i}", "one", gang="g") for i in range(3)))
    made.schedule()
    made.advance(12)
    restart(made)
    assert len(made.advance(8)) == 3


def test_a_gang_that_cannot_go_on_after_a_restart_keeps_its_gpu_from_others() -> None:
    made = fabric_cluster(fabric({"a": 2}), host("n1", "a", a_size_max="1"), host("n2", "a"))
    made.add(group("g", 2), *(pod(f"g-{i}", "one", gang="g") for i in range(2)))
    made.schedule()
    made.api.vanish_node("n2")
    made.add(pod("other", "one"))
    restart(made)
    held = [gpu_of(made, name) for name in ("g-0", "g-1", "other")]
    assert len([gpu for gpu in held if gpu]) == len({gpu for gpu in held if gpu})


def test_two_schedulers_never_give_a_gpu_to_two_claims() -> None:
    made = fabric_cluster(fabric({"a": 2}), host("n1", "a"), host("n2", "a"))
    made.add(*(pod(name, "one") for name in "pqr"))
    second = Scheduler(made.api, default_profiles())
    made.api.deliver()
    for _ in range(20):
        made.scheduler.step()
        second.step()
        made.api.deliver()
    made.advance(40)
    held = [
        (result.pool, result.device)
        for claim in made.api.list(ResourceClaim)
        if claim.status.allocation is not None
        for result in claim.status.allocation.devices.results
    ]
    assert len(held) == len(set(held))
