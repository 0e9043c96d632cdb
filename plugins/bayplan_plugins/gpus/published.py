"""GPUs and NICs as drivers publish them, where no machine is described; the NICs of one that is.

Drivers state ``pcieRoot`` and ``numaNode`` in Kubernetes' own attribute domain, and
``nvlinkDomain``, ``productName`` and ``rdmaDevice`` in theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from bayplan.api.dra import Device, DeviceAttribute, DeviceId
from bayplan.plugin.devices import NodeDevices, PublishedDevice
from bayplan.snapshot import Snapshot
from bayplan.topology.machine.model import Machine
from bayplan_dra.allocator.pools import Pool
from bayplan_plugins.gpus.claims import gpus_by_name

__all__ = ["PublishedNodes", "nics_by_name", "nics_of_devices", "published_devices"]

_STANDARD = "resource.kubernetes.io/"


class PublishedNodes:
    """What drivers publish of nodes whose machine nobody describes; read once for equal pools."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._known: dict[str, tuple[Sequence[Pool], NodeDevices]] = {}

    def of(self, name: str, pools: Sequence[Pool]) -> NodeDevices:
        """Return what drivers publish of a node."""
        known = self._known.get(name)
        if known is None or known[0] is not pools:
            if len(self._known) > 2 * len(self._snapshot.nodes.names):
                self._known.clear()
            published, nics = published_devices(pools), nics_by_name(pools)
            found = NodeDevices(devices=gpus_by_name(pools), nics=nics, published=published)
            known = self._known[name] = (pools, found)
        return known[1]


def published_devices(pools: Iterable[Pool]) -> tuple[PublishedDevice, ...]:
    """Return the GPUs, each once, and the NICs, in the order of their names' numbers."""
    pools = list(pools)
    gpus = gpus_by_name(pools)
    found: dict[int, PublishedDevice] = {}
    for pool in pools:
        for device in pool.devices:
            index = gpus.get(device.id)
            # A part of a GPU says no more of its place than the GPU itself.
            if index is not None and (index not in found or not _is_part(device.spec)):
                found[index] = _published(device.spec, device.id.driver, f"GPU{index}", index)
    nics = [_published(spec, driver, name, None) for _, spec, driver, name in _nics(pools)]
    return (*(found[index] for index in sorted(found)), *nics)


def nics_by_name(pools: Iterable[Pool]) -> dict[DeviceId, int]:
    """Return the place of each NIC among those of ``published_devices``."""
    return {found[0]: index for index, found in enumerate(_nics(pools))}


def nics_of_devices(pools: Iterable[Pool], machine: Machine) -> dict[DeviceId, int]:
    """Return, for each device that is a NIC of a machine, the NIC's index: by name or bus id."""
    known = {name: nic.index for nic in machine.nics for name in (nic.name, nic.bus_id) if name}
    found = {}
    for id_, spec, driver, name in _nics(pools):
        bus = _text(_attributes(spec, driver), "pciBusID").lower()
        index = known.get(name, known.get(bus))
        if index is not None:
            found[id_] = index
    return found


def _nics(pools: Iterable[Pool]) -> Iterator[tuple[DeviceId, Device, str, str]]:
    """Yield each NIC's full name, the device, its driver, and what people call it."""
    for pool in pools:
        for device in pool.devices:
            attributes = _attributes(device.spec, device.id.driver)
            name = _text(attributes, "rdmaDevice")
            kind = _text(attributes, "type")
            if name or kind == "nic" or (not kind and device.spec.name.startswith("nic")):
                yield device.id, device.spec, device.id.driver, name or device.spec.name


def _is_part(device: Device) -> bool:
    return not device.name.removeprefix("gpu").removeprefix("-").isdigit()


def _published(device: Device, driver: str, name: str, gpu: int | None) -> PublishedDevice:
    attributes = _attributes(device, driver)
    numa = attributes.get("numaNode")
    memory = device.capacity.get("memory") or device.capacity.get(f"{driver}/memory")
    return PublishedDevice(
        name,
        gpu,
        _text(attributes, "productName"),
        0 if memory is None or gpu is None else memory.value.units,
        None if numa is None else numa.integer,
        _text(attributes, "pcieRoot"),
        _text(attributes, "nvlinkDomain"),
    )


def _attributes(device: Device, driver: str) -> dict[str, DeviceAttribute]:
    """Return attributes by their names without Kubernetes' domain and the driver's own."""
    return {
        name.removeprefix(_STANDARD).removeprefix(f"{driver}/"): attribute
        for name, attribute in device.attributes.items()
    }


def _text(attributes: Mapping[str, DeviceAttribute], name: str) -> str:
    found = attributes.get(name)
    return (found.string or "") if found is not None else ""
