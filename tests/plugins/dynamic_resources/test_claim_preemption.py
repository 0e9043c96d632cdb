"""Evictions for devices: the last pod that uses a claim frees its devices, whoever made it."""

from __future__ import annotations

from typing import Any

from tests.plugins.gpus.gpu_builders import (
    claim,
    devices,
    gpu_cluster,
    message,
    pod,
    request,
    template,
)

from bayplan.api import ResourceClaim
from bayplan.testing import Cluster


def preempting(*objects: Any, gpus: int = 2) -> Cluster:
    """Return a cluster whose GPUs are in use, and on which a pod that needs all waited a while."""
    made = gpu_cluster({"n": gpus}, template("all", request(count=gpus)), *objects)
    made.schedule()
    made.add(pod("urgent", "all", priority=1000))
    made.advance(60)
    return made


def evicted(made: Cluster) -> set[str]:
    return {one.pod.removeprefix("default/") for one in made.scheduler.evictor.evicted}


def user(name: str, of: str = "mine", **spec: Any) -> Any:
    return pod(name, from_claim=of, terminationGracePeriodSeconds=1, **spec)


def test_a_pod_is_evicted_for_the_devices_of_a_claim_that_a_user_made() -> None:
    made = preempting(claim("mine", request()), user("low"))
    assert evicted(made) == {"low"}
    assert devices(made, "urgent") == ["gpu-0", "gpu-1"]


def test_all_pods_that_share_a_claim_are_evicted_for_its_devices() -> None:
    made = preempting(claim("mine", request()), user("a"), user("b"), user("c"))
    assert evicted(made) == {"a", "b", "c"}
    assert devices(made, "urgent") == ["gpu-0", "gpu-1"]


def test_nobody_is_evicted_for_a_claim_that_a_more_important_pod_uses_as_well() -> None:
    made = preempting(claim("mine", request()), user("low"), user("high", priority=5000))
    assert evicted(made) == set()
    assert "1 of 2 can be had: 1 in use" in message(made, "urgent")


def test_only_as_many_claims_are_freed_as_are_needed() -> None:
    made = gpu_cluster(
        {"n": 2},
        template("one", request()),
        claim("mine", request()),
        claim("yours", request()),
        user("low"),
        user("lower", "yours", priority=-1),
    )
    made.schedule()
    made.add(pod("urgent", "one", priority=1000))
    made.advance(60)
    assert evicted(made) == {"lower"}


def test_the_last_pod_that_uses_a_claim_deallocates_it() -> None:
    made = gpu_cluster({"n": 1}, claim("mine", request()), *(user(name) for name in ("a", "b")))
    made.schedule()
    made.remove("a")
    (kept,) = made.api.list(ResourceClaim)
    assert kept.status.allocation is not None
    made.remove("b")
    (freed,) = made.api.list(ResourceClaim)
    assert freed.status.allocation is None
    assert freed.metadata.finalizers == ()


def test_a_claim_that_its_pods_preemptor_uses_is_allocated_anew() -> None:
    made = gpu_cluster(
        {"a": 1, "b": 2},
        claim("mine", request()),
        user("low", resources={"requests": {"cpu": "30"}}),
    )
    made.schedule()
    made.add(user("urgent", priority=1000, resources={"requests": {"cpu": "20"}}))
    placed = made.advance(60)
    assert evicted(made) == {"low"}
    assert "urgent" in placed
