"""What would help a unit that is pending: the smallest changes, each tried before it is told."""

from __future__ import annotations

from collections.abc import Iterable
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
from bayplan.runtime import Runtime, guard
from bayplan.snapshot import PodInfo, Snapshot

__all__ = ["Diagnosis"]

_MOST = 3
_MOST_STEPS = 8
_MOST_TRIED = 64


@dataclass
class Diagnosis:
    """Finds remedies for units of one profile on one snapshot; leaves the snapshot as it was."""

    runtime: Runtime
    evaluator: Evaluator
    cycle: Cycle
    snapshot: Snapshot

    def suggest(self, unit: Unit, now: float) -> list[str]:
        """Return at most three changes that would let the unit run, the smallest first."""
        self.snapshot.sync()
        held = [reason for pod in unit.pods if (reason := self._gate(pod))]
        if len(held) == len(unit.pods) and len(unit.pods) >= unit.min_placed:
            return [f"will be tried when it is no longer held back: {held[0]}"]
        if len(unit.pods) < unit.min_placed:
            missing = unit.min_placed - len(unit.pods)
            return [f"would be tried once {missing} more member{'s'[: missing > 1]} existed"]
        if unit.nominated:
            nodes = ", ".join(sorted(set(unit.nominated.values()), key=natural_key)[:_MOST_STEPS])
            return [f"will run when the pods that still end on {nodes}, held for it, are gone"]
        if self._fits(unit, now):
            return ["would fit now, and will be tried again after its delay"]
        found = [f"would fit {text}" for text in self._relaxations(unit, now)]
        if unit.gang is None:
            pod = unit.pods[0]
            found += [remedy.text for remedy in self._remedies(pod, None, frozenset((pod.key,)))]
        else:
            found += self._gang_remedies(unit)
        return found[:_MOST]

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

    def _relaxations(self, unit: Unit, now: float) -> list[str]:
        texts = []
        for call in self.runtime["relax"]:
            for text, weaker in guard(call, _relaxed, call(unit)):
                if self._fits(weaker, now):
                    texts.append(text)
        return texts

    def _remedies(
        self, pod: PodInfo, rows: npt.NDArray[np.intp] | None, unit: frozenset[str]
    ) -> list[Remedy]:
        """Return the cheapest remedy of each plugin that alone stands between pod and node.

        ``unit`` are the keys of the pods that have to stay.
        """
        found = self.evaluator.evaluate(pod)
        if found.refusal is not None:
            return []
        view = self.snapshot.view()
        allowed = None if rows is None else set(rows.tolist())
        best: list[Remedy] = []
        for call in self.runtime["remedies"]:
            if call.name in found.skipped["pre_filter"]:
                continue
            offers = guard(call, _as_remedies, call(pod, view, found.state), len(view))
            fitting = [
                remedy
                for remedy in offers
                if remedy.row is None
                or (
                    (allowed is None or remedy.row in allowed)
                    and _only_refused_by(call.name, found, remedy.row)
                )
            ]
            for remedy in sorted(fitting, key=_remedy_order):
                if not remedy.frees or self._fits_without_others(pod, remedy.row, unit):
                    best.append(remedy)
                    break
        return sorted(best, key=_remedy_order)

    def _fits_without_others(self, pod: PodInfo, row: int | None, unit: frozenset[str]) -> bool:
        """Whether a node would take the pod if no other unit's pods were there."""
        if row is None:
            return False
        with self.snapshot.trial():
            for key in list(self.snapshot.nodes.pods[row]):
                if key not in unit:
                    self.snapshot.remove_pod(key)
            return bool(self.evaluator.evaluate(pod).feasible[row])

    def _gang_remedies(self, unit: Unit) -> list[str]:
        """Place as many members as fit in the most promising domain, and mend for the others."""
        name, rows = self._most_promising(unit)
        texts: list[str] = []
        keys = frozenset(pod.key for pod in (*unit.pods, *(bound for bound, _ in unit.bound)))
        with self.snapshot.trial():
            for pod in unit.pods:
                row = self.evaluator.evaluate(pod).best(rows)
                if row is None:
                    remedies = self._remedies(pod, rows, keys)
                    row = remedies[0].row if remedies else None
                    if row is None:
                        return [remedy.text for remedy in remedies[:1]]
                    texts.append(remedies[0].text)
                    if len(texts) > _MOST_TRIED:
                        return []
                self.snapshot.add_pod(pod, self.snapshot.nodes.names[row])
        if not texts:
            return []
        where = f" (in {name})" if name else ""
        first, *others = list(dict.fromkeys(texts))
        if len(others) >= _MOST_STEPS:
            return [f"{first}, and so on for {len(texts)} members{where}"]
        tails = [text.removeprefix("would fit if ") for text in others]
        return [f"{' and '.join([first, *tails])}{where}"]

    def _most_promising(self, unit: Unit) -> tuple[str, npt.NDArray[np.intp] | None]:
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


def _only_refused_by(plugin: str, found: Evaluation, row: int) -> bool:
    refused = [column.call.name for column in found.filters if column.mask[row]]
    return refused == [plugin]


def _remedy_order(remedy: Remedy) -> tuple[object, ...]:
    return (remedy.row is None, remedy.cost, natural_key(remedy.text))
