"""What trials and nominations change: devices freed with a pod, devices kept for one.

In a trial of the snapshot the devices of a claim are free once all pods that use it are taken out:
that is how preemption frees devices. A pod that is put on its nominated node holds the
devices that it was given there when the node was last tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bayplan_dra.allocator import HeldDevice
from bayplan_plugins.device_ledger.device_usage import DeviceUsage

__all__ = ["TrialHolds"]

_MOST_PODS = 4096
_MOST_NODES = 4
"""Pods whose last choices are remembered, and the nodes for each of them."""
HeldByClaim = Mapping[str, Sequence[HeldDevice]]


class TrialHolds:
    """The devices that trials free, and those that nominated pods hold. All keys are uids."""

    def __init__(self, usage: DeviceUsage) -> None:
        self._usage = usage
        self._freed: dict[str, None] = {}
        self._remembered: dict[str, dict[str, HeldByClaim]] = {}
        self._nominated: dict[str, HeldByClaim] = {}
        self._users: dict[str, int] = {}

    # Devices that a trial frees --------------------------------------------------------------

    def is_freed(self, claim: str) -> bool:
        """Tell whether a claim's devices count as free, because its pods were taken out."""
        return claim in self._freed

    def free(self, claim: str, held: Sequence[HeldDevice]) -> None:
        """Count a claim's devices as free."""
        if claim not in self._freed:
            self._freed[claim] = None
            self._usage.release(held)

    def undo_free(self, claim: str, held: Sequence[HeldDevice]) -> None:
        """Count a claim's devices as used again."""
        if claim in self._freed:
            del self._freed[claim]
            self._usage.hold(held)

    def forget_freed(self, claim: str) -> None:
        """Stop tracking a claim whose devices changed."""
        self._freed.pop(claim, None)

    # Devices of nominated pods ---------------------------------------------------------------

    def remember(self, pod: str, node: str, held: HeldByClaim) -> None:
        """Remember what a pod would get on a node, by claim: it may be nominated for it."""
        nodes = self._remembered.pop(pod, {})
        nodes.pop(node, None)
        nodes[node] = held
        if len(nodes) > _MOST_NODES:
            del nodes[next(iter(nodes))]
        self._remembered[pod] = nodes
        if len(self._remembered) > _MOST_PODS:
            del self._remembered[next(iter(self._remembered))]

    def forget(self, pod: str) -> None:
        """Drop what a pod would get, because it is bound."""
        self._remembered.pop(pod, None)

    def nominate(self, pod: str, node: str) -> None:
        """Hold what a pod would get on a node; a claim that several pods share counts once."""
        held_by_claim = self._remembered.get(pod, {}).get(node)
        if not held_by_claim:
            return
        self._nominated[pod] = dict(held_by_claim)
        for claim, held in held_by_claim.items():
            count = self._users.get(claim, 0)
            self._users[claim] = count + 1
            if not count:
                self._usage.hold(held)

    def withdraw(self, pod: str) -> None:
        """Undo ``nominate``."""
        for claim, held in self._nominated.pop(pod, {}).items():
            self._users[claim] -= 1
            if not self._users[claim]:
                del self._users[claim]
                self._usage.release(held)
