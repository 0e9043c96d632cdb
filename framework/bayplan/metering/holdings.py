"""What one pod holds, and who pays for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from bayplan.api import ComputePool, Node, Pod, ResourceClaim
from bayplan.api.node_state import NodeState, model_of, state_of
from bayplan.api.resources import amount_of, pod_requests
from bayplan.api.times import seconds_of
from bayplan.dialects import membership_of
from bayplan.dialects.compute_pool import tenant_of
from bayplan.metering.record import UsageRecord
from bayplan.queues.device_selection import DeviceSelector
from bayplan.queues.devices import DeviceIndex, Key, Offer
from bayplan.queues.gpus import asks_of_each_gpu, gpus_held, gpus_offered, is_gpu_count

__all__ = [
    "MOST_HELD",
    "amounts_of",
    "end_of",
    "holds",
    "job_of",
    "records_of",
    "scheduled_at",
    "with_node",
]

_ENDED = ("Succeeded", "Failed")
_MILLI = 1000
MOST_HELD = 2**58
"""The most of a resource that a pod holds or a node offers, in thousandths: 260 TiB of memory.

More is nonsense that somebody wrote, and would exceed the integers of databases in sums.
"""


def holds(pod: Pod) -> bool:
    """Tell whether a pod has its resources: it is bound and has not ended."""
    return bool(pod.spec.node_name) and pod.status.phase not in _ENDED


def scheduled_at(pod: Pod) -> float:
    """Return when a pod was bound, in seconds since 1970; 0 where it does not say."""
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "True":
            return seconds_of(condition.last_transition_time)
    return 0.0


def end_of(pod: Pod) -> float:
    """Return when the last container ended, in seconds since 1970; 0 where it does not say."""
    states = [status.state.terminated for status in pod.status.container_statuses]
    times = [seconds_of(one.finished_at) for one in states if one is not None]
    return max(times) if times and len(times) == len(states) and all(times) else 0.0


def job_of(pod: Pod) -> str:
    """Return the key of a pod's pod group or controller, or its own."""
    gang = membership_of(pod).gang
    if gang:
        return gang
    meta = pod.metadata
    owner = next((one.name for one in meta.owner_references if one.controller), meta.name)
    return f"{meta.namespace}/{owner}"


def amounts_of(
    pod: Pod,
    node: Node | None,
    claims: Iterable[ResourceClaim],
    devices: DeviceIndex,
    selector: DeviceSelector | None = None,
) -> dict[Key, int]:
    """Return what a pod holds, in thousandths: its effective requests, and its claims' devices.

    Of GPUs that it shares it holds parts. Extended resources that a claim stands for count as the
    claim's devices.
    """
    extended = pod.status.extended_resource_claim_status
    as_claims = {one.resource_name for one in extended.request_mappings} if extended else set()
    found: dict[Key, int] = {}
    requests = pod_requests(pod.spec).effective
    amounts = {
        resource: _thousandths(resource, amount)
        for resource, amount in requests.items()
        if _is_metered(resource) and not is_gpu_count(resource)
    }
    for resource, amount in (amounts | gpus_held(pod, node, requests)).items():
        if resource not in as_claims:
            key = Key(resource, model_of(node, resource) if node is not None else "")
            found[key] = amount
    for claim in claims:
        allocation = claim.status.allocation
        for result in allocation.devices.results if allocation is not None else ():
            key, amount = devices.held(result, selector)
            if amount:
                found[key] = found.get(key, 0) + amount
    return found


def with_node(node: Node, offer: Offer) -> Offer:
    """Add what a node offers itself to what its devices do; its state holds for both."""
    resources = node.status.allocatable or node.status.capacity
    for resource, quantity in resources.items():
        if _is_metered(resource):
            key = Key(resource, model_of(node, resource))
            amount = amount_of(resource, quantity)
            if is_gpu_count(resource):
                amount = gpus_offered(node, resource, amount)
            else:
                amount = _thousandths(resource, amount)
            if amount > 0:
                offer.amounts[key] = offer.amounts.get(key, 0) + amount
    state = state_of(node)
    if state is NodeState.FAILED:
        offer.failed, offer.maintenance = dict(offer.amounts), {}
    elif state is NodeState.MAINTENANCE:
        rest = {key: all_ - offer.failed.get(key, 0) for key, all_ in offer.amounts.items()}
        offer.maintenance = rest
    return offer


def records_of(
    pod: Pod,
    amounts: Mapping[Key, int],
    pool: ComputePool | None,
    queue_of: Callable[[Pod], str],
) -> dict[Key, UsageRecord]:
    """Return the records of what a pod holds, by key, without their times.

    :param pool: the pool of its node; it is not charged for devices that it does not select.
    """
    meta = pod.metadata
    tenant = tenant_of(meta.labels, meta.namespace, pool)
    queue, job = queue_of(pod), job_of(pod)
    return {
        key: UsageRecord(
            tenant=tenant,
            queue=queue,
            pool=pool.metadata.name if pool is not None and not key.outside else "",
            namespace=meta.namespace,
            job=job,
            pod=pod.key,
            pod_uid=meta.uid,
            node=pod.spec.node_name,
            resource=key.resource,
            model=key.model,
            amount=amount,
            since=0,
            labels=meta.labels,
        )
        for key, amount in amounts.items()
    }


def _thousandths(resource: str, amount: int) -> int:
    return min(amount if resource == "cpu" else amount * _MILLI, MOST_HELD)


def _is_metered(resource: str) -> bool:
    # The number of pods and of volumes is a limit of the kubelet, not something that is used up.
    if resource == "pods" or resource.startswith("attachable-volumes-"):
        return False
    return not asks_of_each_gpu(resource)
