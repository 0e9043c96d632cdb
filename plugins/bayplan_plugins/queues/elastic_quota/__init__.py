"""Koordinator's elastic quotas: trees of min and max, what is idle is lent, and comes back."""

from bayplan_plugins.queues.elastic_quota.admission import QuotaRefused, QuotaTopology
from bayplan_plugins.queues.elastic_quota.features import QuotaFeatures
from bayplan_plugins.queues.elastic_quota.gate import QuotaGate, QuotaRefusal
from bayplan_plugins.queues.elastic_quota.manager import QuotaManager
from bayplan_plugins.queues.elastic_quota.overuse import OveruseMonitor, owed_to
from bayplan_plugins.queues.elastic_quota.quotas import Quotas
from bayplan_plugins.queues.elastic_quota.status import QuotaStatus, status_of, status_patch

__all__ = [
    "OveruseMonitor",
    "QuotaFeatures",
    "QuotaGate",
    "QuotaManager",
    "QuotaRefusal",
    "QuotaRefused",
    "QuotaStatus",
    "QuotaTopology",
    "Quotas",
    "owed_to",
    "status_of",
    "status_patch",
]
