"""Bandwidths of links in GB/s, one direction, and the kinds of links that GPU models have.

Sources: NVIDIA's data sheets and the line rates of PCIe for the wire; NCCL 2.30 (src/graph/topo.h)
for what a collective gets of it. Data sheets add up both directions of NVLink: the "900 GB/s" of an
H100 are 450 here.
"""

from __future__ import annotations

import msgspec

__all__ = [
    "INTER_SOCKET",
    "MOST_DIRECT_LINKS",
    "NVLINK_SM86",
    "Bandwidth",
    "GpuModel",
    "inter_socket",
    "model_of",
    "nic_bandwidth",
    "nvlink",
    "pcie",
]

MOST_DIRECT_LINKS = 18
"""The most NVLinks of any GPU. More than this to all peers together means an NVSwitch."""


class Bandwidth(msgspec.Struct, frozen=True):
    """GB/s in one direction: on the wire, and in NCCL's model."""

    wire: float
    effective: float

    def times(self, count: float) -> Bandwidth:
        """Return the bandwidth of ``count`` such links together."""
        return Bandwidth(self.wire * count, self.effective * count)


class GpuModel(msgspec.Struct, frozen=True):
    """What a GPU's name implies: the generations of NVLink (0 for none) and PCIe."""

    nvlink: int
    pcie: int


NVLINK_SM86 = 86
"""The NVLink of GPUs with compute capability 8.6: generation 3, but slower."""

_NVLINK_WIRE = {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 50.0, 6: 50.0, NVLINK_SM86: 14.0625}
_NVLINK_NCCL = {1: 18.0, 2: 20.0, 3: 20.0, 4: 20.6, 5: 40.1, 6: 40.1, NVLINK_SM86: 12.0}
_PCIE_WIRE = {1: 4.0, 2: 8.0, 3: 15.8, 4: 31.5, 5: 63.0, 6: 121.0}
_PCIE_NCCL = {1: 3.0, 2: 6.0, 3: 12.0, 4: 24.0, 5: 48.0, 6: 96.0}
_NIC_UNKNOWN = 100.0

INTER_SOCKET = {
    "broadwell": 6.0,
    "skylake": 10.0,
    "sapphire-rapids": 22.0,
    "emerald-rapids": 40.0,
    "amd": 16.0,
    "power9": 32.0,
    "arm": 6.0,
}
"""GB/s between two sockets by CPU, as in NCCL; vendors state raw rates of several links."""

_MODELS: tuple[tuple[tuple[str, ...], GpuModel], ...] = (
    (("GB200", "GB300"), GpuModel(5, 6)),
    (("B200", "B300"), GpuModel(5, 5)),
    (("GH200", "H100", "H200", "H800", "H20"), GpuModel(4, 5)),
    (("A100", "A800"), GpuModel(3, 4)),
    (("V100", "V100S"), GpuModel(2, 3)),
    (("P100",), GpuModel(1, 3)),
    (("A40", "RTX A6000", "RTX A5000", "RTX A4500", "RTX 3090"), GpuModel(NVLINK_SM86, 4)),
    (("RTX 8000", "QUADRO RTX 6000", "QUADRO RTX 5000", "RTX 2080"), GpuModel(2, 3)),
    (("L40", "L40S", "L4", "RTX 4090", "RTX 6000 ADA"), GpuModel(0, 4)),
    (("A10", "A10G", "RTX A4000"), GpuModel(0, 4)),
    (("TITAN V", "P40", "P4", "T4", "T400", "QUADRO RTX 4000"), GpuModel(0, 3)),
)


def model_of(name: str) -> GpuModel | None:
    """Return the links of a GPU by its name, such as "NVIDIA H100 80GB HBM3"; None if unknown."""
    words = f" {name.upper().replace('-', ' ')} "
    for names, model in _MODELS:
        if any(f" {known} " in words for known in names):
            return model
    return None


def nvlink(generation: int, links: int = 1) -> Bandwidth:
    """Return the bandwidth of NVLinks of a generation (1 to 6, or NVLINK_SM86) together.

    :raises KeyError: for any other generation.
    """
    return Bandwidth(_NVLINK_WIRE[generation], _NVLINK_NCCL[generation]).times(links)


def pcie(generation: int, width: int = 16) -> Bandwidth:
    """Return the bandwidth of a PCIe link of a generation (1 to 6) with ``width`` lanes.

    :raises KeyError: for any other generation.
    """
    return Bandwidth(_PCIE_WIRE[generation], _PCIE_NCCL[generation]).times(width / 16)


def inter_socket(cpu: str) -> Bandwidth:
    """Return the bandwidth between sockets of a CPU.

    :raises KeyError: for a CPU that is not in ``INTER_SOCKET``.
    """
    return Bandwidth(INTER_SOCKET[cpu], INTER_SOCKET[cpu])


def nic_bandwidth(gigabits: float) -> Bandwidth:
    """Return the bandwidth of a NIC with a rate in Gb/s (400 for NDR).

    A rate of 0 is unknown; then 100 Gb/s (EDR) are assumed, the slowest still in use for GPUs.
    """
    rate = (gigabits or _NIC_UNKNOWN) / 8
    return Bandwidth(rate, rate)
