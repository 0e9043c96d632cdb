"""Machines for the page: each kind once, with what is needed to draw it."""

from __future__ import annotations

from typing import Any

from bayplan.topology.machine.model import Machine
from bayplan.topology.machine.rings import ring_order

__all__ = ["Machines", "machine_json"]


def machine_json(machine: Machine) -> dict[str, Any]:
    """Return what a drawing of a machine needs.

    ``links`` are (GPU, GPU, number of NVLinks), ``direct`` whether without a switch.
    """
    size = len(machine)
    links = [
        [a, b, int(machine.nvlinks[a, b]), bool(machine.direct[a, b])]
        for a in range(size)
        for b in range(a + 1, size)
        if machine.nvlinks[a, b]
    ]
    return {
        "name": machine.name,
        "gpus": [
            {
                "name": gpu.name,
                "model": gpu.model,
                "memory": gpu.memory,
                "numa": gpu.numa,
                "root": gpu.pcie_root,
                "lost": gpu.lost,
            }
            for gpu in machine.gpus
        ],
        "nics": [
            {
                "name": nic.name,
                "numa": nic.numa,
                "root": nic.pcie_root,
                "rate": nic.rate,
                "rail": nic.rail,
                "storage": nic.storage,
                "active": nic.active,
            }
            for nic in machine.nics
        ],
        "near": [list(machine.near_nics(gpu)) for gpu in range(size)],
        "links": links,
    }


class Machines:
    """Numbers the kinds of machines in the order in which they are first seen."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._number: dict[object, int] = {}
        # A key by identity is valid only while the machine lives.
        self._known: dict[int, tuple[Machine, int]] = {}
        self._rings: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {}

    def number(self, machine: Machine) -> int:
        """Return the number of a machine's kind."""
        known = self._known.get(id(machine))
        if known is not None:
            return known[1]
        models = tuple(gpu.model for gpu in machine.gpus)
        names = tuple(nic.name for nic in machine.nics)
        key = (machine.shape, machine.name, models, names, machine.usable)
        number = self._number.get(key)
        if number is None:
            number = self._number[key] = len(self.rows)
            self.rows.append(machine_json(machine))
        self._known[id(machine)] = (machine, number)
        return number

    def ring(self, machine: Machine, gpus: tuple[int, ...]) -> tuple[int, ...]:
        """Return GPUs in the order of the ring in which they are used.

        :param gpus: their indices in rising order.
        """
        key = (self.number(machine), gpus)
        found = self._rings.get(key)
        if found is None:
            found = self._rings[key] = tuple(ring_order(machine.bandwidth, gpus))
        return found
