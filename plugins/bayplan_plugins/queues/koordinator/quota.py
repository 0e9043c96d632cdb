"""One quota with what its pods ask for and use, and what it may have now."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bayplan.api import Pod
from bayplan.dialects.koordinator.elastic_quota import QuotaDefinition, ResourceList
from bayplan_plugins.queues.koordinator.resource_lists import (
    added,
    at_least,
    at_most,
    without_negatives,
)

__all__ = ["CountedPod", "Quota", "Tally"]

Amounts = Mapping[str, int]


class Tally:
    """Amounts of all pods, and of those that may not be preempted."""

    __slots__ = ("every", "non_preemptible")

    def __init__(self) -> None:
        self.every: ResourceList = {}
        self.non_preemptible: ResourceList = {}

    def add(self, every: Amounts, non_preemptible: Amounts) -> None:
        """Add amounts, below 0 to take them back; no amount falls below 0."""
        if every:
            self.every = without_negatives(added(self.every, every))
        if non_preemptible:
            self.non_preemptible = without_negatives(added(self.non_preemptible, non_preemptible))


class CountedPod(msgspec.Struct):
    """A pod of a quota: its requests, and whether it has a node (assigned)."""

    pod: Pod
    requests: ResourceList
    preemptible: bool
    assigned: bool = False


class Quota(msgspec.Struct):
    """A quota in its tree.

    ``asked`` is what its pods and its children ask for, on nodes or not; a child asks for no more
    than its max. ``own_asked`` and ``own_used`` count the pods of the quota itself. ``runtime`` is
    what it may have now, ``scaled_min`` its min where the siblings' mins exceed what there is;
    both belong to the division of its parent. ``allocated`` and ``guaranteed`` are kept only where
    what pods have is guaranteed to their quota.
    """

    definition: QuotaDefinition
    asked: Tally = msgspec.field(default_factory=Tally)
    own_asked: Tally = msgspec.field(default_factory=Tally)
    used: Tally = msgspec.field(default_factory=Tally)
    own_used: Tally = msgspec.field(default_factory=Tally)
    allocated: ResourceList = msgspec.field(default_factory=dict)
    guaranteed: ResourceList = msgspec.field(default_factory=dict)
    runtime: ResourceList = msgspec.field(default_factory=dict)
    scaled_min: ResourceList = msgspec.field(default_factory=dict)
    pods: dict[str, CountedPod] = msgspec.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The quota's name."""
        return self.definition.name

    @property
    def parent(self) -> str:
        """The name of its parent."""
        return self.definition.parent

    @property
    def request(self) -> ResourceList:
        """What the quota asks for: of a quota that does not lend, its min at least."""
        if self.definition.lends:
            return self.asked.every
        return at_least(self.asked.every, self.definition.minimum)

    @property
    def limited_request(self) -> ResourceList:
        """What the quota asks its parent for: no more than its max."""
        return at_most(self.request, self.definition.maximum)
