"""Pods that were evicted so that they begin again elsewhere, until they have."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bayplan import Handle, PodInfo
from bayplan_plugins.shared.moving import maker_of

__all__ = ["MovedPods", "ToCome"]

_TO_COME = 600.0
"""Seconds for which a node is kept in mind for a pod that was moved and is to be made again."""


class ToCome(msgspec.Struct, frozen=True):
    """A pod that is to be made again: by whom, its new node, until when to expect it, and why.

    ``until`` is by the clock of the scheduler. ``left`` is the node that it leaves.
    """

    maker: str
    node: str
    until: float
    reported: str
    left: str = ""
    namespace: str = ""


class MovedPods:
    """The pods on their way, and the nodes that are kept in mind for them."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._leaving: dict[str, str] = {}
        """Keys of pods that were evicted, with their uids."""
        self._to_come: list[ToCome] = []
        self._taken: dict[str, ToCome] = {}
        """In whose place pods that are being placed now come, by key."""

    def expect(self, pod: PodInfo, node: str, reported: str) -> None:
        """Take note that a pod is evicted now and fits on a node.

        :param reported: what a decision on the pod that is made in its place says.
        """
        grace = pod.spec.termination_grace_period_seconds
        left = self._handle.snapshot.placed[pod.key][1]
        until = self._handle.now + grace + _TO_COME
        self._leaving[pod.key] = pod.uid
        self._to_come.append(ToCome(maker_of(pod), node, until, reported, left, pod.namespace))

    def under_way(self) -> Sequence[ToCome]:
        """Return the pods that are still to be placed again."""
        now = self._handle.now
        self._to_come = [one for one in self._to_come if one.until > now]
        return self._to_come

    @property
    def leave(self) -> bool:
        """Whether any of them still has its old node."""
        placed = self._handle.snapshot.placed
        self._leaving = {
            key: uid
            for key, uid in self._leaving.items()
            if key in placed and placed[key][0].uid == uid
        }
        return bool(self._leaving)

    def expected(self, pod: PodInfo) -> Sequence[ToCome]:
        """Return what is known of the pods in whose place a pod may have been made.

        What another pod of the same controller has taken is no more expected.
        """
        maker = maker_of(pod) if self._to_come else ""
        if not maker:
            return ()
        taken = {id(one) for key, one in self._taken.items() if key != pod.key}
        return [one for one in self._to_come if one.maker == maker and id(one) not in taken]

    def take(self, pod: PodInfo, node: str) -> ToCome | None:
        """Let a pod that is being placed on a node come in the place of one that was expected."""
        found = next((one for one in self.expected(pod) if one.node == node), None)
        if found is not None:
            self._taken[pod.key] = found
            self._handle.snapshot.on_rollback(lambda: self.give_back(pod))
        return found

    def give_back(self, pod: PodInfo) -> None:
        """Undo ``take``."""
        self._taken.pop(pod.key, None)

    def arrived(self, pod: PodInfo, node: str) -> None:
        """Forget the node that was kept in mind for a pod, now that it has one."""
        own = self.expected(pod)
        self.give_back(pod)
        if own:
            there = (one for one in own if one.node == node)
            self._to_come.remove(next(there, own[0]))
