"""What Kueue's webhooks and CRDs refuse, beyond wrong types and values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bayplan.api.kueue import (
    ClusterQueue,
    Cohort,
    FairSharing,
    FlavorQuotas,
    KueueWorkload,
    LocalQueue,
    ResourceFlavor,
    ResourceGroup,
    ResourceQuota,
)
from bayplan.api.quantity import Quantity

__all__ = [
    "cluster_queue_problems",
    "cohort_problems",
    "flavor_problems",
    "local_queue_problems",
    "workload_problems",
]

Problem = tuple[str, str]
_MOST_POD_SETS = 8
_MOST_GROUPS = 16
_MOST_FLAVORS = 64
_LEAST_WEIGHT = Quantity("1n")


def cluster_queue_problems(queue: ClusterQueue) -> Iterator[Problem]:
    """Yield (JSON path, message) for what Kueue would refuse in a ClusterQueue."""
    spec = queue.spec
    yield from _groups(spec.resource_groups, bool(spec.cohort_name), "cohort")
    policies = spec.preemption
    borrow = policies.borrow_within_cohort
    if (
        borrow is not None
        and borrow.policy != "Never"
        and policies.reclaim_within_cohort == "Never"
    ):
        yield (
            "$.spec.preemption.borrowWithinCohort.policy",
            "needs a reclaimWithinCohort other than Never",
        )
    yield from _weight(spec.fair_sharing)
    policy = spec.concurrent_admission_policy
    if policy is not None and policy.migration.constraints is not None:
        last = policy.migration.constraints.last_acceptable_flavor_name
        known = {flavor.name for group in spec.resource_groups for flavor in group.flavors}
        if last and last not in known:
            path = "$.spec.concurrentAdmissionPolicy.migration.constraints.lastAcceptableFlavorName"
            yield path, f'the queue has no flavor "{last}"'


def cohort_problems(cohort: Cohort) -> Iterator[Problem]:
    """Yield (JSON path, message) for what Kueue would refuse in a Cohort."""
    spec = cohort.spec
    if spec.parent_name and spec.parent_name == cohort.metadata.name:
        yield "$.spec.parentName", "a cohort cannot be its own parent"
    yield from _groups(spec.resource_groups, bool(spec.parent_name), "parent")
    yield from _weight(spec.fair_sharing)


def local_queue_problems(queue: LocalQueue) -> Iterator[Problem]:
    """Yield (JSON path, message) for what Kueue would refuse in a LocalQueue."""
    if not queue.spec.cluster_queue:
        yield "$.spec.clusterQueue", "is required"
    yield from _weight(queue.spec.fair_sharing)


def flavor_problems(flavor: ResourceFlavor) -> Iterator[Problem]:
    """Yield (JSON path, message) for what Kueue would refuse in a ResourceFlavor."""
    if flavor.spec.topology_name and not flavor.spec.node_labels:
        yield "$.spec.nodeLabels", "a flavor with a topology needs one label or more"


def workload_problems(workload: KueueWorkload) -> Iterator[Problem]:
    """Yield (JSON path, message) for what Kueue would refuse in a Workload."""
    sets = workload.spec.pod_sets
    if not 1 <= len(sets) <= _MOST_POD_SETS:
        yield "$.spec.podSets", f"expected 1 to {_MOST_POD_SETS} pod sets, got {len(sets)}"
    seen: set[str] = set()
    for index, pod_set in enumerate(sets):
        path = f"$.spec.podSets[{index}]"
        if pod_set.name in seen:
            yield f"{path}.name", f'two pod sets are named "{pod_set.name}"'
        seen.add(pod_set.name)
        if pod_set.count < 0:
            yield f"{path}.count", f"expected 0 or more, got {pod_set.count}"
        least = pod_set.min_count
        if least is not None and not 0 < least <= pod_set.count:
            yield f"{path}.minCount", f"expected 1 to {pod_set.count}, the count, got {least}"
        for container in (
            *pod_set.template.spec.containers,
            *pod_set.template.spec.init_containers,
        ):
            if "pods" in container.resources.requests:
                where = f"{path}.template.spec.containers"
                yield where, 'the resource "pods" is counted by Kueue and cannot be requested'
    if sum(one.min_count is not None for one in sets) > 1:
        yield "$.spec.podSets", "only one pod set may have a minCount"
    for index, freed in enumerate(workload.status.reclaimable_pods):
        if freed.name not in seen:
            path = f"$.status.reclaimablePods[{index}].name"
            yield path, f'the workload has no pod set "{freed.name}"'


def _weight(sharing: FairSharing | None) -> Iterator[Problem]:
    weight = sharing.weight if sharing is not None else None
    if weight is None or weight.amount == 0:
        return
    if weight.amount < 0:
        yield "$.spec.fairSharing.weight", f"expected 0 or more, got {weight.text}"
    elif weight.amount <= _LEAST_WEIGHT.amount:
        yield "$.spec.fairSharing.weight", f"expected 0 or more than 1n, got {weight.text}"


def _groups(groups: Sequence[ResourceGroup], inside: bool, outer: str) -> Iterator[Problem]:
    """Check resource groups; ``inside`` says that the queue belongs to a cohort."""
    if len(groups) > _MOST_GROUPS:
        yield "$.spec.resourceGroups", f"expected at most {_MOST_GROUPS}, got {len(groups)}"
    resources: set[str] = set()
    flavors: set[str] = set()
    for index, group in enumerate(groups):
        path = f"$.spec.resourceGroups[{index}]"
        if not group.covered_resources:
            yield f"{path}.coveredResources", "expected one resource or more"
        for resource in group.covered_resources:
            if resource in resources:
                where = f"{path}.coveredResources"
                yield where, f'the resource "{resource}" is in two resource groups'
            resources.add(resource)
        if not 1 <= len(group.flavors) <= _MOST_FLAVORS:
            got = len(group.flavors)
            yield f"{path}.flavors", f"expected 1 to {_MOST_FLAVORS} flavors, got {got}"
        for number, flavor in enumerate(group.flavors):
            where = f"{path}.flavors[{number}]"
            if flavor.name in flavors:
                yield f"{where}.name", f'the flavor "{flavor.name}" is listed twice'
            flavors.add(flavor.name)
            yield from _flavor(flavor, group.covered_resources, where, inside, outer)


def _flavor(
    flavor: FlavorQuotas, covered: Sequence[str], path: str, inside: bool, outer: str
) -> Iterator[Problem]:
    names = tuple(quota.name for quota in flavor.resources)
    if names != tuple(covered):
        yield (
            f"{path}.resources",
            "expected a quota for each covered resource in the same order: " + ", ".join(covered),
        )
    for index, quota in enumerate(flavor.resources):
        yield from _quota(quota, f"{path}.resources[{index}]", inside, outer)


def _quota(quota: ResourceQuota, path: str, inside: bool, outer: str) -> Iterator[Problem]:
    limits = {"borrowingLimit": quota.borrowing_limit, "lendingLimit": quota.lending_limit}
    for field, amount in {"nominalQuota": quota.nominal_quota, **limits}.items():
        if amount is not None and amount.amount < 0:
            yield f"{path}.{field}", f"expected 0 or more, got {amount.text}"
    for field, amount in limits.items():
        if amount is not None and not inside:
            yield f"{path}.{field}", f"means nothing without a {outer}"
    lent = quota.lending_limit
    if lent is not None and lent.amount > quota.nominal_quota.amount:
        nominal = quota.nominal_quota.text
        yield f"{path}.lendingLimit", f"{lent.text} is more than the nominal quota, {nominal}"
