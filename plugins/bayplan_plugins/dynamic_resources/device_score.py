"""What other plugins think of a choice of devices (the hook ``device_score``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bayplan import Handle, NodeRow, PodInfo
from bayplan_dra.allocator import Choice, Score
from bayplan_plugins.device_ledger.node_devices import NodeDevices

__all__ = ["DeviceOpinion", "DeviceScores"]


@dataclass(frozen=True, slots=True)
class DeviceOpinion:
    """A plugin's score of a choice of devices; minus infinity forbids it."""

    points: float
    plugin: str

    @property
    def forbids(self) -> bool:
        """Whether the choice must not be made."""
        return self.points == -math.inf


class DeviceScores:
    """Asks the profile's plugins."""

    def __init__(self, handle: Handle, devices: NodeDevices) -> None:
        self._handle = handle
        self._devices = devices

    def opinion(
        self, pod: PodInfo, node: NodeRow, choices: Sequence[Choice]
    ) -> DeviceOpinion | None:
        """Return the first plugin's score of a choice, None where no plugin has one."""
        calls = self._handle.hook("device_score")
        if not calls:
            return None
        specs = self._devices.specs(node.node)
        chosen = [(choice.wanted.name, choice.device.id) for choice in choices]
        for call in calls:
            points = call(pod, node, chosen, specs)
            if points is not None:
                return DeviceOpinion(float(points), getattr(call, "name", "a plugin"))
        return None

    def scorer(self, pod: PodInfo, node: NodeRow) -> Score:
        """Return a function that scores choices for a pod on a node; 0 without an opinion."""

        def score(choices: Sequence[Choice]) -> float:
            opinion = self.opinion(pod, node, choices)
            return opinion.points if opinion is not None else 0.0

        return score
