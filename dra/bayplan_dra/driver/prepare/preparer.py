"""Prepares and unprepares the devices of claims: each claim once, even if killed in between.

A claim is written to the checkpoint before its CDI file, and removed from it after that. So at
start, every claim of the checkpoint gets its CDI file again, and all other CDI files are removed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from bayplan.api import ResourceClaim
from bayplan.errors import BayplanError, ClusterError
from bayplan_dra.driver.prepare.cdi import CdiFolder
from bayplan_dra.driver.prepare.checkpoint import (
    Checkpoint,
    MigInstance,
    PreparedClaim,
    PreparedDevice,
    is_uid,
)
from bayplan_dra.driver.prepare.edits import DeviceFiles
from bayplan_dra.driver.prepare.handover import Handover, gpu_of
from bayplan_dra.driver.prepare.partitions import (
    InstanceMaker,
    Partitions,
    SimulatedInstances,
)
from bayplan_dra.driver.prepare.planner import Planner, PrepareError
from bayplan_dra.driver.prepare.sharing import TimeSlices
from bayplan_dra.driver.publish.devices import NodeInventory

__all__ = ["ClaimApi", "DeviceHeld", "Folders", "Preparer"]

_MOST_UNDONE = 4096


class DeviceHeld(PrepareError):
    """A device is still prepared for another claim; that passes once the kubelet unprepares it."""


class ClaimApi(Protocol):
    """What preparing reads from the API server; errors are ``ClusterError``."""

    def claim(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return a claim, None if it does not exist."""


class Folders(msgspec.Struct, frozen=True):
    """The folders of the driver's state (``plugin``) and of CDI files."""

    plugin: Path
    cdi: Path


class Preparer:
    """Prepares claims on one node. Safe for concurrent calls, even from two processes.

    :param inventory: returns the current devices.
    :param topology_file: the host's path of NCCL's topology file, "" for none.
    :param plugin_pods: returns the pods that still have a GPU through a device plugin, by GPU.
    :param instances: makes the MIG instances of partitions.
    :param mps_root: the folder of the MPS control daemon, "" for none.
    :param time_slices: sets the time slices of GPUs.
    :param abandoned_seconds: how long the kubelet has to unprepare a claim that is gone. Until it
        does, containers of a pod that was deleted by force may run.
    """

    def __init__(
        self,
        driver: str,
        node: str,
        folders: Folders,
        inventory: Callable[[], NodeInventory],
        claims: ClaimApi,
        files: DeviceFiles,
        topology_file: str = "",
        plugin_pods: Callable[[], Mapping[str, str]] = dict,
        abandoned_seconds: float = 0.0,
        instances: InstanceMaker | None = None,
        mps_root: str = "",
        time_slices: TimeSlices | None = None,
    ) -> None:
        self.driver = driver
        self.node = node
        self._inventory = inventory
        self._claims = claims
        self._planner = Planner(driver, node, files, topology_file, mps_root)
        self._time_slices = time_slices or TimeSlices()
        self._partitions = Partitions(instances or SimulatedInstances())
        self._abandoned_seconds = abandoned_seconds
        self.checkpoint = Checkpoint(folders.plugin / "claims")
        self._cdi = CdiFolder(folders.cdi, driver)
        self._handover = Handover(folders.plugin)
        self._plugin_pods = plugin_pods
        self._mutex = threading.Lock()
        self._undone: dict[str, int] = {}
        self._stale_since: dict[str, float] = {}

    def recover(self) -> list[str]:
        """Make the CDI files agree with the checkpoint; return what is damaged.

        :raises BayplanError: when another instance holds the lock for too long.
        """
        with self._alone():
            self.checkpoint.clean()
            claims = self.checkpoint.claims()
            unread = self.checkpoint.unread
            self._cdi.keep_only([*claims, *unread])
            problems = [*self.checkpoint.damaged, *unread.values()]
            if not unread:
                held = list(claims.values())
                problems += self._partitions.remove_others(held, self._inventory())
            for claim in claims.values():
                try:
                    self._cdi.write(claim.uid, claim.spec)
                except OSError as exc:
                    problems.append(f"the CDI file of claim {claim.uid}: {exc}")
        return problems

    def prepare(
        self, namespace: str, name: str, uid: str, wanted: Callable[[], bool] = lambda: True
    ) -> PreparedClaim:
        """Prepare a claim; a prepared one gets the same answer again.

        :param wanted: tells whether the caller still waits; called before anything is written.
        :raises DeviceHeld: when another claim has one of its devices.
        :raises PrepareError: when it cannot be prepared.
        :raises BayplanError: when the API server fails, or another instance holds the lock.
        :raises OSError: when the disk fails.
        """
        if not is_uid(uid):
            raise PrepareError(f'"{uid[:80]}" is not a UID')
        begun = self._undone.get(uid, 0)
        known = self._known(uid)
        inventory = self._inventory()
        if known is not None and not self._partitions.are_there(known, inventory):
            # The machine has restarted since then.
            known = None
        try:
            claim = self._claims.claim(namespace, name)
        except ClusterError:
            if known is None:
                raise
            # A node can restart its pods without the API server.
            return self._again(known)
        results = self._planner.results(claim, namespace, name, uid)
        assert claim is not None
        if known is not None and {d.name for d in known.devices} == {r.device for r in results}:
            return self._again(known)
        made = self._planner.planned(claim, results, inventory)
        self._refuse_plugins(made)

        def with_instances(instances: Mapping[str, MigInstance]) -> PreparedClaim:
            return self._planner.planned(claim, results, inventory, instances)

        put = partial(self._put, made, with_instances, inventory, begun, wanted)
        other, made = put()
        if other is not None and self._is_abandoned(other):
            self.unprepare(other.uid)
            other, made = put()
        if other is not None:
            raise DeviceHeld(
                f"a device of {', '.join(one.name for one in made.devices)} is prepared for claim "
                f"{other.namespace}/{other.name} ({other.uid}), which has "
                f"{', '.join(one.name for one in other.devices)}"
            )
        return made

    def _put(
        self,
        made: PreparedClaim,
        with_instances: Callable[[Mapping[str, MigInstance]], PreparedClaim],
        inventory: NodeInventory,
        begun: int,
        wanted: Callable[[], bool],
    ) -> tuple[PreparedClaim | None, PreparedClaim]:
        """Write a claim, unless another has one of its devices: then return that one.

        The claim comes second, as it was written. It is written before its partitions become MIG
        instances, so that a driver that is killed in between knows whose they are.
        """
        with self._alone():
            if not wanted() or self._undone.get(made.uid, 0) != begun:
                raise PrepareError("the kubelet no longer waits for this")
            offered = self._handover.offered()
            for device in made.devices:
                if gpu_of(device.name) in offered and not device.admin:
                    raise PrepareError(f"device {device.name} is offered by the device plugin now")
            prepared = self.checkpoint.claims()
            prepared.pop(made.uid, None)
            other = _holder(made, prepared, inventory)
            if other is None:
                self.checkpoint.put(made)
                made = self._made(made, with_instances, inventory)
                self._cdi.write(made.uid, made.spec)
        return other, made

    def _made(
        self,
        claim: PreparedClaim,
        with_instances: Callable[[Mapping[str, MigInstance]], PreparedClaim],
        inventory: NodeInventory,
    ) -> PreparedClaim:
        """Return a claim whose partitions have become instances, and write it.

        :raises PrepareError: when one cannot be made.
        """
        try:
            instances = self._partitions.make(claim, inventory)
            for uuid, interval in _time_slices(claim, inventory):
                self._time_slices.set(uuid, interval)
        except BayplanError as exc:
            self.checkpoint.remove(claim.uid)
            raise PrepareError(str(exc)) from None
        if not instances:
            return claim
        made = with_instances(instances)
        self.checkpoint.put(made)
        return made

    def _refuse_plugins(self, made: PreparedClaim) -> None:
        """Check that no pod has one of the devices through a device plugin.

        :raises DeviceHeld: naming the pod.
        """
        pods = self._plugin_pods()
        for device in made.devices:
            pod = pods.get(gpu_of(device.name))
            if pod is not None and not device.admin:
                raise DeviceHeld(f"device {device.name}: pod {pod} has it through a device plugin")

    def _known(self, uid: str) -> PreparedClaim | None:
        with self._alone():
            return self.checkpoint.get(uid)

    def _again(self, known: PreparedClaim) -> PreparedClaim:
        with self._alone():
            if self.checkpoint.get(known.uid) is None:
                raise PrepareError("the claim was unprepared meanwhile")
            self._cdi.write(known.uid, known.spec)
        return known

    def _is_abandoned(self, other: PreparedClaim) -> bool:
        """Tell whether a claim has been stale for so long that the kubelet must have lost it."""
        if not self._is_stale(other):
            self._stale_since.pop(other.uid, None)
            return False
        now = time.monotonic()
        return now - self._stale_since.setdefault(other.uid, now) >= self._abandoned_seconds

    def _is_stale(self, other: PreparedClaim) -> bool:
        """Tell whether a prepared claim is gone or has other devices now."""
        claim = self._claims.claim(other.namespace, other.name)
        if claim is None or claim.metadata.uid != other.uid or claim.status.allocation is None:
            return True
        now = {
            one.device
            for one in claim.status.allocation.devices.results
            if (one.driver, one.pool) == (self.driver, self.node)
        }
        return now.isdisjoint(one.name for one in other.devices)

    def unprepare(self, uid: str) -> None:
        """Undo what was prepared for a claim; an unknown claim is fine.

        :raises PrepareError: for a name that cannot be a UID.
        :raises BayplanError: when another instance holds the lock for too long.
        :raises OSError: when the disk fails.
        """
        if not is_uid(uid):
            raise PrepareError(f'"{uid[:80]}" is not a UID')
        with self._alone():
            self._undone[uid] = self._undone.pop(uid, 0) + 1
            if len(self._undone) > _MOST_UNDONE:
                del self._undone[next(iter(self._undone))]
            self._stale_since.pop(uid, None)
            self._cdi.remove(uid)
            known = self.checkpoint.get(uid)
            if known is not None:
                self._partitions.remove(known, self._inventory())
                self._reset_time_slices(known)
            self.checkpoint.remove(uid)

    def _reset_time_slices(self, gone: PreparedClaim) -> None:
        """Give GPUs their default time slice again, unless another claim has set one."""
        others = [one for one in self.checkpoint.claims().values() if one.uid != gone.uid]
        inventory = self._inventory()
        kept = {uuid for one in others for uuid, _ in _time_slices(one, inventory)}
        for uuid, _ in _time_slices(gone, inventory):
            if uuid not in kept:
                self._time_slices.set(uuid, "Default")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the files against other threads and other instances of the driver."""
        with self._mutex, self._handover.alone():
            yield


def _time_slices(claim: PreparedClaim, inventory: NodeInventory) -> Iterator[tuple[str, str]]:
    """Yield the GPUs whose time slice a claim sets, by UUID, and to what."""
    for one in claim.devices:
        device = inventory.devices.get(one.name)
        if one.time_slice and device is not None and device.gpu is not None:
            yield inventory.machine.gpus[device.gpu].uuid, one.time_slice


def _holder(
    made: PreparedClaim, prepared: dict[str, PreparedClaim], inventory: NodeInventory
) -> PreparedClaim | None:
    """Return the prepared claim that holds a device of ``made``, or a part of one."""
    mine = [device for device in made.devices if not device.admin]
    for other in prepared.values():
        theirs = [device for device in other.devices if not device.admin]
        if any(_collide(own, device, inventory) for own in mine for device in theirs):
            return other
    return None


def _collide(one: PreparedDevice, other: PreparedDevice, inventory: NodeInventory) -> bool:
    """Tell whether two claims cannot have these devices at once."""
    if one.name == other.name:
        device = inventory.devices.get(one.name)
        return device is None or not device.device.allow_multiple_allocations
    mine, theirs = inventory.devices.get(one.name), inventory.devices.get(other.name)
    if mine is None or theirs is None or mine.gpu is None or mine.gpu != theirs.gpu:
        return False
    if mine.partition is not None and theirs.partition is not None:
        return not set(mine.partition.slices).isdisjoint(theirs.partition.slices)
    return mine.whole or theirs.whole
