"""Dynamic Resource Allocation: the objects of resource.k8s.io/v1 (Kubernetes 1.36).

Older versions are converted to this shape before decoding (:mod:`bayplan.api.dra_versions`);
:mod:`bayplan.api.dra_validation` has the API server's checks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from bayplan.api.meta import ApiStruct, ObjectMeta, explicit
from bayplan.api.pod import NodeSelector, Toleration
from bayplan.api.quantity import Quantity

__all__ = [
    "ADMIN_ACCESS_LABEL",
    "CLAIM_LIMIT",
    "CONSUMER_LIMIT",
    "DELETE_PROTECTION",
    "EXTENDED_RESOURCE_CLAIM",
    "IMPLICIT_RESOURCE_PREFIX",
    "POD_CLAIM_NAME",
    "AllocatedDevice",
    "AllocatedDeviceStatus",
    "AllocationResult",
    "CapacityRequestPolicy",
    "CapacityRequirements",
    "Condition",
    "ConsumerReference",
    "Counter",
    "CounterSet",
    "Device",
    "DeviceAllocation",
    "DeviceAttribute",
    "DeviceCapacity",
    "DeviceClaim",
    "DeviceClass",
    "DeviceClassSpec",
    "DeviceConfiguration",
    "DeviceConstraint",
    "DeviceCounterConsumption",
    "DeviceId",
    "DeviceRequest",
    "DeviceSelector",
    "DeviceTaint",
    "DeviceTaintRule",
    "DeviceTaintRuleSpec",
    "ExactDeviceRequest",
    "OpaqueConfiguration",
    "ResourceClaim",
    "ResourceClaimSpec",
    "ResourceClaimStatus",
    "ResourceClaimTemplate",
    "ResourceClaimTemplateSpec",
    "ResourcePool",
    "ResourceSlice",
    "ResourceSliceSpec",
]

CLAIM_LIMIT = 32
"""The most devices that one claim can get."""
CONSUMER_LIMIT = 256
"""The most consumers for which a claim can be reserved."""
DELETE_PROTECTION = "resource.kubernetes.io/delete-protection"
"""The finalizer of allocated claims."""
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
"""The annotation of a claim created from a template: its name in the pod's spec.resourceClaims."""
EXTENDED_RESOURCE_CLAIM = "resource.kubernetes.io/extended-resource-claim"
"""The annotation of a claim created for a pod's extended resources."""
IMPLICIT_RESOURCE_PREFIX = "deviceclass.resource.kubernetes.io/"
"""The prefix of the extended resource that every class offers implicitly."""
ADMIN_ACCESS_LABEL = "resource.kubernetes.io/admin-access"
"""The namespace label that allows admin access to devices that are in use."""


class DeviceId(NamedTuple):
    """A device's full name."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


# ResourceSlice -------------------------------------------------------------------------------


class DeviceAttribute(ApiStruct, frozen=True):
    """One attribute's value; exactly one field is set. The plural forms are lists."""

    integer: int | None = msgspec.field(default=None, name="int")
    boolean: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None
    integers: tuple[int, ...] | None = msgspec.field(default=None, name="ints")
    booleans: tuple[bool, ...] | None = msgspec.field(default=None, name="bools")
    strings: tuple[str, ...] | None = None
    versions: tuple[str, ...] | None = None


class CapacityRange(ApiStruct, frozen=True):
    """requestPolicy.validRange: amounts from ``min`` in steps up to ``max``."""

    min: Quantity
    max: Quantity | None = None
    step: Quantity | None = None


class CapacityRequestPolicy(ApiStruct, frozen=True):
    """How requests for a device's capacity are rounded, and the default without a request."""

    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    valid_range: CapacityRange | None = None


class DeviceCapacity(ApiStruct, frozen=True):
    """An amount that a device offers."""

    value: Quantity
    request_policy: CapacityRequestPolicy | None = None


class Counter(ApiStruct, frozen=True):
    """An amount of a shared counter."""

    value: Quantity


class CounterSet(ApiStruct, frozen=True):
    """spec.sharedCounters[]: the counters that the partitions of one device share."""

    name: str
    counters: dict[str, Counter] = {}


class DeviceCounterConsumption(ApiStruct, frozen=True):
    """consumesCounters[]: the amounts that an allocated device consumes from a counter set."""

    counter_set: str
    counters: dict[str, Counter] = {}


class DeviceTaint(ApiStruct, frozen=True):
    """A taint on a device; its effect is None, NoSchedule or NoExecute."""

    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class Device(ApiStruct, frozen=True):
    """spec.devices[]. Names without a domain belong to the driver's domain."""

    name: str
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    consumes_counters: tuple[DeviceCounterConsumption, ...] = ()
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    taints: tuple[DeviceTaint, ...] = ()
    binds_to_node: bool = False
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: bool = False
    node_allocatable_resource_mappings: dict[str, Any] = {}


class ResourcePool(ApiStruct, frozen=True):
    """spec.pool: the pool of a slice, and the number of slices in the pool."""

    name: str
    generation: int = 0
    resource_slice_count: int = explicit(1)


class ResourceSliceSpec(ApiStruct, frozen=True):
    """spec of a ResourceSlice."""

    driver: str
    pool: ResourcePool
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


class ResourceSlice(ApiStruct, frozen=True):
    """resource.k8s.io/v1 ResourceSlice."""

    spec: ResourceSliceSpec
    metadata: ObjectMeta = ObjectMeta()


# Requests ------------------------------------------------------------------------------------


class CelSelector(ApiStruct, frozen=True):
    """selectors[].cel."""

    expression: str = ""


class DeviceSelector(ApiStruct, frozen=True):
    """selectors[]: a CEL expression over ``device``."""

    cel: CelSelector | None = None


class CapacityRequirements(ApiStruct, frozen=True):
    """capacity: the amounts requested from each device."""

    requests: dict[str, Quantity] = {}


class ExactDeviceRequest(ApiStruct, frozen=True):
    """``exactly`` of a request, or one of its ``firstAvailable`` alternatives.

    Only alternatives have a ``name``. ``allocation_mode`` "" means ExactCount, where ``count`` None
    means 1.
    """

    name: str = ""
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = ""
    count: int | None = None
    admin_access: bool | None = None
    tolerations: tuple[Toleration, ...] = ()
    capacity: CapacityRequirements | None = None


class DeviceRequest(ApiStruct, frozen=True):
    """requests[]: one request, or alternatives in the order of preference."""

    name: str
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[ExactDeviceRequest, ...] = ()


class DeviceConstraint(ApiStruct, frozen=True):
    """constraints[]: a constraint on the devices of the named requests, or of all if empty."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class OpaqueConfiguration(ApiStruct, frozen=True):
    """config[].opaque: parameters for the driver."""

    driver: str
    parameters: Any = None


class DeviceConfiguration(ApiStruct, frozen=True):
    """config[] of a claim or a class; with ``source``, of an allocation."""

    requests: tuple[str, ...] = ()
    opaque: OpaqueConfiguration | None = None
    source: str = ""


class DeviceClaim(ApiStruct, frozen=True):
    """spec.devices."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceConfiguration, ...] = ()


class ResourceClaimSpec(ApiStruct, frozen=True):
    """spec of a ResourceClaim."""

    devices: DeviceClaim = DeviceClaim()


# Allocations ---------------------------------------------------------------------------------


class AllocatedDevice(ApiStruct, frozen=True):
    """status.allocation.devices.results[]."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    tolerations: tuple[Toleration, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, Quantity] = {}


class DeviceAllocation(ApiStruct, frozen=True):
    """status.allocation.devices."""

    results: tuple[AllocatedDevice, ...] = ()
    config: tuple[DeviceConfiguration, ...] = ()


class AllocationResult(ApiStruct, frozen=True):
    """status.allocation: the devices, and the nodes that can access them (None: all)."""

    devices: DeviceAllocation = DeviceAllocation()
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None

    @property
    def bound_node(self) -> str:
        """The one node that can use the devices, "" if it is not named."""
        terms = self.node_selector.node_selector_terms if self.node_selector is not None else ()
        for field in terms[0].match_fields if len(terms) == 1 else ():
            if field.key == "metadata.name" and len(field.values) == 1:
                return field.values[0]
        return ""


class ConsumerReference(ApiStruct, frozen=True):
    """status.reservedFor[]: a pod, or a pod group, that may use the claim."""

    resource: str
    name: str
    uid: str
    api_group: str = ""


class Condition(ApiStruct, frozen=True):
    """A condition of an object or of a device."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class AllocatedDeviceStatus(ApiStruct, frozen=True):
    """status.devices[]: the status of an allocated device, as its driver reports it."""

    driver: str
    pool: str
    device: str
    share_id: str | None = msgspec.field(default=None, name="shareID")
    conditions: tuple[Condition, ...] = ()
    data: Any = None
    network_data: dict[str, Any] | None = None


class ResourceClaimStatus(ApiStruct, frozen=True):
    """status of a ResourceClaim."""

    allocation: AllocationResult | None = None
    reserved_for: tuple[ConsumerReference, ...] = ()
    devices: tuple[AllocatedDeviceStatus, ...] = ()


class ResourceClaim(ApiStruct, frozen=True):
    """resource.k8s.io/v1 ResourceClaim."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class ResourceClaimTemplateSpec(ApiStruct, frozen=True):
    """spec of a ResourceClaimTemplate: the labels, annotations and spec of its claims."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(ApiStruct, frozen=True):
    """resource.k8s.io/v1 ResourceClaimTemplate."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


# Classes and taints --------------------------------------------------------------------------


class DeviceClassSpec(ApiStruct, frozen=True):
    """spec of a DeviceClass."""

    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[DeviceConfiguration, ...] = ()
    extended_resource_name: str | None = None


class DeviceClass(ApiStruct, frozen=True):
    """resource.k8s.io/v1 DeviceClass."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceTaintSelector(ApiStruct, frozen=True):
    """deviceSelector of a rule: all set fields have to match; without any it selects all."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(ApiStruct, frozen=True):
    """spec of a DeviceTaintRule."""

    taint: DeviceTaint
    device_selector: DeviceTaintSelector | None = None


class DeviceTaintRuleStatus(ApiStruct, frozen=True):
    """status of a DeviceTaintRule."""

    conditions: tuple[Condition, ...] = ()


class DeviceTaintRule(ApiStruct, frozen=True):
    """resource.k8s.io/v1beta2 DeviceTaintRule: taints all devices that it selects."""

    spec: DeviceTaintRuleSpec
    metadata: ObjectMeta = ObjectMeta()
    status: DeviceTaintRuleStatus = DeviceTaintRuleStatus()
