"""Argo Workflows: each step is made once those before it have succeeded."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.api import Pod, kind_of
from bayplan.api.objects import KINDS, DecodeError, decode_object
from bayplan.api.operated import Workflow
from bayplan.cluster.embedded.children import Child, Children
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.dialects.argo import Task, tasks_of
from bayplan.errors import InputError
from bayplan.kinds import KINDS_OF_WORKLOADS, progress_of

__all__ = ["WorkflowController"]


class WorkflowController:
    """Makes the pods and objects of steps, and ends a Workflow with its last ones."""

    def __init__(self, cluster: MemoryCluster, children: Children) -> None:
        self._cluster = cluster
        self._children = children

    def reconcile(self, owner: Workflow) -> None:
        """Make the steps whose turn it is."""
        if owner.status.get("phase") in ("Succeeded", "Failed", "Error"):
            return
        content: dict[str, Any] = msgspec.to_builtins(owner)
        try:
            tasks = tasks_of(content)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            self._cluster.report(owner, InputError(f"Workflow {owner.metadata.name}: {exc}"))
            return
        ends = {child.metadata.name: _end_of(child) for child in self._children.all(owner)}
        done = {name for name, good in ends.items() if good}
        failed = any(good is False for good in ends.values())
        if not failed and owner.spec.get("suspend") is not True:
            for task in tasks:
                if task.name not in ends and done.issuperset(task.after):
                    self._make(owner, task)
        phase = "Failed" if failed else "Running"
        if not failed and done.issuperset(task.name for task in tasks):
            phase = "Succeeded"
        if owner.status.get("phase") != phase:
            self._cluster.update(replace(owner, status={**owner.status, "phase": phase}))

    def _make(self, owner: Workflow, task: Task) -> None:
        content = dict(task.content)
        kind = KINDS.get((str(content.get("apiVersion", "")).rpartition("/")[0], content["kind"]))
        if kind is None:
            return
        meta = {**content["metadata"], "namespace": owner.metadata.namespace}
        try:
            wanted = decode_object(kind, {**content, "metadata": meta})
        except DecodeError as exc:
            self._cluster.report(owner, InputError(f"{content['kind']} {task.name}: {exc}"))
            return
        self._children.create(owner, wanted)


def _end_of(child: Child) -> bool | None:
    """Return whether what a step made ended well, None before its end."""
    if isinstance(child, Pod):
        return {"Succeeded": True, "Failed": False}.get(child.status.phase)
    kind = kind_of(child)
    row = KINDS_OF_WORKLOADS.get((kind.group, kind.name))
    if row is None:
        return True
    content = msgspec.to_builtins(child, enc_hook=lambda quantity: quantity.text)
    state = progress_of(row, content, ())
    return state.succeeded if state.end is not None else None
