"""Koordinator's elastic quotas: trees of min and max, what is idle is lent, and comes back."""

from bayplan_plugins.queues.koordinator.features import QuotaFeatures
from bayplan_plugins.queues.koordinator.gate import QuotaGate, QuotaRefusal
from bayplan_plugins.queues.koordinator.manager import QuotaManager
from bayplan_plugins.queues.koordinator.overuse import OveruseMonitor
from bayplan_plugins.queues.koordinator.quotas import Quotas
from bayplan_plugins.queues.koordinator.status import QuotaStatus, status_of, status_patch

__all__ = [
    "OveruseMonitor",
    "QuotaFeatures",
    "QuotaGate",
    "QuotaManager",
    "QuotaRefusal",
    "QuotaStatus",
    "Quotas",
    "status_of",
    "status_patch",
]
