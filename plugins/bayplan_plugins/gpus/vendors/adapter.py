"""What an adapter for shares of GPUs has to answer; each system's is a module of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from typing import Protocol

import msgspec

from bayplan import PodInfo
from bayplan.api import Node
from bayplan.api.gpu_shares import WHOLE, GpuUse, OfferedGpu, Share
from bayplan.cluster.protocol import BindLock
from bayplan.dialects.hami.node_lock import LOCK_SECONDS

__all__ = [
    "Choice",
    "FitAdapter",
    "GpusInUse",
    "NodeAwareAdapter",
    "ScoringAdapter",
    "ShareRequest",
    "SourceAdapter",
    "VendorAdapter",
    "Written",
    "own_lock",
]


class GpusInUse(msgspec.Struct, frozen=True):
    """The GPUs of a node and what is taken of each, in the order of their indices.

    ``labels`` are those of the node that its adapter reads.
    """

    gpus: tuple[OfferedGpu, ...]
    used: tuple[GpuUse, ...]
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)


class ShareRequest(msgspec.Struct, frozen=True, cache_hash=True):
    """What a pod requests by one adapter.

    ``gpus`` is the number of GPUs, ``compute`` and ``memory`` what it needs of each of them (in
    thousandths, and bytes; ``share`` is the part of a GPU's memory, 0 to 1, where the memory
    follows the GPU's size). A pod is refused where fewer than ``gpus`` GPUs have as much left:
    these numbers are what columns compare. ``simple`` says that they decide: any GPUs with enough
    left will do. Else they are a lower bound of what ``VendorAdapter.choose`` decides. ``detail``
    holds whatever else the adapter needs. ``implicit``
    says that the pod asks for whole GPUs in Kubernetes' own words, which mean this adapter on its
    nodes only; otherwise ``word`` is the resource or annotation that means this adapter.
    ``rated`` says that an adapter that scores nodes may prefer some for this one. ``counted`` says
    that the request is only a number, which NodeResourcesFit compares: the device plugin gives the
    GPUs out and tells nobody which. ``apart`` is how many GPUs it needs on nodes that divide none
    into partitions, if that is more than ``gpus``. Equal requests are placed alike.
    """

    adapter: str
    gpus: int
    compute: int = 0
    memory: int = 0
    share: float = 0.0
    detail: Hashable = None
    implicit: bool = False
    rated: bool = True
    simple: bool = False
    counted: bool = False
    problem: str = ""
    word: str = ""
    apart: int = 0

    @property
    def counted_elsewhere(self) -> bool:
        """Whether it is only a number of a resource, which NodeResourcesFit counts."""
        return self.implicit and not (self.compute or self.memory or self.share)

    @property
    def whole(self) -> bool:
        """Whether the request is for whole GPUs."""
        return self.compute >= WHOLE


class Choice(msgspec.Struct, frozen=True):
    """The shares that a pod would get on a node, or the reason why it gets none.

    ``advice`` is what the pod could ask for instead; it continues "would fit on n1".
    """

    shares: tuple[Share, ...] = ()
    reason: str = ""
    resolvable: bool = True
    advice: str = ""


class Written(msgspec.Struct, frozen=True):
    """What binding a pod writes: its annotations and labels; ``lock`` is taken before."""

    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    lock: BindLock | None = None


@cache
def own_lock(marks: str) -> BindLock:
    """Return bayplan's lock of a node's GPUs, for systems that have none.

    :param marks: the annotation that tells pods with shares of these GPUs.
    """
    return BindLock("bayplan.dev/cards.lock", LOCK_SECONDS, marks, own=True)


class VendorAdapter(Protocol):
    """How one system's pods ask for shares, its nodes offer them, and what its runtime reads."""

    name: str
    reads: frozenset[str]
    """The annotations that ``request`` reads."""

    def request(self, pod: PodInfo) -> ShareRequest | None:
        """Return what a pod requests by this adapter; None if it does not use it.

        It follows from the pod's spec, its annotations in ``reads``, the objects of the cluster,
        and what other pods hold if the pod's namespace has limits; a pod without extended resources
        and without these annotations requests nothing. What cannot be read becomes the ``problem``
        of the request.
        """

    def gpus(self, node: Node) -> tuple[OfferedGpu, ...] | str | None:
        """Return the GPUs that a node offers, None if nothing describes them; a text is wrong."""

    def held(self, pod: PodInfo, gpus: Sequence[OfferedGpu]) -> tuple[Share, ...] | str:
        """Return what a placed pod holds, by what its annotations say; a text is wrong."""

    def choose(self, pod: PodInfo, request: ShareRequest, node: GpusInUse) -> Choice:
        """Choose the shares for a pod on a node in a certain state."""

    def written(
        self, pod: PodInfo, node: Node, gpus: Sequence[OfferedGpu], own: Sequence[Share], now: float
    ) -> Written:
        """Return what tells the runtime which shares the pod got.

        :param now: the time in seconds since 1970.
        """


class SourceAdapter(ABC):
    """An adapter whose GPUs are described by other objects than the node, too."""

    @abstractmethod
    def follow(self, changed: Callable[[str | None], None]) -> None:
        """Call ``changed(node)`` when a node's GPUs have to be read again; None stands for all."""


class NodeAwareAdapter(ABC):
    """An adapter whose requests depend on what nodes offer, too."""

    @property
    @abstractmethod
    def basis(self) -> Hashable:
        """What of the nodes the requests depend on; all are read again when it changes."""


class FitAdapter(ABC):
    """An adapter that knows a cheaper way than to choose to tell whether a node takes a pod."""

    @abstractmethod
    def fits(self, pod: PodInfo, request: ShareRequest, node: GpusInUse) -> Choice:
        """Return some of the shares that a pod would get, or why it gets none."""


class ScoringAdapter(ABC):
    """An adapter that prefers some nodes to others."""

    @abstractmethod
    def score(self, request: ShareRequest, node: GpusInUse) -> float:
        """Return a node's score, 0 or more; higher is better."""
