"""The arguments of Koordinator's DeviceShare plugin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pydantic

from bayplan import Args
from bayplan.dialects.koordinator.requests import NPU_CORE
from bayplan.dialects.koordinator.templates import Templates, read_templates
from bayplan_plugins.gpus.vendors.koordinator.scoring import DEFAULT_WEIGHTS, Scorer

__all__ = ["KoordinatorArgs", "ScoringStrategy", "TemplatesConfig", "WeightedResource"]


class WeightedResource(Args):
    """A resource and its weight among the others."""

    name: str
    weight: int = pydantic.Field(default=1, ge=1, le=100)


class ScoringStrategy(Args):
    """How nodes, and devices that are equally near, are scored."""

    type: Literal["LeastAllocated", "MostAllocated"] = "LeastAllocated"
    resources: tuple[WeightedResource, ...] = ()


class TemplatesConfig(Args):
    """Where templates for parts of a GPU are, and which resources need one."""

    config_map_namespace: str = "koordinator-system"
    config_map_name: str = "gpu-shared-resource-templates"
    matched_resources: tuple[str, ...] = (NPU_CORE,)


class KoordinatorArgs(Args):
    """The arguments of Koordinator's DeviceShare (pkg/scheduler/apis/config, v1.8).

    ``allocator`` and ``disableDeviceNUMATopologyAlignment`` have no effect.
    ``gpuSharedResourceTemplates`` is bayplan's: templates besides those of the ConfigMap, by
    "<vendor>-<model>" and name.
    """

    allocator: str = ""
    scoring_strategy: ScoringStrategy = ScoringStrategy()
    disable_device_numa_topology_alignment: bool = pydantic.Field(
        default=False, alias="disableDeviceNUMATopologyAlignment"
    )
    gpu_shared_resource_templates_config: TemplatesConfig = TemplatesConfig()
    gpu_shared_resource_templates: Mapping[str, Any] = pydantic.Field(
        default_factory=dict, alias="gpuSharedResourceTemplates"
    )

    @pydantic.field_validator("gpu_shared_resource_templates")
    @classmethod
    def _read(cls, value: Mapping[str, Any]) -> Templates:
        return read_templates(dict(value))

    @property
    def rates_nodes(self) -> bool:
        """Whether a scoring strategy is stated, so that nodes are scored by it."""
        return "scoring_strategy" in self.model_fields_set

    @property
    def scorer(self) -> Scorer:
        """The scorer of the scoring strategy."""
        strategy = self.scoring_strategy
        weights = tuple((one.name, one.weight) for one in strategy.resources)
        return Scorer(strategy.type == "MostAllocated", weights or DEFAULT_WEIGHTS)
