"""Quotas that use more than they may have now, because they borrowed what its owner asks for.

Koordinator gives lent resources back in one way only: ``monitorAllQuotas`` lets a loop evict pods
of quotas that were over their runtime for ``delayEvictTime`` (quota_overuse_revoke.go). Without it
an owner waits for as long as the borrower's pods run. Here an owner also reclaims at once, see
:func:`owed_to`; the pods to evict are chosen by the same rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bayplan.api import Pod
from bayplan.dialects.koordinator.elastic_quota import ROOT_QUOTA, SYSTEM_QUOTA
from bayplan_plugins.queues.koordinator.importance import by_importance
from bayplan_plugins.queues.koordinator.manager import QuotaManager
from bayplan_plugins.queues.koordinator.quota import CountedPod
from bayplan_plugins.queues.koordinator.resource_lists import added, exceeding, subtracted

__all__ = ["OveruseMonitor", "borrowers", "pods_to_revoke"]

Amounts = Mapping[str, int]


def pods_to_revoke(pods: Iterable[CountedPod], used: Amounts, runtime: Amounts) -> list[Pod]:
    """Return the pods that a quota has to give up to get within what it may have, in order.

    From the least important up, pods that use anything of what is overused are taken until nothing
    is. If that does not suffice, all of them are returned, the least important first. Else, from
    the most important of them down, those that fit again are reprieved. (Koordinator looks at one
    pod's resources at a time and forgets what is overused of others.)
    """
    of_pod = {one.pod.key: one for one in pods if one.assigned and one.preemptible}
    taken: list[CountedPod] = []
    left = dict(used)
    for pod in reversed(by_importance(one.pod for one in of_pod.values())):
        over = exceeding(left, runtime)
        if not over:
            break
        one = of_pod[pod.key]
        if any(one.requests.get(name) for name in over):
            left = subtracted(left, one.requests)
            taken.append(one)
    if exceeding(left, runtime):
        return [one.pod for one in taken]
    revoked = []
    for one in reversed(taken):
        again = added(left, one.requests)
        if exceeding(again, runtime):
            revoked.append(one.pod)
        else:
            left = again
    return revoked


def borrowers(manager: QuotaManager, name: str) -> list[str]:
    """Return the quotas that use what others may have, except one.

    An owner that asks for what is its own raises its runtime, and lowers those of the borrowers:
    what they use beyond that is the owner's. The quotas nearest to the named one in the tree come
    first, then by name.
    """
    mine = [quota.name for quota in manager.path(name)]
    found = []
    for other, quota in manager.quotas.items():
        if other in (name, ROOT_QUOTA, SYSTEM_QUOTA) or not quota.pods:
            continue
        if exceeding(quota.used.every, manager.runtime(other) or {}):
            above = [up.name for up in manager.path(other)]
            shared = next((mine.index(up) for up in above if up in mine), len(mine))
            found.append((shared, other))
    return [other for _, other in sorted(found)]


class OveruseMonitor:
    """Since when quotas have been over their runtime.

    :param delay: the seconds that a quota may be over it (``delayEvictTime``).
    """

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._under: dict[tuple[str, str], float] = {}

    def due(self, manager: QuotaManager, now: float) -> list[str]:
        """Return the quotas of a tree that have been over their runtime for longer than the delay.

        Their time starts again. A quota that is seen for the first time counts as within it.
        """
        found = []
        for name in sorted(manager.quotas):
            runtime = manager.runtime(name)
            if name in (ROOT_QUOTA, SYSTEM_QUOTA) or runtime is None:
                continue
            key = (manager.tree, name)
            since = self._under.setdefault(key, now)
            if not exceeding(manager.quotas[name].used.every, runtime):
                self._under[key] = now
            elif now - since > self._delay:
                self._under[key] = now
                found.append(name)
        gone = [
            key for key in self._under if key[0] == manager.tree and key[1] not in manager.quotas
        ]
        for key in gone:
            del self._under[key]
        return found
