"""Whether a pod may be placed: its quota's limits, and those of the quotas above.

Texts as in koordinator-sh/koordinator, pkg/scheduler/plugins/elasticquota/plugin.go (PreFilter).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bayplan.api import Pod, pod_requests
from bayplan.dialects.koordinator.elastic_quota import ROOT_QUOTA, ResourceList, is_preemptible
from bayplan_plugins.queues.koordinator.manager import QuotaManager
from bayplan_plugins.queues.koordinator.quota import Quota
from bayplan_plugins.queues.koordinator.resource_lists import (
    added,
    exceeding,
    masked,
    printed,
    subtracted,
    without_negatives,
)

__all__ = ["QuotaGate", "QuotaRefusal"]

Amounts = Mapping[str, int]


class QuotaRefusal(msgspec.Struct, frozen=True):
    """Why a quota refuses a pod, and how much of each resource is missing.

    ``quota`` is the quota whose limit is reached: the pod's own or one above it.
    """

    message: str
    quota: str
    missing: ResourceList


class QuotaGate:
    """The limits of one quota, with usage that a trial may change: pods leave it, and come back.

    :param use_runtime: hold the quota within what it may have now, else within its max.
    :param check_parents: hold the quotas above it within their limits, too.
    :raises KeyError: for a quota that does not exist.
    """

    def __init__(
        self,
        manager: QuotaManager,
        name: str,
        use_runtime: bool = True,
        check_parents: bool = False,
    ) -> None:
        self._manager = manager
        self._use_runtime = use_runtime
        self._quota = manager.quotas[name]
        self._above = manager.path(name)[1:] if check_parents else []
        self.used = self._quota.used.every
        self.non_preemptible_used = self._quota.used.non_preemptible
        self.limit = self._limit(self._quota)
        self._gone: ResourceList = {}
        """What the trial has taken off the quotas above: negative for what came on top."""

    def add(self, pod: Pod) -> None:
        """Count a pod of the quota again; pods of others change nothing."""
        if pod.key in self._quota.pods:
            request = self._requests(pod)
            self.used = added(self.used, request)
            self._gone = subtracted(self._gone, request)
            if not is_preemptible(pod):
                self.non_preemptible_used = added(self.non_preemptible_used, request)

    def remove(self, pod: Pod) -> None:
        """Count a pod of the quota as gone; pods of others change nothing."""
        if pod.key in self._quota.pods:
            request = self._requests(pod)
            self.used = without_negatives(subtracted(self.used, request))
            self._gone = added(self._gone, request)
            if not is_preemptible(pod):
                left = subtracted(self.non_preemptible_used, request)
                self.non_preemptible_used = without_negatives(left)

    def refusal(self, pod: Pod) -> QuotaRefusal | None:
        """Return why the quotas refuse a pod, None if they do not."""
        request = self._requests(pod)
        return self.refused(request, {} if is_preemptible(pod) else request)

    def refused(self, every: Amounts, non_preemptible: Amounts) -> QuotaRefusal | None:
        """Return why the quotas refuse pods, None if they do not.

        :param every: what the pods ask for together.
        :param non_preemptible: what those of them ask for that may not be preempted.
        """
        name = self._quota.name
        problem = self._manager.problem(name)
        if problem is not None:
            return QuotaRefusal(problem, name, {})
        counted = self._quota.definition.maximum.keys()
        request, fixed = masked(every, counted), masked(non_preemptible, counted)
        over = _over(added(request, self.used), self.limit)
        if over:
            return QuotaRefusal(
                f"Insufficient quotas, quotaName: {name}, runtime: {printed(self.limit)}, "
                f"used: {printed(self.used)}, {_asked(request, over)}",
                name,
                over,
            )
        if fixed:
            least = self._quota.definition.minimum
            over = _over(added(fixed, self.non_preemptible_used), least)
            if over:
                return QuotaRefusal(
                    f"Insufficient non-preemptible quotas, quotaName: {name}, "
                    f"min: {printed(least)}, "
                    f"nonPreemptibleUsed: {printed(self.non_preemptible_used)}, "
                    f"{_asked(fixed, over)}",
                    name,
                    over,
                )
        return self.refusal_above(request)

    def refusal_above(self, request: Amounts) -> QuotaRefusal | None:
        """Return why a quota above the pod's own refuses a request, if these are checked."""
        names = [self._quota.name]
        for quota in self._above:
            if quota.name == ROOT_QUOTA:
                break
            names.insert(0, quota.name)
            limit = self._limit(quota)
            used = without_negatives(subtracted(quota.used.every, self._gone))
            over = _over(masked(added(request, used), request.keys()), limit)
            if over:
                return QuotaRefusal(
                    f"Insufficient quotas, quotaNameTopo: [{' '.join(names)}], "
                    f"runtime: {printed(limit)}, used: {printed(used)}, {_asked(request, over)}",
                    quota.name,
                    over,
                )
        return None

    def _limit(self, quota: Quota) -> ResourceList:
        if self._use_runtime:
            return self._manager.runtime(quota.name) or {}
        return quota.definition.maximum

    def _requests(self, pod: Pod) -> ResourceList:
        return masked(pod_requests(pod.spec).effective, self._quota.definition.maximum)


def _over(amounts: Amounts, limit: Amounts) -> ResourceList:
    return {name: amounts[name] - limit[name] for name in exceeding(amounts, limit)}


def _asked(request: Amounts, over: Amounts) -> str:
    return f"pod's request: {printed(request)}, exceedDimensions: [{' '.join(over)}]"
