"""What breaks while gangs and devices are bound, and that nothing is lost or given twice by it.

``pytest tests/controlplane/test_faults.py --rounds 100`` breaks it so often.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.cluster.apiserver.faces import Client
from tests.controlplane.history import History, devices_of
from tests.controlplane.installation import path_of
from tests.controlplane.live_cluster import CLAIMS, EVENTS, PODS, Content, LiveCluster
from tests.controlplane.plane import ControlPlane, wait_until
from tests.controlplane.process import Scheduler
from tests.controlplane.story_builders import asking, devices, nodes, with_device

GANG = 4
SECONDS = 120.0
CPU = 8
"""Cores, and GPUs, of a node; a pod requests one of each, or one core."""


class Trouble:
    """A cluster with a scheduler's process, whose gangs are counted and whose history is kept."""

    def __init__(
        self, plane: ControlPlane, cluster: LiveCluster, scheduler: Scheduler, history: History
    ) -> None:
        self.plane = plane
        self.cluster = cluster
        self.scheduler = scheduler
        self.history = history
        self.draw = random.Random(0)
        self.gangs = 0

    # Gangs -------------------------------------------------------------------------------

    def gang(self) -> list[Content]:
        """Make the next gang; the pods of every other one have a claim for a GPU each."""
        name = f"g{self.gangs}"
        make = with_device if self.gangs % 2 else asking
        self.gangs += 1
        spec = {"schedulingPolicy": {"gang": {"minCount": GANG}}}
        meta = {"name": name, "namespace": "default"}
        version = "scheduling.k8s.io/v1alpha2"
        group = {"podGroupName": name}
        members = (
            make(f"{name}-{i}", schedulerName="bayplan", schedulingGroup=group) for i in range(GANG)
        )
        return [
            {"apiVersion": version, "kind": "PodGroup", "metadata": meta, "spec": spec},
            *members,
        ]

    def create(self, gangs: int) -> None:
        """Create gangs, however often the server is away meanwhile."""
        for content in [one for _ in range(gangs) for one in self.gang()]:
            self.cluster.used(content)
            while not _is_created(self.cluster.client, content):
                time.sleep(0.05)

    @contextmanager
    def creating(self, gangs: int) -> Iterator[None]:
        """Create gangs at the side."""
        thread = threading.Thread(target=self.create, args=(gangs,))
        thread.start()
        yield
        thread.join()

    # Faults ------------------------------------------------------------------------------

    def pause(self, most: float) -> None:
        time.sleep(self.draw.random() * most)

    def restart(self, part: str) -> None:
        """Kill a part of the control plane and start it again a little later."""
        self.plane.kill(part)
        self.pause(0.5)
        self.plane.start(part)
        self.plane.wait_until_ready()

    # What has to be so -------------------------------------------------------------------

    def settles(self) -> None:
        """Everything is bound in the end, once, as a whole, and with devices of its own."""
        wait_until(lambda: self.bound() == self.gangs * GANG, "every pod is bound", SECONDS)
        self.scheduler.stop()
        pods = {pod["metadata"]["uid"]: pod for pod in self.cluster.items(PODS)}
        assert {uid: pod["spec"].get("nodeName") for uid, pod in pods.items()} == {
            uid: self.history.nodes.get(uid) for uid in pods
        }
        used = Counter(pod["spec"]["nodeName"] for pod in pods.values())
        assert max(used.values()) <= CPU
        self._devices_are_right(pods)
        told = Counter(
            event["involvedObject"]["uid"]
            for event in self.cluster.items(EVENTS)
            if event["reason"] == "Scheduled"
            for _ in range(event.get("count") or 1)
        )
        assert set(told.values()) <= {1}
        assert self.history.problems == []
        assert self.scheduler.problems() == []

    def _devices_are_right(self, pods: dict[str, Content]) -> None:
        """Every claim of a pod has a device on its node, and that pod alone is in reservedFor.

        A controller manager that got no answer may have made a second claim; nobody uses that one.
        """
        claims = {claim["metadata"]["name"]: claim for claim in self.cluster.items(CLAIMS)}
        given = [device for claim in claims.values() for device in devices_of(claim)]
        assert len(given) == len(set(given)) == self.gangs // 2 * GANG
        for uid, pod in pods.items():
            for named in pod["status"].get("resourceClaimStatuses", []):
                claim = claims[named["resourceClaimName"]]
                ((_, pool, _),) = devices_of(claim)
                assert pool == pod["spec"]["nodeName"]
                (user,) = claim["status"]["reservedFor"]
                assert user["uid"] == uid

    def bound(self, prefix: str = "") -> int:
        """Return how many pods are bound, as soon as the server says."""
        while True:
            with suppress(OSError, AssertionError):
                placed = self.cluster.placements()
                return sum(name.startswith(prefix) for name in placed)
            time.sleep(0.05)


def _is_created(client: Client, content: Content) -> bool:
    with suppress(OSError):
        return client.post(path_of(content, name=False), content).code in (201, 409)
    return False


@pytest.fixture
def trouble(
    plane: ControlPlane, real: LiveCluster, rounds: int, tmp_path: Path
) -> Iterator[Trouble]:
    """A cluster with room for what is created in as many rounds."""
    count = (rounds * 3 + 6) * GANG // CPU
    real.apply([*nodes(count), *devices(count, gpus=CPU)])
    scheduler = Scheduler(real.kubeconfig, tmp_path)
    with History(real.client) as history:
        try:
            yield Trouble(plane, real, scheduler, history)
        finally:
            scheduler.stop()


def test_an_api_server_that_is_killed_while_gangs_are_bound(trouble: Trouble, rounds: int) -> None:
    trouble.scheduler.start()
    for _ in range(rounds):
        with trouble.creating(3):
            trouble.pause(0.6)
            trouble.restart("apiserver")
    trouble.settles()


def test_an_etcd_that_stands_still_while_gangs_are_bound(trouble: Trouble, rounds: int) -> None:
    trouble.scheduler.start()
    trouble.create(2)
    with trouble.creating(2):
        trouble.pause(0.3)
        trouble.plane.signal("etcd", signal.SIGSTOP)
        try:
            time.sleep(min(30.0, 2.0 * rounds))
        finally:
            trouble.plane.signal("etcd", signal.SIGCONT)
    trouble.settles()


def test_a_scheduler_that_is_killed_while_it_binds_gangs(trouble: Trouble, rounds: int) -> None:
    for _ in range(rounds):
        before = trouble.bound()
        trouble.create(3)
        trouble.scheduler.start()
        some = before + trouble.draw.randrange(1, 3 * GANG)
        wait_until(lambda some=some: trouble.bound() >= some, "some pods are bound", SECONDS)
        trouble.scheduler.kill()
    trouble.scheduler.start()
    trouble.settles()


def test_a_controller_manager_that_restarts_while_it_makes_claims(
    trouble: Trouble, rounds: int
) -> None:
    trouble.scheduler.start()
    for _ in range(rounds):
        with trouble.creating(2):
            trouble.pause(0.3)
            trouble.restart("kcm")
    trouble.settles()
