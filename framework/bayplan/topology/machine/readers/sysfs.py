"""PCI devices, NUMA nodes and NICs as sysfs shows them, under a root that tests can replace.

The resolved path of a device, such as ``devices/pci0000:15/0000:15:01.0/0000:16:00.0``, leads down
the PCIe tree: the root, the bridges, the device. A fact whose file is missing, unreadable or -1 is
None or "".
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from bayplan.errors import InputError
from bayplan.naming import natural_key

__all__ = [
    "Cpu",
    "Hca",
    "HcaPort",
    "Netdev",
    "PciDevice",
    "PciLink",
    "Sysfs",
    "cpu_set",
    "read_cpu",
    "switches",
]

_BUS_ID = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""PCIe generations by GT/s per lane."""
_WIDTHS = (1, 2, 4, 8, 12, 16, 32)
_INTEL_MODELS = {79: "broadwell", 85: "skylake", 143: "sapphire-rapids", 207: "emerald-rapids"}
"""Models of Intel's family 6 that NCCL distinguishes (src/graph/topo.h)."""


class PciLink(msgspec.Struct, frozen=True):
    """The maximum of a PCIe link: generation (1 to 6) and lanes, None if unknown."""

    generation: int | None = None
    width: int | None = None


class PciDevice(msgspec.Struct, frozen=True):
    """A PCI device: its root (``pci0000:15``) and the bridges in between, the upper one first.

    ``link`` is the link to the bridge above. ``cpus`` are the CPUs near it, as the kernel lists
    them. ``kind``, ``vendor`` and ``device`` are numbers as sysfs writes them, such as 0x030200.
    """

    bus_id: str
    root: str
    bridges: tuple[str, ...] = ()
    numa: int | None = None
    cpus: str = ""
    link: PciLink = PciLink()
    kind: str = ""
    vendor: str = ""
    device: str = ""


class HcaPort(msgspec.Struct, frozen=True):
    """A port of an RDMA device; ``rate`` in Gb/s, 0 if unknown."""

    number: int = 1
    active: bool = False
    rate: float = 0.0
    link_layer: str = ""


class Hca(msgspec.Struct, frozen=True):
    """An RDMA device with its best port: an active one first, then the fastest.

    ``physical`` is the bus id of the physical function if this is a virtual function.
    """

    name: str
    bus_id: str
    port: HcaPort = HcaPort()
    netdev: str = ""
    physical: str = ""
    virtual_functions: int = 0


class Netdev(msgspec.Struct, frozen=True):
    """A network device of a PCI NIC without RDMA; ``rate`` in Gb/s, 0 if unknown."""

    name: str
    device: PciDevice
    rate: float = 0.0


class Cpu(msgspec.Struct, frozen=True):
    """A machine's CPU: a key of ``INTER_SOCKET``, its architecture, and a note on assumptions."""

    name: str
    arch: str
    note: str = ""


class Sysfs:
    """A sysfs tree.

    :param root: where it is mounted.
    """

    def __init__(self, root: Path = Path("/sys")) -> None:
        self._root = root

    # PCI ---------------------------------------------------------------------------------

    def pci(self, bus_id: str) -> PciDevice:
        """Return a PCI device by its bus id, such as 0000:1b:00.0.

        :raises InputError: for a malformed bus id, a device that does not exist, and a symbolic
            link that does not lead to the PCI device of that bus id.
        """
        path = self._path(bus_id)
        at = self._root / "devices" / Path(*path)
        numa = _number(at / "numa_node")
        return PciDevice(
            bus_id,
            path[0],
            tuple(part for part in path[1:-1] if _BUS_ID.fullmatch(part)),
            numa if numa is not None and numa >= 0 else None,
            _text(at / "local_cpulist"),
            self._link(path),
            _text(at / "class"),
            _text(at / "vendor"),
            _text(at / "device"),
        )

    def bridge_link(self, device: PciDevice, bridge: str) -> PciLink:
        """Return the upstream link of a bridge above a device."""
        return self._link(self._path(device.bus_id), bridge)

    def _path(self, bus_id: str) -> tuple[str, ...]:
        """Return the parts of a device's path below ``devices/``."""
        if not _BUS_ID.fullmatch(bus_id):
            raise InputError(f'"{bus_id}" is not a PCI bus id; expected one like 0000:1b:00.0')
        link = self._root / "bus" / "pci" / "devices" / bus_id
        try:
            found = os.readlink(link)
        except OSError as exc:
            raise InputError(f"cannot be read: {exc.strerror}", str(link)) from None
        target = os.path.relpath(os.path.normpath(link.parent / found), self._root)
        parts = Path(target).parts
        if parts[:1] != ("devices",) or len(parts) < 3 or not parts[1].startswith("pci"):
            raise InputError(f'leads to "{target}", which must start with "devices/pci"', str(link))
        if parts[-1] != bus_id:
            raise InputError(f'leads to "{target}", which must end with "{bus_id}"', str(link))
        return parts[1:]

    def _link(self, path: Sequence[str], bus_id: str = "") -> PciLink:
        """Return what both ends of the link above a device, or above a bridge, support."""
        end = path.index(bus_id) + 1 if bus_id else len(path)
        ends = [self._root / "devices" / Path(*path[:to]) for to in (end, end - 1)]
        speeds = [_generation(_text(at / "max_link_speed")) for at in ends]
        widths = [_number(at / "max_link_width") for at in ends]
        return PciLink(
            min((speed for speed in speeds if speed), default=None),
            min((width for width in widths if width in _WIDTHS), default=None),
        )

    # NUMA --------------------------------------------------------------------------------

    def nodes(self) -> dict[int, str]:
        """Return the CPUs of each NUMA node that has any, as the kernel lists them."""
        found = {}
        for entry in _entries(self._root / "devices" / "system" / "node"):
            cpus = _text(entry / "cpulist")
            if re.fullmatch(r"node\d+", entry.name) and cpu_set(cpus):
                found[int(entry.name[4:])] = cpus
        return found

    def socket(self, cpus: str) -> int | None:
        """Return the socket of the first CPU of a kernel's list, None if unknown."""
        first = min(cpu_set(cpus), default=-1)
        at = self._root / "devices" / "system" / "cpu" / f"cpu{first}" / "topology"
        socket = _number(at / "physical_package_id")
        return socket if socket is not None and socket >= 0 else None

    # NICs --------------------------------------------------------------------------------

    def hcas(self) -> list[Hca]:
        """Return the RDMA devices on PCI, in the order of their names.

        They include virtual functions, InfiniBand and Ethernet, but no devices without RDMA.
        """
        found = []
        for entry in _entries(self._root / "class" / "infiniband"):
            device = Path(os.path.realpath(entry / "device"))
            if _BUS_ID.fullmatch(device.name):
                found.append(_hca(entry, device))
        return found

    def netdevs(self) -> list[Netdev]:
        """Return the network devices of PCI NICs without RDMA, in the order of their names."""
        found = []
        for entry in _entries(self._root / "class" / "net"):
            device = entry / "device"
            bus_id = device.resolve().name
            if (device / "infiniband").exists() or not _BUS_ID.fullmatch(bus_id):
                continue
            speed = _number(entry / "speed") or 0
            found.append(Netdev(entry.name, self.pci(bus_id), max(0, speed) / 1000))
        return found


def _hca(entry: Path, device: Path) -> Hca:
    ports = [_port(at) for at in _entries(entry / "ports") if at.name.isdecimal()]
    best = max(ports, key=lambda port: (port.active, port.rate), default=HcaPort())
    netdevs = _entries(device / "net")
    physical = device / "physfn"
    return Hca(
        entry.name,
        device.name,
        best,
        netdevs[0].name if netdevs else "",
        Path(os.path.realpath(physical)).name if physical.is_symlink() else "",
        _number(device / "sriov_numvfs") or 0,
    )


def _port(at: Path) -> HcaPort:
    """Read a port: its state reads "4: ACTIVE", its rate "400 Gb/sec (4X NDR)"."""
    rate = re.match(r"(\d+(?:\.\d+)?) Gb/sec", _text(at / "rate"))
    return HcaPort(
        int(at.name),
        _text(at / "state").startswith("4:"),
        float(rate[1]) if rate else 0.0,
        _text(at / "link_layer"),
    )


def _generation(speed: str) -> int | None:
    """Return the PCIe generation of a speed such as "16.0 GT/s PCIe"; anything faster is 6."""
    match = re.match(r"(\d+(?:\.\d+)?) GT/s", speed)
    if match is None:
        return None
    rate = float(match[1])
    return _GENERATIONS.get(rate, 6 if rate > 64 else None)


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a folder in natural order, none if it does not exist."""
    try:
        return sorted(folder.iterdir(), key=lambda entry: natural_key(entry.name))
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    try:
        return int(_text(path))
    except ValueError:
        return None


def cpu_set(cpus: str) -> frozenset[int]:
    """Return the CPUs of a kernel's list such as "0-3,8"; skip parts that are malformed."""
    found: set[int] = set()
    for part in cpus.split(","):
        if match := re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip()):
            found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)


# Switches ----------------------------------------------------------------------------------


def switches(devices: Iterable[PciDevice]) -> dict[str, tuple[str, ...]]:
    """Return the switches above each device by bus id, the upper one first.

    A switch is two bridges on the way down: its upstream port, which names it here, and one of its
    downstream ports. A root port is a single bridge, so the topmost bridge is a root port if the
    number of bridges on the way is odd. The functions of one GPU share one port; if that is a root
    port, it counts as their switch, as in nvidia-smi.
    """
    all_devices = list(devices)
    shortest: dict[str, int] = {}
    for device in all_devices:
        if device.bridges:
            top, length = device.bridges[0], len(device.bridges)
            shortest[top] = min(length, shortest.get(top, length))
    ports = Counter(device.bridges[-1] for device in all_devices if device.bridges)
    found = {}
    for device in all_devices:
        bridges = device.bridges
        above = bridges[shortest[bridges[0]] % 2 :: 2] if bridges else ()
        if bridges and not above and ports[bridges[-1]] > 1:
            above = bridges[-1:]
        found[device.bus_id] = above
    return found


# The CPU -----------------------------------------------------------------------------------


def read_cpu(path: Path = Path("/proc/cpuinfo")) -> Cpu:
    """Identify the CPU from /proc/cpuinfo, as far as the link between sockets depends on it."""
    said: dict[str, str] = {}
    for line in _text(path).splitlines():
        key, _, value = line.partition(":")
        said.setdefault(key.strip(), value.strip())
    vendor = said.get("vendor_id", "")
    if vendor == "AuthenticAMD":
        return Cpu("amd", "x86_64")
    if "CPU implementer" in said:
        return Cpu("arm", "arm64")
    if said.get("cpu", "").startswith("POWER9"):
        return Cpu("power9", "ppc64")
    family, model = said.get("cpu family", ""), said.get("model", "")
    if vendor == "GenuineIntel" and family == "6" and model.isdecimal():
        if name := _INTEL_MODELS.get(int(model)):
            return Cpu(name, "x86_64")
    what = f'CPU "{vendor} family {family} model {model}"' if vendor else "CPU, which is not shown,"
    return Cpu("skylake", "x86_64", f"the {what} is assumed to link its sockets as Skylake does")
