"""The GPUs of one node, and what its pods hold of them."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from bayplan import PodInfo
from bayplan.api.gpu_shares import WHOLE, GpuUse, OfferedGpu, Partition, Share
from bayplan_plugins.gpus.vendors.adapter import GpusInUse, VendorAdapter
from bayplan_plugins.gpus.vendors.plain import whole_share
from bayplan_plugins.gpus.whole_gpus import WholeGpus
from bayplan_plugins.shared.node_codes import NO_CODE

__all__ = ["NodeGpus"]


@dataclass
class NodeGpus:
    """The GPUs of one node, what pods hold of them by uid, and what is taken of each.

    ``adapter`` describes the GPUs, None where only the machine is known; ``code`` is its number
    in the ledger. ``whole`` looks at the same holders GPU by GPU, None where the machine is not
    known or the adapter chooses whole GPUs itself. ``position`` is each GPU's place in ``gpus``
    by its index; ``compute``, ``memory`` and ``slots`` are sums over all shares. ``unsettled`` are
    pods whose shares are not known yet, ``guessed`` those whose shares are stated nowhere.
    ``version`` is another one after every change of what is held. ``changed`` are the places whose
    sums changed since the columns of all GPUs showed them.
    """

    adapter: VendorAdapter | None = None
    code: int = NO_CODE
    gpus: tuple[OfferedGpu, ...] = ()
    whole: WholeGpus | None = None
    held: dict[str, tuple[Share, ...]] = field(default_factory=dict)
    guessed: set[str] = field(default_factory=set)
    unsettled: dict[str, PodInfo] = field(default_factory=dict)
    version: int = 0
    position: dict[int, int] = field(init=False)
    compute: list[int] = field(init=False)
    memory: list[int] = field(init=False)
    slots: list[int] = field(init=False)
    changed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.position = {gpu.index: place for place, gpu in enumerate(self.gpus)}
        zeros = [0] * len(self.gpus)
        self.compute, self.memory, self.slots = zeros, zeros.copy(), zeros.copy()

    def assign(self, uid: str, shares: tuple[Share, ...] | None, guessed: bool = False) -> None:
        """Change what a pod, by uid, holds; None for nothing."""
        self.count(self.held.get(uid, ()), -1)
        self.guessed.discard(uid)
        if shares is None:
            self.held.pop(uid, None)
            return
        self.held[uid] = shares
        self.count(shares, 1)
        if guessed:
            self.guessed.add(uid)

    def gpus_of(self, uid: str) -> tuple[int, ...]:
        """Return the GPUs by index of which a pod, by uid, holds anything."""
        return tuple(share.gpu for share in self.held.get(uid, ()))

    def whole_shares(self, gpus: Iterable[int]) -> tuple[Share, ...]:
        """Return the shares that are all of certain GPUs, by index."""
        places = ((gpu, self.position.get(gpu)) for gpu in gpus)
        return tuple(
            Share(gpu, WHOLE) if place is None else whole_share(self.gpus[place])
            for gpu, place in places
        )

    def count(self, shares: Sequence[Share], sign: int) -> None:
        """Add shares to the sums, or take them away; those of GPUs that are gone do not count."""
        for share in shares:
            place = self.position.get(share.gpu)
            if place is not None:
                self.changed.add(place)
                self.compute[place] += sign * share.compute
                self.memory[place] += sign * share.memory
                self.slots[place] += sign * share.slots

    def idle_gpu(self, but: str = "") -> GpusInUse | None:
        """Return the first usable GPU that nobody uses but one pod, by uid; None without one."""
        own = self.held.get(but, ())
        self.count(own, -1)
        sums = zip(self.gpus, self.compute, self.memory, self.slots, strict=True)
        found = None
        for gpu, compute, memory, slots in sums:
            if not (compute or memory or slots) and gpu.usable:
                found = gpu
                break
        self.count(own, 1)
        return GpusInUse((found,), (GpuUse(),)) if found is not None else None

    def partitions(self, but: str = "") -> list[list[Partition]]:
        """Return the partitions of each GPU that pods hold, except those of a pod by uid."""
        found: list[list[Partition]] = [[] for _ in self.gpus]
        for uid, shares in self.held.items():
            for share in shares if uid != but else ():
                if share.partition is not None and share.gpu in self.position:
                    found[self.position[share.gpu]].append(share.partition)
        return found

    def details(self, but: str = "") -> list[list[Hashable]]:
        """Return the details of the shares of each GPU, except those of a pod by uid."""
        found: list[list[Hashable]] = [[] for _ in self.gpus]
        for uid, shares in self.held.items():
            for share in shares if uid != but else ():
                if share.detail is not None and share.gpu in self.position:
                    found[self.position[share.gpu]].append(share.detail)
        return found

    def state_of(self, place: int, but: str = "") -> GpusInUse:
        """Return one GPU, by its place, and its use, without that of the pod ``but``, by uid."""
        gpu = self.gpus[place]
        compute, memory, slots = self.compute[place], self.memory[place], self.slots[place]
        parts: list[Partition] = []
        details: list[Hashable] = []
        for uid, shares in self.held.items():
            for share in shares:
                if share.gpu != gpu.index:
                    continue
                if uid == but:
                    compute -= share.compute
                    memory -= share.memory
                    slots -= share.slots
                    continue
                if share.partition is not None:
                    parts.append(share.partition)
                if share.detail is not None:
                    details.append(share.detail)
        use = GpuUse(compute, memory, slots, tuple(sorted(parts)), tuple(details))
        return GpusInUse((gpu,), (use,))

    def state(self, but: str = "") -> GpusInUse:
        """Return the GPUs and their use, without that of the pod ``but``, by uid."""
        own = self.held.get(but, ())
        self.count(own, -1)
        if any(map(_says_more, itertools.chain.from_iterable(self.held.values()))):
            parts, details = self.partitions(but), self.details(but)
            sums = zip(self.compute, self.memory, self.slots, parts, details, strict=True)
            used = tuple(
                GpuUse(compute, memory, slots, tuple(sorted(own_parts)), tuple(own_details))
                for compute, memory, slots, own_parts, own_details in sums
            )
        else:
            # Most nodes: nothing but amounts.
            used = tuple(map(GpuUse, self.compute, self.memory, self.slots))
        self.count(own, 1)
        return GpusInUse(self.gpus, used)


def _says_more(share: Share) -> bool:
    """Tell whether a share is more than amounts of its GPU."""
    return share.partition is not None or share.detail is not None
