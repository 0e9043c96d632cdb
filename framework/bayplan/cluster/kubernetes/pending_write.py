"""A write that the API server has not answered, and the object that it is about."""

from __future__ import annotations

import msgspec

from bayplan.api.object_key import object_key
from bayplan.cluster.protocol import (
    Bind,
    BindVolume,
    CreateObject,
    DeleteObject,
    Done,
    Evict,
    PatchAnnotations,
    PatchFields,
    PatchPodStatus,
    PatchStatus,
    ReleaseClaim,
    ReserveClaim,
    SelectNode,
    Write,
)

__all__ = ["PendingWrite", "Subject", "merged", "name_of", "subject_of"]

Subject = tuple[str, str]
"""The kind and the key of an object."""


class PendingWrite(msgspec.Struct, eq=False):
    """A pending write; ``sent`` says that an attempt may have been carried out."""

    write: Write
    done: Done | None
    attempts: int = 0
    sent: bool = False


def merged(last: PatchAnnotations, new: PatchAnnotations) -> PatchAnnotations:
    """Return one write that sets what two of the same object set, one after the other."""
    return PatchAnnotations(new.type, new.key, {**last.annotations, **new.annotations})


def subject_of(write: Write) -> Subject | None:
    """Return the object that a write is about, None when its order does not matter."""
    if isinstance(write, Bind | Evict | PatchPodStatus):
        return "Pod", write.pod
    if isinstance(write, ReserveClaim | ReleaseClaim):
        return "ResourceClaim", write.claim
    if isinstance(write, BindVolume | SelectNode):
        return "PersistentVolumeClaim", write.claim
    if isinstance(write, PatchStatus | PatchFields | DeleteObject):
        return write.type.__name__, write.key
    if isinstance(write, CreateObject):
        # What is written of an object next has to find it.
        return type(write.obj).__name__, object_key(write.obj)
    if isinstance(write, PatchAnnotations):
        # Apart from the status, which neither replaces them nor has to wait for them.
        return f"{write.type.__name__} metadata", write.key
    return None


def name_of(write: Write) -> tuple[str, str]:
    """Return what a write is and the key of its object, for a log."""
    subject = subject_of(write)
    name = subject[1] if subject is not None else getattr(write, "pod", "")
    return type(write).__name__, name
