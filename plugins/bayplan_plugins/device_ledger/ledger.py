"""The ledger of devices: follows the snapshot and keeps the sources of truth in step.

- :mod:`.node_devices`: which devices each node can use.
- :mod:`.allocated_devices`: what the API says is allocated.
- :mod:`.in_flight`: what this scheduler decided and the API does not show yet.
- :mod:`.trial_holds`: what trials free, and what nominated pods hold.
- :mod:`.device_usage`: the sum of all of them, which the allocator reads.
"""

from __future__ import annotations

import logging

from bayplan import PodInfo
from bayplan.api import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from bayplan.api.configmap import ConfigMap
from bayplan.api.dra import EXTENDED_RESOURCE_CLAIM
from bayplan.dialects.fabric import DEVICE_INFO, FabricModels, read_models
from bayplan.snapshot import Snapshot
from bayplan_dra.allocator import HeldDevice, allocated_ids
from bayplan_plugins.device_ledger.allocated_devices import AllocatedDevices
from bayplan_plugins.device_ledger.claim_specs import ClaimSpecs
from bayplan_plugins.device_ledger.device_classes import DeviceClasses
from bayplan_plugins.device_ledger.device_usage import DeviceUsage
from bayplan_plugins.device_ledger.extended_claims import ExtendedClaims, extended_uid
from bayplan_plugins.device_ledger.in_flight import InFlightAllocation, InFlightAllocations
from bayplan_plugins.device_ledger.node_devices import NodeDevices
from bayplan_plugins.device_ledger.trial_holds import TrialHolds

__all__ = ["DeviceLedger"]

_log = logging.getLogger("bayplan.plugins")


class DeviceLedger:
    """The devices of a cluster and who holds them. All profiles of a scheduler share one."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.devices = NodeDevices(snapshot)
        self.usage = DeviceUsage(self.devices.touch_holders)
        self.state = self.usage.state
        self.classes = DeviceClasses(snapshot, self.devices.features)
        self.specs = ClaimSpecs(self.classes, self.devices.features)
        self.extended = ExtendedClaims(self.classes, self.devices.features)
        self.allocated = AllocatedDevices()
        self.in_flight = InFlightAllocations(self.usage)
        self.trial_holds = TrialHolds(self.usage)
        self._out: set[str] = set()
        """The pods, by uid, that a trial took out."""
        self._taken_back: dict[str, list[str]] = {}
        """Pods, by uid, that a trial put back, and the claims whose freed devices they took."""
        for type_, listener in (
            (ResourceSlice, self.devices.on_slice),
            (DeviceTaintRule, self.devices.on_rule),
            (DeviceClass, self._on_class),
            (ResourceClaim, self._on_claim),
            (ConfigMap, self._on_config_map),
        ):
            snapshot.on_object(type_, listener)  # type: ignore[arg-type]
            for obj in snapshot.objects(type_).values():
                listener(None, obj)  # type: ignore[arg-type]
        snapshot.on_pod(self._on_pod)
        for pod, node in snapshot.placed.values():
            self._on_pod(pod, node, True)

    # Decisions -------------------------------------------------------------------------------

    def decide(self, allocation: InFlightAllocation, pod: PodInfo) -> None:
        """Record what was decided for a pod; it replaces what the pod held as a nominated one."""
        self.trial_holds.withdraw(pod.uid)
        self.in_flight.add(allocation, pod)

    def holders(self) -> list[tuple[str, list[HeldDevice]]]:
        """Return the claims that hold devices, by key, with what they hold."""
        return [
            (claim.key, held)
            for claim in self._snapshot.objects(ResourceClaim).values()
            if (held := self.allocated.held(claim.metadata.uid))
        ]

    # Classes and claims ----------------------------------------------------------------------

    def _on_class(self, old: DeviceClass | None, new: DeviceClass | None) -> None:
        self.classes.on_class(old, new)
        self.specs.forget_prepared()
        self.devices.forget_tables()

    def _on_config_map(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        """Read the models of a fabric; those of a text that cannot be read are not known."""
        models: dict[str, FabricModels | None] = {}
        for one in (old, new):
            if one is not None and DEVICE_INFO in one.data:
                models[one.key] = None
        if new is not None and new.key in models and DEVICE_INFO in new.data:
            try:
                models[new.key] = read_models(new)
            except ValueError as exc:
                _log.warning("ConfigMap %s: %s", new.key, exc)
        for key, own in models.items():
            if self.devices.hosts.describe(key, own):
                self.devices.forget_tables()

    def _on_claim(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._on_claim_gone(old.metadata.uid)
        if new is None:
            return
        uid = new.metadata.uid
        self.allocated.note(new)
        held = allocated_ids(new)
        self._land_extended(new)
        allocation = self.in_flight.get(uid)
        if allocation is not None and new.status.allocation is not None:
            self.in_flight.land(uid)
            if allocation.held == held:
                # The API shows what was decided: the devices are counted already.
                self._give_back(uid)
                self.allocated.set_held(uid, held)
                return
            self.usage.release(allocation.held)
        before = self.allocated.held(uid)
        if held != before:
            self._give_back(uid)
            self.allocated.set_held(uid, held)
            self.usage.hold(held)

    def _give_back(self, uid: str) -> None:
        """Stop counting what a claim held."""
        before = self.allocated.held(uid)
        if not self.trial_holds.is_freed(uid):
            self.usage.release(before)
        self.trial_holds.forget_freed(uid)
        self.usage.note_freed(before)

    def _land_extended(self, claim: ResourceClaim) -> None:
        """Drop the decision for a pod's extended resources once the API shows its claim."""
        if EXTENDED_RESOURCE_CLAIM in claim.metadata.annotations and claim.status.allocation:
            for owner in claim.metadata.owner_references:
                self.in_flight.drop(extended_uid(owner.uid))

    def _on_claim_gone(self, uid: str) -> None:
        held = self.allocated.forget(uid)
        if not self.trial_holds.is_freed(uid):
            self.usage.release(held)
            self.usage.note_freed(held)
        self.trial_holds.forget_freed(uid)
        self.in_flight.drop(uid)
        self.specs.forget(uid)

    # Pods ------------------------------------------------------------------------------------

    def _takes_back(self, claim: str, node: str) -> bool:
        """Tell whether a pod of a freed claim uses its devices again, now that it is on a node.

        On another node it cannot: they stay free, and the claim is allocated again there.
        """
        if not self.trial_holds.is_freed(claim) or self.in_flight.get(claim) is not None:
            return False
        return self._snapshot.undoing or self.allocated.reaches(
            claim, self._snapshot.row(node).node
        )

    def _on_pod(self, pod: PodInfo, node: str, placed: bool) -> None:
        if not pod.facts.wants_devices:
            return
        uid = pod.uid
        if placed:
            claims = self.allocated.claims_of(uid)
            freed = [claim for claim in claims if self._takes_back(claim, node)]
            if uid in self._out:
                self._out.discard(uid)
                if not self._snapshot.undoing:
                    self._taken_back[uid] = freed
            for claim in freed:
                self.trial_holds.undo_free(claim, self.allocated.held(claim))
            if not pod.spec.node_name and not claims and not self.in_flight.concern(uid):
                self.trial_holds.nominate(uid, node)
            return
        self.trial_holds.withdraw(uid)
        if self._snapshot.undoing:
            # A claim that is allocated keeps its devices, wherever its pod was tried.
            if uid in self._taken_back:
                self._out.add(uid)
            for claim in self._taken_back.pop(uid, ()):
                self.trial_holds.free(claim, self.allocated.held(claim))
        elif self._snapshot.in_trial:
            self._out.add(uid)
            for claim in self.allocated.freed_without(uid, self._out):
                self.trial_holds.free(claim, self.allocated.held(claim))
        else:
            # The claim for extended resources may have no object yet, so no deletion would be seen.
            extended = extended_uid(uid)
            self.in_flight.drop(extended)
            self.specs.forget(extended)
