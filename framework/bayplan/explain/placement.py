"""Where the pods of one object are, and whether they were placed as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bayplan.api import Pod
from bayplan.naming import natural_key
from bayplan.plugin.decision import Decision
from bayplan.scheduler.scheduler import Scheduler

__all__ = ["Placement", "placement_of", "unit_of"]


class Placement(msgspec.Struct, frozen=True):
    """How many pods there are, and on which nodes how many of them.

    ``together`` says that one decision of this process placed them all, ``domain`` in which domain
    of the network their gang is.
    """

    pods: int
    nodes: Mapping[str, int]
    together: bool = False
    domain: str = ""

    @property
    def placed(self) -> int:
        """How many have a node."""
        return sum(self.nodes.values())

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "pods": self.pods,
            "placed": self.placed,
            "together": self.together,
            "domain": self.domain,
            "nodes": dict(self.nodes),
        }


def unit_of(scheduler: Scheduler, pod: Pod) -> str:
    """Return the key of the unit as which a pod is placed, or was."""
    queued = scheduler.queue.unit_key(pod.key)
    if queued is not None:
        return queued
    for key, decision in scheduler.decisions.items():
        if pod.key in decision.pods:
            return key
    return pod.key


def placement_of(scheduler: Scheduler, pods: Sequence[Pod]) -> Placement | None:
    """Return where pods are that have not ended; None if none of them has a node."""
    alive = [pod for pod in pods if pod.status.phase not in ("Succeeded", "Failed")]
    counts = Counter(pod.spec.node_name for pod in alive if pod.spec.node_name)
    if not counts:
        return None
    nodes = {name: counts[name] for name in sorted(counts, key=natural_key)}
    decision = scheduler.decisions.get(unit_of(scheduler, alive[0]))
    if decision is None or not _has_all(scheduler, decision, alive):
        return Placement(len(alive), nodes)
    together = len(alive) > 1 and all(_placed_by(decision, pod) for pod in alive)
    return Placement(len(alive), nodes, together, decision.domain or "")


def _has_all(scheduler: Scheduler, decision: Decision, pods: Sequence[Pod]) -> bool:
    """Whether pods are of one unit: those that run already are no part of its last decision."""
    gang = scheduler.gangs.all().get(decision.unit)
    bound = gang.bound if gang is not None else {}
    return all(pod.key in decision.pods or pod.key in bound for pod in pods)


def _placed_by(decision: Decision, pod: Pod) -> bool:
    own = decision.pods.get(pod.key)
    return own is not None and own.node == pod.spec.node_name
