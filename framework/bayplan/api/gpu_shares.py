"""Shares of GPUs and other accelerators, in one vocabulary for every vendor adapter.

Compute is counted in thousandths of a GPU, memory in bytes. A *slot* is the right of one container
to use a GPU; a GPU with one slot is not shared.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

__all__ = ["MEBIBYTE", "WHOLE", "GpuUse", "OfferedGpu", "Partition", "PartitionProfile", "Share"]

WHOLE = 1000
"""The compute of a whole GPU."""
MEBIBYTE = 1 << 20


class PartitionProfile(msgspec.Struct, frozen=True):
    """A kind of partition that a GPU can be divided into, such as MIG's ``2g.10gb``.

    ``slices`` are the compute slices that it takes; ``starts`` the memory slices at which it may
    begin, each time for ``size`` memory slices. ``memory`` is in bytes, ``compute`` in thousandths
    of the GPU, ``most`` how many of them one GPU can hold (0: no limit but the slices).
    """

    name: str
    memory: int
    compute: int
    slices: int
    starts: tuple[int, ...]
    size: int
    most: int = 0


class Partition(msgspec.Struct, frozen=True, order=True):
    """A partition of a GPU: its profile by name, and the memory slices that it takes."""

    profile: str
    start: int
    size: int


class OfferedGpu(msgspec.Struct, frozen=True, gc=False):
    """A GPU of a node as it is offered to pods.

    ``index`` is its place on the node (the minor of its device file), unique among all
    devices there. ``kind`` is "gpu", or the kind of another device, such as "rdma", that offers
    neither compute nor memory. ``compute`` and ``memory`` are what may be given out in all: more
    than the GPU has where an adapter oversubscribes it; ``memory`` is 0 where it is not known.
    ``mode`` is how it is shared ("" for the adapter's default, else such as "hami-core", "mig" or
    "mps"); ``profiles`` are the partitions that it can be divided into. ``detail`` is whatever else
    its adapter knows about it.
    """

    index: int
    uuid: str = ""
    model: str = ""
    compute: int = WHOLE
    memory: int = 0
    slots: int = 1
    numa: int | None = None
    healthy: bool = True
    cordoned: bool = False
    mode: str = ""
    profiles: tuple[PartitionProfile, ...] = ()
    kind: str = "gpu"
    detail: Hashable = None

    @property
    def usable(self) -> bool:
        """Whether pods may be given the GPU now."""
        return self.healthy and not self.cordoned


class Share(msgspec.Struct, frozen=True, gc=False):
    """What one container (or a pod as a whole) holds of one GPU.

    ``container`` counts init containers first, then containers; -1 stands for the whole pod.
    ``detail`` is whatever else its adapter gave with it, such as virtual functions.
    """

    gpu: int
    compute: int
    memory: int = 0
    slots: int = 1
    container: int = -1
    partition: Partition | None = None
    detail: Hashable = None


class GpuUse(msgspec.Struct, frozen=True, gc=False):
    """What is taken of one GPU, by all shares together; ``details`` are theirs, in any order."""

    compute: int = 0
    memory: int = 0
    slots: int = 0
    partitions: tuple[Partition, ...] = ()
    details: tuple[Hashable, ...] = ()

    def plus(self, share: Share) -> GpuUse:
        """Return the use with one share more."""
        own = (share.partition,) if share.partition is not None else ()
        detail = (share.detail,) if share.detail is not None else ()
        return GpuUse(
            self.compute + share.compute,
            self.memory + share.memory,
            self.slots + share.slots,
            tuple(sorted((*self.partitions, *own))),
            (*self.details, *detail),
        )

    @property
    def idle(self) -> bool:
        """Whether nobody uses the GPU."""
        return not (self.compute or self.memory or self.slots)
