"""The machine that this process runs on: GPUs and NVLinks from NVML, NICs and PCIe from sysfs.

What one source lacks comes from the other or stays unknown; ``Machine.notes`` say which.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from bayplan.errors import InputError
from bayplan.naming import counted, listed
from bayplan.topology.machine.bandwidth import (
    NVLINK_SM86,
    Bandwidth,
    inter_socket,
    model_of,
    nvlink,
    pcie,
)
from bayplan.topology.machine.builder import MachineBuilder
from bayplan.topology.machine.model import Gpu, Machine, Nic, Platform
from bayplan.topology.machine.readers.nvml import NvmlGpu, read_driver_version, read_gpus
from bayplan.topology.machine.readers.sysfs import (
    Cpu,
    Hca,
    PciDevice,
    PciLink,
    Sysfs,
    cpu_set,
    read_cpu,
    switches,
)

__all__ = ["discover"]

_NVLINK_OF_COMPUTE = ((100, 5), (90, 4), (86, NVLINK_SM86), (80, 3), (70, 2), (60, 1))
"""From this CUDA compute capability (times ten) on, GPUs have this NVLink generation."""
_MOST_NAMED = 6


def discover(
    name: str = "",
    sysfs_root: Path = Path("/sys"),
    cpuinfo: Path = Path("/proc/cpuinfo"),
) -> Machine:
    """Return the machine that this process runs on.

    :param name: the machine's name; the host's if empty.
    :param sysfs_root: where sysfs is mounted.
    :raises InputError: when NVML cannot be used or shows no GPU.
    """
    sysfs = Sysfs(sysfs_root)
    found = _Discovery(read_gpus(), sysfs, read_cpu(cpuinfo), read_driver_version())
    return found.machine(name or platform.node() or "machine")


class _Discovery:
    """Joins the facts of NVML and sysfs. Devices go by their names, such as GPU0 and mlx5_0."""

    def __init__(self, gpus: list[NvmlGpu], sysfs: Sysfs, cpu: Cpu, driver: str) -> None:
        self._notes = [cpu.note] if cpu.note else []
        self._gpus = gpus
        self._sysfs = sysfs
        self._cpu = cpu
        self._driver = driver
        self._nodes = sysfs.nodes()
        self._hcas = sysfs.hcas()
        self._bus = {f"GPU{gpu.index}": gpu.bus_id for gpu in gpus}
        self._bus |= {hca.name: hca.bus_id for hca in self._hcas}
        self._pci = self._pci_devices()
        self._own_numa = self._own_numa_nodes()
        self._numa_of_root = self._numa_of_roots()
        self._switches = switches(self._pci.values())
        self._unshown: list[str] = []

    def _pci_devices(self) -> dict[str, PciDevice]:
        """Return the devices as sysfs shows them, without those that it does not show."""
        found = {}
        for name, bus_id in self._bus.items():
            try:
                if bus_id:
                    found[name] = self._sysfs.pci(bus_id)
            except InputError as exc:
                self._notes.append(f"the position of {name} is not known: {exc}")
        for gpu in self._gpus:
            if not gpu.bus_id and not gpu.lost:
                self._notes.append(f"the position of GPU{gpu.index} is not known: NVML hides it")
        return found

    def machine(self, name: str) -> Machine:
        """Return the machine."""
        cpus = tuple(sorted(self._nodes.items()))
        virtual = self._is_virtual()
        about = Platform(self._cpu.arch, self._cpu.name, virtual, cpus, self._driver)
        builder = MachineBuilder(name, self._link(), inter_socket(self._cpu.name), about)
        self._note_numa()
        self._add_tree(builder)
        self._add_gpus(builder)
        self._add_nics(builder)
        self._add_links(builder)
        self._note_gpus()
        if self._unshown:
            self._notes.append(
                f"assumed, as sysfs does not show it: PCIe {self._pcie_generation} with 16 lanes "
                f"to {listed(dict.fromkeys(self._unshown), _MOST_NAMED)}"
            )
        return builder.build(notes=self._notes)

    # NUMA --------------------------------------------------------------------------------

    def _own_numa_nodes(self) -> dict[str, int]:
        """Return the NUMA node of each device that reports one, or the CPUs of one."""
        affinity = {f"GPU{gpu.index}": gpu.cpus for gpu in self._gpus}
        nodes = {cpu_set(cpus): node for node, cpus in self._nodes.items()}
        found: dict[str, int] = {}
        for name in self._bus:
            pci = self._pci.get(name)
            numa = pci.numa if pci is not None else None
            if numa is None:
                numa = nodes.get(affinity.get(name, frozenset()))
            if numa is None and pci is not None:
                numa = nodes.get(cpu_set(pci.cpus))
            if numa is not None:
                found[name] = numa
        return found

    def _numa_of_roots(self) -> dict[str, int | None]:
        """Return the NUMA node of each PCIe root: that of its first device that has one."""
        found: dict[str, int | None] = {}
        for name, pci in self._pci.items():
            if found.get(pci.root) is None:
                found[pci.root] = self._own_numa.get(name)
        return found

    def _numa(self, name: str) -> int | None:
        pci = self._pci.get(name)
        root = self._numa_of_root[pci.root] if pci is not None else None
        return self._own_numa.get(name, root)

    def _note_numa(self) -> None:
        without = [root for root, numa in self._numa_of_root.items() if numa is None]
        if without and len(without) == len(self._numa_of_root):
            self._notes.append(
                "no device reports its NUMA node (numa_node is -1): all are assumed to be on one"
            )
        elif without:
            self._notes.append(
                f"the NUMA node of {listed(without, _MOST_NAMED)} is not known: assumed to be "
                "apart from all others"
            )

    # The tree ----------------------------------------------------------------------------

    def _is_virtual(self) -> bool:
        """Tell whether a hypervisor made up the PCI tree: each GPU alone on a root, no bridges.

        Grace also gives each GPU a PCI domain of its own, but there the GPU is below a root port.
        """
        places = [pci for name, pci in self._pci.items() if name.startswith("GPU")]
        invented = bool(places) and all(
            not pci.root.startswith("pci0000:") and not pci.bridges for pci in places
        )
        if not invented or len({pci.root for pci in places}) < len(places):
            return False
        self._notes.append(
            "each GPU has a PCI domain of its own, as in a virtual machine: PCIe roots do not show "
            "which devices are near each other"
        )
        return True

    def _add_tree(self, builder: MachineBuilder) -> None:
        sockets: dict[str, None] = {}
        numa_nodes = {*self._nodes, *self._own_numa.values(), *self._numa_of_root.values()}
        for node in sorted(numa_nodes, key=lambda numa: -1 if numa is None else numa):
            socket = self._socket(node)
            if socket not in sockets:
                builder.socket(socket)
                sockets[socket] = None
            builder.numa(_numa_name(node), socket, node)
        for root, node in sorted(self._numa_of_root.items()):
            builder.root(root, _numa_name(node))
        added: set[str] = set()
        for pci in self._pci.values():
            self._add_switches(builder, pci, added)

    def _socket(self, node: int | None) -> str:
        known = self._sysfs.socket(self._nodes.get(node, "")) if node is not None else None
        return f"socket of {_numa_name(node)}" if known is None else f"socket {known}"

    def _add_switches(self, builder: MachineBuilder, pci: PciDevice, added: set[str]) -> None:
        above = pci.root
        for switch in self._switches[pci.bus_id]:
            if switch not in added:
                up = self._bandwidth(switch, self._sysfs.bridge_link(pci, switch))
                builder.switch(switch, above, up)
                added.add(switch)
            above = switch

    def _above(self, name: str) -> str | None:
        """Return the switch or root above a device, None if its position is not known."""
        pci = self._pci.get(name)
        return (pci.root, *self._switches[pci.bus_id])[-1] if pci is not None else None

    def _up(self, name: str) -> Bandwidth:
        pci = self._pci.get(name)
        if pci is None:
            return pcie(self._pcie_generation)
        return self._bandwidth(name, pci.link)

    def _bandwidth(self, name: str, link: PciLink) -> Bandwidth:
        if link.generation is None or link.width is None:
            self._unshown.append(name)
            return pcie(link.generation or self._pcie_generation, link.width or 16)
        return pcie(link.generation, link.width)

    @cached_property
    def _pcie_generation(self) -> int:
        """The PCIe generation to assume: that of the GPUs' model, else 3."""
        models = (model_of(gpu.model) for gpu in self._gpus)
        return next((model.pcie for model in models if model is not None), 3)

    # Devices -----------------------------------------------------------------------------

    def _add_gpus(self, builder: MachineBuilder) -> None:
        for gpu in self._gpus:
            name = f"GPU{gpu.index}"
            numa = self._numa(name)
            made = Gpu(
                gpu.index,
                gpu.uuid,
                gpu.bus_id,
                gpu.model,
                numa,
                self._nodes.get(numa, "") if numa is not None else "",
                nvlink_domain=gpu.domain,
                memory=gpu.memory,
                mig=gpu.mig,
                lost=gpu.lost,
                compute=gpu.compute,
                minor=gpu.minor,
                profiles=gpu.profiles,
            )
            builder.gpu(made, self._above(name), self._up(name))

    def _add_nics(self, builder: MachineBuilder) -> None:
        names = {hca.bus_id: hca.name for hca in self._hcas if not hca.physical}
        for index, hca in enumerate(self._hcas):
            nic = self._nic(index, hca, names)
            builder.nic(nic, self._above(hca.name), self._up(hca.name))

    def _nic(self, index: int, hca: Hca, names: Mapping[str, str]) -> Nic:
        return Nic(
            index,
            hca.name,
            hca.name,
            hca.bus_id,
            self._numa(hca.name),
            rate=hca.port.rate,
            link_layer=hca.port.link_layer,
            port=hca.port.number,
            active=hca.port.active,
            netdev=hca.netdev,
            parent=names.get(hca.physical, hca.physical),
            virtual_functions=hca.virtual_functions,
        )

    # NVLink ------------------------------------------------------------------------------

    def _link(self) -> Bandwidth:
        """Return the bandwidth of one NVLink."""
        linked = next((gpu for gpu in self._gpus if gpu.links), None)
        if linked is None:
            return Bandwidth(0.0, 0.0)
        model = model_of(linked.model)
        generation = model.nvlink if model is not None else 0
        by_compute = (made for least, made in _NVLINK_OF_COMPUTE if linked.compute >= least)
        generation = generation or next(by_compute, 0)
        if not generation:
            self._notes.append(f'the NVLink generation of "{linked.model}" is not known')
            return Bandwidth(0.0, 0.0)
        return nvlink(generation)

    def _add_links(self, builder: MachineBuilder) -> None:
        """Connect GPUs; when the two ends of a pair disagree, the lower number of links counts."""
        index_of = {gpu.bus_id: gpu.index for gpu in self._gpus if gpu.bus_id}
        seen: dict[tuple[int, int], dict[int, int]] = {}
        for gpu in self._gpus:
            if gpu.lost:
                continue
            builder.nvswitch(gpu.index, gpu.switch_links)
            for bus_id, count in gpu.peers.items():
                peer = index_of.get(bus_id)
                if peer is None:
                    self._note_no_peer(gpu, bus_id, count)
                elif not self._gpus[peer].lost:
                    pair = (min(gpu.index, peer), max(gpu.index, peer))
                    seen.setdefault(pair, dict.fromkeys(pair, 0))[gpu.index] = count
        for (a, b), ends in seen.items():
            if ends[a] != ends[b]:
                self._notes.append(
                    f"GPU{a} shows {counted(ends[a], 'NVLink')} to GPU{b}, which shows {ends[b]}: "
                    "the lower number counts"
                )
            if fewer := min(ends.values()):
                builder.nvlink(a, b, fewer)

    def _note_no_peer(self, gpu: NvmlGpu, bus_id: str, count: int) -> None:
        where = f"{bus_id}, which NVML does not show" if bus_id else "GPUs whose bus id is hidden"
        self._notes.append(f"{counted(count, 'NVLink')} of GPU{gpu.index} to {where}: ignored")

    def _note_gpus(self) -> None:
        """Note GPUs that are lost, and GPUs with fewer NVLinks than others of their model."""
        most: dict[str, int] = {}
        for gpu in self._gpus:
            most[gpu.model] = max(most.get(gpu.model, 0), gpu.links)
        for gpu in self._gpus:
            if gpu.lost:
                self._notes.append(f"GPU{gpu.index} cannot be used: {gpu.lost}")
            elif gpu.links < most[gpu.model]:
                self._notes.append(
                    f"GPU{gpu.index} has {gpu.links} of {most[gpu.model]} NVLinks that are active "
                    "on others of its model"
                )


def _numa_name(node: int | None) -> str:
    return "numa ?" if node is None else f"numa {node}"
