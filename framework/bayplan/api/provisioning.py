"""autoscaling.x-k8s.io: capacity that is asked of a cluster autoscaler before pods need it."""

from __future__ import annotations

from bayplan.api.meta import ApiStruct, Condition, ObjectMeta, explicit

__all__ = [
    "PodTemplateReference",
    "ProvisioningPodSet",
    "ProvisioningRequest",
    "ProvisioningRequestSpec",
    "ProvisioningRequestStatus",
]


class PodTemplateReference(ApiStruct, frozen=True):
    """spec.podSets[].podTemplateRef: a PodTemplate of the request's namespace."""

    name: str = ""


class ProvisioningPodSet(ApiStruct, frozen=True):
    """spec.podSets[]: so many pods of one template."""

    pod_template_ref: PodTemplateReference = PodTemplateReference()
    count: int = 0


class ProvisioningRequestSpec(ApiStruct, frozen=True):
    """spec of a ProvisioningRequest; it never changes."""

    pod_sets: tuple[ProvisioningPodSet, ...] = ()
    provisioning_class_name: str = ""
    parameters: dict[str, str] = {}


class ProvisioningRequestStatus(ApiStruct, frozen=True):
    """status of a ProvisioningRequest."""

    conditions: tuple[Condition, ...] = ()
    provisioning_class_details: dict[str, str] = {}


class ProvisioningRequest(ApiStruct, frozen=True):
    """autoscaling.x-k8s.io ProvisioningRequest."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ProvisioningRequestSpec = explicit(ProvisioningRequestSpec())
    status: ProvisioningRequestStatus = ProvisioningRequestStatus()

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    def condition(self, type_: str) -> Condition | None:
        """Return the condition of a type, None without one."""
        return next((one for one in self.status.conditions if one.type == type_), None)

    def is_true(self, type_: str) -> bool:
        """Return whether the condition of a type is True."""
        found = self.condition(type_)
        return found is not None and found.status == "True"
