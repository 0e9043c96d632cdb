"""Machines for the page: each kind once, with what is needed to draw it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from bayplan.plugin.devices import PublishedDevice
from bayplan.topology.machine.model import Machine
from bayplan.topology.machine.rings import ring_order

__all__ = ["Machines", "machine_json", "nvlink_domains"]


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


def published_json(devices: Sequence[PublishedDevice]) -> dict[str, Any]:
    """Return what a drawing of a node's published devices needs: places, but no NVLinks.

    ``domain`` of a GPU counts the NVLink domains of the node in the order of their names.
    """
    domains = nvlink_domains(devices)
    gpus = [one for one in devices if one.gpu is not None]
    nics = [one for one in devices if one.gpu is None]
    return {
        "name": "",
        "published": True,
        "gpus": [
            {
                "name": one.name,
                "model": one.model,
                "memory": one.memory,
                "numa": one.numa,
                "root": one.pcie_root,
                "lost": "",
                "domain": domains.index(one.nvlink) if one.nvlink else None,
            }
            for one in gpus
        ],
        "nics": [
            {"name": one.name, "numa": one.numa, "root": one.pcie_root, "active": True}
            for one in nics
        ],
        "near": [],
        "links": [],
    }


def nvlink_domains(devices: Sequence[PublishedDevice]) -> list[str]:
    """Return the names of the NVLink domains of devices."""
    return sorted({one.nvlink for one in devices} - {""})


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

    def number_published(self, devices: tuple[PublishedDevice, ...]) -> int:
        """Return the number of what drivers publish, whatever its NVLink domains are called."""
        row = published_json(devices)
        key = ("published", json.dumps(row))
        number = self._number.get(key)
        if number is None:
            number = self._number[key] = len(self.rows)
            self.rows.append(row)
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
