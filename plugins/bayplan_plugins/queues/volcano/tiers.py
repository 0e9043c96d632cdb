"""The plugins by tier, and how their votes are counted.

Orders: the first plugin that tells two apart decides, tier by tier. Limits: every plugin has to
agree. Admission: the first rejection decides, and a permission ends the search with its tier.
Victims: all plugins of a tier have to agree, and the first tier with any victim decides; plugins
that protect pods are asked whatever their tier.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bayplan import NodeView, Overdue, PodInfo, Reject
from bayplan.queues.tree import AmountRows
from bayplan_plugins.queues.policy import QuotaRefusal
from bayplan_plugins.queues.volcano.admitted_amounts import Inqueue
from bayplan_plugins.queues.volcano.configuration import PluginArgs
from bayplan_plugins.queues.volcano.jobs import Job, task_priority
from bayplan_plugins.queues.volcano.plugins.admission import (
    NamespaceQuota,
    Overcommit,
    ServiceLevel,
)
from bayplan_plugins.queues.volcano.plugins.base import VolcanoPlugin
from bayplan_plugins.queues.volcano.plugins.capacity import Capacity
from bayplan_plugins.queues.volcano.plugins.order import Drf, Gang, Priority
from bayplan_plugins.queues.volcano.plugins.proportion import Proportion
from bayplan_plugins.queues.volcano.plugins.protection import (
    Conformance,
    CooldownProtection,
    DisruptionBudgets,
)
from bayplan_plugins.queues.volcano.plugins.task_topology import TaskOrder
from bayplan_plugins.queues.volcano.plugins.time_division import TimeDivision, merged
from bayplan_plugins.queues.volcano.session import Claimant, Session, Victim

__all__ = ["PLUGINS", "Tiers"]

PLUGINS: Mapping[str, type[VolcanoPlugin]] = {
    "capacity": Capacity,
    "cdp": CooldownProtection,
    "conformance": Conformance,
    "drf": Drf,
    "gang": Gang,
    "overcommit": Overcommit,
    "pdb": DisruptionBudgets,
    "priority": Priority,
    "proportion": Proportion,
    "resourcequota": NamespaceQuota,
    "sla": ServiceLevel,
    "task-topology": TaskOrder,
    "tdm": TimeDivision,
}
"""Plugins of Volcano that vote, by name. Others choose nodes, which the profile's plugins do."""

Votes = Sequence[Sequence[Any]]
"""The voting functions of one kind, by tier."""


class _Enabled(msgspec.Struct, frozen=True):
    """A plugin in its tier, with its switches."""

    plugin: VolcanoPlugin
    switches: PluginArgs


_SWITCH_OF = {
    "job_order": "enable_job_order",
    "task_order": "enable_task_order",
    "gathers_tasks": "enable_task_order",
    "queue_order": "enable_queue_order",
    "victim_queue_order": "enable_queue_order",
    "overused": "enabled_overused",
    "allocatable": "enabled_allocatable",
    "preemptive": "enable_preemptive",
    "enqueueable": "enable_job_enqueued",
    "starving": "enable_job_starving",
    "preemptable": "enable_preemptable",
    "reclaimable": "enable_reclaimable",
    "node_kind": "enable_predicate",
    "refused_nodes": "enable_predicate",
    "victims": "enabled_victim",
}
"""The switch of each kind of vote."""


class Tiers:
    """Counts the votes of the configured plugins."""

    def __init__(self, session: Session, tiers: Sequence[Sequence[PluginArgs]]) -> None:
        self._session = session
        self._enabled = [
            [
                _Enabled(PLUGINS[one.name](session, one.arguments, one.enable_hierarchy), one)
                for one in tier
                if one.name in PLUGINS
            ]
            for tier in tiers
        ]
        self._job_orders = self._flat("job_order")
        self._task_orders = self._flat("task_order")
        self._gather_tasks = self._flat("gathers_tasks")
        self._queue_orders = self._flat("queue_order")
        self._victim_queue_orders = self._flat("victim_queue_order")
        self._overused = self._flat("overused")
        self._allocatable = self._flat("allocatable")
        self._preemptive = self._flat("preemptive")
        self._enqueueable = self._votes("enqueueable")
        self._starving = self._votes("starving")
        self._overdue = self._flat("victims")
        self._node_kinds = self._flat("node_kind")
        self._refused_nodes = self._flat("refused_nodes")
        self._victims = {name: self._votes(name) for name in ("preemptable", "reclaimable")}

    @property
    def plugins(self) -> Sequence[VolcanoPlugin]:
        """The plugins that vote, in order."""
        return [one.plugin for tier in self._enabled for one in tier]

    @property
    def admit_kinds(self) -> bool:
        """Whether jobs of one kind are admitted or not at any time; see ``admits_kinds``."""
        return all(vote.__self__.admits_kinds for tier in self._enqueueable for vote in tier)

    def _votes(self, name: str) -> Votes:
        """Return the functions of the plugins that vote so and whose switch is on, by tier."""
        switch = _SWITCH_OF[name]
        found = []
        for tier in self._enabled:
            on = [one.plugin for one in tier if getattr(one.switches, switch)]
            found.append([getattr(one, name) for one in on if one.has(name)])
        return found

    def _flat(self, name: str) -> Sequence[Callable[..., Any]]:
        return [vote for tier in self._votes(name) for vote in tier]

    # Order -------------------------------------------------------------------------------

    def job_order(self, job: Job, pods: Iterable[PodInfo] = ()) -> tuple[float, ...]:
        """Return a job's key among those of its queue, without the tie-break by age."""
        return tuple(part for vote in self._job_orders for part in vote(job, pods))

    def task_order(self, pod: PodInfo) -> tuple[float, ...]:
        """Return a pod's key among those of its job; by priority where no plugin says it."""
        if not self._task_orders:
            return (-float(task_priority(pod)),)
        return tuple(part for vote in self._task_orders for part in vote(pod))

    def gathers_tasks(self, pod: PodInfo) -> bool:
        """Tell whether the order of a job's pods is also that in which they are placed."""
        return any(vote(pod) for vote in self._gather_tasks)

    def queue_order(self, row: int) -> tuple[tuple[float, ...], float, str]:
        """Return a queue's key: by the plugins, then by age and uid."""
        queue = self._session.tree.queues[row]
        votes = tuple(part for vote in self._queue_orders for part in vote(row))
        return votes, queue.created, queue.uid

    def victim_queue_order(self, row: int, claimant: int) -> tuple[float, ...]:
        """Return the key of a queue as a victim's, before the reverse of ``queue_order``."""
        return tuple(part for vote in self._victim_queue_orders for part in vote(row, claimant))

    # Limits ------------------------------------------------------------------------------

    def refusal(self, row: int, request: AmountRows) -> QuotaRefusal | str | None:
        """Return why a queue may not take a request."""
        for overused in self._overused:
            if overused(row):
                name = self._session.tree.name(row)
                return f'queue "{name}" has what it deserves of every resource'
        return self.beyond(row, request)

    def beyond(self, row: int, request: AmountRows) -> QuotaRefusal | str | None:
        """Return which limit a request exceeds."""
        for vote in self._allocatable:
            refusal: QuotaRefusal | str | None = vote(row, request)
            if refusal is not None:
                return refusal
        return None

    def overused(self, row: int) -> bool:
        """Tell whether any plugin says that a queue has all that it may have."""
        return any(vote(row) for vote in self._overused)

    def preemptive(self, claimant: Claimant) -> bool:
        """Tell whether all plugins let a claimant take from other queues."""
        return all(vote(claimant) for vote in self._preemptive)

    # Nodes -------------------------------------------------------------------------------

    def node_kind(self, pod: PodInfo) -> Hashable:
        """Return what tells apart the pods that may use other nodes; None where all may use any."""
        return tuple(vote(pod) for vote in self._node_kinds) or None

    def refused_nodes(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse the nodes that any plugin refuses."""
        for vote in self._refused_nodes:
            yield from vote(pod, nodes)

    # Jobs --------------------------------------------------------------------------------

    def rejection(
        self, job: Job, row: int, least: AmountRows | None, inqueue: Inqueue
    ) -> str | None:
        """Return why a waiting job is not admitted, None when it is."""
        for tier in self._enqueueable:
            permitted = False
            for vote in tier:
                answer = vote(job, row, least, inqueue)
                if isinstance(answer, str):
                    return answer
                permitted |= answer is True
            if permitted:
                return None
        return None

    def starving(self, job: Job, pending: int) -> bool:
        """Tell whether a job may ask for room: by the first tier that has an opinion."""
        for tier in self._starving:
            if tier:
                return all(vote(job, pending) for vote in tier)
        return False

    def overdue(self) -> Overdue | None:
        """Return what plugins evict though nobody waits for it."""
        return merged(found for vote in self._overdue if (found := vote()) is not None)

    # Victims -----------------------------------------------------------------------------

    @property
    def gives_up_surplus(self) -> bool:
        """Whether the gang plugin votes on what other queues reclaim: all beyond a minimum goes."""
        return any(
            isinstance(vote.__self__, Gang)
            for tier in self._victims["reclaimable"]
            for vote in tier
        )

    def victims_of_tiers(
        self,
        kind: str,
        claimant: Claimant,
        victims: Callable[[], Iterable[Victim]],
        whole: bool,
    ) -> Callable[[Victim], bool] | None:
        """Return what decides on victims: the first tier that accepts any; None where none does.

        :param kind: "preemptable" or "reclaimable".
        :param victims: returns what may be asked for, as often as it is called.
        :param whole: whether jobs may end, which Volcano's gang plugin forbids.
        """
        guards = [vote for tier in self._victims[kind] for vote in tier if vote.__self__.protects]
        for tier in self._victims[kind]:
            votes = [vote for vote in tier if not (whole and isinstance(vote.__self__, Gang))]
            if not votes:
                continue
            # Those that protect look at every pod of a victim, so they are asked last.
            asked = [*(vote for vote in votes if vote not in guards), *guards]

            def accepts(victim: Victim, votes: Sequence[Any] = asked) -> bool:
                return all(vote(claimant, victim) for vote in votes)

            if any(accepts(victim) for victim in victims()):
                return accepts
        return None
