"""VolumeZone: a bound volume with zone or region labels can be used only from there."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

import msgspec
import numpy as np

from bayplan import (
    SKIP,
    Args,
    ClusterEvent,
    NodeView,
    Plugin,
    PodInfo,
    Reads,
    Reject,
    Remedy,
    hookimpl,
)
from bayplan.api import PersistentVolume, PersistentVolumeClaim, StorageClass
from bayplan.api.volumes import class_of
from bayplan.plugin.hookspecs import BoolColumn
from bayplan_plugins.shared.volumes.lookup import claim_of, is_delayed, not_found, used_by

__all__ = ["VolumeZone"]

_REASON = "node(s) had no available volume zone"
_ZONE = "topology.kubernetes.io/zone"
_REGION = "topology.kubernetes.io/region"
_KEYS = {
    "failure-domain.beta.kubernetes.io/zone": _ZONE,
    "failure-domain.beta.kubernetes.io/region": _REGION,
    _ZONE: _ZONE,
    _REGION: _REGION,
}
"""The labels of volumes, and their current names."""
_SEPARATOR = "__"


class _ZoneLabel(msgspec.Struct, frozen=True):
    """A zone or region label of a volume: where it can be used."""

    volume: str
    key: str
    values: frozenset[str]


class VolumeZone(Plugin[Args]):
    """Refuse nodes in other zones or regions than the pod's volumes.

    Nodes without any such label fit: a cluster of one zone needs none.
    """

    reads = Reads.NODE
    requeue_on = ClusterEvent.NODE_ADDED | ClusterEvent.NODE_LABELS | ClusterEvent.OBJECT_CHANGED

    @hookimpl
    def concerns(self, pod: PodInfo) -> bool:
        """Concern pods with volumes that are claims."""
        return pod.facts.uses_claims

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by where the volumes are."""
        if not pod.facts.uses_claims:
            return None
        found = self._zones(pod)
        return found if isinstance(found, str) else frozenset((w.key, w.values) for w in found)

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> object:
        """Skip pods without labelled volumes."""
        if not pod.facts.uses_claims:
            return SKIP
        found = self._zones(pod)
        if isinstance(found, str):
            return found
        return None if found else SKIP

    def _zones(self, pod: PodInfo) -> list[_ZoneLabel] | str:
        """Return where the pod's volumes are, or why that is not known."""
        found: list[_ZoneLabel] = []
        volumes = self.handle.snapshot.objects(PersistentVolume)
        for used in used_by(pod):
            if used.ephemeral:
                continue
            claim = claim_of(pod, used, self.handle.snapshot)
            if claim is None:
                return not_found("persistentvolumeclaim", used.name)
            if not claim.spec.volume_name:
                problem = self._unbound(claim)
                if problem:
                    return problem
                continue
            volume = volumes.get(claim.spec.volume_name)
            if volume is None:
                return not_found("persistentvolume", claim.spec.volume_name)
            found += _labels_of(volume)
        return found

    def _unbound(self, claim: PersistentVolumeClaim) -> str:
        """Return what is wrong with a claim without a volume; "" if it gets one with the node."""
        name = class_of(claim)
        if not name:
            return "PersistentVolumeClaim had no pv name and storageClass name"
        if name not in self.handle.snapshot.objects(StorageClass):
            return not_found("storageclass.storage.k8s.io", name)
        delayed = is_delayed(claim, self.handle.snapshot)
        return "" if delayed else "PersistentVolume had no name"

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse labelled nodes where a label of a volume differs."""
        found = self._zones(pod)
        assert not isinstance(found, str), "pre_filter has refused the pod"
        yield Reject(_elsewhere(found, nodes), _REASON, resolvable=False)

    @hookimpl
    def remedies(self, pod: PodInfo, nodes: NodeView) -> Iterable[Remedy]:
        """Suggest the zone or region in which a node would have to be."""
        found = self._zones(pod)
        if isinstance(found, str):
            return
        masks = [_elsewhere([one], nodes) for one in found]
        for place in np.flatnonzero(_elsewhere(found, nodes)).tolist():
            row = nodes.row_at(place)
            away = [one for one, mask in zip(found, masks, strict=True) if mask[place]]
            places = dict.fromkeys(
                f"{_KEYS[one.key].rpartition('/')[2]} {' or '.join(sorted(one.values))}"
                for one in away
            )
            volumes = dict.fromkeys(one.volume for one in away)
            name = nodes.table.names[row]
            text = f"would fit on {name} if that node were in {' and '.join(places)}"
            yield Remedy(f"{text}, as volume {' and '.join(volumes)} is", row, cost=4.0)


def _labels_of(volume: PersistentVolume) -> Iterator[_ZoneLabel]:
    for key in _KEYS:
        text = volume.metadata.labels.get(key)
        values = frozenset(text.split(_SEPARATOR)) if text is not None else frozenset(("",))
        # As in Kubernetes, a malformed label does not count.
        if "" not in values:
            yield _ZoneLabel(volume.metadata.name, key, values)


def _elsewhere(found: Iterable[_ZoneLabel], nodes: NodeView) -> BoolColumn:
    labelled = np.zeros(len(nodes), dtype=np.bool_)
    for key in _KEYS:
        labelled |= nodes.has_label(key)
    fits = np.ones(len(nodes), dtype=np.bool_)
    for one in found:
        older = ~nodes.has_label(one.key) & nodes.label_in(_KEYS[one.key], one.values)
        fits &= nodes.label_in(one.key, one.values) | older
    return labelled & ~fits
