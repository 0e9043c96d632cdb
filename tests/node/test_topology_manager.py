"""The device plugin and NodeNUMA beside the Topology Manager of a real kubelet."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.controlplane.plane import wait_until
from tests.node.machine_files import MachineFiles
from tests.node.numa_kubelet import GPU, Alignment, NumaKubelet, two_numa_nodes
from tests.node.real_node import IMAGE, NODE, PODS, Content, DriverProcess, RealNode, pod
from tests.topology.machine.readers.nvml_machine import News

from bayplan.api import Pod
from bayplan.testing import Cluster, make_object
from bayplan.topology.machine.readers.machinefile import known_machine
from bayplan.topology.machine.rings import ring_order
from bayplan.topology.machine.select import Selection, SelectionRequest, select

MACHINE = known_machine("dgx-1v")
"""Its pairs of GPUs differ in bandwidth; four GPUs are on each NUMA node."""
FIRST, SECOND = {0, 1, 2, 3}, {4, 5, 6, 7}
REFUSED = "TopologyAffinityError"
POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
ALIGNMENTS = (
    Alignment("best-effort", exclusive=True),
    Alignment("restricted", "pod", exclusive=True),
    Alignment("single-numa-node", exclusive=True),
)
MORE_ALIGNMENTS = (
    Alignment("none"),
    Alignment("restricted", exclusive=True),
    Alignment("single-numa-node"),
    Alignment("single-numa-node", "pod", exclusive=True),
)
"""Only with --rounds: a kubelet takes ten seconds to start."""


@pytest.fixture(scope="module")
def kubelet(running: RealNode) -> Iterator[NumaKubelet]:
    """The kubelet with two NUMA nodes, and the device plugin of a DGX-1V without driver."""
    simulated = MachineFiles(("--machine", MACHINE.name), {}, News(Path("/dev/null")))
    plugin = DriverProcess(running, simulated, "--device-plugin", "all", "--no-driver")
    with two_numa_nodes(running) as kubelet:
        plugin.start()
        plugin.wait_until_ready()
        yield kubelet
        running.clear()
        plugin.stop()


@pytest.fixture
def node(kubelet: NumaKubelet) -> Iterator[RealNode]:
    """The node, without pods."""
    yield kubelet.node
    kubelet.node.clear()


def align(kubelet: NumaKubelet, alignment: Alignment) -> None:
    kubelet.align(alignment)
    kubelet.wait_for_gpus(len(MACHINE))


# The device plugin ------------------------------------------------------------------------------


def with_gpus(name: str, count: int) -> Content:
    """Return a pod with GPUs that is on the node already: the kubelet alone decides on it."""
    content = pod(name, nodeName=NODE)
    content["spec"]["containers"][0]["resources"] = {"limits": {GPU: str(count)}}
    return content


def preferred(count: int, free: set[int]) -> set[int]:
    """Return what the plugin has to choose of the GPUs that the kubelet leaves to it."""
    found = select(MACHINE, free, SelectionRequest(count))
    assert isinstance(found, Selection)
    return set(found.gpus)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_plugin_chooses_among_the_gpus_that_the_topology_manager_leaves(
    kubelet: NumaKubelet, node: RealNode, policy: str
) -> None:
    align(kubelet, Alignment(policy))
    everything = FIRST | SECOND
    node.apply(with_gpus("five", 5))
    if policy == "single-numa-node":
        assert_refused(node, "five")
    else:
        node.wait_for("Running", "five")
        assert kubelet.gpus("five") == preferred(5, everything)
    node.delete_pods("five")

    aligns = policy != "none"
    node.apply(with_gpus("two", 2))
    node.wait_for("Running", "two")
    two = kubelet.gpus("two")
    assert two == preferred(2, FIRST if aligns else everything)
    order = ring_order(MACHINE.bandwidth, sorted(two))
    visible = node.environment_of("two", "c")["NVIDIA_VISIBLE_DEVICES"]
    assert visible == ",".join(str(gpu) for gpu in order)
    node.apply(with_gpus("three", 3))
    node.wait_for("Running", "three")
    three = kubelet.gpus("three")
    assert three == preferred(3, SECOND if aligns else everything - two)

    # Two are left of the first NUMA node, one of the second.
    node.apply(with_gpus("more", 3))
    if policy in ("restricted", "single-numa-node"):
        assert_refused(node, "more")
    else:
        node.wait_for("Running", "more")
        assert kubelet.gpus("more") == everything - two - three


def assert_refused(node: RealNode, name: str) -> None:
    node.wait_for("Failed", name)
    status = node.pod(name)["status"]
    assert status["reason"] == REFUSED
    assert "Resources cannot be allocated with Topology locality" in status["message"]
    node.wait_until_told(name, f"Warning {REFUSED}")


# Controllers ------------------------------------------------------------------------------------

JOBS = "/apis/batch/v1/namespaces/default/jobs"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
SAYS = {
    "bayplan.dev/topology-manager-policy": "single-numa-node",
    "bayplan.dev/machine": MACHINE.name,
}


def test_pods_are_made_and_refused_until_the_node_says_its_policy(
    kubelet: NumaKubelet, node: RealNode
) -> None:
    align(kubelet, Alignment("single-numa-node"))
    node.apply(_controller("batch/v1", "Job", backoffLimit=0), _controller("apps/v1", "Deployment"))
    try:
        wait_until(lambda: len(_refused_pods(node, "deployment")) > 1, "a second pod is refused")
        wait_until(lambda: _job_has_failed(node), "the Job has failed")
        assert len(_refused_pods(node, "job")) == 1
        _label(node, SAYS)
        wait_until(lambda: _waits(node), "a pod waits and says why")
    finally:
        _label(node, dict.fromkeys(SAYS))
        for path in (JOBS, DEPLOYMENTS):
            node.client.delete(path, propagationPolicy="Background")


def _controller(version: str, kind: str, **spec: Any) -> Content:
    """Return a controller of a pod with more GPUs than a NUMA node has."""
    labels = {"of": kind.lower()}
    content = with_gpus("", 5)
    del content["spec"]["nodeName"]
    template = {"metadata": {"labels": labels}, "spec": content["spec"]}
    if kind == "Deployment":
        template["spec"]["restartPolicy"] = "Always"
        spec["selector"] = {"matchLabels": labels}
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "five", "namespace": "default"},
        "spec": {**spec, "template": template},
    }


def _refused_pods(node: RealNode, of: str) -> list[Content]:
    pods = [one for one in node.items(PODS) if one["metadata"].get("labels", {}).get("of") == of]
    return [one for one in pods if one["status"].get("reason") == REFUSED]


def _job_has_failed(node: RealNode) -> bool:
    conditions = node.items(JOBS)[0].get("status", {}).get("conditions", ())
    return any(one["type"] == "Failed" and one["status"] == "True" for one in conditions)


def _label(node: RealNode, labels: Mapping[str, str | None]) -> None:
    node.client.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": labels}})


def _waits(node: RealNode) -> bool:
    reason = "Topology Manager (single-numa-node, container scope) would refuse the pod"
    return any(
        reason in condition.get("message", "")
        for one in node.items(PODS)
        for condition in one["status"].get("conditions", ())
    )


# NodeNUMA ---------------------------------------------------------------------------------------


@dataclass
class Comparison:
    """What bayplan says of pods, and what the kubelet does with them."""

    kubelet: NumaKubelet
    alignment: Alignment
    chance: random.Random
    table: Counter[tuple[str, str]] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    def compare(self, name: str) -> None:
        """Make room at times, and try one more pod."""
        node = self.kubelet.node
        there = [one["metadata"]["name"] for one in node.items(PODS)]
        node.delete_pods(*(one for one in there if self.chance.random() < 0.35), grace=0)
        content = _random_pod(self.chance, name)
        report = self.kubelet.report(self.alignment, {0: len(FIRST), 1: len(SECOND)})
        predicted = _prediction(node, report, content)
        node.apply(_only_admitted(content))
        answer = _answer_of(node, name)
        if answer:
            node.delete_pods(name, grace=0)
        self.table["does not" if predicted else "fits", answer or "admits"] += 1
        if bool(predicted) != bool(answer):
            said = f"bayplan: {predicted or 'fits'}; kubelet: {answer or 'admits'}"
            pods = [(one["metadata"]["name"], one["status"]) for one in node.items(PODS)]
            self.differences.append(f"{self.alignment}: {said}\n{content}\n{report}\n{pods}")


def test_what_the_kubelet_refuses_is_predicted(
    kubelet: NumaKubelet, node: RealNode, request: pytest.FixtureRequest
) -> None:
    rounds = request.config.getoption("--rounds")
    differences = []
    for alignment in (*ALIGNMENTS, *(MORE_ALIGNMENTS if rounds > 2 else ())):
        align(kubelet, alignment)
        comparison = Comparison(kubelet, alignment, random.Random(str(alignment)))
        for number in range(4 * rounds):
            comparison.compare(f"p{number}")
        node.clear()
        print(f"\n{alignment}")
        for (predicted, answer), count in sorted(comparison.table.items()):
            print(f"  bayplan: {predicted:8}  kubelet: {answer:24} {count:4}")
        differences += comparison.differences
    assert not differences, "\n\n".join(differences)


def _random_pod(chance: random.Random, name: str) -> Content:
    exclusive = chance.random() < 0.65
    before = range(chance.choice([0, 0, 0, 1, 1, 2]))
    sidecars = [chance.random() < 0.3 for _ in before]
    spec: Content = {
        "initContainers": [
            {
                **_random_container(chance, f"i{number}", exclusive),
                **({"restartPolicy": "Always"} if sidecars[number] else {}),
            }
            for number in before
        ],
        "containers": [
            _random_container(chance, f"c{number}", exclusive)
            for number in range(chance.choice([1, 1, 1, 2, 2, 3]))
        ],
    }
    if len(spec["containers"] + spec["initContainers"]) == 1 and chance.random() < 0.2:
        whole = {"cpu": "10", "memory": "14Gi"}
        spec["resources"] = {"requests": whole, "limits": whole}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _random_container(chance: random.Random, name: str, exclusive: bool) -> Content:
    cpus = ["500m", "500m", *"1111222346789"]
    mebibytes = [256, 256, 512, 512, 1024, 1024, 2048, 4096, 6144, 11500, 12500, 14000]
    wanted = {"cpu": chance.choice(cpus), "memory": f"{chance.choice(mebibytes)}Mi"}
    requests = {one: amount for one, amount in wanted.items() if exclusive or chance.random() < 0.7}
    limits = {one: amount for one, amount in requests.items() if exclusive or chance.random() < 0.4}
    gpus = chance.choice([0, 0, 1, 1, 1, 2, 2, 2, 3, 4, 4, 5, 6, 8])
    if gpus:
        limits[GPU] = str(gpus)
    return {
        "name": name,
        "image": IMAGE,
        "command": ["sleep", "1000"],
        "resources": {"requests": requests, "limits": limits},
    }


def _prediction(node: RealNode, report: Content, content: Content) -> str:
    """Return why bayplan would not place a pod on the node; "" if it would."""
    pods = [{"apiVersion": "v1", "kind": "Pod", **one} for one in node.items(PODS)]
    real = node.client.get(f"/api/v1/nodes/{NODE}").json
    cluster = Cluster(make_object(one) for one in (real, report, *pods))
    made = make_object(content)
    assert isinstance(made, Pod)
    found = cluster.evaluate(made)
    if found.feasible.any():
        return ""
    reasons = [
        reason for one in found.filters for (reason, _), mask in one.refusals.items() if mask.any()
    ]
    return "; ".join(dict.fromkeys([*reasons, *(found.refusal or ())[1:]]))


def _only_admitted(content: Content) -> Content:
    """Return a pod for the kubelet whose containers never start: they wait for a volume.

    The kubelet hands out everything when it admits a pod, and most of its CPUs do not exist.
    """
    missing = {"name": "missing", "configMap": {"name": "missing"}}
    placed = {
        "nodeName": NODE,
        "volumes": [missing],
        "automountServiceAccountToken": False,
    }
    return {**content, "spec": {**content["spec"], **placed}}


def _answer_of(node: RealNode, name: str) -> str:
    """Return why the kubelet refuses a pod; "" if it admits it."""

    def status() -> Content:
        return dict(node.pod(name).get("status", {}))

    wait_until(lambda: status()["phase"] == "Failed" or status().get("containerStatuses"), name)
    return str(status()["reason"]) if status()["phase"] == "Failed" else ""
