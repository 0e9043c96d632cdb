"""GPUs that NVIDIA's device plugin shares (time slicing, MPS) or that are divided (MIG).

The device plugin chooses the GPU by itself, so what pods hold is only counted here: replicas on
the GPUs that have the fewest taken, as the plugin spreads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from bayplan import PodInfo
from bayplan.api import Container, Node
from bayplan.api.configmap import ConfigMap
from bayplan.api.gpu_shares import MEBIBYTE, WHOLE, GpuUse, OfferedGpu, Share
from bayplan.dialects import nvidia
from bayplan.dialects.nvidia import GpuLabels, Replication
from bayplan.snapshot import Snapshot
from bayplan.topology.machine.mig import mig_gpu
from bayplan_plugins.gpus.vendors.adapter import (
    Choice,
    GpusInUse,
    ShareRequest,
    SourceAdapter,
    Written,
)

__all__ = ["DevicePluginAdapter"]

_MOST_GPUS = 1024


class _Asked(msgspec.Struct, frozen=True):
    """What a pod requests of a resource: in all, and the most that one container does."""

    resource: str
    count: int
    most: int


class _Offer(msgspec.Struct, frozen=True):
    """How a GPU is offered.

    ``only_one`` says that a container gets no more than one replica, ``problem`` why the node's
    devices cannot be relied on.
    """

    resource: str
    replicas: int
    only_one: bool
    problem: str


class DevicePluginAdapter(SourceAdapter):
    """The replicas and MIG devices that NVIDIA's device plugin counts."""

    name = "nvidia"
    reads: frozenset[str] = frozenset()

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._config_map = ""
        self._configs: dict[str, str] | None = None
        self._listeners: list[Callable[[str | None], None]] = []
        snapshot.on_object(ConfigMap, self._on_config_map)

    # What pods request -----------------------------------------------------------------------

    def request(self, pod: PodInfo) -> ShareRequest | None:
        """Return the GPUs, replicas and MIG devices that a pod requests."""
        if not pod.facts.wants_devices:
            return None
        asked = tuple(
            _Asked(name, count, _most(pod, name))
            for name, count in sorted(pod.requests.items())
            if nvidia.is_offer(name)
        )
        return ShareRequest(self.name, 1, detail=asked, implicit=True) if asked else None

    # What nodes offer ------------------------------------------------------------------------

    def gpus(self, node: Node) -> tuple[OfferedGpu, ...] | str | None:
        """Return the GPUs of a node that are shared, divided, or about to be."""
        offered = {
            name: quantity.units
            for name, quantity in (node.status.allocatable or node.status.capacity).items()
            if quantity.units > 0 and nvidia.is_offer(name)
        }
        if not offered:
            return None
        try:
            labels = nvidia.gpu_labels(node.metadata.labels)
        except ValueError as exc:
            return str(exc)
        whole = set(offered) == {nvidia.GPU} and not labels.counts_parts
        replication = self._replication(node, whole)
        configured = replication is not None and replication.replicas.get(nvidia.GPU, 0) > 1
        if whole and not labels.in_change and not configured:
            return None
        found = tuple(_gpus(offered, labels, replication))
        if len(found) > _MOST_GPUS:
            return f"expected {_MOST_GPUS} GPUs or fewer, got {len(found)}"
        return found

    # The configuration of the device plugin --------------------------------------------------

    def use(self, config_map: str) -> None:
        """Take configurations from this ConfigMap only ("namespace/name"); "" from any."""
        self._config_map, self._configs = config_map, None

    def follow(self, changed: Callable[[str | None], None]) -> None:
        """Call ``changed`` when the plugin's configuration changes."""
        self._listeners.append(changed)

    def _on_config_map(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        known = [one for one in (old, new) if one is not None]
        if any(map(self._configs_in, known)):
            self._configs = None
            for changed in self._listeners:
                changed(None)

    def _configs_in(self, found: ConfigMap) -> Mapping[str, str]:
        """Return the configurations in a ConfigMap: all, or those that look like one."""
        if self._config_map:
            return found.data if found.key == self._config_map else {}
        return {name: text for name, text in found.data.items() if nvidia.looks_like_config(text)}

    def _config(self, key: str) -> str | None:
        """Return the configuration by its key, None if it is not known.

        Without a key it is the only one that there is.
        """
        if self._configs is None:
            found: dict[str, str] = {}
            for _, one in sorted(self._snapshot.objects(ConfigMap).items()):
                for name, text in self._configs_in(one).items():
                    found.setdefault(name, text)
            self._configs = found
        if key:
            return self._configs.get(key)
        return next(iter(self._configs.values())) if len(self._configs) == 1 else None

    def _replication(self, node: Node, whole: bool) -> Replication | None:
        """Return the configuration of a node's plugin; None if it is not known.

        :param whole: no label says that the node's GPUs are shared; then a configuration that may
            be that of other nodes says nothing of this one.
        """
        key = node.metadata.labels.get(nvidia.PLUGIN_CONFIG, "")
        text = self._config(key) if key or self._config_map or not whole else None
        found = nvidia.replication_of(text) if text is not None else None
        problem = f"configuration {key}: {found}" if isinstance(found, str) else ""
        if text is None and key and self._config_map:
            problem = f"expected the key {key} in ConfigMap {self._config_map}"
        self._snapshot.set_problem(node.metadata.name, nvidia.PLUGIN_CONFIG, problem)
        return None if isinstance(found, str) else found

    # Choice ----------------------------------------------------------------------------------

    def held(self, pod: PodInfo, gpus: Sequence[OfferedGpu]) -> tuple[Share, ...] | str:
        """Return nothing: the device plugin tells nobody what it gave out."""
        return ()

    def choose(self, pod: PodInfo, request: ShareRequest, node: GpusInUse) -> Choice:
        """Choose the GPUs that the plugin would probably take."""
        assert isinstance(request.detail, tuple)
        shares: list[Share] = []
        for asked in request.detail:
            own = [
                (gpu, used)
                for gpu, used in zip(node.gpus, node.used, strict=True)
                if isinstance(gpu.detail, _Offer) and gpu.detail.resource == asked.resource
            ]
            if not own:
                # The node does not offer it, or with claims for devices: others decide on that.
                continue
            reason = self._refusal(asked, own)
            if reason:
                advice = "" if _offer_of(own).problem else f"with one {asked.resource} a container"
                return Choice(reason=reason, resolvable=False, advice=advice)
            found = _spread(asked.count, own)
            if not found:
                return Choice(reason=f"Insufficient {asked.resource}")
            shares += found
        return Choice(tuple(shares) or (Share(node.gpus[0].index, 0, slots=0),))

    @staticmethod
    def _refusal(asked: _Asked, own: Sequence[tuple[OfferedGpu, GpuUse]]) -> str:
        """Return why these GPUs never serve a request; "" if they may."""
        offer = _offer_of(own)
        if offer.problem:
            return offer.problem
        if asked.most > 1 and offer.only_one:
            return nvidia.too_large(asked.resource, asked.most)
        return ""

    def written(
        self, pod: PodInfo, node: Node, gpus: Sequence[OfferedGpu], own: Sequence[Share], now: float
    ) -> Written:
        """Return nothing to write: the device plugin decides on the node."""
        return Written()


def _offer_of(own: Sequence[tuple[OfferedGpu, GpuUse]]) -> _Offer:
    """Return how GPUs of one resource are offered."""
    offer = own[0][0].detail
    assert isinstance(offer, _Offer), "the GPUs are this adapter's"
    return offer


def _most(pod: PodInfo, resource: str) -> int:
    """Return the most that a container of a pod requests of a resource."""
    containers: Iterator[Container] = iter((*pod.spec.init_containers, *pod.spec.containers))
    return max(
        (
            (limits.get(resource) or requests[resource]).units
            for limits, requests in ((c.resources.limits, c.resources.requests) for c in containers)
            if resource in limits or resource in requests
        ),
        default=0,
    )


def _gpus(
    offered: Mapping[str, int], labels: GpuLabels, replication: Replication | None
) -> Iterator[OfferedGpu]:
    index = 0
    for resource in sorted(offered, key=lambda name: (name != nvidia.GPU, name)):
        base = resource.removesuffix(".shared")
        configured = replication.replicas.get(resource, 0) if replication is not None else 0
        replicas = max(1, configured, labels.replicas.get(base, 0))
        profile = nvidia.mig_profile(resource) or (labels.profile if base == nvidia.GPU else "")
        compute, memory = _size(profile, labels)
        shared = replicas > 1 or nvidia.is_shared(resource)
        if labels.only_one is not None:
            only_one = shared and labels.only_one
        elif configured and replication is not None:
            only_one = replication.only_one
        else:
            only_one = shared and labels.strategy == "mps"
        offer = _Offer(resource, replicas, only_one, labels.in_change)
        mode = "mig" if profile else labels.strategy if replicas > 1 else ""
        for _ in range(min(-(-offered[resource] // replicas), _MOST_GPUS + 1)):
            yield OfferedGpu(
                index,
                model=labels.product,
                compute=compute,
                memory=memory,
                slots=replicas,
                mode=mode,
                kind=f"mig-{profile}" if profile else "gpu",
                detail=offer,
            )
            index += 1


def _size(profile: str, labels: GpuLabels) -> tuple[int, int]:
    """Return the compute and memory of a GPU, or of a MIG device with a profile."""
    if not profile:
        return WHOLE, labels.memory * MEBIBYTE
    gpu = mig_gpu(labels.product.partition("-MIG-")[0])
    known = gpu.partitions if gpu is not None else ()
    for one in known:
        if one.name == profile:
            return one.compute, one.memory
    gigabytes = profile.partition(".")[2].partition("gb")[0]
    compute = min(WHOLE, WHOLE * int(profile.partition("g")[0]) // 7)
    return compute, int(gigabytes) * 1024 * MEBIBYTE


def _spread(count: int, own: Sequence[tuple[OfferedGpu, GpuUse]]) -> list[Share]:
    """Give out replicas one by one, each on the GPU with the fewest taken; empty if too few."""
    taken = {gpu.index: used.slots for gpu, used in own}
    mine = dict.fromkeys(taken, 0)
    gpus = {gpu.index: gpu for gpu, _ in own}
    for _ in range(count):
        free = [index for index, gpu in gpus.items() if taken[index] < gpu.slots]
        if not free:
            return []
        chosen = min(free, key=lambda index: taken[index])
        taken[chosen] += 1
        mine[chosen] += 1
    return [_share(gpus[index], slots) for index, slots in mine.items() if slots]


def _share(gpu: OfferedGpu, slots: int) -> Share:
    """Return what replicas count for; without MPS, nobody keeps a pod to a part of the memory."""
    bounded = gpu.slots == 1 or gpu.mode == "mps"
    memory = gpu.memory * slots // gpu.slots if bounded else 0
    return Share(gpu.index, gpu.compute * slots // gpu.slots, memory, slots)
