"""TensorFusion's contract for cards: GPU objects on one side, annotations of pods on the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from bayplan import PodInfo
from bayplan.api import Node, TensorFusionGpu
from bayplan.api.cards import WHOLE, Card, CardUse, Share
from bayplan.api.gpus import GPU_RESOURCES
from bayplan.dialects.tensor_fusion_shares import (
    ANNOTATIONS,
    GPU_IDS,
    TensorFusionShare,
    assigned_gpus,
    share_of,
)
from bayplan.snapshot import Snapshot
from bayplan_plugins.gpus.resources import gpu_count
from bayplan_plugins.gpus.vendors.contract import CardRequest, Choice, NodeCards, Written, own_lock

__all__ = ["TensorFusionCards"]

_RUNNING = "Running"
_OWN = ("", "tensor-fusion")
_POOL = "tensor-fusion.ai/gpupool"
_HOSTNAME = "kubernetes.io/hostname"
_SLOTS = 1024
_MOST_CARDS = 64
_MOST_BYTES = 1 << 50
_MOST_INDEX = 1 << 16
_VANISHED = -1
"""The index of a card that the node no longer has."""
_TOO_LITTLE = "Insufficient compute or memory of TensorFusion's GPUs"
_OTHERS = "no GPU of TensorFusion with this model, pool, vendor and index"


@dataclass(frozen=True)
class _Gpu:
    """What else is known of a card: its TFLOPS, pool and vendor."""

    tflops: Fraction
    pool: str
    vendor: str


class TensorFusionCards:
    """The cards of nodes that have GPU objects."""

    name = "tensor-fusion"
    reads = ANNOTATIONS

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._listeners: list[Callable[[str | None], None]] = []
        self._by_node: dict[str, dict[str, TensorFusionGpu]] = {}
        for gpu in snapshot.objects(TensorFusionGpu).values():
            self._on_gpu(None, gpu)
        snapshot.on_object(TensorFusionGpu, self._on_gpu)

    def follow(self, changed: Callable[[str | None], None]) -> None:
        """Call ``changed(node)`` when a GPU object of a node changes."""
        self._listeners.append(changed)

    def _on_gpu(self, old: TensorFusionGpu | None, new: TensorFusionGpu | None) -> None:
        nodes = {}
        if old is not None:
            nodes[old.node] = self._by_node.get(old.node, {}).pop(old.metadata.name, None)
        if new is not None:
            nodes[new.node] = new
            self._by_node.setdefault(new.node, {})[new.metadata.name] = new
        if old is not None and new is not None and _content(old) == _content(new):
            return
        for node in nodes:
            for changed in self._listeners:
                # The selector names a host, which mostly is the node's name.
                changed(node if node in self._snapshot.nodes.row_of else None)

    # What pods request -----------------------------------------------------------------------

    def request(self, pod: PodInfo) -> CardRequest | None:
        """Return the shares that a pod requests; whole cards mean this contract on its nodes."""
        try:
            share = share_of(pod.pod)
        except ValueError as exc:
            return CardRequest(self.name, 0, problem=str(exc))
        if share is not None:
            compute = _thousandths(share.percent / 100)
            return CardRequest(
                self.name,
                share.count,
                compute,
                share.vram,
                1.0 if share.whole else 0.0,
                share,
                simple=share.takes_any,
                word=share.word,
            )
        count = gpu_count(pod.requests) if pod.facts.wants_devices else 0
        if not count or not self._by_node:
            return None
        whole = TensorFusionShare(percent=Fraction(100), count=count, whole=True)
        return CardRequest(self.name, count, WHOLE, 0, 1.0, whole, implicit=True, simple=True)

    # What nodes offer ------------------------------------------------------------------------

    def cards(self, node: Node) -> tuple[Card, ...] | str | None:
        """Return the cards of a node's GPU objects."""
        if not self._by_node:
            return None
        host = node.metadata.labels.get(_HOSTNAME, "")
        found = {**self._by_node.get(host, {}), **self._by_node.get(node.metadata.name, {})}
        if not found:
            return None
        if len(found) > _MOST_CARDS:
            return f"expected {_MOST_CARDS} GPU objects or fewer, got {len(found)}"
        cards = []
        for place, (name, gpu) in enumerate(sorted(found.items(), key=_order)):
            try:
                cards.append(_card(place, gpu))
            except ValueError as exc:
                return f"GPU {name}: {exc}"
        indices = [card.index for card in cards]
        for card in cards:
            if indices.count(card.index) > 1:
                return f"GPU {card.uuid}: status.index {card.index} is another GPU's, too"
        return tuple(cards)

    def held(self, pod: PodInfo, cards: Sequence[Card]) -> tuple[Share, ...] | str:
        """Return what a pod's annotation says that it holds, also of cards that have vanished."""
        if not pod.spec.node_name:
            return ()
        try:
            names, share = assigned_gpus(pod.pod), share_of(pod.pod)
        except ValueError as exc:
            return str(exc)
        if not names or share is None:
            return ()
        known = {card.uuid: card for card in cards}
        return tuple(
            _share(share, known[name]) if name in known else Share(_VANISHED, 0) for name in names
        )

    # Choice ----------------------------------------------------------------------------------

    def choose(self, pod: PodInfo, request: CardRequest, node: NodeCards) -> Choice:
        """Choose the fullest cards that have enough left, as TensorFusion's default does."""
        share = request.detail
        assert isinstance(share, TensorFusionShare), "the request is this contract's"
        suitable = list(_suitable(share, node))
        if len(suitable) < share.count:
            return Choice(reason=_OTHERS, resolvable=False)
        fitting = [pair for pair in suitable if _fits(share, *pair)]
        if len(fitting) < share.count:
            return Choice(reason=_TOO_LITTLE)
        fitting.sort(key=lambda pair: (pair[0].memory - pair[1].memory, pair[0].index))
        return Choice(tuple(_share(share, card) for card, _ in fitting[: share.count]))

    def written(
        self, pod: PodInfo, node: Node, cards: Sequence[Card], own: Sequence[Share], now: float
    ) -> Written:
        """Return the annotation that names the pod's GPU objects."""
        if any(name in pod.requests for name in GPU_RESOURCES):
            return Written()
        names = {card.index: card.uuid for card in cards}
        ids = ",".join(names[share.card] for share in own)
        return Written({GPU_IDS: ids}, lock=own_lock(GPU_IDS))


def _content(gpu: TensorFusionGpu) -> object:
    return gpu.status, gpu.metadata.labels.get(_POOL)


def _order(item: tuple[str, TensorFusionGpu]) -> tuple[bool, int, str]:
    index = item[1].status.index
    return index is None, index or 0, item[0]


def _card(place: int, gpu: TensorFusionGpu) -> Card:
    status = gpu.status
    index = place if status.index is None else status.index
    if not 0 <= index < _MOST_INDEX:
        raise ValueError(f"status.index: expected a number from 0 to {_MOST_INDEX}, got {index}")
    tflops, memory = Fraction(0), 0
    if status.capacity is not None:
        tflops, memory = status.capacity.tflops.amount, status.capacity.vram.units
    if tflops < 0 or not 0 <= memory <= _MOST_BYTES:
        raise ValueError(f"status.capacity: expected tflops and vram from 0 to {_MOST_BYTES}")
    detail = _Gpu(tflops, gpu.metadata.labels.get(_POOL, ""), status.vendor)
    return Card(
        index,
        gpu.metadata.name,
        status.gpu_model,
        memory=memory,
        slots=_SLOTS,
        numa=status.numa_node if (status.numa_node or 0) >= 0 else None,
        healthy=status.phase == _RUNNING and status.capacity is not None,
        cordoned=status.used_by not in _OWN,
        detail=detail,
    )


def _suitable(share: TensorFusionShare, node: NodeCards) -> Iterator[tuple[Card, CardUse]]:
    for card, use in zip(node.cards, node.used, strict=True):
        gpu = card.detail
        assert isinstance(gpu, _Gpu), "the card is this contract's"
        wanted = (
            (share.model, card.model),
            (share.pool, gpu.pool),
            (share.vendor, gpu.vendor),
        )
        if all(not text or text.lower() == own.lower() for text, own in wanted):
            if not share.indices or card.index in share.indices:
                if card.usable:
                    yield card, use


def _fits(share: TensorFusionShare, card: Card, use: CardUse) -> bool:
    if share.whole:
        return use.idle
    own = _share(share, card)
    return (
        use.compute + own.compute <= card.compute
        and use.memory + own.memory <= card.memory
        and use.slots < card.slots
    )


def _share(share: TensorFusionShare, card: Card) -> Share:
    """Return a share of one card; TFLOPS that the card does not have are more than all of it."""
    if share.whole:
        return Share(card.index, card.compute, card.memory, card.slots)
    gpu = card.detail
    assert isinstance(gpu, _Gpu), "the card is this contract's"
    part = share.percent / 100
    if share.tflops:
        part = share.tflops / gpu.tflops if gpu.tflops else Fraction(2)
    return Share(card.index, _thousandths(part), share.vram)


def _thousandths(part: Fraction) -> int:
    """Return a part of a card in thousandths, rounded up."""
    found = part * WHOLE
    return -(-found.numerator // found.denominator)
