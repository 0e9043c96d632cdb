"""From a pod to its claims, and from a claim to the pods that use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bayplan import PodInfo, Remedy
from bayplan.api import PersistentVolumeClaim, StorageClass
from bayplan.api.volumes import UsedClaim, class_of, used_claims
from bayplan.errors import did_you_mean
from bayplan.snapshot import Snapshot

__all__ = ["ClaimUsers", "claim_of", "is_delayed", "missing_claims", "not_found", "used_by"]

_NOBODY: Mapping[str, PodInfo] = {}


def used_by(pod: PodInfo) -> list[UsedClaim]:
    """Return the distinct claims that a pod uses."""
    if not pod.facts.uses_claims:
        return []
    return list(dict.fromkeys(used_claims(pod.pod)))


def claim_of(pod: PodInfo, used: UsedClaim, snapshot: Snapshot) -> PersistentVolumeClaim | None:
    """Return a claim that a pod uses, None if it does not exist."""
    return snapshot.objects(PersistentVolumeClaim).get(f"{pod.namespace}/{used.name}")


def not_found(kind: str, name: str) -> str:
    """Return, in the API server's words, that an object does not exist."""
    return f'{kind} "{name}" not found'


def missing_claims(pod: PodInfo, snapshot: Snapshot) -> Iterator[Remedy]:
    """Yield a remedy for each claim that a pod names and that does not exist."""
    known = [
        claim.metadata.name
        for claim in snapshot.objects(PersistentVolumeClaim).values()
        if claim.metadata.namespace == pod.namespace
    ]
    for used in used_by(pod):
        if not used.ephemeral and claim_of(pod, used, snapshot) is None:
            name = f"{pod.namespace}/{used.name}"
            text = f"would be tried again if PersistentVolumeClaim {name} existed"
            yield Remedy(f"{text}{did_you_mean(used.name, known)}", None, 1.0)


def is_delayed(claim: PersistentVolumeClaim, snapshot: Snapshot) -> bool:
    """Tell whether a claim is bound only once a pod that uses it has a node."""
    found = snapshot.objects(StorageClass).get(class_of(claim))
    return found is not None and found.volume_binding_mode == "WaitForFirstConsumer"


class ClaimUsers:
    """The pods on nodes that use claims, by the claim's key and the pod's uid."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._users: dict[str, dict[str, PodInfo]] = {}
        snapshot.on_pod(self._on_pod)
        for pod, node in snapshot.placed.values():
            self._on_pod(pod, node, True)

    def of(self, claim: str) -> Mapping[str, PodInfo]:
        """Return the pods that use a claim, by uid."""
        return self._users.get(claim, _NOBODY)

    def _on_pod(self, pod: PodInfo, node: str, placed: bool) -> None:
        if not pod.facts.uses_claims:
            return
        for used in used_by(pod):
            key = f"{pod.namespace}/{used.name}"
            users = self._users.setdefault(key, {})
            if placed:
                users[pod.uid] = pod
            else:
                users.pop(pod.uid, None)
                if not users:
                    del self._users[key]
