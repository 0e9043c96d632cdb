"""A machine: its GPUs and NICs, how they are connected, and what that means for sets of GPUs.

The machine is a graph (networkx) of sockets, NUMA nodes, PCIe roots and switches, GPUs, NVSwitches
and NICs. Each graph node has a ``kind``; NUMA nodes also have the kernel's number as ``numa``, None
if unknown. The graph is checked and frozen into arrays once; selection reads only the arrays.
NVLink bandwidth belongs to a GPU's port: through an NVSwitch, every pair can use all links of its
GPUs, but no GPU can use more than its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from bayplan.errors import BayplanError
from bayplan.topology.machine.bandwidth import Bandwidth
from bayplan.topology.machine.levels import UNKNOWN, Level, Levels
from bayplan.topology.machine.mig import MigProfile

if TYPE_CHECKING:
    import networkx as nx

__all__ = [
    "MOST_GPUS",
    "NVSWITCH",
    "Gpu",
    "LinkKind",
    "Machine",
    "MachineError",
    "Mig",
    "Nic",
    "PartKind",
    "Platform",
]

Matrix = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
MOST_GPUS = 1024
"""The highest number of GPUs that a description may claim."""
NVSWITCH = "NVSwitch"
"""The graph node that stands for all NVSwitches of a machine."""


class MachineError(BayplanError):
    """A description of a machine cannot be used."""


class PartKind(Enum):
    """The kind of a node of a machine's graph."""

    SOCKET = "socket"
    NUMA = "numa"
    ROOT = "root"
    SWITCH = "switch"
    GPU = "gpu"
    NVSWITCH = "nvswitch"
    NIC = "nic"


class LinkKind(Enum):
    """The kind of an edge of a machine's graph."""

    NVLINK = "nvlink"
    PCIE = "pcie"
    SOCKET = "socket"
    """Between a NUMA node and its socket, and between sockets."""


class Mig(msgspec.Struct, frozen=True):
    """A MIG instance of a GPU: its UUID, its instance numbers, and its memory in bytes."""

    uuid: str
    gpu_instance: int
    compute_instance: int
    memory: int = 0


class Gpu(msgspec.Struct, frozen=True):
    """A GPU. ``index`` is its position in every matrix; ``memory`` is in bytes.

    ``nvlink_domain`` is ``<clusterUUID>.<cliqueID>`` if NVLink leaves the machine. ``cpus`` are the
    CPUs of its NUMA node as the kernel lists them. ``lost`` says why the GPU cannot be used, "" if
    it can. ``compute`` is the CUDA compute capability times ten, 0 if unknown. ``minor`` is the
    minor number of its device file. ``profiles`` are the MIG profiles into which a GPU in MIG mode
    can be divided.
    """

    index: int
    uuid: str = ""
    bus_id: str = ""
    model: str = ""
    numa: int | None = None
    cpus: str = ""
    pcie_root: str = ""
    nvlink_domain: str = ""
    memory: int = 0
    mig: tuple[Mig, ...] = ()
    lost: str = ""
    compute: int = 0
    minor: int | None = None
    profiles: tuple[MigProfile, ...] = ()

    @property
    def name(self) -> str:
        """The name that nvidia-smi uses, such as ``GPU0``."""
        return f"GPU{self.index}"


class Nic(msgspec.Struct, frozen=True):
    """A NIC by its RDMA name, such as mlx5_0; ``rate`` is in Gb/s, 0 if unknown.

    ``label`` is its name in nvidia-smi's table (NIC0). ``rail`` is the number of the leaf switch
    that this NIC is connected to in every machine. ``parent`` is the name of the physical function
    if this is a virtual one.
    """

    index: int
    name: str
    label: str = ""
    bus_id: str = ""
    numa: int | None = None
    pcie_root: str = ""
    rate: float = 0.0
    link_layer: str = ""
    port: int = 1
    active: bool = True
    rail: int | None = None
    storage: bool = False
    netdev: str = ""
    parent: str = ""
    virtual_functions: int = 0


class Platform(msgspec.Struct, frozen=True):
    """Facts about a machine besides its devices.

    ``cpu`` is a key of ``INTER_SOCKET``, ``numa_cpus`` are pairs of a NUMA node and its CPUs as the
    kernel lists them, ``driver`` is the version of the GPU driver.
    """

    arch: str = "x86_64"
    cpu: str = ""
    virtual: bool = False
    numa_cpus: tuple[tuple[int, str], ...] = ()
    driver: str = ""


class Machine(msgspec.Struct, eq=False, dict=True):
    """A machine, read only.

    ``levels`` are PCIe levels, a square matrix over GPUs and then NICs. All other matrices are
    square over GPUs: ``nvlinks`` are the links that a pair can use (the number in NV#), ``direct``
    those without a switch in between; ``bandwidth`` and ``effective`` are GB/s in one direction, on
    the wire and in NCCL's model, infinite on the diagonal. ``link`` is one NVLink. ``notes`` say
    what was assumed or is unknown. ``asymmetric`` are pairs of GPUs, the lower index first, whose
    NVLinks are seen from one side only. ``links_assumed`` says that nothing shows how the GPUs are
    connected: only their NUMA nodes are known.
    """

    name: str
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    graph: nx.Graph[str]
    levels: Levels
    nvlinks: Counts
    direct: Counts
    bandwidth: Matrix
    effective: Matrix
    link: Bandwidth
    platform: Platform = Platform()
    notes: tuple[str, ...] = ()
    asymmetric: frozenset[tuple[int, int]] = frozenset()
    links_assumed: bool = False

    def __len__(self) -> int:
        return len(self.gpus)

    @cached_property
    def usable(self) -> tuple[int, ...]:
        """The indices of the GPUs that are not lost, in order."""
        return tuple(gpu.index for gpu in self.gpus if not gpu.lost)

    # Pairs -------------------------------------------------------------------------------

    def level(self, a: int, b: int) -> Level | None:
        """Return the level between two GPUs, NVLink before PCIe; None if unknown."""
        if a == b:
            return Level.X
        if self.nvlinks[a, b]:
            return Level.NVL if self.direct[a, b] else Level.NVS
        known = int(self.levels[a, b])
        return None if known == UNKNOWN else Level(known)

    def label(self, a: int, b: int) -> str:
        """Return the level of two devices (GPUs first, then NICs) as nvidia-smi prints it."""
        if a == b:
            return "X"
        if max(a, b) < len(self.gpus) and self.nvlinks[a, b]:
            return f"NV{self.nvlinks[a, b]}"
        known = int(self.levels[a, b])
        return "?" if known == UNKNOWN else Level(known).name

    def nic_level(self, gpu: int, nic: int) -> Level | None:
        """Return the PCIe level between a GPU and a NIC, None if unknown."""
        known = int(self.levels[gpu, len(self.gpus) + nic])
        return None if known == UNKNOWN else Level(known)

    # NICs --------------------------------------------------------------------------------

    @cached_property
    def compute_nics(self) -> tuple[int, ...]:
        """The indices of the NICs for traffic between GPUs, in order.

        Storage ports are left out: those that the description marks, and those known to be at PIX
        or PXB of no GPU while other ports are. NICs that are down are left out, and virtual
        functions whose physical function is listed.
        """
        names = {nic.name for nic in self.nics if nic.active}
        usable = [
            nic.index
            for nic in self.nics
            if nic.active and not nic.storage and nic.parent not in names
        ]
        levels = self._nic_levels[:, usable]
        near = (levels != UNKNOWN) & (levels <= Level.PXB)
        if not near.any():
            return tuple(usable)
        may_be_near = near | (levels == UNKNOWN)
        return tuple(nic for nic, is_ in zip(usable, may_be_near.any(axis=0), strict=True) if is_)

    @cached_property
    def _nic_levels(self) -> Levels:
        size = len(self.gpus)
        return self.levels[:size, size:]

    @cached_property
    def _near_nics(self) -> tuple[tuple[int, ...], ...]:
        return tuple(self._nearest(gpu) for gpu in range(len(self.gpus)))

    def _nearest(self, gpu: int) -> tuple[int, ...]:
        levels = {nic: int(self._nic_levels[gpu, nic]) for nic in self.compute_nics}
        lowest = min((level for level in levels.values() if level != UNKNOWN), default=Level.NET)
        if lowest > Level.PXB and UNKNOWN in levels.values():
            return ()
        return tuple(nic for nic, level in levels.items() if level == lowest)

    def near_nics(self, gpu: int) -> tuple[int, ...]:
        """Return the indices of the compute NICs nearest to a GPU, in order.

        Empty if that is unknown: when the nearest known level is beyond PXB, a NIC of unknown level
        may be nearer.
        """
        return self._near_nics[gpu]

    def nic_distance(self, gpu: int) -> Level:
        """Return the level between a GPU and its nearest compute NIC, NET if none is known."""
        near = self.near_nics(gpu)
        return (self.nic_level(gpu, near[0]) or Level.NET) if near else Level.NET

    # Sets --------------------------------------------------------------------------------

    @cached_property
    def numa_of(self) -> tuple[int | None, ...]:
        """The NUMA node of each GPU, None if unknown."""
        return tuple(gpu.numa for gpu in self.gpus)

    def ports(self, gpus: Sequence[int]) -> Matrix:
        """Return the bandwidths between some GPUs, a square matrix in the given order, GB/s."""
        return self.bandwidth[np.ix_(gpus, gpus)]

    @cached_property
    def shape(self) -> bytes:
        """A key for all facts that selection reads; machines of equal shape get equal answers."""
        nics = [(nic.rail, nic.rate) for nic in self.nics]
        numa = [gpu.numa for gpu in self.gpus]
        asymmetric = sorted(self.asymmetric)
        rest = (nics, numa, self.compute_nics, self.usable, asymmetric, self.links_assumed)
        parts = (self.levels, self.nvlinks, self.direct, self.bandwidth)
        return b"|".join([*(part.tobytes() for part in parts), repr((rest, self.link)).encode()])
