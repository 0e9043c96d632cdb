"""GPUs as KAI counts them: parts of them, and those of resource claims."""

from __future__ import annotations

from collections.abc import Iterator

from bayplan import PodInfo
from bayplan.api import ResourceClaim, ResourceClaimTemplate, ResourceSlice
from bayplan.api.dra import ResourceClaimSpec
from bayplan.dialects.kai.queues import QUEUE_LABEL
from bayplan.snapshot import Snapshot

__all__ = [
    "claim_problem",
    "gpus_of_claim",
    "gpus_of_slices",
    "gpus_of_templates",
]

_GPU = "gpu"


def gpus_of_claim(claim: ResourceClaim) -> float:
    """Return how many GPUs a resource claim asks for.

    A device class is one of GPUs if its name contains "gpu". A request for all devices counts as
    one, because how many that are is only known on a node.
    """
    return float(_gpus_of(claim.spec))


def gpus_of_templates(pod: PodInfo, snapshot: Snapshot) -> float:
    """Return how many GPUs those claims ask for that are made for a pod alone."""
    return float(sum(_gpus_of(spec) for claim, spec in _claims(pod, snapshot) if claim is None))


def gpus_of_slices(snapshot: Snapshot) -> float:
    """Return how many GPUs the drivers' slices offer."""
    slices = snapshot.objects(ResourceSlice).values()
    return float(sum(len(one.spec.devices) for one in slices if _GPU in one.spec.driver))


def claim_problem(pod: PodInfo, queue: str, snapshot: Snapshot) -> str | None:
    """Return why a pod may not use a claim for GPUs that it shares with others by name.

    Such a claim counts in the queue that its label names, so that has to be the pod's.
    """
    for claim, spec in _claims(pod, snapshot):
        if claim is None or claim.metadata.owner_references or not _gpus_of(spec):
            continue
        named = claim.metadata.labels.get(QUEUE_LABEL)
        if named is None:
            return f'ResourceClaim "{claim.metadata.name}" lacks the label {QUEUE_LABEL}'
        if named != queue:
            return (
                f'ResourceClaim "{claim.metadata.name}" belongs to queue "{named}", the pod to '
                f'queue "{queue}"'
            )
    return None


def _claims(
    pod: PodInfo, snapshot: Snapshot
) -> Iterator[tuple[ResourceClaim | None, ResourceClaimSpec]]:
    """Yield a pod's claims with their specs; None for one that is made for the pod alone."""
    if not pod.spec.resource_claims:
        return
    claims = snapshot.objects(ResourceClaim)
    templates = snapshot.objects(ResourceClaimTemplate)
    made = {one.name: one.resource_claim_name for one in pod.pod.status.resource_claim_statuses}
    for one in pod.spec.resource_claims:
        name = one.resource_claim_name or made.get(one.name) or ""
        claim = claims.get(f"{pod.namespace}/{name}")
        template = templates.get(f"{pod.namespace}/{one.resource_claim_template_name}")
        if claim is not None:
            yield (claim if one.resource_claim_name else None), claim.spec
        elif template is not None:
            yield None, template.spec.spec


def _gpus_of(spec: ResourceClaimSpec) -> int:
    total = 0
    for request in spec.devices.requests:
        exact = request.exactly or next(iter(request.first_available), None)
        if exact is not None and _GPU in exact.device_class_name:
            total += 1 if exact.allocation_mode == "All" else exact.count or 1
    return total
