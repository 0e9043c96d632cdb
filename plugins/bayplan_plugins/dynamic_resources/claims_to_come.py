"""Claims of pods that do not exist: what a controller would make from their templates.

A trial places pods that a job would have if it was larger, or ran. Such a claim has the uid of its
pod, so that a trial that is taken back releases the devices.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from bayplan import PodInfo
from bayplan.api import ObjectMeta, ResourceClaim, ResourceClaimTemplate
from bayplan.api.pod import PodResourceClaim
from bayplan.snapshot import Snapshot
from bayplan_dra.allocator import ClaimToAllocate
from bayplan_plugins.device_ledger.claim_specs import ClaimSpecs

__all__ = ["claim_to_come", "prepared_to_come", "templates_to_come"]


def templates_to_come(pod: PodInfo) -> Iterator[PodResourceClaim]:
    """Yield the entries of a pod whose claims nobody has made from their templates yet."""
    known = {status.name for status in pod.pod.status.resource_claim_statuses}
    for wanted in pod.spec.resource_claims:
        if wanted.resource_claim_template_name is not None and wanted.name not in known:
            yield wanted


def claim_to_come(
    pod: PodInfo, wanted: PodResourceClaim, snapshot: Snapshot
) -> ResourceClaim | None:
    """Return the claim that a template would make, with the template's uid; None without it."""
    key = f"{pod.namespace}/{wanted.resource_claim_template_name}"
    template = snapshot.objects(ResourceClaimTemplate).get(key)
    if template is None:
        return None
    meta = template.metadata
    # Claims of one template share the work, as long as it stays the same.
    uid = f"template-{meta.uid or key}-{meta.resource_version}"
    name = f"{pod.name}-{wanted.name}"
    return ResourceClaim(
        ObjectMeta(name=name, namespace=pod.namespace, uid=uid), template.spec.spec
    )


def prepared_to_come(
    pod: PodInfo, wanted: PodResourceClaim, claim: ResourceClaim, specs: ClaimSpecs
) -> ClaimToAllocate:
    """Return a claim of ``claim_to_come`` in the allocator's form, as one of this pod.

    :raises AllocationError: when no node could serve it.
    """
    ready = specs.prepared(claim, wanted.name)
    meta = ObjectMeta(
        name=claim.metadata.name, namespace=pod.namespace, uid=f"{pod.uid}/{wanted.name}"
    )
    return replace(ready, claim=ResourceClaim(meta, claim.spec))
