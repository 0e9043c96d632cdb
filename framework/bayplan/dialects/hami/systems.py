"""What HAMi and Volcano's vGPU call the same things.

HAMi: Project-HAMi/HAMi, pkg/device/nvidia and pkg/util. Volcano: volcano-sh/volcano,
pkg/scheduler/api/devices/nvidia/vgpu.
"""

from __future__ import annotations

import msgspec

__all__ = ["HAMI", "MIG_ALLOCATIONS", "VOLCANO", "Annotations", "Resources", "System"]

MIG_ALLOCATIONS = "hami.io/vgpu-mig-allocations"


class Resources(msgspec.Struct, frozen=True):
    """The resources of a container: how many GPUs, and what it needs of each of them.

    ``memory`` is counted in MiB, ``percentage`` is of a GPU's memory, ``cores`` of its compute.
    An empty name is a resource that does not exist.
    """

    count: str
    memory: str
    percentage: str
    cores: str

    @property
    def names(self) -> tuple[str, ...]:
        """All names, the count first."""
        return tuple(filter(None, (self.count, self.memory, self.percentage, self.cores)))


class Annotations(msgspec.Struct, frozen=True):
    """The annotations of pods that tell the device plugin what they got, and the node's lock.

    ``lock`` is empty where the device plugin finds its pod without one.
    """

    node: str
    time: str
    allocated: str
    to_allocate: str
    phase: str
    bind_time: str
    mode: str
    use_uuids: str
    not_uuids: str
    lock: str


class System(msgspec.Struct, frozen=True):
    """A system of virtual GPUs."""

    name: str
    resources: Resources
    annotations: Annotations


HAMI = System(
    "HAMi",
    Resources(
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/gpucores",
    ),
    Annotations(
        node="hami.io/vgpu-node",
        time="hami.io/vgpu-time",
        allocated="hami.io/vgpu-devices-allocated",
        to_allocate="hami.io/vgpu-devices-to-allocate",
        phase="hami.io/bind-phase",
        bind_time="hami.io/bind-time",
        mode="nvidia.com/vgpu-mode",
        use_uuids="nvidia.com/use-gpuuuid",
        not_uuids="nvidia.com/nouse-gpuuuid",
        lock="hami.io/mutex.lock",
    ),
)
VOLCANO = System(
    "Volcano vGPU",
    Resources(
        "volcano.sh/vgpu-number",
        "volcano.sh/vgpu-memory",
        "volcano.sh/vgpu-memory-percentage",
        "volcano.sh/vgpu-cores",
    ),
    Annotations(
        node="volcano.sh/vgpu-node",
        time="volcano.sh/vgpu-time",
        allocated="volcano.sh/vgpu-ids-new",
        to_allocate="volcano.sh/devices-to-allocate",
        phase="volcano.sh/bind-phase",
        bind_time="volcano.sh/bind-time",
        mode="volcano.sh/vgpu-mode",
        use_uuids="volcano.sh/vgpu-use-gpuuuid",
        not_uuids="volcano.sh/vgpu-nouse-gpuuuid",
        lock="",
    ),
)
