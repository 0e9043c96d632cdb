"""Which pending pods lack nodes: the reason of their PodScheduled condition.

Autoscalers add nodes for pods with the reason ``Unschedulable`` and skip those with any other one,
whatever the message says. So a gang or a job of a queue has another reason while its queue, a
missing member, a gate or an eviction holds it back. A single pod without a queue has that of
kube-scheduler, whatever refuses it. Of the units that no node takes, only as many ask for nodes
as their queues would take together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeGuard

import msgspec
from msgspec.structs import replace

from bayplan.errors import PluginError
from bayplan.plugin.base import NodeRequest, Unit
from bayplan.plugin.decision import NODES_LACK, NOT_READY, Decision, Outcome
from bayplan.scheduler.known_refusals import Refusal
from bayplan.scheduler.nominator import Nomination
from bayplan.scheduler.queued_unit import Place, QueuedUnit
from bayplan.scheduler.refused_units import GroupedUnits, RefusedUnit
from bayplan.scheduler.state import SchedulerState

__all__ = ["AskedNodes", "NodeDemand"]

_MOST_REASONS = 256
"""So many units get a reason between two looks at the queue."""
_KINDS_AT_ONCE = 64
"""So many kinds of units that were held back are looked at again at once."""


def _lacks_nodes(decision: Decision, nomination: Nomination | None = None) -> bool:
    """Tell whether nodes are what a unit lacks.

    :param nomination: its nominated nodes, if any.
    """
    evicting = nomination is not None and bool(nomination.victims)
    held = decision.held_by_queue or decision.of_members or decision.at_permit or evicting
    return not held


class AskedNodes(msgspec.Struct, frozen=True):
    """A unit that asks autoscalers for nodes, and for how many pods.

    ``text`` says what asks in the pods' place, "" if they do themselves. ``kept`` are the nodes
    that came for it so far and are kept.
    """

    unit: str
    pods: int
    text: str
    kept: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {"unit": self.unit, "pods": self.pods, "text": self.text, "kept": list(self.kept)}


class NodeDemand:
    """Tells units why they wait, and which of them autoscalers may add nodes for.

    Those of queues hear it once nothing is left to try, the others at once.
    """

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._answered: dict[str, RefusedUnit] = {}
        """The units whose nodes plugins ask for, by key."""
        self._again: dict[str, float] = {}
        """When plugins are to be asked again about these, in seconds."""
        self._following: set[str] = set()
        """The units that plugins are asked about again after every change."""
        self._seen_by_plugins = -1
        self._unrecorded: dict[str, Decision] = {}
        """What refused units that do not know it yet, by key."""
        self._asking = GroupedUnits(lambda one: one.queued.queue)
        """The units that ask for nodes by queue, in the order in which they were refused."""
        self._asking_alike = GroupedUnits(_alike)
        """The same ones by what queues count of them."""
        self._held = GroupedUnits(lambda one: one.kind)
        """The units that no node takes and that their queues would not take beside those."""
        self._seen = (-1, -1)

    def tell_later(self, key: str, decision: Decision) -> None:
        """Tell a unit of a queue, once nothing is left to try, why no action placed it."""
        self._unrecorded[key] = decision

    def tell(self) -> bool:
        """Tell some units why they wait; return whether there were any."""
        state = self._state
        at = state.events, len(state.snapshot.placed)
        changed, self._seen = at != self._seen, at
        if self._unrecorded or (changed and (self._asking or self._held)):
            self._forget_gone()
        reported: dict[str, RefusedUnit] = {}
        fresh: list[RefusedUnit] = []
        # What asks already, and was refused once more, asks on until its queue is overtaken.
        for one in self._take_unrecorded():
            if one.unit.key in self._asking and not one.decision.held_by_queue:
                reported[one.unit.key] = one
                self._ask_for(one)
            else:
                fresh.append(one)
        if fresh or (changed and (self._asking or self._held)):
            reported |= {one.unit.key: one for one in self._weigh(fresh, changed)}
        for one in reported.values():
            state.remember(one.decision)
            self._report(one)
            for gang in state.gangs.gangs_of(one.unit.key) if one.unit.gang is not None else ():
                state.changed_gangs.add(gang)
        return bool(reported)

    # What plugins ask for ------------------------------------------------------------------

    def report(self, queued: QueuedUnit, unit: Unit, decision: Decision) -> None:
        """Write into the pods of a unit that was refused why they have no node."""
        self._report(RefusedUnit(queued, unit, decision))

    def _report(self, one: RefusedUnit) -> None:
        nomination = self._state.nominator.get(one.unit.key)
        lacks = _lacks_nodes(one.decision, nomination)
        # A pod without gang and queue has kube-scheduler's reason, whatever refuses it.
        known = lacks or (one.unit.gang is None and not one.queued.queue)
        reason, decision = NODES_LACK if known else NOT_READY, one.decision
        answer = self._ask(one, lacks)
        if answer is not None and answer.text:
            reason, decision = NOT_READY, _with_text(decision, answer.text)
            # What explains a pod says it, too.
            self._state.remember(decision)
        nodes = answer.promised if answer is not None else {}
        if nomination is not None:
            nodes = nomination.nodes
        # A queue counts the least that a gang needs, so no more of its pods may ask.
        asking = one.count if one.queued.queue else len(one.unit.pods)
        self._state.recorder.refused(one.unit, decision, reason, nodes, asking)

    def _ask(self, one: RefusedUnit, lacks: bool) -> NodeRequest | None:
        """Let plugins ask for the nodes of a unit, if it lacks any."""
        key = one.unit.key
        profile = self._state.profiles.of(one.unit.pods[0].pod)
        calls = profile.runtime["request_nodes"] if profile is not None else ()
        self._again.pop(key, None)
        self._following.discard(key)
        if not calls or (not lacks and key not in self._answered):
            return None
        answer: NodeRequest | None = None
        for call in calls:
            try:
                answer = answer or call(one.unit, one.decision if lacks else None)
            except PluginError as exc:
                self._state.recorder.plugin_failed(one.unit.pods[0], exc)
        if answer is None:
            self._answered.pop(key, None)
            return None
        self._answered[key] = replace(one, answer=answer)
        if answer.again is not None:
            self._again[key] = answer.again
        if answer.follows:
            self._following.add(key)
        if answer.gave_up:
            # Its queue would admit others in its place: they are weighed again.
            if self._end_asking(key) is not None:
                self._seen = (-1, -1)
        elif one.queued.queue and key not in self._asking:
            self._unrecorded.setdefault(key, one.decision)
        return answer

    def ask_again(self) -> bool:
        """Ask plugins again after changes, and when they wanted it; tell whether there was any."""
        state = self._state
        if not self._answered:
            return False
        changed, self._seen_by_plugins = state.events != self._seen_by_plugins, state.events
        units = state.queue.units
        held = [k for k in self._answered if not _is_tried(units.get(k))] if changed else []
        for key in held:
            queued = units.get(key)
            if queued is None or queued.place is not Place.IN_FLIGHT:
                self._ask(self._answered[key], lacks=False)
                self._answered.pop(key, None)
        due = [key for key, at in self._again.items() if at <= state.now]
        for key in due:
            # One that is being bound is asked about once it is refused again.
            del self._again[key]
        keys = dict.fromkeys((*due, *(sorted(self._following) if changed else ())))
        tried = [queued for key in keys if _is_tried(queued := units.get(key))]
        for queued in tried:
            one = self._answered[queued.key]
            self._report(replace(one, queued=queued, unit=state.unit(queued)))
        return bool(held or tried)

    def next_time(self) -> float | None:
        """Return when a plugin wants to be asked again, in seconds; None for never."""
        return min(self._again.values(), default=None)

    def _weigh(self, fresh: Sequence[RefusedUnit], changed: bool) -> list[RefusedUnit]:
        """Return the reasons of units that were refused, and of others whose reason has changed."""
        for one in fresh:
            self._end_asking(one.unit.key)
            self._held.pop(one.unit.key)
        with self._state.snapshot.trial():
            self._suppose_asking()
            reported = [self._weighed(one) for one in fresh]
            if changed:
                reported += [*self._overtaken(), *self._openings()]
        return reported

    def _forget_gone(self) -> None:
        """Drop the units that are gone, have nodes, or wait behind gates, and follow the others."""
        for key in self._gone(self._asking):
            self._end_asking(key)
        for key in self._gone(self._held):
            self._held.pop(key)
        for key in self._gone(self._unrecorded):
            del self._unrecorded[key]
        for one in self._asking.moved():
            self._ask_for(one)
        for one in self._held.moved():
            self._held.add(one)

    def _gone(self, keys: Iterable[str]) -> list[str]:
        units = self._state.queue.units
        found = []
        for key in keys:
            queued = units.get(key)
            if queued is None or queued.place in (Place.GATED, Place.IN_FLIGHT):
                found.append(key)
        return found

    def _ask_for(self, one: RefusedUnit) -> None:
        self._asking.add(one)
        self._asking_alike.add(one)

    def _end_asking(self, key: str) -> RefusedUnit | None:
        self._asking_alike.pop(key)
        return self._asking.pop(key)

    def _take_unrecorded(self) -> list[RefusedUnit]:
        queue = self._state.queue
        keys = list(self._unrecorded)[:_MOST_REASONS]
        found = {key: self._unrecorded.pop(key) for key in keys}
        for key, refusal in queue.take_unrecorded(_MOST_REASONS).items():
            found.setdefault(key, self._as_equivalent(key, refusal))
        units = [queue.units[key] for key in found]
        return [RefusedUnit(one, self._state.unit(one), found[one.key]) for one in units]

    def _as_equivalent(self, key: str, refusal: Refusal) -> Decision:
        """Return the decision on a unit that was not tried, as one that needs no more was refused.

        What refused that one refuses this one, too: its queue, which is the same, or the nodes.
        """
        state = self._state
        known = state.decisions.get(refusal.unit)
        decision = Decision(key, state.statistics.cycles, state.now)
        why = f": {known.message}" if known is not None and known.message else "."
        decision.message = f"skipped: equivalent to {refusal.unit}, which did not fit{why}"
        decision.refused_by = set(known.refused_by) if known is not None else set()
        decision.of_queue = refusal.held
        return decision

    # What is asked for ------------------------------------------------------------------------

    def asked(self, most: int) -> list[AskedNodes]:
        """Return the units that ask for nodes now, no more than so many."""
        units = self._state.queue.units.items()
        found = (self._asked_for(key, queued) for key, queued in units if _is_tried(queued))
        return list(islice((one for one in found if one is not None), most))

    def _asked_for(self, key: str, queued: QueuedUnit) -> AskedNodes | None:
        """Return what a unit asks for, None if it does not."""
        answered = self._answered.get(key)
        answer = answered.answer if answered is not None else None
        decision = self._state.decisions.get(key)
        if decision is None or decision.outcome is not Outcome.UNSCHEDULABLE:
            return None
        if not _lacks_nodes(decision, self._state.nominator.get(key)):
            return None
        if (queued.queue and key not in self._asking) or (answer is not None and answer.gave_up):
            return None
        unit = self._state.unit(queued)
        one = RefusedUnit(queued, unit, decision)
        kept = sorted(set(answer.promised.values())) if answer is not None else ()
        count = one.count if queued.queue else len(unit.pods)
        return AskedNodes(key, count, answer.text if answer is not None else "", kept)

    # As many as queues take ----------------------------------------------------------------

    def _weighed(self, one: RefusedUnit) -> RefusedUnit:
        """Let a unit ask for nodes if its queue would take it beside those that ask already."""
        if not _lacks_nodes(one.decision):
            return one
        refusal = self._queue_refusal(one.unit)
        if not refusal:
            self._ask_for(one)
            self._state.snapshot.suppose(*one.least)
            return one
        self._held.add(one)
        message = f"{one.decision.message} More nodes alone would not help: {refusal}"
        return replace(one, decision=replace(one.decision, message=message, of_queue=True))

    def _overtaken(self) -> Iterator[RefusedUnit]:
        """Yield the units that asked for nodes until others took what their queue had left."""
        for queue in list(self._asking.groups):
            while (key := self._asking.last_of(queue)) is not None:
                one = self._end_asking(key)
                assert one is not None, "it is the last of its queue"
                pods, times = one.least
                self._state.snapshot.suppose(pods, -times)
                reported = self._weighed(one)
                if key in self._asking:
                    break
                yield reported

    def _openings(self) -> Iterator[RefusedUnit]:
        """Yield the units that were held back and that their queues would take now."""
        for units in list(self._held.groups.values())[:_KINDS_AT_ONCE]:
            for key, one in list(units.items()):
                reported = self._weighed(one)
                if key not in self._asking:
                    break
                self._held.pop(key)
                yield reported

    def _suppose_asking(self) -> None:
        """Let queues count the units that ask for nodes as placed, all of a kind at once."""
        for units in self._asking_alike.groups.values():
            # Equivalent units have equal pods; only their number differs.
            pods, _ = next(iter(units.values())).least
            self._state.snapshot.suppose(pods, sum(one.least[1] for one in units.values()))

    def _queue_refusal(self, unit: Unit) -> str:
        """Return why a unit's queue would not take it if there were nodes, "" if it would."""
        profile = self._state.profiles.of(unit.pods[0].pod)
        try:
            refused = profile.cycle.queue_refusal(unit) if profile is not None else None
        except PluginError as exc:
            self._state.recorder.plugin_failed(unit.pods[0], exc)
            return ""
        return refused.reason if refused is not None and not refused.more_nodes else ""


def _alike(one: RefusedUnit) -> Hashable:
    """Return what units have in common that a queue counts alike."""
    return one.queued.queue, one.equivalence, len(one.least[0])


def _is_tried(queued: QueuedUnit | None) -> TypeGuard[QueuedUnit]:
    """Tell whether a unit waits in the queue to be tried, with nothing else to hold it back."""
    if queued is None or not queued.pods:
        return False
    return queued.place not in (Place.GATED, Place.IN_FLIGHT)


def _with_text(decision: Decision, text: str) -> Decision:
    """Return a decision with a sentence more for each pod that has none of its own to say."""
    if decision.message:
        return replace(decision, message=_joined(decision.message, text))
    pods = {key: replace(p, message=_joined(p.message, text)) for key, p in decision.pods.items()}
    return replace(decision, pods=pods)


def _joined(before: str, text: str) -> str:
    """Return two sentences; kube-scheduler's may have no full stop."""
    end = "." if before and before[-1] not in ".?!" else ""
    return f"{before}{end} {text}".strip()
