"""Which victims may stay, as the unit that they were to go for fits beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bayplan import Handle, PodInfo, Unit
from bayplan.plugin.hookspecs import IntColumn
from bayplan_plugins.preemption.columns import needs_of

__all__ = ["Reprieve"]


class Reprieve:
    """Puts victims back on their nodes, within a trial in which they are gone and a unit is placed.

    :param nodes: the nodes of the unit's members, by key.
    :param by_amounts: whether a node that offers too little of a resource refuses every pod.
    """

    def __init__(
        self, handle: Handle, unit: Unit, nodes: Mapping[str, str], by_amounts: bool
    ) -> None:
        self._by_amounts = by_amounts
        self._handle = handle
        self._snapshot = handle.snapshot
        self._members: dict[str, list[PodInfo]] = {}
        for pod in unit.pods:
            if pod.key in nodes:
                self._members.setdefault(nodes[pod.key], []).append(pod)
        self._alike = len({pod.facts for pod in unit.pods}) == 1

    def refused(self, victims: Iterable[PodInfo], where: Mapping[str, str]) -> list[PodInfo]:
        """Return the victims that cannot stay; the others are back on their nodes.

        :param victims: in the order in which they are put back.
        :param where: the victims' nodes, by key.
        """
        refused: set[str] = set()
        ordered = list(victims)
        waiting: dict[str, list[PodInfo]] = {}
        for victim in ordered:
            node = where[victim.key]
            if node in self._members and self._by_amounts and self._exceeds(victim, node):
                refused.add(victim.key)
            elif node in self._members:
                waiting.setdefault(node, []).append(victim)
            else:
                self._snapshot.add_pod(victim, node)
        while waiting:
            # What one node says of its pods does not depend on the others: they are asked at once.
            heads = {node: pods.pop(0) for node, pods in waiting.items()}
            refused |= self._tried(heads)
            waiting = {node: pods for node, pods in waiting.items() if pods}
        return [victim for victim in ordered if victim.key in refused]

    def _exceeds(self, victim: PodInfo, node: str) -> bool:
        """Tell whether a node does not have enough for a victim beside the members."""
        table = self._snapshot.nodes
        row = table.row_of[node]
        return any(
            need > table.allocatable(name).item(row) - table.used(name).item(row)
            for name, need in needs_of(victim).items()
            if self._asked(name, node) and table.allocatable(name).item(row) > 0
        )

    def _asked(self, resource: str, node: str) -> bool:
        """Tell whether a member on a node requests a resource, so that it would be short of it."""
        return any(resource in needs_of(member) for member in self._members[node])

    def _tried(self, victims: Mapping[str, PodInfo]) -> set[str]:
        """Put a pod back on each of these nodes; return those, by key, for which a member left."""
        if not self._alike:
            return {v.key for node, v in victims.items() if not self._stays(v, node)}
        refused = set()
        snapshot = self._snapshot
        for node in victims:
            for member in self._members[node]:
                snapshot.remove_pod(member.key)
        for node, victim in victims.items():
            snapshot.add_pod(victim, node)
        slots: dict[object, IntColumn] = {}
        for node, victim in victims.items():
            members = self._members[node]
            kind = members[0].labels_id
            if kind not in slots:
                slots[kind] = self._handle.free_slots(members[0])
            if slots[kind][snapshot.nodes.row_of[node]] < len(members):
                refused.add(victim.key)
        for node, victim in victims.items():
            if victim.key in refused:
                snapshot.remove_pod(victim.key)
            for member in self._members[node]:
                snapshot.add_pod(member, node)
        return refused

    def _stays(self, victim: PodInfo, node: str) -> bool:
        """Put a pod back on its node, unless a member of the unit then no longer fits there."""
        snapshot = self._snapshot
        row = snapshot.nodes.row_of[node]
        members = self._members[node]
        with snapshot.trial() as trial:
            for member in members:
                snapshot.remove_pod(member.key)
            snapshot.add_pod(victim, node)
            for member in members:
                if self._handle.free_slots(member)[row] < 1:
                    return False
                snapshot.add_pod(member, node)
            trial.keep()
        return True
