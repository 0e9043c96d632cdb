"""One allocation, or one capacity, from a time to a time.

Times are whole milliseconds since 1970, amounts whole thousandths of a unit (a GPU is 1000, a core
1000, a byte of memory 1000), so that sums are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec

__all__ = ["CapacityRecord", "CapacityState", "UsageRecord"]


class UsageRecord(msgspec.Struct, frozen=True):
    """What one pod holds of one resource on one node.

    ``tenant`` pays for it. ``job`` is the pod's pod group or controller, ``namespace/name``, or
    the pod itself. ``model`` is the kind of device, such as ``NVIDIA-H100-80GB-HBM3``, "" for what
    has none. ``pool`` is the ComputePool of the node, "" outside of all. ``until`` is None as long
    as the pod holds it. ``labels`` are the pod's.
    """

    tenant: str
    queue: str
    pool: str
    namespace: str
    job: str
    pod: str
    pod_uid: str
    node: str
    resource: str
    model: str
    amount: int
    since: int
    until: int | None = None
    labels: Mapping[str, str] = {}


class CapacityState(Enum):
    """Whether a part of a node can be used. What is in service and not used is idle."""

    IN_SERVICE = "in-service"
    RESERVED = "reserved"
    """Kept free by its pool, for growth."""
    MAINTENANCE = "maintenance"
    """The node is cordoned, or the device is tainted on purpose."""
    FAILED = "failed"
    """The node is not ready, or the device is broken."""


class CapacityRecord(msgspec.Struct, frozen=True):
    """What one node offers of one resource in one state. The states of a resource add up."""

    pool: str
    node: str
    resource: str
    model: str
    state: CapacityState
    amount: int
    since: int
    until: int | None = None
