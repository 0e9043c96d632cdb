"""CPUs of their own on a real API server: what its objects say at every change.

``--rounds 40`` creates 1,000 pods.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import Counter
from pathlib import Path

from tests.controlplane.cpu_machines import ASKED, CpuHolder, CpuMachine, choice_faults, problems
from tests.controlplane.live_cluster import PODS, Content, LiveCluster
from tests.controlplane.plane import wait_until
from tests.controlplane.process import Scheduler
from tests.cpu_nodes import QOS, SPEC

MACHINES = (
    CpuMachine("plain", reserved=frozenset({0, 16})),
    CpuMachine("dense", strategy="MostAllocated", by_kubelet=frozenset({4, 5, 20})),
    CpuMachine("amplified", ratio=1.5, reserved=frozenset({0})),
    CpuMachine("whole", bind="FullPCPUsOnly", ratio=1.25),
    CpuMachine("spread", bind="SpreadByPCPUs", by_kubelet=frozenset({3})),
    CpuMachine("single", numa="SingleNUMANode", reserved=frozenset({1, 17})),
)
BATCH, ALONE = 15, 10
"""Pods that are created together in a round, and one after the other."""


class Witness:
    """Follows the pods of an API server, and checks at every change who has which CPUs."""

    def __init__(self, cluster: LiveCluster) -> None:
        self._client = cluster.client
        self.pods: dict[str, CpuHolder] = {}
        self.changes = 0
        self.faults: list[str] = []
        self._ending = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ending = True
        self._thread.join()

    def _run(self) -> None:
        listed = self._client.get(PODS).json
        version = listed["metadata"]["resourceVersion"]
        while not self._ending:
            try:
                with self._client.watch(PODS, resourceVersion=version, timeoutSeconds=5) as events:
                    while not self._ending:
                        event, pod = events.next()
                        assert event != "ERROR", pod
                        version = pod["metadata"]["resourceVersion"]
                        self._see(event, pod)
            except (EOFError, OSError, http.client.HTTPException):
                continue

    def _see(self, event: str, pod: Content) -> None:
        uid = pod["metadata"]["uid"]
        if event == "DELETED":
            self.pods.pop(uid, None)
            return
        self.changes += 1
        self.pods[uid] = CpuHolder.of(pod)
        at = self.pods[uid].node
        for machine in MACHINES:
            if machine.name == at:
                self.faults += problems(machine, list(self.pods.values()))


class Play:
    """Creates pods, ends and deletes some, and restarts the scheduler now and then."""

    def __init__(self, cluster: LiveCluster, scheduler: Scheduler, seed: int) -> None:
        self._cluster = cluster
        self._scheduler = scheduler
        self._dice = random.Random(seed)
        self._made = 0
        self.placed: set[str] = set()
        self.table: Counter[str] = Counter()
        self.faults: list[str] = []

    def round(self) -> None:
        """Let a number of pods come together, and some more one by one."""
        for _ in range(BATCH):
            self._create()
        if self._dice.random() < 0.5:
            time.sleep(self._dice.random() * 0.3)
            self._restart()
        self._settle()
        self._leave(0.3)
        for _ in range(ALONE):
            self._alone()
        self._leave(0.15)

    def _restart(self) -> None:
        self._scheduler.kill()
        self._scheduler.start()
        self.table["restarts"] += 1

    def _create(self) -> str:
        dice = self._dice
        asked: dict[str, str] = {}
        if dice.random() < 0.9:
            policies = ["FullPCPUs", "SpreadByPCPUs", "FullPCPUs", "SpreadByPCPUs", "Default"]
            key = dice.choice(["requiredCPUBindPolicy", "preferredCPUBindPolicy"])
            asked[key] = dice.choice([*policies, "ConstrainedBurst"])
            exclusive = dice.choice(["", "None", "PCPULevel", "NUMANodeLevel"])
            if exclusive:
                asked["preferredCPUExclusivePolicy"] = exclusive
        qos = dice.choice(["LSR", "LSR", "LSR", "LSE", "LSE", "LS", ""])
        cpu = str(dice.choice([1, 1, 2, 2, 2, 3, 4, 4, 5, 6, 8, 9, 12]))
        if qos in ("LS", "") and dice.random() < 0.5:
            cpu = "1500m"
        name = f"p{self._made}"
        self._made += 1
        amounts = {"cpu": cpu, "memory": f"{dice.choice([1, 1, 2, 5])}Gi"}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "labels": {QOS: qos} if qos else {},
                "annotations": {SPEC: json.dumps(asked), ASKED: json.dumps(_plain(asked))},
            },
            "spec": {
                "schedulerName": "bayplan",
                "priority": dice.choice([9000, 9000, 9500]),
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {
                        "name": "c",
                        "image": "busybox",
                        "resources": {"requests": amounts, "limits": amounts},
                    }
                ],
            },
        }
        self._cluster.apply([pod])
        return name

    def _settle(self) -> list[Content]:
        """Wait until every pod has a node, or the scheduler has said why not; delete the latter."""
        found: list[Content] = []

        def settled() -> bool:
            found[:] = self._cluster.items(PODS)
            return all(map(_is_decided, found))

        wait_until(settled, "all pods are decided")
        waiting = [pod["metadata"]["name"] for pod in found if "nodeName" not in pod["spec"]]
        self.placed |= {pod["metadata"]["uid"] for pod in found if "nodeName" in pod["spec"]}
        self.table["not placed"] += len(waiting)
        self._delete(waiting, 0)
        return found

    def _leave(self, part: float) -> None:
        """Let some pods end, and others be deleted."""
        there = [pod for pod in self._cluster.items(PODS) if "nodeName" in pod["spec"]]
        leaving = [pod["metadata"]["name"] for pod in there if self._dice.random() < part]
        cut = len(leaving) // 3
        for name in leaving[:cut]:
            status = {"phase": self._dice.choice(["Succeeded", "Failed"])}
            wait_until(lambda name=name: self._runs(name), "it runs, before it ends")
            self._cluster.client.patch(f"{PODS}/{name}/status", {"status": status})
        self.table["ended"] += cut
        self.table["deleted"] += len(leaving) - cut
        self._delete(leaving[cut:], 1)

    def _runs(self, name: str) -> bool:
        phase = self._cluster.client.get(f"{PODS}/{name}").json["status"].get("phase")
        return phase != "Pending"

    def _delete(self, names: list[str], grace: int) -> None:
        for name in names:
            self._cluster.client.delete(f"{PODS}/{name}", gracePeriodSeconds=grace)
        gone = set(names)
        wait_until(lambda: not gone & set(self._cluster.client.names(PODS)), "they are gone")

    def _alone(self) -> None:
        """Let one pod come while nothing else happens, and look at what it gets."""
        before = [CpuHolder.of(pod) for pod in self._cluster.items(PODS)]
        name = self._create()
        after = {pod["metadata"]["name"]: CpuHolder.of(pod) for pod in self._settle()}
        if not {pod.name for pod in before} <= after.keys():
            self.table["evictions for one pod"] += 1
            return
        own = after[name]
        for machine in MACHINES:
            if machine.name == own.node and own.gets_cpus(machine):
                self.table["checked choices"] += 1
                found = choice_faults(machine, before, own)
                self.faults += [f"{machine}: {fault}: {own}, {before}" for fault in found]


def _plain(asked: dict[str, str]) -> dict[str, str]:
    """Return what is asked with the profile's default policy in place of its name."""
    return {key: "FullPCPUs" if value == "Default" else value for key, value in asked.items()}


def _is_decided(pod: Content) -> bool:
    """Tell whether a pod has a node, or the scheduler has said why not and evicts nobody for it."""
    if "deletionTimestamp" in pod["metadata"] or "nodeName" in pod["spec"]:
        return "deletionTimestamp" not in pod["metadata"]
    told = [
        one
        for one in pod["status"].get("conditions", ())
        if one["type"] == "PodScheduled" and one["status"] == "False" and one.get("message")
    ]
    return bool(told) and "nominatedNodeName" not in pod["status"]


def test_no_cpu_is_given_twice_and_all_rules_hold_whoever_restarts(
    real: LiveCluster, tmp_path: Path, rounds: int
) -> None:
    for machine in MACHINES:
        real.apply(machine.objects())
    scheduler = Scheduler(real.kubeconfig, tmp_path)
    scheduler.start()
    witness, play = Witness(real), Play(real, scheduler, seed=rounds)
    witness.start()
    try:
        for _ in range(rounds):
            play.round()
    finally:
        witness.end()
        scheduler.stop()
    print(f"\n  {witness.changes} changes, {len(play.placed)} pods placed: {dict(play.table)}")
    assert not witness.faults, "\n".join(witness.faults[:20])
    assert not play.faults, "\n".join(play.faults[:20])
    assert len(play.placed) > BATCH * rounds // 2
    assert scheduler.problems() == []
