"""The pods of workloads whose operators make them as the table of kinds says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.api import KINDS, Pod, kind_of
from bayplan.api.objects import DecodeError, decode_part
from bayplan.api.operated import OperatedObject
from bayplan.api.pod import PodTemplate
from bayplan.cluster.embedded.children import Children, PodOverrides, Template, alive
from bayplan.cluster.embedded.operated_status import status_of
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.errors import InputError
from bayplan.kinds import KINDS_OF_WORKLOADS, PodPlan, pods_of, policy_of, progress_of, roles_of

__all__ = ["OperatedPodsController", "operated"]


def operated(group: str, name: str) -> type[OperatedObject] | None:
    """Return the type of these workloads of a kind, None for any other kind."""
    kind, row = KINDS.get((group, name)), KINDS_OF_WORKLOADS.get((group, name))
    if row is None or row.below:
        return None
    return kind.type if kind is not None and issubclass(kind.type, OperatedObject) else None


class OperatedPodsController:
    """Creates the pods of such workloads, replaces those that failed, and deletes the others.

    It writes their status as far as the table of kinds says how they end.
    """

    def __init__(self, cluster: MemoryCluster, children: Children) -> None:
        self._cluster = cluster
        self._children = children

    def reconcile(self, owner: OperatedObject) -> None:
        """Bring the pods of a workload in line with it."""
        kind = kind_of(owner)
        row = KINDS_OF_WORKLOADS[kind.group, kind.name]
        content: dict[str, Any] = msgspec.to_builtins(owner)
        try:
            plans = {plan.name: plan for plan in pods_of(row, content)}
            roles = roles_of(row, content)
        except ValueError as exc:
            self._cluster.report(owner, InputError(str(exc)))
            return
        if progress_of(row, content, ()).end is not None:
            self._clean(owner, policy_of(row, content))
            return
        self._bring_in_line(owner, plans)
        pods = self._children.pods(owner) if plans else ()
        now = self._cluster.timestamp()
        status = status_of(row, owner.status, roles, pods, now) if plans else owner.status
        if status != owner.status:
            self._cluster.update(replace(owner, status=status))

    def _clean(self, owner: OperatedObject, policy: str) -> None:
        """Delete the pods of a workload that has ended, as it asks for."""
        for pod in self._children.pods(owner):
            if policy == "All" or (policy == "Running" and alive(pod)):
                self._children.delete(pod)

    def _bring_in_line(self, owner: OperatedObject, plans: Mapping[str, PodPlan]) -> None:
        taken, running = set(), set()
        for pod in self._children.pods(owner):
            if pod.status.phase in ("Running", "Succeeded"):
                running.add(pod.metadata.name)
            if pod.metadata.name not in plans or _is_to_be_replaced(pod):
                self._children.delete(pod)
            taken.add(pod.metadata.name)
        for name, plan in plans.items():
            if name not in taken and running.issuperset(plan.after):
                self._make(owner, plan)

    def _make(self, owner: OperatedObject, plan: PodPlan) -> None:
        try:
            typed = decode_part(PodTemplate, dict(plan.template))
        except DecodeError as exc:
            self._cluster.report(owner, InputError(f"template of {plan.name}: {exc}"))
            return
        marks = PodOverrides(name=plan.name, labels=dict(plan.labels))
        self._children.make(owner, Template(typed, dict(plan.template)), marks)


def _is_to_be_replaced(pod: Pod) -> bool:
    return pod.status.phase == "Failed" and pod.spec.restart_policy != "Never"
