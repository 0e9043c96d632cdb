"""TensorFusion's GPU, as its node agent publishes it."""

from __future__ import annotations

import msgspec

from bayplan.api.meta import ApiStruct, ObjectMeta
from bayplan.api.quantity import Quantity

__all__ = ["TensorFusionAmounts", "TensorFusionGpu", "TensorFusionGpuStatus"]


class TensorFusionAmounts(ApiStruct, frozen=True):
    """Compute in TFLOPS, and memory in bytes."""

    tflops: Quantity = Quantity("0")
    vram: Quantity = Quantity("0")


class TensorFusionGpuStatus(ApiStruct, frozen=True):
    """status of a GPU. ``node_selector`` selects its node; ``used_by`` is who gives it out."""

    phase: str = ""
    vendor: str = ""
    capacity: TensorFusionAmounts | None = None
    uuid: str = ""
    index: int | None = None
    numa_node: int | None = msgspec.field(default=None, name="numaNode")
    node_selector: dict[str, str] = {}
    gpu_model: str = ""
    used_by: str = ""


class TensorFusionGpu(ApiStruct, frozen=True):
    """tensor-fusion.ai/v1 GPU."""

    metadata: ObjectMeta = ObjectMeta()
    status: TensorFusionGpuStatus = TensorFusionGpuStatus()

    @property
    def node(self) -> str:
        """The name of its node, "" if it does not say."""
        return self.status.node_selector.get("kubernetes.io/hostname", "")
