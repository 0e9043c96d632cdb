"""Koordinator's feature gates of quotas, by what they change."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from bayplan.api import Pod
from bayplan.dialects.reading import timestamp

__all__ = ["QuotaFeatures"]

_FINISHED = ("Succeeded", "Failed")


class QuotaFeatures(msgspec.Struct, frozen=True):
    """What is on; the names of the gates are in brackets.

    :param trees: quotas with a tree id form trees of their own (MultiQuotaTree).
    :param default_quota: pods that name no quota belong to the default one (not
        DisableDefaultQuota).
    :param guarantee: what pods have is guaranteed to their quota (ElasticQuotaGuaranteeUsage).
    :param ignore_terminating: pods are no longer counted once they are being deleted and their
        grace period is over (ElasticQuotaIgnoreTerminatingPod).
    :param ignore_deleted: pods are no longer counted as soon as they are being deleted
        (ElasticQuotaImmediateIgnoreTerminatingPod).
    """

    trees: bool = True
    default_quota: bool = True
    guarantee: bool = False
    ignore_terminating: bool = False
    ignore_deleted: bool = False

    @classmethod
    def of(cls, gates: Mapping[str, bool]) -> QuotaFeatures:
        """Return what gates, by Koordinator's names, turn on or off."""
        return cls(
            gates.get("MultiQuotaTree", True),
            not gates.get("DisableDefaultQuota", False),
            gates.get("ElasticQuotaGuaranteeUsage", False),
            gates.get("ElasticQuotaIgnoreTerminatingPod", False),
            gates.get("ElasticQuotaImmediateIgnoreTerminatingPod", False),
        )

    def counts(self, pod: Pod, now: float) -> bool:
        """Tell whether a pod counts at a time, in seconds since 1970; finished pods never do."""
        return pod.status.phase not in _FINISHED and now <= self.counts_until(pod)

    def counts_until(self, pod: Pod) -> float:
        """Return until when a pod that runs counts, in seconds since 1970; infinite for always."""
        deleted = pod.metadata.deletion_timestamp
        if deleted is None or not (self.ignore_deleted or self.ignore_terminating):
            return math.inf
        if self.ignore_deleted:
            return -math.inf
        return timestamp(deleted) + (pod.metadata.deletion_grace_period_seconds or 0)
