"""Koordinator's Reservation: resources of a node that are kept for pods to come."""

from __future__ import annotations

from collections.abc import Iterator

from bayplan.api.meta import ApiStruct, LabelSelector, ObjectMeta
from bayplan.api.node import Taint
from bayplan.api.pod import PodTemplate
from bayplan.api.quantity import Quantity
from bayplan.inputs.durations import parse_duration

__all__ = [
    "Reservation",
    "ReservationCondition",
    "ReservationController",
    "ReservationObject",
    "ReservationOwner",
    "ReservationSpec",
    "ReservationStatus",
    "reservation_problems",
]


class ReservationObject(ApiStruct, frozen=True):
    """owners[].object, and status.currentOwners[]: a pod; kind and resourceVersion do not count."""

    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    kind: str = ""
    resource_version: str = ""
    field_path: str = ""


class ReservationController(ApiStruct, frozen=True):
    """owners[].controller: what owns the pod; empty fields do not count."""

    namespace: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ReservationOwner(ApiStruct, frozen=True):
    """owners[]: which pods may use it; all that is said has to hold."""

    object: ReservationObject | None = None
    controller: ReservationController | None = None
    label_selector: LabelSelector | None = None


class _PreAllocationPolicy(ApiStruct, frozen=True):
    mode: str = ""
    enable_multiple: bool = False


class ReservationSpec(ApiStruct, frozen=True):
    """spec: what to reserve, for whom, and for how long."""

    template: PodTemplate | None = None
    owners: tuple[ReservationOwner, ...] = ()
    ttl: str | None = None
    expires: str | None = None
    pre_allocation: bool = False
    allocate_once: bool | None = None
    allocate_policy: str = ""
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    pre_allocation_policy: _PreAllocationPolicy | None = None


class ReservationCondition(ApiStruct, frozen=True):
    """status.conditions[]: Scheduled, or Ready."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_probe_time: str | None = None
    last_transition_time: str | None = None


class ReservationStatus(ApiStruct, frozen=True):
    """status: where it is, and who uses how much of it."""

    phase: str = ""
    conditions: tuple[ReservationCondition, ...] = ()
    current_owners: tuple[ReservationObject, ...] = ()
    node_name: str = ""
    allocatable: dict[str, Quantity] = {}
    allocated: dict[str, Quantity] = {}


class Reservation(ApiStruct, frozen=True):
    """scheduling.koordinator.sh/v1alpha1 Reservation."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ReservationSpec = ReservationSpec()
    status: ReservationStatus = ReservationStatus()

    @property
    def key(self) -> str:
        """The name."""
        return self.metadata.name


def reservation_problems(found: Reservation) -> Iterator[tuple[str, str]]:
    """Yield (JSON path, message) for each problem of a Reservation."""
    try:
        parse_duration(found.spec.ttl or "0s")
    except ValueError as exc:
        yield "$.spec.ttl", str(exc)
