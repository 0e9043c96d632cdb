"""Namespaces as queues: a ResourceQuota says the most that the pods of its namespace may have."""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.api import Quantity, ResourceQuota
from bayplan.api.queue import UNLIMITED, Queue, Share
from bayplan.dialects.reading import share, timestamp

__all__ = ["NAME", "queues_of"]

NAME = "namespaces"
_PREFIX = "requests."
_COUNTED = ("cpu", "memory", "ephemeral-storage", "pods")


def queues_of(quotas: Iterable[ResourceQuota]) -> list[Queue]:
    """Return a queue for each namespace with a quota, by the lowest of its quotas' amounts.

    What a quota names is the queue's limit and its guarantee; quotas with scopes, which count some
    pods only, and amounts of other things than what pods request are left out.
    """
    found: dict[str, dict[str, float]] = {}
    created: dict[str, float] = {}
    for quota in quotas:
        if quota.spec.scopes or quota.spec.scope_selector:
            continue
        space = quota.metadata.namespace
        limits = found.setdefault(space, {})
        for name, amount in share(_requests(quota)).amounts.items():
            limits[name] = min(amount, limits.get(name, UNLIMITED))
        born = timestamp(quota.metadata.creation_timestamp)
        created[space] = min(born, created.get(space, born))
    return [
        Queue(
            space,
            source=f"ResourceQuota of namespace {space}",
            deserved=Share(limits),
            limit=Share(limits, UNLIMITED),
            created=created[space],
            uid=space,
        )
        for space, limits in found.items()
    ]


def _requests(quota: ResourceQuota) -> dict[str, Quantity]:
    """Return the amounts of a quota that bound what pods request."""
    found = {}
    for name, amount in quota.spec.hard.items():
        resource = name.removeprefix(_PREFIX)
        if name.startswith(_PREFIX) or resource in _COUNTED:
            found[resource] = amount
    return found
