"""What containers get with a claim: device files, and the environment for CUDA and NCCL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bayplan.nccl import TOPOLOGY_PATH, Member, environment
from bayplan.topology.machine.model import Machine
from bayplan.topology.machine.rings import ring_order
from bayplan_dra.driver.config import DeviceConfig
from bayplan_dra.driver.prepare.cdi import Edits
from bayplan_dra.driver.publish.devices import NodeDevice

__all__ = ["DeviceFiles", "joint_edits"]

_OF_EVERY_GPU = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_MIG_MINOR = re.compile(r"gpu(\d+)/gi(\d+)(?:/ci(\d+))?/access (\d+)")


class DeviceFiles:
    """The files in /dev of this machine's devices; a simulated machine has none.

    :param root: where the host's "/" is mounted; None for a simulated machine.
    """

    def __init__(self, root: Path | None) -> None:
        self._root = root

    def of(self, device: NodeDevice, machine: Machine) -> Edits:
        """Return the device files of one device that exist."""
        if self._root is None:
            return Edits()
        names: list[str] = []
        if device.gpu is not None:
            gpu = machine.gpus[device.gpu]
            minor = gpu.minor if gpu.minor is not None else gpu.index
            names = [f"nvidia{minor}", *_OF_EVERY_GPU]
            if device.mig is not None:
                names += self._capabilities(minor, device)
        elif device.nic is not None:
            names = ["infiniband/rdma_cm", *self._verbs(machine.nics[device.nic].name)]
        paths = (f"/dev/{name}" for name in names)
        return Edits(device_files=[path for path in paths if self._at(path).exists()])

    def _at(self, path: str) -> Path:
        assert self._root is not None
        return self._root / path.lstrip("/")

    def _capabilities(self, minor: int, device: NodeDevice) -> list[str]:
        """Return the files that grant access to a MIG instance (/proc/driver/nvidia-caps)."""
        assert device.mig is not None
        listing = self._at("/proc/driver/nvidia-caps/mig-minors")
        text = listing.read_text("utf-8") if listing.exists() else ""
        wanted = (str(minor), str(device.mig.gpu_instance))
        compute = ("", str(device.mig.compute_instance))
        found = (match.groups("") for match in _MIG_MINOR.finditer(text))
        return [
            f"nvidia-caps/nvidia-cap{number}"
            for gpu, instance, own, number in found
            if (gpu, instance) == wanted and own in compute
        ]

    def _verbs(self, name: str) -> list[str]:
        """Return the verbs devices of an RDMA device."""
        folder = self._at("/sys/class/infiniband_verbs")
        return [
            f"infiniband/{path.parent.name}"
            for path in sorted(folder.glob("uverbs*/ibdev"))
            if path.read_text("utf-8").strip() == name
        ]


def joint_edits(
    machine: Machine,
    devices: Sequence[NodeDevice],
    config: DeviceConfig,
    topology_file: str,
    name_gpus: bool = True,
) -> Edits:
    """Return what a container gets that has exactly these devices, apart from their files.

    :param topology_file: the host's path of NCCL's topology file, "" for none.
    :param name_gpus: whether to set CUDA_VISIBLE_DEVICES if there are several GPUs.
    """
    own = [one for one in devices if one.gpu is not None]
    gpus = sorted({one.gpu for one in own if one.gpu is not None})
    found: dict[str, str] = {}
    mounts: dict[str, str] = {}
    if gpus:
        found["NVIDIA_VISIBLE_DEVICES"] = ",".join(_uuid(machine, one) for one in own)
    # A single GPU has no order, and naming it would hide the GPUs of another claim.
    if len(own) > 1 and name_gpus and config.visible_devices != "none":
        visible = _visible(machine, own, gpus, config)
        if visible:
            found["CUDA_VISIBLE_DEVICES"] = visible
            found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if gpus and config.nccl.environment:
        found |= _nccl_settings(machine, gpus)
        if config.nccl.nics == "claim":
            # Without the files of a NIC, its name would only keep NCCL from another one.
            found.pop("NCCL_IB_HCA", None)
        if topology_file and config.nccl.topology_file:
            found["NCCL_TOPO_FILE"] = TOPOLOGY_PATH
            mounts[topology_file] = TOPOLOGY_PATH
    nics = [machine.nics[one.nic] for one in devices if one.nic is not None]
    if nics and config.nccl.environment and config.nccl.nics == "claim":
        found["NCCL_IB_HCA"] = "=" + ",".join(f"{nic.name}:{nic.port}" for nic in nics)
    return Edits(found, (), mounts)


def _nccl_settings(machine: Machine, gpus: Sequence[int]) -> dict[str, str]:
    """Return NCCL's environment for these GPUs; the topology file is mounted elsewhere."""
    member = Member("", machine, tuple(gpus))
    found = {one.name: one.value for one in environment(member, spans_nodes=True)}
    found.pop("NCCL_TOPO_FILE", None)
    return found


def _uuid(machine: Machine, device: NodeDevice) -> str:
    """Return the name of a device for NVIDIA's container runtime, which adds the libraries."""
    assert device.gpu is not None
    if device.mig is not None:
        return device.mig.uuid
    return machine.gpus[device.gpu].uuid or str(device.gpu)


def _visible(
    machine: Machine, own: Sequence[NodeDevice], gpus: Sequence[int], config: DeviceConfig
) -> str:
    """Return GPUs in the order of their ring, or MIG instances, by uuid or index."""
    instances = [one.mig.uuid for one in own if one.mig is not None]
    if instances:
        return ",".join(instances) if len(instances) == len(own) else ""
    order = ring_order(machine.bandwidth, tuple(gpus))
    if config.visible_devices == "uuid" and all(machine.gpus[gpu].uuid for gpu in gpus):
        return ",".join(machine.gpus[gpu].uuid for gpu in order)
    # A container numbers the GPUs that it sees from 0.
    return ",".join(str(gpus.index(gpu)) for gpu in order)
