"""A cluster goes from Kueue's manager to bayplan, and back, with all that runs in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.controlplane.live_cluster import PODS, Content
from tests.controlplane.queue_builders import KUEUE, cluster_queue, suspended_job
from tests.controlplane.story_builders import asking, nodes
from tests.peers.real_peers import SCHEDULER, Peers

WORKLOADS = f"/apis/{KUEUE}/namespaces/default/workloads"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
QUEUE = f"/apis/{KUEUE}/clusterqueues/q"
MANAGER = "Kueue's manager"
"""In what the log says of who admits."""
FRAMEWORKS = "batch/job, pod"
LABEL = "kueue.x-k8s.io/queue-name"
GROUP = "kueue.x-k8s.io/pod-group-name"
TOTAL = "kueue.x-k8s.io/pod-group-total-count"
MORE = {
    "command": ["sh", "-c", "sleep $SECONDS"],
    "env": [{"name": "SECONDS", "value": "60"}],
    "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    "terminationMessagePolicy": "FallbackToLogsOnError",
}
"""Fields of a container that no scheduler reads; Kueue's manager compares them."""


def with_more(spec: Content) -> None:
    spec["containers"][0].update(MORE)
    spec["volumes"] = [{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}]


def queued_pod(name: str, group: str = "", total: int = 0) -> Content:
    pod = asking(name, schedulerName=SCHEDULER, restartPolicy="Never")
    pod["metadata"]["labels"] = {LABEL: "q"}
    if group:
        pod["metadata"]["labels"][GROUP] = group
        pod["metadata"]["annotations"] = {TOTAL: str(total)}
    with_more(pod["spec"])
    return pod


def everything(name: str) -> list[Content]:
    """Return a job of two pods, a pod, and a group of two pods: five cores."""
    (job,) = suspended_job(f"job-{name}", "q", 2)
    with_more(job["spec"]["template"]["spec"])
    group = [queued_pod(f"group-{name}-{i}", f"group-{name}", 2) for i in range(2)]
    return [job, queued_pod(f"pod-{name}"), *group]


def queue() -> list[Content]:
    flavor, local, made = cluster_queue("q")
    made["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = 35
    return [flavor, local, made]


def live(peers: Peers) -> dict[str, str]:
    """Return the nodes of the pods that run, by uid."""
    return {
        pod["metadata"]["uid"]: pod["spec"]["nodeName"]
        for pod in peers.cluster.items(PODS)
        if "nodeName" in pod["spec"] and "deletionTimestamp" not in pod["metadata"]
    }


def admitted(peers: Peers) -> dict[str, str]:
    """Return the names of the Workloads that are admitted, with their uids."""
    found = {}
    for one in peers.cluster.items(WORKLOADS):
        stated = {c["type"]: c["status"] for c in one.get("status", {}).get("conditions", ())}
        if stated.get("Admitted") == "True" and stated.get("Evicted") != "True":
            found[one["metadata"]["name"]] = one["metadata"]["uid"]
    return found


def charged(peers: Peers) -> int:
    """Return the cores that the status of the queue says are reserved."""
    status = peers.cluster.client.get(QUEUE).json.get("status", {})
    flavors = status.get("flavorsReservation", ())
    return sum(int(one["total"]) for flavor in flavors for one in flavor["resources"])


def starts(peers: Peers, name: str, before: dict[str, str]) -> dict[str, str]:
    """Have more jobs, pods and groups start beside those that run; return all that run."""
    peers.cluster.apply(everything(name))
    peers.wait(lambda: len(live(peers)) == len(before) + 5, f"those of {name} start", 90)
    after = live(peers)
    assert before.items() <= after.items(), f"restarted by {name}"
    peers.wait(lambda: charged(peers) == len(after), f"all are charged, says {name}", 90)
    return after


@pytest.fixture
def kueue(peers: Peers) -> Iterator[Peers]:
    yield peers
    # Nobody is left who would remove the finalizers of Kueue.
    for path in (PODS, WORKLOADS, f"/apis/{KUEUE}/clusterqueues", f"/apis/{KUEUE}/resourceflavors"):
        for one in peers.cluster.client.get(path).json.get("items", ()):
            if one["metadata"].get("finalizers"):
                where = f"{path}/{one['metadata']['name']}"
                peers.cluster.client.patch(where, {"metadata": {"finalizers": None}})


def test_there_and_back_nothing_restarts_and_no_charge_is_lost(
    kueue: Peers, tmp_path: Path, rounds: int
) -> None:
    """Three times with ``--rounds 3``."""
    with kueue.scheduler(tmp_path, expected=MANAGER):
        running: dict[str, str] = {}
        with kueue.running("kueue", KUEUE_FRAMEWORKS=FRAMEWORKS):
            kueue.cluster.apply([*nodes(5), *queue()])
            running = starts(kueue, "kueue-0", running)
            workloads = admitted(kueue)
        for turn in range(1, rounds + 1):
            running = starts(kueue, f"bayplan-{turn}", running)
            assert workloads.items() <= admitted(kueue).items()
            workloads = admitted(kueue)
            with kueue.running("kueue", KUEUE_FRAMEWORKS=FRAMEWORKS):
                running = starts(kueue, f"kueue-{turn}", running)
                assert workloads.items() <= admitted(kueue).items()
                workloads = admitted(kueue)
        assert len(running) == 5 + 10 * rounds
        assert len(workloads) == 3 + 6 * rounds
