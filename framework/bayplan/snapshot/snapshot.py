"""The snapshot: the node table, the placed pods, the other objects, and trials."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import TypeVar

from bayplan.api import ApiObject, Namespace, Node, ObjectMeta, ResourceClaim
from bayplan.snapshot.listeners import Listeners, Subscription
from bayplan.snapshot.node_problems import NodeProblem
from bayplan.snapshot.nodes import NodeRow, NodeTable, NodeView
from bayplan.snapshot.podindex import PodIndex
from bayplan.snapshot.pods import PodInfo

__all__ = ["Snapshot", "Trial"]

Obj = TypeVar("Obj")
ObjectListener = Callable[[ApiObject | None, ApiObject | None], None]
PodListener = Callable[[PodInfo, str, bool], None]
LivingListener = Callable[[PodInfo, bool], None]
SupposedListener = Callable[[Sequence[PodInfo], int], None]


class Trial:
    """A ``with snapshot.trial()`` block: every change made in it is undone when it ends.

    ``keep`` keeps the changes; an outer trial may still undo them.
    """

    __slots__ = ("_kept", "_mark", "_snapshot")

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._kept = False
        self._mark = 0

    def keep(self) -> None:
        """Keep the changes of this trial."""
        self._kept = True

    def mark(self) -> int:
        """Return a mark for ``back_to``."""
        return self._snapshot.undo_mark()

    def back_to(self, mark: int) -> None:
        """Undo the changes made since the mark; the trial goes on."""
        self._snapshot.undo_to(mark)

    def __enter__(self) -> Trial:
        self._mark = self._snapshot.begin_trial()
        return self

    def __exit__(self, *exc: object) -> None:
        self._snapshot.end_trial(self._mark, self._kept)


class Snapshot:
    """What the scheduler knows. One thread reads and writes it.

    :param unix_time: returns the time of the cluster, in seconds since 1970.
    """

    def __init__(self, unix_time: Callable[[], float] = time.time) -> None:
        self._unix_time = unix_time
        self.nodes = NodeTable()
        self.index = PodIndex(self._pods_on_rows)
        self._objects: dict[type, dict[str, ApiObject]] = {}
        self.objects_version = 0
        """Changes with every object but nodes, pods and the claims that come and go with pods."""
        self._placed: dict[str, tuple[PodInfo, str]] = {}
        self._homeless: dict[str, dict[str, PodInfo]] = {}
        """The pods on nodes that are not shown, by node and key."""
        self._waiting_nodes: dict[str, Node | None] = {}
        self._undo: list[Callable[[], None]] = []
        self._depth = 0
        self._undoing = False
        self.problems: dict[NodeProblem, str] = {}
        self.assumed: set[NodeProblem] = set()
        """The problems that only say what had to be assumed."""
        self.problems_version = 0
        """Changes with the problems."""
        self._object_listeners: dict[type, list[ObjectListener]] = {}
        self._pod_listeners: Listeners[PodListener] = Listeners()
        self._living: dict[str, PodInfo] = {}
        self._living_listeners: Listeners[LivingListener] = Listeners()
        self._ended_listeners: list[LivingListener] = []
        self._supposed_listeners: Listeners[SupposedListener] = Listeners()
        self._shared: dict[type, object] = {}

    @property
    def unix_time(self) -> float:
        """The time of the cluster in seconds since 1970, virtual in simulations."""
        return self._unix_time()

    # Objects other than nodes and pods ---------------------------------------------------

    def objects(self, type_: type[Obj]) -> Mapping[str, Obj]:
        """Return all objects of a type by key (``namespace/name``, or ``name``)."""
        return self._objects.get(type_, {})  # type: ignore[return-value]

    def set_object(self, key: str, obj: ApiObject) -> None:
        """Add or replace an object that is neither a node nor a pod."""
        objects = self._objects.setdefault(type(obj), {})
        old = objects.get(key)
        objects[key] = obj
        self._count_change(obj)
        self._namespaces_changed(obj)
        for listener in self._object_listeners.get(type(obj), ()):
            listener(old, obj)

    def delete_object(self, key: str, obj: ApiObject) -> None:
        """Remove an object that is neither a node nor a pod."""
        old = self._objects.get(type(obj), {}).pop(key, None)
        self._count_change(obj)
        self._namespaces_changed(obj)
        for listener in self._object_listeners.get(type(obj), ()) if old is not None else ():
            listener(old, None)

    def _count_change(self, obj: ApiObject) -> None:
        """Count a change; claims come and go with pods, and nobody need read all again for one."""
        if not isinstance(obj, ResourceClaim):
            self.objects_version += 1

    # For plugins that keep state of their own ---------------------------------------------

    def on_object(
        self, type_: type[Obj], listener: Callable[[Obj | None, Obj | None], None]
    ) -> None:
        """Call ``listener(old, new)`` for every change of such an object; None means absent."""
        self._object_listeners.setdefault(type_, []).append(listener)  # type: ignore[arg-type]

    def on_pod(self, listener: PodListener) -> Subscription:
        """Call ``listener(pod, node, placed)`` when a pod is placed on a node or removed from it.

        Changes in trials (``in_trial``) and their undoing are reported, too. Who has nothing to
        follow for a time sets ``listens`` of the answer.
        """
        return self._pod_listeners.add(listener)

    def on_supposed(self, listener: SupposedListener) -> Subscription:
        """Call ``listener(pods, times)`` when a trial supposes that pods have nodes (``suppose``).

        The end of the trial is reported as the same pods with the opposite number. Who has nothing
        to follow for a time sets ``listens`` of the answer.
        """
        return self._supposed_listeners.add(listener)

    def on_living(self, listener: LivingListener) -> Subscription:
        """Call ``listener(pod, added)`` when a pod is known as living, and when it no longer is.

        A new version of a pod is reported as the old one's end and its own beginning. Trials do
        not change which pods live. Who has nothing to follow for a time sets ``listens`` of the
        answer.
        """
        return self._living_listeners.add(listener)

    def on_ended(self, listener: LivingListener) -> None:
        """Call ``listener(pod, there)`` for every pod that has ended, and when it is gone, too.

        Such a pod succeeded, failed, or is being deleted and never had a node. Those that ended
        before this process started are reported as long as they are there, some of them twice.
        """
        self._ended_listeners.append(listener)

    def shared(self, kind: type[Obj], make: Callable[[Snapshot], Obj]) -> Obj:
        """Return the one ``kind`` that all users of this snapshot share; made on first use."""
        if kind not in self._shared:
            self._shared[kind] = make(self)
        return self._shared[kind]  # type: ignore[return-value]

    @property
    def in_trial(self) -> bool:
        """Whether changes made now may be undone."""
        return self._depth > 0

    @property
    def undoing(self) -> bool:
        """Whether changes are being undone: listeners then follow, and change nothing else."""
        return self._undoing

    def touch(self, nodes: Iterable[str] | None) -> None:
        """Mark nodes stale because a plugin's own state about them changed; None for all."""
        if nodes is None:
            self.nodes.changes.restart()
            return
        for name in nodes:
            row = self.nodes.row_of.get(name)
            if row is not None:
                self.nodes.changes.mark(row)

    def set_problem(self, node: str, subject: str, text: str, assumed: bool = False) -> None:
        """Record what could not be read of a node; "" clears it.

        :param assumed: all could be read, and this had to be assumed beside it.
        """
        key = (node, subject)
        if self.problems.get(key, "") == text:
            return
        self.problems_version += 1
        self.assumed.discard(key)
        if text:
            self.problems[key] = text
            if assumed:
                self.assumed.add(key)
        else:
            del self.problems[key]

    def unread(self) -> dict[NodeProblem, str]:
        """Return the problems without what had to be assumed."""
        return {key: text for key, text in self.problems.items() if key not in self.assumed}

    def _forget_problems(self, nodes: Set[str]) -> None:
        """Forget the problems of nodes that are gone."""
        for node, subject in [key for key in self.problems if key[0] in nodes]:
            self.set_problem(node, subject, "")

    def _namespaces_changed(self, obj: ApiObject) -> None:
        if isinstance(obj, Namespace):
            namespaces = self.objects(Namespace)
            self.index.set_namespaces({key: ns.metadata.labels for key, ns in namespaces.items()})
            self.nodes.changes.restart()

    # Nodes -------------------------------------------------------------------------------

    def node(self, name: str) -> Node | None:
        """Return a node's latest object, even before ``sync`` shows it."""
        if name in self._waiting_nodes:
            return self._waiting_nodes[name]
        row = self.nodes.row_of.get(name)
        return self.nodes.nodes[row] if row is not None else None

    def set_node(self, node: Node) -> None:
        """Add or replace a node; it shows after the next ``sync``."""
        self._waiting_nodes[node.metadata.name] = node

    def delete_node(self, name: str) -> None:
        """Remove a node at the next ``sync``. Its pods stay known until deleted."""
        self._waiting_nodes[name] = None

    def sync(self, most: int | None = None) -> bool:
        """Show the node changes since the last call. Not allowed inside a trial.

        :param most: of how many nodes at most, the oldest changes first; None for all.
        :returns: whether all are shown.
        """
        self.nodes.changes.trim(len(self.nodes))
        if self._waiting_nodes:
            assert not self._depth, "nodes cannot change inside a trial"
            waiting = dict(itertools.islice(self._waiting_nodes.items(), most))
            for name in waiting:
                del self._waiting_nodes[name]
            self._apply(waiting)
        return not self._waiting_nodes

    @property
    def has_unread_nodes(self) -> bool:
        """Whether ``sync`` has not shown all changes of nodes yet."""
        return bool(self._waiting_nodes)

    def _apply(self, changed: Mapping[str, Node | None]) -> None:
        """Show some nodes, or (None) their end, and the pods on those that are new."""
        rows = self.nodes.row_of
        for name in [name for name, node in changed.items() if node is None and name in rows]:
            for pod in self.nodes.pods[rows[name]].values():
                self.index.remove(pod, rows[name])
                self._homeless.setdefault(name, {})[pod.key] = pod
        origin = self.nodes.apply(changed)
        if origin is None:
            return
        self.index.renumber(origin)
        self._forget_problems({name for name, node in changed.items() if node is None})
        for name in changed.keys() & self.nodes.row_of:
            for pod in self._homeless.pop(name, {}).values():
                self.nodes.add_pod(pod, self.nodes.row_of[name])
                self.index.add(pod, self.nodes.row_of[name])

    def row(self, name: str) -> NodeRow:
        """Return a node by name; one that is gone is returned without labels and resources."""
        row = self.nodes.row_of.get(name)
        if row is not None:
            return NodeRow(self.nodes, row)
        table = NodeTable()
        table.apply({name: Node(ObjectMeta(name=name))})
        return NodeRow(table, 0)

    def view(self) -> NodeView:
        """Return the view of all nodes."""
        return NodeView(self.nodes)

    # Living pods -------------------------------------------------------------------------

    @property
    def living(self) -> Mapping[str, PodInfo]:
        """The pods that have not ended, by key: those to schedule, and all on nodes."""
        return self._living

    def is_living(self, pod: PodInfo) -> bool:
        """Tell whether any version of a pod lives: to listeners, the old one ends first."""
        living = self._living.get(pod.key)
        return living is not None and living.uid == pod.uid

    def set_living(self, pod: PodInfo) -> None:
        """Record a pod, or its new version, as living."""
        old = self._living.get(pod.key)
        self._living[pod.key] = pod
        for listener in self._living_listeners.now:
            if old is not None:
                listener(old, False)
            listener(pod, True)

    def end_living(self, key: str) -> PodInfo | None:
        """Record that a pod ended or is gone; return it, None for one that was not known."""
        old = self._living.pop(key, None)
        for listener in self._living_listeners.now if old is not None else ():
            assert old is not None
            listener(old, False)
        return old

    def note_ended(self, pod: PodInfo, there: bool) -> None:
        """Report a pod that has ended, after it is no longer known as living.

        :param there: whether its object still exists.
        """
        for listener in self._ended_listeners:
            listener(pod, there)

    # Pods on nodes -----------------------------------------------------------------------

    @property
    def placed(self) -> Mapping[str, tuple[PodInfo, str]]:
        """All pods that take part of a node, by key, with the node's name."""
        return self._placed

    def pods_on(self, node: str) -> Collection[PodInfo]:
        """Return the pods that take part of a node: none for one that is not known."""
        row = self.nodes.row_of.get(node)
        return self.nodes.pods[row].values() if row is not None else ()

    def add_pod(self, pod: PodInfo, node_name: str) -> None:
        """Place a pod on a node, which need not be known yet. A pod is on one node at most."""
        assert pod.key not in self._placed, f"{pod.key} is placed already"
        self._place(pod, node_name)
        if self._depth:
            self._undo.append(lambda: self._unplace(pod))

    def suppose(self, pods: Sequence[PodInfo], times: int = 1) -> None:
        """Let queues count pods of one queue as placed, for the rest of the running trial.

        :param times: for how many such units they count, below 0 for fewer.
        """
        assert self._depth, "only a trial supposes"
        self._tell_supposed(pods, times)
        self._undo.append(lambda: self._tell_supposed(pods, -times))

    def _tell_supposed(self, pods: Sequence[PodInfo], times: int) -> None:
        for listener in self._supposed_listeners.now:
            listener(pods, times)

    def remove_pod(self, key: str) -> PodInfo | None:
        """Remove a pod from its node; return it, or None when it was on no node."""
        placed = self._placed.get(key)
        if placed is None:
            return None
        pod, node_name = placed
        if self._depth:
            self._undo.append(self._restorer(pod, node_name))
        self._unplace(pod)
        return pod

    def replace_pod(self, pod: PodInfo) -> None:
        """Replace a placed pod by its new version, whose requests may differ."""
        _, node_name = self._placed[pod.key]
        self.remove_pod(pod.key)
        self.add_pod(pod, node_name)

    def _place(self, pod: PodInfo, node_name: str) -> None:
        self._placed[pod.key] = (pod, node_name)
        row = self.nodes.row_of.get(node_name)
        if row is not None:
            self.nodes.add_pod(pod, row)
            self.index.add(pod, row)
        else:
            self._homeless.setdefault(node_name, {})[pod.key] = pod
        for listener in self._pod_listeners.now:
            listener(pod, node_name, True)

    def _unplace(self, pod: PodInfo) -> None:
        _, node_name = self._placed.pop(pod.key)
        row = self.nodes.row_of.get(node_name)
        if row is not None:
            self.nodes.remove_pod(pod, row)
            self.index.remove(pod, row)
        else:
            self._leave_unknown(pod, node_name)
        for listener in self._pod_listeners.now:
            listener(pod, node_name, False)

    def _leave_unknown(self, pod: PodInfo, node_name: str) -> None:
        """Forget a pod on a node that is not shown."""
        there = self._homeless[node_name]
        del there[pod.key]
        if not there:
            del self._homeless[node_name]

    def _pods_on_rows(self) -> Iterator[tuple[PodInfo, int]]:
        rows = self.nodes.row_of
        return ((pod, rows[node]) for pod, node in self._placed.values() if node in rows)

    def _restorer(self, pod: PodInfo, node_name: str) -> Callable[[], None]:
        # A node lists its pods in the order in which they came; that order is part of the state.
        row = self.nodes.row_of.get(node_name)
        on_node = dict(self.nodes.pods[row]) if row is not None else {}

        def restore() -> None:
            self._place(pod, node_name)
            if row is not None:
                self.nodes.pods[row] = on_node

        return restore

    # Trials ------------------------------------------------------------------------------

    def trial(self) -> Trial:
        """Return a ``with`` block whose changes are undone at its end, unless kept."""
        return Trial(self)

    def begin_trial(self) -> int:
        """Enter a trial; return the undo log's length."""
        self._depth += 1
        return len(self._undo)

    def end_trial(self, mark: int, kept: bool) -> None:
        """Leave a trial and undo its changes, unless they are kept."""
        if not kept:
            self.undo_to(mark)
        self._depth -= 1
        if not self._depth:
            self._undo.clear()

    def undo_mark(self) -> int:
        """Return the undo log's length, a mark for ``undo_to``."""
        return len(self._undo)

    def undo_to(self, mark: int) -> None:
        """Undo the changes logged since a mark."""
        self._undoing = True
        while len(self._undo) > mark:
            self._undo.pop()()
        self._undoing = False

    def on_rollback(self, undo: Callable[[], None]) -> None:
        """Register how to undo a change that a plugin made to its own state.

        Ignored while changes are being undone.
        """
        if self._depth and not self._undoing:
            self._undo.append(undo)
