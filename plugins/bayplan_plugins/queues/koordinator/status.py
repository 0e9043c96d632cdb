"""What is written to an ElasticQuota: status.used and annotations, as Koordinator writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from bayplan.api import ElasticQuota
from bayplan.api.elastic_quota import QUOTA_PREFIX, ElasticQuotaStatus, amounts_in
from bayplan.api.quantity import Quantity
from bayplan.api.resources import amount_of
from bayplan.cluster.protocol import PatchAnnotations, PatchStatus
from bayplan.dialects.koordinator.elastic_quota import quantity_of
from bayplan_plugins.queues.koordinator.manager import QuotaManager

__all__ = ["QuotaStatus", "status_of", "status_patch", "writes_for"]

Amounts = Mapping[str, int]


class QuotaStatus(msgspec.Struct, frozen=True):
    """A quota's figures; the annotations are named as the fields, with hyphens."""

    used: Amounts
    runtime: Amounts
    request: Amounts
    child_request: Amounts
    guaranteed: Amounts
    allocated: Amounts
    non_preemptible_request: Amounts
    non_preemptible_used: Amounts

    def annotations(self) -> dict[str, Amounts]:
        """Return the figures by the names of their annotations."""
        fields = (
            "runtime",
            "request",
            "child_request",
            "guaranteed",
            "allocated",
            "non_preemptible_request",
            "non_preemptible_used",
        )
        return {QUOTA_PREFIX + name.replace("_", "-"): getattr(self, name) for name in fields}


def status_of(manager: QuotaManager, name: str) -> QuotaStatus:
    """Return a quota's figures.

    :raises KeyError: for a quota that does not exist.
    """
    quota = manager.quotas[name]
    return QuotaStatus(
        used=quota.used.every,
        runtime=manager.runtime(name) or {},
        request=quota.request,
        child_request=quota.asked.every,
        guaranteed=quota.guaranteed,
        allocated=quota.allocated,
        non_preemptible_request=quota.asked.non_preemptible,
        non_preemptible_used=quota.used.non_preemptible,
    )


def status_patch(quota: ElasticQuota, status: QuotaStatus) -> dict[str, Any] | None:
    """Return the merge patch that brings a quota up to date, None if it is; zeros do not matter."""
    changed = {}
    for name, amounts in status.annotations().items():
        if _positive(_written(quota.metadata.annotations.get(name, ""))) != _positive(amounts):
            texts = {key: quantity_of(key, amounts[key]) for key in sorted(amounts)}
            changed[name] = json.dumps(texts, separators=(",", ":"))
    patch: dict[str, Any] = {"metadata": {"annotations": changed}} if changed else {}
    used = {name: amount_of(name, quantity) for name, quantity in quota.status.used.items()}
    if _positive(used) != _positive(status.used):
        texts = {name: quantity_of(name, amount) for name, amount in status.used.items()}
        patch["status"] = {"used": {**dict.fromkeys(used.keys() - texts.keys()), **texts}}
    return patch or None


def writes_for(
    quota: ElasticQuota, status: QuotaStatus
) -> Iterator[PatchStatus | PatchAnnotations]:
    """Yield the writes that bring a quota up to date."""
    patch = status_patch(quota, status) or {}
    key = f"{quota.metadata.namespace}/{quota.metadata.name}"
    if "metadata" in patch:
        yield PatchAnnotations(ElasticQuota, key, patch["metadata"]["annotations"])
    if "status" in patch:
        texts = patch["status"]["used"].items()
        used = {name: Quantity(text) for name, text in texts if text is not None}
        yield PatchStatus(ElasticQuota, key, ElasticQuotaStatus(used))


def _written(text: str) -> Amounts:
    try:
        return {k: amount_of(k, v) for k, v in amounts_in(text).items()} if text else {}
    except ValueError:
        return {}


def _positive(amounts: Amounts) -> Amounts:
    return {name: amount for name, amount in amounts.items() if amount}
