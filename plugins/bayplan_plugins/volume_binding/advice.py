"""What would let a node serve a pod's volumes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bayplan import NodeView, PodInfo, Remedy
from bayplan.api import StorageClass
from bayplan.api.volumes import STORAGE, class_of, default_class, is_bound
from bayplan.errors import did_you_mean
from bayplan.snapshot import Snapshot
from bayplan_plugins.shared.volumes.lookup import claim_of, missing_claims, used_by
from bayplan_plugins.volume_binding.finder import (
    AFFINITY,
    NO_STORAGE,
    NO_VOLUMES,
    PodVolumes,
    VolumeFinder,
)

__all__ = ["advice", "wrong_claims"]

_MOST_NODES = 64


def advice(finder: VolumeFinder, volumes: PodVolumes, nodes: NodeView) -> Iterator[Remedy]:
    """Yield remedies for nodes that are refused for a single reason, up to 64 per reason."""
    refused = list(finder.refused(volumes))
    reasons = np.zeros(len(nodes.table), dtype=np.int64)
    for _, mask in refused:
        reasons += mask
    for reason, mask in refused:
        alone = nodes.pick(mask & (reasons == 1))
        for row in map(nodes.row_at, np.flatnonzero(alone)[:_MOST_NODES].tolist()):
            text = _text(finder, volumes, reason, row)
            if text:
                cost = 1.0 if reason == NO_STORAGE else 3.0
                yield Remedy(f"would fit on {nodes.table.names[row]} {text}", row, cost)


def wrong_claims(pod: PodInfo, snapshot: Snapshot) -> Iterator[Remedy]:
    """Suggest what a pod's claims lack, if no node can serve them."""
    yield from missing_claims(pod, snapshot)
    classes = snapshot.objects(StorageClass)
    for used in used_by(pod):
        claim = claim_of(pod, used, snapshot)
        if claim is None or is_bound(claim):
            continue
        name, wanted = f"PersistentVolumeClaim {claim.key}", class_of(claim)
        if claim.metadata.deletion_timestamp is not None:
            text = f"{name} was not being deleted"
        elif claim.status.phase == "Lost":
            text = f"PersistentVolume {claim.spec.volume_name} of {name} was there"
        elif wanted and wanted not in classes:
            near = did_you_mean(wanted, classes)
            text = f'StorageClass "{wanted}" of {name} existed{near}'
        elif not wanted and default_class(classes.values()) is None:
            text = f"{name} named a StorageClass, or the cluster had a default one"
        else:
            text = f"{name} was bound to a volume"
        yield Remedy(f"would be tried again if {text}", None, 1.0)


def _text(finder: VolumeFinder, volumes: PodVolumes, reason: str, row: int) -> str:
    """Return what would let a node serve the claims; "" if no small change would."""
    if reason == AFFINITY:
        far = [v.metadata.name for _, v in volumes.bound if v and not finder.reached(v)[row]]
        return f"if volume {' and '.join(far)} could be reached from there"
    lacking = finder.lacking_on(volumes, row)
    if any(one.selected or one.kept for one in lacking):
        return ""
    wanted = " and ".join(
        f"{one.claim.spec.resources.requests[STORAGE].text} of class {one.needs.storage_class}"
        for one in lacking
    )
    if reason == NO_STORAGE:
        return f"if storage of {wanted} were free there"
    return f"with a persistent volume of {wanted} there" if reason == NO_VOLUMES else ""
