"""The quotas of queues whose jobs run in other clusters, where these say what they are.

Kueue's quota automation: the nominal quota of a queue is the sum of those of the ClusterQueues that
its jobs get to in the other clusters, over all of their flavors. What these borrow, and whether
they are stopped, does not count. A cluster that does not answer has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import msgspec

from bayplan.api import ClusterQueue, LocalQueue
from bayplan.api.kueue import KueueCondition, MultiKueueConfig, ResourceQuota
from bayplan.api.resources import amount_of
from bayplan.queues.amounts import quantities, total_of

__all__ = ["AUTOMATION", "Automated", "automated", "is_automated", "nominal_quotas", "places"]

AUTOMATION = "MultiKueueManagerQuotaAutomation"
"""The condition of a ClusterQueue that says whether its quotas follow other clusters."""
_AUTOMATED = "Automated"


class Automated(msgspec.Struct, frozen=True):
    """What a ClusterQueue should have.

    :param resources: the quotas of its only flavor; None to leave them as they are.
    :param condition: what it says of that; None for nothing.
    """

    resources: tuple[ResourceQuota, ...] | None = None
    condition: KueueCondition | None = None


def is_automated(config: MultiKueueConfig) -> bool:
    """Tell whether the quotas of queues follow the clusters of a configuration."""
    return config.spec.quota_management == _AUTOMATED


def places(local_queues: Iterable[LocalQueue]) -> dict[str, set[str]]:
    """Return ``namespace/name`` of the LocalQueues of each ClusterQueue, by its name."""
    found: dict[str, set[str]] = {}
    for one in local_queues:
        key = f"{one.metadata.namespace}/{one.metadata.name}"
        found.setdefault(one.spec.cluster_queue, set()).add(key)
    return found


def nominal_quotas(
    cluster_queues: Iterable[ClusterQueue],
    of_queues: Mapping[str, Set[str]],
    local_queues: Set[str],
) -> dict[str, float]:
    """Return what the queues of another cluster have for jobs of some LocalQueues, by resource.

    :param of_queues: the LocalQueues of its ClusterQueues, by name.
    :param local_queues: ``namespace/name`` of those here; jobs go to those of the same name there.
    """
    return total_of(
        *(
            {quota.name: amount_of(quota.name, quota.nominal_quota)}
            for queue in cluster_queues
            if not local_queues.isdisjoint(of_queues.get(queue.metadata.name, ()))
            for group in queue.spec.resource_groups
            for flavor in group.flavors
            for quota in flavor.resources
        )
    )


def automated(
    queue: ClusterQueue, config: MultiKueueConfig | None, quotas: Sequence[Mapping[str, float]]
) -> Automated:
    """Return what a ClusterQueue with a check that sends its jobs away should have.

    :param config: the parameters of the check; None where they are not there.
    :param quotas: what each cluster has that answers.
    """
    stated = any(one.type == AUTOMATION for one in queue.status.conditions)
    if config is None:
        return _refused("its MultiKueueConfig is not there") if stated else Automated()
    if not is_automated(config):
        text = "its MultiKueueConfig leaves its quotas to its users"
        return _refused(text, "NotRequested") if stated else Automated()
    groups = queue.spec.resource_groups
    if len(groups) != 1 or len(groups[0].flavors) != 1:
        return _refused("expected one resource group with one flavor")
    total = total_of(*quotas)
    covered = groups[0].covered_resources
    if missing := sorted(total.keys() - set(covered)):
        return _refused(f"its coveredResources lack {', '.join(missing)} of other clusters")
    texts = quantities({name: total.get(name, 0.0) for name in covered})
    wanted = tuple(ResourceQuota(name, texts[name]) for name in covered)
    condition = KueueCondition(
        AUTOMATION, "True", "QuotaAutomated", "its quotas are those of the clusters of its jobs"
    )
    return Automated(wanted if wanted != groups[0].flavors[0].resources else None, condition)


def _refused(why: str, reason: str = "UnsupportedConfiguration") -> Automated:
    return Automated(condition=KueueCondition(AUTOMATION, "False", reason, why))
