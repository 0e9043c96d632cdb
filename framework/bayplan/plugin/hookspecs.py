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
    from bayplan.plugin.base import (
        CycleState,
        Placement,
        Placements,
        Preemption,
        Preparation,
        Refusal,
        Reject,
        Remedy,
        Skip,
        Unit,
        Wait,
    )
    from bayplan.plugin.decision import Decision
    from bayplan.plugin.events import ClusterEvent
    from bayplan.snapshot import NodeRow, NodeView, PodInfo

__all__ = ["BoolColumn", "FloatColumn", "IntColumn", "hookimpl", "hookspec"]

PROJECT = "bayplan"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

FloatColumn = npt.NDArray[np.float64]
IntColumn = npt.NDArray[np.int64]
BoolColumn = npt.NDArray[np.bool_]


# In the queue ------------------------------------------------------------------------------


@hookspec
def pre_enqueue(pod: PodInfo) -> str | None:
    """Say why the pod must not be tried yet; it then waits until the pod or its gang changes."""


@hookspec(firstresult=True)
def queue_sort(unit: Unit, added: float) -> tuple[float, ...]:
    """Return the unit's sort key; the smallest is tried first. One plugin per profile.

    ``added`` is when the unit first entered the queue, in seconds.
    """
    raise AssertionError


@hookspec
def requeue_hint(pod: PodInfo, event: ClusterEvent, subject: PodInfo | None) -> bool:
    """Judge whether one event of ``requeue_on`` can help a pod that this plugin refused.

    ``subject`` is the pod that was placed, changed or removed, None for any other event.
    Without this hook every such event makes the pod be tried again.
    """
    raise AssertionError


# Which nodes -------------------------------------------------------------------------------


@hookspec
def sign(pod: PodInfo, nodes: NodeView) -> Hashable:
    """Return all that this plugin's answers depend on in the pod.

    Pods of equal signature share filter masks and scores. Without this hook nothing is shared
    between pods, which is always correct.
    """
    raise AssertionError


@hookspec
def pre_filter(pod: PodInfo, nodes: NodeView, state: CycleState) -> Skip | str | None:
    """Prepare for ``filter``: write to ``state``, or SKIP it for this pod, or refuse every node."""


@hookspec
def filter(pod: PodInfo, nodes: NodeView, state: CycleState) -> Iterable[Reject]:
    """Yield the nodes refused, as masks with reasons. Called once for many nodes."""
    raise AssertionError


@hookspec
def filter_node(pod: PodInfo, node: NodeRow, state: CycleState) -> str | Refusal | None:
    """Say why one node is refused. The per-node spelling of ``filter``."""


@hookspec
def post_filter(unit: Unit, decision: Decision, state: CycleState) -> Preemption | str | None:
    """Try to make room after no node was found; a text is added to the message.

    The first Preemption is carried out: its victims are evicted, its nodes held for the unit.
    """


@hookspec
def pre_score(pod: PodInfo, nodes: NodeView, state: CycleState) -> Skip | None:
    """Prepare for ``score``, or SKIP it for this pod. ``nodes`` are the feasible ones."""


@hookspec
def score(pod: PodInfo, nodes: NodeView, state: CycleState) -> FloatColumn | IntColumn:
    """Return a score for each node, the higher the better; 0..100 after normalisation.

    ``nodes`` may hold nodes that are not feasible; what they score does not count.
    """
    raise AssertionError


@hookspec
def score_node(pod: PodInfo, node: NodeRow, state: CycleState) -> float:
    """Return one node's score. The per-node spelling of ``score``."""
    raise AssertionError


@hookspec
def normalize(pod: PodInfo, scores: FloatColumn, nodes: NodeView, state: CycleState) -> FloatColumn:
    """Bring scores to 0..100, with ``normalize_scores = Normalize.HOOK``.

    ``nodes`` are the feasible ones, ``scores`` theirs.
    """
    raise AssertionError


@hookspec
def slots(pod: PodInfo, nodes: NodeView, state: CycleState) -> IntColumn:
    """Return how many pods equal to this one each node can take at most.

    An upper bound for planning gangs; ``filter`` has the last word.
    """
    raise AssertionError


# Where a whole unit goes -------------------------------------------------------------------


@hookspec(firstresult=True)
def placement_generate(
    unit: Unit, nodes: NodeView, within: Placement, state: CycleState
) -> Placements | None:
    """Offer parts of the cluster for the unit, the best first; None leaves it to others.

    ``within`` is the placement that they have to be parts of: that of the unit which this one is
    a part of, or the whole cluster.
    """


@hookspec
def placement_score(unit: Unit, placement: Placement, state: CycleState) -> float:
    """Score a placement in which the unit fits, 0..100.

    Where any plugin of the profile has this hook, all offered placements are tried and the best
    sum wins, the first offered among equals; otherwise the first that fits is taken.
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
    """Score one complete choice of devices for the pod's claims; the highest is taken.

    ``chosen`` pairs each request with a device, ``devices`` are all that the node can use. Minus
    infinity forbids a choice. A plugin to which the pod does not matter returns None, whatever is
    chosen; where all do, the choice is taken that breaks the fewest groups of the node's topology.
    """
    raise AssertionError


# On the chosen node ------------------------------------------------------------------------


@hookspec
def reserve(pod: PodInfo, node: NodeRow, state: CycleState) -> str | None:
    """Take what the pod needs on the node; a text refuses and undoes the reservations before."""


@hookspec
def unreserve(pod: PodInfo, node: NodeRow, state: CycleState) -> None:
    """Undo ``reserve``. Called in reverse order, also where ``reserve`` was never called."""


@hookspec
def permit(pod: PodInfo, node: NodeRow, unit: Unit, state: CycleState) -> Wait | str | None:
    """Approve, refuse, or ask to wait, once the whole unit has its nodes.

    While a unit waits for this plugin it is asked again after each event of ``requeue_on`` for
    which ``requeue_hint``, where there is one, returns True; the time of the first Wait stands. The
    pods are asked in turn until one still has to wait.
    """


@hookspec
def pre_bind(pod: PodInfo, node: NodeRow, state: CycleState) -> Preparation | str | None:
    """Say what has to be done before the binding is written; a text refuses."""


@hookspec(firstresult=True)
def bind(pod: PodInfo, node: NodeRow, state: CycleState) -> dict[str, str] | None:
    """Return annotations to write with the binding; the first plugin that answers decides."""


@hookspec
def post_bind(pod: PodInfo, node: NodeRow, state: CycleState) -> None:
    """Learn that the pod was bound."""


# Why not -----------------------------------------------------------------------------------


@hookspec
def remedies(pod: PodInfo, nodes: NodeView, state: CycleState) -> Iterable[Remedy]:
    """Offer small changes that would undo this plugin's refusals, for ``bayplan explain``.

    It is also asked when the plugin's own ``pre_filter`` refused the pod; what it then offers
    has no row.
    """
    raise AssertionError


@hookspec
def relax(unit: Unit) -> Iterable[tuple[str, Unit]]:
    """Offer weaker forms of the unit, each with the words that describe the difference.

    ``bayplan explain`` tries them, and tells of the first that would be placed.
    """
    raise AssertionError
