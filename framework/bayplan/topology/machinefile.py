"""Machines written down in YAML: the schema, and the machines that bayplan knows by name.

A file names the GPU, then lists NUMA nodes with their PCIe roots, switches and devices, and the
NVLinks. What a GPU's model implies (NVLink generation, PCIe generation) need not be written. A
NUMA node that is listed twice has parts that reach each other at SYS only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

import pydantic
from pydantic import BeforeValidator, Field
from pydantic.alias_generators import to_camel

from bayplan.api.quantity import Quantity
from bayplan.errors import InputError, did_you_mean
from bayplan.naming import natural_key
from bayplan.topology.bandwidth import (
    INTER_SOCKET,
    Bandwidth,
    GpuModel,
    inter_socket,
    model_of,
    nvlink,
    pcie,
)
from bayplan.topology.builder import MachineBuilder
from bayplan.topology.machine import Gpu, Machine, MachineError, Nic, Platform
from bayplan.validated import validated
from bayplan.yamlfile import Document, parse_documents, read_text

__all__ = ["MachineFile", "known_machine", "known_machines", "load_machine", "machine_from"]

_BUS_ID = r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$"
_CPUS = r"^\d+(-\d+)?(,\d+(-\d+)?)*$"
_MOST_GPUS = 1024
_MOST_DEVICES = 4096


class _Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True
    )


class PcieLink(_Model):
    """A PCIe link by its generation, 1 to 6, and its lanes."""

    generation: int = Field(ge=1, le=6)
    width: Literal[1, 2, 4, 8, 16, 32] = 16


class GpuEntry(_Model):
    """A GPU by its index in nvidia-smi; ``busId`` in lower case with a domain of four digits."""

    index: int = Field(ge=0, lt=_MOST_GPUS)
    bus_id: str = Field(default="", pattern=f"{_BUS_ID}|^$")
    uuid: str = ""


class NicEntry(_Model):
    """A NIC by its RDMA name; ``rate`` in Gb/s; ``rail`` the number of its leaf switch."""

    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")
    rate: float = Field(default=0.0, ge=0, le=100_000, allow_inf_nan=False)
    rail: int | None = Field(default=None, ge=0, le=1024)
    storage: bool = False
    bus_id: str = Field(default="", pattern=f"{_BUS_ID}|^$")
    link_layer: Literal["InfiniBand", "Ethernet", ""] = ""


def _index_alone(value: object) -> object:
    return {"index": value} if isinstance(value, int) and not isinstance(value, bool) else value


def _name_alone(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class Switch(_Model):
    """A PCIe switch: what is below it, and its own link upwards."""

    gpus: tuple[Annotated[GpuEntry, BeforeValidator(_index_alone)], ...] = ()
    nics: tuple[Annotated[NicEntry, BeforeValidator(_name_alone)], ...] = ()
    switches: tuple[Switch, ...] = ()
    up: PcieLink | None = None


class Root(_Model):
    """A PCIe root (host bridge) such as pci0000:15, and what is below it."""

    id: str = Field(default="", pattern=r"^(pci[0-9a-f]{4}:[0-9a-f]{2})?$")
    gpus: tuple[Annotated[GpuEntry, BeforeValidator(_index_alone)], ...] = ()
    nics: tuple[Annotated[NicEntry, BeforeValidator(_name_alone)], ...] = ()
    switches: tuple[Switch, ...] = ()


class NumaNode(_Model):
    """A NUMA node of a socket, with its CPUs as the kernel lists them."""

    id: int = Field(ge=0, le=1024)
    socket: int = Field(default=0, ge=0, le=64)
    cpus: str = Field(default="", pattern=f"{_CPUS}|^$")
    roots: tuple[Root, ...] = ()


class NvLinks(_Model):
    """NVLinks between two GPUs."""

    gpus: tuple[int, int]
    links: int = Field(ge=1, le=36)


class NvSwitch(_Model):
    """NVLinks of each GPU to the NVSwitches; ``lost`` are GPUs with fewer, by their index."""

    links: int = Field(ge=1, le=36)
    lost: dict[int, Annotated[int, Field(ge=0, le=36)]] = Field(default_factory=dict)


class MachineFile(_Model):
    """A machine. ``gpu`` is a model's name, ``memory`` that of one GPU."""

    name: str = Field(min_length=1, max_length=63)
    gpu: str = Field(min_length=1)
    memory: str = ""
    cpu: str = "sapphire-rapids"
    arch: Literal["x86_64", "arm64", "ppc64"] = "x86_64"
    virtual: bool = False
    pcie: PcieLink | None = None
    nvlink_generation: int | None = Field(default=None, ge=1, le=6)
    nvlink_domain: str = ""
    numa: tuple[NumaNode, ...] = Field(min_length=1)
    nvlinks: tuple[NvLinks, ...] = ()
    nvswitch: NvSwitch | None = None

    @pydantic.field_validator("cpu")
    @classmethod
    def _is_known(cls, cpu: str) -> str:
        if cpu not in INTER_SOCKET:
            raise ValueError(
                f'the bandwidth between sockets of "{cpu}" is not known; expected one of '
                f"{', '.join(INTER_SOCKET)}"
            )
        return cpu

    @pydantic.field_validator("memory")
    @classmethod
    def _is_quantity(cls, memory: str) -> str:
        if memory:
            Quantity(memory)
        return memory


def known_machines() -> list[str]:
    """Return the names of the machines that bayplan knows."""
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in files("bayplan.topology").joinpath("machines").iterdir()
        if entry.name.endswith(".yaml")
    )


def known_machine(name: str) -> Machine:
    """Return a machine that bayplan knows.

    :raises InputError: when it knows none of that name.
    """
    known = known_machines()
    if name not in known:
        raise InputError(
            f'there is no machine "{name}"{did_you_mean(name, known)} (there is {", ".join(known)})'
        )
    text = files("bayplan.topology").joinpath("machines", f"{name}.yaml").read_text("utf-8")
    return machine_from(parse_documents(text, f"{name}.yaml")[0])


def load_machine(path: Path) -> Machine:
    """Read a machine's file.

    :raises InputError: naming line, path and what was expected.
    """
    documents = parse_documents(read_text(path), str(path))
    if len(documents) != 1:
        raise InputError(f"holds {len(documents)} documents; expected one machine", str(path))
    return machine_from(documents[0])


def machine_from(document: Document) -> Machine:
    """Return the machine that a parsed document describes.

    :raises InputError: naming line, path and what was expected.
    """
    if not isinstance(document.content, dict):
        raise InputError("expected a machine: a mapping with name, gpu and numa", document.where())
    return _Assembly(validated(MachineFile, document.content, document), document).machine()


_Path = tuple[str | int, ...]


class _Assembly:
    """Turns a checked file into a machine."""

    def __init__(self, file: MachineFile, document: Document) -> None:
        self._file = file
        self._document = document
        model = model_of(file.gpu)
        generation = file.nvlink_generation or (model.nvlink if model is not None else 0)
        self._needs_model(model)
        link = file.pcie or PcieLink(generation=model.pcie if model is not None else 3)
        self._up = pcie(link.generation, link.width)
        self._generation = generation
        cpus = tuple((node.id, node.cpus) for node in file.numa if node.cpus)
        platform = Platform(file.arch, file.cpu, file.virtual, cpus)
        per_link = nvlink(generation) if generation else Bandwidth(0.0, 0.0)
        self._builder = MachineBuilder(file.name, per_link, inter_socket(file.cpu), platform)
        self._gpus: list[tuple[GpuEntry, NumaNode, str, _Path]] = []
        self._nics: list[tuple[NicEntry, NumaNode, str, _Path]] = []

    def _needs_model(self, model: GpuModel | None) -> None:
        file = self._file
        linked = file.nvlinks or file.nvswitch is not None
        if model is None and (file.pcie is None or (linked and file.nvlink_generation is None)):
            raise self._error(
                f'the GPU "{file.gpu}" is not known: write pcie, and nvlinkGeneration where it '
                "has NVLinks",
                ("gpu",),
            )

    def _error(self, message: str, path: _Path) -> InputError:
        at = ".".join(str(step) for step in path)
        return InputError(f"{at}: {message}", self._document.where(path))

    def machine(self) -> Machine:
        """Return the machine."""
        sockets = dict.fromkeys(node.socket for node in self._file.numa)
        for socket in sockets:
            self._builder.socket(f"socket {socket}")
        for index, node in enumerate(self._file.numa):
            self._numa(index, node)
        self._devices()
        self._links()
        try:
            return self._builder.build()
        except MachineError as exc:
            raise InputError(str(exc), self._document.where()) from None

    def _numa(self, index: int, node: NumaNode) -> None:
        name = f"numa {node.id}"
        if any(other.id == node.id for other in self._file.numa[:index]):
            name += f" part {index}"
        at: _Path = ("numa", index)
        self._try(at, partial(self._builder.numa, name, f"socket {node.socket}"))
        for number, root in enumerate(node.roots):
            where = (*at, "roots", number)
            root_name = root.id or f"{name} root {number}"
            self._try(where, partial(self._builder.root, root_name, name))
            self._below(root, root_name, node, where)

    def _below(self, part: Root | Switch, name: str, node: NumaNode, at: _Path) -> None:
        for index, gpu in enumerate(part.gpus):
            self._gpus.append((gpu, node, name, (*at, "gpus", index)))
        for index, nic in enumerate(part.nics):
            self._nics.append((nic, node, name, (*at, "nics", index)))
        for index, switch in enumerate(part.switches):
            link = switch.up
            up = self._up if link is None else pcie(link.generation, link.width)
            inner = f"{name} switch {index}"
            self._builder.switch(inner, name, up)
            self._below(switch, inner, node, (*at, "switches", index))

    def _devices(self) -> None:
        if len(self._gpus) + len(self._nics) > _MOST_DEVICES:
            raise self._error(f"more than {_MOST_DEVICES} devices", ("numa",))
        memory = Quantity(self._file.memory).units if self._file.memory else 0
        buses: dict[str, _Path] = {}
        for expected, (gpu, node, above, at) in enumerate(
            sorted(self._gpus, key=lambda entry: entry[0].index)
        ):
            if gpu.index != expected:
                what = "is there twice" if gpu.index < expected else f"is there, GPU{expected} not"
                raise self._error(f"GPU{gpu.index} {what}: GPUs count from 0 without gaps", at)
            self._bus(gpu.bus_id, buses, at)
            made = Gpu(
                gpu.index,
                gpu.uuid,
                gpu.bus_id,
                self._file.gpu,
                node.id,
                node.cpus,
                nvlink_domain=self._file.nvlink_domain,
                memory=memory,
            )
            self._builder.gpu(made, above, self._up)
        ports = sorted(self._nics, key=lambda entry: natural_key(entry[0].name))
        for index, (nic, node, above, at) in enumerate(ports):
            self._bus(nic.bus_id, buses, at)
            port = Nic(
                index,
                nic.name,
                nic.name,
                nic.bus_id,
                node.id,
                rate=nic.rate,
                link_layer=nic.link_layer,
                rail=nic.rail,
                storage=nic.storage,
            )
            self._try(at, partial(self._builder.nic, port, above, self._up))

    def _bus(self, bus_id: str, buses: dict[str, _Path], at: _Path) -> None:
        if bus_id and bus_id in buses:
            first = ".".join(str(step) for step in buses[bus_id])
            raise self._error(f'busId "{bus_id}" is that of {first}, too', at)
        buses[bus_id] = at

    def _links(self) -> None:
        for index, link in enumerate(self._file.nvlinks):
            at: _Path = ("nvlinks", index, "gpus")
            self._try(at, partial(self._builder.nvlink, *link.gpus, link.links))
        switch = self._file.nvswitch
        if switch is None:
            return
        for gpu in switch.lost:
            if not 0 <= gpu < len(self._gpus):
                raise self._error(f"GPU{gpu} is not there", ("nvswitch", "lost", gpu))
        for gpu in range(len(self._gpus)):
            self._builder.nvswitch(gpu, switch.lost.get(gpu, switch.links))

    def _try(self, at: _Path, add: Callable[[], None]) -> None:
        try:
            add()
        except MachineError as exc:
            raise self._error(str(exc), at) from None
