"""A unit in the queue, and what the queue asks about units."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Set
from enum import Enum
from typing import NamedTuple, Protocol

import msgspec

from bayplan.plugin.events import ClusterEvent
from bayplan.snapshot.pods import PodInfo

__all__ = ["EquivalenceClass", "Gate", "Place", "QueueRules", "QueuedUnit"]

EquivalenceClass = tuple[str, Hashable]
"""A queue, and what its units have in common that are equally hard to place."""


class Gate(NamedTuple):
    """Why a pod must not be tried yet, and the plugin that says so."""

    reason: str
    plugin: str


class Place(Enum):
    """Where a unit is."""

    ACTIVE = "active"
    PREEMPTING = "preempting"
    PARKED = "parked"
    BACKOFF = "backoff"
    UNSCHEDULABLE = "unschedulable"
    GATED = "gated"
    IN_FLIGHT = "in flight"


class QueuedUnit(msgspec.Struct, eq=False, weakref=True):
    """A unit in the queue; times in seconds.

    ``ready`` are the pods that may be tried, ``gated`` those that a gate holds back, with its
    reason, by pod key. ``added`` is when the unit came, ``retry_at`` the end of its backoff.
    ``refused_by`` are the plugins that refused it last. ``arrival`` counts the units that came
    before it, ``version`` the changes of its pods and their gates. ``recorded`` says that its pods
    know why they wait. Entries of the queue's heaps with another ``ticket`` are stale.

    The rest is for the order of queues. ``action`` counts the actions that have been tried for it
    since it became active: plain placement, then each way to preempt; ``actions`` are those that it
    has. ``queue`` and ``order`` are those of its last try, ``equivalence`` and ``size`` say how
    hard it is to place (see :mod:`bayplan.scheduler.known_refusals`), which is found out when it
    matters (None until then). ``strict`` says that it holds back its queue. ``offered_for`` is the
    class of the parked units on whose behalf it is tried; its own may change meanwhile. ``seen``
    tells what was known when its queue was looked up. ``refused_like`` is the unit whose refusal
    counted for its own last, ``held_by_queue`` says whether its queue held it back last, however
    many nodes there are.
    """

    key: str
    added: float
    ready: dict[str, PodInfo] = msgspec.field(default_factory=dict)
    gated: dict[str, tuple[PodInfo, str]] = msgspec.field(default_factory=dict)
    place: Place = Place.GATED
    attempts: int = 0
    retry_at: float = 0.0
    refused_by: frozenset[str] = frozenset()
    arrival: int = 0
    version: int = 0
    recorded: bool = False
    ticket: int = 0
    action: int = 0
    actions: tuple[int, ...] = (0,)
    queue: str = ""
    order: tuple[float, ...] = ()
    equivalence: Hashable = None
    size: int = 0
    strict: bool = False
    offered_for: EquivalenceClass | None = None
    seen: tuple[int, int] = (0, 0)
    refused_like: str = ""
    held_by_queue: bool = False

    @property
    def pods(self) -> dict[str, PodInfo]:
        """All pods of the unit, gated or not."""
        return {**self.ready, **{key: pod for key, (pod, _) in self.gated.items()}}

    @property
    def equivalence_class(self) -> EquivalenceClass:
        """Its queue, and what it has in common there with others."""
        return self.queue, self.equivalence


class QueueRules(Protocol):
    """What the queue asks about units and events."""

    def gate(self, pod: PodInfo) -> Gate | None:
        """Return the gate that holds a pod back, or None."""

    def reads_at_gate(self, plugin: str, kinds: Set[type]) -> bool:
        """Tell whether a plugin's gate reads objects of any of some kinds."""

    def sort_key(self, queued: QueuedUnit) -> tuple[float, ...]:
        """Return a unit's place in its queue: smallest first, then the first to arrive."""

    def queue_of(self, queued: QueuedUnit) -> str:
        """Return the queue of a unit, "" without queues."""

    def equivalence(self, queued: QueuedUnit) -> tuple[Hashable, int]:
        """Return a unit's equivalence, and how many of its pods have to be placed at once."""

    def actions(self, queued: QueuedUnit) -> tuple[int, ...]:
        """Return the actions for a unit by their places: plain placement, 0, then its others."""

    def may_preempt(self, queued: QueuedUnit, action: int) -> bool:
        """Tell whether an action may help a unit that did not fit; cheap."""

    def is_strict(self, queued: QueuedUnit) -> bool:
        """Tell whether a unit that does not fit holds back all after it in its queue."""

    def choose(self, heads: Mapping[str, QueuedUnit], action: int) -> str | None:
        """Return the queue whose first unit is tried next; None for none."""

    def listens(self, plugins: frozenset[str], event: ClusterEvent) -> bool:
        """Tell whether an event can help any unit that these plugins refused."""

    def waits_for_victims(self, queued: QueuedUnit) -> bool:
        """Tell whether a unit has nominated nodes that evicted pods have to leave first."""

    def helps(self, queued: QueuedUnit, event: ClusterEvent, subject: PodInfo | None) -> bool:
        """Tell whether an event, about the pod ``subject`` if any, can help a refused unit."""
