"""PodTopologySpread: spread pods of a kind evenly over the domains of a topology key.

Semantics: kube-scheduler 1.36, podtopologyspread. Skew of a node's domain is the number of
matching pods there, plus one if the pod matches its own selector, minus the smallest number in
any eligible domain. Pods that are being deleted do not count.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator
from typing import Literal

import msgspec
import numpy as np
import pydantic
from pydantic import Field

from bayplan import (
    SKIP,
    Args,
    ClusterEvent,
    CycleState,
    NodeView,
    Normalize,
    Plugin,
    PodInfo,
    Reads,
    Reject,
    Remedy,
    StateKey,
    hookimpl,
)
from bayplan.api import ReplicaSet, Service, StatefulSet
from bayplan.api.pod import TopologySpreadConstraint
from bayplan.api.selectors import EVERYTHING, Requirement, Selector, compile_selector
from bayplan.api.tolerations import tolerated
from bayplan.plugin.hookspecs import BoolColumn, FloatColumn, IntColumn
from bayplan.snapshot import PodQuery
from bayplan_plugins.shared.node_selection import required_match

__all__ = ["ELIGIBLE", "PodTopologySpread", "PodTopologySpreadArgs"]

_REASON = "node(s) didn't match pod topology spread constraints"
_NO_LABEL = f"{_REASON} (missing required label)"
_HOSTNAME = "kubernetes.io/hostname"
_ZONE = "topology.kubernetes.io/zone"


class DefaultConstraint(Args):
    """A constraint for pods without any; its selector comes from the pod's owners."""

    max_skew: int = Field(ge=1)
    topology_key: str = Field(min_length=1)
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]


_WITH_SELECTORS = ("ReplicaSet", "StatefulSet")
"""The kinds whose selector counts for the pods that they control."""
_SYSTEM_DEFAULTS = (
    DefaultConstraint(max_skew=3, topology_key=_HOSTNAME, when_unsatisfiable="ScheduleAnyway"),
    DefaultConstraint(max_skew=5, topology_key=_ZONE, when_unsatisfiable="ScheduleAnyway"),
)


class PodTopologySpreadArgs(Args):
    """Arguments of PodTopologySpread."""

    default_constraints: tuple[DefaultConstraint, ...] = ()
    defaulting_type: Literal["System", "List"] = "System"

    @pydantic.model_validator(mode="after")
    def _one_source(self) -> PodTopologySpreadArgs:
        if self.default_constraints and self.defaulting_type == "System":
            raise ValueError('defaultConstraints need defaultingType "List"')
        return self


class SpreadConstraint(msgspec.Struct, frozen=True):
    """A constraint of one pod; its selector is compiled and narrowed by matchLabelKeys."""

    key: str
    max_skew: int
    min_domains: int
    hard: bool
    selector: Selector
    self_match: int
    honor_affinity: bool = True
    honor_taints: bool = False


class SpreadConstraints(msgspec.Struct, frozen=True):
    """All constraints of a pod; with ``all_keys``, nodes without all of the keys do not count."""

    hard: tuple[SpreadConstraint, ...]
    soft: tuple[SpreadConstraint, ...]
    all_keys: bool

    def __bool__(self) -> bool:
        return bool(self.hard or self.soft)


_NONE = SpreadConstraints((), (), True)
_SPREAD: StateKey[SpreadConstraints] = StateKey("spread.constraints")
ELIGIBLE: StateKey[dict[tuple[bool, SpreadConstraint], BoolColumn]] = StateKey("spread.eligible")
_SOFT: StateKey[tuple[list[tuple[SpreadConstraint, IntColumn, float]], BoolColumn]] = StateKey(
    "spread.soft"
)


class PodTopologySpread(Plugin[PodTopologySpreadArgs]):
    """Refuse nodes that would widen the skew beyond maxSkew; prefer domains with fewer pods."""

    Args = PodTopologySpreadArgs
    reads = Reads.CLUSTER
    normalize_scores = Normalize.HOOK
    requeue_on = ClusterEvent.NODE | ClusterEvent.POD

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by the spec and the resolved constraints; pods without constraints are all equal."""
        spread = self._spread(pod)
        return (pod.facts, pod.namespace, spread) if spread else None

    # Filter ------------------------------------------------------------------------------

    @hookimpl
    def pre_filter(self, pod: PodInfo, state: CycleState) -> object:
        """Skip pods without hard constraints."""
        spread = state[_SPREAD] = self._spread(pod)
        if ELIGIBLE not in state:
            state[ELIGIBLE] = {}
        return None if spread.hard else SKIP

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView, state: CycleState) -> Iterator[Reject]:
        """Refuse nodes without the key, then nodes in domains with too many matching pods."""
        everywhere = nodes.all()
        hard = state[_SPREAD].hard
        left = np.ones(len(everywhere), dtype=np.bool_)
        for constraint in hard:
            codes = everywhere.label(constraint.key).codes
            missing = left & (codes < 0)
            if missing.any():
                yield Reject(nodes.pick(missing), _NO_LABEL, resolvable=False)
            skews = self._skews(pod, constraint, hard, everywhere, state)
            crowded = left & ~missing & (skews > constraint.max_skew)
            yield Reject(nodes.pick(crowded), _REASON)
            left &= ~missing & ~crowded

    # Why not -----------------------------------------------------------------------------

    @hookimpl
    def remedies(self, pod: PodInfo, nodes: NodeView, state: CycleState) -> Iterable[Remedy]:
        """Suggest the maxSkew that a node would need, or the label that it lacks."""
        hard = self._spread(pod).hard
        changes: dict[int, list[str]] = {}
        for constraint in hard:
            codes = nodes.label(constraint.key).codes
            skews = nodes.pick(self._skews(pod, constraint, hard, nodes.all(), state))
            for place in np.flatnonzero(codes < 0).tolist():
                changes.setdefault(place, []).append(f"if it had the label {constraint.key}")
            for place in np.flatnonzero((codes >= 0) & (skews > constraint.max_skew)).tolist():
                needed = f"with maxSkew {int(skews[place])} over {constraint.key}"
                text = f"{needed} (now {constraint.max_skew})"
                changes.setdefault(place, []).append(text)
        for place, texts in changes.items():
            cost, row = 2.0 + 0.1 * len(texts), nodes.row_at(place)
            text = f"would fit on {nodes.table.names[row]} {' and '.join(texts)}"
            yield Remedy(text, row, cost)

    def _skews(
        self,
        pod: PodInfo,
        constraint: SpreadConstraint,
        hard: tuple[SpreadConstraint, ...],
        nodes: NodeView,
        state: CycleState,
    ) -> IntColumn:
        """Return, per node, the skew of its domain with the pod; 0 if no domain is eligible."""
        codes = nodes.label(constraint.key).codes
        eligible = self._eligible(pod, constraint, hard, True, nodes, state)
        sums, present = self._domain_sums(pod, constraint, codes, eligible, nodes)
        if not present.any():
            return np.zeros(len(nodes), dtype=np.int64)
        fewest = int(sums[present].min())
        if int(present.sum()) < constraint.min_domains:
            fewest = 0
        # The appended value stands for nodes without the label, which are refused already.
        skews: IntColumn = np.append(sums, 0)[codes] + constraint.self_match - fewest
        return skews

    # Score -------------------------------------------------------------------------------

    @hookimpl
    def pre_score(self, pod: PodInfo, nodes: NodeView, state: CycleState) -> object:
        """Skip pods without soft constraints; count pods per domain for the others."""
        spread = self._spread(pod)
        if not spread.soft:
            return SKIP
        everywhere = nodes.all()
        lacking = np.zeros(len(everywhere), dtype=np.bool_)
        if spread.all_keys:
            for constraint in spread.soft:
                lacking |= ~everywhere.has_label(constraint.key)
        scored = nodes.pick(~lacking)
        columns = []
        for constraint in spread.soft:
            codes = everywhere.label(constraint.key).codes
            if constraint.key == _HOSTNAME:
                domains = int(scored.sum())
                counts = self._counts(pod, constraint)
            else:
                domains = len(np.unique(nodes.pick(codes)[scored]))
                eligible = self._eligible(
                    pod, constraint, spread.soft, spread.all_keys, everywhere, state
                )
                sums, _ = self._domain_sums(pod, constraint, codes, eligible, everywhere)
                counts = np.append(sums, 0)[codes]
            columns.append((constraint, counts, math.log(domains + 2)))
        state[_SOFT] = (columns, lacking)
        return None

    @hookimpl
    def score(self, nodes: NodeView, state: CycleState) -> FloatColumn:
        """Sum the weighted counts: the more matching pods in a node's domains, the higher."""
        columns, _ = state[_SOFT]
        total = np.zeros(len(nodes))
        for constraint, counts, weight in columns:
            here = nodes.has_label(constraint.key)
            points = nodes.pick(counts) * weight + (constraint.max_skew - 1)
            total = total + np.where(here, points, 0.0)
        return np.floor(total + 0.5)

    @hookimpl
    def normalize(self, scores: FloatColumn, nodes: NodeView, state: CycleState) -> FloatColumn:
        """Invert: many pods give a low score; nodes without the keys get 0."""
        lacking = nodes.pick(state[_SOFT][1])
        scored = scores[~lacking]
        result = np.zeros(len(scores))
        if len(scored):
            low, high = scored.min(), scored.max()
            points = 100.0 if high == 0 else np.floor(100 * (high + low - scores) / high)
            result[~lacking] = points if high == 0 else points[~lacking]  # type: ignore[index]
        return result

    # Constraints -------------------------------------------------------------------------

    def _spread(self, pod: PodInfo) -> SpreadConstraints:
        own = pod.spec.topology_spread_constraints
        if not own and not self._has_owners(pod):
            return _NONE
        if own:
            compiled = [_compile(constraint, pod) for constraint in own]
        else:
            compiled = self._defaults(pod)
        if not compiled:
            return _NONE
        return SpreadConstraints(
            tuple(c for c in compiled if c.hard),
            tuple(c for c in compiled if not c.hard),
            bool(own) or self.args.defaulting_type == "List",
        )

    def _defaults(self, pod: PodInfo) -> list[SpreadConstraint]:
        listed = self.args.default_constraints
        constraints = _SYSTEM_DEFAULTS if self.args.defaulting_type == "System" else listed
        selector = self._owners_selector(pod) if constraints else None
        if selector is None:
            return []
        return [
            SpreadConstraint(
                constraint.topology_key,
                constraint.max_skew,
                1,
                constraint.when_unsatisfiable == "DoNotSchedule",
                selector,
                int(selector.matches(pod.labels)),
            )
            for constraint in constraints
        ]

    def _has_owners(self, pod: PodInfo) -> bool:
        """Tell whether the pod could get a default selector."""
        if self.handle.snapshot.objects(Service):
            return True
        owners = pod.pod.metadata.owner_references
        return bool(owners) and any(
            one.controller and one.kind in _WITH_SELECTORS for one in owners
        )

    def _owners_selector(self, pod: PodInfo) -> Selector | None:
        """Join the selectors of the pod's services and of its ReplicaSet or StatefulSet."""
        snapshot = self.handle.snapshot
        requirements: list[Requirement] = []
        for service in snapshot.objects(Service).values():
            wanted = service.spec.selector
            if (
                wanted
                and service.metadata.namespace == pod.namespace
                and all(pod.labels.get(key) == value for key, value in wanted.items())
            ):
                requirements += [
                    Requirement(key, "In", frozenset((value,)))
                    for key, value in sorted(wanted.items())
                ]
        owner = next((r for r in pod.pod.metadata.owner_references if r.controller), None)
        if owner is not None and owner.kind in _WITH_SELECTORS:
            key = f"{pod.namespace}/{owner.name}"
            found: ReplicaSet | StatefulSet | None = (
                snapshot.objects(ReplicaSet).get(key)
                if owner.kind == "ReplicaSet"
                else snapshot.objects(StatefulSet).get(key)
            )
            if found is not None:
                requirements += compile_selector(found.spec.selector).requirements
        return Selector(tuple(dict.fromkeys(requirements))) if requirements else None

    # Counting ----------------------------------------------------------------------------

    def _counts(self, pod: PodInfo, constraint: SpreadConstraint) -> IntColumn:
        """Return, per row, how many pods a constraint counts; an empty selector counts none."""
        index = self.handle.snapshot.index
        if constraint.selector == EVERYTHING:
            return np.zeros(len(self.handle.snapshot.nodes), dtype=np.int64)
        return index.counts(PodQuery(pod.namespace, constraint.selector))

    def _domain_sums(
        self,
        pod: PodInfo,
        constraint: SpreadConstraint,
        codes: IntColumn,
        eligible: BoolColumn | None,
        nodes: NodeView,
    ) -> tuple[IntColumn, BoolColumn]:
        """Return, per domain, its matching pods on eligible nodes, and whether it has any."""
        counts = self._counts(pod, constraint)
        size = len(nodes.label(constraint.key).values)
        if eligible is not None:
            codes, counts = codes[eligible], counts[eligible]
        sums = np.bincount(codes, weights=counts, minlength=size).astype(np.int64)
        present = np.bincount(codes, minlength=size) > 0 if eligible is not None else None
        return sums, np.ones(size, dtype=np.bool_) if present is None else present

    def _eligible(
        self,
        pod: PodInfo,
        constraint: SpreadConstraint,
        together: tuple[SpreadConstraint, ...],
        all_keys: bool,
        nodes: NodeView,
        state: CycleState,
    ) -> BoolColumn | None:
        """Return the nodes whose pods count for a constraint; None means every node.

        It depends on node objects only, so it is kept in the state of the evaluation.
        """
        if ELIGIBLE not in state:
            state[ELIGIBLE] = {}
        kept = state[ELIGIBLE]
        name = (all_keys, constraint)
        if name not in kept:
            mask = np.ones(len(nodes), dtype=np.bool_)
            for other in together if all_keys else (constraint,):
                mask &= nodes.has_label(other.key)
            if constraint.honor_affinity:
                mask &= required_match(pod.spec, nodes)
            if constraint.honor_taints:
                allowed = [
                    all(
                        t.effect == "PreferNoSchedule" or tolerated(t, pod.spec.tolerations)
                        for t in taints
                    )
                    for taints in nodes.taint_sets
                ]
                mask &= np.array(allowed, dtype=np.bool_)[nodes.taint_codes]
            kept[name] = mask
        mask = kept[name]
        return None if mask.all() else mask


def _compile(constraint: TopologySpreadConstraint, pod: PodInfo) -> SpreadConstraint:
    selector = compile_selector(constraint.label_selector)
    for key in constraint.match_label_keys:
        if key in pod.labels:
            selector = selector.also(Requirement(key, "In", frozenset((pod.labels[key],))))
    return SpreadConstraint(
        constraint.topology_key,
        constraint.max_skew,
        constraint.min_domains or 1,
        constraint.when_unsatisfiable == "DoNotSchedule",
        selector,
        int(selector.matches(pod.labels)),
        constraint.node_affinity_policy == "Honor",
        constraint.node_taints_policy == "Honor",
    )
