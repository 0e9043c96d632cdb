"""A machine: its GPUs and NICs, how they hang together, and what that means for a set of GPUs.

The machine is a graph (networkx) of sockets, NUMA nodes, PCIe roots and switches, GPUs, NVSwitches
and NICs; each of its nodes has a ``kind``, and as ``numa`` the kernel's number where it is a NUMA
node and that is known. It is checked and frozen into arrays once; selection reads only the arrays.
NVLink bandwidth belongs to a GPU's port: through an NVSwitch every pair can use all links of its
GPUs, but no GPU more than its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bayplan.errors import BayplanError
from bayplan.topology.machine.bandwidth import Bandwidth
from bayplan.topology.machine.levels import UNKNOWN, Level, Levels

if TYPE_CHECKING:
    import networkx as nx

__all__ = [
    "MOST_GPUS",
    "NVSWITCH",
    "Gpu",
    "Kind",
    "Link",
    "Machine",
    "MachineError",
    "Mig",
    "Nic",
    "Platform",
]

Matrix = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
MOST_GPUS = 1024
"""The most GPUs that a machine may be said to have."""
NVSWITCH = "NVSwitch"
"""The node of a machine's graph that all its NVSwitches are together."""


class MachineError(BayplanError):
    """A description of a machine cannot be used."""


class Kind(Enum):
    """What a node of a machine's graph is."""

    SOCKET = "socket"
    NUMA = "numa"
    ROOT = "root"
    SWITCH = "switch"
    GPU = "gpu"
    NVSWITCH = "nvswitch"
    NIC = "nic"


class Link(Enum):
    """What an edge of a machine's graph is."""

    NVLINK = "nvlink"
    PCIE = "pcie"
    SOCKET = "socket"
    """Between a NUMA node and its socket, and between sockets."""


@dataclass(frozen=True, slots=True)
class Mig:
    """A MIG instance of a GPU: its uuid, its profile, memory in bytes."""

    uuid: str
    gpu_instance: int
    compute_instance: int
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU. ``index`` is its place in every matrix; memory in bytes.

    ``nvlink_domain`` is ``<clusterUUID>.<cliqueID>`` where NVLink leaves the machine. ``cpus`` is
    the list of its NUMA node's CPUs as the kernel writes it. ``lost`` says why the GPU cannot be
    used, "" where it can. ``compute`` is the CUDA compute capability times ten, 0 where it is not
    known; ``minor`` is that of its device file.
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

    @property
    def name(self) -> str:
        """``GPU0`` and so on, as nvidia-smi names it."""
        return f"GPU{self.index}"


@dataclass(frozen=True, slots=True)
class Nic:
    """A NIC by its RDMA name, such as mlx5_0; ``rate`` in Gb/s, 0 where it is not known.

    ``label`` is what a table calls it (NIC0). ``rail`` is the leaf switch that the same NIC of
    every machine is connected to. ``parent`` is the physical function of a virtual one.
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


@dataclass(frozen=True, slots=True)
class Platform:
    """What is known of the machine besides its devices; ``driver`` is that of its GPUs."""

    arch: str = "x86_64"
    cpu: str = ""
    virtual: bool = False
    numa_cpus: tuple[tuple[int, str], ...] = ()
    driver: str = ""


@dataclass(eq=False)
class Machine:
    """A machine, read only. Matrices are over GPUs, or over GPUs and then NICs.

    ``levels`` are PCIe levels, GPUs first; NVLink is apart in ``nvlinks`` (links that a pair can
    use, as NV# shows them) and ``direct`` (links without a switch between). ``bandwidth`` and
    ``effective`` are GB/s of pairs in one direction, the wire's and NCCL's. ``notes`` say what was
    assumed or is not known. ``asymmetric`` are pairs of GPUs, the lower index first, that have
    NVLinks seen from one of them only.
    """

    name: str
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    graph: nx.Graph[str] = field(repr=False)
    levels: Levels = field(repr=False)
    nvlinks: Counts = field(repr=False)
    direct: Counts = field(repr=False)
    bandwidth: Matrix = field(repr=False)
    effective: Matrix = field(repr=False)
    link: Bandwidth
    platform: Platform = Platform()
    notes: tuple[str, ...] = ()
    asymmetric: frozenset[tuple[int, int]] = frozenset()

    def __len__(self) -> int:
        return len(self.gpus)

    @cached_property
    def usable(self) -> tuple[int, ...]:
        """The GPUs that are not lost, by index."""
        return tuple(gpu.index for gpu in self.gpus if not gpu.lost)

    # Pairs -------------------------------------------------------------------------------

    def level(self, a: int, b: int) -> Level | None:
        """Return the level between two GPUs, NVLink first; None where it is not known."""
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
        """Return the PCIe level between a GPU and a NIC; None where it is not known."""
        known = int(self.levels[gpu, len(self.gpus) + nic])
        return None if known == UNKNOWN else Level(known)

    # NICs --------------------------------------------------------------------------------

    @cached_property
    def compute_nics(self) -> tuple[int, ...]:
        """The NICs for traffic between GPUs, by index: storage ports are left out.

        A port is for storage where the description says so, or where it is known that no GPU has it
        at PIX or PXB while other ports have one. NICs that are down do not count, nor do virtual
        functions beside their physical one.
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
        """Return the compute NICs at a GPU's lowest level, by index.

        None where that is not known: beyond PXB a NIC whose level is not known may be nearer.
        """
        return self._near_nics[gpu]

    def nic_distance(self, gpu: int) -> Level:
        """Return a GPU's level to its nearest compute NIC; NET where it has none or none known."""
        near = self.near_nics(gpu)
        return (self.nic_level(gpu, near[0]) or Level.NET) if near else Level.NET

    # Sets --------------------------------------------------------------------------------

    @cached_property
    def numa_of(self) -> tuple[int | None, ...]:
        """The NUMA node of each GPU, None where it is not known."""
        return tuple(gpu.numa for gpu in self.gpus)

    def ports(self, gpus: Sequence[int]) -> Matrix:
        """Return the pair bandwidths of some GPUs, in the order given."""
        return self.bandwidth[np.ix_(gpus, gpus)]

    @cached_property
    def shape(self) -> bytes:
        """What selection depends on; machines of equal shape give equal answers but for names."""
        nics = [(nic.rail, nic.rate) for nic in self.nics]
        numa = [gpu.numa for gpu in self.gpus]
        rest = (nics, numa, self.compute_nics, self.usable, sorted(self.asymmetric))
        parts = (self.levels, self.nvlinks, self.direct, self.bandwidth)
        return b"|".join([*(part.tobytes() for part in parts), repr((rest, self.link)).encode()])
