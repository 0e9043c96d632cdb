"""What a plugin is made of: the base class, its arguments, and the values that hooks return.

The rule throughout: ``None`` means fine, a text means refused, an exception means a bug.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, Flag, auto
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pydantic
import pydantic.alias_generators

from bayplan.gangs.completeness import still_needed

if TYPE_CHECKING:
    from bayplan.api.gang import Gang
    from bayplan.cluster.protocol import BindLock, Write
    from bayplan.snapshot import PodInfo

__all__ = [
    "LATER",
    "NOTES",
    "SKIP",
    "SUPPOSED",
    "Args",
    "CycleState",
    "DeviceOpinion",
    "DomainState",
    "DomainTrial",
    "Eviction",
    "Later",
    "LoadSource",
    "NodeRefusals",
    "NodeRequest",
    "Normalize",
    "Overdue",
    "Placement",
    "Placements",
    "Plan",
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
    "Supposed",
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


class Later(Enum):
    """The type of ``LATER``."""

    LATER = "later"


LATER: Final = Later.LATER
"""Returned by ``post_filter``: this plugin has more to read before it can answer."""


class PreFilterResult(msgspec.Struct, frozen=True):
    """Returned by ``pre_filter``: only these nodes may take the pod, so Filter skips the others."""

    node_names: frozenset[str]


@dataclass(frozen=True)
class LoadSource:
    """A program that knows what nodes use: load-watcher, or Prometheus.

    :param token: a bearer token, "" for none.
    :param verify: whether its certificate is checked.
    """

    kind: Literal["load-watcher", "Prometheus"]
    url: str
    token: str = field(default="", repr=False)
    verify: bool = True


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

    @property
    def load_source(self) -> LoadSource | None:
        """Who besides the API server knows what nodes use; a live scheduler asks."""
        return None


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


class Reject(msgspec.Struct, frozen=True, eq=False):
    """Nodes that ``filter`` refuses: a mask over the nodes it was given, and the reason.

    With ``resolvable=False`` no preemption can help there. With ``error=True`` the plugin cannot
    tell, as with the status Error of a filter in Kubernetes: when such a node passes the filters
    before, the pod's attempt fails, whatever other nodes offer.
    """

    mask: BoolColumn
    reason: str
    resolvable: bool = True
    error: bool = False


class Refusal(msgspec.Struct, frozen=True):
    """One node's refusal by ``filter_node`` where a plain text is not enough, see Reject."""

    reasons: tuple[str, ...]
    resolvable: bool = True
    error: bool = False


class Eviction(msgspec.Struct, frozen=True):
    """A pod (by key) that was evicted, when (seconds), the unit that preempted it, and why.

    ``moves_to`` is the node where it fits once it is created again, "" for none. ``action`` is that
    of the preemption, such as "preempt", or as :class:`Overdue` has it. ``message`` is what the pod
    gets, ``together`` how many pods of its gang are evicted at once, ``lost`` the work of its GPUs
    since its start, or since its gang's last checkpoint: thousandths of a GPU times seconds.
    """

    pod: str
    at: float
    unit: str
    reason: str = ""
    moves_to: str = ""
    action: str = ""
    message: str = ""
    together: int = 1
    lost: int = 0


class DeviceOpinion(msgspec.Struct, frozen=True):
    """What a plugin says of a choice of devices: its score, minus infinity to forbid it."""

    points: float
    plugin: str

    @property
    def forbids(self) -> bool:
        """Whether the choice must not be made."""
        return self.points == -math.inf


class NodeRefusals(msgspec.Struct, frozen=True, eq=False):
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


class Wait(msgspec.Struct, frozen=True):
    """Returned by ``permit``: hold the pod on its node for at most this many seconds.

    The wait ends when the plugin allows the pod (``Handle.allow``, or ``permit`` returns None when
    it is asked again after an event of ``requeue_on``), when a plugin rejects its unit, or when it
    times out, which refuses the unit.
    """

    seconds: float


class Preparation(msgspec.Struct, frozen=True):
    """Returned by ``pre_bind``: what has to be done before the pod's binding is written.

    ``writes`` are submitted in order; a failure gives back the nodes of the whole unit. Then
    ``ready`` is called, again after each change of an object, for at most ``seconds``: True lets
    the pod be bound, False waits, a text gives the nodes back. What ``then`` returns is written
    once it is ready, before the binding. ``lock`` is the lock of the node that the binding has to
    take first; ``labels`` are set on the pod with it, None removes one. ``missing`` says what is
    not ready yet, such as "GPU a to be attached to node b"; it continues "waits for". Of the time
    that this takes, ``waited`` seconds are over already. ``follows`` are the claims and volumes, by
    type and key, after whose changes ``ready`` is called; None for all of them.
    """

    writes: Sequence[Write] = ()
    ready: Callable[[], bool | str] | None = None
    seconds: float = 0.0
    lock: BindLock | None = None
    then: Callable[[], Sequence[Write]] | None = None
    labels: Mapping[str, str | None] = msgspec.field(default_factory=dict)
    missing: Callable[[], str] | None = None
    waited: float = 0.0
    follows: frozenset[tuple[type, str]] | None = None


class Remedy(msgspec.Struct, frozen=True):
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


class NodeRequest(msgspec.Struct, frozen=True):
    """Returned by ``request_nodes``: the plugin asks for the nodes that a unit lacks, or not.

    ``text`` is a sentence for the pods' condition; "" leaves it to the condition to ask. ``again``
    is when the hook is to be called again though nothing has changed, in the scheduler's seconds;
    None for never. With ``follows`` it is called after every change of an object. ``gave_up`` says
    that nothing is asked for now, so that others of its queue may ask in its place. ``promised``
    are nodes that are kept for pods, by key, until the others are there: the status of these pods
    nominates them, so that autoscalers and other schedulers leave them alone.
    """

    text: str
    again: float | None = None
    follows: bool = False
    gave_up: bool = False
    promised: Mapping[str, str] = msgspec.field(default_factory=dict)


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


class Supposed(msgspec.Struct, frozen=True):
    """What would be free on each node if the pods were gone that a unit may evict.

    :param slots: returns an upper bound of how many pods like this one each node would take.
    :param free: returns how much of a resource each node would have left.
    """

    slots: Callable[[PodInfo], npt.NDArray[np.int64]]
    free: Callable[[str], npt.NDArray[np.int64]]


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

SUPPOSED: Final[StateKey[Supposed]] = StateKey("supposed")
"""For ``placement_generate``: offer what may hold the unit under this supposition, not now."""


class Unit(msgspec.Struct):
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
    succeeded: Sequence[PodInfo] = ()
    """The members that have succeeded, where they count towards the minimum."""
    nominated: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The nominated nodes of members, by pod key."""
    nominated_domain: str = ""
    """The domain of the nominated nodes."""

    @property
    def priority(self) -> int:
        """The highest priority among the pods."""
        return max(pod.priority for pod in self.pods)

    @property
    def is_broken(self) -> bool:
        """Whether members hold nodes, but too few to run: what they hold is idle for now."""
        if self.gang is None or not self.bound:
            return False
        staying = sum(not pod.terminating for pod, _ in self.bound)
        return 0 < staying < self.gang.min_member - len(self.succeeded)

    @property
    def counted(self) -> int:
        """How many members count towards the minimum beside the pending ones."""
        return len(self.bound) + len(self.succeeded)

    @property
    def min_placed(self) -> int:
        """How many of the pending pods have to be placed together."""
        if self.gang is None:
            return len(self.pods)
        needed = still_needed(self.gang, self.counted, self.satisfied)
        return max(min(1, len(self.pods)), needed)


Plan = Callable[[Sequence["PodInfo"], Mapping[int, int]], Sequence[int]]
"""Returns node rows for equal pods in rank order, one a pod, as many as fit now. The second
argument limits how many of the pods a row takes, by row."""


class Placement(msgspec.Struct, frozen=True, eq=False):
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


class Preemption(msgspec.Struct, frozen=True):
    """What ``post_filter`` wants to evict for a unit, and the nodes that it then gets.

    ``nodes`` are nominated for the unit's pods until they are bound, by pod key. ``guarded`` are
    the victims, by key, that a disruption budget covers: they are evicted first, and when one
    eviction is refused, no other victim is evicted. ``moves`` names the node where a victim, by
    key, fits once it is created again. ``reason`` is reported to the victims, to some
    of them, by key, what ``reasons`` says.
    """

    victims: Sequence[PodInfo]
    nodes: Mapping[str, str]
    message: str
    domain: str = ""
    guarded: frozenset[str] = frozenset()
    moves: Mapping[str, str] = msgspec.field(default_factory=dict)
    reason: str = ""
    leaving: frozenset[str] = frozenset()
    reasons: Mapping[str, str] = msgspec.field(default_factory=dict)


class Overdue(msgspec.Struct, frozen=True):
    """What ``overdue`` wants to evict, each pod with the reason reported to it.

    ``again`` is when to ask again even if nothing changes, in seconds; None for never. ``waited``
    says that a time is over that kept units from preempting: they are tried again. ``moves`` are
    the nodes where victims, by key, fit once they are created again; ``action`` is what records and
    metrics call the evictions. ``locks`` are those that are taken of the nodes of victims, by key,
    while these are evicted. ``restarts`` are the gangs, by key, that need as many members as at
    their start from now on, though they ran before. ``at_once`` are the victims, by key, that go
    without the notice that they ask for: those that could not save their work. ``is_wanted`` tells,
    once the others have had theirs, whether they still have to go.
    """

    victims: Sequence[tuple[PodInfo, str]] = ()
    again: float | None = None
    waited: bool = False
    moves: Mapping[str, str] = msgspec.field(default_factory=dict)
    action: str = "overdue"
    locks: Mapping[str, BindLock] = msgspec.field(default_factory=dict)
    restarts: frozenset[str] = frozenset()
    at_once: frozenset[str] = frozenset()
    is_wanted: Callable[[], bool] = lambda: True


class PreemptionTrial(msgspec.Struct, frozen=True):
    """What preempting pods in one domain would cost, or why that is impossible."""

    domain: str
    victims: Sequence[str] = ()
    cost: str = ""
    refusal: str | None = None
    chosen: bool = False


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


class Placements(msgspec.Struct, frozen=True):
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
