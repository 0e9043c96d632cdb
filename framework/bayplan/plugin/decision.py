"""The record of a cycle, from which every explanation is rendered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from bayplan.plugin.base import DomainTrial, PreemptionTrial

__all__ = [
    "NODES_LACK",
    "NOT_READY",
    "Decision",
    "Finalist",
    "Outcome",
    "PodDecision",
    "fit_message",
    "not_satisfied",
    "nothing_left",
]


NODES_LACK = "Unschedulable"
"""The reason of PodScheduled=False for which autoscalers add nodes."""
NOT_READY = "NotReadyForScheduling"
"""The reason where nodes are not what is missing; autoscalers skip the pod."""


class Outcome(Enum):
    """How a cycle ended for its unit."""

    PLACED = "Placed"
    WAITING = "Waiting"
    UNSCHEDULABLE = "Unschedulable"
    ERROR = "Error"


class Finalist(msgspec.Struct, frozen=True):
    """One of the best nodes: its total and the weighted score of each plugin."""

    node: str
    total: float
    scores: Mapping[str, float]


class PodDecision(msgspec.Struct):
    """What was decided for one pod.

    ``refused`` holds (plugin, reason, number of nodes) in the order of the plugins, for the first
    plugin that refused each node; a node may have several reasons of that plugin. ``removed`` is
    the number of nodes that each plugin removed. ``error`` says that a filter could not tell.
    ``notes`` are remarks of plugins on the pod and its node, such as its devices.
    """

    pod: str
    nodes: int
    feasible: int = 0
    node: str | None = None
    total: float = 0.0
    refused: Sequence[tuple[str, str, int]] = ()
    removed: Sequence[tuple[str, int]] = ()
    pre_filter: tuple[str, str] | None = None
    error: bool = False
    finalists: Sequence[Finalist] = ()
    message: str = ""
    notes: Sequence[str] = ()

    @property
    def refused_by(self) -> set[str]:
        """The plugins that refused the pod or any node."""
        plugins = {plugin for plugin, _, _ in self.refused}
        return plugins | ({self.pre_filter[0]} if self.pre_filter else set())


class Decision(msgspec.Struct):
    """What one cycle decided for one unit, and why.

    ``at`` is the time in seconds. ``domains`` are the domains considered for the whole unit,
    ``parts`` those chosen for its sub-groups. ``preemption`` is what preempting pods would have
    cost in each domain. ``at_permit`` says that every pod had its node and a plugin refused at
    Permit, ``of_queue`` that the reason lies in the unit's queue, ``more_nodes`` that its queue
    would take it if the cluster had more nodes, ``of_members`` that the reason lies in which
    members its gang has.
    """

    unit: str
    cycle: int
    at: float
    outcome: Outcome = Outcome.UNSCHEDULABLE
    pods: dict[str, PodDecision] = msgspec.field(default_factory=dict)
    domain: str | None = None
    domains: Sequence[DomainTrial] = ()
    parts: Sequence[DomainTrial] = ()
    preemption: Sequence[PreemptionTrial] = ()
    message: str = ""
    refused_by: set[str] = msgspec.field(default_factory=set)
    at_permit: bool = False
    of_queue: bool = False
    more_nodes: bool = False
    of_members: bool = False

    @property
    def held_by_queue(self) -> bool:
        """Whether its queue refuses the unit, however many nodes there are."""
        return self.of_queue and not self.more_nodes


def fit_message(
    nodes: int,
    refused: Sequence[tuple[str, str, int]],
    pre_filter: tuple[str, str] | None = None,
) -> str:
    """Return kube-scheduler's sentence, with reasons sorted as text (framework.FitError).

    :param nodes: how many nodes there are.
    :param refused: (plugin, reason, number of nodes), as in PodDecision.
    :param pre_filter: the plugin that refused every node in PreFilter, and its reason.
    """
    if not nodes:
        return "no nodes available to schedule pods"
    if pre_filter is not None:
        end = "" if pre_filter[1].endswith("?") else "."
        return f"0/{nodes} nodes are available: {pre_filter[1]}{end}"
    counts: dict[str, int] = {}
    for _, reason, count in refused:
        counts[reason] = counts.get(reason, 0) + count
    reasons = sorted(f"{count} {reason}" for reason, count in counts.items())
    return f"0/{nodes} nodes are available" + (f": {', '.join(reasons)}." if reasons else ".")


def not_satisfied(plugins: Sequence[str]) -> str:
    """Return kube-scheduler's reason for nodes that no PreFilterResult of these plugins names."""
    return f"node(s) didn't satisfy plugin(s) [{' '.join(sorted(plugins))}]"


def nothing_left(plugins: Sequence[str]) -> str:
    """Return kube-scheduler's reason when the PreFilterResults of these plugins share no node."""
    if len(plugins) == 1:
        return f"node(s) didn't satisfy plugin {plugins[0]}"
    return f"node(s) didn't satisfy plugin(s) [{' '.join(plugins)}] simultaneously"
