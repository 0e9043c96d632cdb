"""Koordinator: reservations, the pods that stand for them in scheduling, and who may use them.

Names and rules as in koordinator-sh/koordinator v1.8 (apis/extension/reservation.go,
pkg/util/reservation).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from bayplan.api import Container, LabelSelector, ObjectMeta, Pod, PodSpec, Quantity, Reservation
from bayplan.api.meta import ApiStruct, OwnerReference
from bayplan.api.node import Taint
from bayplan.api.pod import ResourceRequirements, Toleration
from bayplan.api.reservation import (
    ReservationCondition,
    ReservationController,
    ReservationObject,
    ReservationOwner,
    ReservationStatus,
)
from bayplan.api.resources import amount_of, effective_requests
from bayplan.api.selectors import compile_selector
from bayplan.api.times import rfc3339, seconds_of
from bayplan.api.tolerations import tolerated
from bayplan.dialects.koordinator.annotations import mapping_in, part_of
from bayplan.dialects.koordinator.elastic_quota import quantity_of
from bayplan.inputs.durations import parse_duration

__all__ = [
    "AFFINITY",
    "ALLOCATED",
    "EXACT_MATCH",
    "ReservationAffinity",
    "affinity_of",
    "allocated_by",
    "allocated_text",
    "amounts_left",
    "as_available",
    "as_expired",
    "as_unschedulable",
    "exact_match_of",
    "expires_at",
    "is_allocate_once",
    "is_owner",
    "is_reserve_pod",
    "matches_exactly",
    "may_use",
    "order_of",
    "requires_pre_allocation",
    "reservation_of",
    "reserve_pod",
    "restricted_names",
    "restricted_resources",
    "with_owners",
]

_DOMAIN = "scheduling.koordinator.sh/"
ALLOCATED = f"{_DOMAIN}reservation-allocated"
AFFINITY = f"{_DOMAIN}reservation-affinity"
EXACT_MATCH = f"{_DOMAIN}exact-match-reservation"
_RESTRICTED = f"{_DOMAIN}reservation-restricted-options"
_REQUIRED = f"{_DOMAIN}pre-allocation-required"
_ORDER = f"{_DOMAIN}reservation-order"
_IGNORED = f"{_DOMAIN}reservation-ignored"
_WRITTEN = (ALLOCATED, f"{_DOMAIN}device-allocated", f"{_DOMAIN}resource-status")
"""What the template of a PodMigrationJob's reservation has of the pod that is to move."""
_RESERVE_POD = "internal.scheduling.koordinator.sh/reserve-pod"
_NAME = "internal.scheduling.koordinator.sh/reservation-name"
_DEFAULT_SCHEDULER = "koord-scheduler"
_HIGHEST = 2**31 - 1
"""The priority of a reservation that states none: nobody takes its place."""
_TTL = 24 * 3600.0
_CORDONED = Taint("node.kubernetes.io/unschedulable", effect="NoSchedule")


# Pods that stand for reservations ----------------------------------------------------------


def reserve_pod(found: Reservation) -> Pod | None:
    """Return the pod that stands for a reservation; None for one that is over, or says nothing.

    It has what is left of the reservation for pods to come. It is named by the uid.
    """
    spec, status, meta = found.spec, found.status, found.metadata
    if spec.template is None or status.phase in ("Succeeded", "Failed"):
        return None
    if meta.deletion_timestamp is not None:
        return None
    own = spec.template.metadata
    notes = {_RESERVE_POD: "true", _NAME: meta.name}
    pod_meta = ObjectMeta(
        name=meta.uid or meta.name,
        namespace=own.namespace or "default",
        uid=meta.uid or meta.name,
        labels={**own.labels, **meta.labels},
        annotations={**_before_scheduling(own.annotations), **meta.annotations, **notes},
        owner_references=own.owner_references,
        creation_timestamp=meta.creation_timestamp,
    )
    asked = spec.template.spec
    priority = _HIGHEST if asked.priority is None else asked.priority
    scheduler = asked.scheduler_name
    if not scheduler or scheduler == "default-scheduler":
        scheduler = _DEFAULT_SCHEDULER
    # Nobody is evicted so that something may be kept.
    pod_spec = replace(
        asked,
        priority=priority,
        preemption_policy="Never",
        node_name=status.node_name,
        scheduler_name=scheduler,
    )
    if asked.node_name and not status.node_name:
        pod_spec = _pinned(pod_spec, asked.node_name)
    if status.node_name:
        pod_spec = _with_rest(pod_spec, status)
    return Pod(pod_meta, pod_spec)


def _before_scheduling(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """Return a template's annotations without what a scheduler wrote on the pod that it copies."""
    return {key: value for key, value in annotations.items() if key not in _WRITTEN}


def _pinned(spec: PodSpec, node: str) -> PodSpec:
    """Return a spec that only one node fits."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    pinned = msgspec.convert({"affinity": {"nodeAffinity": required}}, PodSpec).affinity
    own = spec.affinity
    assert pinned is not None
    return replace(
        spec,
        affinity=pinned if own is None else replace(own, node_affinity=pinned.node_affinity),
    )


def _with_rest(spec: PodSpec, status: ReservationStatus) -> PodSpec:
    """Return a spec that requests what is left of a reservation."""
    left = amounts_left(status)
    if left == effective_requests(spec):
        return spec
    requests = {name: Quantity(quantity_of(name, amount)) for name, amount in left.items()}
    rest = Container("reserved", "", ResourceRequirements(requests))
    return replace(spec, containers=(rest,), init_containers=(), overhead={}, resources=None)


def amounts_left(status: ReservationStatus) -> dict[str, int]:
    """Return what is left of a reservation that has a node, by resource."""
    taken = {name: amount_of(name, quantity) for name, quantity in status.allocated.items()}
    return {
        name: max(0, amount_of(name, quantity) - taken.get(name, 0))
        for name, quantity in status.allocatable.items()
    }


def reservation_of(annotations: Mapping[str, str]) -> str:
    """Return the reservation, by name, that a pod only stands for; "" for a pod of its own."""
    return annotations.get(_NAME, "") if is_reserve_pod(annotations) else ""


def is_reserve_pod(annotations: Mapping[str, str]) -> bool:
    """Tell whether a pod only stands for a reservation."""
    return annotations.get(_RESERVE_POD) == "true"


# Who may use one ---------------------------------------------------------------------------


class _Required(ApiStruct, frozen=True):
    reservation_selector_terms: tuple[LabelSelector, ...] = ()


class _Affinity(ApiStruct, frozen=True):
    name: str = ""
    required: _Required | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    reservation_selector: dict[str, str] = msgspec.field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()


class _ExactMatch(ApiStruct, frozen=True):
    resource_names: tuple[str, ...] = ()


class ReservationAffinity(msgspec.Struct, frozen=True):
    """Which reservations a pod has to use, and which of their taints it tolerates."""

    own: _Affinity

    def allows(self, found: Reservation) -> bool:
        """Tell whether a pod may use a reservation by its name or its labels."""
        if self.own.name:
            return self.own.name == found.metadata.name
        labels = found.metadata.labels
        if any(labels.get(key) != value for key, value in self.own.reservation_selector.items()):
            return False
        terms = self.own.required.reservation_selector_terms if self.own.required else ()
        if self.own.required is None:
            return True
        return any(_is_said(term) and compile_selector(term).matches(labels) for term in terms)

    def tolerates(self, taint: Taint) -> bool:
        """Tell whether a pod tolerates a taint of a reservation."""
        return tolerated(taint, self.own.tolerations)


def _is_said(term: LabelSelector) -> bool:
    """Tell whether a term says anything; one that does not selects nothing."""
    return bool(term.match_expressions or term.match_labels)


def affinity_of(annotations: Mapping[str, str]) -> ReservationAffinity | None:
    """Return which reservations a pod has to use; None if it may go without.

    :raises ValueError: for an annotation that cannot be read, naming it.
    """
    if AFFINITY not in annotations:
        return None
    content = mapping_in(annotations, AFFINITY) if annotations[AFFINITY] else {}
    return ReservationAffinity(part_of(_Affinity, AFFINITY, "$", content))


def may_use(pod: Pod, found: Reservation, affinity: ReservationAffinity | None) -> bool:
    """Tell whether a pod may use a reservation: as an owner, by affinity, taints and labels."""
    if pod.metadata.labels.get(_IGNORED) == "true":
        return False
    if affinity is not None and not affinity.allows(found):
        return False
    taints = [one for one in found.spec.taints if one.effect in ("NoSchedule", "NoExecute")]
    if found.spec.unschedulable:
        taints.append(_CORDONED)
    if any(affinity is None or not affinity.tolerates(taint) for taint in taints):
        return False
    return is_owner(pod, found.spec.owners)


def exact_match_of(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the resources of which a pod wants a reservation to have just what it requests.

    :raises ValueError: for an annotation that cannot be read, naming it.
    """
    if not annotations.get(EXACT_MATCH):
        return ()
    content = mapping_in(annotations, EXACT_MATCH)
    return part_of(_ExactMatch, EXACT_MATCH, "$", content).resource_names


def matches_exactly(
    requests: Mapping[str, int], reserved: Mapping[str, int], names: Iterable[str]
) -> bool:
    """Tell whether a pod requests just what is reserved of some resources."""
    return all(requests.get(name, 0) == reserved.get(name, 0) for name in names)


def is_owner(pod: Pod, owners: Iterable[ReservationOwner], api_version: str = "v1") -> bool:
    """Tell whether a pod is one of those that may use a reservation; nobody is without owners.

    :param api_version: that of the pod, as it says.
    """
    return any(_is(pod, owner, api_version) for owner in owners)


def _is(pod: Pod, owner: ReservationOwner, api_version: str) -> bool:
    meta = pod.metadata
    own = owner.object
    if own is not None and not (
        own.uid in ("", meta.uid)
        and own.name in ("", meta.name)
        and own.namespace in ("", meta.namespace)
        and own.api_version in ("", api_version)
    ):
        return False
    by = owner.controller
    if by is not None and not (
        by.namespace in ("", meta.namespace)
        and any(_controls(one, by) for one in meta.owner_references)
    ):
        return False
    selector = owner.label_selector
    return selector is None or compile_selector(selector).matches(meta.labels)


def _controls(reference: OwnerReference, by: ReservationController) -> bool:
    return (
        (by.controller is None or by.controller is reference.controller)
        and by.uid in ("", reference.uid)
        and by.name in ("", reference.name)
        and by.kind in ("", reference.kind)
        and by.api_version in ("", reference.api_version)
    )


def order_of(found: Reservation) -> int:
    """Return a reservation's place among others, the smallest first; 0 for none."""
    text = found.metadata.labels.get(_ORDER, "")
    usable = text.isascii() and text.isdigit() and len(text) < 19
    return int(text) if usable else 0


def is_allocate_once(found: Reservation) -> bool:
    """Tell whether the first pod that uses a reservation uses it up."""
    return found.spec.allocate_once is not False


def requires_pre_allocation(found: Reservation) -> bool:
    """Tell whether a reservation has to take over pods of the node that it gets."""
    return found.metadata.labels.get(_REQUIRED) == "true"


def restricted_resources(found: Reservation) -> frozenset[str]:
    """Return the resources that pods may have from the reservation only; none unless Restricted."""
    return restricted_names(found, found.status.allocatable)


def restricted_names(found: Reservation, reserved: Iterable[str]) -> frozenset[str]:
    """Return which of the reserved resources pods may have from the reservation only."""
    if found.spec.allocate_policy != "Restricted":
        return frozenset()
    named: object = None
    try:
        named = mapping_in(found.metadata.annotations, _RESTRICTED).get("resources")
    except ValueError:
        named = None
    every = frozenset(reserved)
    return frozenset(map(str, named)) & every if isinstance(named, list) and named else every


def allocated_by(annotations: Mapping[str, str]) -> str:
    """Return the uid of the reservation that a pod uses, "" for none."""
    if ALLOCATED not in annotations:
        return ""
    try:
        return str(mapping_in(annotations, ALLOCATED).get("uid", ""))
    except ValueError:
        return ""


def allocated_text(found: Reservation) -> str:
    """Return the annotation that says which reservation a pod uses."""
    content = {"name": found.metadata.name, "uid": found.metadata.uid}
    return json.dumps(content, separators=(",", ":"))


# What becomes of one -----------------------------------------------------------------------


def expires_at(found: Reservation) -> float | None:
    """Return when a reservation ends, in seconds since 1970; None for never."""
    if found.spec.ttl is not None:
        try:
            ttl = parse_duration(found.spec.ttl)
        except ValueError:
            ttl = _TTL
        if not ttl:
            return None
    else:
        ttl = _TTL
    if found.spec.expires is not None:
        return seconds_of(found.spec.expires)
    created = seconds_of(found.metadata.creation_timestamp)
    return created + ttl if created else None


def as_available(found: Reservation, node: str, now: float) -> ReservationStatus:
    """Return the status of a reservation that got its node."""
    assert found.spec.template is not None
    requests = effective_requests(found.spec.template.spec)
    at = rfc3339(now)
    return ReservationStatus(
        "Available",
        (
            ReservationCondition("Scheduled", "True", "Scheduled", "", at, at),
            ReservationCondition("Ready", "True", "Available", "", at, at),
        ),
        (),
        node,
        {name: Quantity(quantity_of(name, amount)) for name, amount in requests.items()},
    )


def as_unschedulable(found: Reservation, message: str, now: float) -> ReservationStatus:
    """Return the status of a reservation that no node fits."""
    condition = ReservationCondition("Scheduled", "False", "Unschedulable", message)
    return _with(found.status, condition, now, phase="Pending")


def as_expired(found: Reservation, now: float) -> ReservationStatus:
    """Return the status of a reservation whose time is over."""
    condition = ReservationCondition("Ready", "False", "Expired")
    return _with(found.status, condition, now, phase="Failed")


def with_owners(found: Reservation, owners: Iterable[Pod], now: float) -> ReservationStatus:
    """Return the status of a reservation that pods use; the first may use it up."""
    pods = sorted(owners, key=lambda pod: pod.metadata.uid or pod.key)
    total: dict[str, int] = {}
    for pod in pods:
        for name, amount in effective_requests(pod.spec).items():
            if name in found.status.allocatable:
                total[name] = total.get(name, 0) + amount
    status = replace(
        found.status,
        current_owners=tuple(
            ReservationObject(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)
            for pod in pods
        ),
        allocated={name: Quantity(quantity_of(name, amount)) for name, amount in total.items()},
    )
    if not pods or not is_allocate_once(found):
        return status
    return _with(
        status, ReservationCondition("Ready", "False", "Succeeded"), now, phase="Succeeded"
    )


def _with(
    status: ReservationStatus, condition: ReservationCondition, now: float, phase: str
) -> ReservationStatus:
    """Return a status in another phase, with a condition instead of the one of its type."""
    at = rfc3339(now)
    before = next((one for one in status.conditions if one.type == condition.type), None)
    same = before is not None and before.status == condition.status
    since = before.last_transition_time if same and before is not None else at
    stated = replace(condition, last_probe_time=at, last_transition_time=since)
    others = tuple(one for one in status.conditions if one.type != condition.type)
    return replace(status, phase=phase, conditions=(*others, stated))
