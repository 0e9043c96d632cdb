"""MIG instances made and removed through NVML, the library of NVIDIA's driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from ctypes import byref, c_uint
from types import ModuleType
from typing import Any

from bayplan.errors import BayplanError
from bayplan.topology.machine.model import Gpu
from bayplan_dra.driver.prepare.checkpoint import MigInstance
from bayplan_dra.driver.publish.devices import GpuPartition

__all__ = ["NvmlInstances"]

_MOST_INSTANCES = 16
_COMPUTE_PROFILES = {1: 0, 2: 1, 3: 2, 4: 3, 6: 6, 7: 4, 8: 5}
"""NVML's kind of a compute instance that takes so many slices, all of a GPU instance."""


class NvmlInstances:
    """The MIG instances of this machine's GPUs: one compute instance in each GPU instance."""

    def make(self, gpu: Gpu, partition: GpuPartition) -> MigInstance:
        """Return the instance at this place of a GPU; make it if it is not there."""
        with _session(gpu, f"make {partition.profile.name} at {partition.start}") as (nvml, handle):
            profile = partition.profile
            place = nvml.c_nvmlGpuInstancePlacement_t(partition.start, profile.partition.size)
            instance = _at(nvml, handle, partition)
            if instance is None:
                instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                    handle, profile.id, byref(place)
                )
            kind = _COMPUTE_PROFILES[profile.partition.slices]
            compute = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, kind, 0)
            if not _computes(nvml, instance, compute.id):
                nvml.nvmlGpuInstanceCreateComputeInstance(instance, compute.id)
            number = nvml.nvmlGpuInstanceGetInfo(instance).id
            for made in _devices(nvml, handle):
                if made.gpu_instance == number:
                    return made
        raise BayplanError(f"{gpu.name}: NVML does not show the instance that it has made")

    def remove(self, gpu: Gpu, partition: GpuPartition) -> None:
        """Remove the instance at this place of a GPU; a missing one is fine."""
        with _session(gpu, f"remove {partition.profile.name} at {partition.start}") as found:
            nvml, handle = found
            instance = _at(nvml, handle, partition)
            if instance is None:
                return
            kind = _COMPUTE_PROFILES[partition.profile.partition.slices]
            compute = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, kind, 0)
            for one in _computes(nvml, instance, compute.id):
                nvml.nvmlComputeInstanceDestroy(one)
            nvml.nvmlGpuInstanceDestroy(instance)

    def there(self, gpu: Gpu) -> Mapping[tuple[int, int], MigInstance]:
        """Return the instances of a GPU by profile id and start."""
        found: dict[tuple[int, int], MigInstance] = {}
        with _session(gpu, "list instances") as (nvml, handle):
            by_number = {one.gpu_instance: one for one in _devices(nvml, handle)}
            for profile in gpu.profiles:
                for instance in _instances(nvml, handle, profile.id):
                    info = nvml.nvmlGpuInstanceGetInfo(instance)
                    # One that was only half made has no device yet.
                    nothing = MigInstance("", info.id, 0)
                    found[profile.id, info.placement.start] = by_number.get(info.id, nothing)
        return found


@contextmanager
def _session(gpu: Gpu, what: str) -> Iterator[tuple[ModuleType, Any]]:
    """Open NVML and yield it with the handle of a GPU.

    :raises BayplanError: for any error of NVML, naming what was tried.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            yield pynvml, pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        finally:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
    except pynvml.NVMLError as exc:
        raise BayplanError(f"{gpu.name}: cannot {what}: {exc}") from None


def _instances(nvml: ModuleType, handle: Any, profile: int) -> list[Any]:
    found = (nvml.c_nvmlGpuInstance_t * _MOST_INSTANCES)()
    count = c_uint()
    nvml.nvmlDeviceGetGpuInstances(handle, profile, found, byref(count))
    return list(found[: count.value])


def _at(nvml: ModuleType, handle: Any, partition: GpuPartition) -> Any:
    """Return the GPU instance at a place, None if there is none."""
    for instance in _instances(nvml, handle, partition.profile.id):
        if nvml.nvmlGpuInstanceGetInfo(instance).placement.start == partition.start:
            return instance
    return None


def _computes(nvml: ModuleType, instance: Any, profile: int) -> list[Any]:
    found = (nvml.c_nvmlComputeInstance_t * _MOST_INSTANCES)()
    count = c_uint()
    nvml.nvmlGpuInstanceGetComputeInstances(instance, profile, found, byref(count))
    return list(found[: count.value])


def _devices(nvml: ModuleType, handle: Any) -> Iterator[MigInstance]:
    for slot in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except nvml.NVMLError_NotFound:
            continue
        yield MigInstance(
            nvml.nvmlDeviceGetUUID(device),
            nvml.nvmlDeviceGetGpuInstanceId(device),
            nvml.nvmlDeviceGetComputeInstanceId(device),
        )
