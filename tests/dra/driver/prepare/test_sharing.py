"""GPUs that claims share: what is published, and what their containers get."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.dra.driver.driver_stage import MACHINE, DriverNode, SeenHealth, devices_of, short_folder

from bayplan.api import ResourceClaim, ResourceSlice
from bayplan.api.meta import ObjectMeta
from bayplan.api.validation import validate
from bayplan.errors import BayplanError
from bayplan.testing import make_object
from bayplan_dra.driver.app import NodeDriver
from bayplan_dra.driver.kubelet.deviceplugin import split
from bayplan_dra.driver.kubelet.sockets import Sockets
from bayplan_dra.driver.prepare.edits import DeviceFiles
from bayplan_dra.driver.prepare.sharing import TimeSlices
from bayplan_dra.driver.publish.devices import DRIVER, inventory_of
from bayplan_dra.driver.publish.publisher import specs_of

ALL = frozenset(range(8))
PIPE, SHM = "/tmp/nvidia-mps", "/dev/shm"  # noqa: S108 - in the container


class SharedNode(DriverNode):
    """A node whose GPUs claims can share."""

    def made(self, **more: Any) -> NodeDriver:
        return NodeDriver(
            "n",
            inventory_of(MACHINE, shared=ALL),
            self.api,
            SeenHealth(DRIVER, "n"),
            DeviceFiles(None),
            Sockets(self.root / "registry", self.root / "plugins", ""),
            self.root / "cdi",
            self.root / "pod-resources",
            patience_seconds=0.0,
            **more,
        )

    def bind_share(self, name: str, config: Any = None, **requests: str) -> ResourceClaim:
        """Let a pod get a share of a GPU with these capacities; return its claim."""
        exactly: dict[str, Any] = {
            "deviceClassName": "bayplan",
            "selectors": [{"cel": {"expression": f'device.attributes["{DRIVER}"].type == "gpu"'}}],
            "capacity": {"requests": requests},
        }
        devices: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": exactly}]}
        if config is not None:
            parameters = {
                "apiVersion": "dra.bayplan.dev/v1",
                "kind": "DeviceConfig",
                "sharing": config,
            }
            devices["config"] = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
        with self.api.lock:
            self.cluster.add(
                make_object(
                    {
                        "apiVersion": "resource.k8s.io/v1",
                        "kind": "ResourceClaimTemplate",
                        "metadata": {"name": f"of-{name}", "namespace": "default"},
                        "spec": {"spec": {"devices": devices}},
                    }
                )
            )
        return self.bind(name, f"of-{name}")


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as root:
        yield root


@pytest.fixture
def node(folder: Path) -> Iterator[SharedNode]:
    """A node with an MPS daemon, and an nvidia-smi that writes down what it is told."""
    program = folder / "nvidia-smi"
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/told\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    made = SharedNode(folder, mps_root="/run/mps", time_slices=TimeSlices(program))
    yield made
    made.close()


def error(node: DriverNode, claim: ResourceClaim) -> str:
    return node.kubelet.prepare(claim)[claim.metadata.name].error


def test_memory_and_cores_of_a_shared_gpu_are_offered_in_steps() -> None:
    inventory = inventory_of(MACHINE, shared=frozenset({2}))
    device = inventory.devices["gpu-2"].device
    assert device.allow_multiple_allocations
    assert not inventory.devices["gpu-3"].device.allow_multiple_allocations
    policy = device.capacity["memory"].request_policy
    assert policy is not None
    assert policy.default is not None
    assert policy.default.text == "80Gi"
    (spec, *_) = specs_of(DRIVER, "n", [device], inventory)
    assert not list(validate(ResourceSlice(metadata=ObjectMeta(name="s"), spec=spec)))


def test_a_gpu_is_not_both_shared_and_divided_or_in_the_device_plugin() -> None:
    for plugin, divided in ((frozenset({1}), frozenset[int]()), (frozenset[int](), frozenset({1}))):
        with pytest.raises(BayplanError, match="GPU1 cannot be shared"):
            split(MACHINE, plugin, divided=divided, shared=frozenset({1}))


def test_shares_of_one_gpu_become_clients_of_mps_with_their_limits(node: SharedNode) -> None:
    small = node.bind_share("small", memory="10Gi", cores="25")
    large = node.bind_share("large", memory="70Gi")
    assert devices_of(small) == devices_of(large)
    assert error(node, small) == error(node, large) == ""
    said = node.said(small)
    assert said["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=10240M"
    assert said["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert said["CUDA_MPS_PIPE_DIRECTORY"] == PIPE
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in node.said(large)
    spec = node.cdi()[small.metadata.uid]
    (joint,) = [one for one in spec["devices"] if one["name"].endswith(".gpu")]
    assert [
        (mount["hostPath"], mount["containerPath"], mount["options"][0])
        for mount in joint["containerEdits"]["mounts"]
    ] == [("/run/mps/pipe", PIPE, "rw"), ("/run/mps/shm", SHM, "rw")]


def test_a_claim_that_asks_for_no_part_gets_the_whole_gpu(node: SharedNode) -> None:
    node.bind_share("part", memory="1Gi")
    whole, other = node.bind_share("whole"), node.bind_share("other")
    assert len({*devices_of(whole), *devices_of(other), "gpu-0"}) >= 2
    assert devices_of(whole) != devices_of(other)


def test_limits_of_a_claim_are_told_to_mps(node: SharedNode) -> None:
    config = {
        "strategy": "MPS",
        "mpsConfig": {
            "defaultActiveThreadPercentage": 50,
            "defaultPinnedDeviceMemoryLimit": "20Gi",
            "defaultPerDevicePinnedMemoryLimit": {"0": "8Gi"},
        },
    }
    claim = node.bind_share("p", config)
    assert error(node, claim) == ""
    said = node.said(claim)
    assert said["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8192M"
    assert said["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"


def test_mps_without_a_daemon_fails_the_claim_in_words(folder: Path) -> None:
    node = SharedNode(folder)
    try:
        claim = node.bind_share("p", {"strategy": "MPS"})
        assert "sharing.strategy: the node has no MPS control daemon" in error(node, claim)
        share = node.bind_share("q", memory="10Gi")
        assert error(node, share) == ""
        assert not any(name.startswith("CUDA_MPS") for name in node.said(share))
    finally:
        node.close()


def test_a_time_slice_is_set_with_the_claim_and_reset_after_it(node: SharedNode) -> None:
    config = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    claim = node.bind_share("p", config)
    assert error(node, claim) == ""
    assert "CUDA_MPS_PIPE_DIRECTORY" not in node.said(claim)
    (device,) = devices_of(claim)
    uuid = MACHINE.gpus[int(device.removeprefix("gpu-"))].uuid
    assert node.kubelet.unprepare(claim) == {claim.metadata.name: ""}
    told = (node.root / "told").read_text().splitlines()
    assert told == [f"compute-policy -i {uuid} --set-timeslice {level}" for level in (3, 0)]


def test_a_time_slice_that_cannot_be_set_fails_the_claim(folder: Path) -> None:
    program = folder / "nvidia-smi"
    program.write_text("#!/bin/sh\necho Insufficient Permissions >&2\nexit 4\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    node = SharedNode(folder, time_slices=TimeSlices(program))
    try:
        config = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}}
        claim = node.bind_share("p", config)
        assert "cannot set the time slice of GPU" in error(node, claim)
        assert "Insufficient Permissions" in error(node, claim)
    finally:
        node.close()


@pytest.mark.parametrize(
    ("sharing", "message"),
    [
        ({"strategy": "mps"}, "sharing.strategy"),
        ({"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 0}}, "Percentage"),
        (
            {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "-1Gi"}},
            "expected an amount above 0",
        ),
    ],
)
def test_a_wrong_setting_is_named(node: SharedNode, sharing: Any, message: str) -> None:
    assert message in error(node, node.bind_share("p", sharing))
