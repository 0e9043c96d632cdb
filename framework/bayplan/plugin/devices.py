"""What a node has of GPUs, and which pods have them: what plugins tell those who draw it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from bayplan.api.dra import DeviceId
from bayplan.api.gpu_shares import WHOLE, OfferedGpu

if TYPE_CHECKING:
    from bayplan.topology.machine.model import Machine

__all__ = ["GpuHolder", "NodeDevices", "PublishedDevice"]


class GpuHolder(msgspec.Struct, frozen=True):
    """What a pod, by key, has of one GPU of its node.

    ``gpu`` is the GPU's index, ``compute`` in thousandths of it, ``memory`` in bytes (0: not
    counted apart), ``partition`` the name of the profile, such as ``1g.10gb``. ``guessed`` says
    that nothing states which GPU it is.
    """

    gpu: int
    pod: str
    compute: int = WHOLE
    memory: int = 0
    partition: str = ""
    guessed: bool = False


class PublishedDevice(msgspec.Struct, frozen=True):
    """A GPU or a NIC as its driver publishes it.

    ``gpu`` is the GPU's index, None for a NIC. ``memory`` is in bytes, 0 if unknown.
    ``nvlink`` names its NVLink domain.
    """

    name: str
    gpu: int | None
    model: str = ""
    memory: int = 0
    numa: int | None = None
    pcie_root: str = ""
    nvlink: str = ""


class NodeDevices(msgspec.Struct, frozen=True):
    """What one plugin knows of the GPUs of a node.

    ``machine`` says how they are connected, None where that is unknown. ``gpus`` are those that
    pods share. ``devices`` maps devices of resource slices to the index of their GPU, ``nics`` to
    the place of their NIC among those of the machine, or else of ``published``: the GPUs and then
    the NICs that drivers publish, where no machine is described.
    """

    machine: Machine | None = None
    gpus: Sequence[OfferedGpu] = ()
    holders: Sequence[GpuHolder] = ()
    devices: Mapping[DeviceId, int] = msgspec.field(default_factory=dict)
    nics: Mapping[DeviceId, int] = msgspec.field(default_factory=dict)
    published: Sequence[PublishedDevice] = ()
