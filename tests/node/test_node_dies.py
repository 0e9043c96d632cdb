"""The kubelet of one of five nodes is killed under a gang of four; the other four are objects."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from tests.controlplane.live_cluster import Content, Kubelet
from tests.controlplane.plane import wait_until
from tests.node.real_node import NODE, PODS, RealNode, pod

NODES = "/api/v1/nodes"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
OTHERS = ("n0", "n1", "n2", "n3")
SPARE = OTHERS[-1]
HOST = "kubernetes.io/hostname"
MANY_ROUNDS = 10
"""From so many on, it is worth the minutes."""
BEAT_SECONDS = 5.0
DEAD_SECONDS = 120.0
"""kube-controller-manager needs 50 until it taints a node whose kubelet is silent."""


class Companions:
    """Nodes without machines: they renew their Leases, and their pods run."""

    def __init__(self, node: RealNode) -> None:
        self.node = node
        self._ended = threading.Event()
        self._beats = threading.Thread(target=self._beat)
        self._kubelet = Kubelet(node.client)
        self._kubelet.silent.add(NODE)

    @contextmanager
    def running(self) -> Iterator[None]:
        for name in OTHERS:
            self._join(name)
        self._beats.start()
        self._kubelet.start()
        try:
            yield
        finally:
            self._ended.set()
            self._beats.join()
            self._kubelet.end()
            for name in OTHERS:
                self.node.client.delete(f"{NODES}/{name}")
                self.node.client.delete(f"{LEASES}/{name}")

    def _join(self, name: str) -> None:
        amounts = {"cpu": "8", "memory": "8Gi", "pods": "110"}
        meta = {"name": name, "labels": {HOST: name}}
        made = {"apiVersion": "v1", "kind": "Node", "metadata": meta}
        assert self.node.client.post(NODES, made).code == 201
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        assert self.node.client.patch(f"{NODES}/{name}/status", {"status": status}).code == 200
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _now()}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}
        lease["metadata"] = {"name": name, "namespace": "kube-node-lease"}
        assert self.node.client.post(LEASES, lease).code == 201

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            for name in OTHERS:
                self.node.client.patch(f"{LEASES}/{name}", {"spec": {"renewTime": _now()}})


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@pytest.fixture
def five(node: RealNode) -> Iterator[RealNode]:
    """Five nodes; the last one takes no pods yet."""
    with Companions(node).running():
        may_take_pods(node, SPARE, False)
        yield node
        node.client.delete(f"{JOBS}/train", propagationPolicy="Background")
        wait_until(lambda: not where(node), "the pods have gone", 60.0)


def may_take_pods(node: RealNode, name: str, may: bool) -> None:
    patch = {"spec": {"unschedulable": not may}}
    assert node.client.patch(f"{NODES}/{name}", patch).code == 200


IGNORED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
"""Evictions are no failures: the Job makes other pods at once, once the old ones have ended."""


def gang_of_four(**spec: Content) -> Content:
    """Return a Job whose pods take a node each."""
    labels = {"app": "train"}
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": HOST}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    template = {"metadata": {"labels": labels}, "spec": pod("x", affinity=apart)["spec"]}
    spec = {"parallelism": 4, "completions": 4, "backoffLimit": 100, "template": template, **spec}
    marks = {"bayplan.dev/min-member": "4"}
    meta = {"name": "train", "namespace": "default", "annotations": marks}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


def where(node: RealNode) -> dict[str, str]:
    """Return the node of each pod that does not end, by its uid; "" for none."""
    return {
        one["metadata"]["uid"]: one["spec"].get("nodeName", "")
        for one in node.items(PODS)
        if "deletionTimestamp" not in one["metadata"]
    }


def runs_on(node: RealNode, *names: str) -> dict[str, str]:
    """Wait until the gang runs on these nodes."""

    def runs() -> bool:
        phases = [one["status"].get("phase") for one in node.items(PODS)]
        return sorted(where(node).values()) == sorted(names) and phases.count("Running") >= 4

    wait_until(runs, f"the gang runs on {', '.join(names)}", 120.0)
    return where(node)


def pod_folders(node: RealNode) -> set[str]:
    """Return the uids of the pods that the kubelet holds anything of."""
    return {one.name for one in (node.folder / "kubelet" / "pods").iterdir()}


def test_the_fifth_node_takes_over_and_three_pods_keep_running(five: RealNode) -> None:
    five.apply(gang_of_four())
    before = runs_on(five, NODE, *OTHERS[:3])
    may_take_pods(five, SPARE, True)
    five.end("kubelet", signal.SIGKILL)
    try:
        wait_until(lambda: SPARE in where(five).values(), "the fifth node takes over", DEAD_SECONDS)
        kept = {uid: name for uid, name in before.items() if name != NODE}
        assert kept.items() <= where(five).items()
    finally:
        five.start()
    after = runs_on(five, *OTHERS)
    wait_until(lambda: pod_folders(five).isdisjoint(before), "its own pod has ended there", 90.0)
    assert where(five) == after


def test_without_a_spare_the_gang_waits_as_a_whole_and_nothing_is_left(
    five: RealNode, rounds: int
) -> None:
    if rounds < MANY_ROUNDS:
        pytest.skip(f"it takes five minutes: --rounds {MANY_ROUNDS}")
    five.apply(gang_of_four(podFailurePolicy={"rules": [IGNORED]}))
    before = runs_on(five, NODE, *OTHERS[:3])
    five.end("kubelet", signal.SIGKILL)
    try:

        def waits() -> bool:
            # The fourth is made once the kubelet can say that the old one has ended.
            found = where(five)
            return found.keys().isdisjoint(before) and list(found.values()) == [""] * 3

        wait_until(waits, "nobody holds a node", DEAD_SECONDS)
    finally:
        five.start()
    after = runs_on(five, NODE, *OTHERS[:3])
    assert after.keys().isdisjoint(before)
    wait_until(lambda: pod_folders(five) <= after.keys(), "only the new pod is there", 90.0)
