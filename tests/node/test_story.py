"""The whole chain on a real node: install, place, run, sicken, drain, update, uninstall."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from tests.controlplane.plane import wait_until
from tests.node.daemon_set import DriverSet
from tests.node.machine_files import GPU_MAJOR, MachineFiles
from tests.node.real_node import (
    CLAIMS,
    DRIVER,
    NODE,
    PODS,
    SLICES,
    RealNode,
    claim_template,
    in_background,
    pod,
    request,
)

XID = 8
"""The type of NVML's event."""
PAIR = claim_template(
    "pair",
    [
        request("gpu", "gpu", cel='device.attributes["dra.bayplan.dev"].index >= 2'),
        request("nic", "nic"),
    ],
    {"requests": ["gpu", "nic"], "matchAttribute": "resource.kubernetes.io/pcieRoot"},
)


@pytest.fixture
def installed(node: RealNode, machine: MachineFiles) -> Iterator[DriverSet]:
    """The DaemonSet, which is deleted in the test; its role and classes are back afterwards."""
    made = DriverSet(node, machine)
    made.apply()
    made.wait_until_updated()
    yield made
    machine.news.path.write_text("")
    node.install_driver()


def test_the_whole_chain(node: RealNode, machine: MachineFiles, installed: DriverSet) -> None:
    # A GPU and a NIC on one PCIe root, the GPU chosen by CEL.
    node.apply(PAIR, pod("one", template="pair"), pod("two", template="pair"))
    node.wait_for("Running", "one", "two")
    claims = node.claims()
    gpus = {name: int(claims[name]["gpu"][0].removeprefix("gpu-")) for name in ("one", "two")}
    assert len(set(gpus.values())) == 2
    assert min(gpus.values()) >= 2
    roots = node.attribute("resource.kubernetes.io/pcieRoot")
    for given in claims.values():
        assert roots[given["gpu"][0]] == roots[given["nic"][0]]
    said = node.environment_of("one", "c")
    assert said["NVIDIA_VISIBLE_DEVICES"] == f"GPU-{gpus['one']}"
    nic = claims["one"]["nic"][0].removeprefix("nic-").replace("-", "_")
    assert said["NCCL_IB_HCA"] == f"={nic}:1"
    assert node.may_open("one", "c", GPU_MAJOR, gpus["one"])
    assert not node.may_open("one", "c", GPU_MAJOR, gpus["two"])
    assert not [line for line in node.told("one") if line.startswith("Warning FailedScheduling")]

    # A GPU that falls off the bus is told where people look.
    machine.news.event(gpus["one"], XID, 79)
    wait_until(lambda: node.health_of("one") == ["Healthy", "Unhealthy"], "the pod's status")
    broken = {f"gpu-{gpus['one']}": [f"{DRIVER}/xid"]}
    # It is published beside the health that the kubelet is told of.
    wait_until(lambda: node.tainted() == broken, "the device's taint")

    # An update loses no claim: pods run on, and others start meanwhile.
    offered = len(node.devices())
    fewest = [offered]
    updated = threading.Event()

    def watch() -> None:
        while not updated.is_set():
            fewest.append(len(node.devices()))

    with in_background(threading.Thread(target=watch)):
        installed.apply()
        for number in range(4):
            node.apply(pod(f"meanwhile-{number}", template="pair"))
            node.wait_for("Running", f"meanwhile-{number}", seconds=20)
            node.delete_pods(f"meanwhile-{number}")
        installed.wait_until_updated()
        updated.set()
    assert min(fewest) == offered, "devices were not offered for a while"
    assert node.environment_of("two", "c")["NVIDIA_VISIBLE_DEVICES"] == f"GPU-{gpus['two']}"
    assert len(node.prepared()) == 2

    # A drain gives the devices back.
    node.client.patch(f"/api/v1/nodes/{NODE}", {"spec": {"unschedulable": True}})
    for name in ("one", "two"):
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        assert node.client.post(f"{PODS}/{name}/eviction", body).code == 201
    wait_until(lambda: not node.items(PODS) and not node.items(CLAIMS), "the node is drained")
    assert node.prepared() == node.cdi_files() == []
    node.client.patch(f"/api/v1/nodes/{NODE}", {"spec": {"unschedulable": False}})

    # Nothing is left of what was installed; the kubelet deletes the slices after 30 s.
    installed.delete()
    wait_until(lambda: not node.items(SLICES), "the slices are gone")
    assert node.driver_files() == []
