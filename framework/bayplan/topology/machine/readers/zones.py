"""A machine from the NUMA zones of a NodeResourceTopology: the number of GPUs on each NUMA node.

Such an object shows neither NVLinks nor NICs.
"""

from __future__ import annotations

from collections.abc import Mapping

from bayplan.topology.machine.bandwidth import Bandwidth, inter_socket, pcie
from bayplan.topology.machine.builder import MachineBuilder
from bayplan.topology.machine.model import MOST_GPUS, Gpu, Machine

__all__ = ["machine_from_zones"]

_CPU = "skylake"


def machine_from_zones(name: str, gpus: Mapping[int, int]) -> Machine:
    """Return a machine with GPUs on NUMA nodes; GPUs are numbered node by node.

    :param gpus: the number of GPUs by NUMA node.
    :raises ValueError: for more GPUs than a machine can have.
    """
    total = sum(gpus.values())
    if total > MOST_GPUS:
        raise ValueError(f"expected {MOST_GPUS} GPUs or fewer, got {total}")
    between = inter_socket(_CPU)
    builder = MachineBuilder(name, Bandwidth(0.0, 0.0), between)
    index = 0
    for node in sorted(gpus):
        builder.socket(f"socket {node}")
        builder.numa(f"numa {node}", f"socket {node}", node)
        for _ in range(gpus[node]):
            builder.root(f"root {index}", f"numa {node}")
            builder.gpu(Gpu(index, numa=node), f"root {index}", pcie(3))
            index += 1
    note = (
        "only the NUMA node of each GPU is known; assumed: PCIe 3, no NVLink, "
        f"{between.wire:g} GB/s between sockets, as of {_CPU.title()}"
    )
    return builder.build(notes=(note,), links_assumed=True)
