"""The real Karpenter buys nodes for what bayplan says lacks them, and for nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests.controlplane.live_cluster import PODS, Content
from tests.controlplane.process import Scheduler
from tests.peers.growth import (
    GPU,
    NODES,
    STAND_INS,
    Killed,
    gang,
    half,
    on_nodes,
    pod_of_gpus,
    queue,
    reason,
    tell_gpus,
)
from tests.peers.real_peers import Peers

from bayplan.plugin.decision import NOT_READY

CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
TYPE = "node.kubernetes.io/instance-type"
ZONE = "topology.kubernetes.io/zone"
TYPES: Mapping[str, tuple[int, int]] = {
    "cpu-8": (8, 0),
    "gpu-1": (16, 1),
    "gpu-8": (96, 8),
    "gpu-8z": (96, 8),
    "gpu-8p": (96, 8),
    "gpu-8k": (96, 8),
}
"""By name: the cores and the GPUs of an instance."""
_RULE = {"gatherStrategy": [{"layer": ZONE, "strategy": "MustGather"}]}
IN_ZONE = {"gang.scheduling.koordinator.sh/network-topology-spec": json.dumps(_RULE)}
_KILLS = 8
_QUIET_SECONDS = 12.0
"""Longer than the longest batch of Karpenter, by which it has decided on what is pending."""


def _types() -> list[Content]:
    """Return the instance types, as the provider reads them."""
    found: list[Content] = []
    for name, (cores, gpus) in TYPES.items():
        resources: dict[str, Any] = {"cpu": str(cores), "memory": "256Gi", "pods": "110"}
        resources["ephemeral-storage"] = "600Gi"
        if gpus:
            resources[GPU] = str(gpus)
        offerings = [
            {
                "Price": cores / 10 + gpus,
                "Available": True,
                "Requirements": [
                    {
                        "key": "karpenter.sh/capacity-type",
                        "operator": "In",
                        "values": ["on-demand"],
                    },
                    {"key": ZONE, "operator": "In", "values": [zone]},
                ],
            }
            for zone in ("zone-a", "zone-b")
        ]
        found.append(
            {
                "name": name,
                "offerings": offerings,
                "architecture": "amd64",
                "operatingSystems": ["linux"],
                "resources": resources,
            }
        )
    return found


@pytest.fixture(scope="module")
def karpenter(running: Peers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    """Karpenter with its provider of simulated nodes, kwok for their kubelets, and bayplan."""
    folder = tmp_path_factory.mktemp("run")
    types = folder / "types.json"
    types.write_text(json.dumps(_types()))
    flags = f"--instance-types-file-path={types}"
    running.define("kueue.x-k8s.io_topology*")
    running.define("scheduling.sigs.k8s.io_podgroup*")
    with (
        running.running("kwok", "karpenter", KARPENTER_FLAGS=flags),
        running.scheduler(folder, plugins={"Autoscaling": {}}) as made,
    ):
        yield made
        for claim in running.cluster.items(CLAIMS):
            running.cluster.client.delete(f"{CLAIMS}/{claim['metadata']['name']}")
        running.wait(lambda: running.cluster.items(CLAIMS) == [], "nodes have gone")


def bought(peers: Peers, type_: str = "") -> list[Content]:
    """Return the nodes that were bought, of one type or of all."""
    found = [
        one
        for one in peers.cluster.items(NODES)
        if "karpenter.sh/nodepool" in one["metadata"].get("labels", {})
    ]
    return [one for one in found if type_ in ("", one["metadata"]["labels"][TYPE])]


def is_quiet(peers: Peers, seconds: float = _QUIET_SECONDS) -> None:
    """Wait until Karpenter has bought nothing for a while."""
    last: dict[str, float] = {}

    def quiet() -> bool:
        now = peers.now()
        names = ",".join(sorted(one["metadata"]["name"] for one in peers.cluster.items(CLAIMS)))
        if names not in last:
            last.clear()
            last[names] = now
        return now - last[names] >= seconds

    peers.wait(quiet, "Karpenter buys nothing more")


@pytest.fixture(scope="module")
def grown(running: Peers, karpenter: Scheduler) -> Iterator[Peers]:
    """All stories at once, until what can be bought is there."""
    topology = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Topology",
        "metadata": {"name": "zones"},
        "spec": {"levels": [{"nodeLabel": ZONE}, {"nodeLabel": "kubernetes.io/hostname"}]},
    }
    with queue(running, "eight", 8):
        running.cluster.apply(
            [
                topology,
                *gang("fits", 3, {TYPE: "gpu-8"}),
                *gang("zoned", 3, {TYPE: "gpu-8z"}, **IN_ZONE),
                half("h0", {TYPE: "gpu-1"}),
                half("h1", {TYPE: "gpu-1"}),
                pod_of_gpus("p0", 8, "eight", {TYPE: "gpu-8"}),
                pod_of_gpus("p1", 8, "eight", {TYPE: "gpu-8"}),
            ]
        )

        def done() -> bool:
            tell_gpus(running)
            return len(running.cluster.placements()) == 3 + 3 + 2 + 1

        running.wait(done, "what may run runs", 240.0)
        is_quiet(running)
        yield running
        running.cluster.clear()


def test_every_gang_and_every_job_within_its_quota_has_its_nodes_and_no_other(
    grown: Peers,
) -> None:
    assert len(bought(grown, "gpu-8")) == 3 + 1
    assert len(bought(grown, "gpu-8z")) == 3
    assert len(set(on_nodes(grown, "fits").values())) == 3


def test_what_its_queue_holds_back_buys_nothing(grown: Peers) -> None:
    (waiting,) = {"p0", "p1"} - on_nodes(grown, "p").keys()
    assert reason(grown, waiting) == NOT_READY


def test_two_halves_of_a_gpu_buy_one_node(grown: Peers) -> None:
    assert len(bought(grown, "gpu-1")) == 1
    assert len(set(on_nodes(grown, "h").values())) == 1
    assert grown.cluster.items(STAND_INS) == []


def test_a_gang_in_one_zone_is_not_spread_over_two(grown: Peers) -> None:
    zones = {one["metadata"]["name"]: one["metadata"]["labels"][ZONE] for one in bought(grown)}
    assert len({zones[name] for name in on_nodes(grown, "zoned").values()}) == 1


def test_running_gangs_keep_their_nodes_and_empty_ones_go(grown: Peers) -> None:
    """Karpenter consolidates what is empty or little used for half a minute."""
    before = on_nodes(grown, "fits")
    for name in ("h0", "h1"):
        grown.cluster.client.delete(f"{PODS}/{name}", gracePeriodSeconds=0)
    grown.wait(lambda: bought(grown, "gpu-1") == [], "the empty node has gone")
    assert on_nodes(grown, "fits") == before


# Alone -----------------------------------------------------------------------------------------


def test_a_preemption_in_progress_buys_nothing(peers: Peers, karpenter: Scheduler) -> None:
    low = pod_of_gpus("low", 8, "", {TYPE: "gpu-8p"})
    low["spec"] |= {"priority": 1, "terminationGracePeriodSeconds": 10}
    peers.cluster.apply([low])
    peers.wait(lambda: on_nodes(peers, "low"), "the first pod has a node")
    # Another node could be bought.
    high = pod_of_gpus("high", 8, "", {TYPE: "gpu-8p"})
    high["spec"]["priority"] = 100
    peers.cluster.apply([high])
    peers.wait(lambda: on_nodes(peers, "high"), "the second pod has its node")
    is_quiet(peers)
    assert len(bought(peers, "gpu-8p")) == 1


def zones_of(claim: Content) -> list[str]:
    """Return the zones that a claim allows."""
    needs = claim["spec"]["requirements"]
    return next((one["values"] for one in needs if one["key"] == ZONE), [])


def test_whoever_is_killed_in_the_middle_nothing_is_bought_twice(
    peers: Peers, karpenter: Scheduler
) -> None:
    """No object describes the network, and no node has the label of a zone before any is there."""
    killed = Killed(peers, "karpenter")
    peers.cluster.apply(gang("twice", 4, {TYPE: "gpu-8k"}, **IN_ZONE))
    for _ in range(_KILLS):
        karpenter.kill()
        karpenter.start()
        killed.again()
        until = peers.now() + 4.0
        peers.wait(lambda until=until: peers.now() > until, "some seconds pass")
    peers.wait(lambda: len(peers.cluster.placements()) == 4, "all have nodes", 240.0)
    is_quiet(peers)
    # A provider that is killed before its claim knows the node makes another one for the claim.
    claims = [
        one
        for one in peers.cluster.items(CLAIMS)
        if one["metadata"]["labels"].get(TYPE) == "gpu-8k"
    ]
    zones = {
        one["metadata"]["name"]: one["metadata"]["labels"].get(ZONE)
        for one in peers.cluster.items(NODES)
    }
    (zone,) = {zones[node] for node in peers.cluster.placements().values()}
    in_zone = [one for one in claims if one["metadata"]["labels"].get(ZONE) == zone]
    assert len(in_zone) == 4, f"claims {claims} for nodes {bought(peers, 'gpu-8k')}"
    # Karpenter may leave the zone of the first pods open that have to be together (v1.13).
    assert all(len(zones_of(one)) > 1 for one in claims if one not in in_zone)
    peers.wait(lambda: peers.cluster.items(STAND_INS) == [], "no stand-in is left")
