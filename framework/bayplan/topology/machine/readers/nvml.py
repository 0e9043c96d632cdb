"""The GPUs of this machine as NVML, the library of NVIDIA's driver, reports them.

Drivers and GPUs differ in the functions that they support: a fact that is not supported stays
empty. Any other error marks the GPU as lost, and reading goes on.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes import byref, c_uint
from types import ModuleType
from typing import Any

import msgspec

from bayplan.api.gpu_shares import MEBIBYTE, WHOLE, PartitionProfile
from bayplan.errors import InputError
from bayplan.topology.machine.mig import MigProfile
from bayplan.topology.machine.model import Mig

__all__ = ["NvmlGpu", "read_driver_version", "read_gpus"]

_BUS_ID = re.compile(r"([0-9a-f]{4,8})(:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
_AFFINITY_WORDS = 128
"""Words of 64 CPUs each: the 8192 CPUs that a kernel can have."""
_HOPPER = 90
_UNSUPPORTED = (
    "INVALID_ARGUMENT",
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "NOT_FOUND",
    "FUNCTION_NOT_FOUND",
    "NO_DATA",
    "ARGUMENT_VERSION_MISMATCH",
    "DEPRECATED",
    "NOT_READY",
)
"""Errors that concern the call, not the health of the GPU."""


class NvmlGpu(msgspec.Struct):
    """A GPU as NVML reports it; a fact that is not reported is empty, 0 or None.

    ``bus_id`` is in lower case with a domain of four digits. ``memory`` is in bytes. ``compute`` is
    the CUDA compute capability times ten. ``peers`` counts the active NVLinks to other GPUs by
    their bus id ("" if NVML hides it), ``switch_links`` those to NVSwitches, ``other_links`` those
    to anything else. ``domain`` is ``<clusterUUID>.<cliqueID>`` if NVLink leaves the machine.
    ``cpus`` are the CPUs near the GPU. ``profiles`` are those of a GPU in MIG mode. ``lost`` says
    why the GPU cannot be used.
    """

    index: int
    uuid: str = ""
    bus_id: str = ""
    model: str = ""
    memory: int = 0
    compute: int = 0
    minor: int | None = None
    module: int | None = None
    peers: dict[str, int] = msgspec.field(default_factory=dict)
    switch_links: int = 0
    other_links: int = 0
    domain: str = ""
    cpus: frozenset[int] = frozenset()
    mig: tuple[Mig, ...] = ()
    profiles: tuple[MigProfile, ...] = ()
    lost: str = ""

    @property
    def links(self) -> int:
        """The number of active NVLinks."""
        return sum(self.peers.values()) + self.switch_links + self.other_links


def read_gpus() -> list[NvmlGpu]:
    """Read the GPUs of this machine, in the order of NVML's index.

    :raises InputError: when NVML is missing, cannot be used, or shows no GPU.
    """
    with _session() as nvml:
        reader = _NvmlReader(nvml)
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as exc:
            raise _unusable(str(exc)) from None
        gpus = [reader.gpu(index) for index in range(count)]
        reader.add_links(gpus)
    if not gpus:
        raise _unusable("NVML shows none")
    return [gpu for gpu, _ in gpus]


def read_driver_version() -> str:
    """Return the version of NVIDIA's driver, such as 580.65.06, or "" if unknown.

    :raises InputError: when NVML is missing or cannot be used.
    """
    with _session() as nvml:
        try:
            return str(nvml.nvmlSystemGetDriverVersion())
        except nvml.NVMLError:
            return ""


def _unusable(reason: str) -> InputError:
    return InputError(
        f"the GPUs of this machine cannot be read: {reason}. NVML (libnvidia-ml.so.1) comes with "
        "NVIDIA's driver; without it, give the output of nvidia-smi topo -m (--smi) or a machine's "
        "file or name (--machine)"
    )


@contextmanager
def _session() -> Iterator[ModuleType]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as exc:
        raise _unusable(str(exc)) from None
    try:
        yield pynvml
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


class _NvmlReader:
    """Reads GPUs through an open NVML session."""

    def __init__(self, nvml: ModuleType) -> None:
        self._nvml = nvml
        self._unsupported = {getattr(nvml, f"NVML_ERROR_{name}") for name in _UNSUPPORTED}

    def _ask(self, function: str, *arguments: Any) -> Any:
        """Call an NVML function; return None if it is not supported."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError as exc:
            if exc.value in self._unsupported:
                return None
            raise

    # A GPU -------------------------------------------------------------------------------

    def gpu(self, index: int) -> tuple[NvmlGpu, Any]:
        """Read a GPU without its NVLinks; return it with its handle, None if the GPU is lost."""
        gpu = NvmlGpu(index)
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            self._identify(gpu, handle)
            gpu.domain = self._domain(handle)
            gpu.cpus = self._cpus(handle)
            gpu.mig, gpu.profiles = self._mig(handle), self._profiles(handle)
        except self._nvml.NVMLError as exc:
            gpu.lost = str(exc)
            return gpu, None
        return gpu, handle

    def _identify(self, gpu: NvmlGpu, handle: Any) -> None:
        gpu.bus_id = _bus_id(self._ask("nvmlDeviceGetPciInfo", handle))
        gpu.uuid = self._ask("nvmlDeviceGetUUID", handle) or ""
        gpu.model = self._ask("nvmlDeviceGetName", handle) or ""
        gpu.memory = self._memory(handle)
        gpu.minor = self._ask("nvmlDeviceGetMinorNumber", handle)
        gpu.module = self._ask("nvmlDeviceGetModuleId", handle)
        major, minor = self._ask("nvmlDeviceGetCudaComputeCapability", handle) or (0, 0)
        gpu.compute = 10 * major + minor

    def _memory(self, handle: Any) -> int:
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        return int(memory.total) if memory is not None else 0

    def _cpus(self, handle: Any) -> frozenset[int]:
        words = self._ask(
            "nvmlDeviceGetCpuAffinityWithinScope",
            handle,
            _AFFINITY_WORDS,
            self._nvml.NVML_AFFINITY_SCOPE_NODE,
        )
        words = words or self._ask("nvmlDeviceGetCpuAffinity", handle, _AFFINITY_WORDS) or ()
        return frozenset(
            64 * index + bit
            for index, word in enumerate(words)
            if word
            for bit in range(64)
            if word >> bit & 1
        )

    def _in_mig_mode(self, handle: Any) -> bool:
        mode = self._ask("nvmlDeviceGetMigMode", handle)
        return mode is not None and bool(mode[0] == self._nvml.NVML_DEVICE_MIG_ENABLE)

    def _mig(self, handle: Any) -> tuple[Mig, ...]:
        if not self._in_mig_mode(handle):
            return ()
        count = self._ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0
        slots = [
            self._ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot) for slot in range(count)
        ]
        return tuple(
            Mig(
                self._ask("nvmlDeviceGetUUID", slot) or "",
                self._ask("nvmlDeviceGetGpuInstanceId", slot) or 0,
                self._ask("nvmlDeviceGetComputeInstanceId", slot) or 0,
                self._memory(slot),
            )
            for slot in slots
            if slot is not None
        )

    def _profiles(self, handle: Any) -> tuple[MigProfile, ...]:
        """Return the MIG profiles of a GPU in MIG mode, with all their places."""
        if not self._in_mig_mode(handle):
            return ()
        kinds = range(self._nvml.NVML_GPU_INSTANCE_PROFILE_COUNT)
        asked = [self._ask("nvmlDeviceGetGpuInstanceProfileInfo", handle, kind) for kind in kinds]
        known = [info for info in asked if info is not None]
        most = max((info.multiprocessorCount for info in known), default=1) or 1
        found = (self._profile(handle, info, most) for info in known)
        return tuple(sorted((one for one in found if one is not None), key=_by_size))

    def _profile(self, handle: Any, info: Any, most: int) -> MigProfile | None:
        """Return a profile; None for one that has no place.

        :param most: the multiprocessors of the largest profile.
        """
        count = c_uint()
        placements = "nvmlDeviceGetGpuInstancePossiblePlacements"
        if self._ask(placements, handle, info.id, None, byref(count)) is None or not count.value:
            return None
        places = (self._nvml.c_nvmlGpuInstancePlacement_t * count.value)()
        if self._ask(placements, handle, info.id, places, byref(count)) is None:
            return None
        starts = tuple(sorted(place.start for place in places))
        partition = PartitionProfile(
            info.name.removeprefix("MIG ") or f"{info.sliceCount}g",
            info.memorySizeMB * MEBIBYTE,
            WHOLE * info.multiprocessorCount // most,
            info.sliceCount,
            starts,
            places[0].size,
            info.instanceCount if info.instanceCount < len(starts) else 0,
        )
        engines = (
            ("copy-engines", info.copyEngineCount),
            ("decoders", info.decoderCount),
            ("encoders", info.encoderCount),
            ("jpeg-engines", info.jpegCount),
            ("ofa-engines", info.ofaCount),
        )
        return MigProfile(info.id, partition, info.multiprocessorCount, engines)

    # NVLink beyond the machine -----------------------------------------------------------

    def _domain(self, handle: Any) -> str:
        """Return the NVLink domain, "" if none.

        GPUs of an HGX server register with the fabric, too, but without a cluster UUID.
        """
        fabric = self._fabric(handle)
        if (
            fabric is None
            or fabric.state != self._nvml.NVML_GPU_FABRIC_STATE_COMPLETED
            or fabric.status != self._nvml.NVML_SUCCESS
            or not any(fabric.clusterUuid)
        ):
            return ""
        return f"{uuid.UUID(bytes=bytes(fabric.clusterUuid))}.{fabric.cliqueId}"

    def _fabric(self, handle: Any) -> Any:
        nvml = self._nvml
        for function, made in (
            ("nvmlDeviceGetGpuFabricInfoV", nvml.c_nvmlGpuFabricInfo_v3_t),
            ("nvmlDeviceGetGpuFabricInfoV", nvml.c_nvmlGpuFabricInfo_v2_t),
            ("nvmlDeviceGetGpuFabricInfo", nvml.c_nvmlGpuFabricInfo_t),
        ):
            fabric = made()
            if self._ask(function, handle, byref(fabric)) is not None:
                return fabric
        return None

    # NVLink ------------------------------------------------------------------------------

    def add_links(self, gpus: list[tuple[NvmlGpu, Any]]) -> None:
        """Read the NVLinks of every GPU that is not lost."""
        known = {gpu.bus_id for gpu, _ in gpus if gpu.bus_id}
        for gpu, handle in gpus:
            if handle is None:
                continue
            try:
                for link in range(self._nvml.NVML_NVLINK_MAX_LINKS):
                    if self._is_active(gpu, handle, link):
                        self._add_link(gpu, handle, link, known)
            except self._nvml.NVMLError as exc:
                gpu.lost = str(exc)

    def _is_active(self, gpu: NvmlGpu, handle: Any, link: int) -> bool:
        """Tell whether a link is active; try the way of the GPU's generation first.

        From Hopper on the state is a field (NCCL, src/misc/nvmlwrap.cc), before it is a function.
        A sleeping link wakes up with traffic, so it counts as active.
        """
        ways = [self._state_by_field, self._state_by_function]
        for way in ways if gpu.compute >= _HOPPER else reversed(ways):
            state = way(handle, link)
            if state is not None:
                active = (self._nvml.NVML_NVLINK_STATE_ACTIVE, self._nvml.NVML_NVLINK_STATE_SLEEP)
                return state in active
        return False

    def _state_by_function(self, handle: Any, link: int) -> int | None:
        state: int | None = self._ask("nvmlDeviceGetNvLinkState", handle, link)
        return state

    def _state_by_field(self, handle: Any, link: int) -> int | None:
        wanted = [(self._nvml.NVML_FI_DEV_NVLINK_GET_STATE, link)]
        values = self._ask("nvmlDeviceGetFieldValues", handle, wanted)
        if values is None or values[0].nvmlReturn in self._unsupported:
            return None
        if values[0].nvmlReturn != self._nvml.NVML_SUCCESS:
            raise self._nvml.NVMLError(values[0].nvmlReturn)
        return int(values[0].value.uiVal)

    def _add_link(self, gpu: NvmlGpu, handle: Any, link: int, known: set[str]) -> None:
        """Count a link by the kind of device at its other end.

        A virtual machine may hide the bus id of the other end; then its type decides, if known.
        """
        nvml = self._nvml
        kind = self._ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        remote = _bus_id(self._ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link))
        if kind in (None, nvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN) and remote:
            is_gpu = remote in known
            kind = (
                nvml.NVML_NVLINK_DEVICE_TYPE_GPU if is_gpu else nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
            )
        if kind == nvml.NVML_NVLINK_DEVICE_TYPE_GPU:
            gpu.peers[remote] = gpu.peers.get(remote, 0) + 1
        elif kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            gpu.switch_links += 1
        else:
            gpu.other_links += 1


def _by_size(profile: MigProfile) -> tuple[int, int, str]:
    return profile.partition.slices, profile.partition.size, profile.name


def _bus_id(info: Any) -> str:
    """Return the bus id of NVML's PCI information in the spelling of sysfs, "" if there is none."""
    text = info.busId if info is not None else ""
    match = _BUS_ID.fullmatch((text.decode() if isinstance(text, bytes) else text).lower())
    return f"{int(match[1], 16):04x}{match[2]}" if match else ""
