"""Which waiting pods use which claims, to know whose gates to ask when a claim changes."""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.api import ResourceClaim
from bayplan.snapshot import PodInfo

__all__ = ["Claimants"]


class Claimants:
    """Waiting pods by the claims that they name; claims made for a pod name it as their owner."""

    def __init__(self) -> None:
        self._by_claim: dict[str, dict[str, None]] = {}
        self._named: dict[str, list[str]] = {}

    def add(self, pod: PodInfo) -> None:
        """Note which claims a pod names."""
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
        """Forget a pod that does not wait any more."""
        for key in self._named.pop(pod_key, ()):
            pods = self._by_claim[key]
            pods.pop(pod_key, None)
            if not pods:
                del self._by_claim[key]

    def of(self, claim: ResourceClaim) -> Iterable[str]:
        """Return the keys of the pods that may wait for a claim."""
        owners = [
            f"{claim.metadata.namespace}/{reference.name}"
            for reference in claim.metadata.owner_references
            if reference.kind == "Pod"
        ]
        return [*self._by_claim.get(claim.key, ()), *owners]
