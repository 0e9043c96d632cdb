"""ComputePool and ElasticJob: accelerators pooled over nodes, and jobs that grow in them.

The kinds of ``ai.example.com/v1`` and those of ``bayplan.dev/v1alpha1`` have the same shape.
"""

from __future__ import annotations

from typing import Literal

from bayplan.api.meta import ApiStruct, Condition, ObjectMeta, explicit
from bayplan.api.pod import PodTemplate
from bayplan.api.quantity import Quantity

__all__ = [
    "AiComputePool",
    "AiElasticJob",
    "ComputePool",
    "ComputePoolSpec",
    "ComputePoolStatus",
    "ElasticJob",
    "ElasticJobSpec",
    "ElasticJobStatus",
    "ModelCapacity",
    "PoolCapacity",
    "PoolQuota",
    "Scaling",
    "Virtualization",
    "reserved_part",
]


class PoolCapacity(ApiStruct, frozen=True):
    """spec.capacity: what is pooled.

    ``total`` states what the operator expects; what the nodes offer counts. ``reserved`` is kept
    free for growth, in percent of the total, such as ``10%``.
    """

    total: dict[str, Quantity] = {}
    reserved: int | str = 0


def reserved_part(capacity: PoolCapacity) -> float | None:
    """Return the part of the total that is kept free, 0 to 1; None if it says no percentage."""
    text = str(capacity.reserved).removesuffix("%").strip()
    try:
        part = float(text) / 100
    except ValueError:
        return None
    return part if 0 <= part <= 1 else None


class Virtualization(ApiStruct, frozen=True):
    """spec.virtualization: how devices are shared, as the nodes offer it."""

    enabled: bool = False
    strategy: Literal["", "none", "mig", "time-slicing", "vgpu"] = ""


class PoolQuota(ApiStruct, frozen=True):
    """spec.quotas[]: what a tenant may have at most, and has whenever it asks.

    Resources without a limit have none; resources without a guarantee have none.
    """

    tenant: str
    limit: dict[str, Quantity] = {}
    guaranteed: dict[str, Quantity] = {}
    namespaces: tuple[str, ...] = ()
    """The namespaces whose pods are the tenant's; its own name without any."""


class ComputePoolSpec(ApiStruct, frozen=True):
    """spec of a compute pool: nodes by labels, and of their devices those that CEL selects."""

    pool_type: Literal["gpu", "npu", "cpu", "memory", "storage", "network", "mixed"] = explicit(
        "gpu"
    )
    node_selector: dict[str, str] = {}
    device_selector: str = ""
    capacity: PoolCapacity = PoolCapacity()
    virtualization: Virtualization = Virtualization()
    quotas: tuple[PoolQuota, ...] = ()


class ModelCapacity(ApiStruct, frozen=True):
    """status.models[]: the devices of one model."""

    model: str
    resource: str
    total: Quantity = explicit(Quantity(0))
    allocated: Quantity = explicit(Quantity(0))
    available: Quantity = explicit(Quantity(0))


class ComputePoolStatus(ApiStruct, frozen=True):
    """status of a compute pool: amounts of all its nodes by resource.

    ``total`` is ``allocated + available + reserved + maintenance + failed``.
    """

    phase: str = ""
    total: dict[str, Quantity] = {}
    allocated: dict[str, Quantity] = {}
    available: dict[str, Quantity] = {}
    reserved: dict[str, Quantity] = {}
    maintenance: dict[str, Quantity] = {}
    failed: dict[str, Quantity] = {}
    models: tuple[ModelCapacity, ...] = ()
    nodes: int = 0
    conditions: tuple[Condition, ...] = ()


class ComputePool(ApiStruct, frozen=True):
    """bayplan.dev/v1alpha1 ComputePool."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ComputePoolSpec = explicit(ComputePoolSpec())
    status: ComputePoolStatus = ComputePoolStatus()


class AiComputePool(ComputePool, frozen=True):
    """ai.example.com/v1 ComputePool."""


class Scaling(ApiStruct, frozen=True):
    """spec.scaling: how few and how many replicas, and the GPUs that each of them gets.

    ``gpu_per_replica`` sets ``nvidia.com/gpu`` of the first container where it names none.
    """

    min_replicas: int = explicit(1)
    max_replicas: int = explicit(1)
    gpu_per_replica: int = 0


class ElasticJobSpec(ApiStruct, frozen=True):
    """spec of an elastic job."""

    pool: str = ""
    priority: int = 0
    preemptible: bool = explicit(True)
    scaling: Scaling = explicit(Scaling())
    backoff_limit: int = explicit(6)
    replicas: int | None = None
    """How many replicas it has now; whoever resizes it sets them. None: the minimum."""
    template: PodTemplate = explicit(PodTemplate())


class ElasticJobStatus(ApiStruct, frozen=True):
    """status of an elastic job; ``phase`` is Pending, Running, Succeeded or Failed."""

    phase: str = ""
    replicas: int = 0
    ready: int = 0
    succeeded: int = 0
    failed: int = 0
    start_time: str | None = None
    completion_time: str | None = None
    conditions: tuple[Condition, ...] = ()


class ElasticJob(ApiStruct, frozen=True):
    """bayplan.dev/v1alpha1 ElasticJob."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ElasticJobSpec = explicit(ElasticJobSpec())
    status: ElasticJobStatus = ElasticJobStatus()


class AiElasticJob(ElasticJob, frozen=True):
    """ai.example.com/v1 ElasticJob."""
