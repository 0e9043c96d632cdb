"""What becomes of failures by the control plane's own controllers, with bayplan beside them."""

from __future__ import annotations

import time

from tests.controlplane.live_cluster import EVENTS, PODS, Content
from tests.controlplane.process import Scheduler
from tests.controlplane.story_builders import DRA, asking, devices, nodes, with_device
from tests.peers.failing_nodes import GRACE, NODES, fails, live, runs_on, why_evicted
from tests.peers.real_peers import SCHEDULER, Peers

GPU = "nvidia.com/gpu"
SAFE = "kueue.x-k8s.io/safe-to-forcefully-delete"


def pod_of(peers: Peers, name: str) -> Content:
    """Return a pod; {} if there is none."""
    answer = peers.cluster.client.get(f"{PODS}/{name}")
    found: Content = answer.json if answer.code == 200 else {}
    return found


def node_of(peers: Peers, name: str) -> str | None:
    """Return the node of a pod that does not end, "" without one; None if there is no such pod."""
    pod = pod_of(peers, name)
    if not pod or "deletionTimestamp" in pod["metadata"]:
        return None
    return str(pod["spec"].get("nodeName", ""))


def runs(peers: Peers, *names: str) -> None:
    def all_run() -> bool:
        found = (pod_of(peers, name).get("status", {}) for name in names)
        return all(status.get("phase") == "Running" for status in found)

    peers.wait(all_run, f"{', '.join(names)} run")


def with_gpus(made: Content, count: int) -> Content:
    """Add GPUs to a node, or requests of them to a pod."""
    if made["kind"] == "Node":
        for amounts in (made["status"]["capacity"], made["status"]["allocatable"]):
            amounts[GPU] = str(count)
    else:
        made["spec"]["containers"][0]["resources"] = {"limits": {GPU: str(count)}}
    return made


def member(name: str, **spec: object) -> Content:
    """Return a pod that takes a node for itself."""
    return asking(name, 6, schedulerName=SCHEDULER, **spec)


# Devices ---------------------------------------------------------------------------------------


def test_a_device_taint_drives_its_pod_out_and_new_claims_elsewhere(
    peers: Peers, recovery: Scheduler
) -> None:
    peers.cluster.apply([*nodes(2), *devices(2, gpus=2)])
    on_first = {"nodeSelector": {"kubernetes.io/hostname": "n0"}}
    peers.cluster.apply(
        with_device(name, schedulerName=SCHEDULER, **on_first) for name in ("a", "b")
    )
    runs(peers, "a", "b")
    slices = f"/apis/{DRA}/resourceslices/n0-gpus"
    made = peers.cluster.client.get(slices).json
    device = device_of(peers, "a")
    (bad,) = [one for one in made["spec"]["devices"] if one["name"] == device]
    bad["taints"] = [{"key": "example.com/xid", "value": "79", "effect": "NoExecute"}]
    made["spec"]["pool"]["generation"] = 2
    spec = {"devices": made["spec"]["devices"], "pool": made["spec"]["pool"]}
    assert peers.cluster.client.patch(slices, {"spec": spec}).code == 200
    peers.wait(lambda: node_of(peers, "a") is None, "its pod is evicted")
    peers.cluster.apply(with_device(name, schedulerName=SCHEDULER) for name in ("c", "d"))
    runs(peers, "c", "d")
    assert (node_of(peers, "c"), node_of(peers, "d")) == ("n1", "n1")
    assert node_of(peers, "b") == "n0"


def device_of(peers: Peers, name: str) -> str:
    """Return the device of a pod's claim."""
    (stated,) = pod_of(peers, name)["status"]["resourceClaimStatuses"]
    path = f"/apis/{DRA}/namespaces/default/resourceclaims/{stated['resourceClaimName']}"
    (result,) = peers.cluster.client.get(path).json["status"]["allocation"]["devices"]["results"]
    return str(result["device"])


# Names that are taken --------------------------------------------------------------------------


def serving(**annotations: str) -> Content:
    """Return a StatefulSet of two pods that take a node each."""
    template = member("x", restartPolicy="Always")
    labels = {"app": "serve"}
    template["metadata"] = {"labels": labels, "annotations": annotations}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "serve", "namespace": "default"},
        "spec": {
            "replicas": 2,
            "serviceName": "serve",
            "selector": {"matchLabels": labels},
            "template": {key: template[key] for key in ("metadata", "spec")},
        },
    }


def loses_a_node(peers: Peers, **annotations: str) -> str:
    """Let the node of serve-1 fall silent and delete the pod; return the node that is free."""
    peers.cluster.apply([*nodes(3), serving(**annotations)])
    runs(peers, "serve-0", "serve-1")
    dead = node_of(peers, "serve-1")
    (spare,) = {"n0", "n1", "n2"} - {dead, node_of(peers, "serve-0")}
    fails(peers, str(dead))
    peers.cluster.client.delete(f"{PODS}/serve-1")
    peers.wait(lambda: node_of(peers, "serve-1") is None, "it ends")
    return str(spare)


def test_a_pod_of_a_silent_node_blocks_its_name_until_the_node_is_out_of_service(
    peers: Peers, recovery: Scheduler
) -> None:
    spare = loses_a_node(peers)
    time.sleep(GRACE)
    ending = pod_of(peers, "serve-1")
    assert "deletionTimestamp" in ending["metadata"]
    dead = f"{NODES}/{ending['spec']['nodeName']}"
    taints = peers.cluster.client.get(dead).json["spec"]["taints"]
    vouched = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute", "value": "down"}
    assert peers.cluster.client.patch(dead, {"spec": {"taints": [*taints, vouched]}}).code == 200
    peers.wait(lambda: node_of(peers, "serve-1") == spare, "it comes back elsewhere")


def test_a_pod_that_may_be_deleted_by_force_comes_back_without_that(
    peers: Peers, recovery: Scheduler
) -> None:
    spare = loses_a_node(peers, **{SAFE: "true"})
    peers.wait(lambda: node_of(peers, "serve-1") == spare, "it comes back elsewhere")
    told = [one["message"] for one in peers.cluster.items(EVENTS) if "Forcefully" in one["reason"]]
    assert told
    assert SAFE in told[0]


# Gangs -----------------------------------------------------------------------------------------


def test_a_stale_group_of_kai_goes_by_its_own_grace_period(
    peers: Peers, recovery: Scheduler
) -> None:
    unlimited = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    resources = dict.fromkeys(("cpu", "memory", "gpu"), unlimited)
    queue = {"spec": {"resources": resources}, "kind": "Queue"}
    group = {"spec": {"minMember": 3, "queue": "team"}, "kind": "PodGroup"}
    made: list[Content] = [
        {"apiVersion": "scheduling.run.ai/v2", "metadata": {"name": "team"}, **queue},
        {
            "apiVersion": "scheduling.run.ai/v2alpha2",
            "metadata": {"name": "train", "namespace": "default"},
            **group,
        },
    ]
    pods = [member(f"train-{index}") for index in range(3)]
    for one in pods:
        one["metadata"]["annotations"] = {"pod-group-name": "train"}
        one["metadata"]["labels"] = {"kai.scheduler/queue": "team"}
    peers.cluster.apply([*nodes(3), *made, *pods])
    before = runs_on(peers, 3)
    dead = str(node_of(peers, "train-1"))
    fails(peers, dead)
    gone = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
    peers.cluster.client.delete(f"{PODS}/train-1", gone)
    peers.wait(lambda: not pod_of(peers, "train-1"), "it is gone")
    peers.cluster.apply([pods[1]])
    time.sleep(40)
    kept = {uid: node for uid, node in before.items() if node != dead}
    assert kept.items() <= live(peers).items(), "within the minute that KAI gives it"
    assert node_of(peers, "train-1") == ""
    peers.wait(lambda: not kept.keys() & live(peers).keys(), "the others go together")


def test_the_missing_member_of_a_gang_goes_before_a_younger_pod(
    peers: Peers, recovery: Scheduler
) -> None:
    group = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"minMember": 3},
    }
    labels = {"pod-group.scheduling.sigs.k8s.io": "train"}
    template = {
        "metadata": {"labels": labels},
        "spec": member("x", restartPolicy="Never")["spec"],
    }
    spec = {"parallelism": 3, "completions": 3, "backoffLimit": 20, "template": template}
    meta = {"name": "train", "namespace": "default"}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}
    filler = member("filler", nodeSelector={"kubernetes.io/hostname": "n3"})
    peers.cluster.apply([*nodes(4), filler])
    runs(peers, "filler")
    peers.cluster.apply([group, job])
    before = runs_on(peers, 4)
    dead = min(node for node in before.values() if node != "n3")
    peers.cluster.apply([member("young-0", priority=0)])
    fails(peers, dead)
    peers.wait(lambda: why_evicted(peers), "its member is evicted")
    peers.wait(lambda: len(live(peers)) == 5 and waiting(peers) == 2, "it is made again")
    peers.cluster.client.delete(f"{PODS}/filler")
    peers.wait(lambda: "n3" in {n for u, n in live(peers).items() if u not in before}, "one runs")
    assert node_of(peers, "young-0") == ""


def waiting(peers: Peers) -> int:
    return sum(not node for node in live(peers).values())


# What is lost ----------------------------------------------------------------------------------


def test_the_victim_is_the_one_that_loses_the_least_work(peers: Peers, recovery: Scheduler) -> None:
    peers.cluster.apply(with_gpus(one, 8) for one in nodes(3))
    pods = [with_gpus(member(name), 8) for name in ("fresh", "old", "silent")]
    peers.cluster.apply(pods)
    runs(peers, "fresh", "old", "silent")
    hour_ago = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 3600))
    for name, minutes in (("fresh", 1), ("old", 50), ("silent", None)):
        path = f"{PODS}/{name}"
        status = {"status": {"startTime": hour_ago}}
        assert peers.cluster.client.patch(f"{path}/status", status).code == 200
        if minutes is not None:
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 60 * minutes))
            said = {"metadata": {"annotations": {"bayplan.dev/checkpointed-at": at}}}
            assert peers.cluster.client.patch(path, said).code == 200
    peers.cluster.apply([with_gpus(member("urgent", priority=1000), 8)])
    runs(peers, "urgent")
    assert node_of(peers, "fresh") is None
    assert None not in (node_of(peers, "old"), node_of(peers, "silent"))
