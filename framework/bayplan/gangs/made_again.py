"""Whether the pods of a gang that are gone are made again, by what owns them."""

from __future__ import annotations

import msgspec

from bayplan.api import KINDS, Pod, kind_of
from bayplan.api.gang import OwnedPart
from bayplan.api.meta import OwnerReference
from bayplan.gangs.owned import OwnedGangs
from bayplan.kinds import KINDS_OF_WORKLOADS, is_made_again, roles_of
from bayplan.snapshot import Snapshot

__all__ = ["maker_of", "pods_made_again"]


def maker_of(pod: Pod, snapshot: Snapshot) -> OwnedPart | None:
    """Return what makes a pod of a group that somebody wrote, None where nothing is known to.

    Of its owners that is the highest one with a row in the table of kinds, or the part of it that
    would be a gang if nobody had written a group.
    """
    if not any(one.controller for one in pod.metadata.owner_references):
        return None
    owned = OwnedGangs(snapshot)
    gang = owned.member(pod).gang
    if gang is not None:
        return gang.owner
    for owner in reversed(owned.chain(pod).owners):
        kind, meta = kind_of(owner), owner.metadata
        if (kind.group, kind.name) in KINDS_OF_WORKLOADS:
            version = "/".join(filter(None, (kind.group, kind.versions[0])))
            return OwnedPart(OwnerReference(kind.name, meta.name, meta.uid, version))
    return None


def pods_made_again(made_by: OwnedPart, namespace: str, snapshot: Snapshot) -> int:
    """Return how many pods an owner, or a part of it, sees to; 0 if it makes none again."""
    key = made_by.owner.api_version.rpartition("/")[0], made_by.owner.kind
    row, kind = KINDS_OF_WORKLOADS.get(key), KINDS.get(key)
    if row is None or kind is None:
        return 0
    obj = snapshot.objects(kind.type).get(f"{namespace}/{made_by.owner.name}")
    meta = obj.metadata if obj is not None else None
    if meta is None or meta.uid != made_by.owner.uid or meta.deletion_timestamp is not None:
        return 0
    content = msgspec.to_builtins(obj, enc_hook=lambda quantity: quantity.text)
    if not is_made_again(row, content, made_by.number):
        return 0
    try:
        return sum(one.count for one in roles_of(row, content))
    except ValueError:
        return 0
