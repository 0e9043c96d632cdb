"""Koordinator's adapter for GPUs: Device objects on one side, resources and annotations of pods.

Devices of other types than GPUs are GPUs without compute and memory; what is taken of them is in
the details of shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import msgspec

from bayplan import PodInfo
from bayplan.api import KoordinatorDevice, Node
from bayplan.api.configmap import ConfigMap
from bayplan.api.gpu_shares import OfferedGpu, Share
from bayplan.cluster.protocol import BindLock
from bayplan.dialects.koordinator.allocations import (
    ALLOCATED,
    LOCK_SECONDS,
    VENDOR_LOCKS,
    Allocation,
    allocations_of,
)
from bayplan.dialects.koordinator.hints import HINT_ANNOTATIONS
from bayplan.dialects.koordinator.requests import (
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    OWN_RESOURCES,
    with_memory,
)
from bayplan.dialects.koordinator.templates import Templates, templates_of
from bayplan.snapshot import Snapshot
from bayplan_plugins.gpus.vendors.adapter import (
    Choice,
    FitAdapter,
    GpusInUse,
    NodeAwareAdapter,
    ScoringAdapter,
    ShareRequest,
    SourceAdapter,
    Written,
    own_lock,
)
from bayplan_plugins.gpus.vendors.koordinator.allocation import allocate, per_device
from bayplan_plugins.gpus.vendors.koordinator.devices import (
    Device,
    Machine,
    allocation_of,
    devices_of,
    gpu_of,
    share_of,
)
from bayplan_plugins.gpus.vendors.koordinator.inventory import inventory_of
from bayplan_plugins.gpus.vendors.koordinator.refusal import Refused
from bayplan_plugins.gpus.vendors.koordinator.request import DeviceRequest, read_request
from bayplan_plugins.gpus.vendors.koordinator.runtime import PARTICULAR_VENDORS, check, tell
from bayplan_plugins.gpus.vendors.koordinator.settings import KoordinatorArgs

__all__ = ["KoordinatorAdapter"]

_PER_PERCENT = 10
_NO_MACHINE = Machine()
_Amounts = tuple[tuple[str, int], ...]
_PERCENT = 100
_ROUNDING = 1e-12
"""Less than a byte of any GPU's memory, more than an error of floating point."""
_Offer: TypeAlias = tuple[OfferedGpu, ...] | str


class KoordinatorAdapter(SourceAdapter, NodeAwareAdapter, FitAdapter, ScoringAdapter):
    """The devices of nodes that have a Device object."""

    name = "koordinator"
    reads = frozenset(HINT_ANNOTATIONS)

    def __init__(self, snapshot: Snapshot, args: KoordinatorArgs | None = None) -> None:
        self._snapshot = snapshot
        self.use(args or KoordinatorArgs())
        self._particular: set[str] = set()
        self._known: dict[str, tuple[KoordinatorDevice, Mapping[str, str], _Offer]] = {}
        self._read_templates: tuple[ConfigMap | None, Templates] = (None, {})

    def follow(self, changed: Callable[[str | None], None]) -> None:
        """Call ``changed(node)`` when a node's Device object changes."""

        def report(old: KoordinatorDevice | None, new: KoordinatorDevice | None) -> None:
            found = new or old
            if found is not None:
                changed(found.key)

        self._snapshot.on_object(KoordinatorDevice, report)

    def use(self, args: KoordinatorArgs) -> None:
        """Set the arguments."""
        self._args = args
        self._scorer = args.scorer

    # Pods ------------------------------------------------------------------------------------

    def request(self, pod: PodInfo) -> ShareRequest | None:
        """Return the devices that a pod requests.

        Whole GPUs in their vendor's words mean this adapter where a node has a Device object, and
        with hints in Koordinator's annotations or other devices besides only there.
        """
        if not pod.facts.wants_devices:
            return None
        try:
            return self._request(pod)
        except ValueError as exc:
            return ShareRequest(self.name, 0, problem=str(exc))

    def _request(self, pod: PodInfo) -> ShareRequest | None:
        config = self._args.gpu_shared_resource_templates_config
        matched = config.matched_resources
        request = read_request(pod.requests, pod.annotations, self._templates, matched)
        if request is None:
            return None
        implicit = OWN_RESOURCES.isdisjoint(pod.requests) and request.hints.empty
        if implicit and not self._snapshot.objects(KoordinatorDevice):
            return None
        word = "" if implicit else _word(pod)
        if request.gpus is None:
            rated = self._args.rates_nodes
            return ShareRequest(
                self.name, 0, detail=request, implicit=implicit, rated=rated, word=word
            )
        amounts = dict(request.gpus.amounts)
        return ShareRequest(
            self.name,
            request.gpus.count,
            amounts.get(GPU_CORE, 0) * _PER_PERCENT,
            amounts.get(GPU_MEMORY, 0),
            max(0.0, amounts.get(GPU_MEMORY_RATIO, 0) / _PERCENT - _ROUNDING),
            detail=request,
            implicit=implicit,
            simple=not self._particular and _any_gpus_do(request),
            rated=self._args.rates_nodes,
            word=word,
        )

    def held(self, pod: PodInfo, gpus: Sequence[OfferedGpu]) -> tuple[Share, ...] | str:
        """Return what a placed pod holds by its annotation."""
        try:
            allocations = allocations_of(pod.pod.metadata.annotations)
        except ValueError as exc:
            return str(exc)
        if not allocations:
            return ()
        lacking = self._lacking(pod, allocations)
        if lacking:
            return f"annotation {ALLOCATED}: {lacking}"
        known = {
            (one.detail.kind, one.detail.minor): one.detail
            for one in gpus
            if isinstance(one.detail, Device)
        }
        return tuple(_stated_share(one, known.get((one.kind, one.minor))) for one in allocations)

    def _lacking(self, pod: PodInfo, allocations: Sequence[Allocation]) -> str:
        """Return which amount of a GPU is not stated though the pod requests it; "" if all are."""
        request = self.request(pod)
        wanted = request.detail if request is not None else None
        if not isinstance(wanted, DeviceRequest) or wanted.gpus is None:
            return ""
        asked = {name for name, _ in wanted.gpus.amounts}
        for one in allocations:
            stated = {name for name, _ in one.amounts}
            if one.kind != GPU or one.template:
                continue
            for names in ((GPU_CORE,), (GPU_MEMORY_RATIO, GPU_MEMORY)):
                if not asked.isdisjoint(names) and stated.isdisjoint(names):
                    return f"$.gpu: minor {one.minor}: expected an amount of {names[0]}"
        return ""

    # Nodes -----------------------------------------------------------------------------------

    @property
    def basis(self) -> bool:
        """Whether any GPU does for a pod on all nodes."""
        return not self._particular

    def gpus(self, node: Node) -> tuple[OfferedGpu, ...] | str | None:
        """Return the devices of a node's Device object as GPUs."""
        name = node.metadata.name
        found = self._snapshot.objects(KoordinatorDevice).get(name)
        if found is None:
            self._known.pop(name, None)
            self._particular.discard(name)
            return None
        known = self._known.get(name)
        if known is None or known[0] is not found or known[1] != node.metadata.labels:
            gpus = _read_gpus(found, node)
            known = self._known[name] = found, node.metadata.labels, gpus
            self._note(name, gpus)
        return known[2]

    def _note(self, name: str, gpus: _Offer) -> None:
        """Remember a node where not any GPU with enough left does for a pod."""
        machine = _machine(()) if isinstance(gpus, str) else _machine(gpus)
        if machine.honor or machine.vendor in PARTICULAR_VENDORS:
            self._particular.add(name)
        else:
            self._particular.discard(name)

    def fits(self, pod: PodInfo, request: ShareRequest, node: GpusInUse) -> Choice:
        """Return what tells whether a node can take a pod: its devices, or only the primary ones.

        On a node with enough NICs for whatever GPUs are taken, NICs need not be looked at.
        """
        return self._chosen(request, node, primary_only=True)

    def choose(self, pod: PodInfo, request: ShareRequest, node: GpusInUse) -> Choice:
        """Choose devices: GPUs as near to each other as possible, and NICs near them."""
        only = _only_gpu(request, node) if request.simple and request.gpus == 1 else None
        return Choice((only,)) if only is not None else self._chosen(request, node)

    def _chosen(self, request: ShareRequest, node: GpusInUse, primary_only: bool = False) -> Choice:
        wanted = request.detail
        assert isinstance(wanted, DeviceRequest), "a request of this adapter"
        try:
            inventory = inventory_of(node)
            chosen = allocate(inventory, wanted, self._scorer, primary_only)
            check(inventory.machine.vendor, chosen)
        except Refused as exc:
            return Choice(reason=exc.reason, resolvable=exc.resolvable)
        except ValueError as exc:
            return Choice(reason=str(exc), resolvable=False)
        return Choice(
            tuple(share_of(one, inventory.devices[one.kind][one.minor]) for one in chosen)
        )

    def score(self, request: ShareRequest, node: GpusInUse) -> int:
        """Return the score of a node by the scoring strategy; the sum over types of devices."""
        wanted = request.detail
        assert isinstance(wanted, DeviceRequest), "a request of this adapter"
        inventory = inventory_of(node)
        inventory = inventory.only(
            {kind: wanted.hints.hint(kind).selector for kind in wanted.kinds}
        )
        score = 0
        for kind in wanted.kinds:
            offered = inventory.offered.get(kind, frozenset())
            if offered:
                score += self._scorer.node(
                    per_device(inventory, wanted, kind),
                    (inventory.total(kind, minor) for minor in offered),
                    (inventory.free[kind][minor] for minor in offered),
                )
        return score

    # Binding ---------------------------------------------------------------------------------

    def written(
        self, pod: PodInfo, node: Node, gpus: Sequence[OfferedGpu], own: Sequence[Share], now: float
    ) -> Written:
        """Return the pod's devices in its annotation, and what the vendor's device plugin reads."""
        machine = _machine(gpus)
        vendor = machine.vendor
        taken = {one.gpu for one in own}
        by_index = {gpu.index: gpu for gpu in gpus if gpu.index in taken}
        allocations = [allocation_of(one, by_index.get(one.gpu)) for one in own]
        reported = tell(
            pod.labels,
            node.metadata.name,
            vendor,
            machine.model,
            [one for one in allocations if one is not None],
            now,
        )
        has_gpus = any(one is not None and one.kind == GPU for one in allocations)
        name = VENDOR_LOCKS.get(vendor) if has_gpus else None
        lock = own_lock(ALLOCATED) if name is None else BindLock(name, LOCK_SECONDS, ALLOCATED)
        return Written(reported.annotations, reported.labels, lock=lock if allocations else None)

    # Templates -------------------------------------------------------------------------------

    def _templates(self) -> Templates:
        """Return all templates.

        :raises ValueError: for a ConfigMap that cannot be read.
        """
        config = self._args.gpu_shared_resource_templates_config
        key = f"{config.config_map_namespace}/{config.config_map_name}"
        found = self._snapshot.objects(ConfigMap).get(key)
        own: Templates = self._args.gpu_shared_resource_templates
        if found is None:
            return own
        if self._read_templates[0] is not found:
            try:
                self._read_templates = (found, templates_of(found))
            except ValueError as exc:
                raise ValueError(f"ConfigMap {key}: {exc}") from None
        return {**self._read_templates[1], **own}


def _read_gpus(found: KoordinatorDevice, node: Node) -> _Offer:
    try:
        return tuple(gpu_of(one) for one in devices_of(found, node))
    except ValueError as exc:
        return str(exc)


def _machine(gpus: Sequence[OfferedGpu]) -> Machine:
    devices = (one.detail for one in gpus)
    return next((one.machine for one in devices if isinstance(one, Device)), _NO_MACHINE)


def _word(pod: PodInfo) -> str:
    """Return the first resource, or else annotation, of a pod that means Koordinator."""
    own = sorted(OWN_RESOURCES.intersection(pod.requests))
    return own[0] if own else next(name for name in HINT_ANNOTATIONS if name in pod.annotations)


def _any_gpus_do(request: DeviceRequest) -> bool:
    """Tell whether the pod asks for shares of GPUs, or whole ones, and for nothing else."""
    return (
        request.kinds == (GPU,)
        and request.gpus is not None
        and request.hints.empty
        and request.templates is None
    )


def _stated_share(stated: Allocation, device: Device | None) -> Share:
    """Return a share as an annotation states it, with the memory that follows from its ratio."""
    names = {name for name, _ in stated.amounts}
    if device is not None and GPU_MEMORY_RATIO in names and GPU_MEMORY not in names:
        if any(device.total.values()):
            amounts = _amounts_on(stated.amounts, device.amounts)
            stated = msgspec.structs.replace(stated, amounts=amounts)
    return share_of(stated, device)


def _only_gpu(request: ShareRequest, node: GpusInUse) -> Share | None:
    """Return the share of the one GPU that may be chosen; None if there are several, or none."""
    wanted = request.detail
    if len(node.gpus) != 1 or not isinstance(wanted, DeviceRequest) or wanted.gpus is None:
        return None
    gpu, used = node.gpus[0], node.used[0]
    device = gpu.detail
    if not gpu.usable or not isinstance(device, Device) or device.kind != GPU:
        return None
    amounts = _amounts_on(wanted.gpus.amounts, device.amounts)
    share = share_of(Allocation(GPU, device.minor, amounts, device.uuid), device)
    compute, memory = used.compute + share.compute, used.memory + share.memory
    return share if compute <= gpu.compute and memory <= gpu.memory else None


@lru_cache(4096)
def _amounts_on(wanted: _Amounts, offered: _Amounts) -> _Amounts:
    """Return what a pod gets of a GPU, sorted by resource: what it wants, and the memory of that.

    :param offered: what the GPU has in all.
    """
    return tuple(sorted(with_memory(dict(wanted), dict(offered)).items()))
