"""What the Queues plugin asks a policy: one system's rules for one tree of queues."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Protocol

import msgspec

from bayplan import NodeView, Overdue, PodInfo, Reject, Unit
from bayplan.api.podgroup import UnschedulableReason
from bayplan.cluster.protocol import PatchAnnotations, PatchStatus
from bayplan.queues.ledger import Ledger
from bayplan.queues.report import PendingJob, amount_text
from bayplan.queues.tree import AmountRows

__all__ = [
    "AdmitsGroups",
    "AdmitsJobs",
    "AssignsNodes",
    "BoundByNodes",
    "EvictionCandidates",
    "EvictionPlan",
    "LendsToElasticJobs",
    "MayLeaveAdmission",
    "Moves",
    "Policy",
    "ProtectsNewJobs",
    "QuotaRefusal",
    "RequeuesJobs",
    "ReservesQuota",
    "Step",
    "TellsReasons",
]

Step = Sequence[PodInfo]
"""Pods that are evicted together: one surplus pod of an elastic job, or all that is left of it."""


class QuotaRefusal(msgspec.Struct, frozen=True):
    """Why a queue does not take a job: what is missing of one resource.

    ``queue`` is the job's, ``ancestor`` the one that refuses (the queue itself or above it).
    ``bound`` names what is exceeded, such as "limit" or "quota". Amounts in units of the resource,
    CPU in milli-CPU. ``title`` is what people call the ancestor, "" for its name.
    """

    queue: str
    ancestor: str
    resource: str
    bound: str
    most: float
    used: float
    requested: float
    title: str = ""

    @property
    def missing(self) -> float:
        """How much more the queue would have to offer."""
        return self.used + self.requested - self.most

    def __str__(self) -> str:
        where = self.title or f'queue "{self.queue}"'
        if self.ancestor != self.queue and not self.title:
            where += f' (ancestor "{self.ancestor}")'
        asked, used, most, missing = (
            amount_text(self.resource, value)
            for value in (self.requested, self.used, self.most, self.missing)
        )
        return (
            f"{where}: {self.bound} of {self.resource} exceeded: {asked} requested, "
            f"{used} of {most} used, {missing} missing"
        )


class EvictionPlan(msgspec.Struct, frozen=True):
    """Whom to evict for a unit, step by step, the unit's nodes, and where victims fit elsewhere.

    ``reasons`` is what victims, by key, are reported.
    """

    steps: tuple[Step, ...]
    nodes: Mapping[str, str]
    moves: Mapping[str, str] = msgspec.field(default_factory=dict)
    reasons: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def victims(self) -> list[PodInfo]:
        """All pods that go."""
        return [pod for step in self.steps for pod in step]


class Moves(Enum):
    """Whether evicted pods are placed again in the same trial."""

    NONE = "none"
    ALLOWED = "allowed"
    """Those that fit elsewhere are moved, the others are evicted."""
    REQUIRED = "required"
    """All have to fit elsewhere."""


class EvictionCandidates(Protocol):
    """Who may be evicted for one unit by one action, in what order."""

    moves: Moves
    leaving_count: bool
    """Whether pods count against their queues until they have left."""

    def steps(self) -> Iterator[Step]:
        """Yield the next victims. Called within a trial in which those before are gone already,

        so that the ledger shows what their queues would have left.
        """

    def accepts(self, victims: Sequence[Step]) -> bool:
        """Tell whether these victims may go; the unit is placed and they are gone in the trial."""


class Policy(Protocol):
    """The rules of one system for one tree of queues.

    ``name`` is the policy's, ``system`` that of the dialect, ``ledger`` holds the tree.
    ``actions`` are its ways to preempt, in order.
    """

    name: str
    system: str
    ledger: Ledger
    actions: Sequence[str]

    @property
    def active(self) -> bool:
        """Whether the cluster has any queue of this system."""

    def queue_of(self, pod: PodInfo) -> str | None:
        """Return the name of a pod's queue, None for a pod that is not of this system."""

    def gate(self, pod: PodInfo, queue: str) -> str | None:
        """Return why a pod may not be tried at all: its queue is missing, closed, or broken."""

    def admit(self) -> None:
        """Admit what waits for a queue, with or without pods, by writing to its objects."""

    def order(self, unit: Unit, added: float) -> tuple[float, ...]:
        """Return a unit's key in the line of its queue; ``added`` in seconds."""

    def next_queue(self, heads: Mapping[str, Unit], action: str) -> str | None:
        """Return the queue, by name, whose first unit is tried next; None for none."""

    def turn(self, unit: Unit) -> Sequence[PodInfo] | None:
        """Return the pods of a unit that are placed in this cycle; None for all."""

    def refusal(self, unit: Unit) -> QuotaRefusal | str | None:
        """Return why a unit would exceed its queue, or an ancestor of it; None if it does not."""

    def overrun(self, pod: PodInfo) -> QuotaRefusal | str | None:
        """Return what is exceeded now that the ledger counts a pod as used; None for nothing."""

    def fair(self) -> AmountRows:
        """Return what each queue may have now, in the ledger's rows and columns."""

    def may_preempt(self, unit: Unit, action: str) -> bool:
        """Tell whether an action may help a unit; cheap, and False only if it cannot."""

    def plan(self, unit: Unit, action: str) -> EvictionCandidates | EvictionPlan | str | None:
        """Return whom to evict for a unit; a text says why nobody may be; None for nobody.

        A system whose own order of trials decides returns the plan itself.
        """

    def overdue(self) -> Overdue | None:
        """Return pods to evict though no unit waits for their nodes; None for none."""

    def statuses(self) -> Iterable[PatchStatus | PatchAnnotations]:
        """Return what the objects of the queues should say of them now."""


class TellsReasons(ABC):
    """A policy whose system has words for why a queue does not take a pod group."""

    @abstractmethod
    def unschedulable_reason(self, unit: Unit) -> UnschedulableReason | None:
        """Return why the queue of a pending unit does not take it; None if it does."""


class AdmitsJobs(ABC):
    """A policy that admits jobs, also before they have pods, and keeps their line itself."""

    @abstractmethod
    def units_of_job(self, kind: str, key: str) -> Sequence[Unit]:
        """Return the pods that a job would have, if it waits for a queue; none if not."""

    @abstractmethod
    def pending_jobs(self, queue: str) -> Sequence[PendingJob]:
        """Return the jobs that wait for admission to a queue, the next one first."""

    @abstractmethod
    def pending_name(self, pod: PodInfo) -> str:
        """Return what a pod's job is called in the line."""

    @abstractmethod
    def faults(self) -> Mapping[str, str]:
        """Return why queues take no jobs that nobody has stopped, by name."""

    @abstractmethod
    def job_counts(self) -> Mapping[str, tuple[int, int]]:
        """Return how many jobs wait, and how many are admitted, by queue."""

    @abstractmethod
    def shortfall(self, unit: Unit) -> QuotaRefusal | None:
        """Return what its queue lacks most for a unit; None if no quota is missing."""

    @abstractmethod
    def until_admitted(self, unit: Unit, jobs: Sequence[Sequence[PodInfo]]) -> int:
        """Return how many running jobs have to end, in order, for it to be admitted; 0 if never."""


class AdmitsGroups(ABC):
    """A policy that admits pod groups by writing it into their objects."""

    @abstractmethod
    def is_admitted(self, group: str) -> bool:
        """Tell whether a group, by key, was admitted though its object may not say so yet."""


class ReservesQuota(ABC):
    """A policy that reserves quota for jobs before their pods have nodes."""

    @abstractmethod
    def reserved(self) -> AmountRows:
        """Return what is reserved in each queue, in the ledger's rows and columns."""


class MayLeaveAdmission(ABC):
    """A policy of a system with controllers of its own, to which it may leave admission."""

    @property
    @abstractmethod
    def has_queues(self) -> bool:
        """Whether the cluster has any queue of this system, whoever decides on them."""

    @property
    @abstractmethod
    def left_to(self) -> str:
        """Who decides instead, in words; "" where the policy does."""

    @abstractmethod
    def look(self) -> bool:
        """Look who decides now; tell whether that has changed."""

    @abstractmethod
    def on_turn(self, listener: Callable[[], None]) -> None:
        """Tell a listener whenever a look has changed who decides."""


class RequeuesJobs(ABC):
    """A policy that takes back the quota of jobs that lost their nodes."""

    @abstractmethod
    def requeue(self, pod: PodInfo, why: str) -> bool:
        """Let the job of a pod wait in its queue again; tell whether it does or will.

        Its pods end by that.
        """


class LendsToElasticJobs(ABC):
    """A policy whose jobs wait for quota that elastic jobs may have beyond their minimum."""

    @abstractmethod
    def admitted_without(self, pods: Sequence[PodInfo], job: str) -> str | None:
        """Return the first job that would be admitted without some pods; None for none.

        :param pods: pods of elastic jobs, which have no node in the running trial.
        :param job: the only job to ask for; "" for any.
        """


class ProtectsNewJobs(ABC):
    """A policy that protects jobs from eviction for a while after they started."""

    @abstractmethod
    def safe_for(self, pod: PodInfo, queue: str) -> float:
        """Return for how many more seconds the job of a pod is safe; 0 if it is not."""


class BoundByNodes(ABC):
    """A policy whose queues may have no more than a share of what the nodes have."""

    @abstractmethod
    def is_within_own_limits(self, unit: Unit) -> bool:
        """Tell whether a unit keeps within what its queue, and those above it, state themselves."""


class AssignsNodes(ABC):
    """A policy that assigns jobs to a part of the nodes."""

    @abstractmethod
    def node_labels(self, pod: PodInfo) -> Mapping[str, str]:
        """Return the labels that a pod's nodes have to have; none for any node."""


class KeepsOffNodes(ABC):
    """A policy that keeps pods off some nodes, in its queues or not."""

    @abstractmethod
    def node_kind(self, pod: PodInfo) -> Hashable:
        """Return what tells apart the pods that are kept off other nodes; None for none."""

    @abstractmethod
    def refused_nodes(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes to a pod whose ``node_kind`` is not None."""
