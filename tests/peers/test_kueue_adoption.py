"""bayplan takes a cluster over from Kueue's manager, and is killed while it does."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.controlplane.live_cluster import PODS, Content
from tests.controlplane.process import Scheduler
from tests.controlplane.queue_builders import KUEUE, cluster_queue, head, suspended_job
from tests.controlplane.story_builders import asking, nodes
from tests.peers.real_peers import SCHEDULER, Peers

from bayplan.dialects.kueue import MANAGER_LEASE

WORKLOADS = f"/apis/{KUEUE}/namespaces/default/workloads"
QUEUES = f"/apis/{KUEUE}/clusterqueues"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
GROUP = "kueue.x-k8s.io/pod-group-name"
TOTAL = "kueue.x-k8s.io/pod-group-total-count"
FRAMEWORKS = "batch/job, pod"
EACH = 10
"""Workloads for each round, in all states that a manager leaves."""


def queue(name: str, cores: int, **spec: object) -> list[Content]:
    flavor, local, made = cluster_queue(name)
    made["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = cores
    made["spec"] |= spec
    return [flavor, local, made]


def queues(rounds: int) -> list[Content]:
    """Return a queue for what runs, one that is full, and one in which priorities decide."""
    preemption = {"withinClusterQueue": "LowerPriority"}
    classes = []
    for value, name in enumerate(("low", "high")):
        classes.append({**head(KUEUE, "WorkloadPriorityClass", name, False), "value": value})
    full = queue("full", rounds)
    ranked = queue("ranked", rounds, preemption=preemption)
    return [*classes, *queue("open", 1000), *full, *ranked]


def job(name: str, where: str, priority: str = "") -> Content:
    (made,) = suspended_job(name, where, 1)
    if priority:
        made["metadata"]["labels"][PRIORITY] = priority
    return made


def pod(name: str, where: str, group: str = "") -> Content:
    made = asking(name, schedulerName=SCHEDULER, restartPolicy="Never")
    made["metadata"]["labels"] = {LABEL: where}
    if group:
        made["metadata"]["labels"][GROUP] = group
        made["metadata"]["annotations"] = {TOTAL: "2"}
    return made


def first(rounds: int) -> list[Content]:
    """Return what gets quota: seven Workloads a round, eight cores."""
    made: list[Content] = []
    for n in range(rounds):
        made += [job(f"runs-{n}", "open"), job(f"ends-{n}", "open"), job(f"full-{n}", "full")]
        made += [job(f"low-{n}", "ranked", "low"), pod(f"pod-{n}", "open")]
        made += [pod(f"group-{n}-{i}", "open", f"group-{n}") for i in range(2)]
        made += [job(f"stopped-{n}", "open")]
    return made


def later(rounds: int) -> list[Content]:
    """Return what waits, and what preempts: three Workloads a round."""
    made: list[Content] = []
    for n in range(rounds):
        made += [job(f"waits-{n}", "full"), pod(f"gated-{n}", "full")]
        made += [job(f"high-{n}", "ranked", "high")]
    return made


def owner(workload: Content) -> str:
    return str(workload["metadata"]["ownerReferences"][0]["name"])


def is_true(workload: Content, condition: str) -> bool:
    stated = workload.get("status", {}).get("conditions", ())
    return any(one["type"] == condition and one["status"] == "True" for one in stated)


def states(peers: Peers) -> Counter[str]:
    """Return how many Workloads are in each state."""
    order = ("Finished", "Admitted", "QuotaReserved", "Evicted")
    found: Counter[str] = Counter()
    for one in peers.cluster.items(WORKLOADS):
        off = one["spec"].get("active") is False
        found["off" if off else next((s for s in order if is_true(one, s)), "waits")] += 1
    return found


def live(peers: Peers) -> dict[str, str]:
    """Return the nodes of the pods that run, by name and uid."""
    return {
        f"{one['metadata']['name']} {one['metadata']['uid']}": one["spec"]["nodeName"]
        for one in peers.cluster.items(PODS)
        if "nodeName" in one["spec"]
        and "deletionTimestamp" not in one["metadata"]
        and one["status"].get("phase") not in ("Succeeded", "Failed")
    }


def charged(peers: Peers) -> dict[str, int]:
    """Return the cores that the status of each queue says are reserved."""
    found = {}
    for one in peers.cluster.items(QUEUES):
        flavors = one.get("status", {}).get("flavorsReservation", ())
        found[one["metadata"]["name"]] = sum(
            int(amount["total"]) for flavor in flavors for amount in flavor["resources"]
        )
    return found


def admitted_once(peers: Peers, most: dict[str, int]) -> None:
    """Assert that no job has quota twice, and no queue gives more than it may."""
    held: Counter[str] = Counter()
    cores: Counter[str] = Counter()
    for one in peers.cluster.items(WORKLOADS):
        if is_true(one, "QuotaReserved") and not is_true(one, "Finished"):
            held[owner(one)] += 1
            cores[one["status"]["admission"]["clusterQueue"]] += sum(
                s["count"] for s in one["spec"]["podSets"]
            )
    assert all(count == 1 for count in held.values()), held
    assert all(cores[name] <= most[name] for name in cores), cores
    pods = Counter(
        one["metadata"]["labels"].get("job-name", one["metadata"]["name"])
        for one in peers.cluster.items(PODS)
        if one["status"].get("phase") not in ("Succeeded", "Failed")
        and "deletionTimestamp" not in one["metadata"]
    )
    assert all(count == 1 for count in pods.values()), pods


def populate(peers: Peers, rounds: int) -> None:
    """Have Kueue's manager make Workloads in all states."""
    peers.cluster.apply([*nodes(2 * rounds + 1), *queues(rounds), *first(rounds)])
    peers.wait(lambda: len(live(peers)) == 8 * rounds, "all that may run does", 300)
    client = peers.cluster.client
    for one in peers.cluster.items(PODS):
        name = one["metadata"]["name"]
        if name.startswith("ends-"):
            done = {"status": {"phase": "Succeeded"}}
            assert client.patch(f"{PODS}/{name}/status", done).code == 200
    for one in peers.cluster.items(WORKLOADS):
        if owner(one).startswith("stopped-"):
            path = f"{WORKLOADS}/{one['metadata']['name']}"
            assert client.patch(path, {"spec": {"active": False}}).code == 200
    peers.cluster.apply(later(rounds))
    wanted = {"Admitted": 5, "Finished": 1, "off": 1, "Evicted": 1, "waits": 2}
    peers.wait(
        lambda: (
            states(peers) == {name: n * rounds for name, n in wanted.items()}
            and len(live(peers)) == 6 * rounds
        ),
        "the Workloads are in their states",
        300,
    )


def gives_up(peers: Peers) -> None:
    """Leave a Lease behind that says that no manager leads."""
    lease = head("coordination.k8s.io/v1", "Lease", MANAGER_LEASE)
    lease["metadata"]["namespace"] = "kueue-system"
    lease["spec"] = {"holderIdentity": "", "leaseDurationSeconds": 15}
    peers.cluster.apply([lease])


@pytest.fixture
def kueue(peers: Peers) -> Iterator[Peers]:
    yield peers
    client = peers.cluster.client
    # Nobody is left who would remove the finalizers of Kueue.
    for path in (PODS, WORKLOADS, QUEUES, f"/apis/{KUEUE}/resourceflavors"):
        for one in client.get(path).json.get("items", ()):
            if one["metadata"].get("finalizers"):
                where = f"{path}/{one['metadata']['name']}"
                client.patch(where, {"metadata": {"finalizers": None}})


def killed(scheduler: Scheduler, peers: Peers, rounds: int, most: dict[str, int]) -> None:
    """Kill bayplan again and again, sooner or later after its start."""
    chance = random.Random(41)
    for _ in range(rounds):
        scheduler.start()
        until = time.monotonic() + chance.uniform(0.5, 4.0)
        peers.wait(lambda until=until: time.monotonic() > until, "some of the adoption is done")
        scheduler.kill()
        admitted_once(peers, most)


def test_what_kueue_left_is_adopted_once_and_whole_though_bayplan_is_killed(
    kueue: Peers, tmp_path: Path, rounds: int
) -> None:
    """``--rounds 50``: 500 Workloads, killed 50 times."""
    with kueue.scheduler(tmp_path, expected="Kueue's manager") as scheduler:
        with kueue.running("kueue", KUEUE_FRAMEWORKS=FRAMEWORKS):
            populate(kueue, rounds)
            scheduler.stop()
        before, amounts = live(kueue), charged(kueue)
        uids = {one["metadata"]["uid"] for one in kueue.cluster.items(WORKLOADS)}
        assert len(uids) == EACH * rounds
        gives_up(kueue)
        most = {"open": 1000, "full": rounds, "ranked": rounds}
        killed(scheduler, kueue, rounds, most)
        scheduler.start()
        own = "app.kubernetes.io/managed-by"
        kueue.wait(
            lambda: all(
                own in one["metadata"].get("labels", {}) or is_true(one, "Finished")
                for one in kueue.cluster.items(WORKLOADS)
            ),
            "all is taken over",
            300,
        )
        assert live(kueue) == before, "nothing is restarted"
        assert charged(kueue) == amounts
        assert {one["metadata"]["uid"] for one in kueue.cluster.items(WORKLOADS)} == uids
        for name in ("full", "ranked"):
            (group,) = kueue.cluster.client.get(f"{QUEUES}/{name}").json["spec"]["resourceGroups"]
            group["flavors"][0]["resources"][0]["nominalQuota"] = 1000
            patch = {"spec": {"resourceGroups": [group]}}
            assert kueue.cluster.client.patch(f"{QUEUES}/{name}", patch).code == 200
        kueue.wait(lambda: len(live(kueue)) == 9 * rounds, "what waited runs", 300)
        assert before.items() <= live(kueue).items()
        admitted_once(kueue, {"open": 1000, "full": 1000, "ranked": 1000})
