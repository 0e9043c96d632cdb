"""What an assignment of flavors is, and which is better; :mod:`.flavor_search` finds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

import msgspec

from bayplan.api.kueue import AssignedPodSet, FlavorFungibility
from bayplan_plugins.queues.kueue.amounts import column, quantity_of
from bayplan_plugins.queues.kueue.conditions import Reason
from bayplan_plugins.queues.kueue.workloads import PodSetRequests, WorkloadInfo

__all__ = [
    "Assignment",
    "Attempt",
    "FlavorChoice",
    "Mode",
    "PodSetAssignment",
    "Possibility",
    "Way",
    "goes_on",
    "most_severe",
    "preferred",
    "total_requests",
]


class Mode(IntEnum):
    """What has to happen before the assignment holds, from the worst to the best."""

    NO_FIT = 0
    PREEMPT = 1
    DEFERRED_FIT = 2
    """It fits once victims that others of this cycle have chosen are gone."""
    FIT = 3

    @property
    def text(self) -> str:
        """The mode as Kueue writes it."""
        return {0: "NoFit", 1: "Preempt", 2: "DeferredFit", 3: "Fit"}[int(self)]


class Possibility(IntEnum):
    """How a resource gets a flavor, from the worst to the best."""

    NO_FIT = 0
    NO_CANDIDATES = 1
    """There would be room without others' usage, but nobody may be preempted."""
    PREEMPT = 2
    RECLAIM = 3
    """Only workloads of other queues have to go."""
    FIT = 4

    @property
    def mode(self) -> Mode:
        """The mode that this amounts to."""
        if self is Possibility.FIT:
            return Mode.FIT
        return Mode.NO_FIT if self is Possibility.NO_FIT else Mode.PREEMPT

    @property
    def text(self) -> str:
        """The possibility as Kueue writes it."""
        names = {1: "NoCandidates", 2: "Preempt", 3: "Reclaim"}
        return names.get(int(self), "")


class Way(msgspec.Struct, frozen=True):
    """How a flavor is had: with whose consent, and borrowed from how far up (0: own quota)."""

    possibility: Possibility
    borrow: int = 0


def preferred(one: Way, other: Way, fungibility: FlavorFungibility) -> bool:
    """Tell whether the first way is better by a queue's preference."""
    if one.possibility is Possibility.NO_FIT or other.possibility is Possibility.NO_FIT:
        return one.possibility is not Possibility.NO_FIT
    hopeless = Possibility.NO_CANDIDATES
    if (one.possibility is hopeless) != (other.possibility is hopeless):
        return one.possibility is not hopeless
    if fungibility.preference == "PreemptionOverBorrowing":
        return (-one.borrow, one.possibility) > (-other.borrow, other.possibility)
    return (one.possibility, -one.borrow) > (other.possibility, -other.borrow)


def goes_on(way: Way, fungibility: FlavorFungibility) -> bool:
    """Tell whether the next flavor is tried although this one can be had."""
    if way.possibility <= Possibility.NO_CANDIDATES:
        return True
    preempts = way.possibility in (Possibility.PREEMPT, Possibility.RECLAIM)
    if preempts and fungibility.when_can_preempt == "TryNextFlavor":
        return True
    return way.borrow > 0 and fungibility.when_can_borrow == "TryNextFlavor"


_SEVERITY = {
    Reason.TOPOLOGY: 1,
    Reason.WAITING_FOR_QUOTA: 2,
    Reason.EXCEEDS_QUOTA: 3,
    Reason.NO_FLAVOR: 4,
}


def most_severe(one: str, other: str) -> str:
    """Return the reason that would take more to change."""
    return one if severity(one) >= severity(other) else other


def severity(reason: str) -> int:
    """Return how much it would take to change a reason; 0 for none."""
    return _SEVERITY.get(Reason(reason), 0) if reason else 0


class FlavorChoice(msgspec.Struct):
    """The flavor of one resource.

    :param tried: the index of the last flavor that was tried, -1 when all were.
    """

    flavor: str
    mode: Mode
    borrow: int = 0
    tried: int = 0


class Attempt(msgspec.Struct, frozen=True):
    """One flavor that was tried for the resources of a pod set, with the worst of what came out.

    ``no_fit_reason`` is why it does not fit, where it does not.
    """

    flavor: str
    mode: Mode
    borrow: int = 0
    possibility: Possibility | None = None
    reasons: tuple[str, ...] = ()
    no_fit_reason: str = ""

    def joined(self, other: Attempt) -> Attempt:
        """Return both attempts of the flavor, for different resources, as one."""
        possibility = self.possibility
        if other.possibility is not None and (
            possibility is None or other.possibility < possibility
        ):
            possibility = other.possibility
        return Attempt(
            self.flavor,
            min(self.mode, other.mode),
            max(self.borrow, other.borrow),
            possibility,
            tuple(sorted({*self.reasons, *other.reasons})),
            most_severe(self.no_fit_reason, other.no_fit_reason),
        )


class PodSetAssignment(msgspec.Struct):
    """The flavors of a pod set; without any it does not fit.

    :param error: what makes the assignment impossible, whatever is free.
    """

    name: str
    count: int
    requests: Mapping[str, float]
    flavors: dict[str, FlavorChoice] = msgspec.field(default_factory=dict)
    reasons: list[str] = msgspec.field(default_factory=list)
    error: str = ""
    no_fit_reason: str = ""
    attempts: list[Attempt] = msgspec.field(default_factory=list)

    @property
    def mode(self) -> Mode:
        """The worst mode of its resources."""
        if self.error:
            return Mode.NO_FIT
        if not self.reasons:
            return Mode.FIT
        if not self.flavors:
            return Mode.NO_FIT
        return min(choice.mode for choice in self.flavors.values())

    def set_mode(self, mode: Mode) -> None:
        """Give all its resources one mode."""
        for choice in self.flavors.values():
            choice.mode = mode


class Assignment(msgspec.Struct):
    """The flavors of a workload.

    :param usage: what it would use of its queue, by column; for a slice that replaces another
        the difference.
    :param replaced: the workload slice that it replaces.
    :param no_fit_reason: why it does not fit, where it does not.
    :param unplaced: whether there is quota for it, and no nodes.
    """

    pod_sets: list[PodSetAssignment] = msgspec.field(default_factory=list)
    borrow: int = 0
    usage: dict[str, float] = msgspec.field(default_factory=dict)
    last_tried: tuple[dict[str, int], ...] = ()
    replaced: WorkloadInfo | None = None
    no_fit_reason: str = ""
    unplaced: bool = False
    fixed_mode: Mode | None = None

    @property
    def mode(self) -> Mode:
        """The worst mode of its pod sets."""
        if not self.pod_sets:
            return Mode.NO_FIT
        if self.fixed_mode is not None:
            return self.fixed_mode
        return min(one.mode for one in self.pod_sets)

    @property
    def message(self) -> str:
        """Why it does not fit as it is; empty if it does."""
        texts = []
        for one in self.pod_sets:
            if one.error:
                return f"failed to assign flavors to pod set {one.name}: {one.error}"
            if one.reasons:
                reasons = ", ".join(sorted(one.reasons))
                texts.append(f"couldn't assign flavors to pod set {one.name}: {reasons}")
        return "; ".join(texts)

    def pod_set(self, name: str) -> PodSetAssignment:
        """Return the assignment of a pod set."""
        return next(one for one in self.pod_sets if one.name == name)

    def set_mode(self, mode: Mode) -> None:
        """Give the whole assignment one mode."""
        self.fixed_mode = mode
        for one in self.pod_sets:
            one.set_mode(mode)

    def needing_preemption(self) -> frozenset[str]:
        """Return the columns that are had by preemption only."""
        return frozenset(
            column(choice.flavor, resource)
            for one in self.pod_sets
            for resource, choice in one.flavors.items()
            if choice.mode is Mode.PREEMPT
        )

    def flavors(self) -> dict[str, dict[str, str]]:
        """Return the flavors by pod set and resource."""
        return {
            one.name: {resource: choice.flavor for resource, choice in one.flavors.items()}
            for one in self.pod_sets
        }

    def as_status(self) -> tuple[AssignedPodSet, ...]:
        """Return the assignment as it is written to the workload's status."""
        return tuple(
            AssignedPodSet(
                one.name,
                {resource: choice.flavor for resource, choice in one.flavors.items()},
                {name: quantity_of(name, one.requests.get(name, 0)) for name in one.flavors},
                one.count,
            )
            for one in self.pod_sets
        )

    def considered(self) -> str:
        """Return the flavors that were tried and were not simply free, as in Kueue's events."""
        parts = []
        for one in self.pod_sets:
            tried = [_shown(a) for a in one.attempts if a.mode is not Mode.FIT or a.borrow]
            if tried:
                parts.append(f"{one.name}: {', '.join(tried)}")
        return " | ".join(parts)


def _shown(attempt: Attempt) -> str:
    words = [
        attempt.mode.text
        if attempt.possibility is None
        else f"preemptionMode={attempt.possibility.text}"
    ]
    if attempt.borrow:
        words.append(f"borrow={attempt.borrow}")
    return f"{attempt.flavor}({';'.join([*words, *attempt.reasons])})"


def total_requests(assignment: Assignment, pod_sets: Iterable[PodSetRequests]) -> dict[str, float]:
    """Return all that a workload takes of its queue, by column, without resources of amount 0.

    A slice that replaces another takes the pods that it has more.
    """
    total: dict[str, float] = {}
    replaced = assignment.replaced.pod_sets if assignment.replaced is not None else ()
    for index, (asked, given) in enumerate(zip(pod_sets, assignment.pod_sets, strict=True)):
        count = asked.count - replaced[index].count if replaced else given.count
        for resource, amount in asked.scaled_to(count).requests.items():
            if amount and resource in given.flavors:
                name = column(given.flavors[resource].flavor, resource)
                total[name] = total.get(name, 0) + amount
    return total
