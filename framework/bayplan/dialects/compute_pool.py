"""Compute pools as queues: a root for each pool over its nodes, and a queue for each tenant.

Pods name their pool by the label ``bayplan.dev/pool`` or ``ai.example.com/pool``, or belong to the
pool with a quota for their namespace. Their tenant is that of the label ``bayplan.dev/tenant`` or
``ai.example.com/tenant``, of the quota that names their namespace, or the namespace itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bayplan.api import ComputePool
from bayplan.api.queue import UNLIMITED, Queue, Share
from bayplan.dialects.reading import share, timestamp

__all__ = ["NAME", "OTHERS", "POOL_LABELS", "TENANT_LABELS", "pool_of", "queues_of", "tenant_of"]

NAME = "pool"
OTHERS = "others"
"""The queue of a pool for tenants without a quota."""
POOL_LABELS = ("bayplan.dev/pool", "ai.example.com/pool")
TENANT_LABELS = ("bayplan.dev/tenant", "ai.example.com/tenant")


def pool_of(labels: Mapping[str, str], namespace: str, pools: Iterable[ComputePool]) -> str | None:
    """Return the name of a pod's pool, which need not exist; None for a pod of no pool."""
    named = next((labels[key] for key in POOL_LABELS if labels.get(key)), None)
    if named is not None:
        return named
    for pool in pools:
        if any(namespace in quota.namespaces for quota in pool.spec.quotas):
            return pool.metadata.name
    return None


def tenant_of(labels: Mapping[str, str], namespace: str, pool: ComputePool | None) -> str:
    """Return the tenant that a pod belongs to, and who pays for it."""
    named = next((labels[key] for key in TENANT_LABELS if labels.get(key)), None)
    if named is not None:
        return named
    quotas = pool.spec.quotas if pool is not None else ()
    return next((one.tenant for one in quotas if namespace in one.namespaces), namespace)


def queues_of(
    pool: ComputePool,
    usable: Mapping[str, float],
    limit: Mapping[str, float],
    problem: str | None = None,
) -> list[Queue]:
    """Return the queues of a pool, its root first.

    :param usable: what its pods may have, by resource.
    :param limit: the most that they may have; more than that where other resources bound it.
    :param problem: why the pool takes no jobs.
    """
    meta = pool.metadata
    source = f"ComputePool {meta.name}"
    created = timestamp(meta.creation_timestamp)
    root = Queue(
        meta.name,
        source=source,
        deserved=Share(usable),
        guaranteed=Share(usable),
        limit=Share(limit),
        created=created,
        uid=meta.uid or meta.name,
        problem=problem,
    )
    found = [root]
    for quota in pool.spec.quotas:
        guaranteed = share(quota.guaranteed)
        found.append(
            Queue(
                f"{meta.name}/{quota.tenant}",
                meta.name,
                f"{source}, tenant {quota.tenant}",
                deserved=guaranteed,
                guaranteed=guaranteed,
                limit=Share(share(quota.limit).amounts, UNLIMITED),
                created=created,
                uid=f"{meta.uid or meta.name}/{quota.tenant}",
            )
        )
    others = f"{meta.name}/{OTHERS}"
    return [*found, Queue(others, meta.name, source, created=created, uid=others)]
