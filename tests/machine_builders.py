"""Machines for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from bayplan.inputs.documents import parse_documents
from bayplan.topology.machine.bandwidth import inter_socket, nvlink, pcie
from bayplan.topology.machine.builder import MachineBuilder
from bayplan.topology.machine.model import Gpu, Machine
from bayplan.topology.machine.readers.machinefile import known_machine, machine_from

__all__ = ["gb200_tray", "linked_machine", "machine_from_yaml"]


def machine_from_yaml(text: str) -> Machine:
    """Return the machine that a YAML text describes."""
    return machine_from(parse_documents(text, "machine.yaml")[0])


def gb200_tray(domain: str) -> Machine:
    """Return a GB200 tray whose GPUs are all in an NVLink domain ("" for none)."""
    tray = known_machine("gb200-nvl72")
    return replace(tray, gpus=tuple(replace(gpu, nvlink_domain=domain) for gpu in tray.gpus))


def linked_machine(links: Mapping[tuple[int, int], int], numa: Sequence[int]) -> Machine:
    """Return GPUs on PCIe roots of their own, with NVLinks between pairs.

    :param links: the number of NVLinks by pair of GPUs.
    :param numa: the NUMA node of each GPU; each node is on a socket of its own.
    """
    builder = MachineBuilder("linked", nvlink(3), inter_socket("amd"))
    for node in sorted(set(numa)):
        builder.socket(f"socket {node}")
        builder.numa(f"numa {node}", f"socket {node}", node)
    for gpu, node in enumerate(numa):
        builder.root(f"root {gpu}", f"numa {node}")
        builder.gpu(Gpu(gpu, numa=node), f"root {gpu}", pcie(4))
    for (a, b), count in links.items():
        if count:
            builder.nvlink(a, b, count)
    return builder.build()
