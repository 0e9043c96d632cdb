"""Prepares the devices of claims, and undoes it: each claim once, whatever is killed in between.

A claim is in the checkpoint before its CDI file is there, and out of it after that is gone. So at
start every claim of the checkpoint gets its CDI file again, and every other CDI file goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bayplan.api import ResourceClaim
from bayplan.api.dra import AllocatedDevice
from bayplan.errors import BayplanError
from bayplan_dra.driver.cdi import CdiFolder, device_id, spec_text
from bayplan_dra.driver.checkpoint import Checkpoint, PreparedClaim, PreparedDevice, is_uid
from bayplan_dra.driver.config import config_of
from bayplan_dra.driver.devices import Inventory, NodeDevice
from bayplan_dra.driver.edits import DeviceFiles, common_edits
from bayplan_dra.driver.files import locked

__all__ = ["ClaimApi", "Folders", "PrepareError", "Preparer"]

_LOCK_SECONDS = 20.0
"""The kubelet waits for 45 s."""


class PrepareError(BayplanError):
    """A claim cannot be prepared: why."""


class ClaimApi(Protocol):
    """What preparing asks of the API server; errors are ``ClusterError``."""

    def claim(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return a claim, None when there is none."""


@dataclass(frozen=True)
class Folders:
    """Where the driver keeps its state (``plugin``) and where CDI files go."""

    plugin: Path
    cdi: Path


class Preparer:
    """Prepares claims on one node. Safe under concurrent calls, also of two processes.

    :param inventory: returns the devices as they are now.
    """

    def __init__(
        self,
        driver: str,
        node: str,
        folders: Folders,
        inventory: Callable[[], Inventory],
        claims: ClaimApi,
        files: DeviceFiles,
        topology_file: str = "",
    ) -> None:
        self.driver = driver
        self.node = node
        self._inventory = inventory
        self._claims = claims
        self._files = files
        self._topology_file = topology_file
        self.checkpoint = Checkpoint(folders.plugin / "claims")
        self._cdi = CdiFolder(folders.cdi, driver)
        self._lock = folders.plugin / "serialize.lock"

    def recover(self) -> list[str]:
        """Bring CDI files and checkpoint into agreement; return what was damaged.

        :raises BayplanError: when another instance holds the lock for too long.
        """
        with locked(self._lock, _LOCK_SECONDS):
            self.checkpoint.clean()
            claims = self.checkpoint.claims()
            self._cdi.keep_only(claims)
            for claim in claims.values():
                self._cdi.write(claim.uid, claim.spec)
        return self.checkpoint.damaged

    def prepare(self, namespace: str, name: str, uid: str) -> PreparedClaim:
        """Prepare a claim; one that is prepared gets the same answer again.

        :raises PrepareError: when it cannot be prepared.
        :raises BayplanError: when the API server or the disk fails.
        """
        if not is_uid(uid):
            raise PrepareError(f'"{uid[:80]}" is no UID')
        known = self._again(uid)
        if known is not None:
            return known
        claim = self._claims.claim(namespace, name)
        results = self._results(claim, namespace, name, uid)
        assert claim is not None
        inventory = self._inventory()
        made = self._made(claim, uid, results, inventory)
        with locked(self._lock, _LOCK_SECONDS):
            prepared = self.checkpoint.claims()
            if uid not in prepared:
                _refuse_taken(made, prepared, inventory)
                self.checkpoint.put(made)
            known = prepared.get(uid, made)
            self._cdi.write(uid, known.spec)
        return known

    def _again(self, uid: str) -> PreparedClaim | None:
        with locked(self._lock, _LOCK_SECONDS):
            known = self.checkpoint.get(uid)
            if known is not None:
                self._cdi.write(uid, known.spec)
            return known

    def unprepare(self, uid: str) -> None:
        """Undo what was prepared for a claim; nothing is fine.

        :raises BayplanError: when the disk fails.
        """
        if not is_uid(uid):
            raise PrepareError(f'"{uid[:80]}" is no UID')
        with locked(self._lock, _LOCK_SECONDS):
            self._cdi.remove(uid)
            self.checkpoint.remove(uid)

    def cdi_ids(self, claim: PreparedClaim, device: PreparedDevice) -> list[str]:
        """Return the names by which the runtime finds a prepared device."""
        return [device_id(self.driver, claim.uid, device.name)]

    def _results(
        self, claim: ResourceClaim | None, namespace: str, name: str, uid: str
    ) -> list[AllocatedDevice]:
        """Return what a claim was given of this driver's devices."""
        if claim is None:
            raise PrepareError(f"claim {namespace}/{name} does not exist")
        if claim.metadata.uid != uid:
            raise PrepareError(
                f"claim {namespace}/{name} is another one by now: its UID is {claim.metadata.uid}"
            )
        if claim.status.allocation is None:
            raise PrepareError(f"claim {namespace}/{name} is not allocated")
        results = [
            one for one in claim.status.allocation.devices.results if one.driver == self.driver
        ]
        if not results:
            raise PrepareError(f"claim {namespace}/{name} has no device of {self.driver}")
        foreign = [one for one in results if one.pool != self.node]
        if foreign:
            raise PrepareError(
                f"device {foreign[0].device} is of pool {foreign[0].pool}, this is {self.node}"
            )
        return results

    def _made(
        self,
        claim: ResourceClaim,
        uid: str,
        results: Sequence[AllocatedDevice],
        inventory: Inventory,
    ) -> PreparedClaim:
        found: list[tuple[NodeDevice, frozenset[str]]] = []
        devices = []
        for name in dict.fromkeys(one.device for one in results):
            device = inventory.devices.get(name)
            if device is None:
                raise PrepareError(f"device {name} is not on this node (any more)")
            own = [one for one in results if one.device == name]
            requests = tuple(dict.fromkeys(one.request.partition("/")[0] for one in own))
            found.append((device, frozenset(requests)))
            admin = all(bool(one.admin_access) for one in own)
            share = next((one.share_id for one in own if one.share_id), "")
            devices.append(PreparedDevice(name, requests, admin, share))
        config = config_of(self._parameters(claim, {r for d in devices for r in d.requests}))
        common = common_edits(inventory.machine, found, config, self._topology_file)
        per_device = {one.name: self._files.of(one, inventory.machine) for one, _ in found}
        text = spec_text(self.driver, uid, common, per_device)
        meta = claim.metadata
        return PreparedClaim(uid, meta.namespace, meta.name, self.node, tuple(devices), text)

    def _parameters(self, claim: ResourceClaim, requests: set[str]) -> list[object]:
        """Return this driver's opaque parameters, those of classes before those of the claim."""
        assert claim.status.allocation is not None
        own = [
            one
            for one in claim.status.allocation.devices.config
            if one.opaque is not None
            and one.opaque.driver == self.driver
            and (not one.requests or requests & {r.partition("/")[0] for r in one.requests})
        ]
        own.sort(key=lambda one: one.source != "FromClass")
        return [one.opaque.parameters for one in own if one.opaque is not None]


def _refuse_taken(
    made: PreparedClaim, prepared: dict[str, PreparedClaim], inventory: Inventory
) -> None:
    """Refuse devices that another claim has, or has a part of."""
    mine = [device for device in made.devices if not device.admin]
    for other in prepared.values():
        for device in (one for one in other.devices if not one.admin):
            for own in mine:
                if _collide(own, device, inventory):
                    raise PrepareError(
                        f"device {own.name} is prepared for claim {other.namespace}/{other.name} "
                        f"({other.uid}), which has {device.name}"
                    )


def _collide(one: PreparedDevice, other: PreparedDevice, inventory: Inventory) -> bool:
    if one.name == other.name:
        device = inventory.devices.get(one.name)
        return device is None or not device.device.allow_multiple_allocations
    mine, theirs = inventory.devices.get(one.name), inventory.devices.get(other.name)
    if mine is None or theirs is None or mine.gpu is None or mine.gpu != theirs.gpu:
        return False
    return mine.mig is None or theirs.mig is None
