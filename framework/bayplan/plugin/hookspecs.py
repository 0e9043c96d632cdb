"""The extension points, in the order in which a cycle runs them.

This module is the contract. Names and order are those of the Kubernetes scheduling framework; a
plugin implements any of them with ``@hookimpl`` and takes any subset of the arguments.

``pod`` is a :class:`~bayplan.snapshot.PodInfo`, ``nodes`` a :class:`~bayplan.snapshot.NodeView`
(every column as long as ``nodes``), ``node`` a :class:`~bayplan.snapshot.NodeRow`, ``unit`` a
:class:`~bayplan.plugin.base.Unit`, ``state`` a :class:`~bayplan.plugin.base.CycleState`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pluggy

if TYPE_CHECKING:
    from bayplan.api.dra import Device, DeviceId
    from bayplan.cluster.protocol import Event, PatchAnnotations, PatchStatus
    from bayplan.gangs.directory import GangMembers
    from bayplan.plugin.base import (
        CycleState,
        Eviction,
        Later,
        NodeRequest,
        Overdue,
        Placement,
        Placements,
        Preemption,
        PreFilterResult,
        Preparation,
        Refusal,
        Reject,
        Remedy,
        Skip,
        Unit,
        Wait,
    )
    from bayplan.plugin.decision import Decision
    from bayplan.plugin.devices import NodeDevices
    from bayplan.plugin.events import ClusterEvent
    from bayplan.plugin.queueing import Queueing
    from bayplan.snapshot import NodeRow, NodeView, PodInfo
    from bayplan.topology.network.tree import NetworkTree

__all__ = ["BoolColumn", "FloatColumn", "IntColumn", "hookimpl", "hookspec"]

PROJECT = "bayplan"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

FloatColumn = npt.NDArray[np.float64]
IntColumn = npt.NDArray[np.int64]
BoolColumn = npt.NDArray[np.bool_]


# Which pods --------------------------------------------------------------------------------


@hookspec
def concerns(pod: PodInfo) -> bool:
    """Tell whether the plugin has anything to do with pods of this kind.

    Pods are of one kind if their specs are equal and their labels and annotations have the same
    names; nothing else of a pod may count. A plugin is asked once for each kind, and again after
    ``Handle.concerns_changed``. About pods that do not concern it, it is asked in no hook that
    takes a pod alone or with nodes, from ``pre_enqueue`` to ``post_bind``. Without this hook every
    pod concerns it, which is always correct.
    """
    raise AssertionError


# In the queue ------------------------------------------------------------------------------


@hookspec
def pre_enqueue(pod: PodInfo) -> str | None:
    """Return why the pod must not be tried yet; it waits until it or its gang changes.

    It is asked again after a change of an object of a kind in ``gate_reads``, too.
    """


@hookspec
def admit() -> None:
    """Admit work that waits for a queue, with or without pods, by writing to its objects.

    Called before a unit is chosen, whenever anything has happened in the cluster since the last
    call, so that ``pre_enqueue`` may hold back the pods of what is not admitted.
    """
    raise AssertionError


@hookspec(firstresult=True)
def queue_sort(unit: Unit, added: float) -> tuple[float, ...]:
    """Return the unit's sort key; the smallest is tried first. One plugin per profile.

    ``added`` is when the unit first entered the queue, in seconds.
    """
    raise AssertionError


@hookspec(firstresult=True)
def queueing() -> Queueing:
    """Return the queues that share the cluster. At most one plugin per profile.

    Called once, when the plugins have been made. See :class:`~bayplan.plugin.queueing.Queueing`.
    """
    raise AssertionError


@hookspec
def requeue_hint(pod: PodInfo, event: ClusterEvent, subject: PodInfo | None) -> bool:
    """Tell whether an event of ``requeue_on`` can help a pod that this plugin refused.

    ``event`` is one event, never several joined by ``|``; a change that is several events makes
    one call for each. ``subject`` is the pod that was placed, changed or removed, None for any
    other event. Without this hook the pod is tried again after every event of ``requeue_on``.
    """
    raise AssertionError


# Which nodes -------------------------------------------------------------------------------


@hookspec
def sign(pod: PodInfo, nodes: NodeView) -> Hashable:
    """Return everything in the pod that this plugin's answers depend on, besides its spec.

    Pods of equal spec and signature share filter masks and scores, and where a unit of a queue does
    not fit, equal units of that queue are skipped (of members that differ only in their names, one
    is asked). Without this hook pods share nothing, which is
    always correct, unless ``by_spec`` says that the spec is all.
    """
    raise AssertionError


@hookspec
def pre_filter(
    pod: PodInfo, nodes: NodeView, state: CycleState
) -> PreFilterResult | Skip | str | None:
    """Prepare for ``filter``: write to ``state``, or SKIP it for this pod, or refuse every node.

    A PreFilterResult names the only nodes that may take the pod.
    """


@hookspec
def serves(pod: PodInfo) -> frozenset[str]:
    """Return the requested resources that this plugin serves on nodes that offer none of them.

    NodeResourcesFit leaves these to the plugin there. The answer may depend on the pod's requests
    and on the API objects of the snapshot only.
    """
    raise AssertionError


@hookspec
def filter(pod: PodInfo, nodes: NodeView, state: CycleState) -> Iterable[Reject]:
    """Yield the nodes refused, as masks with reasons. Called once for many nodes."""
    raise AssertionError


@hookspec
def filter_node(pod: PodInfo, node: NodeRow, state: CycleState) -> str | Refusal | None:
    """Return why one node is refused, None when it is not. The per-node spelling of ``filter``."""


@hookspec
def post_filter(
    unit: Unit, decision: Decision, state: CycleState, action: str
) -> Preemption | Later | str | None:
    """Preempt pods when no node was found; a text is added to the unit's message.

    The first Preemption is carried out: its nodes are nominated for the unit, its victims evicted.
    LATER has the unit tried again in the next step: a plugin that has much to read first does so in
    parts, and the scheduler answers others in between.
    ``action`` is one of ``Plugin.actions``; "" for a plugin that is asked at once.
    """


@hookspec
def may_preempt(unit: Unit, action: str) -> bool | None:
    """Tell whether ``post_filter`` may help a unit with one of its actions; None for yes.

    Asked before each of the plugin's own ``actions``; a cheap no saves the search.
    """


@hookspec
def overdue() -> Overdue | None:
    """Return pods to evict though no unit waits for their nodes, such as those of stale gangs.

    Called when no unit is left to try, after changes of the cluster and at the time it names.
    """


@hookspec(firstresult=True)
def request_nodes(unit: Unit, decision: Decision | None) -> NodeRequest | None:
    """Ask for the nodes that a unit lacks in other words than by the condition of its pods.

    Autoscalers add nodes for pods whose condition says Unschedulable. With an answer the pods get
    another reason, which autoscalers skip, and its text. Called when a unit that was refused lacks
    nodes, and again as the answer says; with None for ``decision`` once a unit with an answer is
    held back by something else, or has left the queue.
    """


@hookspec
def prepare() -> bool | None:
    """Read what is new in the cluster, so that the next unit need not wait for it.

    Called when no unit is left to try, after changes, and again and again while the many nodes of
    a large cluster are read. What would take long is read in parts: return True if there is more
    to read. What it leaves undone is done when needed.
    """


@hookspec
def may_give_up() -> Sequence[PodInfo]:
    """Return the pods on nodes that elastic jobs in queues would give up before any eviction.

    Those that they give up already are among them. Asked through ``Handle.may_give_up``.
    """
    raise AssertionError


@hookspec
def pre_score(pod: PodInfo, nodes: NodeView, state: CycleState) -> Skip | None:
    """Prepare for ``score``, or SKIP it for this pod. ``nodes`` are the feasible ones."""


@hookspec
def score(pod: PodInfo, nodes: NodeView, state: CycleState) -> FloatColumn | IntColumn:
    """Return a score for each node, higher is better; 0..100 after normalisation.

    ``nodes`` may hold nodes that are not feasible; their scores do not count.
    """
    raise AssertionError


@hookspec
def score_node(pod: PodInfo, node: NodeRow, state: CycleState) -> float:
    """Return one node's score. The per-node spelling of ``score``."""
    raise AssertionError


@hookspec
def normalize(pod: PodInfo, scores: FloatColumn, nodes: NodeView, state: CycleState) -> FloatColumn:
    """Bring scores to 0..100; called with ``normalize_scores = Normalize.HOOK`` only.

    ``nodes`` are the feasible nodes, ``scores`` their scores.
    """
    raise AssertionError


@hookspec
def slots(pod: PodInfo, nodes: NodeView, state: CycleState) -> IntColumn:
    """Return, for each node, an upper bound on how many pods equal to this one it can take.

    Plans for gangs start from it; ``filter`` decides.
    """
    raise AssertionError


# Where a whole unit goes -------------------------------------------------------------------


@hookspec(firstresult=True)
def placement_generate(
    unit: Unit, nodes: NodeView, parent: Placement, state: CycleState
) -> Placements | None:
    """Offer parts of the cluster for the unit, best first; None leaves it to other plugins.

    They have to lie inside ``parent``: the placement of the unit that this one is a part of, or
    the whole cluster. ``state`` may hold a supposition of what is free (``bayplan.SUPPOSED``):
    preemption asks where the unit might fit without the pods that it may evict. A plugin that does
    not heed it is asked for what is free now.
    """


@hookspec
def placement_score(unit: Unit, placement: Placement, state: CycleState) -> float:
    """Score a placement in which the unit fits, 0..100.

    When a plugin of the profile has this hook, all offered placements are tried and the best sum
    wins, the first offered among equals. Otherwise the first placement that fits is taken.
    """
    raise AssertionError


# Devices -----------------------------------------------------------------------------------


@hookspec(firstresult=True)
def device_score(
    pod: PodInfo,
    node: NodeRow,
    chosen: Sequence[tuple[str, DeviceId]],
    devices: Mapping[DeviceId, Device],
) -> float | None:
    """Score one complete choice of devices for the pod's claims; the highest wins.

    ``chosen`` pairs each request with a device, ``devices`` are all that the node can use. Minus
    infinity forbids a choice. A plugin that has no opinion on the pod returns None for every
    choice. When all plugins do, the choice that breaks the fewest topology groups of the node wins.
    """
    raise AssertionError


# On the chosen node ------------------------------------------------------------------------


@hookspec
def reserve(pod: PodInfo, node: NodeRow, state: CycleState) -> str | None:
    """Reserve what the pod needs on the node; a text refuses and undoes earlier reservations."""


@hookspec
def unreserve(pod: PodInfo, node: NodeRow, state: CycleState) -> None:
    """Undo ``reserve``. Called in reverse order, even when ``reserve`` was never called."""


@hookspec
def permit(pod: PodInfo, node: NodeRow, unit: Unit, state: CycleState) -> Wait | str | None:
    """Approve, refuse, or ask to wait, once the whole unit has its nodes.

    While a unit waits for this plugin, the hook is called again after each event of ``requeue_on``
    for which ``requeue_hint``, if there is one, returns True; the timeout of the first Wait stands.
    The pods are asked in turn until one still has to wait.
    """


@hookspec
def pre_bind(pod: PodInfo, node: NodeRow, state: CycleState) -> Preparation | str | None:
    """Return what has to be done before the binding is written; a text refuses."""


@hookspec
def bind(pod: PodInfo, node: NodeRow, state: CycleState) -> dict[str, str] | None:
    """Return annotations to write with the binding.

    Those of all plugins are written; of two values for one name the earlier plugin's counts.
    """


@hookspec
def post_bind(pod: PodInfo, node: NodeRow, state: CycleState) -> None:
    """Called when the pod has been bound."""


# What objects say --------------------------------------------------------------------------


@hookspec
def post_evict(pod: PodInfo, eviction: Eviction) -> None:
    """Called when the cluster has accepted the eviction of a pod."""


@hookspec
def group_status(
    members: GangMembers, why: str
) -> Sequence[PatchStatus | PatchAnnotations | Event]:
    """Return what the objects of a gang should say of it now, and do not say yet.

    Called when no unit is left to try, for gangs that changed. ``why`` is what keeps the gang
    pending, "" for nothing. The definition in ``members`` is None once its objects have gone.
    """
    raise AssertionError


# What there is -----------------------------------------------------------------------------


@hookspec
def node_devices(node: str) -> NodeDevices | None:
    """Return what is known of a node's GPUs and of who has them; None where nothing is.

    Called for the page, when something on the node has changed.
    """


@hookspec(firstresult=True)
def network_tree() -> NetworkTree | None:
    """Return the network that this plugin places jobs in; None where none is described."""


# Why not -----------------------------------------------------------------------------------


@hookspec
def remedies(pod: PodInfo, nodes: NodeView, state: CycleState) -> Iterable[Remedy]:
    """Offer small changes that would undo this plugin's refusals, for ``bayplan explain``.

    ``nodes`` are some of the nodes in a large cluster; a remedy's row is that of the table of all
    nodes (``NodeRow.row``, ``NodeView.row_at``).

    Also called when the plugin's own ``pre_filter`` refused the pod; remedies have no row then.
    """
    raise AssertionError


@hookspec
def relax(unit: Unit) -> Iterable[tuple[str, Unit]]:
    """Offer weaker forms of the unit, each with words that describe the difference.

    ``bayplan explain`` tries them and names the first that would be placed.
    """
    raise AssertionError
