"""Queues on a real API server: 200 jobs in 10 queues, a scheduler that is killed, and statuses."""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.apiserver.faces import Client
from tests.controlplane.history import History
from tests.controlplane.installation import path_of
from tests.controlplane.live_cluster import EVENTS, PODS, Content, LiveCluster
from tests.controlplane.plane import wait_until
from tests.controlplane.process import Scheduler
from tests.controlplane.queue_builders import KUEUE, MOST, cluster_queue, head, suspended_job
from tests.controlplane.story_builders import asking, nodes
from tests.live.deployed import DEPLOY

QUEUES = [f"q{number}" for number in range(10)]
JOBS = 20
"""Jobs of a queue: half of them have two pods, the others a single one; a core each."""
PODS_OF_QUEUE = JOBS // 2 * 3
NODES = 8
QUOTA = "quota.scheduling.koordinator.sh/"
SECONDS = 120.0


@dataclass(frozen=True)
class System:
    """How one system spells queues and jobs, and what it is told of a queue in the end.

    ``queue`` returns the objects of a queue; the last one is told. ``job`` returns the objects of
    a job, by its name, its queue and its number of pods. ``said`` returns what an object says:
    cores in use, cores asked for, both as text; None for what it does not say. ``until_gone``:
    whether a pod counts until it is gone, or until its deletion begins.
    """

    queue: Callable[[str], list[Content]]
    job: Callable[[str, str, int], list[Content]]
    said: Callable[[Content], tuple[str | None, str | None]]
    until_gone: bool


def pods_of(
    name: str, count: int, marks: dict[str, dict[str, str]], group: Content
) -> list[Content]:
    """Return the pods of a job, with a group if there are several."""
    made = [group] if count > 1 else []
    for index in range(count):
        member = asking(f"{name}-{index}", schedulerName="bayplan")
        member["metadata"].update(marks)
        made.append(member)
    return made


# Volcano ---------------------------------------------------------------------------------------


def volcano_queue(name: str) -> list[Content]:
    spec = {"weight": 1, "capability": {"cpu": MOST}, "deserved": {"cpu": MOST}}
    return [{**head("scheduling.volcano.sh/v1beta1", "Queue", name, False), "spec": spec}]


def volcano_job(name: str, queue: str, count: int) -> list[Content]:
    group = head("scheduling.volcano.sh/v1beta1", "PodGroup", name)
    group["spec"] = {"minMember": 2, "queue": queue}
    named = {"scheduling.k8s.io/group-name": name}
    own = {"scheduling.volcano.sh/queue-name": queue}
    return pods_of(name, count, {"annotations": named if count > 1 else own}, group)


def volcano_said(queue: Content) -> tuple[str | None, str | None]:
    status = queue.get("status", {})
    groups = [status.get(phase, 0) for phase in ("pending", "inqueue", "running", "unknown")]
    whole = status.get("state") == "Open" and sum(groups) == JOBS // 2
    return (status.get("allocated", {}).get("cpu") if whole else None), None


# KAI -------------------------------------------------------------------------------------------


def kai_queue(name: str) -> list[Content]:
    free = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    cores = {"quota": MOST * 1000, "limit": MOST * 1000, "overQuotaWeight": 1}
    resources = {"cpu": cores, "memory": free, "gpu": free}
    made = head("scheduling.run.ai/v2", "Queue", name, False)
    return [{**made, "spec": {"resources": resources}}]


def kai_job(name: str, queue: str, count: int) -> list[Content]:
    group = head("scheduling.run.ai/v2alpha2", "PodGroup", name)
    group["spec"] = {"minMember": 2, "queue": queue}
    annotations = {"pod-group-name": name} if count > 1 else {}
    marks = {"labels": {"kai.scheduler/queue": queue}, "annotations": annotations}
    return pods_of(name, count, marks, group)


def kai_said(queue: Content) -> tuple[str | None, str | None]:
    status = queue.get("status", {})
    return status.get("allocated", {}).get("cpu"), status.get("requested", {}).get("cpu")


# Koordinator -----------------------------------------------------------------------------------


def elastic_quota(name: str) -> list[Content]:
    made = head("scheduling.sigs.k8s.io/v1alpha1", "ElasticQuota", name)
    return [{**made, "spec": {"min": {"cpu": MOST}, "max": {"cpu": MOST}}}]


def koordinator_job(name: str, queue: str, count: int) -> list[Content]:
    group = head("scheduling.sigs.k8s.io/v1alpha1", "PodGroup", name)
    group["spec"] = {"minMember": 2}
    named = {"pod-group.scheduling.sigs.k8s.io": name} if count > 1 else {}
    return pods_of(name, count, {"labels": {f"{QUOTA}name": queue, **named}}, group)


def koordinator_said(queue: Content) -> tuple[str | None, str | None]:
    asked = json.loads(queue["metadata"].get("annotations", {}).get(f"{QUOTA}child-request", "{}"))
    return queue.get("status", {}).get("used", {}).get("cpu"), asked.get("cpu")


# Kueue -----------------------------------------------------------------------------------------


def kueue_said(queue: Content) -> tuple[str | None, str | None]:
    status = queue.get("status", {})
    if not status.get("flavorsUsage"):
        return None, None
    # Jobs instead of cores.
    jobs = status.get("pendingWorkloads", 0) + status.get("admittedWorkloads", 0)
    return status["flavorsUsage"][0]["resources"][0]["total"], str(jobs)


SYSTEMS = {
    "volcano": System(volcano_queue, volcano_job, volcano_said, until_gone=False),
    "kai": System(kai_queue, kai_job, kai_said, until_gone=False),
    "koordinator": System(elastic_quota, koordinator_job, koordinator_said, until_gone=True),
}


# A cluster with queues -------------------------------------------------------------------------


class QueueHistory(History):
    """Also notes when the bound pods of a queue use more than it may have.

    :param until_gone: whether pods count until they are gone, or until their deletion begins.
    """

    def __init__(self, client: Client, until_gone: bool) -> None:
        super().__init__(client)
        self._until_gone = until_gone
        self._holding: dict[str, set[str]] = defaultdict(set)

    def _pod(self, event: str, pod: Content) -> None:
        super()._pod(event, pod)
        meta = pod["metadata"]
        queue = meta["name"].partition("-")[0]
        holding = self._holding[queue]
        leaving = not self._until_gone and "deletionTimestamp" in meta
        if event == "DELETED" or leaving or not pod["spec"].get("nodeName"):
            holding.discard(meta["uid"])
        else:
            holding.add(meta["uid"])
        if len(holding) > MOST:
            self.problems.append(f"{queue} uses {len(holding)} of {MOST} cores")


@pytest.mark.parametrize(("bound", "problems"), [(MOST, []), (MOST + 1, ["q0 uses 7 of 6 cores"])])
def test_a_pod_that_is_deleted_between_two_watches_has_given_its_core_back(
    embedded: LiveCluster, bound: int, problems: list[str]
) -> None:
    history = QueueHistory(embedded.client, until_gone=True)
    names = [f"q0-{number}-0" for number in range(bound + 2)]
    for name in names[:2]:
        embedded.apply([asking(name, nodeName="n0")])
    history.look(PODS)
    for name in names[:2]:
        embedded.client.delete(f"{PODS}/{name}", gracePeriodSeconds=0)
    embedded.apply([asking(name, nodeName="n0") for name in names[2:]])
    history.look(PODS)
    assert history.problems == problems


@pytest.mark.parametrize(
    ("until_gone", "problems"), [(False, []), (True, ["q0 uses 7 of 6 cores"])]
)
def test_a_pod_that_is_being_deleted_has_given_its_core_back_where_the_system_says_so(
    embedded: LiveCluster, until_gone: bool, problems: list[str]
) -> None:
    history = QueueHistory(embedded.client, until_gone)
    going = asking("q0-0-0", nodeName="n0")
    going["metadata"]["finalizers"] = ["example.com/kept"]
    embedded.apply([going, *(asking(f"q0-{number}-0", nodeName="n0") for number in range(1, MOST))])
    embedded.client.delete(f"{PODS}/q0-0-0", gracePeriodSeconds=0)
    embedded.apply([asking("q0-6-0", nodeName="n0")])
    history.look(PODS)
    assert history.problems == problems


def jobs(system: System) -> Iterator[list[Content]]:
    """Yield the objects of each job, those of all queues in turn."""
    for number in range(JOBS):
        for queue in QUEUES:
            name = f"{queue}-{number}"
            yield system.job(name, queue, 2 if number % 2 == 0 else 1)


@contextmanager
def creating(cluster: LiveCluster, contents: Sequence[list[Content]]) -> Iterator[None]:
    """Create the objects of jobs at the side."""

    def create() -> None:
        for content in (one for job in contents for one in job):
            cluster.used(content)
            assert cluster.client.post(path_of(content, name=False), content).code == 201

    thread = threading.Thread(target=create)
    thread.start()
    yield
    thread.join()


def by_queue(cluster: LiveCluster) -> Counter[str]:
    """Return how many pods of each queue have nodes."""
    return Counter(name.partition("-")[0] for name in cluster.placements())


FULL = dict.fromkeys(QUEUES, MOST)


@contextmanager
def full_queues(real: LiveCluster, system: System, folder: Path) -> Iterator[Scheduler]:
    """Fill all queues, kill the scheduler meanwhile; in the end nothing is bound twice or beyond.

    Yields the scheduler, which runs.
    """
    real.apply([*nodes(NODES), *(one for queue in QUEUES for one in system.queue(queue))])
    scheduler = Scheduler(real.kubeconfig, folder)
    with QueueHistory(real.client, system.until_gone) as history:
        scheduler.start()
        try:
            with creating(real, list(jobs(system))):
                wait_until(lambda: sum(by_queue(real).values()) >= 15, "some are bound", SECONDS)
                scheduler.kill()
                scheduler.start()
            wait_until(lambda: by_queue(real) == FULL, "the queues are full", SECONDS)
            yield scheduler
        finally:
            scheduler.stop()
        assert history.problems == []
        assert scheduler.problems() == []
        assert set(bindings_told(real).values()) <= {1}


@pytest.mark.parametrize("name", SYSTEMS)
def test_jobs_in_queues_survive_a_scheduler_that_is_killed(
    name: str, real: LiveCluster, tmp_path: Path
) -> None:
    system = SYSTEMS[name]
    with full_queues(real, system, tmp_path) as scheduler:
        statuses_say(real, system, PODS_OF_QUEUE)
        done = [pod for pod in real.placements() if pod.startswith("q0-")]
        for pod in done:
            real.client.delete(f"{PODS}/{pod}", gracePeriodSeconds=0)
        scheduler.kill()
        scheduler.start()
        wait_until(
            lambda: by_queue(real) == FULL and not set(done) & set(real.placements()),
            "others have taken their places",
            SECONDS,
        )
        statuses_say(real, system, PODS_OF_QUEUE, q0=PODS_OF_QUEUE - MOST)


def test_suspended_jobs_survive_a_scheduler_that_is_killed(
    real: LiveCluster, tmp_path: Path
) -> None:
    system = System(cluster_queue, suspended_job, kueue_said, until_gone=True)
    real.used(head(KUEUE, "Workload", "any"))
    with full_queues(real, system, tmp_path) as scheduler:
        statuses_say(real, system, JOBS)
        assert_admitted_as_they_run(real)
        done = jobs_that_run(real, "q0-")
        for job in done:
            real.client.delete(f"{BATCH_JOBS}/{job}", propagationPolicy="Background")
        scheduler.kill()
        scheduler.start()
        wait_until(
            lambda: by_queue(real) == FULL and not done & jobs_that_run(real, "q0-"),
            "others have taken their places",
            SECONDS,
        )
        statuses_say(real, system, JOBS, q0=JOBS - len(done))
        assert_admitted_as_they_run(real)


CONFIG_MAPS = "/api/v1/namespaces/bayplan-system/configmaps"
"""Those of the namespace of the scheduler's Lease."""


def test_config_maps_of_queues_are_followed(real: LiveCluster, tmp_path: Path) -> None:
    label = {"bayplan.dev/queue": "a"}
    queue = {"metadata": {"name": "queue-a", "labels": label}, "data": {"maxCapacity": "{cpu: 1}"}}
    pods = [asking(f"p{number}", schedulerName="bayplan") for number in range(4)]
    for one in pods:
        one["metadata"]["labels"] = label
    real.apply(nodes(2))
    scheduler = Scheduler(real.kubeconfig, tmp_path, DEPLOY / "scheduler-config.yaml")
    assert real.client.post(CONFIG_MAPS, queue).code == 201
    scheduler.start()
    try:
        real.apply(pods)
        wait_until(lambda: len(real.placements()) == 1, "one is bound", SECONDS)
        for most in (2, 3):
            change = {"data": {"maxCapacity": f"{{cpu: {most}}}"}}
            real.client.patch(f"{CONFIG_MAPS}/queue-a", change)
            wait_until(lambda most=most: len(real.placements()) == most, "more are bound", SECONDS)
        unlabelled = {"metadata": {"labels": {"bayplan.dev/queue": None}}}
        real.client.patch(f"{CONFIG_MAPS}/queue-a", unlabelled)
        wait_until(lambda: len(real.placements()) == 4, "all are bound", SECONDS)
    finally:
        scheduler.stop()
        real.client.delete(f"{CONFIG_MAPS}/queue-a")
    assert scheduler.problems() == []


BATCH_JOBS = "/apis/batch/v1/namespaces/default/jobs"


def jobs_that_run(cluster: LiveCluster, prefix: str = "") -> set[str]:
    """Return the names of the jobs that are not suspended."""
    names = {job["metadata"]["name"]: job["spec"] for job in cluster.items(BATCH_JOBS)}
    return {name for name, spec in names.items() if name.startswith(prefix) and not spec["suspend"]}


def assert_admitted_as_they_run(cluster: LiveCluster) -> None:
    """Every job that runs has a Workload that is admitted, and no other job has."""

    def is_so() -> bool:
        admitted = set()
        for workload in cluster.items(f"/apis/{KUEUE}/namespaces/default/workloads"):
            stated = workload.get("status", {}).get("conditions", ())
            if any(one["type"] == "Admitted" and one["status"] == "True" for one in stated):
                admitted.add(workload["metadata"]["ownerReferences"][0]["name"])
        return admitted == jobs_that_run(cluster)

    wait_until(is_so, "workloads are as their jobs", SECONDS)


def statuses_say(cluster: LiveCluster, system: System, asked: int, **others: int) -> None:
    """Wait until every queue says what it has and what its jobs ask for."""
    path = path_of(system.queue("q0")[-1], name=False)

    def wrong() -> list[Content]:
        found = []
        for queue in cluster.items(path):
            has, asks = system.said(queue)
            wanted = others.get(queue["metadata"]["name"], asked)
            if has != str(MOST) or asks not in (None, str(wanted)):
                found.append(queue)
        return found

    try:
        wait_until(lambda: not wrong(), f"the statuses of {path}", SECONDS)
    except TimeoutError:
        said = {one["metadata"]["name"]: system.said(one) for one in wrong()}
        raise AssertionError(f"expected {MOST} and {asked} ({others}), got {said}") from None


def bindings_told(cluster: LiveCluster) -> Counter[Any]:
    """Return how often each pod was told that it has a node."""
    return Counter(
        event["involvedObject"]["uid"]
        for event in cluster.items(EVENTS)
        if event["reason"] == "Scheduled"
        for _ in range(event.get("count") or 1)
    )
