"""The adapters of HAMi and of Volcano's vGPU for shares of GPUs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

import msgspec
from msgspec import structs
from msgspec.structs import replace

from bayplan import PodInfo
from bayplan.api import Node, ResourceQuota
from bayplan.api.configmap import ConfigMap
from bayplan.api.gpu_shares import MEBIBYTE, OfferedGpu, Share
from bayplan.api.pod import Container
from bayplan.cluster.protocol import BindLock
from bayplan.dialects.hami.assignments import (
    Assigned,
    assignments_text,
    partitions_text,
    read_assignments,
    read_partitions,
    with_partitions,
)
from bayplan.dialects.hami.device_config import device_config_of
from bayplan.dialects.hami.node_lock import LOCK_SECONDS
from bayplan.dialects.hami.policies import GpuOptions, gpu_option_names, gpu_options_of
from bayplan.dialects.hami.requests import (
    ContainerRequest,
    RequestRules,
    admitted,
    container_request,
)
from bayplan.dialects.hami.systems import HAMI, MIG_ALLOCATIONS, VOLCANO, System
from bayplan.snapshot import Snapshot, SpecFacts
from bayplan.topology.machine.readers.hami_register import (
    HANDSHAKE,
    REGISTER,
    VOLCANO_HANDSHAKE,
    VOLCANO_REGISTER,
    RegisteredGpu,
    read_register,
    read_volcano_register,
)
from bayplan_plugins.gpus.namespace_use import NamespaceUse
from bayplan_plugins.gpus.vendors.adapter import (
    Choice,
    FitAdapter,
    GpusInUse,
    ScoringAdapter,
    ShareRequest,
    SourceAdapter,
    Written,
)
from bayplan_plugins.gpus.vendors.hami.containers import ContainerKind, Wanted, allocate
from bayplan_plugins.gpus.vendors.hami.device import MIG, PERCENT, Device, device_of
from bayplan_plugins.gpus.vendors.hami.fit import Pick, takes
from bayplan_plugins.gpus.vendors.hami.order import node_score, preference
from bayplan_plugins.gpus.vendors.hami.quota import NO_LIMITS, QuotaLimits, within_quota
from bayplan_plugins.gpus.vendors.hami.registered import handshake_problem, registered_gpus
from bayplan_plugins.gpus.vendors.hami.settings import HamiArgs
from bayplan_plugins.gpus.vendors.hami.shares import shares_of

__all__ = ["VirtualGpuAdapter", "hami_adapter", "volcano_adapter"]

_ALLOCATING = "allocating"
_LACKING = ("Exhausted", "Insufficient", "Exclusive", "ResourceQuota", "Infeasible")
"""Parts of the reasons that other pods' end may undo."""
_NO_DEVICE = "NodeInsufficientDevice"
_MOST_KNOWN = 4096
_VANISHED = -1
"""The index of a GPU that the node no longer has."""


class _Runtime(msgspec.Struct, frozen=True):
    """What a device plugin does: how it registers GPUs and which containers it serves."""

    system: System
    register: str
    read: Callable[[str], list[RegisteredGpu]]
    handshake: str
    serves_init: bool
    rules: RequestRules


class _HamiRequest(msgspec.Struct, frozen=True):
    """What a pod wants: of each container, and which GPUs. The detail of its request.

    ``quota`` is what its namespace may have, and has, if there is a limit: it decides, too.
    ``denied`` says why no node of this adapter takes the pod.
    """

    wanted: tuple[Wanted, ...]
    options: GpuOptions
    quota: Hashable = None
    denied: str = ""


def hami_adapter(snapshot: Snapshot) -> VirtualGpuAdapter:
    """Return the adapter of HAMi."""
    return VirtualGpuAdapter(
        snapshot, _Runtime(HAMI, REGISTER, read_register, HANDSHAKE, True, RequestRules())
    )


def volcano_adapter(snapshot: Snapshot) -> VirtualGpuAdapter:
    """Return the adapter of Volcano's vGPU, whose device plugin serves no init containers."""
    rules = RequestRules(VOLCANO.resources, whole_gpus_are_exclusive=False)
    return VirtualGpuAdapter(
        snapshot,
        _Runtime(VOLCANO, VOLCANO_REGISTER, read_volcano_register, VOLCANO_HANDSHAKE, False, rules),
    )


class VirtualGpuAdapter(SourceAdapter, FitAdapter, ScoringAdapter):
    """Shares of GPUs that HAMi-core isolates, or MIG partitions made when they are needed."""

    def __init__(self, snapshot: Snapshot, runtime: _Runtime) -> None:
        self._snapshot = snapshot
        self._runtime = runtime
        self._system = runtime.system
        self.name = runtime.system.name
        self.reads = gpu_option_names(runtime.system)
        self._use = snapshot.shared(NamespaceUse, NamespaceUse)
        self._limits: dict[str, QuotaLimits] = {}
        self._limits_version = -1
        self._known: dict[SpecFacts, tuple[Wanted, ...]] = {}
        self._args = self._stated = HamiArgs()
        self._config_problem = ""

    def use(self, args: HamiArgs) -> None:
        """Use other settings than the default ones."""
        self._stated = args
        key = args.device_config_map
        self._configure(self._snapshot.objects(ConfigMap).get(key) if key else None)

    def follow(self, changed: Callable[[str | None], None]) -> None:
        """Call ``changed`` when HAMi's configuration of devices changes."""

        def report(old: ConfigMap | None, new: ConfigMap | None) -> None:
            found = new or old
            if found is not None and found.key == self._stated.device_config_map:
                self._configure(new)
                changed(None)

        self._snapshot.on_object(ConfigMap, report)

    def _configure(self, found: ConfigMap | None) -> None:
        """Take the settings of HAMi's ConfigMap where the profile states none."""
        self._args, self._config_problem = self._stated, ""
        try:
            if found is not None:
                self._args = self._stated.with_config(device_config_of(found.data))
        except ValueError as exc:
            self._config_problem = str(exc)
        if self._system is HAMI:
            self._runtime = replace(self._runtime, rules=self._args.rules)
            self._limits_version = -1
        self._known.clear()

    # What pods request -------------------------------------------------------------------------

    def request(self, pod: PodInfo) -> ShareRequest | None:
        """Return the shares that a pod requests; whole GPUs are implicit.

        HAMi's webhook denies what becomes a problem here.
        """
        if not self._is_asked(pod):
            return None
        try:
            wanted = self._wanted(pod)
            options = self._options(pod)
        except ValueError as exc:
            return ShareRequest(self.name, 0, problem=str(exc))
        stated = [one.request for one in wanted if one.request is not None]
        if not stated:
            return None
        largest = max(stated, key=lambda one: (one.count, one.cores, one.memory))
        shared = largest.percentage != 100
        several = shared and not _without_mig(options)
        limits = self._limits_of(pod.namespace)
        quota = (limits, self._taken(pod)) if limits != NO_LIMITS else None
        word = self._word(pod)
        return ShareRequest(
            self.name,
            1 if several else largest.count,
            min(largest.cores, 100) * PERCENT,
            largest.memory * MEBIBYTE,
            0.0 if shared else 1.0,
            _HamiRequest(wanted, options, quota, self._denied(pod)),
            implicit=not word,
            rated=bool(options.node_policy),
            word=word,
            apart=largest.count,
        )

    def _options(self, pod: PodInfo) -> GpuOptions:
        """Return the options of a pod, with the default policies where it names none."""
        options = gpu_options_of(pod.annotations, self._system)
        return replace(
            options,
            policy=options.policy or self._args.gpu_policy,
            node_policy=options.node_policy or self._args.node_scheduler_policy,
        )

    def _is_asked(self, pod: PodInfo) -> bool:
        if not pod.facts.wants_devices:
            return False
        return any(name in pod.requests for name in self._system.resources.names)

    def _word(self, pod: PodInfo) -> str:
        """Return the first name that a pod uses which no other device plugin knows; "" for none."""
        names = self._system.resources.names
        own = names if self._system is VOLCANO else names[1:]
        return next((name for name in own if name in pod.requests), "")

    def _denied(self, pod: PodInfo) -> str:
        """Return why HAMi denies a pod whose containers see all GPUs anyway; "" if it does not."""
        if self._system is not HAMI:
            return ""
        for _, one in _containers(pod):
            if one.security_context is not None and one.security_context.privileged:
                return f'container "{one.name}": HAMi gives no shares to pods with privileged ones'
        return ""

    def _wanted(self, pod: PodInfo) -> tuple[Wanted, ...]:
        known = self._known.get(pod.facts)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[pod.facts] = self._read(pod)
        return known

    def _read(self, pod: PodInfo) -> tuple[Wanted, ...]:
        found = []
        for kind, container in _containers(pod):
            try:
                request = self._request_of(container)
            except ValueError as exc:
                raise ValueError(f'container "{container.name}": {exc}') from None
            if request is not None and kind is not ContainerKind.APP and not self._serves_init:
                raise ValueError(
                    f'container "{container.name}": {self.name} serves no init containers'
                )
            found.append(Wanted(kind, request))
        return tuple(found)

    @property
    def _serves_init(self) -> bool:
        return self._runtime.serves_init

    def _request_of(self, container: Container) -> ContainerRequest | None:
        rules = self._runtime.rules
        return container_request(admitted(container.resources, rules), rules)

    # What nodes offer --------------------------------------------------------------------------

    def gpus(self, node: Node) -> tuple[OfferedGpu, ...] | str | None:
        """Return the GPUs that the device plugin registers; none are usable once it is gone."""
        runtime = self._runtime
        found = registered_gpus(
            node,
            runtime.register,
            runtime.read,
            self._system.resources.count,
            runtime.handshake,
            self._snapshot.unix_time,
        )
        problem = handshake_problem(node.metadata.annotations.get(runtime.handshake, ""))
        if found is None:
            problem = ""
        self._snapshot.set_problem(node.metadata.name, f"annotation {runtime.handshake}", problem)
        if self._stated.device_config_map and found is not None:
            subject = f"ConfigMap {self._stated.device_config_map}"
            self._snapshot.set_problem(node.metadata.name, subject, self._config_problem)
        undivided = _without_profiles(found) if isinstance(found, tuple) else ""
        subject = f"annotation {runtime.register}"
        self._snapshot.set_problem(node.metadata.name, subject, undivided)
        if not self._args.mig_profile_allowlist or not isinstance(found, tuple):
            return found
        return tuple(
            structs.replace(gpu, profiles=self._args.allowed(gpu.model, gpu.profiles))
            for gpu in found
        )

    def held(self, pod: PodInfo, gpus: Sequence[OfferedGpu]) -> tuple[Share, ...] | str:
        """Return what a pod's annotations say that it holds, also of GPUs that have vanished.

        A pod without a node has none of what its annotations say: another scheduler wrote them
        and then failed to bind it.
        """
        names, annotations = self._system.annotations, pod.annotations
        node = pod.spec.node_name
        name = names.allocated if names.allocated in annotations else names.to_allocate
        if not node or name not in annotations:
            return ()
        other = annotations.get(names.node, node)
        if other != node:
            return f"annotation {names.node}: expected {node}, where the pod is, got {other[:60]}"
        kinds = [kind for kind, _ in _containers(pod)]
        first = 0 if self._serves_init else _init_count(pod)
        try:
            assigned = read_assignments(annotations[name], len(kinds) - first)
        except ValueError as exc:
            return f"annotation {name}: {exc}"
        try:
            if MIG_ALLOCATIONS in annotations:
                partitions = read_partitions(annotations[MIG_ALLOCATIONS])
                assigned = with_partitions(assigned, partitions)
        except ValueError as exc:
            return f"annotation {MIG_ALLOCATIONS}: {exc}"
        wrong = _wrong_partition(assigned, gpus)
        if wrong:
            return f"annotation {MIG_ALLOCATIONS}: {wrong}"
        index = {gpu.uuid: gpu.index for gpu in gpus}
        parts = (
            (number, index.get(one.uuid, _VANISHED), one)
            for number, devices in enumerate(assigned, first)
            for one in devices
        )
        return shares_of(kinds, parts)

    # The choice --------------------------------------------------------------------------------

    def fits(self, pod: PodInfo, request: ShareRequest, node: GpusInUse) -> Choice:
        """Return a GPU for a pod that requests one; else the choice.

        None for a pod that HAMi denies; one that runs all the same keeps its GPUs.
        """
        asked = request.detail
        assert isinstance(asked, _HamiRequest), "the request is this adapter's"
        if asked.denied:
            return Choice(reason=asked.denied, resolvable=False)
        stated = [one.request for one in asked.wanted if one.request is not None]
        if len(stated) == 1 and stated[0].count == 1 and asked.quota is None:
            for gpu, use in zip(node.gpus, node.used, strict=True):
                if takes(device_of(gpu, use), stated[0], asked.options):
                    return Choice((Share(gpu.index, request.compute, request.memory),))
        return self.choose(pod, request, node)

    def score(self, request: ShareRequest, node: GpusInUse) -> float:
        """Return how full a node's GPUs are, or how empty, as the pod's policy wants."""
        asked = request.detail
        assert isinstance(asked, _HamiRequest), "the request is this adapter's"
        pairs = zip(node.gpus, node.used, strict=True)
        score = node_score([device_of(gpu, use) for gpu, use in pairs])
        return preference(score, asked.options.node_policy)

    def choose(self, pod: PodInfo, request: ShareRequest, node: GpusInUse) -> Choice:
        """Choose the GPUs of each container, in HAMi's order."""
        asked = request.detail
        assert isinstance(asked, _HamiRequest), "the request is this adapter's"
        devices = [device_of(gpu, use) for gpu, use in zip(node.gpus, node.used, strict=True)]
        kinds = [one.kind for one in asked.wanted]
        limits = self._limits_of(pod.namespace)
        taken = self._taken(pod)

        def quota(earlier: Sequence[Sequence[Pick]], picks: Sequence[Pick], more: Pick) -> bool:
            return within_quota(limits, taken, kinds, earlier, picks, more)

        found = allocate(
            devices,
            asked.wanted,
            asked.options,
            None if limits == NO_LIMITS else quota,
            None if self._system is HAMI else _by_index,
        )
        if isinstance(found, str):
            return Choice(reason=found, resolvable=_is_resolvable(found))
        parts = (
            (number, pick.device.index, _assigned(pick))
            for number, picks in enumerate(found)
            for pick in picks
        )
        return Choice(shares_of(kinds, parts))

    def _taken(self, pod: PodInfo) -> tuple[int, int]:
        """Return the MiB and the percent that the other pods of a pod's namespace hold."""
        memory, compute = self._use.of(self.name, pod.namespace, pod.uid)
        return -(-memory // MEBIBYTE), -(-compute // PERCENT)

    def _limits_of(self, namespace: str) -> QuotaLimits:
        if self._system is not HAMI:
            return NO_LIMITS
        if self._limits_version != self._snapshot.objects_version:
            self._limits_version = self._snapshot.objects_version
            self._limits = _limits(
                self._snapshot.objects(ResourceQuota).values(), self._runtime.rules
            )
            self._use.limited = frozenset(self._limits)
        return self._limits.get(namespace, NO_LIMITS)

    # What the runtime learns ------------------------------------------------------------------

    def written(
        self, pod: PodInfo, node: Node, gpus: Sequence[OfferedGpu], own: Sequence[Share], now: float
    ) -> Written:
        """Return the annotations by which the device plugin knows the pod's devices.

        The plugin serves the pod that the node's lock names, so the lock is taken just before the
        pod is bound.
        """
        names = self._system.annotations
        wanted = self._wanted(pod)
        by_index = {gpu.index: gpu for gpu in gpus}
        devices: list[list[Assigned]] = [[] for _ in wanted]
        for share in own:
            number = share.container if share.container >= 0 else _next_container(wanted, devices)
            gpu, request = by_index[share.gpu], wanted[number].request
            assert request is not None, "only containers that request GPUs hold shares"
            devices[number].append(_assignment(gpu, share, request))
        first = 0 if self._serves_init else _init_count(pod)
        text = assignments_text(devices[first:], ended=self._system is HAMI)
        time = str(int(now))
        annotations = {
            names.node: node.metadata.name,
            names.time: time,
            names.to_allocate: text,
            names.allocated: text,
            names.phase: _ALLOCATING,
            names.bind_time: time,
        }
        partitions = partitions_text(devices)
        if partitions:
            annotations[MIG_ALLOCATIONS] = partitions
        lock = BindLock(names.lock, LOCK_SECONDS, names.allocated) if names.lock else None
        return Written(annotations, lock=lock)


def _without_profiles(gpus: Sequence[OfferedGpu]) -> str:
    """Say which GPU cannot be divided though it is in MIG mode; "" if all can.

    Such device plugins follow whole-GPU geometries in a file of theirs (HAMi up to 2.9, Volcano).
    """
    found = next((gpu for gpu in gpus if gpu.mode == MIG and not gpu.profiles), None)
    if found is None:
        return ""
    return (
        f"{found.uuid} is in MIG mode, and its device plugin registers no migProfiles for it: "
        "nobody gets a part of it (knownMigGeometries are not supported)"
    )


def _by_index(device: Device, _: float) -> tuple[float, ...]:
    return (device.index,)


def _containers(pod: PodInfo) -> Iterator[tuple[ContainerKind, Container]]:
    for container in pod.spec.init_containers:
        stays = container.restart_policy == "Always"
        yield ContainerKind.SIDECAR if stays else ContainerKind.INIT, container
    for container in pod.spec.containers:
        yield ContainerKind.APP, container


def _init_count(pod: PodInfo) -> int:
    return len(pod.spec.init_containers)


def _without_mig(options: GpuOptions) -> bool:
    """Tell whether a pod excludes GPUs in MIG mode, which may serve a container twice."""
    return bool(options.modes) and not any(MIG in mode for mode in options.modes)


def _is_resolvable(reason: str) -> bool:
    return reason != _NO_DEVICE and any(part in reason for part in _LACKING)


def _limits(quotas: Iterable[ResourceQuota], rules: RequestRules) -> dict[str, QuotaLimits]:
    found: dict[str, QuotaLimits] = {}
    for quota in quotas:
        limits = QuotaLimits.of(quota.spec.hard, rules)
        if limits != NO_LIMITS:
            space = quota.metadata.namespace
            found[space] = limits.stricter(found.get(space, NO_LIMITS))
    return found


def _assigned(pick: Pick) -> Assigned:
    return Assigned(pick.device.uuid, "", pick.memory, pick.cores, pick.partition)


def _next_container(wanted: Sequence[Wanted], devices: Sequence[Sequence[Assigned]]) -> int:
    """Return the first container that has fewer GPUs than it requests."""
    return next(
        number
        for number, (one, own) in enumerate(zip(wanted, devices, strict=True))
        if one.request is not None and len(own) < one.request.count
    )


def _assignment(gpu: OfferedGpu, share: Share, request: ContainerRequest) -> Assigned:
    """Return what a container may use of a GPU: an init container's share may say less."""
    if share.partition is not None:
        memory, cores = share.memory // MEBIBYTE, share.compute // PERCENT
    else:
        memory, cores = request.memory_of(gpu.memory // MEBIBYTE), min(request.cores, 100)
    return Assigned(gpu.uuid, request.type, memory, cores, share.partition)


def _wrong_partition(containers: Sequence[Sequence[Assigned]], gpus: Sequence[OfferedGpu]) -> str:
    """Return which device of a pod is no partition that its GPU can have; "" if all are."""
    known = {gpu.uuid: gpu for gpu in gpus if gpu.mode == MIG and gpu.profiles}
    for one in (device for devices in containers for device in devices):
        gpu = known.get(one.uuid)
        if gpu is None:
            continue
        part = one.partition
        if part is None:
            return f"expected the partition of {one.uuid[:40]}"
        places = {(own.name, start, own.size) for own in gpu.profiles for start in own.starts}
        if (part.profile, part.start, part.size) not in places:
            return (
                f"expected a place that {one.uuid[:40]} has for {part.profile[:40]}, got start "
                f"{part.start} and size {part.size}"
            )
    return ""
