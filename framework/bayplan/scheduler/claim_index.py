"""Which pending pods use a ResourceClaim: their gates are checked again when it changes."""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.api import ResourceClaim
from bayplan.snapshot import PodInfo

__all__ = ["ClaimIndex"]


class ClaimIndex:
    """Pending pods by the claims that they name; a claim made for a pod names its owner itself."""

    def __init__(self) -> None:
        self._by_claim: dict[str, dict[str, None]] = {}
        self._named: dict[str, list[str]] = {}

    def add(self, pod: PodInfo) -> None:
        """Index a pod by the claims that it names."""
        if not pod.spec.resource_claims:
            return
        self.remove(pod.key)
        claims = (claim.resource_claim_name for claim in pod.spec.resource_claims)
        names = dict.fromkeys(name for name in claims if name)
        if names:
            keys = self._named[pod.key] = [f"{pod.namespace}/{name}" for name in names]
            for key in keys:
                self._by_claim.setdefault(key, {})[pod.key] = None

    def remove(self, pod_key: str) -> None:
        """Remove a pod that is no longer pending."""
        for key in self._named.pop(pod_key, ()):
            pods = self._by_claim[key]
            pods.pop(pod_key, None)
            if not pods:
                del self._by_claim[key]

    def of(self, claim: ResourceClaim) -> Iterable[str]:
        """Return the keys of the pods that may be waiting for a claim."""
        owners = [
            f"{claim.metadata.namespace}/{reference.name}"
            for reference in claim.metadata.owner_references
            if reference.kind == "Pod"
        ]
        return [*self._by_claim.get(claim.key, ()), *owners]
