"""Whether the pods of a gang that are gone are made again, by what owns them."""

from __future__ import annotations

import msgspec

from bayplan.api import KINDS
from bayplan.api.gang import Gang
from bayplan.kinds import KINDS_OF_WORKLOADS, is_made_again, roles_of
from bayplan.snapshot import Snapshot

__all__ = ["pods_made_again"]


def pods_made_again(gang: Gang, snapshot: Snapshot) -> int:
    """Return how many pods a gang's owner sees to; 0 where it makes none again, or is gone."""
    made_by = gang.owner
    if made_by is None:
        return 0
    key = made_by.owner.api_version.rpartition("/")[0], made_by.owner.kind
    row, kind = KINDS_OF_WORKLOADS.get(key), KINDS.get(key)
    if row is None or kind is None:
        return 0
    obj = snapshot.objects(kind.type).get(f"{gang.key.partition('/')[0]}/{made_by.owner.name}")
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
