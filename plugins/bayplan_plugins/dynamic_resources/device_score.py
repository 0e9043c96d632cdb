"""What other plugins think of a choice of devices (the hook ``device_score``)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from bayplan import DeviceOpinion, Handle, NodeRow, PodInfo
from bayplan_dra.allocator import Choice, Score
from bayplan_plugins.device_ledger.node_devices import NodeDevices

__all__ = ["DeviceScores"]


class DeviceScores:
    """Asks the profile's plugins."""

    def __init__(self, handle: Handle, devices: NodeDevices) -> None:
        self._handle = handle
        self._devices = devices

    def opinion(
        self, pod: PodInfo, node: NodeRow, choices: Sequence[Choice]
    ) -> DeviceOpinion | None:
        """Return the first plugin's score of a choice, None where no plugin has one."""
        chosen = [(choice.wanted.name, choice.device.id) for choice in choices]
        specs = partial(self._devices.specs, node.node)
        return self._handle.device_score(pod, node, chosen, specs)

    def scorer(self, pod: PodInfo, node: NodeRow) -> Score:
        """Return a function that scores choices for a pod on a node; 0 without an opinion."""

        def score(choices: Sequence[Choice]) -> float:
            opinion = self.opinion(pod, node, choices)
            return opinion.points if opinion is not None else 0.0

        return score
