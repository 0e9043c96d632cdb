"""What would help a pending unit: the smallest changes, each tried before it is suggested."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from bayplan.cycle.evaluation import Evaluation
from bayplan.cycle.evaluator import Evaluator
from bayplan.cycle.scheduling_cycle import Cycle
from bayplan.explain.options import Option, Suggestion, change_only, joined
from bayplan.naming import natural_key
from bayplan.plugin.base import Remedy, Unit
from bayplan.plugin.decision import Outcome
from bayplan.profiles.runtime import Runtime, guard
from bayplan.snapshot import NodeRow, NodeView, PodInfo, Snapshot

__all__ = ["Diagnosis"]

Rows = npt.NDArray[np.intp]
_MOST = 3
_MOST_STEPS = 8
_MOST_TRIED = 64
_MOST_CHANGES = 2
_MOST_ROWS_TRIED = 8
_COMPARED = 8
_SMALL = 16
_MOST_ALONE = 32
_NEVER = 10**9
_MOST_ASKED = 512
"""Of so many nodes that the same plugins refuse, a pod's remedies are compared."""
_MOST_ASKED_OF_LARGE = 32
"""Of so many for each member of a large gang."""
_MOST_EMPTIED = 20_000
"""In how large a cluster, by its pods, it is tried what would fit without them."""
_MIRROR = "kubernetes.io/config.mirror"
"""Pods with this annotation are the kubelet's own; it starts them again."""


class Diagnosis(msgspec.Struct):
    """Finds remedies for units of one profile on one snapshot, which it leaves unchanged."""

    runtime: Runtime
    evaluator: Evaluator
    cycle: Cycle
    snapshot: Snapshot

    def suggest(self, unit: Unit, now: float) -> list[Suggestion]:
        """Return at most three changes that would let the unit run, smallest first.

        :raises PluginError: when a plugin raises.
        """
        self.snapshot.sync()
        waits = self._waits(unit)
        if waits:
            return [Suggestion(waits)]
        with self.snapshot.trial():
            # Its nominated nodes are free for the unit.
            for pod in unit.pods:
                self.snapshot.remove_pod(pod.key)
            return self._changes(unit, now)

    def admit(self, units: Sequence[Unit], change: str) -> list[Suggestion]:
        """Return at most three changes that would let a job run that its queue holds back.

        Each is tried with the nodes as they are, as if its queue took it.

        :param units: its gangs and single pods; they are placed beside each other.
        :param change: the change of a queue that would admit it, "" where that is not known.
        :raises PluginError: when a plugin raises.
        """
        self.snapshot.sync()
        with self.snapshot.trial():
            for pod in (pod for unit in units for pod in unit.pods):
                self.snapshot.remove_pod(pod.key)
            for index, unit in enumerate(units):
                if not self._kept(unit):
                    return self._admit(units[index:], change)
        return [Suggestion(f"would be admitted with {change}")] if change else []

    def _kept(self, unit: Unit) -> bool:
        """Place a unit within the running trial, as if its queue took it; tell whether it fits."""
        offered = self.cycle.offers(unit, in_queue=False).candidates
        return any(self.cycle.place_here(unit, one, in_queue=False) is not None for one in offered)

    def _admit(self, units: Sequence[Unit], change: str) -> list[Suggestion]:
        """Return what would let the first of some units fit, besides a change of its queue."""
        unit = units[0]
        more = f", and with {change}" if change else ""
        remedies = self._remedies_of(unit)
        if unit.gang is None and len(units) > 1:
            # What helps one of several pods is not enough.
            remedies = self._more_nodes([pod for one in units for pod in one.pods], None, "")
        found = [
            Suggestion(f"would be admitted {text}{more}", changes=1 + bool(change))
            for text, weaker in self._relaxations(unit)
            if self._fits(weaker)
        ]
        found += [
            replace(
                one,
                text=f"would be admitted {change_only(one.text)}{more}",
                changes=one.changes + bool(change),
            )
            for one in remedies
            if one.text.startswith("would fit")
        ]
        return self._sorted(unit, found, remedies)

    def _remedies_of(self, unit: Unit) -> list[Suggestion]:
        if unit.gang is not None:
            return self._gang_remedies(unit)
        return self._remedies(unit.pods[0], None, frozenset((unit.pods[0].key,)))

    def _sorted(
        self, unit: Unit, found: Iterable[Suggestion], remedies: Iterable[Suggestion]
    ) -> list[Suggestion]:
        """Return the smallest changes, after what none of the nodes that there are can change.

        :param remedies: those of the changes that are not of the unit itself.
        """
        best = sorted(found, key=lambda one: one.changes)[:_MOST]
        if unit.gang is None or any(one.places for one in remedies):
            return best
        return [*self._never(unit), *best]

    def _fits(self, unit: Unit) -> bool:
        """Tell whether there is room for a unit, if its queue took it."""
        with self.snapshot.trial():
            return self._kept(unit)

    def _never(self, unit: Unit) -> list[Suggestion]:
        """Return why a gang would not fit if no other pod ran, and how it would; [] if it would."""
        placed = self.snapshot.placed
        if len(placed) > _MOST_EMPTIED:
            return []
        own = {pod.key for pod, _ in unit.bound}
        with self.snapshot.trial():
            for key in [key for key in placed if key not in own and not self._comes_back(key)]:
                self.snapshot.remove_pod(key)
            refused = self.cycle.offers(unit, in_queue=False).refused
            offered = [trial for trial in refused if trial.offered is not None]
            if not offered or self._fits(unit):
                return []
            wider = next((t for t, one in self._relaxations(unit) if self._fits(one)), "")
        best = max(offered, key=lambda trial: trial.offered or 0)
        text = (
            f"can never fit with the nodes as they are: of its {best.needed} pods the largest "
            f"domain, {best.name}, has room for {best.offered}"
        )
        return [Suggestion(f"{text}; it would {wider}" if wider else text, changes=0)]

    def _changes(self, unit: Unit, now: float) -> list[Suggestion]:
        places = self._places(unit, now)
        if places is not None:
            text = "would fit now, and will be tried again after its delay"
            return [Suggestion(text, places=places)]
        if not len(self.snapshot.nodes):
            return [Suggestion("cannot fit: the cluster has no nodes")]
        relaxed = list(self._relaxations(unit))
        found = [
            Suggestion(f"would fit {text}", places=places)
            for text, weaker in relaxed
            if (places := self._places(weaker, now)) is not None
        ]
        remedies = self._remedies_of(unit)
        found += remedies
        if unit.gang is not None:
            fewest = min((one.changes for one in found), default=_NEVER)
            if fewest > 1:
                more = self._relaxed_and_more(relaxed)
                found += [one for one in more if one.changes < fewest]
        if not found:
            found += self._mendings(unit, now)
        return self._sorted(unit, found, remedies)

    def _waits(self, unit: Unit) -> str:
        """Return what the unit waits for before it is tried, "" for nothing."""
        held = [reason for pod in unit.pods if (reason := self._gate(pod))]
        if len(held) == len(unit.pods) and len(unit.pods) >= unit.min_placed:
            return f"will be tried when it is no longer held back: {held[0]}"
        if len(unit.pods) < unit.min_placed:
            missing = unit.min_placed - len(unit.pods)
            return f"would be tried once {missing} more member{'s'[: missing > 1]} existed"
        ending = self._ending_on(set(unit.nominated.values()))
        if ending:
            nodes = ", ".join(ending[:_MOST_STEPS])
            return f"will run once the terminating pods on {nodes} are gone"
        return ""

    def _ending_on(self, nodes: set[str]) -> list[str]:
        """Return those of the nodes on which a pod is being deleted."""
        table = self.snapshot.nodes
        rows = {name: table.row_of[name] for name in nodes if name in table.row_of}
        return sorted(
            (
                name
                for name, row in rows.items()
                if any(self.snapshot.placed[key][0].terminating for key in table.pods[row])
            ),
            key=natural_key,
        )

    def _gate(self, pod: PodInfo) -> str | None:
        for call in self.runtime.of(pod)["pre_enqueue"]:
            refusal: str | None = call(pod)
            if refusal is not None:
                return refusal
        return None

    def _places(self, unit: Unit, now: float) -> dict[str, str] | None:
        """Return the nodes that a unit would get, by pod; None if it does not fit."""
        with self.snapshot.trial():
            result = self.cycle.run(unit, 0, now, preempt=False)
            self.cycle.unreserve(result.reserved)
            if result.decision.outcome not in (Outcome.PLACED, Outcome.WAITING):
                return None
            return {one.pod.key: one.node for one in result.reserved}

    def _relaxations(self, unit: Unit) -> Iterator[tuple[str, Unit]]:
        for call in self.runtime["relax"]:
            yield from guard(call, _relaxed, call(unit))

    def _mendings(self, unit: Unit, now: float) -> list[Suggestion]:
        """Return the refusals of the whole unit for which no plugin has a remedy."""
        with self.snapshot.trial():
            result = self.cycle.run(unit, 0, now, preempt=False)
            self.cycle.unreserve(result.reserved)
        decision = result.decision
        reasons = [decision.message] if decision.at_permit or decision.of_queue else []
        reasons += [
            refusal[1]
            for pod in unit.pods[:1]
            if (refusal := self.evaluator.evaluate(pod).refusal) is not None
        ]
        if unit.gang is not None and not reasons and self.runtime["placement_generate"]:
            answer = self.cycle.offers(unit)
            if not answer.candidates and not answer.refused and answer.reason:
                reasons.append(answer.reason)
        return [Suggestion(f"would be tried again once this is fixed: {r}") for r in reasons]

    # One pod -----------------------------------------------------------------------------

    def _remedies(self, pod: PodInfo, rows: Rows | None, unit: frozenset[str]) -> list[Suggestion]:
        """Return the cheapest remedies for a pod, at most one for each kind of obstacle.

        ``unit`` are the keys of the pods that have to stay.
        """
        anywhere, options = self._options(pod, rows, unit)
        names = self.snapshot.nodes.names
        found = [option.suggestion(pod.key, names[option.row]) for option in options]
        return found + [Suggestion(text) for text in anywhere]

    def _options(
        self, pod: PodInfo, rows: Rows | None, unit: frozenset[str], compared: int = _COMPARED
    ) -> tuple[list[str], list[Option]]:
        """Return the suggestions without a node, and the best option of each kind for nodes.

        ``compared`` is how many nodes of one kind are compared by the pods that would have to end.
        """
        found = self.evaluator.evaluate(pod)
        if found.refusal is not None:
            calls = [c for c in self.runtime["remedies"] if c.name == found.refusal[0]]
        elif found.failure is not None:
            # Until the filter can tell, no other change helps.
            failed = found.failure.column.call.name
            calls = [c for c in self.runtime["remedies"] if c.name == failed]
        else:
            skipped = found.skipped["pre_filter"]
            calls = [c for c in self.runtime["remedies"] if c.name not in skipped]
        asked, size = self._worth_asking(pod, found, rows, unit), len(self.snapshot.nodes)
        anywhere: list[Remedy] = []
        by_row: dict[int, dict[str, Remedy]] = {}
        for call in calls:
            for remedy in guard(call, _as_remedies, call(pod, asked, found.state), size):
                if remedy.row is None:
                    anywhere.append(remedy)
                elif found.refusal is None:
                    best = by_row.setdefault(remedy.row, {})
                    if call.name not in best or remedy.cost < best[call.name].cost:
                        best[call.name] = remedy
        options = self._verified(pod, found, by_row, unit, compared)
        anywhere.sort(key=lambda remedy: (remedy.cost, natural_key(remedy.text)))
        return [remedy.text for remedy in anywhere], options

    def _worth_asking(
        self, pod: PodInfo, found: Evaluation, rows: Rows | None, unit: frozenset[str]
    ) -> NodeView:
        """Return the nodes to ask plugins about, by columns: those that may lack the least.

        Of the nodes that the same plugins refuse, a few are enough. The fewer pods a unit has, the
        more of them are asked about.
        """
        table = self.snapshot.nodes
        if found.failure is not None:
            return NodeView(table, found.failure.rows)
        most = _MOST_ASKED if len(unit) <= _SMALL else _MOST_ASKED_OF_LARGE
        own = np.arange(len(table)) if rows is None else rows
        if len(own) <= most or found.refusal is not None:
            return NodeView(table, rows)
        kinds = np.zeros(len(own), dtype=np.int64)
        for column in found.filters:
            kinds = np.unique(2 * kinds + column.mask[own], return_inverse=True)[1]
        order = np.lexsort((self._lacking(pod, own), kinds))
        place = np.arange(len(own)) - np.searchsorted(kinds[order], kinds[order])
        return NodeView(table, np.sort(own[order[place < most]]))

    def _lacking(self, pod: PodInfo, rows: Rows) -> npt.NDArray[np.float64]:
        """Return what nodes lack for a pod by amounts, as the sum of its shares of what they offer.

        Nodes that are too small come last.
        """
        table, lacking = self.snapshot.nodes, np.zeros(len(rows))
        for name, need in pod.requests.items():
            offered, used = table.allocatable_of(name, rows), table.used_of(name, rows)
            lacking += np.maximum(need - (offered - used), 0) / np.maximum(offered, 1)
            lacking[offered < need] = np.inf
        return lacking

    def _verified(
        self,
        pod: PodInfo,
        found: Evaluation,
        by_row: dict[int, dict[str, Remedy]],
        unit: frozenset[str],
        compared: int,
    ) -> list[Option]:
        """Return, for each set of plugins that refuse a node, the best option that really helps."""
        masks = {column.call.name: column.mask for column in found.filters}
        kinds: dict[frozenset[str], list[Option]] = {}
        for row, offers in by_row.items():
            refused = [name for name, mask in masks.items() if mask[row]]
            if not refused or not offers.keys() >= set(refused):
                continue
            option = Option(row, tuple((name, offers[name]) for name in refused))
            if len(option.texts) <= _MOST_CHANGES:
                kinds.setdefault(option.plugins, []).append(option)
        best: list[Option] = []
        for options in kinds.values():
            # Nodes that hold the unit's pods come last: most of them are full.
            pods = self.snapshot.nodes.pods
            options.sort(key=lambda option: (not unit.isdisjoint(pods[option.row]), option.order))
            true: list[Option] = []
            for option in options[:_MOST_ROWS_TRIED]:
                ends = self._ends(pod, option, unit)
                if ends is not None:
                    true.append(Option(option.row, option.parts, ends))
                if len(true) >= compared:
                    break
            if true:
                best.append(min(true, key=self._price))
        best.sort(key=lambda option: option.order)
        if best and len(best[0].texts) == 1:
            best = [option for option in best if len(option.texts) == 1]
        return best

    def _price(self, option: Option) -> tuple[object, ...]:
        """Return an option's cost: the highest priority of the pods to end, then their number."""
        ends = [self.snapshot.placed[key][0].priority for key in option.ends]
        return (len(option.texts), max(ends, default=-(2**63)), len(ends), option.order)

    def _ends(self, pod: PodInfo, option: Option, unit: frozenset[str]) -> tuple[str, ...] | None:
        """Return the pods that have to end for an option, None if that would not be enough."""
        named = tuple(dict.fromkeys(key for _, remedy in option.parts for key in remedy.ends))
        frees = any(remedy.frees for _, remedy in option.parts)
        if not named and not frees:
            return ()
        if any(not self._stays_away(key, pod, unit) for key in named):
            return None
        # These remedies end no pod, so the plugins still refuse the node in this trial.
        lifted = {name for name, remedy in option.parts if not (remedy.frees or remedy.ends)}
        with self.snapshot.trial():
            for key in named:
                self.snapshot.remove_pod(key)
            if self._takes(pod, option.row, lifted):
                return named
            return self._fewest(pod, option.row, lifted, unit, named) if frees else None

    def _takes(self, pod: PodInfo, row: int, lifted: set[str]) -> bool:
        """Tell whether a node would take the pod without the refusals of some plugins."""
        found = self.evaluator.evaluate(pod)
        if found.refusal is not None:
            return False
        return {c.call.name for c in found.filters if c.mask[row]} <= lifted

    def _fewest(
        self,
        pod: PodInfo,
        row: int,
        lifted: set[str],
        unit: frozenset[str],
        named: tuple[str, ...],
    ) -> tuple[str, ...] | None:
        """Return the fewest pods of a node that have to end: one alone, or by priority."""
        snapshot, node = self.snapshot, self.snapshot.nodes.names[row]
        there = [
            snapshot.placed[key][0]
            for key in snapshot.nodes.pods[row]
            if self._stays_away(key, pod, unit)
        ]
        there.sort(key=lambda info: (info.priority, self._share(info, row), natural_key(info.key)))
        for info in there[:_MOST_ALONE]:
            with snapshot.trial():
                snapshot.remove_pod(info.key)
                if self._takes(pod, row, lifted):
                    return (*named, info.key)
        gone: list[PodInfo] = []
        for info in there:
            snapshot.remove_pod(info.key)
            gone.append(info)
            if self._takes(pod, row, lifted):
                break
        else:
            return None
        for info in reversed(list(gone)):
            snapshot.add_pod(info, node)
            if self._takes(pod, row, lifted):
                gone.remove(info)
            else:
                snapshot.remove_pod(info.key)
        return (*named, *(info.key for info in gone))

    def _stays_away(self, key: str, pod: PodInfo, unit: frozenset[str]) -> bool:
        """Tell whether ending a pod helps: it is not in the unit, nothing recreates it there."""
        if key in unit or key not in self.snapshot.placed:
            return False
        if self._comes_back(key):
            return False
        other = self.snapshot.placed[key][0].pod.metadata
        owners = {owner.uid for owner in pod.pod.metadata.owner_references if owner.controller}
        return not any(owner.controller and owner.uid in owners for owner in other.owner_references)

    def _comes_back(self, key: str) -> bool:
        """Tell whether a pod that ends is started again on its node."""
        meta = self.snapshot.placed[key][0].pod.metadata
        owners = meta.owner_references
        return _MIRROR in meta.annotations or any(
            owner.controller and owner.kind == "DaemonSet" for owner in owners
        )

    def _share(self, info: PodInfo, row: int) -> float:
        """Return the share of a node that a pod takes, summed over its resources."""
        node = NodeRow(self.snapshot.nodes, row)
        return sum(
            amount / max(1, node.allocatable(name)) for name, amount in info.requests.items()
        )

    # Gangs -------------------------------------------------------------------------------

    def _relaxed_and_more(self, relaxed: Sequence[tuple[str, Unit]]) -> list[Suggestion]:
        """Return weaker forms of the unit that would fit with one more change."""
        found = []
        for text, weaker in relaxed:
            for more in self._gang_remedies(weaker)[:1]:
                if more.text.startswith("would fit"):
                    both = f"would fit {text} and {change_only(more.text)}"
                    found.append(Suggestion(both, more.ends, more.changes + 1, more.places))
        return found

    def _gang_remedies(self, unit: Unit) -> list[Suggestion]:
        """Place as many members as fit in the most promising domain; find changes for the others.

        Pods that have to end for one member are gone for the next.
        """
        name, rows = self._most_promising(unit)
        where = f" (in {name})" if name and name != "cluster" else ""
        found: list[Option] = []
        places: dict[str, str] = {}
        # Comparing nodes for every member of a large gang would take seconds.
        compared = _COMPARED if len(unit.pods) <= _SMALL else 1
        keys = frozenset(pod.key for pod in (*unit.pods, *(bound for bound, _ in unit.bound)))
        with self.snapshot.trial():
            for index, pod in enumerate(unit.pods):
                if index == unit.min_placed and not unit.parts:
                    break
                row = self.evaluator.evaluate(pod).best(rows)
                if row is None:
                    anywhere, options = self._options(pod, rows, keys, compared)
                    if not options or len(found) >= _MOST_TRIED:
                        left = unit.pods[index : unit.min_placed]
                        nodes = self._more_nodes(left, rows, name) if not found else []
                        return nodes or [Suggestion(text) for text in anywhere[:1]]
                    found.append(options[0])
                    row = options[0].row
                    for key in options[0].ends:
                        self.snapshot.remove_pod(key)
                places[pod.key] = self.snapshot.nodes.names[row]
                self.snapshot.add_pod(pod, places[pod.key])
            on_row = self.snapshot.nodes.pods
            used = {one.row: len(keys & on_row[one.row].keys()) for one in found}
        return joined(found, used, self.snapshot.nodes.names, where, places)

    def _more_nodes(
        self, members: Sequence[PodInfo], rows: Rows | None, name: str
    ) -> list[Suggestion]:
        """Return how many nodes like the best of a domain would hold the remaining members.

        The members have to be equal; different ones would need a plan.
        """
        if not members or any(one.facts is not members[0].facts for one in members):
            return []
        pod = members[0]
        candidates = self._unlike(pod, rows)
        with self.snapshot.trial():
            for row in candidates:
                for key in list(self.snapshot.nodes.pods[row]):
                    self.snapshot.remove_pod(key)
            slots = self.cycle.free_slots(pod)
        best = max(candidates, key=lambda row: int(slots[row]), default=None)
        if best is None or slots[best] <= 0:
            return []
        count = -(-len(members) // int(slots[best]))
        like = self.snapshot.nodes.names[best]
        whose = name if name and name != "cluster" else "the cluster"
        nodes = f"{count} more node{'s'[: count > 1]}"
        text = f"would fit if {whose} had {nodes} like {like}"
        return [Suggestion(text, changes=count)]

    def _unlike(self, pod: PodInfo, rows: Rows | None) -> list[int]:
        """Return the first few nodes of each kind: of equal amounts, refused by the same plugins.

        Emptying every node of a large cluster would take seconds.
        """
        table = self.snapshot.nodes
        found = self.evaluator.evaluate(pod)
        own = np.arange(len(table)) if rows is None else rows
        kinds = np.zeros(len(own), dtype=np.int64)
        for column in (*table.allocatable_columns.values(), table.taint_codes):
            _, values = np.unique(column[own], return_inverse=True)
            kinds = np.unique(kinds * (len(own) + 1) + values, return_inverse=True)[1]
        for filtered in found.filters:
            kinds = np.unique(2 * kinds + filtered.mask[own], return_inverse=True)[1]
        order = np.argsort(kinds, kind="stable")
        place = np.arange(len(own)) - np.searchsorted(kinds[order], kinds[order])
        chosen: list[int] = np.sort(own[order[place < _MOST_ROWS_TRIED]]).tolist()
        return chosen

    def _most_promising(self, unit: Unit) -> tuple[str, Rows | None]:
        """Return the domain that offers the most; the cluster for a unit without gathering."""
        if not self.runtime["placement_generate"]:
            return "", None
        answer = self.cycle.offers(unit, in_queue=False)
        if answer.candidates:
            return answer.candidates[0].name, answer.candidates[0].rows
        # Domains with enough nodes for the unit come first, then those where most members fit.
        large = [t for t in answer.refused if t.rows is not None and t.nodes]
        if large:
            best = max(large, key=lambda t: (t.nodes >= len(unit.pods), t.offered or 0))
            return best.name, best.rows
        return "", None


def _relaxed(answer: Iterable[Any]) -> list[tuple[str, Unit]]:
    pairs = [(text, unit) for text, unit in answer]
    for text, unit in pairs:
        if not isinstance(text, str) or not isinstance(unit, Unit):
            raise TypeError(f"expected pairs of a text and a Unit, got {(text, unit)!r}")
    return pairs


def _as_remedies(answer: Iterable[Any], nodes: int) -> list[Remedy]:
    remedies = list(answer)
    for remedy in remedies:
        if not isinstance(remedy, Remedy):
            raise TypeError(f"expected a Remedy, got {remedy!r}")
        if remedy.row is not None and not 0 <= remedy.row < nodes:
            raise ValueError(f"a Remedy's row is {remedy.row}; there are {nodes} nodes")
    return remedies
