"""MIG instances that come and go with the claims that have a partition of a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from bayplan.errors import BayplanError
from bayplan.topology.machine.model import Gpu
from bayplan_dra.driver.prepare.checkpoint import MigInstance, PreparedClaim
from bayplan_dra.driver.publish.devices import GpuPartition, NodeInventory

__all__ = ["InstanceMaker", "Partitions", "SimulatedInstances"]


class InstanceMaker(Protocol):
    """Makes and removes the MIG instances of a machine; errors are ``BayplanError``."""

    def make(self, gpu: Gpu, partition: GpuPartition) -> MigInstance:
        """Return the instance at this place of a GPU; make it if it is not there."""

    def remove(self, gpu: Gpu, partition: GpuPartition) -> None:
        """Remove the instance at this place of a GPU; a missing one is fine."""

    def there(self, gpu: Gpu) -> Mapping[tuple[int, int], MigInstance]:
        """Return the instances of a GPU by profile id and start."""


class SimulatedInstances:
    """The instances of a simulated machine, which are always where they should be."""

    def make(self, gpu: Gpu, partition: GpuPartition) -> MigInstance:
        """Return an instance."""
        return _simulated(gpu, partition.profile.id, partition.start)

    def remove(self, gpu: Gpu, partition: GpuPartition) -> None:
        """Do nothing."""

    def there(self, gpu: Gpu) -> Mapping[tuple[int, int], MigInstance]:
        """Return an instance at each place."""
        return {
            (profile.id, start): _simulated(gpu, profile.id, start)
            for profile in gpu.profiles
            for start in profile.partition.starts
        }


def _simulated(gpu: Gpu, profile: int, start: int) -> MigInstance:
    return MigInstance(f"MIG-{gpu.uuid or gpu.index}-{profile}-{start}", start + 1, 0)


class Partitions:
    """The partitions of prepared claims on a node. Callers hold the driver's lock."""

    def __init__(self, maker: InstanceMaker) -> None:
        self._maker = maker

    def are_there(self, claim: PreparedClaim, inventory: NodeInventory) -> bool:
        """Tell whether the instances of a prepared claim still are what they were."""
        for name, gpu, partition in _of(claim, inventory):
            there = self._maker.there(gpu).get((partition.profile.id, partition.start))
            if there is None or there != _instance(claim, name):
                return False
        return True

    def make(self, claim: PreparedClaim, inventory: NodeInventory) -> dict[str, MigInstance]:
        """Make the instances of a claim, all or none; return them by device.

        Admin access makes none: it gets those of others, where there are any.

        :raises BayplanError: when one cannot be made.
        """
        made: dict[str, MigInstance] = {}
        try:
            for name, gpu, partition in _of(claim, inventory):
                made[name] = self._maker.make(gpu, partition)
            for name, gpu, partition in _of(claim, inventory, admin=True):
                there = self._maker.there(gpu).get((partition.profile.id, partition.start))
                made |= {name: there} if there is not None else {}
        except BayplanError:
            self.remove(claim, inventory)
            raise
        return made

    def remove(self, claim: PreparedClaim, inventory: NodeInventory) -> None:
        """Remove the instances of a claim.

        :raises BayplanError: when one cannot be removed.
        """
        for _, gpu, partition in _of(claim, inventory):
            self._maker.remove(gpu, partition)

    def remove_others(
        self, claims: Sequence[PreparedClaim], inventory: NodeInventory
    ) -> Iterator[str]:
        """Remove the instances that belong to no claim, as a driver that was killed leaves them.

        Only those on GPUs that the driver divides. Yield why one cannot be removed.
        """
        kept = {
            (gpu.index, partition.profile.id, partition.start)
            for claim in claims
            for _, gpu, partition in _of(claim, inventory)
        }
        for device in inventory.devices.values():
            if device.partition is None or device.gpu is None:
                continue
            gpu, partition = inventory.machine.gpus[device.gpu], device.partition
            place = (partition.profile.id, partition.start)
            if (gpu.index, *place) in kept:
                continue
            with _telling() as problems:
                if place in self._maker.there(gpu):
                    self._maker.remove(gpu, partition)
            yield from (f"device {device.name}: {text}" for text in problems)


@contextmanager
def _telling() -> Iterator[list[str]]:
    problems: list[str] = []
    try:
        yield problems
    except BayplanError as exc:
        problems.append(str(exc))


def _of(
    claim: PreparedClaim, inventory: NodeInventory, admin: bool = False
) -> Iterator[tuple[str, Gpu, GpuPartition]]:
    """Yield the partitions that a claim has of the node, by admin access or otherwise."""
    for one in claim.devices:
        device = inventory.devices.get(one.name)
        if device is not None and device.partition is not None and one.admin == admin:
            assert device.gpu is not None
            yield one.name, inventory.machine.gpus[device.gpu], device.partition


def _instance(claim: PreparedClaim, name: str) -> MigInstance | None:
    return next((one.instance for one in claim.devices if one.name == name), None)
