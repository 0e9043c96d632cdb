"""The base class of every plugin, and what the framework offers a plugin."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from bayplan.plugin.base import (
    Args,
    DeviceOpinion,
    NodeRefusals,
    Normalize,
    Placement,
    Placements,
    Reads,
    Supposed,
    Unit,
)
from bayplan.plugin.events import ClusterEvent

if TYPE_CHECKING:
    from bayplan.api.dra import Device, DeviceId
    from bayplan.api.gang import Gang
    from bayplan.cluster.protocol import Done, Write
    from bayplan.gangs.directory import GangMembers
    from bayplan.plugin.queueing import Queueing
    from bayplan.snapshot import NodeRow, PodInfo, Snapshot

__all__ = ["Handle", "Plugin"]


class Handle(Protocol):
    """What the framework offers its plugins.

    What runs other plugins of the profile (``offers``, ``place``, ``queueing`` and the like) may be
    called from hooks, not from ``__init__``.
    """

    @property
    def snapshot(self) -> Snapshot:
        """The scheduler's view of the cluster; plugins only read it."""

    @property
    def now(self) -> float:
        """The time in seconds, virtual in simulations."""

    @property
    def unix_time(self) -> float:
        """The time in seconds since 1970, as objects' timestamps state it."""

    @property
    def writes(self) -> bool:
        """Whether writes are carried out: not in a dry run, nor beside another scheduler."""

    def gang(self, key: str) -> GangMembers:
        """Return a gang's definition and its members; an unknown key gives one without members."""

    def former_nodes(self, key: str) -> Mapping[str, str]:
        """Return the nodes that a gang's members hold, or held before they went, by pod key."""

    def unit(self, pods: Sequence[PodInfo], gang: Gang | None = None) -> Unit:
        """Return the unit of some pods of one job, as if they had no nodes.

        :param pods: not empty; pending or not.
        :param gang: the definition of their gang, where objects will say something else than now;
            then all of its members are needed, however many it had before.
        """

    def schedules(self, pod: PodInfo) -> bool:
        """Tell whether a pod is one of the plugin's own profile, placed or not."""

    def pending(self, queue: str) -> Sequence[Unit]:
        """Return the pending units of a queue (``SYSTEM/NAME``), in order."""

    def is_waiting(self, unit: str) -> bool:
        """Tell whether a unit, by key, is in the queue; it leaves the queue when it is bound."""

    def is_first(self, unit: Unit) -> bool:
        """Tell whether no other unit that is to be tried comes before this one in the queue.

        False for a unit that is not in the queue.

        :raises PluginError: never; a ``queue_sort`` that raises counts as priority order.
        """

    def is_nominated(self, pod: PodInfo) -> bool:
        """Tell whether a pod in the snapshot stands for a nominated node and does not run there."""

    def in_eviction_cooldown(self, pod: PodInfo) -> bool:
        """Tell whether a pod is no victim for now.

        Its eviction was refused less than a minute ago, or it has not run yet for the minimum that
        it states.
        """

    def free_slots(self, pod: PodInfo) -> npt.NDArray[np.int64]:
        """Return an upper bound of how many such pods each node takes now, one number a row.

        Do not write to it.

        :raises PluginError: when a plugin of the profile fails in Filter, Score or ``slots``.
        """

    def offers(self, unit: Unit, supposed: Supposed | None = None) -> Placements:
        """Return the parts of the cluster that may hold a unit now.

        :param supposed: what is free instead, by supposition; then the unit's queue is not asked.
        :raises PluginError: when a plugin of the profile fails in ``placement_generate``.
        """

    def place(self, unit: Unit, placement: Placement) -> Mapping[str, str] | None:
        """Place a unit within the running trial; return each pod's node, or None.

        Only inside ``snapshot.trial()``; what the trial does not keep is undone with it.

        :raises PluginError: when a plugin of the profile fails in a hook up to ``permit``.
        """

    def refusals(self, pod: PodInfo) -> Sequence[NodeRefusals]:
        """Return which nodes refuse the pod now and why, plugin by plugin in Filter's order.

        :raises PluginError: when a plugin of the profile fails in Filter or Score.
        """

    @property
    def queueing(self) -> Queueing | None:
        """The queues that share the cluster; None for a profile without any.

        Its methods raise PluginError when its plugin raises.
        """

    def may_give_up(self) -> Sequence[PodInfo]:
        """Return the pods on nodes that elastic jobs in queues would give up before any eviction.

        :raises PluginError: when a plugin of the profile fails in ``may_give_up``.
        """

    def serves(self, pod: PodInfo) -> frozenset[str]:
        """Return the requested resources that plugins serve on nodes that offer none of them.

        :raises PluginError: when a plugin of the profile fails in ``serves``.
        """

    def device_score(
        self,
        pod: PodInfo,
        node: NodeRow,
        chosen: Sequence[tuple[str, DeviceId]],
        devices: Callable[[], Mapping[DeviceId, Device]],
    ) -> DeviceOpinion | None:
        """Return the first opinion of a plugin on a choice of devices; None where none has any.

        The arguments are those of the hook ``device_score``; ``devices`` is called if one is asked.

        :raises PluginError: when a plugin of the profile fails in ``device_score``.
        """

    def concerns_changed(self) -> None:
        """Have ``concerns`` asked again about all pods: its answers have changed."""

    def recheck_gates(self, pod: PodInfo) -> None:
        """Ask ``pre_enqueue`` again about the pods of a pod's unit that are held back.

        For gates that open by what a plugin decides, without any change of an object. Only from
        ``admit``.
        """

    def submit(self, write: Write, done: Done | None = None) -> None:
        """Submit a write to the cluster.

        :param done: called with None when it succeeded, or with the ClusterError; what it raises
            is logged.
        """

    def allow(self, waiting: Unit | PodInfo | str) -> bool:
        """Let a unit or a pod go on that this plugin's ``permit`` asked to wait.

        The unit is bound once no plugin holds any of its pods. May be called from any hook,
        listener or thread; it takes effect before the next cycle.

        :param waiting: a unit, one pod of it, or the key of either (that of both means the unit).
        :returns: whether this plugin held it.
        """

    def reject(self, waiting: Unit | PodInfo | str, reason: str) -> bool:
        """Refuse a unit that waits at Permit for any plugin.

        It gives back all of its nodes, its pods get the reason, and it is tried again after an
        event of this plugin's ``requeue_on``. May be called from any hook, listener or thread; it
        takes effect before the next cycle.

        :param waiting: the unit, a pod of it, or the key of either.
        :returns: whether the unit was waiting.
        """

    def fit_message(self, pod: PodInfo) -> str:
        """Return why nodes refuse the pod now: "0/5 nodes are available: ...".

        :raises PluginError: when a plugin of the profile fails in Filter or Score.
        """


ArgsT = TypeVar("ArgsT", bound=Args, covariant=True)


class Plugin(Generic[ArgsT]):
    """Base class of every plugin: mark methods with ``@hookimpl`` and name them as hooks.

    :param args: the arguments from the profile, checked against ``Args``.
    :param handle: what the framework offers the plugin.
    """

    Args: ClassVar[type[Args]] = Args
    """The model of the plugin's arguments."""
    reads: Reads = Reads.CLUSTER
    """What Filter and Score look at, joined by ``|``: the framework computes them again for a node
    only when that changes. A plugin that reads less than it says is slower; one that reads more
    gives stale answers. Where the arguments decide it, ``__init__`` may narrow it."""
    by_spec: ClassVar[bool] = False
    """Whether the plugin's answers depend on nothing of a pod but its spec, without the node name,
    and its gang's definition. Such a plugin needs no ``sign``: pods that share answers have equal
    specs in any case."""
    normalize_scores: Normalize = Normalize.NONE
    """How the framework brings the plugin's scores to 0..100; ``__init__`` may choose another."""
    requeue_on: ClassVar[ClusterEvent] = ClusterEvent.ANY
    """The events, joined by ``|``, after which a pod that this plugin refused is tried again."""
    gate_reads: ClassVar[Container[type] | None] = None
    """The kinds of objects that ``pre_enqueue`` reads besides the pod and its gang: a change of any
    other does not have it called again. None, the default, stands for all kinds."""
    actions: Sequence[str] = ()
    """Ways to preempt for units of queues, in order. Such a unit that does not fit waits until no
    other unit can be placed; then ``post_filter`` is called for each of them with the first action,
    then with the second, and so on. Without actions ``post_filter`` is called as soon as a unit
    without a queue does not fit; the action "" stands for that."""
    places_single_pods: ClassVar[bool] = False
    """Whether ``placement_generate`` is called for pods without a gang, too."""
    writes_beside: ClassVar[bool] = False
    """Whether what it submits is carried out also where another scheduler binds the pods."""
    locks_nodes: ClassVar[bool] = False
    """Whether its ``pre_bind`` may ask for a lock of bayplan's own, which is taken only while pods
    that it concerns name other schedulers, or if nobody is elected."""

    cluster_args: ClassVar[tuple[str, ...]] = ()
    """Arguments, by the names of their fields, that are about the whole cluster: all profiles with
    the plugin have to give them the same value."""

    def __init__(self, args: ArgsT, handle: Handle) -> None:
        self.args = args
        self.handle = handle

    def declare_metrics(self) -> None:
        """Create the plugin's Prometheus metrics, so that their series start at zero.

        A live scheduler calls this before it runs; a simulation does not, and so need not load
        the Prometheus client.
        """
