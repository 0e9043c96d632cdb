"""Lease: who leads among the processes of a controller, and when it said so last."""

from __future__ import annotations

from bayplan.api.meta import ApiStruct, ObjectMeta

__all__ = ["Lease", "LeaseSpec"]


class LeaseSpec(ApiStruct, frozen=True):
    """spec of a lease; without a holder nobody leads. Times are RFC 3339 text, as on the wire."""

    holder_identity: str = ""
    lease_duration_seconds: int = 0
    renew_time: str | None = None


class Lease(ApiStruct, frozen=True):
    """coordination.k8s.io/v1 Lease."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()
