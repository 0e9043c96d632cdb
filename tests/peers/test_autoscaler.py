"""The real cluster-autoscaler buys nodes for what bayplan says lacks them, and for nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from itertools import product

import pytest
import yaml
from tests.controlplane.live_cluster import PODS, Content
from tests.controlplane.process import BAYPLAN, Scheduler
from tests.controlplane.story_builders import asking
from tests.peers.growth import (
    CLASS,
    GPU,
    NODES,
    STAND_INS,
    Killed,
    gang,
    half,
    message,
    on_nodes,
    pod_of_gpus,
    queue,
    reason,
    replica,
    tell_gpus,
)
from tests.peers.real_peers import SCHEDULER, Peers

from bayplan.dialects.autoscaling import CONSUME_ANNOTATION
from bayplan.plugin.decision import NOT_READY

GROUP = "peers/nodegroup"
REQUESTS = "/apis/autoscaling.x-k8s.io/v1/namespaces/default/provisioningrequests"
ATOMIC = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
GROUPS: Mapping[str, tuple[int, int, Mapping[str, str]]] = {
    "gpu": (8, 200, {}),
    "eight": (8, 8, {}),
    "seven": (8, 7, {}),
    "share": (1, 5, {"nvidia.com/gpu.memory": "80000", "nvidia.com/gpu.count": "1"}),
    "rack-a": (8, 4, {"rack": "a"}),
    "rack-b": (8, 4, {"rack": "b"}),
    "checked": (8, 8, {}),
    "killed": (8, 50, {"rack": "k"}),
    "two": (8, 2, {}),
    "late": (8, 4, {}),
    "emptied": (8, 2, {}),
}
"""By name: the GPUs of a node, the most nodes, and labels."""
EVENTS = "/api/v1/namespaces/default/events"
REPLICA_SETS = "/apis/apps/v1/namespaces/default/replicasets"
STARTING = {"key": "peers/starting", "effect": "NoSchedule"}
"""Of the nodes of one group that are not ready for pods yet; the autoscaler overlooks it."""
_SCANS = 3


def _templates() -> Content:
    """Return the templates of the node groups, as the provider reads them."""
    counts = "cluster-autoscaler.kwok.nodegroup/"
    items = []
    for name, (gpus, most, labels) in GROUPS.items():
        amounts = {"cpu": "96", "memory": "1Ti", "pods": "110", GPU: str(gpus)}
        bounds = {f"{counts}{key}-count": str(n) for key, n in (("min", 0), ("max", most))}
        own = {GROUP: name, "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
        own["node.kubernetes.io/instance-type"] = name
        items.append(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": f"{name}-template",
                    "labels": {**own, **labels},
                    "annotations": {**bounds, f"{counts}desired-count": "0"},
                },
                "spec": {"taints": [STARTING] if name == "late" else []},
                "status": {
                    "allocatable": amounts,
                    "capacity": amounts,
                    "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
                },
            }
        )
    return {"apiVersion": "v1", "kind": "List", "items": items}


@pytest.fixture(scope="module")
def autoscaler(running: Peers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    """cluster-autoscaler with its provider of simulated nodes, and bayplan as it is installed."""
    folder = tmp_path_factory.mktemp("run")
    nodes = folder / "nodes.yaml"
    nodes.write_text(yaml.safe_dump(_templates()))
    running.define("kueue.x-k8s.io_*")
    running.define("scheduling.sigs.k8s.io_podgroup*")
    # It removes empty nodes only: what empties them is bayplan.
    down = "--scale-down-unneeded-time=10s --scale-down-delay-after-add=5s"
    thresholds = ("utilization", "gpu-utilization")
    empty = " ".join(f"--scale-down-{one}-threshold=0.00001" for one in thresholds)
    flags = f"--v=4 --startup-taint={STARTING['key']} {down} {empty}"
    repack = {"frees": "Nodes", "movesPerHour": 600, "minRuntime": "10s"}
    plugins = {"Autoscaling": {"giveUpAfter": 3600}, "GPUFragmentation": {"repack": repack}}
    with (
        running.running("autoscaler", SCAN="1s", NODES=str(nodes), CA_FLAGS=flags),
        running.scheduler(folder, plugins=plugins) as made,
    ):
        yield made


def bought(peers: Peers, group: str = "gpu") -> list[str]:
    return [
        one["metadata"]["name"]
        for one in peers.cluster.items(NODES)
        if one["metadata"].get("labels", {}).get(GROUP) == group
    ]


def wait_for_scans(peers: Peers, count: int = _SCANS) -> None:
    """Wait until the autoscaler has looked at all pods a few times more."""
    began = peers.log("autoscaler").count("Starting main loop")
    peers.wait(
        lambda: peers.log("autoscaler").count("Starting main loop") > began + count,
        "the autoscaler looks again",
    )


def test_no_node_is_bought_for_a_pod_that_its_queue_holds_back(
    peers: Peers, autoscaler: Scheduler
) -> None:
    """Eight GPUs for two pods of eight: one node, and the second pod waits for the first."""
    with queue(peers, "eight", 8):
        peers.cluster.apply(pod_of_gpus(f"p{i}", 8, "eight", {GROUP: "gpu"}) for i in range(2))
        peers.wait(lambda: len(peers.cluster.placements()) == 1, "one pod has a node")
        wait_for_scans(peers)
        assert len(bought(peers)) == 1
        (waiting,) = {"p0", "p1"} - peers.cluster.placements().keys()
        assert reason(peers, waiting) == NOT_READY


def test_nodes_are_bought_for_all_pods_that_lack_them(peers: Peers, autoscaler: Scheduler) -> None:
    """Pods that are equal are not tried one by one; each lacks a node of its own all the same."""
    with queue(peers, "many", 64):
        peers.cluster.apply(pod_of_gpus(f"p{i}", 8, "many", {GROUP: "gpu"}) for i in range(3))
        peers.wait(lambda: len(peers.cluster.placements()) == 3, "all pods have nodes")
        assert len(bought(peers)) == 3


# Stories that run together: each has its own node group ----------------------------------------


ONE_RACK = json.dumps({"gatherStrategy": [{"layer": "rack", "strategy": "MustGather"}]})
IN_RACK = {"gang.scheduling.koordinator.sh/network-topology-spec": ONE_RACK}


@pytest.fixture(scope="module")
def grown(running: Peers, autoscaler: Scheduler) -> Iterator[Peers]:
    """All stories at once, until what can be bought is there."""
    cluster = running.cluster
    levels = [{"nodeLabel": "rack"}, {"nodeLabel": "kubernetes.io/hostname"}]
    topology = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Topology",
        "metadata": {"name": "racks"},
        "spec": {"levels": levels},
    }
    in_racks = gang("racked", 4, {}, **IN_RACK)
    for one in in_racks[1:]:
        racks = {"key": "rack", "operator": "In", "values": ["a", "b"]}
        terms = [{"matchExpressions": [racks]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        one["spec"]["affinity"] = {"nodeAffinity": required}
        del one["spec"]["nodeSelector"]
    cluster.apply(
        [
            topology,
            *gang("fits", 8, {GROUP: "eight"}, **{CLASS: ATOMIC}),
            *gang("large", 8, {GROUP: "seven"}, **{CLASS: ATOMIC}),
            *in_racks,
            asking("nowhere", schedulerName=SCHEDULER, nodeSelector={GROUP: "none"}),
            half("h0", {GROUP: "share"}),
            half("h1", {GROUP: "share"}),
            half("h2", {GROUP: "share"}),
        ]
    )

    def done() -> bool:
        tell_gpus(running)
        return len(on_nodes(running, "")) == 8 + 4 + 3

    running.wait(done, "what can be bought is there", 240.0)
    wait_for_scans(running)
    yield running
    cluster.clear()


def test_a_gang_gets_exactly_its_nodes_at_once(grown: Peers) -> None:
    assert len(bought(grown, "eight")) == 8
    assert len(set(on_nodes(grown, "fits").values())) == 8


def test_a_gang_that_no_group_can_hold_buys_nothing_and_says_why(grown: Peers) -> None:
    assert bought(grown, "seven") == []
    assert on_nodes(grown, "large") == {}
    assert reason(grown, "large-0") == NOT_READY
    said = message(grown, "large-0")
    (request,) = grown.cluster.items(REQUESTS)
    assert f"ProvisioningRequest {request['metadata']['name']} asks for its nodes" in said
    conditions = {one["type"]: one for one in request["status"]["conditions"]}
    assert conditions["Provisioned"]["status"] == "False"
    assert conditions["Provisioned"]["message"] in said


def test_explain_tells_what_the_autoscaler_says(grown: Peers) -> None:
    command = [str(BAYPLAN), "explain", "nowhere", "--kubeconfig", str(grown.plane.kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Autoscaler\n  cluster-autoscaler: pod didn't trigger scale-up: " in done.stdout


def test_halves_of_gpus_buy_the_gpus_that_they_fill(grown: Peers) -> None:
    assert len(bought(grown, "share")) == 2
    assert len(set(on_nodes(grown, "h").values())) == 2


def test_a_gang_in_one_rack_is_not_spread_over_two_growing_ones(grown: Peers) -> None:
    # The provider makes nodes anew where making some of them failed, so its nodes do not tell.
    sizes = re.findall(r"Scale-up: setting group (rack-\w) size to (\d+)", grown.log("autoscaler"))
    ((rack, size),) = set(sizes)
    assert size == "4"
    assert {name for name in ("rack-a", "rack-b") if bought(grown, name)} == {rack}
    assert len(on_nodes(grown, "racked")) == 4


def test_no_stand_in_is_left(grown: Peers) -> None:
    grown.wait(lambda: grown.cluster.items(STAND_INS) == [], "stand-ins have gone")


def test_members_of_gangs_that_run_keep_their_nodes_and_an_empty_one_goes(grown: Peers) -> None:
    pods = [one for one in grown.cluster.items(PODS) if one["metadata"]["name"].startswith("fits")]
    for pod in pods:
        said = pod["metadata"]["annotations"]
        assert said["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
        assert said["karpenter.sh/do-not-disrupt"] == "true"
    for name in ("h0", "h1", "h2"):
        grown.cluster.client.delete(f"{PODS}/{name}", gracePeriodSeconds=0)
    grown.wait(lambda: bought(grown, "share") == [], "empty nodes have gone")
    assert len(bought(grown, "eight")) == 8


# Alone -----------------------------------------------------------------------------------------


def test_nodes_are_bought_for_the_gangs_that_their_queue_admits(
    peers: Peers, autoscaler: Scheduler
) -> None:
    """Fifty gangs of two, and quota for five of them."""
    before = len(bought(peers))
    with queue(peers, "five", 5 * 16):
        made = [one for index in range(50) for one in gang(f"q{index}", 2, {GROUP: "gpu"})]
        for one in made:
            if one["kind"] == "Pod":
                one["metadata"]["labels"]["bayplan.dev/queue"] = "five"
        peers.cluster.apply(made)
        peers.wait(lambda: len(on_nodes(peers, "q")) == 10, "five gangs have nodes")
        wait_for_scans(peers)
        assert len(bought(peers)) - before == 10
        assert len(on_nodes(peers, "q")) == 10
        waiting = {f"q{index}-0" for index in range(50)} - on_nodes(peers, "q").keys()
        assert {reason(peers, name) for name in waiting} == {NOT_READY}


def test_a_preemption_in_progress_buys_nothing(peers: Peers, autoscaler: Scheduler) -> None:
    selector = {GROUP: "seven"}
    low = asking("low", schedulerName=SCHEDULER, nodeSelector=selector, priority=1)
    low["spec"]["terminationGracePeriodSeconds"] = 10
    low["spec"]["containers"][0]["resources"]["limits"] = {GPU: "8"}
    peers.cluster.apply([low])
    peers.wait(lambda: on_nodes(peers, "low"), "the first pod has a node")
    before = bought(peers, "seven")
    high = asking("high", schedulerName=SCHEDULER, nodeSelector=selector, priority=100)
    high["spec"]["containers"][0]["resources"]["limits"] = {GPU: "8"}
    peers.cluster.apply([high])
    peers.wait(lambda: on_nodes(peers, "high"), "the second pod has its node")
    wait_for_scans(peers)
    assert bought(peers, "seven") == before


@pytest.mark.skipif(
    "BAYPLAN_SLOW_TESTS" not in os.environ,
    reason="a booking lasts ten minutes: BAYPLAN_SLOW_TESTS=1 waits for it",
)
def test_a_request_whose_booking_expires_is_made_again_and_buys_nothing_twice(
    peers: Peers, autoscaler: Scheduler
) -> None:
    peers.cluster.apply(gang("late", 2, {GROUP: "late"}, **{CLASS: ATOMIC}))
    peers.wait(lambda: len(bought(peers, "late")) == 2, "two nodes, of no use yet")
    (first,) = [one["metadata"]["name"] for one in peers.cluster.items(REQUESTS)]

    def again() -> bool:
        names = {one["metadata"]["name"] for one in peers.cluster.items(REQUESTS)}
        return bool(names - {first})

    peers.wait(again, "another request", 900.0)
    for name in bought(peers, "late"):
        peers.cluster.client.patch(f"{NODES}/{name}", {"spec": {"taints": []}})
    peers.wait(lambda: len(on_nodes(peers, "late")) == 2, "the gang runs")
    assert len(bought(peers, "late")) == 2


def test_nodes_that_came_for_a_gang_are_nominated_until_the_others_are_there(
    peers: Peers, autoscaler: Scheduler
) -> None:
    """The autoscaler counts them as taken, so it neither removes them nor sends others there."""
    peers.cluster.apply(gang("waits", 3, {GROUP: "two"}))

    def nominated() -> list[str]:
        pods = peers.cluster.items(PODS)
        return [one["status"].get("nominatedNodeName", "") for one in pods]

    peers.wait(lambda: sorted(nominated()) == ["", *sorted(bought(peers, "two"))], "two nodes")
    assert len(bought(peers, "two")) == 2
    # Longer than an empty node stays.
    wait_for_scans(peers, 20)
    assert len(bought(peers, "two")) == 2
    assert on_nodes(peers, "waits") == {}


def test_the_node_that_repacking_emptied_goes(peers: Peers, autoscaler: Scheduler) -> None:
    for number, (node, gpus) in enumerate(product(range(2), (6, 2)), 1):
        peers.cluster.apply([replica(f"e{gpus}-{node}", gpus, {GROUP: "emptied"})])
        peers.wait(lambda n=number: len(on_nodes(peers, "e")) == n, "the pod has a node")
    assert len(bought(peers, "emptied")) == 2
    for node in range(2):
        peers.cluster.client.delete(f"{REPLICA_SETS}/e6-{node}")
    peers.wait(lambda: len(bought(peers, "emptied")) == 1, "one node has gone")
    placed = on_nodes(peers, "e")
    assert list(placed.values()) == bought(peers, "emptied") * 2
    said = [one["message"] for one in peers.cluster.items(EVENTS) if one["reason"] == "Evicted"]
    assert [one for one in said if "so that an autoscaler can remove it" in one]
    for node in range(2):
        peers.cluster.client.delete(f"{REPLICA_SETS}/e2-{node}")


def of_kueue(kind: str, name: str, content: Content, namespace: str = "") -> Content:
    meta = {"name": name, "namespace": namespace} if namespace else {"name": name}
    version = "kueue.x-k8s.io/v1beta2"
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": content}


def queue_that_buys() -> list[Content]:
    """Return a LocalQueue for 16 GPUs whose jobs ask for their nodes first."""
    config = {"provisioningClassName": ATOMIC, "managedResources": [GPU]}
    of = {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "buy"}
    check = {"controllerName": "kueue.x-k8s.io/provisioning-request", "parameters": of}
    quota = [{"name": GPU, "nominalQuota": 16}, {"name": "cpu", "nominalQuota": 100}]
    flavors = [{"name": "any", "resources": quota}]
    spec = {
        "namespaceSelector": {},
        "admissionChecksStrategy": {"admissionChecks": [{"name": "nodes"}]},
        "resourceGroups": [{"coveredResources": [GPU, "cpu"], "flavors": flavors}],
    }
    return [
        of_kueue("ProvisioningRequestConfig", "buy", config),
        of_kueue("AdmissionCheck", "nodes", check),
        of_kueue("ResourceFlavor", "any", {}),
        of_kueue("ClusterQueue", "cq", spec),
        of_kueue("LocalQueue", "lq", {"clusterQueue": "cq"}, "default"),
    ]


def test_a_provisioning_check_of_kueue_buys_a_job_its_nodes_before_it_is_admitted(
    peers: Peers, autoscaler: Scheduler
) -> None:
    template = asking("x", nodeSelector={GROUP: "checked"}, schedulerName=SCHEDULER)["spec"]
    template["restartPolicy"] = "Never"
    template["containers"][0]["resources"]["limits"] = {GPU: "8"}
    labels = {"kueue.x-k8s.io/queue-name": "lq"}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "bought", "namespace": "default", "labels": labels},
        "spec": {
            "suspend": True,
            "parallelism": 2,
            "completions": 2,
            "template": {"spec": template},
        },
    }
    peers.cluster.apply([*queue_that_buys(), job])
    peers.wait(lambda: len(on_nodes(peers, "bought")) == 2, "the job runs on its nodes", 240.0)
    assert len(bought(peers, "checked")) == 2
    pods = [p for p in peers.cluster.items(PODS) if p["metadata"]["name"].startswith("bought")]
    (request,) = peers.cluster.items(REQUESTS)
    used = {pod["metadata"]["annotations"][CONSUME_ANNOTATION] for pod in pods}
    assert used == {request["metadata"]["name"]}
    active = peers.cluster.client.get("/apis/kueue.x-k8s.io/v1beta2/admissionchecks/nodes").json
    stated = [(one["type"], one["status"]) for one in active["status"]["conditions"]]
    assert stated == [("Active", "True")]
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    peers.cluster.client.delete(f"{jobs}/bought", propagationPolicy="Background")
    peers.wait(lambda: peers.cluster.items(REQUESTS) == [], "the request goes with the job")


def test_whoever_is_killed_in_the_middle_nothing_is_bought_twice(
    peers: Peers, autoscaler: Scheduler
) -> None:
    killed = Killed(peers, "autoscaler")
    racked = gang("twice", 4, {GROUP: "killed"}, **IN_RACK)
    atomic = gang("whole", 3, {GROUP: "killed"}, **{CLASS: ATOMIC})
    topology = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Topology",
        "metadata": {"name": "racks"},
        "spec": {"levels": [{"nodeLabel": "rack"}]},
    }
    peers.cluster.apply([topology, *racked, *atomic])
    for _ in range(20):
        autoscaler.kill()
        autoscaler.start()
        killed.again()
        wait_for_scans(peers, 1)
    peers.wait(lambda: len(peers.cluster.placements()) == 7, "all have nodes", 240.0)
    wait_for_scans(peers)
    assert len(bought(peers, "killed")) == 7
    peers.wait(lambda: peers.cluster.items(STAND_INS) == [], "no stand-in is left")
    peers.wait(lambda: peers.cluster.items(REQUESTS) == [], "no request is left")
