"""The search for flavors: for each group of resources the first flavor that a queue prefers.

The rules are Kueue's (pkg/scheduler/flavorassigner). Pod sets are served in order; each counts what
those before it were given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from bayplan.api.kueue import PodSet, ResourceFlavor, ResourceGroup
from bayplan.api.meta import ObjectMeta
from bayplan.api.node import Node, Taint
from bayplan.api.nodeselection import selects
from bayplan.api.pod import NodeSelector, NodeSelectorTerm, PodSpec
from bayplan.api.tolerations import tolerated
from bayplan_plugins.queues.kueue.amounts import column, quantity_text
from bayplan_plugins.queues.kueue.conditions import Reason
from bayplan_plugins.queues.kueue.flavor_assignment import (
    Assignment,
    Attempt,
    FlavorChoice,
    Mode,
    PodSetAssignment,
    Possibility,
    Way,
    goes_on,
    most_severe,
    preferred,
    severity,
)
from bayplan_plugins.queues.kueue.settings import Settings
from bayplan_plugins.queues.kueue.snapshot import QueueView, Snapshot
from bayplan_plugins.queues.kueue.workloads import PodSetRequests, WorkloadInfo

__all__ = ["ALLOWED_FLAVORS", "FlavorSearch", "Oracle"]

ALLOWED_FLAVORS = "kueue.x-k8s.io/workload-allowed-resource-flavors"
"""Names the flavors, separated by commas, that a variant of a workload may get."""

Oracle = Callable[[WorkloadInfo, str, float], Way]
"""How an amount of a column could be had by preemption."""


def _nobody(workload: WorkloadInfo, name: str, amount: float) -> Way:
    return Way(Possibility.NO_CANDIDATES)


_WORST = Way(Possibility.NO_FIT, 2**31)
_BEST = Way(Possibility.FIT)


class _Finding(msgspec.Struct):
    """What the search of one resource group found."""

    flavors: dict[str, FlavorChoice] = msgspec.field(default_factory=dict)
    reasons: list[str] = msgspec.field(default_factory=list)
    attempts: list[Attempt] = msgspec.field(default_factory=list)
    no_fit_reason: str = ""


class _Group(msgspec.Struct):
    """Pod sets that get the same flavors: one, or those of a pod set group."""

    indexes: list[int]
    pod_sets: list[PodSetRequests]

    def requests(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for one in self.pod_sets:
            for name, amount in one.requests.items():
                total[name] = total.get(name, 0) + amount
        return total


class FlavorSearch:
    """Finds the flavors of one workload.

    :param oracle: asked where quota is there but in use; by default nobody can be preempted.
    :param replaced: the workload slice that the workload replaces; it keeps that one's flavors.
    """

    def __init__(
        self,
        workload: WorkloadInfo,
        snapshot: Snapshot,
        settings: Settings,
        oracle: Oracle = _nobody,
        replaced: WorkloadInfo | None = None,
    ) -> None:
        self._workload = workload
        self._snapshot = snapshot
        self._settings = settings
        self._oracle = oracle
        self._replaced = replaced
        self._queue: QueueView = snapshot.queues[workload.queue]

    def assign(self, counts: Sequence[int] | None = None) -> Assignment:
        """Return the best assignment, of fewer pods with ``counts`` by pod set."""
        sets = list(self._workload.pod_sets)
        if counts is not None:
            sets = [one.scaled_to(n) for one, n in zip(sets, counts, strict=True)]
        if "pods" in self._queue.group_of:
            sets = [_counting_pods(one) for one in sets]
        assignment = Assignment(replaced=self._replaced)
        tried: list[dict[str, int]] = []
        for group in self._grouped(sets):
            found = self._assign_group(group, assignment.usage)
            failed = False
            for asked in group.pod_sets:
                given = _given(asked, found)
                assignment.pod_sets.append(given)
                tried.append(self._record(assignment, asked, given))
                failed |= given.mode is Mode.NO_FIT
            if failed:
                break
        assignment.last_tried = tuple(tried)
        if assignment.mode is not Mode.NO_FIT:
            self._check_topologies(assignment)
        self._explain(assignment)
        return assignment

    def columns(self) -> frozenset[str]:
        """Return the columns that the workload may take, whatever is left; none if it has none."""
        found: set[str] = set()
        sets = list(self._workload.pod_sets)
        if "pods" in self._queue.group_of:
            sets = [_counting_pods(one) for one in sets]
        for group in self._grouped(sets):
            for resource in (name for name, amount in group.requests().items() if amount):
                covered = self._queue.group_of.get(resource)
                flavors = covered.flavors if covered is not None else ()
                fitting = [one.name for one in flavors if not self._mismatch(group, one.name)]
                if not fitting and not (covered is None and self._settings.ignore_undeclared):
                    return frozenset()
                found |= {column(name, resource) for name in fitting}
        return frozenset(found)

    def _grouped(self, sets: Sequence[PodSetRequests]) -> list[_Group]:
        groups: dict[str, _Group] = {}
        for index, (asked, pod_set) in enumerate(
            zip(sets, self._workload.workload.spec.pod_sets, strict=True)
        ):
            topology = pod_set.topology_request
            name = topology.pod_set_group_name if topology is not None else ""
            group = groups.setdefault(name or f"#{index}", _Group([], []))
            group.indexes.append(index)
            group.pod_sets.append(asked)
        return list(groups.values())

    def _assign_group(self, group: _Group, usage: Mapping[str, float]) -> _Finding:
        """Find flavors for all resources of pod sets that go together."""
        total = _Finding()
        attempts: dict[str, Attempt] = {}
        requests = group.requests()
        for resource in sorted(requests):
            if resource in total.flavors:
                continue
            covered = self._queue.group_of.get(resource)
            if covered is None:
                if not requests[resource] or self._settings.ignore_undeclared:
                    continue
                total.flavors = {}
                total.attempts = [attempts[name] for name in sorted(attempts)]
                total.reasons = [f"resource {resource} unavailable in ClusterQueue"]
                total.no_fit_reason = Reason.NO_FLAVOR
                return total
            found = self._find(group, requests, resource, covered, usage)
            _merge(attempts, found.attempts, resource, covered)
            if not found.flavors:
                found.attempts = [attempts[name] for name in sorted(attempts)]
                return found
            total.flavors.update(found.flavors)
            total.reasons += found.reasons
        total.attempts = [attempts[name] for name in sorted(attempts)]
        return total

    def _find(
        self,
        group: _Group,
        requests: Mapping[str, float],
        resource: str,
        covered: ResourceGroup,
        usage: Mapping[str, float],
    ) -> _Finding:
        """Try the flavors of a resource group in order, from where the last attempt ended."""
        asked = {n: a for n, a in sorted(requests.items()) if n in covered.covered_resources}
        fungibility = self._queue.fungibility
        result = _Finding()
        best, best_way, last = dict[str, FlavorChoice](), _WORST, -1
        for index in range(self._first(group.indexes[0], resource), len(covered.flavors)):
            flavor, last = covered.flavors[index].name, index
            refused = self._refusal(group, flavor, resource, result)
            if refused:
                continue
            choices, way, attempt = self._try(group, flavor, asked, usage, result.reasons)
            result.attempts.append(attempt)
            if not goes_on(way, fungibility):
                best, best_way = choices, way
                break
            if preferred(way, best_way, fungibility):
                best, best_way = choices, way
        for choice in best.values():
            choice.tried = -1 if last == len(covered.flavors) - 1 else last
        result.flavors = best
        if best_way.possibility is Possibility.FIT:
            result.reasons = []
        return result

    def _first(self, index: int, resource: str) -> int:
        """Return the index of the flavor to begin with."""
        tried = self._workload.last_tried
        if tried is None or index >= len(tried):
            return 0
        return tried[index].get(resource, -1) + 1

    def _refusal(self, group: _Group, flavor: str, resource: str, result: _Finding) -> bool:
        """Tell whether a flavor is out of the question, and note why."""
        nominated = self._workload.nominated
        pod_sets = self._workload.workload.spec.pod_sets
        if nominated and not any(
            nominated.get(pod_sets[index].name, {}).get(resource) == flavor
            for index in group.indexes
        ):
            text = f"skipping flavor {flavor} as it is not found in the nomination mapping"
            result.reasons.append(f"{text} for resource {resource}")
            return True
        allowed = self._workload.workload.metadata.annotations.get(ALLOWED_FLAVORS)
        if self._settings.concurrent_admission and allowed is not None:
            if flavor not in [name.strip() for name in allowed.split(",")]:
                result.reasons.append(
                    f"skipping flavor {flavor} due to WorkloadAllowedResourceFlavorAnnotation "
                    "annotation"
                )
                return True
        problem = self._mismatch(group, flavor)
        if problem:
            result.reasons.append(problem)
            reason = str(Reason.NO_FLAVOR)
            result.attempts.append(
                Attempt(flavor, Mode.NO_FIT, reasons=(problem,), no_fit_reason=reason)
            )
        return bool(problem)

    # One flavor --------------------------------------------------------------------------

    def _try(
        self,
        group: _Group,
        flavor: str,
        asked: Mapping[str, float],
        usage: Mapping[str, float],
        reasons: list[str],
    ) -> tuple[dict[str, FlavorChoice], Way, Attempt]:
        """Return how all resources of a group get one flavor; adds why they do not."""
        choices: dict[str, FlavorChoice] = {}
        worst, borrow, why = _BEST, 0, ""
        own: list[str] = []
        for resource, amount in asked.items():
            amount, mismatch = self._beyond_replaced(group, flavor, resource, amount)
            if mismatch:
                own.append(mismatch)
                worst, why = _WORST, most_severe(why, Reason.NO_FLAVOR)
            name = column(flavor, resource)
            way, text, reason = self._quota(name, resource, usage.get(name, 0), amount)
            if text:
                own.append(text)
                why = most_severe(why, reason)
            borrow = max(borrow, way.borrow)
            if preferred(worst, way, self._queue.fungibility):
                worst = way
            if worst.possibility is not Possibility.NO_FIT:
                choices[resource] = FlavorChoice(flavor, way.possibility.mode, way.borrow)
        reasons += own
        possibility = worst.possibility
        inexact = possibility in (Possibility.NO_FIT, Possibility.FIT)
        attempt = Attempt(
            flavor,
            possibility.mode,
            borrow,
            None if inexact else possibility,
            tuple(sorted(set(own))),
            why,
        )
        return choices, worst, attempt

    def _beyond_replaced(
        self, group: _Group, flavor: str, resource: str, amount: float
    ) -> tuple[float, str]:
        """Return what is needed beyond the replaced slice, and what forbids the flavor."""
        if self._replaced is None:
            return amount, ""
        for index in group.indexes:
            old = self._replaced.pod_sets[index]
            kept = old.flavors.get(resource, "")
            if kept != flavor:
                text = f"could not assign {flavor} flavor since the original workload is assigned"
                return amount, f"{text}: {kept}"
            amount -= old.requests.get(resource, 0)
        return amount, ""

    def _quota(
        self, name: str, resource: str, before: float, amount: float
    ) -> tuple[Way, str, str]:
        """Return how an amount of a column can be had, and the text and reason if it is not free.

        :param before: what pod sets before this one were given.
        """
        forest, row = self._snapshot.forest, self._queue.row
        flavor = name.partition("/")[0]
        needed, most = before + amount, forest.potential(row, name)
        if needed > most:
            text = (
                f"insufficient quota for {resource} in flavor {flavor}, previously considered "
                f"podsets requests ({quantity_text(resource, before)}) + current podset request "
                f"({quantity_text(resource, amount)}) > maximum capacity "
                f"({quantity_text(resource, most)})"
            )
            return Way(Possibility.NO_FIT), text, Reason.EXCEEDS_QUOTA
        borrow, reclaimable = forest.borrow_height(row, name, needed)
        available = forest.available(row, name)
        if needed <= available:
            return Way(Possibility.FIT, borrow), "", ""
        more = quantity_text(resource, needed - available)
        text = f"insufficient unused quota for {resource} in flavor {flavor}, {more} more needed"
        if forest.nominal(row, name) >= needed or reclaimable or self._preempts_borrowing():
            return self._oracle(self._workload, name, needed), text, ""
        return Way(Possibility.NO_FIT, borrow), text, Reason.WAITING_FOR_QUOTA

    def _preempts_borrowing(self) -> bool:
        policies = self._queue.preemption
        borrow = policies.borrow_within_cohort
        if borrow is not None and borrow.policy != "Never":
            return True
        return self._settings.fair_sharing and policies.reclaim_within_cohort != "Never"

    # Nodes -------------------------------------------------------------------------------

    def _mismatch(self, group: _Group, name: str) -> str:
        """Return why the nodes of a flavor do not suit the pods; empty if they do."""
        flavor = self._snapshot.flavors.get(name)
        if flavor is None:
            return f"flavor {name} not found"
        for index in group.indexes:
            pod_set = self._workload.workload.spec.pod_sets[index]
            problem = self._topology_mismatch(pod_set, flavor)
            if problem:
                return problem
            spec = pod_set.template.spec
            taint = _untolerated(spec, flavor)
            if taint is not None:
                return f"untolerated taint {_taint_text(taint)} in flavor {name}"
            if not _matches(spec, flavor.spec.node_labels):
                return f"flavor {name} doesn't match node affinity"
        return ""

    def _topology_mismatch(self, pod_set: PodSet, flavor: ResourceFlavor) -> str:
        named = f'Flavor "{flavor.metadata.name}"'
        if _asks_for_topology(pod_set):
            text = f"{named} does not support TopologyAwareScheduling"
            return "" if flavor.spec.topology_name else text
        if flavor.spec.topology_name and not self._only_topologies():
            return f"{named} supports only TopologyAwareScheduling"
        return ""

    def _only_topologies(self) -> bool:
        """Tell whether all flavors of the queue have a topology, so all pods go by it."""
        groups = self._queue.spec.spec.resource_groups
        flavors = [self._snapshot.flavors.get(f.name) for group in groups for f in group.flavors]
        return all(flavor is not None and flavor.spec.topology_name for flavor in flavors)

    def _check_topologies(self, assignment: Assignment) -> None:
        """Refuse a pod set that asks for a topology and got flavors of several."""
        for given, pod_set in zip(
            assignment.pod_sets, self._workload.workload.spec.pod_sets, strict=True
        ):
            if not _asks_for_topology(pod_set):
                continue
            named = sorted({choice.flavor for choice in given.flavors.values()})
            if len(named) > 1:
                given.error = f"more than one flavor with a topology assigned: {', '.join(named)}"

    # Result ------------------------------------------------------------------------------

    def _record(
        self, assignment: Assignment, asked: PodSetRequests, given: PodSetAssignment
    ) -> dict[str, int]:
        """Count what a pod set was given; return the flavors that were tried last."""
        old: Mapping[str, float] = {}
        if self._replaced is not None:
            matching = [one for one in self._replaced.pod_sets if one.name == given.name]
            old = matching[0].requests if matching else {}
        for resource, choice in given.flavors.items():
            assignment.borrow = max(assignment.borrow, choice.borrow)
            name = column(choice.flavor, resource)
            more = asked.requests.get(resource, 0) - old.get(resource, 0)
            assignment.usage[name] = assignment.usage.get(name, 0) + more
        return {resource: choice.tried for resource, choice in given.flavors.items()}

    def _explain(self, assignment: Assignment) -> None:
        """Set the reason for an assignment that does not fit.

        Of the flavors of a group the one that is nearest counts, of groups and pod sets the worst.
        """
        if assignment.mode is not Mode.NO_FIT:
            return
        overall = ""
        for one in assignment.pod_sets:
            if one.mode is not Mode.NO_FIT or one.error:
                continue
            if not one.attempts:
                overall = most_severe(overall, Reason.NO_FLAVOR)
                continue
            nearest: dict[int, str] = {}
            for number, attempt in enumerate(one.attempts):
                if attempt.mode is not Mode.NO_FIT:
                    continue
                for group in self._groups_with(attempt.flavor) or [-1 - number]:
                    known = nearest.get(group)
                    if known is None or severity(attempt.no_fit_reason) < severity(known):
                        nearest[group] = attempt.no_fit_reason
            reason = one.no_fit_reason
            for other in nearest.values():
                reason = most_severe(reason, other)
            overall = most_severe(overall, reason)
        assignment.no_fit_reason = overall

    def _groups_with(self, flavor: str) -> list[int]:
        groups = self._queue.spec.spec.resource_groups
        return [i for i, group in enumerate(groups) if any(f.name == flavor for f in group.flavors)]


def _asks_for_topology(pod_set: PodSet) -> bool:
    """Tell whether a pod set has to be placed by topology, not only with other pod sets."""
    asked = pod_set.topology_request
    return asked is not None and bool(
        asked.required
        or asked.preferred
        or asked.unconstrained
        or asked.pod_set_slice_required_topology
    )


def _counting_pods(one: PodSetRequests) -> PodSetRequests:
    requests = {**one.requests, "pods": one.count}
    return PodSetRequests(one.name, one.count, requests, {**one.per_pod, "pods": 1}, one.flavors)


def _given(asked: PodSetRequests, found: _Finding) -> PodSetAssignment:
    flavors = {
        resource: FlavorChoice(choice.flavor, choice.mode, choice.borrow, choice.tried)
        for resource, choice in found.flavors.items()
        if resource in asked.requests
    }
    return PodSetAssignment(
        asked.name,
        asked.count,
        asked.requests,
        flavors,
        list(found.reasons),
        no_fit_reason=found.no_fit_reason,
        attempts=found.attempts,
    )


def _merge(
    attempts: dict[str, Attempt], found: Sequence[Attempt], resource: str, covered: ResourceGroup
) -> None:
    """Add the attempts for one resource to those for others."""
    for attempt in found:
        known = attempts.get(attempt.flavor)
        attempts[attempt.flavor] = attempt if known is None else known.joined(attempt)
    if not found:
        return
    seen = {attempt.flavor for attempt in found}
    for flavor in covered.flavors:
        known = attempts.get(flavor.name)
        if known is not None and flavor.name not in seen:
            text = f"flavor {flavor.name} does not provide resource {resource}"
            attempts[flavor.name] = replace(
                known,
                mode=Mode.NO_FIT,
                reasons=tuple(sorted({*known.reasons, text})),
                no_fit_reason=Reason.NO_FLAVOR,
            )


def _untolerated(spec: PodSpec, flavor: ResourceFlavor) -> Taint | None:
    tolerations = (*spec.tolerations, *flavor.spec.tolerations)
    for taint in flavor.spec.node_taints:
        if taint.effect != "PreferNoSchedule" and not tolerated(taint, tolerations):
            return taint
    return None


def _taint_text(taint: Taint) -> str:
    return f"{{{taint.key} {taint.value} {taint.effect} <nil>}}"


def _matches(spec: PodSpec, labels: Mapping[str, str]) -> bool:
    """Tell whether a flavor's nodes match; only what it has labels for can rule it out."""
    for key, value in spec.node_selector.items():
        if key in labels and labels[key] != value:
            return False
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    if affinity is None or affinity.required is None:
        return True
    terms = []
    for term in affinity.required.node_selector_terms:
        kept = tuple(one for one in term.match_expressions if one.key in labels)
        if not kept:
            # The terms are alternatives; this one says nothing about the flavor.
            return True
        terms.append(NodeSelectorTerm(match_expressions=kept))
    node = Node(metadata=ObjectMeta(labels=dict(labels)))
    return not terms or selects(NodeSelector(tuple(terms)), node)
