"""Koordinator's feature gates of quotas, by what they change."""

from __future__ import annotations

from dataclasses import dataclass

from bayplan.api import Pod
from bayplan.dialects.reading import timestamp

__all__ = ["QuotaFeatures"]

_FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class QuotaFeatures:
    """What is on; the names of the gates are in brackets.

    :param trees: quotas with a tree id form trees of their own (MultiQuotaTree).
    :param default_quota: pods that name no quota belong to the default one (not
        DisableDefaultQuota).
    :param guarantee: what pods have is guaranteed to their quota (ElasticQuotaGuaranteeUsage).
    :param ignore_terminating: pods are no longer counted once they are being deleted and their
        grace period is over (ElasticQuotaIgnoreTerminatingPod).
    :param ignore_deleted: pods are no longer counted as soon as they are being deleted
        (ElasticQuotaImmediateIgnoreTerminatingPod).
    :param fewer_resources: a child's max may name fewer resources than its parent's
        (ElasticQuotaEnableUpdateResourceKey).
    """

    trees: bool = True
    default_quota: bool = True
    guarantee: bool = False
    ignore_terminating: bool = False
    ignore_deleted: bool = False
    fewer_resources: bool = False

    def counts(self, pod: Pod, now: float) -> bool:
        """Tell whether a pod counts at a time, in seconds since 1970; finished pods never do."""
        if pod.status.phase in _FINISHED:
            return False
        deleted = pod.metadata.deletion_timestamp
        if deleted is None or self.ignore_deleted:
            return deleted is None
        if not self.ignore_terminating:
            return True
        grace = pod.metadata.deletion_grace_period_seconds or 0
        return now <= timestamp(deleted) + grace
