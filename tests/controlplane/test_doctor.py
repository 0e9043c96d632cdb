"""The doctor on a real control plane, with what is wrong there in turn."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from click.testing import CliRunner
from msgspec.structs import replace
from tests.cluster.apiserver.faces import STRATEGIC
from tests.controlplane.installation import path_of
from tests.controlplane.live_cluster import LiveCluster
from tests.controlplane.plane import ControlPlane, wait_until
from tests.controlplane.story_builders import nodes
from tests.controlplane.test_configs import role_without
from tests.live.deployed import only

from bayplan.cli import cli
from bayplan.profiles.loading import default_profiles
from bayplan.profiles.settings import LeaderElection

LEASE = "/apis/coordination.k8s.io/v1/namespaces/bayplan-system/leases/bayplan"


def examined(plane: ControlPlane, *options: str) -> tuple[int, dict[str, Any]]:
    """Return the exit status, and what is said of each subject."""
    given = ["doctor", "--kubeconfig", str(plane.kubeconfig), "-o", "json", *options]
    done = CliRunner().invoke(cli, given)
    assert done.exit_code in (0, 1), (done.output, done.exception)
    return done.exit_code, {one["about"]: one for one in json.loads(done.output)}


@contextmanager
def ready_nodes(cluster: LiveCluster) -> Iterator[None]:
    cluster.apply(nodes(2))
    condition = {"type": "Ready", "status": "True", "reason": "x", "message": "x"}
    room = {"cpu": "8", "memory": "8Gi", "pods": "10", "nvidia.com/gpu": "4"}
    for name in cluster.client.names("/api/v1/nodes"):
        body = {"status": {"conditions": [condition], "allocatable": room, "capacity": room}}
        answer = cluster.client.patch(f"/api/v1/nodes/{name}/status", body, STRATEGIC)
        assert answer.code == 200, answer
    yield


async def test_a_cluster_with_a_scheduler_is_well(plane: ControlPlane, real: LiveCluster) -> None:
    with ready_nodes(real):
        election = LeaderElection(resource_namespace="bayplan-system")
        profiles = replace(default_profiles(), leader_election=election)
        async with real.scheduler(profiles, leader_elect=True):
            await asyncio.to_thread(
                wait_until, lambda: real.client.get(LEASE).code == 200, "it leads", 20
            )
            code, found = await asyncio.to_thread(examined, plane)
    real.client.delete(LEASE)
    assert (code, {one["level"] for one in found.values()}) == (0, {"ok"}), found
    assert found["nodes"]["text"] == "2 nodes, 8 nvidia.com/gpu"
    assert "leads, for" in found["scheduler"]["text"]
    assert "groups of other systems' kinds are served" in found["kinds"]["text"]


def test_what_is_missing_is_named_with_what_helps(plane: ControlPlane, real: LiveCluster) -> None:
    real.client.delete(LEASE)
    (rule,) = (r for r in only("ClusterRole")["rules"] if "pods/eviction" in r.get("resources", ()))
    with role_without(real, rule):
        code, found = examined(plane)
    assert code == 1
    assert found["nodes"]["text"] == "there are none"
    assert "helm install bayplan" in found["scheduler"]["remedy"]
    said = "bayplan-system/bayplan-scheduler may not create pods/binding, create pods/eviction"
    assert said in found["rights"]["text"]


def test_pods_of_a_scheduler_that_nobody_is_are_counted(
    plane: ControlPlane, real: LiveCluster
) -> None:
    spec = {"schedulerName": "bayplam", "containers": [{"name": "c", "image": "x"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    real.apply([pod])
    _, found = examined(plane)
    assert found["waiting"]["level"] == "warning"
    assert 'of these 1 for "bayplam"' in found["waiting"]["text"]


def test_nodes_that_are_silent_and_other_systems_are_warned_of(
    plane: ControlPlane, real: LiveCluster
) -> None:
    real.apply(nodes(1))
    (name,) = real.client.names("/api/v1/nodes")
    condition = {"type": "Ready", "status": "Unknown", "reason": "x", "message": "x"}
    body = {"status": {"conditions": [condition]}}
    assert real.client.patch(f"/api/v1/nodes/{name}/status", body, STRATEGIC).code == 200
    labels = {"app": "vc"}
    containers = [{"name": "c", "image": "volcanosh/vc-scheduler:v1.15.1"}]
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": "vc", "namespace": "default"}
    content = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    real.client.post(path_of(content, name=False), content)
    try:
        _, found = examined(plane)
    finally:
        real.client.delete(path_of(content))
    assert "1 not ready" in found["nodes"]["text"]
    assert found["other systems"]["text"] == "volcano (1 component)"


def test_a_clock_that_is_off_is_a_failure(plane: ControlPlane, monkeypatch: Any) -> None:
    from datetime import datetime, timedelta

    from bayplan.live import doctor

    class Fast(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(minutes=3)

    monkeypatch.setattr(doctor, "datetime", Fast)
    code, found = examined(plane)
    assert code == 1
    assert found["clock"]["level"] == "failure"
    assert re.fullmatch(r"1[78]\d s away from the API server's", found["clock"]["text"])
