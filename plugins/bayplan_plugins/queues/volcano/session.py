"""What Volcano's plugins decide on: the queues, the jobs, the cluster, and the entitlements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from bayplan import Handle, PodInfo
from bayplan.queues.ledger import Ledger
from bayplan.queues.tree import EPSILON, AmountRows, QueueTree
from bayplan_plugins.queues.class_devices import is_of_devices
from bayplan_plugins.queues.volcano import entitlements
from bayplan_plugins.queues.volcano.entitlements import Entitlements
from bayplan_plugins.queues.volcano.jobs import Job, Jobs, task_priority, widened

__all__ = ["Claimant", "Session", "Victim"]

BoolRow = npt.NDArray[np.bool_]


class Claimant(msgspec.Struct, frozen=True):
    """A job that wants room for some of its pods: together they take ``request``.

    ``row`` is its queue's, ``priority`` the job's, ``task_priority`` the lowest of the pods'.
    """

    job: Job
    pods: Sequence[PodInfo]
    row: int
    request: AmountRows
    priority: int

    @property
    def task_priority(self) -> int:
        """The lowest priority of its pods."""
        return min(task_priority(pod) for pod in self.pods)

    @property
    def stated_priority(self) -> int:
        """The lowest priority that its pods state, 0 where one states none."""
        return min(pod.priority for pod in self.pods)


class Victim(msgspec.Struct, frozen=True):
    """Pods of a job that may go together, ``whole`` when the job ends with them.

    ``row`` is the queue's, ``takes`` what they take of it.
    """

    job: Job
    pods: Sequence[PodInfo]
    row: int
    takes: AmountRows
    whole: bool


class Session(msgspec.Struct):
    """What plugins may ask; always of this moment, within trials, too.

    ``hierarchical`` says that queues are a tree and bound by their ancestors, ``divides`` which
    plugin says what they deserve, "" for none.
    """

    handle: Handle
    ledger: Ledger
    jobs: Jobs
    hierarchical: bool
    divides: Literal["", "capacity", "proportion"]
    _known: dict[str, tuple[object, Entitlements]] = msgspec.field(default_factory=dict)
    _total: tuple[object, AmountRows] | None = None
    _used: tuple[object, AmountRows] | None = None

    @property
    def tree(self) -> QueueTree:
        """The queues, with what they use now."""
        return self.ledger.tree

    def total(self) -> AmountRows:
        """Return what the nodes offer, in the columns of the tree; devices are not counted."""
        nodes = self.handle.snapshot.nodes
        stamp = (nodes.epoch, nodes.node_version, len(self.tree.resources))
        if self._total is None or self._total[0] != stamp:
            offered = [
                math.inf
                if is_of_devices(name)
                else float(nodes.allocatable(name).sum(dtype=np.float64))
                for name in self.tree.resources
            ]
            self._total = (stamp, _fixed(offered))
        return self._total[1]

    def used(self) -> AmountRows:
        """Return what all pods on nodes take, in the columns of the tree."""
        nodes = self.handle.snapshot.nodes
        stamp = (nodes.epoch, nodes.node_version, nodes.position, len(self.tree.resources))
        if self._used is None or self._used[0] != stamp:
            taken = [float(nodes.used(name).sum(dtype=np.float64)) for name in self.tree.resources]
            self._used = (stamp, _fixed(taken))
        return self._used[1]

    def capacity(self) -> Entitlements:
        """Return what queues may have by capacity."""

        def make() -> Entitlements:
            if self.hierarchical:
                return entitlements.tree_capacity(self.tree)
            return entitlements.capacity(self.tree, self.total())

        return self._remembered("capacity", make)

    def proportion(self) -> Entitlements:
        """Return what queues may have by proportion."""

        def make() -> Entitlements:
            tree = self.tree
            active = [row for row in range(len(tree)) if tree.demand[row].any()]
            total = self.total().copy()
            # What nobody counts is not divided: a queue may have what it asks for.
            total[np.isinf(total)] = tree.demand.sum(axis=0)[np.isinf(total)]
            return entitlements.proportion(tree, total, active)

        return self._remembered("proportion", make)

    def deserved(self) -> AmountRows:
        """Return what queues deserve, by the plugin that says so."""
        if self.divides == "capacity":
            return self.capacity().deserved
        if self.divides == "proportion":
            return self.proportion().deserved
        return self.tree.deserved

    def _remembered(self, name: str, make: Callable[[], Entitlements]) -> Entitlements:
        tree = self.tree
        nodes = self.handle.snapshot.nodes
        stamp = (self.ledger.version, nodes.node_version, len(tree.resources))
        known = self._known.get(name)
        if known is None or known[0] != stamp:
            known = self._known[name] = (stamp, make())
        return known[1]

    def wide(self, amounts: AmountRows) -> AmountRows:
        """Return amounts with a value for every column that the tree has now."""
        return widened(amounts, len(self.tree.resources))

    def counts(self, request: AmountRows) -> BoolRow:
        """Return the columns that a request is measured in.

        Every pod takes one of ``pods``, so Volcano compares that nowhere; nodes bound it.
        """
        asked: BoolRow = self.wide(request) > EPSILON
        pods = self.tree.column_of.get("pods")
        if pods is not None:
            asked[pods] = False
        return asked

    def path(self, row: int) -> Sequence[int]:
        """Return the rows whose limits bind a queue: itself, and its ancestors in a tree."""
        return self.tree.path(row) if self.hierarchical else (row,)

    def ancestors(self, row: int) -> Sequence[int]:
        """Return the rows above a queue, its parent first, without its root."""
        return self.tree.path(row)[1:-1]


def _fixed(amounts: Sequence[float]) -> AmountRows:
    found = np.array(amounts)
    found.flags.writeable = False
    return found
