"""Which pods use a ResourceClaim that they name, and which of them it is charged to."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence

from bayplan.api import ResourceClaim
from bayplan.snapshot import PodInfo, Snapshot

__all__ = ["ClaimUsers", "claims_of", "named_claims"]


def named_claims(pod: PodInfo) -> list[str]:
    """Return the keys of the claims that a pod names, which others may name, too."""
    if not pod.spec.resource_claims:
        return []
    names = (one.resource_claim_name for one in pod.spec.resource_claims)
    return [f"{pod.namespace}/{name}" for name in dict.fromkeys(names) if name is not None]


def claims_of(pod: PodInfo) -> Sequence[str]:
    """Return the keys of a pod's claims: those that it names, and those that were made for it."""
    status = pod.pod.status
    if not pod.spec.resource_claims and status.extended_resource_claim_status is None:
        return ()
    made = [one.resource_claim_name for one in status.resource_claim_statuses]
    if status.extended_resource_claim_status is not None:
        made.append(status.extended_resource_claim_status.resource_claim_name)
    own = (f"{pod.namespace}/{name}" for name in made if name is not None)
    return list(dict.fromkeys((*named_claims(pod), *own)))


class ClaimUsers:
    """The users of claims in order: as the claim is reserved for them, then as they got a node.

    Pods without a node come last, by age. The order follows trials and their undoing.

    :param claims_of: returns the keys of the claims that a pod uses.
    """

    def __init__(
        self, snapshot: Snapshot, claims_of: Callable[[PodInfo], Sequence[str]] = named_claims
    ) -> None:
        self._snapshot = snapshot
        self._claims_of = claims_of
        self._users: dict[str, set[str]] = {}
        self._turns: dict[str, int] = {}
        self._next_turn = 0
        self._left = ""

    def of(self, claim: str) -> Collection[str]:
        """Return the pods, by key, that name a claim, by key."""
        return self._users.get(claim, ())

    def clear(self) -> None:
        """Forget who names which claim, but not in which order pods got their nodes."""
        self._users.clear()

    def follow(self, pod: PodInfo) -> list[str]:
        """Record a pod, of any version, that came, left or moved; return the claims it names."""
        claims = list(self._claims_of(pod))
        latest = self._latest(pod.key)
        named = self._claims_of(latest) if latest is not None else ()
        for claim in claims:
            users = self._users.setdefault(claim, set())
            (users.add if claim in named else users.discard)(pod.key)
            if not users:
                del self._users[claim]
        return claims

    def placed(self, pod: PodInfo) -> None:
        """Give a pod that got a node its turn; one that is replaced by a new version keeps it."""
        self._forget_left(pod.key)
        if pod.key not in self._turns:
            self._next_turn += 1
            self._turns[pod.key] = self._next_turn
            self._snapshot.on_rollback(lambda: self._take_turn_back(pod.key))

    def removed(self, pod: PodInfo) -> None:
        """Let a pod that left its node lose its turn, unless it comes back at once."""
        self._forget_left(pod.key)
        if not self._snapshot.in_trial:
            self._left = pod.key

    def _take_turn_back(self, key: str) -> None:
        self._turns.pop(key, None)

    def _forget_left(self, key: str) -> None:
        if self._left != key:
            self._turns.pop(self._left, None)
        self._left = ""

    def first(self, claim: str, pods: Iterable[str]) -> str | None:
        """Return the one of some pods that a claim is charged to; None without any."""
        reserved = self._reserved(claim)
        return min(pods, key=lambda pod: self._order(pod, reserved), default=None)

    def _order(self, key: str, reserved: dict[tuple[str, str], int]) -> tuple[float, float, str]:
        pod = self.latest(key)
        group = (pod.gang or "").rpartition("/")[2]
        place = reserved.get(("pods", pod.uid), reserved.get(("podgroups", group), math.inf))
        created = pod.pod.metadata.creation_timestamp or ""
        turn = self._turns.get(key, 0) if key in self._snapshot.placed else math.inf
        return place, turn, f"{created} {key}"

    def latest(self, key: str) -> PodInfo:
        """Return the latest version of a pod, by key, that is alive or on a node."""
        pod = self._latest(key)
        assert pod is not None, "the ledger counts it"
        return pod

    def _latest(self, key: str) -> PodInfo | None:
        placed = self._snapshot.placed.get(key)
        return self._snapshot.living.get(key) or (placed[0] if placed is not None else None)

    def _reserved(self, claim: str) -> dict[tuple[str, str], int]:
        """Return the places of the consumers for which a claim is reserved."""
        found = self._snapshot.objects(ResourceClaim).get(claim)
        consumers = found.status.reserved_for if found is not None else ()
        return {
            (one.resource, one.uid if one.resource == "pods" else one.name): place
            for place, one in enumerate(consumers)
        }
