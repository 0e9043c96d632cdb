"""GPUs that a fabric attaches: on the embedded API server, and on a real one with its double."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml
from tests.controlplane.fabric_agent import FabricAgent
from tests.controlplane.live_cluster import CLAIMS, EVENTS, Content, LiveCluster
from tests.controlplane.story_builders import DRIVER, devices, happens, nodes, with_device

from bayplan.api.times import seconds_of

CONFIG = "/api/v1/namespaces/default/configmaps"


def fabric(gpus: int, **double: Any) -> Content:
    """A fabric with so many GPUs that it attaches in a second."""
    model = {"index": 1, "k8s-device-name": "a100", "driver-name": DRIVER}
    given = {"fabrics": [{"id": 1, "devices": {"a100": gpus}}], "attachTime": "1s", **double}
    data = {"device-info": yaml.safe_dump([model]), "double": yaml.safe_dump(given)}
    meta = {"name": "fabric", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def hosts(count: int) -> list[Content]:
    """Nodes that the fabric reaches."""
    made = nodes(count)
    for one in made:
        one["metadata"]["labels"] |= {"cohdi.io/fabric": "1", "cohdi.io/a100": "true"}
    return made


@contextmanager
def played(cluster: LiveCluster, request: pytest.FixtureRequest, config: Content) -> Iterator[None]:
    """Play a fabric beside a real control plane; the embedded one plays its own."""
    assert cluster.client.post(CONFIG, config).code == 201
    real = request.node.callspec.params["cluster"] == "real"
    agent = FabricAgent(cluster.client)
    if real:
        agent.start()
    try:
        yield
    finally:
        cluster.client.delete(f"{CONFIG}/{config['metadata']['name']}")
        if real:
            agent.end()


def gpu(cluster: LiveCluster, pod: str) -> Content | None:
    """Return the device of a pod's claim, with the time of its allocation."""
    for claim in cluster.items(CLAIMS):
        status = claim.get("status", {})
        users = [one["name"] for one in status.get("reservedFor", ())]
        if users == [pod] and "allocation" in status:
            (result,) = status["allocation"]["devices"]["results"]
            return {**result, "at": status["allocation"].get("allocationTimestamp")}
    return None


def told(cluster: LiveCluster, pod: str) -> str:
    found = [e for e in cluster.items(EVENTS) if e["involvedObject"]["name"] == pod]
    return " ".join(event["message"] for event in found)


async def test_a_pod_is_bound_once_its_gpu_is_attached(
    cluster: LiveCluster, request: pytest.FixtureRequest
) -> None:
    cluster.apply([*hosts(1), *devices(0, gpus=0)])
    with played(cluster, request, fabric(1)):
        async with cluster.scheduler():
            began = time.time()
            cluster.apply([with_device("p")])
            await happens(lambda: gpu(cluster, "p"))
            found = gpu(cluster, "p")
            assert found is not None
            assert found["bindingConditions"] == ["FabricDeviceReady"]
            assert seconds_of(found["at"]) >= int(began)
            await happens(lambda: cluster.placements() == {"p": "n0"})
            assert time.time() - began >= 1
            await happens(lambda: "waits for device a100-0 to be attached" in told(cluster, "p"))


async def test_a_gpu_that_fails_is_given_back_and_another_one_is_attached(
    cluster: LiveCluster, request: pytest.FixtureRequest
) -> None:
    config = fabric(2, failures=[{"card": "a100-0"}])
    cluster.apply([*hosts(1), *devices(0, gpus=0)])
    with played(cluster, request, config):
        async with cluster.scheduler():
            cluster.apply([with_device("p")])
            await happens(lambda: cluster.placements() == {"p": "n0"})
            found = gpu(cluster, "p")
            assert found is not None
            assert found["device"] == "a100-1"
            assert "condition FabricDeviceFailed holds" in told(cluster, "p")


async def test_a_gpu_that_is_handed_over_is_kept_for_its_pod(
    cluster: LiveCluster, request: pytest.FixtureRequest
) -> None:
    cluster.apply([*hosts(1), *devices(0, gpus=0)])
    with played(cluster, request, fabric(1, handsOver=True)):
        async with cluster.scheduler():
            cluster.apply([with_device("p")])
            await happens(lambda: gpu(cluster, "p"))
            cluster.apply([with_device("thief")])
            await happens(lambda: cluster.placements())
            assert cluster.placements() == {"p": "n0"}
            found = gpu(cluster, "p")
            assert found is not None
            assert found["pool"] == "n0/attached"


async def test_a_scheduler_that_restarts_goes_on_with_what_is_being_attached(
    cluster: LiveCluster, request: pytest.FixtureRequest
) -> None:
    cluster.apply([*hosts(2), *devices(0, gpus=0)])
    with played(cluster, request, fabric(2, attachTime="4s")):
        async with cluster.scheduler():
            cluster.apply([with_device("p")])
            await happens(lambda: gpu(cluster, "p"))
            before = gpu(cluster, "p")
        assert cluster.placements() == {}
        async with cluster.scheduler():
            await happens(lambda: cluster.placements())
        assert gpu(cluster, "p") == before
