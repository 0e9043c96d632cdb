"""GPUs that change between claims and the device plugin while pods have them, on a real node."""

from __future__ import annotations

from tests.controlplane.plane import wait_until
from tests.node.real_node import (
    NODE,
    Content,
    DriverProcess,
    RealNode,
    claim_template,
    pod,
    request,
)

ONE = claim_template("one", [request("gpu", "gpu")])
ALL = claim_template("all", [request("gpu", "gpu", 8)])


def _plugged(name: str, gpus: int) -> Content:
    made = pod(name)
    (container,) = made["spec"]["containers"]
    container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    return made


def _allocatable(node: RealNode) -> int:
    status = node.client.get(f"/api/v1/nodes/{NODE}").json["status"]
    return int(status["allocatable"].get("nvidia.com/gpu", 0))


def _gpus(node: RealNode, name: str) -> set[str]:
    files = node.device_files(name, "c")
    return {one for one in files if one.removeprefix("nvidia").isdigit()}


def test_the_device_plugin_gives_no_gpu_away_that_a_claim_has(
    node: RealNode, driver: DriverProcess
) -> None:
    node.apply(ONE, pod("p", template="one"))
    node.wait_for("Running", "p")
    driver.kill()
    driver.start("--device-plugin", "all")
    driver.wait_until_ready()
    wait_until(lambda: _allocatable(node) == 7, "seven GPUs are offered")
    node.apply(_plugged("plugged", 7))
    node.wait_for("Running", "plugged")
    assert len(_gpus(node, "plugged")) == 7
    assert not _gpus(node, "plugged") & _gpus(node, "p")
    node.delete_pods("p")
    wait_until(lambda: _allocatable(node) == 8, "all GPUs are offered")


def test_a_claim_gets_no_gpu_that_a_pod_has_through_the_device_plugin(
    node: RealNode, driver: DriverProcess
) -> None:
    driver.stop()
    driver.start("--device-plugin", "all")
    driver.wait_until_ready()
    wait_until(lambda: _allocatable(node) == 8, "all GPUs are offered")
    node.apply(_plugged("plugged", 3))
    node.wait_for("Running", "plugged")
    driver.kill()
    driver.start("--log-format", "console")
    driver.wait_until_ready()
    wait_until(lambda: len(node.tainted()) == 3, "three GPUs have a taint")
    assert {f"nvidia{name.removeprefix('gpu-')}" for name in node.tainted()} == _gpus(
        node, "plugged"
    )
    node.apply(ALL, pod("p", template="all"))
    node.wait_until_told("p", "3 tainted")
    node.delete_pods("plugged")
    node.wait_for("Running", "p")
    assert len(_gpus(node, "p")) == 8
