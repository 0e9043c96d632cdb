"""CPUs of their own beside a real kubelet, where Koordinator's agent would report and bind them."""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from tests.controlplane.plane import wait_until
from tests.cpu_nodes import QOS, STATUS
from tests.node.numa_kubelet import CPUS, Alignment, NumaKubelet, two_numa_nodes
from tests.node.real_node import NODE, PODS, Content, RealNode, pod

from bayplan.api.cpu_lists import cpu_list, cpus_in

REPORTS = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies"
_CGROUPS = Path("/sys/fs/cgroup/cpuset")


@pytest.fixture
def reported(node: RealNode) -> Iterator[RealNode]:
    """The node, whose report goes in the end."""
    yield node
    node.clear()
    node.client.delete(f"{REPORTS}/{NODE}")


def report(
    node: RealNode,
    numa: Mapping[int, int],
    given: Mapping[str, set[int]] | None = None,
    reserved: Sequence[int] = (),
) -> set[int]:
    """Publish a node's CPUs as the agent does; return those that it says the kubelet has given.

    :param numa: the NUMA node of each CPU; each CPU is a core.
    :param given: CPUs that the kubelet has given, by the uid of the pod.
    :param reserved: the kubelet's CPUs of the system.
    """
    bound = {one["metadata"]["uid"] for one in node.items(PODS) if written(one)}
    # The agent leaves out the pods that have CPUs from the scheduler: it binds those itself.
    others = {uid: cpus for uid, cpus in (given or {}).items() if uid not in bound}
    listed = [{"id": cpu, "core": cpu, "socket": at, "node": at} for cpu, at in numa.items()]
    allocations = [
        {"uid": uid, "cpuset": cpu_list(cpus), "managedByKubelet": True}
        for uid, cpus in others.items()
    ]
    policy = {"policy": "static" if given is not None else "none"}
    texts = {
        "node.koordinator.sh/cpu-topology": {"detail": listed},
        "node.koordinator.sh/pod-cpu-allocs": allocations or None,
        "node.koordinator.sh/reservation": {},
        "kubelet.koordinator.sh/cpu-manager-policy": policy
        | ({"reservedCPUs": cpu_list(reserved)} if reserved else {}),
    }
    amounts = [str(list(numa.values()).count(at)) for at in sorted(set(numa.values()))]
    content = {
        "apiVersion": "topology.node.k8s.io/v1alpha1",
        "kind": "NodeResourceTopology",
        "metadata": {
            "name": NODE,
            "annotations": {key: json.dumps(value) for key, value in texts.items()},
        },
        "topologyPolicies": ["None"],
        "zones": [
            {
                "name": f"node-{at}",
                "type": "Node",
                "resources": [
                    {"name": "cpu", "capacity": own, "allocatable": own, "available": own}
                ],
            }
            for at, own in enumerate(amounts)
        ],
    }
    node.apply(content)
    return {cpu for cpus in others.values() for cpu in cpus}


def asking(name: str, cpus: int, qos: str = "LSR", **spec: object) -> Content:
    """Return a guaranteed pod that is to have CPUs of its own."""
    content = pod(name, **spec)
    amounts = {"cpu": str(cpus), "memory": "32Mi"}
    content["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    content["metadata"]["labels"] = {QOS: qos} if qos else {}
    return content


def written(content: Content) -> frozenset[int]:
    """Return the CPUs that are written on a pod."""
    text = content["metadata"].get("annotations", {}).get(STATUS, "{}")
    return cpus_in(json.loads(text).get("cpuset", ""))


def bind(node: RealNode, name: str) -> str:
    """Bind a pod's container to its CPUs as the agent does; return those that it may use then."""
    content = node.pod(name)
    (status,) = content["status"]["containerStatuses"]
    identity = status["containerID"].removeprefix("containerd://")
    ctr = str(node.folder / "pkg" / "usr" / "bin" / "ctr")
    socket = str(node.folder / "run" / "containerd.sock")
    listing = [ctr, "--address", socket, "-n", "k8s.io", "tasks", "ls"]
    tasks = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
    (process,) = re.findall(rf"^{identity}\s+(\d+)", tasks, re.MULTILINE)
    (path,) = re.findall(
        r"^\d+:cpuset:/(.*)$", Path(f"/proc/{process}/cgroup").read_text(), re.MULTILINE
    )
    text = json.loads(content["metadata"]["annotations"][STATUS])["cpuset"]
    (_CGROUPS / path / "cpuset.cpus").write_text(text)
    shown = Path(f"/proc/{process}/status").read_text()
    (allowed,) = re.findall(r"^Cpus_allowed_list:\s*(\S+)$", shown, re.MULTILINE)
    return str(allowed)


def test_what_is_written_is_what_a_container_is_bound_to(reported: RealNode) -> None:
    node = reported
    cpus = sorted(cpus_in(Path("/sys/devices/system/cpu/online").read_text().strip()))
    if len(cpus) < 2:
        pytest.skip("this machine has one CPU")
    report(node, {cpu: int(at >= len(cpus) // 2) for at, cpu in enumerate(cpus)})
    node.apply(asking("first", 1), asking("second", 1, "LSE"))
    node.wait_for("Running", "first", "second")
    own = {name: written(node.pod(name)) for name in ("first", "second")}
    for name, given in own.items():
        assert len(given) == 1
        assert cpus_in(bind(node, name)) == given
    assert own["first"] != own["second"]

    # What a pod had is another one's, once it has ended; what stays is nobody else's.
    node.delete_pods("first")
    node.apply(asking("third", 1, command="exit 0"))
    node.wait_for("Succeeded", "third")
    assert written(node.pod("third")) == own["first"]
    node.apply(asking("fourth", 1))
    node.wait_for("Running", "fourth")
    assert written(node.pod("fourth")) == own["first"]
    assert cpus_in(bind(node, "fourth")) == own["first"]


@pytest.fixture(scope="module")
def kubelet(running: RealNode) -> Iterator[NumaKubelet]:
    """The kubelet with two NUMA nodes that gives CPUs to pods itself."""
    with two_numa_nodes(running) as kubelet:
        kubelet.align(Alignment("none", exclusive=True))
        yield kubelet
        running.clear()


def test_cpus_that_the_kubelet_has_given_are_given_to_nobody(
    reported: RealNode, kubelet: NumaKubelet, rounds: int
) -> None:
    node, dice = reported, random.Random(rounds)
    numa = {cpu: cpu // CPUS for cpu in range(2 * CPUS)}
    # Their containers never start, as they wait for a volume: most of the CPUs do not exist.
    waiting = [{"name": "missing", "configMap": {"name": "missing"}}]
    met = 0
    for number in range(4 * rounds):
        one = asking(f"kubelet-{number}", dice.randint(1, 4), "", volumes=waiting, nodeName=NODE)
        node.apply(one)
        name = one["metadata"]["name"]
        wait_until(lambda name=name: _is_admitted(node, name), f"the kubelet has seen {name}")
        given = report(node, numa, kubelet.cpus(), (0, CPUS))
        assert given or node.phase(name) == "Failed"
        one = asking(f"own-{number}", dice.randint(1, 4), volumes=waiting)
        node.apply(one)
        name = one["metadata"]["name"]
        wait_until(lambda name=name: _is_decided(node.pod(name)), f"{name} is decided")
        pods = [one for one in node.items(PODS) if one["status"]["phase"] != "Failed"]
        own = {one["metadata"]["name"]: written(one) for one in pods if written(one)}
        assert not own.get(name, frozenset()) & (given | {0, CPUS})
        assert len(frozenset().union(*own.values())) == sum(map(len, own.values())), own
        met += name in own
        there = [one["metadata"]["name"] for one in node.items(PODS)]
        node.delete_pods(*(one for one in there if dice.random() < 0.4 or one not in own), grace=0)
    assert met > rounds


def _is_admitted(node: RealNode, name: str) -> bool:
    status = node.pod(name)["status"]
    return status["phase"] == "Failed" or bool(status.get("containerStatuses"))


def _is_decided(content: Content) -> bool:
    conditions = content["status"].get("conditions", ())
    told = [one for one in conditions if one["type"] == "PodScheduled" and one.get("message")]
    return bool(content["spec"].get("nodeName") or told)
