"""Machines described in YAML: the schema, and the catalog of machines that bayplan knows by name.

A file names the GPU model, then lists NUMA nodes with their PCIe roots, switches and devices, and
the NVLinks. It may omit what the model implies: the generations of NVLink and PCIe. A NUMA node
that is listed again, without CPUs, has parts that reach each other at SYS only.
``docs/machines.md`` describes every field.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

import pydantic
from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.alias_generators import to_camel

from bayplan.api.quantity import Quantity
from bayplan.errors import InputError, did_you_mean
from bayplan.inputs.documents import Document, parse_documents, read_text
from bayplan.inputs.validated import validated
from bayplan.naming import natural_key
from bayplan.topology.machine.bandwidth import (
    INTER_SOCKET,
    MOST_DIRECT_LINKS,
    Bandwidth,
    GpuModel,
    inter_socket,
    model_of,
    nvlink,
    pcie,
)
from bayplan.topology.machine.builder import MachineBuilder
from bayplan.topology.machine.model import MOST_GPUS, Gpu, Machine, MachineError, Nic, Platform
from bayplan.topology.machine.readers.sysfs import cpu_set

__all__ = [
    "MachineFile",
    "known_machine",
    "known_machines",
    "load_machine",
    "machine_from",
]

_MOST_DEVICES = 4096


def _like(pattern: str, expected: str) -> BeforeValidator:
    """Return a validator for texts that match a pattern; its message says what was expected."""

    def check(value: object) -> object:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError(f"expected {expected}")
        return value

    return BeforeValidator(check)


def _ranges_rise(cpus: str) -> str:
    for part in cpus.split(","):
        first, _, last = part.partition("-")
        if last and int(last) < int(first):
            raise ValueError(f"the range {part} ends before it begins")
    return cpus


def _rate(value: object) -> float:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        # YAML reads 1e3 as a text.
        with suppress(ValueError, OverflowError):
            return float(value)
    raise ValueError("expected a number of Gb/s such as 400")


_Whole = Annotated[int, Field(strict=True)]
"""An integer; true and "1" are not integers in YAML."""
_BusId = Annotated[
    str,
    _like(
        r"([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])?",
        "a PCI bus id, in lower case and in quotes, such as '0000:1b:00.0'",
    ),
]
_Cpus = Annotated[
    str,
    # A kernel has at most 8192 CPUs, so four digits are enough and no list gets long.
    _like(
        r"(\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*)?",
        "CPUs as the kernel lists them, such as 0-15,32-47, each below 10000",
    ),
    AfterValidator(_ranges_rise),
]
_RootId = Annotated[str, _like(r"(pci[0-9a-f]{4}:[0-9a-f]{2})?", "a PCIe root such as pci0000:15")]
_NicName = Annotated[
    str,
    _like(
        r"[A-Za-z0-9_.-]{1,64}",
        "an RDMA name such as mlx5_0: 1 to 64 letters, digits, dots, dashes and underscores",
    ),
]


class _MachineFileModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True
    )


class PcieLink(_MachineFileModel):
    """A PCIe link: its generation, 1 to 6, and its lanes."""

    generation: _Whole = Field(ge=1, le=6)
    width: Literal[1, 2, 4, 8, 16, 32] = 16


class GpuEntry(_MachineFileModel):
    """A GPU and its index in nvidia-smi; ``busId`` in lower case with a domain of four digits."""

    index: _Whole = Field(ge=0, lt=MOST_GPUS)
    bus_id: _BusId = ""
    uuid: str = ""


class NicEntry(_MachineFileModel):
    """A NIC and its RDMA name; ``rate`` in Gb/s, ``rail`` is the number of its leaf switch."""

    name: _NicName
    rate: Annotated[float, BeforeValidator(_rate)] = Field(
        default=0.0, ge=0, le=100_000, allow_inf_nan=False
    )
    rail: _Whole | None = Field(default=None, ge=0, le=1024)
    storage: bool = False
    bus_id: _BusId = ""
    link_layer: Literal["InfiniBand", "Ethernet", ""] = ""


def _index_alone(value: object) -> object:
    return {"index": value} if isinstance(value, int) and not isinstance(value, bool) else value


def _name_alone(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class SwitchEntry(_MachineFileModel):
    """A PCIe switch: the devices below it, and its upstream link."""

    gpus: tuple[Annotated[GpuEntry, BeforeValidator(_index_alone)], ...] = ()
    nics: tuple[Annotated[NicEntry, BeforeValidator(_name_alone)], ...] = ()
    switches: tuple[SwitchEntry, ...] = ()
    up: PcieLink | None = None


class RootEntry(_MachineFileModel):
    """A PCIe root (host bridge) such as pci0000:15, and the devices below it."""

    id: _RootId = ""
    gpus: tuple[Annotated[GpuEntry, BeforeValidator(_index_alone)], ...] = ()
    nics: tuple[Annotated[NicEntry, BeforeValidator(_name_alone)], ...] = ()
    switches: tuple[SwitchEntry, ...] = ()


class NumaEntry(_MachineFileModel):
    """A NUMA node of a socket, with its CPUs as the kernel lists them."""

    id: _Whole = Field(ge=0, le=1024)
    socket: _Whole = Field(default=0, ge=0, le=64)
    cpus: _Cpus = ""
    roots: tuple[RootEntry, ...] = ()


class NvLinksEntry(_MachineFileModel):
    """All NVLinks between two GPUs."""

    gpus: tuple[_Whole, ...] = Field(min_length=2, max_length=2)
    links: _Whole = Field(ge=1, le=MOST_DIRECT_LINKS)


class NvSwitchEntry(_MachineFileModel):
    """NVLinks of each GPU to the NVSwitches; ``lost`` holds the number of GPUs with fewer."""

    links: _Whole = Field(ge=1, le=MOST_DIRECT_LINKS)
    lost: dict[int, Annotated[_Whole, Field(ge=0)]] = Field(default_factory=dict)


class MachineFile(_MachineFileModel):
    """A machine. ``gpu`` is the model of its GPUs, ``memory`` the memory of one GPU."""

    name: str = Field(min_length=1, max_length=63)
    gpu: str = Field(min_length=1)
    memory: str = ""
    cpu: str = "sapphire-rapids"
    arch: Literal["x86_64", "arm64", "ppc64"] = "x86_64"
    virtual: bool = False
    pcie: PcieLink | None = None
    nvlink_generation: _Whole | None = Field(default=None, ge=1, le=6)
    nvlink_domain: str = ""
    numa: tuple[NumaEntry, ...] = Field(min_length=1)
    nvlinks: tuple[NvLinksEntry, ...] = ()
    nvswitch: NvSwitchEntry | None = None

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
        if memory and Quantity(memory).units <= 0:
            raise ValueError(f'expected an amount above 0 such as 80Gi, got "{memory}"')
        return memory


def known_machines() -> list[str]:
    """Return the names of the machines in the catalog, sorted."""
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in files("bayplan.topology.machine").joinpath("catalog").iterdir()
        if entry.name.endswith(".yaml")
    )


def known_machine(name: str) -> Machine:
    """Return a machine of the catalog.

    :raises InputError: when the catalog has no machine of that name.
    """
    known = known_machines()
    if name not in known:
        near = did_you_mean(name, known)
        there = ", ".join(known)
        raise InputError(f'there is no machine "{name[:40]}"{near} (known: {there})')
    text = files("bayplan.topology.machine").joinpath("catalog", f"{name}.yaml").read_text("utf-8")
    return machine_from(parse_documents(text, f"{name}.yaml")[0])


def load_machine(path: Path) -> Machine:
    """Read a machine from a file.

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
        self._check_links_are_known(model, generation)
        link = file.pcie or PcieLink(generation=model.pcie if model is not None else 3)
        self._up = pcie(link.generation, link.width)
        self._generation = generation
        self._cpus = {node.id: node.cpus for node in file.numa if node.cpus}
        platform = Platform(file.arch, file.cpu, file.virtual, tuple(self._cpus.items()))
        per_link = nvlink(generation) if generation else Bandwidth(0.0, 0.0)
        self._builder = MachineBuilder(file.name, per_link, inter_socket(file.cpu), platform)
        self._gpus: list[tuple[GpuEntry, NumaEntry, str, _Path]] = []
        self._nics: list[tuple[NicEntry, NumaEntry, str, _Path]] = []
        self._numa_of_cpu: dict[int, int] = {}
        self._owners: dict[tuple[str, str], _Path] = {}

    def _check_links_are_known(self, model: GpuModel | None, generation: int) -> None:
        file = self._file
        unlinked = bool(file.nvlinks or file.nvswitch is not None) and not generation
        if model is None and (file.pcie is None or unlinked):
            raise self._error(
                f'the GPU "{file.gpu}" is not known: add pcie, and nvlinkGeneration if it has '
                "NVLinks",
                ("gpu",),
            )
        if unlinked:
            raise self._error(
                f'the GPU "{file.gpu}" has no NVLink: remove this, or add nvlinkGeneration',
                ("nvlinks" if file.nvlinks else "nvswitch",),
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
        if not self._gpus:
            raise self._error("has no GPU below its roots; expected one or more", ("numa",))
        self._devices()
        self._links()
        try:
            return self._builder.build()
        except MachineError as exc:
            raise InputError(str(exc), self._document.where()) from None

    def _numa(self, index: int, node: NumaEntry) -> None:
        name = f"numa {node.id}"
        at: _Path = ("numa", index)
        other = next((other for other in self._file.numa[:index] if other.id == node.id), None)
        if other is not None:
            name += f" part {index}"
            if node.cpus or node.socket != other.socket:
                raise self._error(
                    f"NUMA node {node.id} appears twice; expected another id, or another part "
                    "of it on the same socket and without cpus",
                    at,
                )
        for cpu in cpu_set(node.cpus):
            if self._numa_of_cpu.setdefault(cpu, node.id) != node.id:
                raise self._error(
                    f"CPU {cpu} is also on NUMA node {self._numa_of_cpu[cpu]}", (*at, "cpus")
                )
        self._try(at, partial(self._builder.numa, name, f"socket {node.socket}", node.id))
        for number, root in enumerate(node.roots):
            where = (*at, "roots", number)
            root_name = root.id or f"{name} root {number}"
            self._try(where, partial(self._builder.root, root_name, name))
            self._below(root, root_name, node, where)

    def _below(self, part: RootEntry | SwitchEntry, name: str, node: NumaEntry, at: _Path) -> None:
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
        for expected, (gpu, node, above, at) in enumerate(
            sorted(self._gpus, key=lambda entry: entry[0].index)
        ):
            if gpu.index != expected:
                what = "appears twice" if gpu.index < expected else f"exists, but not GPU{expected}"
                raise self._error(f"GPU{gpu.index} {what}: GPUs count from 0 without gaps", at)
            self._check_unique("busId", gpu.bus_id, at)
            self._check_unique("uuid", gpu.uuid, at)
            made = Gpu(
                gpu.index,
                gpu.uuid,
                gpu.bus_id,
                self._file.gpu,
                node.id,
                self._cpus.get(node.id, ""),
                nvlink_domain=self._file.nvlink_domain,
                memory=memory,
            )
            self._builder.gpu(made, above, self._up)
        ports = sorted(self._nics, key=lambda entry: natural_key(entry[0].name))
        for index, (nic, node, above, at) in enumerate(ports):
            self._check_unique("busId", nic.bus_id, at)
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

    def _check_unique(self, field: str, value: str, at: _Path) -> None:
        """Refuse a bus id or uuid that another device has."""
        owner = self._owners.setdefault((field, value), at) if value else at
        if owner != at:
            first = ".".join(str(step) for step in owner)
            raise self._error(f'{field} "{value}" is also that of {first}', at)

    def _links(self) -> None:
        links = self._direct_links()
        switch = self._file.nvswitch
        if switch is None:
            return
        for gpu, left in switch.lost.items():
            at: _Path = ("nvswitch", "lost", gpu)
            if not 0 <= gpu < len(self._gpus):
                raise self._error(f"GPU{gpu} does not exist", at)
            if left > switch.links:
                raise self._error(f"expected {switch.links} NVLinks or fewer, got {left}", at)
        for gpu in range(len(self._gpus)):
            own = switch.lost.get(gpu, switch.links)
            self._limit(gpu, links[gpu] + own, ("nvswitch", "links"))
            self._builder.nvswitch(gpu, own)

    def _direct_links(self) -> Counter[int]:
        """Add the NVLinks between GPUs; return the number of links of each GPU."""
        links: Counter[int] = Counter()
        pairs: set[frozenset[int]] = set()
        for index, link in enumerate(self._file.nvlinks):
            at: _Path = ("nvlinks", index, "gpus")
            one, other = link.gpus
            self._try(at, partial(self._builder.nvlink, one, other, link.links))
            pair = frozenset(link.gpus)
            if pair in pairs:
                raise self._error(f"the NVLinks of GPU{one} and GPU{other} appear twice", at)
            pairs.add(pair)
            for gpu in link.gpus:
                links[gpu] += link.links
                self._limit(gpu, links[gpu], ("nvlinks", index, "links"))
        return links

    def _limit(self, gpu: int, links: int, at: _Path) -> None:
        if links > MOST_DIRECT_LINKS:
            raise self._error(
                f"GPU{gpu} would have {links} NVLinks; expected {MOST_DIRECT_LINKS} or fewer, the "
                "most of any GPU",
                at,
            )

    def _try(self, at: _Path, add: Callable[[], None]) -> None:
        try:
            add()
        except MachineError as exc:
            raise self._error(str(exc), at) from None
