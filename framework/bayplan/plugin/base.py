"""What a plugin is made of: the base class, its arguments, and the values that hooks return.

The rule throughout: ``None`` means fine, a text means refused, an exception means a bug.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, Flag, auto
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pydantic
import pydantic.alias_generators

from bayplan.gangs.completeness import still_needed
from bayplan.plugin.events import ClusterEvent

if TYPE_CHECKING:
    from bayplan.api.gang import Gang
    from bayplan.cluster.protocol import BindLock, Done, Write
    from bayplan.gangs.directory import GangMembers
    from bayplan.snapshot import PodInfo, Snapshot

__all__ = [
    "NOTES",
    "SKIP",
    "Args",
    "CycleState",
    "DomainState",
    "DomainTrial",
    "Handle",
    "NodeRefusals",
    "Normalize",
    "Overdue",
    "Placement",
    "Placements",
    "Plan",
    "Plugin",
    "PreFilterResult",
    "Preemption",
    "PreemptionTrial",
    "Preparation",
    "Reads",
    "Refusal",
    "Reject",
    "Remedy",
    "Skip",
    "StateKey",
    "Unit",
    "Wait",
]

T = TypeVar("T")
BoolColumn = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]


class Skip(Enum):
    """The type of ``SKIP``."""

    SKIP = "skip"


SKIP: Final = Skip.SKIP
"""Returned by ``pre_filter`` or ``pre_score``: this plugin has nothing to say about this pod."""


@dataclass(frozen=True, slots=True)
class PreFilterResult:
    """Returned by ``pre_filter``: only these nodes may take the pod, so Filter skips the others."""

    node_names: frozenset[str]


class Args(pydantic.BaseModel):
    """Base of a plugin's arguments: camelCase in YAML, unknown names refused, immutable."""

    model_config = pydantic.ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=pydantic.alias_generators.to_camel,
        populate_by_name=True,
    )

    @property
    def config_maps(self) -> Sequence[str]:
        """The ConfigMaps ("namespace/name") that the plugin reads and a live scheduler follows."""
        return ()


class Reads(Flag):
    """What a plugin's Filter and Score depend on, so that the framework knows what goes stale."""

    NODE = auto()
    """The node's own object: labels, taints, allocatable, images."""
    PODS = auto()
    """The pods on that node."""
    CLUSTER = auto()
    """Anything else, such as pods on other nodes. Always correct; no answer is reused."""


class Normalize(Enum):
    """How the framework brings a plugin's scores to 0..100 over the feasible nodes."""

    NONE = "none"
    """They are 0..100 already."""
    MAX = "max"
    """The largest becomes 100, the others in proportion."""
    MAX_REVERSED = "max-reversed"
    """The largest becomes 0, zero becomes 100."""
    HOOK = "hook"
    """The plugin's own ``normalize`` hook does it."""


@dataclass(frozen=True, slots=True, eq=False)
class Reject:
    """Nodes that ``filter`` refuses: a mask over the nodes it was given, and the reason.

    With ``resolvable=False`` no preemption can help there. With ``error=True`` the plugin cannot
    tell, as with the status Error of a filter in Kubernetes: when such a node passes the filters
    before, the pod's attempt fails, whatever other nodes offer.
    """

    mask: BoolColumn
    reason: str
    resolvable: bool = True
    error: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """One node's refusal by ``filter_node`` where a plain text is not enough, see Reject."""

    reasons: tuple[str, ...]
    resolvable: bool = True
    error: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class NodeRefusals:
    """The nodes that refuse a pod and where this plugin is the first that does.

    ``mask`` holds those rows, ``reasons`` the rows of each reason; a node may have several.
    ``unresolvable`` are the rows where no preemption can help. ``by_row`` says that each answer
    depends on that node and its pods alone.
    """

    plugin: str
    mask: BoolColumn
    reasons: Sequence[tuple[str, BoolColumn]]
    unresolvable: BoolColumn
    by_row: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """Returned by ``permit``: hold the pod on its node for at most this many seconds.

    The wait ends when the plugin allows the pod (``Handle.allow``, or ``permit`` returns None when
    it is asked again after an event of ``requeue_on``), when a plugin rejects its unit, or when it
    times out, which refuses the unit.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Preparation:
    """Returned by ``pre_bind``: what has to be done before the pod's binding is written.

    ``writes`` are submitted in order; a failure gives back the nodes of the whole unit. Then
    ``ready`` is called, again after each change of an object, for at most ``seconds``: True lets
    the pod be bound, False waits, a text gives the nodes back. What ``then`` returns is written
    once it is ready, before the binding. ``lock`` is the lock of the node that the binding has to
    take first; ``labels`` are set on the pod with it, None removes one. ``missing`` says what is
    not ready yet, such as "card a to be attached to node b"; it continues "waits for". Of the time
    that this takes, ``waited`` seconds are over already.
    """

    writes: Sequence[Write] = ()
    ready: Callable[[], bool | str] | None = None
    seconds: float = 0.0
    lock: BindLock | None = None
    then: Callable[[], Sequence[Write]] | None = None
    labels: Mapping[str, str | None] = field(default_factory=dict)
    missing: Callable[[], str] | None = None
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class Remedy:
    """The smallest change that would undo a plugin's refusal; the lowest ``cost`` is named first.

    ``text`` continues "the pod": "would fit on n1 if ..." or, for a change whose effect nobody can
    foresee, "would be tried again if ...". ``row`` is the node row that would then take the pod,
    None when no single node is meant. ``frees`` says that other pods have to leave that node;
    explain finds the fewest. ``ends`` are the pods, by key, that would have to end, if the plugin
    knows them.
    """

    text: str
    row: int | None
    cost: float
    frees: bool = False
    ends: tuple[str, ...] = ()


class StateKey(Generic[T]):
    """A typed key into CycleState, compared by identity.

    ``copy`` says how a trial keeps the value to restore it; without it the value is taken to be
    immutable.
    """

    __slots__ = ("copy", "name")

    def __init__(self, name: str, copy: Callable[[T], T] | None = None) -> None:
        self.name = name
        self.copy = copy

    def __repr__(self) -> str:
        return f"StateKey({self.name!r})"


class CycleState:
    """Values that plugins pass to each other during one cycle.

    A state may have a parent: reading falls back to the parent, writing never changes it.
    """

    __slots__ = ("_parent", "_values")

    def __init__(self, parent: CycleState | None = None) -> None:
        self._values: dict[StateKey[object], object] = {}
        self._parent = parent

    def __getitem__(self, key: StateKey[T]) -> T:
        if key in self._values:
            return self._values[key]  # type: ignore[index, return-value]
        if self._parent is not None:
            return self._parent[key]
        raise KeyError(f"no plugin has written {key.name!r} in this cycle")

    def __setitem__(self, key: StateKey[T], value: T) -> None:
        self._values[key] = value  # type: ignore[index]

    def __contains__(self, key: StateKey[T]) -> bool:
        return key in self._values or (self._parent is not None and key in self._parent)

    def get(self, key: StateKey[T]) -> T | None:
        """Return the value, or None where nothing was written."""
        state: CycleState | None = self
        while state is not None:
            if key in state._values:
                return state._values[key]  # type: ignore[index, return-value]
            state = state._parent
        return None

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that restores the state as it is now."""
        kept = {k: k.copy(v) if k.copy else v for k, v in self._values.items()}

        def restore() -> None:
            self._values = {k: k.copy(v) if k.copy else v for k, v in kept.items()}

        return restore


NOTES: Final[StateKey[Sequence[str]]] = StateKey("notes")
"""Notes of a plugin on a pod and its node; the decision keeps them for explain."""


@dataclass
class Unit:
    """What one cycle places: a gang's pending members in rank order, or one pod."""

    key: str
    """The key of the gang or of the pod, as in ``team-a/train``."""
    pods: Sequence[PodInfo]
    """The pending pods."""
    gang: Gang | None = None
    """The gang's definition, None for one pod."""
    bound: Sequence[tuple[PodInfo, str]] = ()
    """The members that have a node already, with its name."""
    parts: Sequence[Unit] = ()
    """Sub-groups that are placed one by one and together hold all of ``pods``."""
    kind: str = ""
    """The kind of a part."""
    needed: int = 1
    """How many parts of a part's kind have to be placed; the others may be left out."""
    satisfied: bool = False
    """Whether the gang was complete before."""
    nominated: Mapping[str, str] = field(default_factory=dict)
    """The nominated nodes of members, by pod key."""
    nominated_domain: str = ""
    """The domain of the nominated nodes."""

    @property
    def priority(self) -> int:
        """The highest priority among the pods."""
        return max(pod.priority for pod in self.pods)

    @property
    def min_placed(self) -> int:
        """How many of the pending pods have to be placed together."""
        if self.gang is None:
            return len(self.pods)
        needed = still_needed(self.gang, len(self.bound), self.satisfied)
        return max(min(1, len(self.pods)), needed)


Plan = Callable[[Sequence["PodInfo"], Mapping[int, int]], Sequence[int]]
"""Returns node rows for equal pods in rank order, one a pod, as many as fit now. The second
argument limits how many of the pods a row takes, by row."""


@dataclass(frozen=True, eq=False)
class Placement:
    """A part of the cluster that may hold a whole unit.

    ``rows`` are its node rows in topology order, None for all nodes. ``offered`` is how many
    members fit there. ``plan`` gives members their rows when the placement is tried; it is called
    for each kind of pod in turn, after the kinds before are reserved. Without a plan every member
    takes the best of the rows. With ``exact`` only the plan is tried.
    """

    name: str
    rows: Rows | None
    offered: int | None = None
    plan: Plan | None = None
    exact: bool = False


@dataclass(frozen=True)
class Preemption:
    """What ``post_filter`` wants to evict for a unit, and the nodes that it then gets.

    ``nodes`` are nominated for the unit's pods until they are bound, by pod key. ``guarded`` are
    the victims, by key, that a disruption budget covers: they are evicted first, and when one
    eviction is refused, no other victim is evicted. ``moves`` names the node where a victim, by
    key, fits once it is created again. ``reason`` is told to the victims, to some of them, by key,
    what ``reasons`` says.
    """

    victims: Sequence[PodInfo]
    nodes: Mapping[str, str]
    message: str
    domain: str = ""
    guarded: frozenset[str] = frozenset()
    moves: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    leaving: frozenset[str] = frozenset()
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Overdue:
    """What ``overdue`` wants to evict, each pod with the reason that it is told.

    ``again`` is when to ask again even if nothing changes, in seconds; None for never. ``waited``
    says that a time is over that kept units from making room: they are tried again. ``moves`` are
    the nodes where victims, by key, fit once they are created again; ``action`` is what records and
    metrics call the evictions. ``locks`` are those that are taken of the nodes of victims, by key,
    while these are evicted.
    """

    victims: Sequence[tuple[PodInfo, str]] = ()
    again: float | None = None
    waited: bool = False
    moves: Mapping[str, str] = field(default_factory=dict)
    action: str = "overdue"
    locks: Mapping[str, BindLock] = field(default_factory=dict)


@dataclass(frozen=True)
class PreemptionTrial:
    """What preempting pods in one domain would cost, or why that is impossible."""

    domain: str
    victims: Sequence[str] = ()
    cost: str = ""
    refusal: str | None = None
    chosen: bool = False


class Handle(Protocol):
    """What the framework offers its plugins.

    ``offers``, ``place``, ``free_slots``, ``refusals``, ``hook`` and ``fit_message`` run other
    plugins of the profile: call them from hooks, not from ``__init__``.
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

    def gang(self, key: str) -> GangMembers:
        """Return a gang's definition and its members; an unknown key gives one without members."""

    def unit(self, pods: Sequence[PodInfo], gang: Gang | None = None) -> Unit:
        """Return the unit of some pods of one job, as if they had no nodes.

        :param pods: not empty; pending or not.
        :param gang: the definition of their gang, where objects will say something else than now;
            then all of its members are needed, however many it had before.
        """

    def line(self, queue: str) -> Sequence[Unit]:
        """Return the units that wait in the line of a queue, as ``queue_of`` names it, in order."""

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
        """Tell whether the eviction of a pod was refused less than a minute ago."""

    def free_slots(self, pod: PodInfo) -> npt.NDArray[np.int64]:
        """Return an upper bound of how many such pods each node takes now, one number a row.

        :raises PluginError: when a plugin of the profile fails in Filter, Score or ``slots``.
        """

    def offers(self, unit: Unit) -> Placements:
        """Return the parts of the cluster that may hold a unit now.

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

    def hook(self, name: str) -> Sequence[Callable[..., Any]]:
        """Return the calls of a hook of this profile, for a plugin that others extend.

        Each call takes all arguments of the hook and raises PluginError when its plugin raises.

        :raises KeyError: when there is no such hook.
        """

    def admit(self, gang: str) -> None:
        """Write into its Volcano pod group that a gang, by key, is admitted: phase Inqueue."""

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
    """Whether Filter and Score look at nothing of a pod but its spec, without the node name. Such a
    plugin needs no ``sign``: pods that share answers have equal specs in any case."""
    normalize_scores: Normalize = Normalize.NONE
    """How the framework brings the plugin's scores to 0..100; ``__init__`` may choose another."""
    requeue_on: ClassVar[ClusterEvent] = ClusterEvent.ANY
    """The events, joined by ``|``, after which a pod that this plugin refused is tried again."""
    actions: Sequence[str] = ()
    """Ways to make room for units of queues, in order. Such a unit that does not fit waits until no
    other unit can be placed; then ``post_filter`` is called for each of them with the first action,
    then with the second, and so on. Without actions ``post_filter`` is called as soon as a unit
    without a queue does not fit; the action "" stands for that."""
    writes_beside: ClassVar[bool] = False
    """Whether what it submits is carried out also where another scheduler binds the pods."""
    locks_nodes: ClassVar[bool] = False
    """Whether its ``pre_bind`` may ask for a lock of bayplan's own, which is taken only while pods
    that it concerns name other schedulers, or if nobody is elected."""

    def __init__(self, args: ArgsT, handle: Handle) -> None:
        self.args = args
        self.handle = handle

    def declare_metrics(self) -> None:
        """Create the plugin's Prometheus metrics, so that their series start at zero.

        A live scheduler calls this before it runs; a simulation does not, and so need not load
        the Prometheus client.
        """


class DomainState(Enum):
    """What became of a domain that a unit was considered for."""

    CHOSEN = "chosen"
    REFUSED = "refused"
    NOT_USED = "not used"
    """A better domain holds the unit."""
    NOT_TRIED = "not tried"
    """The search ended before."""


@dataclass(frozen=True)
class DomainTrial:
    """One domain that a unit was considered for, and why it was refused if it was.

    ``nodes`` is how many nodes it has, ``offered`` how many members fit there (None if not
    counted), ``needed`` how many have to be placed. ``refusal`` says why it was refused. ``rows``
    are its node rows, where they are worth keeping.
    """

    name: str
    nodes: int
    offered: int | None
    needed: int
    refusal: str = ""
    rows: Rows | None = field(default=None, compare=False, repr=False)
    state: DomainState = DomainState.REFUSED


@dataclass(frozen=True)
class Placements:
    """What ``placement_generate`` found: candidates, best first, and the domains it refused.

    Without candidates, ``reason`` says why the unit cannot be placed; ``of_queue`` says that the
    reason lies in its queue, so that it need not hold for units of other queues, ``more_nodes``
    that the queue would take the unit if the cluster had more nodes.
    """

    candidates: Sequence[Placement] = ()
    refused: Sequence[DomainTrial] = ()
    reason: str = ""
    of_queue: bool = False
    more_nodes: bool = False
