"""Koordinator's own definitions on a real API server: reservations and reports of load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.controlplane.installation import upstream_definitions
from tests.controlplane.live_cluster import PODS, LiveCluster
from tests.controlplane.plane import wait_until
from tests.controlplane.process import Scheduler
from tests.controlplane.story_builders import asking, nodes

GROUP = "scheduling.koordinator.sh"
RESERVATIONS = f"/apis/{GROUP}/v1alpha1/reservations"


def reservation(cpu: str, **spec: Any) -> dict[str, Any]:
    amounts = {"requests": {"cpu": cpu}}
    container = {"name": "c", "image": "busybox", "resources": amounts}
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "Reservation",
        "metadata": {"name": "kept"},
        "spec": {
            "owners": [{"labelSelector": {"matchLabels": {"app": "own"}}}],
            "template": {"spec": {"containers": [container], "schedulerName": "bayplan"}},
            **spec,
        },
    }


def why(cluster: LiveCluster, name: str) -> str:
    """Return why a pod has no node, as its condition says."""
    return "".join(
        one.get("message", "")
        for pod in cluster.items(PODS)
        for one in pod["status"].get("conditions", ())
        if pod["metadata"]["name"] == name and one["type"] == "PodScheduled"
    )


def test_a_reservation_is_kept_for_its_owner_and_used_up(real: LiveCluster, tmp_path: Path) -> None:
    if f"reservations.{GROUP}" not in upstream_definitions():
        pytest.skip("no definition of Koordinator's own on this machine")
    client = real.client
    scheduler = Scheduler(real.kubeconfig, tmp_path)
    scheduler.start()

    def status() -> dict[str, Any]:
        found: dict[str, Any] = client.get(f"{RESERVATIONS}/kept").json.get("status", {})
        return found

    try:
        real.apply(nodes(1))
        free = client.get("/api/v1/nodes").json["items"][0]["status"]["allocatable"]["cpu"]
        most = str(int(free) - 1)
        answer = client.post(RESERVATIONS, reservation(most), fieldValidation="Strict")
        assert answer.code == 201, answer.text
        wait_until(lambda: status().get("phase") == "Available", "the reservation has a node")
        pod = asking("other", schedulerName="bayplan")
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": most}}
        real.apply([pod])
        wait_until(lambda: "Insufficient cpu" in why(real, "other"), "nobody else gets it")
        own = asking("own", schedulerName="bayplan")
        own["metadata"]["labels"] = {"app": "own"}
        own["spec"]["containers"][0]["resources"] = {"requests": {"cpu": most}}
        real.apply([own])
        wait_until(lambda: "own" in real.placements(), "the owner has its node")
        wait_until(lambda: status().get("phase") == "Succeeded", "it is used up")
        assert [one["name"] for one in status()["currentOwners"]] == ["own"]
        assert status()["allocated"]["cpu"] == most
    finally:
        scheduler.stop()
        client.delete(f"{RESERVATIONS}/kept")
    assert scheduler.problems() == []
