"""What would help a unit that is pending: the smallest changes, each tried before it is told."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bayplan.cycle import Cycle
from bayplan.decision import Outcome
from bayplan.evaluation import Evaluation
from bayplan.evaluator import Evaluator
from bayplan.naming import natural_key
from bayplan.plugin import Remedy, Unit
from bayplan.runtime import HookCall, Runtime, guard
from bayplan.snapshot import NodeRow, PodInfo, Snapshot

__all__ = ["Diagnosis", "Suggestion"]

Rows = npt.NDArray[np.intp]
_MOST = 3
_MOST_STEPS = 8
_MOST_TRIED = 64
_MOST_CHANGES = 2
_MOST_ROWS_TRIED = 8
_MOST_ALONE = 32


@dataclass(frozen=True)
class Suggestion:
    """A change that would help. ``text`` goes on from "it" or "the gang".

    ``ends`` are the pods, by key, that would have to go for it; ``changes`` is how many things
    would have to change at once.
    """

    text: str
    ends: tuple[str, ...] = ()
    changes: int = 1


@dataclass(frozen=True)
class _Option:
    """What would let one node take a pod: each plugin that refuses it, with its remedy."""

    row: int
    parts: tuple[tuple[str, Remedy], ...]
    ends: tuple[str, ...] = ()

    @property
    def plugins(self) -> frozenset[str]:
        """The plugins that refuse the node."""
        return frozenset(name for name, _ in self.parts)

    @property
    def texts(self) -> list[str]:
        """The changes, each once: two plugins may ask for the same."""
        return list(dict.fromkeys(remedy.text for _, remedy in self.parts))

    @property
    def order(self) -> tuple[object, ...]:
        """The fewest changes first, then those that nobody pays for, then the cheapest."""
        costly = any(remedy.frees or remedy.ends for _, remedy in self.parts)
        cost = sum(remedy.cost for _, remedy in self.parts)
        return (len(self.texts), costly, cost, natural_key(self.texts[0]))

    def suggestion(self) -> Suggestion:
        """Return the option in words."""
        first, *others = self.texts
        text = " and ".join([first, *(_tail(other) for other in others)])
        return Suggestion(text, self.ends, len(self.texts))


@dataclass
class Diagnosis:
    """Finds remedies for units of one profile on one snapshot; leaves the snapshot as it was."""

    runtime: Runtime
    evaluator: Evaluator
    cycle: Cycle
    snapshot: Snapshot

    def suggest(self, unit: Unit, now: float) -> list[Suggestion]:
        """Return at most three changes that would let the unit run, the smallest first.

        :raises PluginError: when a plugin raises.
        """
        self.snapshot.sync()
        waits = self._waits(unit)
        if waits:
            return [Suggestion(waits)]
        with self.snapshot.trial():
            # The places that are held for the unit are there for it.
            for pod in unit.pods:
                self.snapshot.remove_pod(pod.key)
            return self._changes(unit, now)

    def _changes(self, unit: Unit, now: float) -> list[Suggestion]:
        if self._fits(unit, now):
            return [Suggestion("would fit now, and will be tried again after its delay")]
        if not len(self.snapshot.nodes):
            return [Suggestion("cannot fit: the cluster has no nodes")]
        relaxed = list(self._relaxations(unit))
        found = [Suggestion(f"would fit {t}") for t, weaker in relaxed if self._fits(weaker, now)]
        if unit.gang is None:
            found += self._remedies(unit.pods[0], None, frozenset((unit.pods[0].key,)))
        else:
            found += self._gang_remedies(unit)
            if not any(one.changes == 1 for one in found):
                found += self._relaxed_and_more(relaxed)
        if not found:
            found += self._mendings(unit)
        return sorted(found, key=lambda one: one.changes)[:_MOST]

    def _waits(self, unit: Unit) -> str:
        """Say what the unit waits for before it is tried at all, "" for nothing."""
        held = [reason for pod in unit.pods if (reason := self._gate(pod))]
        if len(held) == len(unit.pods) and len(unit.pods) >= unit.min_placed:
            return f"will be tried when it is no longer held back: {held[0]}"
        if len(unit.pods) < unit.min_placed:
            missing = unit.min_placed - len(unit.pods)
            return f"would be tried once {missing} more member{'s'[: missing > 1]} existed"
        ending = self._ending_on(set(unit.nominated.values()))
        if ending:
            nodes = ", ".join(ending[:_MOST_STEPS])
            return f"will run when the pods that still end on {nodes}, held for it, are gone"
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
        for call in self.runtime["pre_enqueue"]:
            refusal: str | None = call(pod)
            if refusal is not None:
                return refusal
        return None

    def _fits(self, unit: Unit, now: float) -> bool:
        with self.snapshot.trial():
            result = self.cycle.run(unit, 0, now, preempt=False)
            self.cycle.unreserve(result.reserved)
            return result.decision.outcome in (Outcome.PLACED, Outcome.WAITING)

    def _relaxations(self, unit: Unit) -> Iterator[tuple[str, Unit]]:
        for call in self.runtime["relax"]:
            yield from guard(call, _relaxed, call(unit))

    def _mendings(self, unit: Unit) -> list[Suggestion]:
        """Return what refuses the whole unit, for which nobody has a remedy."""
        reasons = [
            refusal[1]
            for pod in unit.pods[:1]
            if (refusal := self.evaluator.evaluate(pod).refusal) is not None
        ]
        if unit.gang is not None and not reasons and self.runtime["placement_generate"]:
            answer = self.cycle.offers(unit)
            if not answer.candidates and not answer.refused and answer.reason:
                reasons.append(answer.reason)
        return [Suggestion(f"would be tried again once this is mended: {r}") for r in reasons]

    # One pod -----------------------------------------------------------------------------

    def _remedies(self, pod: PodInfo, rows: Rows | None, unit: frozenset[str]) -> list[Suggestion]:
        """Return the cheapest remedies for a pod, at most one for each kind of obstacle.

        ``unit`` are the keys of the pods that have to stay.
        """
        hopeless, options = self._options(pod, rows, unit)
        found = [option.suggestion() for option in options]
        return found + [Suggestion(text) for text in hopeless]

    def _options(
        self, pod: PodInfo, rows: Rows | None, unit: frozenset[str]
    ) -> tuple[list[str], list[_Option]]:
        """Return what is told without any node, and for nodes the best option of each kind."""
        found = self.evaluator.evaluate(pod)
        allowed = None if rows is None else set(rows.tolist())
        if found.refusal is not None:
            calls = [c for c in self.runtime["remedies"] if c.name == found.refusal[0]]
        else:
            skipped = found.skipped["pre_filter"]
            calls = [c for c in self.runtime["remedies"] if c.name not in skipped]
        hopeless: list[Remedy] = []
        by_row: dict[int, dict[str, Remedy]] = {}
        for call in calls:
            for remedy in self._offers(call, pod, found):
                if remedy.row is None:
                    hopeless.append(remedy)
                elif found.refusal is None and (allowed is None or remedy.row in allowed):
                    best = by_row.setdefault(remedy.row, {})
                    if call.name not in best or remedy.cost < best[call.name].cost:
                        best[call.name] = remedy
        options = self._verified(pod, found, by_row, unit)
        hopeless.sort(key=lambda remedy: (remedy.cost, natural_key(remedy.text)))
        return [remedy.text for remedy in hopeless], options

    def _offers(self, call: HookCall, pod: PodInfo, found: Evaluation) -> list[Remedy]:
        view = self.snapshot.view()
        return guard(call, _as_remedies, call(pod, view, found.state), len(view))

    def _verified(
        self,
        pod: PodInfo,
        found: Evaluation,
        by_row: dict[int, dict[str, Remedy]],
        unit: frozenset[str],
    ) -> list[_Option]:
        """Return the best option for each set of plugins that refuse a node, if it is true."""
        masks = {column.call.name: column.mask for column in found.filters}
        kinds: dict[frozenset[str], list[_Option]] = {}
        for row, offers in by_row.items():
            refused = [name for name, mask in masks.items() if mask[row]]
            if not refused or not offers.keys() >= set(refused):
                continue
            option = _Option(row, tuple((name, offers[name]) for name in refused))
            if len(option.texts) <= _MOST_CHANGES:
                kinds.setdefault(option.plugins, []).append(option)
        best: list[_Option] = []
        for options in kinds.values():
            options.sort(key=lambda option: option.order)
            for option in options[:_MOST_ROWS_TRIED]:
                ends = self._ends(pod, option, unit)
                if ends is not None:
                    best.append(_Option(option.row, option.parts, ends))
                    break
        best.sort(key=lambda option: option.order)
        if best and len(best[0].texts) == 1:
            best = [option for option in best if len(option.texts) == 1]
        return best

    def _ends(self, pod: PodInfo, option: _Option, unit: frozenset[str]) -> tuple[str, ...] | None:
        """Return the pods that have to go for an option, None if that would not be enough."""
        named = tuple(dict.fromkeys(key for _, remedy in option.parts for key in remedy.ends))
        frees = any(remedy.frees for _, remedy in option.parts)
        if not named and not frees:
            return ()
        # These do not depend on other pods: they go on to refuse the node here.
        lifted = {name for name, remedy in option.parts if not (remedy.frees or remedy.ends)}
        with self.snapshot.trial():
            for key in named:
                self.snapshot.remove_pod(key)
            if self._takes(pod, option.row, lifted):
                return named
            return self._fewest(pod, option.row, lifted, unit, named) if frees else None

    def _takes(self, pod: PodInfo, row: int, lifted: set[str]) -> bool:
        """Whether a node would take the pod if some plugins did not refuse it."""
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
        """Return the fewest pods of a node whose end makes room: one alone, or by priority."""
        snapshot, node = self.snapshot, self.snapshot.nodes.names[row]
        there = [snapshot.placed[key][0] for key in snapshot.nodes.pods[row] if key not in unit]
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

    def _share(self, info: PodInfo, row: int) -> float:
        """Return how much of a node a pod takes, summed up over its resources."""
        node = NodeRow(self.snapshot.nodes, row)
        return sum(
            amount / max(1, node.allocatable(name)) for name, amount in info.requests.items()
        )

    # Gangs -------------------------------------------------------------------------------

    def _relaxed_and_more(self, relaxed: Sequence[tuple[str, Unit]]) -> list[Suggestion]:
        """Return weaker forms of the unit that would fit with one change more."""
        found = []
        for text, weaker in relaxed:
            for more in self._gang_remedies(weaker)[:1]:
                if more.text.startswith("would fit"):
                    both = f"would fit {text} and {_tail(more.text)}"
                    found.append(Suggestion(both, more.ends, more.changes + 1))
        return found

    def _gang_remedies(self, unit: Unit) -> list[Suggestion]:
        """Place as many members as fit in the most promising domain, and mend for the others."""
        name, rows = self._most_promising(unit)
        where = f" (in {name})" if name else ""
        found: list[Suggestion] = []
        keys = frozenset(pod.key for pod in (*unit.pods, *(bound for bound, _ in unit.bound)))
        with self.snapshot.trial():
            for index, pod in enumerate(unit.pods):
                row = self.evaluator.evaluate(pod).best(rows)
                if row is None:
                    hopeless, options = self._options(pod, rows, keys)
                    if not options:
                        left = unit.min_placed - index
                        nodes = self._more_nodes(pod, rows, left, name) if not found else []
                        return nodes or [Suggestion(text) for text in hopeless[:1]]
                    found.append(options[0].suggestion())
                    row = options[0].row
                    if len(found) > _MOST_TRIED:
                        return []
                self.snapshot.add_pod(pod, self.snapshot.nodes.names[row])
        return _together(found, where)

    def _more_nodes(
        self, pod: PodInfo, rows: Rows | None, members: int, name: str
    ) -> list[Suggestion]:
        """Return how many nodes like the best of a domain would hold the members left over."""
        if members <= 0:
            return []
        candidates = range(len(self.snapshot.nodes)) if rows is None else rows.tolist()
        with self.snapshot.trial():
            for row in candidates:
                for key in list(self.snapshot.nodes.pods[row]):
                    self.snapshot.remove_pod(key)
            slots = self.cycle.free_slots(pod)
        best = max(candidates, key=lambda row: int(slots[row]), default=None)
        if best is None or slots[best] <= 0:
            return []
        count = -(-members // int(slots[best]))
        like = self.snapshot.nodes.names[best]
        whose = name if name and name != "cluster" else "the cluster"
        nodes = f"{count} more node{'s'[: count > 1]}"
        text = f"would fit if {whose} had {nodes} like {like}"
        return [Suggestion(text, changes=count)]

    def _most_promising(self, unit: Unit) -> tuple[str, Rows | None]:
        """Return the domain that already offers the most; without gathering, the cluster."""
        if not self.runtime["placement_generate"]:
            return "", None
        answer = self.cycle.offers(unit)
        if answer.candidates:
            return answer.candidates[0].name, answer.candidates[0].rows
        # Room for the whole unit comes first, then what is free of it already.
        large = [t for t in answer.refused if t.rows is not None and t.nodes]
        if large:
            best = max(large, key=lambda t: (t.nodes >= len(unit.pods), t.offered or 0))
            return best.name, best.rows
        return "", None


_HEAD = re.compile(r"would fit (?:on \S+ )?")


def _tail(text: str) -> str:
    """Return the change alone: "if 2 CPUs were freed on n0"."""
    return _HEAD.sub("", text, count=1)


def _together(found: Sequence[Suggestion], where: str) -> list[Suggestion]:
    """Join what each member of a gang needs."""
    if not found:
        return []
    texts = list(dict.fromkeys(one.text for one in found))
    ends = tuple(dict.fromkeys(key for one in found for key in one.ends))
    first, *others = texts
    if len(others) >= _MOST_STEPS:
        text = f"{first}, and so on for {len(found)} members{where}"
    else:
        tails = [other.removeprefix("would fit if ") for other in others]
        text = f"{' and '.join([first, *tails])}{where}"
    return [Suggestion(text, ends, max(one.changes for one in found))]


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
