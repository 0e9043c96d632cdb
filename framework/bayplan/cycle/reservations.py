"""Pods that hold a node in the snapshot, and how plugins give back what they reserved."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from bayplan.errors import PluginError
from bayplan.plugin.base import CycleState
from bayplan.profiles.runtime import Runtime
from bayplan.snapshot import PodInfo, Snapshot

__all__ = ["PluginFailed", "Reserved", "Unreserve"]

PluginFailed = Callable[[PodInfo, PluginError], None]
"""Called when a plugin raises where its caller has to go on."""


class Reserved(msgspec.Struct, frozen=True, eq=False):
    """A pod with the node it was given, held in the snapshot."""

    pod: PodInfo
    node: str
    state: CycleState


class Unreserve:
    """Runs the ``unreserve`` hooks of a profile; the caller restores the snapshot.

    :param failed: called when a plugin raises; the other plugins still run.
    """

    def __init__(self, runtime: Runtime, snapshot: Snapshot, failed: PluginFailed) -> None:
        self._runtime = runtime
        self._snapshot = snapshot
        self._failed = failed

    def __call__(self, reserved: Sequence[Reserved]) -> None:
        """Unreserve pods in reverse order: last pod first, last plugin first."""
        for one in reversed(reserved):
            self._unreserve_pod(one)

    def _unreserve_pod(self, reserved: Reserved) -> None:
        node = self._snapshot.row(reserved.node)
        for call in reversed(self._runtime.of(reserved.pod)["unreserve"]):
            try:
                call(reserved.pod, node, reserved.state)
            except PluginError as exc:
                self._failed(reserved.pod, exc)
