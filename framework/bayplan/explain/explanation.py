"""Why a pod is where it is, or why it is pending and what would help: as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.api import KueueWorkload, Pod
from bayplan.api.pod import DEFAULT_SCHEDULER
from bayplan.errors import PluginError, did_you_mean
from bayplan.explain.lone_workload import state_of
from bayplan.explain.options import Suggestion
from bayplan.explain.placement import Placement, placement_of, unit_of
from bayplan.explain.suggestions import Diagnosis
from bayplan.gangs.completeness import has_minimum
from bayplan.naming import counted, short_key
from bayplan.plugin.base import DomainState, DomainTrial, PreemptionTrial, Unit
from bayplan.plugin.decision import Decision, Finalist, PodDecision
from bayplan.queues.held_jobs import WORKLOAD, HeldJobs
from bayplan.queues.report import QueuePosition
from bayplan.scheduler.active_profiles import ActiveProfile
from bayplan.scheduler.scheduler import Scheduler
from bayplan.snapshot import PodInfo, problem_lines

__all__ = [
    "Explanation",
    "Filtered",
    "JobExplanation",
    "counted",
    "domain_lines",
    "explain",
    "explain_job",
    "short_key",
    "why_pending",
]

_MANY_DOMAINS = 12
_MOST_PROBLEMS = 8


class Filtered(msgspec.Struct, frozen=True):
    """A plugin that removed nodes: how many, how many were left, and the reasons with counts."""

    plugin: str
    removed: int
    left: int
    reasons: Sequence[tuple[int, str]]


class Explanation(msgspec.Struct, frozen=True):
    """Everything that is known about one pod's placement.

    ``of`` is how many pods this one stands for, and ``placement`` says where they are, if any has a
    node. ``state`` is Running (it has a node), Waiting
    (placed, and held back at Permit or until what is ``awaited`` is ready), Pending or Ended;
    ``simulated`` says that the pod has really no node yet.
    ``decided`` is None when this process did not decide. ``now`` says that filters and finalists
    are those of a decision made now. Times are in seconds of the cluster's clock. ``cost`` is what
    all the pods cost. ``unread`` is what could not be read of the pod's node, or of any node that
    a pending pod might have.
    """

    pod: str
    unit: str
    gang: bool
    state: str
    of: int = 1
    placement: Placement | None = None
    simulated: bool = False
    phase: str = ""
    node: str = ""
    node_exists: bool = True
    message: str = ""
    nominated: str = ""
    decided: float | None = None
    cycle: int | None = None
    now: bool = False
    nodes: int = 0
    feasible: int = 0
    total: float = 0.0
    pre_filter: tuple[str, str] | None = None
    filtered: Sequence[Filtered] = ()
    domain: str = ""
    domains: Sequence[DomainTrial] = ()
    members: int = 1
    preemption: Sequence[PreemptionTrial] = ()
    bottleneck: str = ""
    notes: Sequence[str] = ()
    finalists: Sequence[Finalist] = ()
    suggestions: Sequence[Suggestion] = ()
    broken_plugin: str = ""
    waits_for: Sequence[str] = ()
    waits_until: float | None = None
    awaited: Sequence[str] = ()
    line: QueuePosition | None = None
    cost: str = ""
    unread: Sequence[str] = ()

    @property
    def why(self) -> str:
        """Why it is pending, in one sentence; "" where ``message`` alone says it."""
        return shortfall(self.domains) if self.state == "Pending" else ""

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object without empty fields."""
        plain = {
            "pod": self.pod,
            "unit": self.unit,
            "of": self.of,
            "placement": self.placement.as_json() if self.placement is not None else None,
            "state": self.state,
            "simulated": self.simulated,
            "phase": self.phase,
            "node": self.node,
            "why": self.why,
            "message": self.message,
            "nominatedNode": self.nominated,
            "decidedAt": self.decided,
            "cycle": self.cycle,
            "wouldBeDecidedNow": self.now,
            "nodes": self.nodes,
            "feasible": self.feasible,
            "preFilter": _refusal_json(self.pre_filter),
            "filtered": [
                {
                    "plugin": one.plugin,
                    "removed": one.removed,
                    "left": one.left,
                    "reasons": [{"count": c, "reason": reason} for c, reason in one.reasons],
                }
                for one in self.filtered
            ],
            "domain": self.domain,
            "domains": [_domain_json(trial) for trial in self.domains],
            "preemption": [_filled(msgspec.structs.asdict(trial)) for trial in self.preemption],
            "bottleneck": self.bottleneck,
            "notes": list(self.notes),
            "finalists": [
                {"node": one.node, "total": one.total, "scores": dict(one.scores)}
                for one in self.finalists
            ],
            "suggestions": [_suggestion_json(one) for one in self.suggestions],
            "brokenPlugin": self.broken_plugin,
            "waitsFor": list(self.waits_for),
            "waitsUntil": self.waits_until,
            "awaited": list(self.awaited),
            "line": self.line.as_json() if self.line is not None else None,
            "cost": self.cost,
            "unread": list(self.unread),
        }
        return _filled(plain)


def _refusal_json(refusal: tuple[str, str] | None) -> dict[str, str]:
    return {"plugin": refusal[0], "reason": refusal[1]} if refusal is not None else {}


def _suggestion_json(one: Suggestion) -> dict[str, Any]:
    places = dict(one.places)
    ends = list(one.ends)
    return _filled({"text": one.text, "changes": one.changes, "ends": ends, "places": places})


def _domain_json(trial: DomainTrial) -> dict[str, Any]:
    return _filled(
        {
            "name": trial.name,
            "state": trial.state.value,
            "nodes": trial.nodes,
            "offered": trial.offered,
            "needed": trial.needed,
            "reason": trial.refusal,
        }
    )


def _filled(plain: Mapping[str, Any]) -> dict[str, Any]:
    empty: tuple[object, ...] = (None, "", [], (), {}, False)
    return {
        key: value
        for key, value in plain.items()
        if (isinstance(value, int | float) and not isinstance(value, bool)) or value not in empty
    }


def why_pending(scheduler: Scheduler, pod: Pod) -> str:
    """Return the recorded reason why a pod has no node."""
    condition = next((c for c in pod.status.conditions if c.type == "PodScheduled"), None)
    if scheduler.profile_of(pod) is None:
        name = pod.spec.scheduler_name
        near = "" if name == DEFAULT_SCHEDULER else did_you_mean(name, scheduler.profiles)
        reported = f'no profile schedules pods of schedulerName "{name}"{near}'
        return f"{reported}; that scheduler says: {condition.message}" if condition else reported
    return condition.message if condition is not None else "not tried yet"


# What is known ----------------------------------------------------------------------------


def explain(
    scheduler: Scheduler, pod: Pod, pods: Sequence[Pod] = (), search: bool = True
) -> Explanation:
    """Return why a pod has its node, or why it has none and what would help.

    :param pods: those that the pod stands for, such as those of its job.
    :param search: look for what would help, and for what would be decided now where it is not
        recorded; both take time.
    """
    unit = unit_of(scheduler, pod)
    decision = scheduler.decisions.get(unit)
    own = decision.pods.get(pod.key) if decision is not None else None
    stands_for: dict[str, Any] = {}
    if len(pods) > 1:
        stands_for = {"of": len(pods), "placement": placement_of(scheduler, pods)}
    about = _About(scheduler, pod, unit, decision, own, search, stands_for)
    if pod.status.phase in ("Succeeded", "Failed"):
        return about.ended()
    if pod.spec.node_name:
        return about.placed()
    return about.pending()


class JobExplanation(msgspec.Struct, frozen=True):
    """Why a job has no pods yet: it waits in a queue, suspended, or as a Workload alone.

    ``kind`` and ``job`` (``namespace/name``) name it; ``line`` is its place in the queue, if that
    is there; ``why`` is what holds it back otherwise. ``suggestions`` are what would admit it, each
    tried. ``cost`` is what its pods will cost. ``state`` is Suspended, or for a Workload alone
    Pending, Admitted or Finished.
    """

    kind: str
    job: str
    state: str
    line: QueuePosition | None
    why: str = ""
    suggestions: Sequence[Suggestion] = ()
    cost: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "kind": self.kind,
            "job": self.job,
            "state": self.state,
            "queue": self.line.as_json() if self.line is not None else None,
            "message": self.why,
            "suggestions": [_suggestion_json(one) for one in self.suggestions],
            "cost": self.cost,
        }


def explain_job(scheduler: Scheduler, kind: str, key: str) -> JobExplanation | None:
    """Return why a job has no pods yet; None for one that waits in no queue.

    :raises PluginError: when a plugin raises.
    """
    units = scheduler.queues.units_of_job(kind, key)
    line = scheduler.queues.position(units[0]) if units else None
    profile = scheduler.profile_of(units[0].pods[0].pod) if units else None
    state = "Pending" if kind == WORKLOAD else "Suspended"
    if line is not None and line.refusal and profile is not None:
        found = _diagnosis(scheduler, profile).admit(units, line.change)
        return JobExplanation(kind, key, state, line, suggestions=found)
    held = HeldJobs(scheduler.snapshot).get((kind, key))
    if held is not None:
        return JobExplanation(kind, key, state, line, held.why)
    workload = scheduler.snapshot.objects(KueueWorkload).get(key) if kind == WORKLOAD else None
    if workload is None:
        return None
    state, why = state_of(workload)
    return JobExplanation(kind, key, state, line, why)


class _About(msgspec.Struct):
    """One pod and what the scheduler recorded about it."""

    scheduler: Scheduler
    pod: Pod
    unit: str
    decision: Decision | None
    own: PodDecision | None
    search: bool = True
    _fields: dict[str, Any] = msgspec.field(default_factory=dict)

    def ended(self) -> Explanation:
        """The pod has ended; it may have had a node."""
        if self.pod.spec.node_name:
            self._choice()
        return self._made("Ended")

    def placed(self) -> Explanation:
        """The pod has a node."""
        name = self.pod.spec.node_name
        self._fields["node_exists"] = name in self.scheduler.snapshot.nodes.row_of
        self._choice()
        self._unread([name])
        return self._made("Running")

    def pending(self) -> Explanation:
        """The pod has no node, or one that it may not be bound to yet."""
        status = self.pod.status
        message = why_pending(self.scheduler, self.pod)
        self._fields |= {"message": message, "nominated": status.nominated_node_name}
        waiting = self.scheduler.waiting(self.unit)
        if waiting is not None:
            self._fields |= {
                "node": waiting.nodes.get(self.pod.key, ""),
                "waits_for": tuple(waiting.plugins),
                "waits_until": waiting.deadline,
            }
            self._choice()
            return self._made("Waiting")
        if self._prepares():
            self._choice()
            return self._made("Waiting")
        if self.own is not None:
            self._refusals(self.own)
        if self.decision is not None:
            self._fields["domains"] = self.decision.domains
            self._fields["preemption"] = self.decision.preemption
            self._fields["bottleneck"] = _bottleneck(self.decision)
        self._unread()
        if self.search:
            self._line()
        line: QueuePosition | None = self._fields.get("line")
        if not self.search:
            return self._made("Pending")
        if line is None or not line.refusal:
            self._suggest()
        else:
            self._admit(line.change)
        return self._made("Pending")

    def _unread(self, nodes: Sequence[str] | None = None) -> None:
        """Add what could not be read of nodes (None: of all), for a pod that it may concern."""
        if not self.search:
            return
        info = PodInfo(self.pod)
        if info.facts.wants_devices or self.pod.metadata.annotations:
            lines = problem_lines(self.scheduler.snapshot.unread(), nodes)
            self._fields["unread"] = tuple(lines[:_MOST_PROBLEMS])

    def _prepares(self) -> bool:
        """Add what has to be ready before the pod is bound; tell whether there is anything."""
        try:
            awaited = self.scheduler.awaited(self.unit)
        except PluginError as exc:
            self._fields["broken_plugin"] = str(exc)
            return False
        if not awaited or self.own is None:
            return False
        now = self.scheduler.now
        self._fields |= {
            "node": self.own.node or "",
            "awaited": tuple(
                f"{one.missing}, since {now - one.since:.0f} s, limit {one.limit:.0f} s"
                for one in awaited
            ),
        }
        return True

    def _line(self) -> None:
        """Add where the pod's unit stands in its queue."""
        info = self.scheduler.snapshot.living.get(self.pod.key)
        unit = self.scheduler.pending_unit(self.unit)
        if unit is None and info is not None and info.key not in self.scheduler.snapshot.placed:
            unit = Unit(self.unit, [info])
        if unit is None:
            return
        try:
            self._fields["line"] = self.scheduler.queues.position(unit)
        except PluginError as exc:
            self._fields["broken_plugin"] = str(exc)

    def _made(self, state: str) -> Explanation:
        decision = self.decision
        fields: dict[str, Any] = {
            "node": self.pod.spec.node_name,
            "phase": self.pod.status.phase,
            "members": len(decision.pods) if decision is not None else 1,
        }
        advice = self.scheduler.gang_advice(self.pod)
        if advice:
            self._fields["notes"] = (*self._fields.get("notes", ()), advice)
        gang = self.unit in self.scheduler.gangs.all() or fields["members"] > 1
        return Explanation(self.pod.key, self.unit, gang, state, **{**fields, **self._fields})

    def _choice(self) -> None:
        """Add why the pod has its node: as it was decided, or would be decided now."""
        decision, own = self.decision, self.own
        if decision is None or own is None or own.node is None:
            self._as_of_now()
            return
        self._fields |= {
            "decided": decision.at,
            "cycle": decision.cycle,
            "domain": decision.domain or "",
            "domains": decision.domains,
            "preemption": decision.preemption,
            "notes": own.notes,
            "total": own.total,
        }
        if own.finalists:
            self._refusals(own)
            self._fields["finalists"] = own.finalists
        else:
            self._as_of_now()

    def _as_of_now(self) -> None:
        """Add what would be decided if the pod were placed again now."""
        profile = self.scheduler.profile_of(self.pod)
        if profile is None or not self.search:
            return
        snapshot = self.scheduler.snapshot
        with snapshot.trial():
            held = snapshot.placed.get(self.pod.key)
            free = replace(self.pod, spec=replace(self.pod.spec, node_name=""))
            info = held[0].changed(free) if held is not None else PodInfo(free)
            if held is not None:
                snapshot.remove_pod(self.pod.key)
            try:
                found = profile.evaluator.evaluate(info)
            except PluginError as exc:
                self._fields["broken_plugin"] = str(exc)
                return
            own = found.describe(snapshot.nodes.names, finalists=True)
            row = snapshot.nodes.row_of.get(self._fields.get("node") or self.pod.spec.node_name)
            if row is not None and len(found.total):
                self._fields["total"] = float(found.total[row])
        self._refusals(own)
        self._fields |= {"finalists": own.finalists, "now": True}

    def _refusals(self, own: PodDecision) -> None:
        left, filtered = own.nodes, []
        for plugin, removed in own.removed:
            left -= removed
            counts: dict[str, int] = {}
            for by, reason, count in own.refused:
                if by == plugin:
                    counts[reason] = counts.get(reason, 0) + count
            reasons = tuple((count, reason) for reason, count in counts.items())
            filtered.append(Filtered(plugin, removed, left, reasons))
        self._fields |= {
            "nodes": own.nodes,
            "feasible": own.feasible,
            "pre_filter": own.pre_filter,
            "filtered": tuple(filtered),
        }

    def _gated(self) -> str:
        """Say which gated members keep back a gang whose other members are too few."""
        queued = self.scheduler.queue.units.get(self.unit)
        gang = self.scheduler.gangs.all().get(self.unit)
        if queued is None or gang is None or gang.gang is None:
            return ""
        held = [reason for _, reason in queued.gated.values()]
        # When all members are gated, the gang's own gate says why.
        if not held or len(held) == len(gang.pending):
            return ""
        if not has_minimum(gang.gang, gang.present):
            return ""
        return f"would be tried once {_counted_members(len(held))} no longer held back: {held[0]}"

    def _admit(self, change: str) -> None:
        """Add what would admit a pod that its queue holds back, and let it run."""
        profile = self.scheduler.profile_of(self.pod)
        unit = self.scheduler.pending_unit(self.unit) if profile is not None else None
        if profile is None or unit is None:
            return
        try:
            found = _diagnosis(self.scheduler, profile).admit([unit], change)
        except PluginError as exc:
            self._fields["broken_plugin"] = str(exc)
            return
        self._fields["suggestions"] = tuple(found)

    def _suggest(self) -> None:
        profile = self.scheduler.profile_of(self.pod)
        unit = self.scheduler.pending_unit(self.unit) if profile is not None else None
        if profile is None or unit is None:
            return
        gated = self._gated()
        if gated:
            self._fields["suggestions"] = (Suggestion(gated),)
            return
        try:
            self._fields["suggestions"] = tuple(
                _diagnosis(self.scheduler, profile).suggest(unit, self.scheduler.now)
            )
        except PluginError as exc:
            self._fields["broken_plugin"] = str(exc)


def _counted_members(number: int) -> str:
    return f"{number} member{'s'[: number != 1]} {'is' if number == 1 else 'are'}"


def _diagnosis(scheduler: Scheduler, profile: ActiveProfile) -> Diagnosis:
    return Diagnosis(profile.runtime, profile.evaluator, profile.cycle, scheduler.snapshot)


def _bottleneck(decision: Decision) -> str:
    """Name the member of a gang with the fewest feasible nodes, if members differ in that."""
    tightest = min(decision.pods.values(), key=lambda own: own.feasible, default=None)
    if tightest is None or tightest.feasible == max(o.feasible for o in decision.pods.values()):
        return ""
    nodes = f"{tightest.feasible} of {counted(tightest.nodes, 'node')}"
    return f"{tightest.pod}: {nodes} can take it"


def shortfall(domains: Sequence[DomainTrial]) -> str:
    """Return in one sentence that no domain has room for a unit; "" if that is not the reason."""
    best = max(domains, key=lambda one: one.offered or 0, default=None)
    short = (one.state is DomainState.REFUSED and one.offered is not None for one in domains)
    if best is None or best.offered is None or best.offered >= best.needed or not all(short):
        return ""
    needed = counted(best.needed, "pod")
    layer, _, name = best.name.rpartition("/")
    if not layer:
        return f"The {name} has room for {best.offered} of {needed}."
    return f"No {layer} has room for {needed}; the best, {name}, has room for {best.offered}."


def domain_lines(domains: Sequence[DomainTrial], size: int) -> list[str]:
    """Return a line for each domain that was considered for a unit of ``size`` pods."""
    lines = []
    for trial in domains:
        offers = "" if trial.offered is None else f"offers {counted(trial.offered, 'slot')}"
        over = f"{max(0, (trial.offered or size) - size)} left over"
        fits = ", ".join(part for part in (offers, over) if part)
        if trial.state in (DomainState.CHOSEN, DomainState.NOT_USED):
            lines.append(f"{trial.state.value:<9} {trial.name}: {fits}")
        else:
            # The refusal of a domain that offers too few says so.
            short = trial.offered is not None and trial.offered < trial.needed
            why = ", ".join(part for part in ("" if short else offers, trial.refusal) if part)
            lines.append(f"{trial.state.value:<9} {trial.name}: {why}")
    hidden = len(lines) - _MANY_DOMAINS
    if hidden > 1:
        lines = [*lines[:_MANY_DOMAINS], f"… {hidden} more domains"]
    return lines
