"""kubectl rolls workloads out, sees how far they are, and takes them back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.apiserver.faces import node, serving
from tests.cluster.apiserver.kubectl import PROGRAM, Kubectl

from bayplan.api import Pod
from bayplan.cluster.apiserver import ServedCluster
from bayplan.cluster.embedded.daemonsets import node_of
from bayplan.cluster.protocol import Bind, WatchEvent

pytestmark = pytest.mark.skipif(not PROGRAM, reason="there is no kubectl")

Content = dict[str, Any]


class Scheduler:
    """Gives every pod a node at once: the one that it is made for, or n1."""

    def __init__(self, cluster: ServedCluster) -> None:
        self._cluster = cluster
        cluster.watch(self.handle)

    def handle(self, event: WatchEvent) -> None:
        pod = event.obj
        if not isinstance(pod, Pod) or event.type.name != "ADDED" or pod.spec.scheduling_gates:
            return
        if not pod.spec.node_name:
            self._cluster.submit(Bind(pod.key, pod.metadata.uid, node_of(pod) or "n1"))


@pytest.fixture
def kubectl(tmp_path: Path) -> Iterator[Kubectl]:
    cluster = ServedCluster(start=datetime.now(UTC))
    with serving(cluster, tokens={"secret": None}) as face:
        face.do(lambda _: Scheduler(cluster))
        made = Kubectl(face, tmp_path)
        for name in ("n1", "n2"):
            made("create", "-f", "-", stdin=node(name))
        yield made


def workload(kind: str, **spec: Any) -> Content:
    container = {"name": "c", "image": "one", "env": [{"name": "A", "value": "b"}]}
    pod = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "x"},
        "spec": {
            "selector": {"matchLabels": {"app": "x"}},
            "template": {"metadata": {"labels": {"app": "x"}}, "spec": pod},
            **spec,
        },
    }


def images(kubectl: Kubectl) -> set[str]:
    path = "jsonpath={.items[*].spec.containers[0].image}"
    return set(kubectl("get", "pods", "-o", path).split())


@pytest.mark.parametrize(
    ("kind", "done"),
    [
        ("Deployment", 'deployment "x" successfully rolled out'),
        ("StatefulSet", "partitioned roll out complete: 2 new pods have been updated"),
        ("DaemonSet", 'daemon set "x" successfully rolled out'),
    ],
)
def test_a_workload_is_rolled_out_and_back(kubectl: Kubectl, kind: str, done: str) -> None:
    size = {} if kind == "DaemonSet" else {"replicas": 2}
    target = f"{kind.lower()}/x"
    kubectl("apply", "-f", "-", stdin=workload(kind, **size))
    status = ("rollout", "status", target, "--timeout=10s")
    assert done in kubectl(*status)
    kubectl("set", "image", target, "c=two")
    assert done in kubectl(*status)
    assert images(kubectl) == {"two"}
    kubectl("rollout", "undo", target)
    assert done in kubectl(*status)
    assert images(kubectl) == {"one"}
    history = kubectl("rollout", "history", target)
    assert [line.split()[0] for line in history.splitlines()[2:] if line] in (
        ["1", "2", "3"],
        ["2", "3"],
    )
    assert "two" in kubectl("rollout", "history", target, "--revision=2")
    kubectl("rollout", "restart", target)
    assert done in kubectl(*status)
    shown = kubectl("get", "pods", "-o", "json")
    for pod in json.loads(shown)["items"]:
        assert "kubectl.kubernetes.io/restartedAt" in pod["metadata"]["annotations"]
        # What bayplan does not read of a template reaches the pods as well.
        assert pod["spec"]["containers"][0]["env"] == [{"name": "A", "value": "b"}]


def test_a_change_that_bayplan_does_not_read_is_rolled_out_too(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=workload("Deployment"))
    kubectl("set", "env", "deployment/x", "A=c")
    found = kubectl("get", "rs", "-o", "jsonpath={.items[*].spec.replicas}")
    assert sorted(found.split()) == ["0", "1"]
    path = "jsonpath={.items[*].spec.containers[0].env[0].value}"
    assert kubectl("get", "pods", "-o", path) == "c"


def test_a_rollout_is_paused_and_resumed(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=workload("Deployment"))
    kubectl("rollout", "pause", "deployment/x")
    kubectl("set", "image", "deployment/x", "c=two")
    assert images(kubectl) == {"one"}
    assert "paused" in kubectl.refused("rollout", "restart", "deployment/x")
    kubectl("rollout", "resume", "deployment/x")
    assert images(kubectl) == {"two"}


def test_a_rollout_that_misses_its_deadline_ends_the_waiting(kubectl: Kubectl) -> None:
    spec = {"progressDeadlineSeconds": 60}
    content = workload("Deployment", **spec)
    content["spec"]["template"]["spec"]["schedulingGates"] = [{"name": "example.com/later"}]
    kubectl("apply", "-f", "-", stdin=content)
    kubectl.face.advance(62)
    text = kubectl.refused("rollout", "status", "deployment/x", "--timeout=10s")
    assert 'deployment "x" exceeded its progress deadline' in text


def test_the_events_of_a_rollout_are_described(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=workload("Deployment", replicas=2))
    name = kubectl("get", "rs", "-o", "jsonpath={.items[0].metadata.name}")
    shown = kubectl("describe", "deployment", "x")
    assert f"Scaled up replica set {name} from 0 to 2" in shown
    assert "RollingUpdateStrategy:  25% max unavailable, 25% max surge" in shown
    assert "Created pod:" in kubectl("describe", "rs", name)


def test_daemon_pods_are_left_by_a_drain_and_driven_out_by_a_taint(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=workload("DaemonSet"))
    text = kubectl.refused("drain", "n1", "--timeout=5s")
    assert "cannot delete DaemonSet-managed Pods" in text
    kubectl("drain", "n1", "--ignore-daemonsets", "--timeout=5s")
    row = kubectl("get", "ds", "x", "--no-headers").split()
    assert row[:6] == ["x", "2", "2", "2", "2", "2"]
    kubectl("taint", "node", "n1", "gone=yes:NoExecute")
    assert kubectl("get", "ds", "x", "--no-headers").split()[:2] == ["x", "1"]


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet"])
def test_orphans_stay_and_are_adopted_by_the_next_of_the_name(kubectl: Kubectl, kind: str) -> None:
    size = {} if kind == "DaemonSet" else {"replicas": 2}
    content = workload(kind, **size)
    kubectl("apply", "-f", "-", stdin=content)
    pods = kubectl("get", "pods", "-o", "name")
    kubectl("delete", kind.lower(), "x", "--cascade=orphan")
    assert kubectl("get", "pods", "-o", "name") == pods
    kubectl("apply", "-f", "-", stdin=content)
    assert kubectl("get", "pods", "-o", "name") == pods
    kubectl("delete", kind.lower(), "x")
    assert kubectl("get", "pods", "-o", "name") == ""


def test_a_taint_evicts_pods_and_says_so(kubectl: Kubectl) -> None:
    kubectl("run", "p", "--image=i")
    kubectl("taint", "node", "n1", "gone=yes:NoExecute")
    assert "Marking for deletion Pod default/p" in kubectl("get", "events")
    conditions = kubectl("get", "pod", "p", "-o", "jsonpath={.status.conditions[*].reason}")
    assert "DeletionByTaintManager" in conditions
