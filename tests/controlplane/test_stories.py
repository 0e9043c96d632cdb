"""What users do with a cluster; the same on the embedded API server and on a real one."""

from __future__ import annotations

import time
from collections import Counter

from msgspec.structs import replace
from tests.controlplane.live_cluster import CLAIMS, PODS, VOLUME_CLAIMS, Content, LiveCluster
from tests.controlplane.story_builders import (
    asking,
    devices,
    happens,
    nodes,
    with_device,
)
from tests.scenarios.expected import Outcome

from bayplan.live.app import LiveApp
from bayplan.profiles.loading import ProfileSet, default_profiles
from bayplan.profiles.settings import LeaderElection


async def test_plain_pods_fill_the_nodes_and_no_node_takes_too_many(cluster: LiveCluster) -> None:
    cluster.apply(nodes(3))
    async with cluster.scheduler() as app:
        cluster.apply(asking(f"p{i}", 2) for i in range(13))

        def check(outcome: Outcome) -> None:
            assert Counter(outcome.placements.values()) == {"n0": 4, "n1": 4, "n2": 4}
            (message,) = outcome.pending.values()
            assert message.startswith("0/3 nodes are available: 3 Insufficient cpu")

        await cluster.ends(app, check)


async def test_a_gated_pod_gets_its_node_when_the_last_gate_is_removed(
    cluster: LiveCluster,
) -> None:
    cluster.apply(nodes(1))
    async with cluster.scheduler() as app:
        gates = [{"name": "example.com/a"}, {"name": "example.com/b"}]
        cluster.apply([asking("gated", schedulingGates=gates), asking("free")])

        def check(outcome: Outcome) -> None:
            assert outcome.placements == {"free": "n0"}

        for left in (gates, gates[:1]):
            cluster.client.patch(f"{PODS}/gated", {"spec": {"schedulingGates": left}})
            await cluster.ends(app, check)
        cluster.client.patch(f"{PODS}/gated", {"spec": {"schedulingGates": []}})
        await happens(lambda: "gated" in cluster.placements())


async def test_an_important_pod_evicts_the_least_important_one(cluster: LiveCluster) -> None:
    cluster.apply(nodes(2))
    async with cluster.scheduler() as app:
        cluster.apply([asking("a", 8, priority=5), asking("b", 8, priority=1)])
        await happens(lambda: len(cluster.placements()) == 2)
        home = cluster.placements()["b"]
        cluster.apply([asking("urgent", 4, priority=9)])

        def check(outcome: Outcome) -> None:
            assert outcome.placements.get("urgent") == home
            assert outcome.evicted == ["b"]

        await cluster.ends(app, check)


# Devices ---------------------------------------------------------------------------------------


def held(cluster: LiveCluster) -> dict[str, str]:
    """Return who holds each device; every claim is for one device and one pod at most."""
    found = {}
    for claim in cluster.items(CLAIMS):
        status = claim.get("status", {})
        if "allocation" in status:
            (device,) = status["allocation"]["devices"]["results"]
            (user,) = status.get("reservedFor", [{"name": ""}])
            key = f"{device['pool']}/{device['device']}"
            assert key not in found, f"{key} is in two claims"
            found[key] = user["name"]
    return found


async def test_devices_of_claims_go_to_one_pod_each_and_then_to_the_next(
    cluster: LiveCluster,
) -> None:
    cluster.apply([*nodes(2), *devices(2, gpus=2)])
    async with cluster.scheduler() as app:
        cluster.apply(with_device(f"p{i}") for i in range(5))

        def check(outcome: Outcome) -> None:
            assert len(outcome.placements) == 4
            assert {u: k.split("/")[0] for k, u in held(cluster).items()} == outcome.placements
            (message,) = outcome.pending.values()
            assert "cannot allocate all claims" in message

        await cluster.ends(app, check)
        freed = next(iter(cluster.placements()))
        (last,) = cluster.outcome().pending
        cluster.client.delete(f"{PODS}/{freed}", gracePeriodSeconds=0)
        await happens(lambda: last in cluster.placements())
        assert last in held(cluster).values()


# Volumes ---------------------------------------------------------------------------------------


def local_volumes(count: int) -> list[Content]:
    """A class that waits for the first consumer, and one volume on each node."""
    made: list[Content] = [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "local"},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
    ]
    for index in range(count):
        on_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [f"n{index}"]}
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local",
            "local": {"path": "/mnt/disk"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}},
        }
        meta = {"name": f"disk-n{index}"}
        made.append(
            {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": meta, "spec": spec}
        )
    return made


def with_volume(name: str) -> list[Content]:
    """A pod and its claim for a local volume."""
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    meta = {"name": name, "namespace": "default"}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]
    return [claim, asking(name, volumes=volumes)]


async def test_volumes_that_wait_for_a_consumer_are_bound_on_its_node(cluster: LiveCluster) -> None:
    cluster.apply([*nodes(3), *local_volumes(2)])
    async with cluster.scheduler() as app:
        cluster.apply(one for i in range(3) for one in with_volume(f"p{i}"))

        def check(outcome: Outcome) -> None:
            assert sorted(outcome.placements.values()) == ["n0", "n1"]
            bound = {
                claim["metadata"]["name"]: claim["spec"]["volumeName"].removeprefix("disk-")
                for claim in cluster.items(VOLUME_CLAIMS)
                if claim["status"]["phase"] == "Bound"
            }
            assert bound == outcome.placements
            (message,) = outcome.pending.values()
            assert "didn't find available persistent volumes to bind" in message

        await cluster.ends(app, check)


# Election --------------------------------------------------------------------------------------

LEASE = LeaderElection(
    resource_namespace="bayplan-system",
    resource_name="bayplan",
    lease_duration=3.0,
    renew_deadline=2.0,
    retry_period=0.5,
)


def electing() -> ProfileSet:
    return replace(default_profiles(), leader_election=LEASE)


async def killed(app: LiveApp) -> None:
    """End a scheduler as SIGKILL does: nothing is written, the lease is kept."""
    app.halt()
    app.stop()


async def test_when_the_leader_is_killed_the_other_one_leads_within_the_lease(
    cluster: LiveCluster,
) -> None:
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bayplan-system"}}
    cluster.client.post("/api/v1/namespaces", space)
    cluster.apply(nodes(2))
    options = {"leader_elect": True}
    async with cluster.scheduler(electing(), **options) as first:
        await happens(first.leads)
        async with cluster.scheduler(electing(), **options) as second:
            cluster.apply(asking(f"a{i}") for i in range(4))
            await happens(lambda: len(cluster.placements()) == 4)
            assert not second.leads()
            began = time.monotonic()
            await killed(first)
            cluster.apply(asking(f"b{i}") for i in range(4))
            await happens(lambda: len(cluster.placements()) == 8)
            assert second.leads()
            assert time.monotonic() - began >= LEASE.lease_duration - LEASE.retry_period
