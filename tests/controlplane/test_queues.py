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
from faces import Client
from history import History
from installation import path_of
from live_cluster import EVENTS, PODS, Content, LiveCluster
from plane import wait_until
from process import Scheduler
from test_stories import asking, nodes

QUEUES = [f"q{number}" for number in range(10)]
JOBS = 20
"""Jobs of a queue: half of them are gangs of two pods, the others single pods; a core each."""
PODS_OF_QUEUE = JOBS // 2 * 3
MOST = 6
"""Cores that a queue may have: it never has all that it asks for."""
NODES = 8
QUOTA = "quota.scheduling.koordinator.sh/"
SECONDS = 120.0


@dataclass(frozen=True)
class System:
    """How one system spells queues and jobs, and what it is told of a queue in the end.

    ``said`` returns what an object says: cores in use, cores asked for, both as text; None for
    what it does not say.
    """

    queue: Callable[[str], Content]
    group: Callable[[str, str], Content]
    marks: Callable[[str, str], dict[str, dict[str, str]]]
    said: Callable[[Content], tuple[str | None, str | None]]


def head(version: str, kind: str, name: str, namespaced: bool = True) -> Content:
    meta = {"name": name, **({"namespace": "default"} if namespaced else {})}
    return {"apiVersion": version, "kind": kind, "metadata": meta}


# Volcano ---------------------------------------------------------------------------------------


def volcano_queue(name: str) -> Content:
    spec = {"weight": 1, "capability": {"cpu": MOST}, "deserved": {"cpu": MOST}}
    return {**head("scheduling.volcano.sh/v1beta1", "Queue", name, False), "spec": spec}


def volcano_group(name: str, queue: str) -> Content:
    made = head("scheduling.volcano.sh/v1beta1", "PodGroup", name)
    return {**made, "spec": {"minMember": 2, "queue": queue}}


def volcano_marks(queue: str, group: str) -> dict[str, dict[str, str]]:
    named = {"scheduling.k8s.io/group-name": group} if group else {}
    return {"annotations": named or {"scheduling.volcano.sh/queue-name": queue}}


def volcano_said(queue: Content) -> tuple[str | None, str | None]:
    status = queue.get("status", {})
    groups = [status.get(phase, 0) for phase in ("pending", "inqueue", "running")]
    whole = status.get("state") == "Open" and sum(groups) == JOBS // 2
    return (status.get("allocated", {}).get("cpu") if whole else None), None


# KAI -------------------------------------------------------------------------------------------


def kai_queue(name: str) -> Content:
    free = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    cores = {"quota": MOST * 1000, "limit": MOST * 1000, "overQuotaWeight": 1}
    resources = {"cpu": cores, "memory": free, "gpu": free}
    made = head("scheduling.run.ai/v2", "Queue", name, False)
    return {**made, "spec": {"resources": resources}}


def kai_group(name: str, queue: str) -> Content:
    made = head("scheduling.run.ai/v2alpha2", "PodGroup", name)
    return {**made, "spec": {"minMember": 2, "queue": queue}}


def kai_marks(queue: str, group: str) -> dict[str, dict[str, str]]:
    annotations = {"pod-group-name": group} if group else {}
    return {"labels": {"kai.scheduler/queue": queue}, "annotations": annotations}


def kai_said(queue: Content) -> tuple[str | None, str | None]:
    status = queue.get("status", {})
    return status.get("allocated", {}).get("cpu"), status.get("requested", {}).get("cpu")


# Koordinator -----------------------------------------------------------------------------------


def elastic_quota(name: str) -> Content:
    made = head("scheduling.sigs.k8s.io/v1alpha1", "ElasticQuota", name)
    return {**made, "spec": {"min": {"cpu": MOST}, "max": {"cpu": MOST}}}


def koordinator_group(name: str, queue: str) -> Content:
    made = head("scheduling.sigs.k8s.io/v1alpha1", "PodGroup", name)
    return {**made, "spec": {"minMember": 2}}


def koordinator_marks(queue: str, group: str) -> dict[str, dict[str, str]]:
    named = {"pod-group.scheduling.sigs.k8s.io": group} if group else {}
    return {"labels": {f"{QUOTA}name": queue, **named}}


def koordinator_said(queue: Content) -> tuple[str | None, str | None]:
    asked = json.loads(queue["metadata"].get("annotations", {}).get(f"{QUOTA}child-request", "{}"))
    return queue.get("status", {}).get("used", {}).get("cpu"), asked.get("cpu")


SYSTEMS = {
    "volcano": System(volcano_queue, volcano_group, volcano_marks, volcano_said),
    "kai": System(kai_queue, kai_group, kai_marks, kai_said),
    "koordinator": System(elastic_quota, koordinator_group, koordinator_marks, koordinator_said),
}


# A cluster with queues -------------------------------------------------------------------------


class QueueHistory(History):
    """Also notes when the bound pods of a queue use more than it may have."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._holding: dict[str, set[str]] = defaultdict(set)

    def _pod(self, event: str, pod: Content) -> None:
        super()._pod(event, pod)
        meta = pod["metadata"]
        queue = meta["name"].partition("-")[0]
        holding = self._holding[queue]
        if event == "DELETED" or not pod["spec"].get("nodeName"):
            holding.discard(meta["uid"])
        else:
            holding.add(meta["uid"])
        if len(holding) > MOST:
            self.problems.append(f"{queue} uses {len(holding)} of {MOST} cores")


def jobs(system: System) -> Iterator[list[Content]]:
    """Yield the objects of each job, those of all queues in turn."""
    for number in range(JOBS):
        for queue in QUEUES:
            name = f"{queue}-{number}"
            gang = number % 2 == 0
            made = [system.group(name, queue)] if gang else []
            for index in range(2 if gang else 1):
                member = asking(f"{name}-{index}", schedulerName="bayplan")
                member["metadata"].update(system.marks(queue, name if gang else ""))
                made.append(member)
            yield made


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


@pytest.mark.parametrize("name", SYSTEMS)
def test_jobs_in_queues_survive_a_scheduler_that_is_killed(
    name: str, real: LiveCluster, tmp_path: Path
) -> None:
    system = SYSTEMS[name]
    real.apply([*nodes(NODES), *(system.queue(queue) for queue in QUEUES)])
    scheduler = Scheduler(real.kubeconfig, tmp_path)
    full = dict.fromkeys(QUEUES, MOST)
    with QueueHistory(real.client) as history:
        scheduler.start()
        try:
            with creating(real, list(jobs(system))):
                wait_until(lambda: sum(by_queue(real).values()) >= 15, "some are bound", SECONDS)
                scheduler.kill()
                scheduler.start()
            wait_until(lambda: by_queue(real) == full, "the queues are full", SECONDS)
            statuses_say(real, system, PODS_OF_QUEUE)
            done = [pod for pod in real.placements() if pod.startswith("q0-")]
            for pod in done:
                real.client.delete(f"{PODS}/{pod}", gracePeriodSeconds=0)
            scheduler.kill()
            scheduler.start()
            wait_until(
                lambda: by_queue(real) == full and not set(done) & set(real.placements()),
                "others have taken their places",
                SECONDS,
            )
            statuses_say(real, system, PODS_OF_QUEUE, q0=PODS_OF_QUEUE - MOST)
        finally:
            scheduler.stop()
        assert history.problems == []
        assert scheduler.problems() == []
        assert set(bindings_told(real).values()) <= {1}


def statuses_say(cluster: LiveCluster, system: System, asked: int, **others: int) -> None:
    """Wait until every queue says what it has and what its jobs ask for."""
    path = path_of(system.queue("q0"), name=False)

    def is_said() -> bool:
        for queue in cluster.items(path):
            has, asks = system.said(queue)
            wanted = others.get(queue["metadata"]["name"], asked)
            if has != str(MOST) or asks not in (None, str(wanted)):
                return False
        return True

    wait_until(is_said, f"the statuses of {path}", 30)


def bindings_told(cluster: LiveCluster) -> Counter[Any]:
    """Return how often each pod was told that it has a node."""
    return Counter(
        event["involvedObject"]["uid"]
        for event in cluster.items(EVENTS)
        if event["reason"] == "Scheduled"
        for _ in range(event.get("count") or 1)
    )
