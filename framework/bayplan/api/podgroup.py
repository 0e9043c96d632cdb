"""PodGroup of scheduling.sigs.k8s.io, shared by scheduler-plugins and Koordinator."""

from __future__ import annotations

from bayplan.api.meta import ApiStruct, ObjectMeta
from bayplan.api.quantity import Quantity

__all__ = ["PodGroup", "PodGroupSpec", "PodGroupStatus"]


class PodGroupSpec(ApiStruct, frozen=True):
    """spec of a pod group."""

    min_member: int = 1
    min_resources: dict[str, Quantity] = {}
    schedule_timeout_seconds: int | None = None


class PodGroupStatus(ApiStruct, frozen=True):
    """status of a pod group."""

    phase: str = ""
    scheduled: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0


class PodGroup(ApiStruct, frozen=True):
    """scheduling.sigs.k8s.io/v1alpha1 PodGroup."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()
