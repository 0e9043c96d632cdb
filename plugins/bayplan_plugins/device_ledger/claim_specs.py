"""Claims ready for the allocator; the work is shared by claims of equal specs."""

from __future__ import annotations

from collections import Counter

import msgspec

from bayplan.api import ResourceClaim
from bayplan_dra.allocator import ClaimToAllocate, Features, prepare
from bayplan_plugins.device_ledger.device_classes import DeviceClasses

__all__ = ["ClaimSpecs", "without_claim_name"]


class ClaimSpecs:
    """A number for each distinct claim spec, and what the allocator makes of it.

    Specs are dropped when the last claim that was seen with them is gone.
    """

    def __init__(self, classes: DeviceClasses, features: Features) -> None:
        self._classes = classes
        self._features = features
        self._numbers: dict[bytes, int] = {}
        self._contents: dict[int, bytes] = {}
        self._number_of: dict[str, int] = {}
        self._users: Counter[int] = Counter()
        self._last = 0
        self._prepared: dict[int, ClaimToAllocate] = {}

    def __len__(self) -> int:
        """Return the number of distinct specs."""
        return len(self._numbers)

    def number(self, claim: ResourceClaim) -> int:
        """Return a number that claims share exactly if their specs are equal."""
        uid = claim.metadata.uid
        found = self._number_of.get(uid)
        if found is None:
            content = msgspec.json.encode(claim.spec, enc_hook=lambda quantity: quantity.text)
            known = self._numbers.get(content)
            if known is None:
                # Numbers are never reused: answers are cached under them.
                self._last += 1
                known = self._numbers[content] = self._last
                self._contents[known] = content
            found = self._number_of[uid] = known
            self._users[found] += 1
        return found

    def prepared(self, claim: ResourceClaim, called: str = "") -> ClaimToAllocate:
        """Return a claim in the allocator's form.

        :param called: the pod's name for the claim, where the claim does not have it itself.
        :raises AllocationError: when no node could serve it.
        """
        number = self.number(claim)
        known = self._prepared.get(number)
        if known is None:
            known = prepare(claim, self._classes.get, self._features)
            self._prepared[number] = known
        return ClaimToAllocate(claim, known.requests, known.constraints, known.config, called)

    def forget(self, uid: str) -> None:
        """Drop a claim that is gone."""
        number = self._number_of.pop(uid, None)
        if number is None:
            return
        self._users[number] -= 1
        if not self._users[number]:
            del self._users[number], self._numbers[self._contents.pop(number)]
            self._prepared.pop(number, None)

    def forget_prepared(self) -> None:
        """Drop what follows from device classes, because one changed."""
        self._prepared.clear()


def without_claim_name(message: str, claim: ResourceClaim) -> str:
    """Leave out a generated claim's name, so that all pods of a job get the same message."""
    meta = claim.metadata
    return message.removeprefix(f"claim {meta.namespace}/{meta.name}").lstrip(":, ")
