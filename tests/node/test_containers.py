"""What containers get on a real node: device files, environment, and nothing of others."""

from __future__ import annotations

from tests.node.machine_files import GPU_MAJOR, VERBS_MAJOR
from tests.node.real_node import DriverProcess, RealNode, claim_template, pod, request

ON_ONE_ROOT = {
    "requests": ["gpu", "nic"],
    "matchAttribute": "resource.kubernetes.io/pcieRoot",
}
BIG = 'device.capacity["dra.bayplan.dev"].memory.compareTo(quantity("70Gi")) > 0'
PAIR = claim_template("pair", [request("gpu", "gpu", cel=BIG), request("nic", "nic")], ON_ONE_ROOT)
TWO_PAIRS = claim_template(
    "two-pairs",
    [request("gpu-a", "gpu"), request("nic-a", "nic"), request("gpu-b", "gpu", 2)],
    {"requests": ["gpu-a", "nic-a"], "matchAttribute": "resource.kubernetes.io/pcieRoot"},
)


def _index(device: str) -> int:
    return int(device.rpartition("-")[2])


def test_each_container_gets_what_it_names_and_learns_of_nothing_else(
    node: RealNode, driver: DriverProcess
) -> None:
    containers = {"whole": [""], "gpu-only": ["gpu"], "nic-only": ["nic"], "none": []}
    node.apply(PAIR, pod("p", containers, template="pair"))
    node.wait_for("Running", "p")
    claim = node.claims()["p"]
    gpu, nic = _index(claim["gpu"][0]), _index(claim["nic"][0])
    of_gpu = {f"nvidia{gpu}", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}
    of_nic = {f"infiniband/uverbs{nic}", "infiniband/rdma_cm"}
    assert node.device_files("p", "whole") == of_gpu | of_nic
    assert node.device_files("p", "gpu-only") == of_gpu
    assert node.device_files("p", "nic-only") == of_nic
    assert node.device_files("p", "none") == set()

    said = {name: node.environment_of("p", name) for name in containers}
    hca, uuid = f"=mlx5_{nic}:1", f"GPU-{gpu}"
    assert said["whole"]["NVIDIA_VISIBLE_DEVICES"] == uuid
    assert said["whole"]["NCCL_IB_HCA"] == hca
    assert said["gpu-only"]["NVIDIA_VISIBLE_DEVICES"] == uuid
    assert "NCCL_IB_HCA" not in said["gpu-only"]
    assert said["nic-only"]["NCCL_IB_HCA"] == hca
    assert "NVIDIA_VISIBLE_DEVICES" not in said["nic-only"]
    assert not {name for name in said["none"] if name.startswith(("NVIDIA", "NCCL", "BAYPLAN"))}


def test_requests_of_one_claim_may_go_to_different_containers(
    node: RealNode, driver: DriverProcess
) -> None:
    containers = {"whole": [""], "a": ["gpu-a", "nic-a"], "b": ["gpu-b"]}
    node.apply(TWO_PAIRS, pod("p", containers, template="two-pairs"))
    node.wait_for("Running", "p")
    claim = node.claims()["p"]
    a, nic = _index(claim["gpu-a"][0]), _index(claim["nic-a"][0])
    b = {_index(one) for one in claim["gpu-b"]}
    said = {name: node.environment_of("p", name) for name in containers}
    named = {name: set(said[name]["NVIDIA_VISIBLE_DEVICES"].split(",")) for name in containers}
    assert named["a"] == {f"GPU-{a}"}
    assert named["b"] == {f"GPU-{index}" for index in b}
    assert named["whole"] == named["a"] | named["b"]
    assert said["a"]["NCCL_IB_HCA"] == said["whole"]["NCCL_IB_HCA"] == f"=mlx5_{nic}:1"
    assert "NCCL_IB_HCA" not in said["b"]
    # In the order of their ring, and only where no other container may name a part of it.
    assert len(said["whole"]["CUDA_VISIBLE_DEVICES"].split(",")) == 3
    assert "CUDA_VISIBLE_DEVICES" not in said["b"]


def test_a_pod_may_not_open_the_devices_of_another(node: RealNode, driver: DriverProcess) -> None:
    node.apply(PAIR, pod("p", template="pair"), pod("q", template="pair"))
    node.wait_for("Running", "p", "q")
    claims = node.claims()
    for one, other in (("p", "q"), ("q", "p")):
        for request_name, major, first in (("gpu", GPU_MAJOR, 0), ("nic", VERBS_MAJOR, 192)):
            own, foreign = (_index(claims[name][request_name][0]) for name in (one, other))
            assert own != foreign
            assert node.may_open(one, "c", major, first + own)
            assert not node.may_open(one, "c", major, first + foreign)
