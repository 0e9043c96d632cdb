"""Which changes can help a pod that its quota refused.

The rule: koordinator-sh/koordinator, pkg/scheduler/plugins/elasticquota/plugin.go (queueing hints).
Quotas above the pod's own matter only where they are checked.
"""

from __future__ import annotations

from dataclasses import replace

from bayplan.api import ElasticQuota, Pod
from bayplan.dialects.koordinator.elastic_quota import definition_of
from bayplan_plugins.queues.koordinator.quotas import Quotas

__all__ = ["helped_by_deletion", "helped_by_quota"]


def helped_by_quota(quotas: Quotas, pod: Pod, old: ElasticQuota, new: ElasticQuota) -> bool:
    """Tell whether the change of a quota can help a pod."""
    before, after = definition_of(old), definition_of(new)
    tree = after.tree if quotas.features.trees else ""
    # Usage and annotations that the scheduler writes itself help nobody.
    if replace(before, used=after.used) == after:
        return False
    return _concerns(quotas, pod, (tree, after.name))


def helped_by_deletion(quotas: Quotas, pod: Pod, deleted: Pod) -> bool:
    """Tell whether a pod's end can help another: it had a node, and a quota that limits both."""
    home = quotas.home_of(deleted)
    if home is None:
        return False
    quota = quotas.trees[home[0]].quotas.get(home[1])
    counted = quota.pods.get(deleted.key) if quota is not None else None
    if counted is None or not counted.assigned:
        return False
    return _concerns(quotas, pod, home)


def _concerns(quotas: Quotas, pod: Pod, changed: tuple[str, str]) -> bool:
    home = quotas.home_of(pod)
    if home is None or home[0] != changed[0]:
        return False
    if home == changed:
        return True
    above = quotas.trees[home[0]].path(home[1])
    return quotas.args.enable_check_parent_quota and changed[1] in [quota.name for quota in above]
