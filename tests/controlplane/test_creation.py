"""Jobs of queues that are not created suspended: none of their pods runs before it is admitted.

``--rounds 10`` creates 1,000 of them. What came first is told by resource versions, which are those
of one etcd.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.cluster.apiserver.faces import Client
from tests.controlplane.live_cluster import PODS, Content, LiveCluster
from tests.controlplane.plane import ControlPlane, wait_until
from tests.controlplane.process import Scheduler
from tests.controlplane.queue_builders import KUEUE, cluster_queue, suspended_job
from tests.controlplane.story_builders import nodes

from bayplan.admission import Defaults, mutating_policies

JOBS = "/apis/batch/v1/namespaces/default/jobs"
WORKLOADS = f"/apis/{KUEUE}/namespaces/default/workloads"
GROUP = "/apis/admissionregistration.k8s.io/v1"
JOB_NAME = "batch.kubernetes.io/job-name"
A_ROUND = 100
AT_ONCE = 8


@dataclass
class FirstSeen:
    """The resource versions by which jobs had a pod, a pod with a node, and were admitted first."""

    created: dict[str, int] = field(default_factory=dict)
    bound: dict[str, int] = field(default_factory=dict)
    admitted: dict[str, int] = field(default_factory=dict)

    def pod(self, content: Content) -> None:
        meta = content["metadata"]
        name = meta.get("labels", {}).get(JOB_NAME, "")
        self.created.setdefault(name, int(meta["resourceVersion"]))
        if "nodeName" in content["spec"]:
            self.bound.setdefault(name, int(meta["resourceVersion"]))

    def workload(self, content: Content) -> None:
        meta = content["metadata"]
        conditions = content.get("status", {}).get("conditions", ())
        if any(one["type"] == "Admitted" and one["status"] == "True" for one in conditions):
            name = meta["ownerReferences"][0]["name"]
            self.admitted.setdefault(name, int(meta["resourceVersion"]))

    def early(self, seen: dict[str, int]) -> list[str]:
        """Return the jobs that were seen before they were admitted, or are not admitted at all."""
        return [name for name, at in seen.items() if at < self.admitted.get(name, at + 1)]


@contextmanager
def watching(client: Client) -> Iterator[FirstSeen]:
    """Watch pods and Workloads until the end."""
    found, ended = FirstSeen(), threading.Event()
    threads = [
        threading.Thread(target=_watch, args=(client, path, note, ended), daemon=True)
        for path, note in ((PODS, found.pod), (WORKLOADS, found.workload))
    ]
    for one in threads:
        one.start()
    yield found
    ended.set()
    for one in threads:
        one.join()


def _watch(
    client: Client, path: str, note: Callable[[Content], None], ended: threading.Event
) -> None:
    version = client.get(path).json["metadata"]["resourceVersion"]
    while not ended.is_set():
        with client.watch(path, resourceVersion=version, timeoutSeconds=2) as events:
            try:
                while True:
                    event, content = events.next()
                    assert event != "ERROR", content
                    version = content["metadata"]["resourceVersion"]
                    if event in ("ADDED", "MODIFIED"):
                        note(content)
            except EOFError:
                pass


@pytest.fixture
def policies(plane: ControlPlane) -> Iterator[None]:
    """The policies that suspend jobs of queues."""
    contents = mutating_policies(Defaults())
    names = {
        "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
        "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
    }
    for one in contents:
        answer = plane.client.post(f"{GROUP}/{names[one['kind']]}", one)
        assert answer.code == 201, answer

    def suspends() -> bool:
        answer = plane.client.post(JOBS, job("probe"), dryRun="All")
        return bool(answer.json["spec"].get("suspend"))

    wait_until(suspends, "the policies are in force")
    yield
    for one in reversed(contents):
        plane.client.delete(f"{GROUP}/{names[one['kind']]}/{one['metadata']['name']}")
    wait_until(lambda: not suspends(), "the policies are gone")


def job(name: str) -> Content:
    """A job of one pod that would run at once."""
    (made,) = suspended_job(name, "q", 1)
    made["spec"]["suspend"] = False
    return made


def created(
    cluster: LiveCluster, kubeconfig: Path, folder: Path, rounds: int
) -> tuple[FirstSeen, int]:
    """Create jobs of which the queue has quota for a tenth; return what was seen, and how many."""
    count = A_ROUND * rounds
    quota = count // 10
    flavor, local, queue = cluster_queue("q")
    amounts = queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]
    amounts["nominalQuota"] = quota
    cluster.apply([*nodes(2 + count // 8), flavor, local, queue])
    cluster.used(job("any"))
    scheduler = Scheduler(kubeconfig, folder)
    scheduler.start()
    client = cluster.client
    try:
        with watching(client) as found:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                names = [f"j{index}" for index in range(count)]
                answers = list(pool.map(lambda name: client.post(JOBS, job(name)), names))
            assert {one.code for one in answers} == {201}
            wait_until(lambda: len(found.bound) == quota, "as many run as there is quota for")
            wait_until(lambda: _suspended(cluster) == count - quota, "all others are suspended")
            wait_until(lambda: len(cluster.items(PODS)) == quota, "they have no pods")
    finally:
        scheduler.stop()
    assert not scheduler.problems()
    return found, count


def _suspended(cluster: LiveCluster) -> int:
    return sum(bool(one["spec"].get("suspend")) for one in cluster.items(JOBS))


def test_no_pod_gets_a_node_before_its_job_is_admitted(
    real: LiveCluster, tmp_path: Path, rounds: int
) -> None:
    found, count = created(real, real.kubeconfig, tmp_path, rounds)
    assert found.early(found.bound) == []
    print(f"{count} creations: {len(found.early(found.created))} jobs had pods before, none a node")


def test_with_policies_a_job_has_no_pod_before_it_is_admitted(
    real: LiveCluster, policies: None, tmp_path: Path, rounds: int
) -> None:
    found, count = created(real, real.kubeconfig, tmp_path, rounds)
    assert found.early(found.created) == []
    assert found.early(found.bound) == []
    print(f"{count} creations: no job had pods before")
