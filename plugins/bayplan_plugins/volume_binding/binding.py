"""The wait until the claims of a pod are bound."""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.api import PersistentVolume, PersistentVolumeClaim
from bayplan.api.volumes import SELECTED_NODE, is_bound, is_kept_for
from bayplan.snapshot import Snapshot
from bayplan_plugins.volume_binding.finder import VolumeFinder
from bayplan_plugins.volume_binding.ledger import VolumeChoice

__all__ = ["ClaimBinding"]


class ClaimBinding:
    """What was decided for the claims of one pod, while it is written to the API.

    An object that has not changed since the decision does not show yet what was written.
    """

    def __init__(
        self, snapshot: Snapshot, finder: VolumeFinder, node: str, choices: Sequence[VolumeChoice]
    ) -> None:
        self._snapshot = snapshot
        self._finder = finder
        self._node = node
        self._choices = choices
        self._cached: dict[
            str, tuple[PersistentVolumeClaim, PersistentVolume | None, bool | str]
        ] = {}
        volumes = snapshot.objects(PersistentVolume)
        self._before = {c.volume: _version(volumes.get(c.volume)) for c in choices if c.volume}

    @property
    def follows(self) -> frozenset[tuple[type, str]]:
        """The claims, and the volumes that were chosen, by type and key.

        A volume that is being provisioned names its claim.
        """
        claims = {(PersistentVolumeClaim, choice.claim.key) for choice in self._choices}
        volumes = {(PersistentVolume, choice.volume) for choice in self._choices if choice.volume}
        return frozenset[tuple[type, str]](claims | volumes)

    def is_complete(self) -> bool | str:
        """Tell whether all claims are bound; a text says what went wrong."""
        states = [self._state(choice) for choice in self._choices]
        wrong = next((state for state in states if isinstance(state, str)), None)
        return f"binding volumes: {wrong}" if wrong is not None else all(states)

    def _state(self, choice: VolumeChoice) -> bool | str:
        claim = self._snapshot.objects(PersistentVolumeClaim).get(choice.claim.key)
        if claim is None or claim.metadata.uid != choice.claim.metadata.uid:
            return f'persistentvolumeclaim "{choice.claim.metadata.name}" is gone'
        name = choice.volume or claim.spec.volume_name
        volume = self._snapshot.objects(PersistentVolume).get(name)
        cached = self._cached.get(choice.claim.key)
        if cached is not None and cached[0] is claim and cached[1] is volume:
            # Large gangs ask after every change, and few changes concern this claim.
            return cached[2]
        state = self._judge(choice, claim, volume)
        self._cached[choice.claim.key] = (claim, volume, state)
        return state

    def _judge(
        self, choice: VolumeChoice, claim: PersistentVolumeClaim, volume: PersistentVolume | None
    ) -> bool | str:
        if choice.volume:
            wrong = self._taken(choice, claim, volume)
        else:
            wrong = self._made(choice, claim)
        if not wrong and volume is not None and not self._is_reached(volume):
            pv = volume.metadata.name
            wrong = f'pv "{pv}" node affinity doesn\'t match node "{self._node}"'
        return wrong or (is_bound(claim) and volume is not None)

    def _taken(
        self, choice: VolumeChoice, claim: PersistentVolumeClaim, volume: PersistentVolume | None
    ) -> str:
        """Return what is wrong with a volume that was chosen; "" for nothing."""
        if volume is None:
            return f'persistentvolume "{choice.volume}" is gone'
        if is_bound(claim) and claim.spec.volume_name != choice.volume:
            return f'PVC "{claim.metadata.name}" is bound to pv "{claim.spec.volume_name}"'
        if not is_kept_for(volume, claim) and _version(volume) != self._before[choice.volume]:
            return f'ClaimRef got reset for pv "{choice.volume}"'
        return ""

    def _made(self, choice: VolumeChoice, claim: PersistentVolumeClaim) -> str:
        """Return what is wrong with a volume that is being provisioned; "" for nothing."""
        selected = claim.metadata.annotations.get(SELECTED_NODE)
        known = choice.claim.metadata
        if selected != choice.node and claim.metadata.resource_version != known.resource_version:
            return f'provisioning failed for PVC "{claim.metadata.name}"'
        return ""

    def _is_reached(self, volume: PersistentVolume) -> bool:
        row = self._snapshot.nodes.row_of.get(self._node)
        return row is None or bool(self._finder.reached(volume)[row])


def _version(volume: PersistentVolume | None) -> str:
    return volume.metadata.resource_version if volume is not None else ""
