"""Nodes whose kubelets fall silent, and the pods that live on."""

from __future__ import annotations

from collections.abc import Mapping

from tests.controlplane.live_cluster import EVENTS, PODS
from tests.peers.real_peers import Peers

NODES = "/api/v1/nodes"
GRACE = 15
"""Longer than a Job waits before it replaces a pod that failed."""


def live(peers: Peers) -> dict[str, str]:
    """Return the node of each pod that does not end, by its uid; "" for none."""
    pods = [one for one in peers.cluster.items(PODS) if "deletionTimestamp" not in one["metadata"]]
    active = [one for one in pods if one["status"].get("phase") in ("Pending", "Running")]
    return {one["metadata"]["uid"]: one["spec"].get("nodeName", "") for one in active}


def fails(peers: Peers, name: str) -> None:
    """Let a kubelet fall silent, and say so as the node lifecycle controller does."""
    peers.kubelet.silent.add(name)
    taint = {"key": "node.kubernetes.io/unreachable"}
    taints = [{**taint, "effect": effect} for effect in ("NoSchedule", "NoExecute")]
    client = peers.cluster.client
    status = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
    assert client.patch(f"{NODES}/{name}/status", {"status": status}).code == 200
    assert client.patch(f"{NODES}/{name}", {"spec": {"taints": taints}}).code == 200


def runs_on(peers: Peers, count: int) -> Mapping[str, str]:
    peers.wait(lambda: len([n for n in live(peers).values() if n]) == count, "all pods have nodes")
    return live(peers)


def why_evicted(peers: Peers) -> list[str]:
    events = peers.cluster.items(EVENTS)
    return [one["message"] for one in events if one["reason"] == "Evicted"]
