"""Reservations for pods that move: nobody else takes the room before they are made again."""

from __future__ import annotations

from msgspec.structs import replace

from bayplan import PodInfo
from bayplan.api import ObjectMeta
from bayplan.api import Reservation as ReservationObject
from bayplan.api.pod import PodTemplate
from bayplan.api.reservation import ReservationController, ReservationOwner, ReservationSpec

__all__ = ["reservation_for"]

_TTL = "10m0s"
"""As long as the node is preferred for a pod that was moved."""
_PREFIX = "moved-"


def reservation_for(pod: PodInfo, node: str) -> ReservationObject | None:
    """Return what keeps a node for the pod that a controller makes in the place of this one.

    None for a pod without a controller, and for one with claims, which are another pod's then.
    """
    meta, spec = pod.pod.metadata, pod.spec
    owner = next((one for one in meta.owner_references if one.controller), None)
    if owner is None or not meta.uid or spec.resource_claims:
        return None
    by = ReservationController(
        namespace=pod.namespace,
        kind=owner.kind,
        name=owner.name,
        uid=owner.uid,
        api_version=owner.api_version,
        controller=True,
    )
    # What stands for it is placed before all others, and is a member of no gang.
    template = PodTemplate(
        ObjectMeta(namespace=pod.namespace),
        replace(spec, node_name=node, priority=None, volumes=(), scheduling_gates=()),
    )
    return ReservationObject(
        ObjectMeta(name=f"{_PREFIX}{meta.uid}"),
        ReservationSpec(template, (ReservationOwner(controller=by),), ttl=_TTL, allocate_once=True),
    )
