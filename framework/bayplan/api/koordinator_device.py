"""Koordinator's Device: the GPUs, NICs and FPGAs of a node, as its agent publishes them."""

from __future__ import annotations

import msgspec

from bayplan.api.meta import ApiStruct, ObjectMeta
from bayplan.api.quantity import Quantity

__all__ = [
    "KoordinatorDevice",
    "KoordinatorDeviceInfo",
    "KoordinatorDeviceSpec",
    "KoordinatorDeviceTopology",
    "VirtualFunction",
    "VirtualFunctionGroup",
]


class VirtualFunction(ApiStruct, frozen=True):
    """vfGroups[].vfs[]: a virtual function of a device, by its PCI address."""

    minor: int = 0
    bus_id: str = msgspec.field(default="", name="busID")


class VirtualFunctionGroup(ApiStruct, frozen=True):
    """vfGroups[]: virtual functions with common labels."""

    labels: dict[str, str] = {}
    vfs: tuple[VirtualFunction, ...] = ()


class KoordinatorDeviceTopology(ApiStruct, frozen=True):
    """devices[].topology: where a device is plugged in; ``node_id`` is its NUMA node."""

    socket_id: int = msgspec.field(default=0, name="socketID")
    node_id: int = msgspec.field(default=0, name="nodeID")
    pcie_id: str = msgspec.field(default="", name="pcieID")
    bus_id: str = msgspec.field(default="", name="busID")


class KoordinatorDeviceInfo(ApiStruct, frozen=True):
    """devices[]. ``type`` is gpu, rdma or fpga; ``minor`` is unique among the devices of a type."""

    type: str = ""
    labels: dict[str, str] = {}
    id: str = ""
    minor: int | None = None
    module_id: int | None = msgspec.field(default=None, name="moduleID")
    health: bool = False
    resources: dict[str, Quantity] = {}
    topology: KoordinatorDeviceTopology | None = None
    vf_groups: tuple[VirtualFunctionGroup, ...] = ()


class KoordinatorDeviceSpec(ApiStruct, frozen=True):
    """spec of a Device."""

    devices: tuple[KoordinatorDeviceInfo, ...] = ()


class KoordinatorDevice(ApiStruct, frozen=True):
    """scheduling.koordinator.sh/v1alpha1 Device, named like its node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: KoordinatorDeviceSpec = KoordinatorDeviceSpec()

    @property
    def key(self) -> str:
        """The node's name."""
        return self.metadata.name
