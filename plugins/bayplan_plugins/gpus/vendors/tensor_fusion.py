"""TensorFusion's adapter for GPUs: GPU objects on one side, annotations of pods on the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import msgspec

from bayplan import PodInfo
from bayplan.api import Node, TensorFusionGpu
from bayplan.api.gpu_shares import WHOLE, GpuUse, OfferedGpu, Share
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
from bayplan_plugins.gpus.vendors.adapter import (
    Choice,
    GpusInUse,
    ShareRequest,
    SourceAdapter,
    Written,
    own_lock,
)

__all__ = ["TensorFusionAdapter"]

_RUNNING = "Running"
_OWN = ("", "tensor-fusion")
_POOL = "tensor-fusion.ai/gpupool"
_HOSTNAME = "kubernetes.io/hostname"
_SLOTS = 1024
_MOST_GPUS = 64
_MOST_BYTES = 1 << 50
_MOST_INDEX = 1 << 16
_VANISHED = -1
"""The index of a GPU that the node no longer has."""
_TOO_LITTLE = "Insufficient compute or memory of TensorFusion's GPUs"
_OTHERS = "no GPU of TensorFusion with this model, pool, vendor and index"


class _Gpu(msgspec.Struct, frozen=True):
    """What else is known of a GPU: its TFLOPS, pool and vendor."""

    tflops: Fraction
    pool: str
    vendor: str


class TensorFusionAdapter(SourceAdapter):
    """The GPUs of nodes that have GPU objects."""

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

    def request(self, pod: PodInfo) -> ShareRequest | None:
        """Return the shares that a pod requests; whole GPUs mean this adapter on its nodes."""
        try:
            share = share_of(pod.pod)
        except ValueError as exc:
            return ShareRequest(self.name, 0, problem=str(exc))
        if share is not None:
            compute = _thousandths(share.percent / 100)
            return ShareRequest(
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
        return ShareRequest(self.name, count, WHOLE, 0, 1.0, whole, implicit=True, simple=True)

    # What nodes offer ------------------------------------------------------------------------

    def gpus(self, node: Node) -> tuple[OfferedGpu, ...] | str | None:
        """Return the GPUs of a node's GPU objects."""
        if not self._by_node:
            return None
        host = node.metadata.labels.get(_HOSTNAME, "")
        found = {**self._by_node.get(host, {}), **self._by_node.get(node.metadata.name, {})}
        if not found:
            return None
        if len(found) > _MOST_GPUS:
            return f"expected {_MOST_GPUS} GPU objects or fewer, got {len(found)}"
        gpus = []
        for place, (name, entry) in enumerate(sorted(found.items(), key=_order)):
            try:
                gpus.append(_gpu(place, entry))
            except ValueError as exc:
                return f"GPU {name}: {exc}"
        indices = [gpu.index for gpu in gpus]
        for gpu in gpus:
            if indices.count(gpu.index) > 1:
                return f"GPU {gpu.uuid}: status.index {gpu.index} is another GPU's, too"
        return tuple(gpus)

    def held(self, pod: PodInfo, gpus: Sequence[OfferedGpu]) -> tuple[Share, ...] | str:
        """Return what a pod's annotation says that it holds, also of GPUs that have vanished."""
        if not pod.spec.node_name:
            return ()
        try:
            names, share = assigned_gpus(pod.pod), share_of(pod.pod)
        except ValueError as exc:
            return str(exc)
        if not names or share is None:
            return ()
        known = {gpu.uuid: gpu for gpu in gpus}
        return tuple(
            _share(share, known[name]) if name in known else Share(_VANISHED, 0) for name in names
        )

    # Choice ----------------------------------------------------------------------------------

    def choose(self, pod: PodInfo, request: ShareRequest, node: GpusInUse) -> Choice:
        """Choose the fullest GPUs that have enough left, as TensorFusion's default does."""
        share = request.detail
        assert isinstance(share, TensorFusionShare), "the request is this adapter's"
        suitable = list(_suitable(share, node))
        if len(suitable) < share.count:
            return Choice(reason=_OTHERS, resolvable=False)
        fitting = [pair for pair in suitable if _fits(share, *pair)]
        if len(fitting) < share.count:
            return Choice(reason=_TOO_LITTLE)
        fitting.sort(key=lambda pair: (pair[0].memory - pair[1].memory, pair[0].index))
        return Choice(tuple(_share(share, gpu) for gpu, _ in fitting[: share.count]))

    def written(
        self, pod: PodInfo, node: Node, gpus: Sequence[OfferedGpu], own: Sequence[Share], now: float
    ) -> Written:
        """Return the annotation that names the pod's GPU objects."""
        if any(name in pod.requests for name in GPU_RESOURCES):
            return Written()
        names = {gpu.index: gpu.uuid for gpu in gpus}
        ids = ",".join(names[share.gpu] for share in own)
        return Written({GPU_IDS: ids}, lock=own_lock(GPU_IDS))


def _content(gpu: TensorFusionGpu) -> object:
    return gpu.status, gpu.metadata.labels.get(_POOL)


def _order(item: tuple[str, TensorFusionGpu]) -> tuple[bool, int, str]:
    index = item[1].status.index
    return index is None, index or 0, item[0]


def _gpu(place: int, gpu: TensorFusionGpu) -> OfferedGpu:
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
    return OfferedGpu(
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


def _suitable(share: TensorFusionShare, node: GpusInUse) -> Iterator[tuple[OfferedGpu, GpuUse]]:
    for gpu, use in zip(node.gpus, node.used, strict=True):
        known = gpu.detail
        assert isinstance(known, _Gpu), "the GPU is this adapter's"
        wanted = (
            (share.model, gpu.model),
            (share.pool, known.pool),
            (share.vendor, known.vendor),
        )
        if all(not text or text.lower() == own.lower() for text, own in wanted):
            if not share.indices or gpu.index in share.indices:
                if gpu.usable:
                    yield gpu, use


def _fits(share: TensorFusionShare, gpu: OfferedGpu, use: GpuUse) -> bool:
    if share.whole:
        return use.idle
    own = _share(share, gpu)
    return (
        use.compute + own.compute <= gpu.compute
        and use.memory + own.memory <= gpu.memory
        and use.slots < gpu.slots
    )


def _share(share: TensorFusionShare, gpu: OfferedGpu) -> Share:
    """Return a share of one GPU; TFLOPS that the GPU does not have are more than all of it."""
    if share.whole:
        return Share(gpu.index, gpu.compute, gpu.memory, gpu.slots)
    own = gpu.detail
    assert isinstance(own, _Gpu), "the GPU is this adapter's"
    part = share.percent / 100
    if share.tflops:
        part = share.tflops / own.tflops if own.tflops else Fraction(2)
    return Share(gpu.index, _thousandths(part), share.vram)


def _thousandths(part: Fraction) -> int:
    """Return a part of a GPU in thousandths, rounded up."""
    found = part * WHOLE
    return -(-found.numerator // found.denominator)
