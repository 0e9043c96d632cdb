"""Autoscalers: which object's replicas they set."""

from __future__ import annotations

from bayplan.api.meta import ApiStruct, ObjectMeta

__all__ = ["HorizontalPodAutoscaler", "HorizontalPodAutoscalerSpec", "ScaleTarget"]


class ScaleTarget(ApiStruct, frozen=True):
    """spec.scaleTargetRef: the object in the autoscaler's namespace whose replicas it sets."""

    kind: str = ""
    name: str = ""
    api_version: str = ""


class HorizontalPodAutoscalerSpec(ApiStruct, frozen=True):
    """spec of an autoscaler, without what it scales by, and how far."""

    scale_target_ref: ScaleTarget = ScaleTarget()


class HorizontalPodAutoscaler(ApiStruct, frozen=True):
    """autoscaling HorizontalPodAutoscaler."""

    metadata: ObjectMeta = ObjectMeta()
    spec: HorizontalPodAutoscalerSpec = HorizontalPodAutoscalerSpec()
