"""Preemption carried out: nominate nodes for a unit, evict the victims, give up when refused.

Victims covered by a disruption budget are evicted first, one by one. When the cluster refuses one,
no other pod is evicted, the nomination ends, and that pod is in cooldown: for a while no plugin
chooses it as a victim.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from bayplan.api.times import seconds_of
from bayplan.cluster.protocol import Done, Evict
from bayplan.dialects.progress import EVICTION_NOTICE, min_runtime
from bayplan.errors import ClusterError, NotFound, PluginError
from bayplan.plugin.base import Eviction, Overdue, Preemption, Unit
from bayplan.plugin.events import ClusterEvent
from bayplan.queues.lost_work import LostWork, saved_at, started_at
from bayplan.scheduler.nominator import Nomination
from bayplan.scheduler.notices import Notices
from bayplan.scheduler.state import SchedulerState
from bayplan.snapshot import PodInfo

__all__ = ["Evictor"]

NOMINATION_SECONDS = 600.0
"""Seconds that nodes stay nominated for a unit that states no time of its own."""
COOLDOWN_SECONDS = 60.0
"""Seconds for which a pod is not chosen again after its eviction was refused."""
_AFTER_GRACE = 60.0
_NOTICES = 10
"""So many times its notice a pod is left alone whose eviction was refused."""
_REMEMBERED = 100_000


class _Reported(msgspec.Struct, frozen=True):
    """What is overdue; what is reported to each victim, by key; how many go of each gang."""

    overdue: Overdue
    reasons: Mapping[str, str]
    together: Mapping[str | None, int]


class Evictor:
    """Carries out preemptions; the state's nominator holds the nodes.

    :param cancel_placement: takes back the node of a pod that is assumed on it and whose binding
        is not written yet; False when there is no such pod, so that it has to be evicted.
    """

    def __init__(self, state: SchedulerState, cancel_placement: Callable[[PodInfo], bool]) -> None:
        self._state = state
        self._cancel_placement = cancel_placement
        self._nominator = state.nominator
        self._recorder = state.recorder
        self._cooldowns: dict[str, float] = {}
        self._young: dict[str, float] = {}
        """Until when pods, by uid, have not run for their minimum."""
        self._ages: list[tuple[float, str, str]] = []
        """The same as a heap, with the keys of the pods; some may be gone, or ask for less."""
        state.snapshot.on_living(self._living_changed)
        self._notices = Notices(state.cluster, state.snapshot)
        self._evicting: dict[str, float] = {}
        """When pods were evicted, by uid, for which no unit waits and that may not say so yet."""
        self._work = LostWork.of(state.snapshot)
        self._saved: tuple[float, dict[str, float]] = (0.0, {})
        """When gangs, by key, saved their work last, as asked at a time."""
        self.evicted: deque[Eviction] = deque(maxlen=_REMEMBERED)
        """The latest evictions, oldest first."""

    def in_cooldown(self, pod_key: str) -> bool:
        """Tell whether a pod's eviction was refused too recently to choose it again."""
        until = self._cooldowns.get(pod_key)
        return until is not None and until > self._state.now

    def is_young(self, pod: PodInfo) -> bool:
        """Tell whether a pod has not run for the minimum that it states."""
        until = self._young.get(pod.uid)
        return until is not None and until > self._state.now

    def started(self, pod: PodInfo) -> None:
        """Note that a pod has started, or changed: it is no victim for its minimum."""
        started = pod.pod.status.start_time
        seconds = min_runtime(pod.annotations) if started else 0.0
        if not started or not seconds:
            self._young.pop(pod.uid, None)
            return
        ran = max(0.0, self._state.cluster.unix_time - seconds_of(started))
        until = self._state.now + seconds - ran
        if seconds > ran and self._young.get(pod.uid) != until:
            self._young[pod.uid] = until
            heapq.heappush(self._ages, (until, pod.uid, pod.key))

    def _living_changed(self, pod: PodInfo, added: bool) -> None:
        if not added and pod.uid in self._young and not self._state.snapshot.is_living(pod):
            del self._young[pod.uid]

    def _grown_up(self) -> list[str]:
        """Return the keys of the pods on nodes that have run for their minimum by now."""
        found = []
        while self._ages and self._ages[0][0] <= self._state.now:
            until, uid, key = heapq.heappop(self._ages)
            if self._young.get(uid) == until:
                del self._young[uid]
                found.append(key)
        return [key for key in found if key in self._state.snapshot.placed]

    def next_times(self) -> list[float]:
        """Return when ``tick`` has something to do, in seconds."""
        nominated = (one.until for one in self._nominator.all())
        ages = [self._ages[0][0]] if self._ages else []
        return [*nominated, *self._cooldowns.values(), *ages, *self._notices.next_times()]

    def tick(self) -> None:
        """End nominations and cooldowns whose time is over."""
        now = self._state.now
        self._notices.tick()
        for nomination in self._nominator.all():
            if nomination.until <= now:
                self.give_up(nomination)
        seen = [uid for uid, at in self._evicting.items() if at + COOLDOWN_SECONDS <= now]
        for uid in seen:
            del self._evicting[uid]
        over = [key for key, until in self._cooldowns.items() if until <= now]
        for key in over:
            del self._cooldowns[key]
        over += self._grown_up()
        for key in over:
            self._touch(key)
        if over:
            # A unit that was refused because it found no victims may preempt now.
            self._state.broadcast(ClusterEvent.POD_REMOVED)

    # Nominating --------------------------------------------------------------------------

    def nominate_part(self, unit: Unit, nodes: Mapping[str, str]) -> None:
        """Let the members of a gang that is not strict keep the nodes that they found."""
        before = self._nominator.get(unit.key)
        if before is not None and before.victims:
            return
        until = before.until if before is not None else self._state.now + _nomination_time(unit)
        pods = [pod for pod in unit.pods if pod.key in nodes]
        self._nominator.add(Nomination(unit.key, pods, nodes, until, set()))

    def read_back(self, unit: Unit) -> None:
        """Nominate the nodes that the status of a unit's pods names, if any.

        A process before this one nominated them, or another component. Pods that were evicted from
        them are waited for.
        """
        pods = [pod for pod in unit.pods if pod.pod.status.nominated_node_name]
        nodes = {pod.key: pod.pod.status.nominated_node_name for pod in pods}
        names = set(nodes.values())
        there = [pod for pod, node in self._state.snapshot.placed.values() if node in names]
        noticed = (pod for pod in there if EVICTION_NOTICE in pod.annotations)
        given = [pod for pod in noticed if not self._ends(pod)]
        victims = [*given, *(pod for pod in there if _was_evicted(pod))]
        until = self._state.now + self._seconds(unit, victims)
        found = Nomination(unit.key, pods, nodes, until, {pod.key for pod in victims}, stated=True)
        found.action = "preempt" if victims else ""
        self._nominator.add(found)
        self._evict_with_notice(given, (), found)

    def give_up(self, nomination: Nomination, why: str = "") -> None:
        """End a nomination that did not lead to a placement, and let other units go first."""
        self._nominator.drop(nomination.unit)
        for pod in nomination.pods:
            self._recorder.nomination_ended(pod, why)
        self._state.queue.postpone(nomination.unit, self._state.now)
        self._state.broadcast(ClusterEvent.POD_REMOVED)

    def release(self, pod_key: str) -> None:
        """End the nomination of a pod's unit, because the pod changed, is bound or is gone."""
        unit = self._nominator.unit_of(pod_key)
        if unit is not None:
            self._nominator.drop(unit)

    # Evicting ----------------------------------------------------------------------------

    def preempt(self, unit: Unit, preemption: Preemption, action: str) -> None:
        """Nominate the nodes for the unit and evict their victims, those with a budget first.

        :param action: how room is made, for the records.
        """
        victims: list[PodInfo] = []
        waited_for: set[str] = set()
        for victim in preemption.victims:
            nominated_unit = self._nominator.unit_of(victim.key)
            other = self._nominator.get(nominated_unit) if nominated_unit is not None else None
            ends = self._ends(victim) and not self._notices.waits(victim)
            if ends or victim.key in preemption.leaving:
                waited_for.add(victim.key)
            elif other is not None:
                self.give_up(other, f"its nodes were taken by {unit.key}, of higher priority")
            elif nominated_unit is None and not self._cancel_placement(victim):
                victims.append(victim)
                waited_for.add(victim.key)
        pods = [pod for pod in unit.pods if pod.key in preemption.nodes]
        waited_for |= self._followers(victims, pods, preemption.nodes)
        until = self._state.now + self._seconds(unit, victims)
        nodes, domain = preemption.nodes, preemption.domain
        why, moves = preemption.reason, preemption.moves
        made = Nomination(unit.key, pods, nodes, until, waited_for, domain, why, moves, action)
        made.reasons = preemption.reasons
        made.together = Counter(victim.gang for victim in victims if victim.gang is not None)
        self._nominator.add(made)
        keys = [victim.key for victim in victims]
        for pod in pods:
            self._recorder.nominated(pod, nodes[pod.key], keys, len(waited_for))
        self._evict_with_notice(victims, preemption.guarded, made)

    def _ends(self, pod: PodInfo) -> bool:
        """Tell whether a pod goes already; one that has notice of a dead process does not."""
        if pod.uid in self._evicting or self._notices.waits(pod):
            return True
        if pod.pod.metadata.deletion_timestamp is not None:
            return True
        return pod.terminating and EVICTION_NOTICE not in pod.annotations

    def _seconds(self, unit: Unit, victims: Sequence[PodInfo]) -> float:
        """Return for how long nodes stay nominated for a unit that waits for victims."""
        stays = max(
            (v.spec.termination_grace_period_seconds + self._notices.seconds(v) for v in victims),
            default=0,
        )
        return max(_nomination_time(unit), stays + _AFTER_GRACE)

    def _followers(
        self, victims: Sequence[PodInfo], pods: Sequence[PodInfo], nodes: Mapping[str, str]
    ) -> set[str]:
        """Return the pods, by key, that go once victims have, such as one that holds their GPU.

        None if the pods that come need such ones themselves: these stay for them.

        :param nodes: where those pods come, by key.
        """
        snapshot = self._state.snapshot
        names = {snapshot.placed[one.key][1] for one in victims if one.key in snapshot.placed}
        rows = [snapshot.nodes.row_of[name] for name in names if name in snapshot.nodes.row_of]
        before = {key for row in rows for key in snapshot.nodes.pods[row]}
        if before <= {one.key for one in victims}:
            return set()
        with snapshot.trial():
            for one in victims:
                snapshot.remove_pod(one.key)
            left = {key for row in rows for key in snapshot.nodes.pods[row]}
            for pod in pods:
                if pod.key not in snapshot.placed:
                    snapshot.add_pod(pod, nodes[pod.key])
            come = {key for row in rows for key in snapshot.nodes.pods[row]}
        if come - before - nodes.keys():
            return set()
        gone = (before - left).intersection(self._state.pods)
        return gone.difference(one.key for one in victims)

    def _evict_with_notice(
        self, victims: Sequence[PodInfo], guarded: Container[str], nomination: Nomination
    ) -> None:
        """Evict the victims of a nomination together, once they have had their notices.

        :param guarded: those with a budget, by key; they go first.
        """

        def evict(there: Sequence[PodInfo]) -> None:
            first = [victim for victim in there if victim.key in guarded]
            others = [victim for victim in there if victim.key not in guarded]
            self._evict_all(first, others, nomination)

        self._notices.give(
            victims,
            lambda victim: nomination.reason_for(victim.key),
            evict,
            lambda: self._nominator.get(nomination.unit) is nomination,
        )

    def _evict_all(
        self, guarded: Sequence[PodInfo], others: Sequence[PodInfo], nomination: Nomination
    ) -> None:
        if not guarded:
            for victim in others:
                self._evict(victim, nomination, partial(self._answered, victim, nomination))
            return
        first, *rest = guarded

        def answered(error: ClusterError | None) -> None:
            self._answered(first, nomination, error)
            if error is None and self._nominator.get(nomination.unit) is nomination:
                self._evict_all(rest, others, nomination)

        self._evict(first, nomination, answered)

    def _evict(self, victim: PodInfo, nomination: Nomination, done: Done) -> None:
        message = nomination.reason_for(victim.key)
        self._state.cluster.submit(Evict(victim.key, victim.pod.metadata.uid, message), done)

    def evict(self, overdue: Overdue) -> None:
        """Evict pods for which no unit waits, and report to each why."""
        found = _Reported(
            overdue,
            {victim.key: reason for victim, reason in overdue.victims},
            Counter(victim.gang for victim, _ in overdue.victims),
        )
        later = {pod.gang for pod, _ in overdue.victims if pod.key not in overdue.at_once}
        for key in overdue.restarts - later:
            self._state.gangs.restart(key)
        groups: dict[str, list[PodInfo]] = {}
        for victim, _ in overdue.victims:
            at_once = victim.key in overdue.at_once
            if at_once:
                self._notices.cut_short(victim)
            if victim.uid in self._evicting or self._notices.waits(victim):
                continue
            ends = victim.pod.metadata.deletion_timestamp if at_once else self._ends(victim)
            if ends or self.in_cooldown(victim.key) or self._cancel_placement(victim):
                continue
            if at_once:
                self._evict_overdue(victim, found)
            else:
                groups.setdefault(victim.gang or victim.key, []).append(victim)
        for group in groups.values():
            self._notices.give(
                group,
                lambda victim: found.reasons[victim.key],
                lambda there: self._evict_group(there, found),
                may_go=overdue.is_wanted,
            )

    def _evict_group(self, victims: Sequence[PodInfo], found: _Reported) -> None:
        """Evict pods of one gang that have had their notices."""
        gangs = {victim.gang for victim in victims if victim.gang is not None}
        for key in found.overdue.restarts & gangs:
            self._state.gangs.restart(key)
        for victim in victims:
            self._evict_overdue(victim, found)

    def _evict_overdue(self, victim: PodInfo, found: _Reported) -> None:
        self._evicting[victim.uid] = self._state.now
        reason, lock = found.reasons[victim.key], found.overdue.locks.get(victim.key)
        write = Evict(victim.key, victim.pod.metadata.uid, reason, victim.spec.node_name, lock)
        self._state.cluster.submit(write, partial(self._evicted, victim, found))

    def _evicted(self, victim: PodInfo, found: _Reported, error: ClusterError | None) -> None:
        """Handle the cluster's answer to the eviction of a pod for which no unit waits."""
        now, action = self._state.now, found.overdue.action
        reason, together = found.reasons[victim.key], found.together[victim.gang]
        if error is not None:
            self._evicting.pop(victim.uid, None)
        if error is None or isinstance(error, NotFound):
            node = found.overdue.moves.get(victim.key, "")
            self._note(
                victim, Eviction(victim.key, now, "", reason, node, action, reason, together)
            )
            self._recorder.evicted(victim, reason)
            return
        self._recorder.warn(victim, "EvictionRefused", str(error))
        self._cool_down(victim)

    def _answered(
        self, victim: PodInfo, nomination: Nomination, error: ClusterError | None
    ) -> None:
        """Handle the cluster's answer to an eviction."""
        now, unit = self._state.now, nomination.unit
        if error is None or isinstance(error, NotFound):
            why, action = nomination.reason, nomination.action
            node = nomination.moves.get(victim.key, "")
            together = nomination.together.get(victim.gang or "", 1)
            reported = nomination.reason_for(victim.key)
            found = Eviction(victim.key, now, unit, why, node, action, reported, together)
            self._note(victim, found)
            placed = self._state.snapshot.placed.get(victim.key)
            self._recorder.preempted(victim, unit, placed[1] if placed else "")
            return
        self._recorder.warn(victim, "EvictionRefused", str(error))
        self._cool_down(victim)
        if self._nominator.get(unit) is nomination:
            refusal = f"the eviction of {victim.key} was refused: {error}"
            self.give_up(nomination, refusal)
            self._record_refusal(unit, refusal)

    def _cool_down(self, victim: PodInfo) -> None:
        """Choose a pod no more for a while; the longer, the more its notice has cost it."""
        self._notices.take_back(victim)
        seconds = COOLDOWN_SECONDS + _NOTICES * self._notices.seconds(victim)
        self._cooldowns[victim.key] = self._state.now + seconds
        self._touch(victim.key)

    def _touch(self, pod_key: str) -> None:
        """Let plugins read a pod's node again, as it may be evicted now, or no more."""
        placed = self._state.snapshot.placed.get(pod_key)
        if placed is not None:
            self._state.snapshot.touch([placed[1]])

    def _note(self, victim: PodInfo, eviction: Eviction) -> None:
        """Remember an eviction, and let observers and plugins know of it."""
        eviction = replace(eviction, lost=self._lost(victim))
        self.evicted.append(eviction)
        self._state.observer.evicted(victim, eviction.action)
        profiles = self._state.profiles
        profile = profiles.of(victim.pod) or profiles.first
        for call in profile.runtime["post_evict"]:
            try:
                call(victim, eviction)
            except PluginError as exc:
                self._recorder.log_failure(exc)

    def _lost(self, victim: PodInfo) -> int:
        """Return the work that a pod has not saved, in thousandths of a GPU times seconds."""
        gpus = self._work.gpus(victim)
        if not gpus:
            return 0
        since = max(started_at(victim), self._saved_at(victim))
        return gpus * max(0, int(self._state.cluster.unix_time - since)) if since < math.inf else 0

    def _saved_at(self, victim: PodInfo) -> float:
        """Return when a pod's gang saved its work last; asked for all members at one time."""
        if victim.gang is None:
            return saved_at(victim)
        now, known = self._saved
        if now != self._state.now:
            known = {}
            self._saved = self._state.now, known
        if victim.gang not in known:
            members = self._state.gangs.all().get(victim.gang)
            bound = members.bound.values() if members is not None else ()
            known[victim.gang] = max((saved_at(pod) for pod, _ in bound), default=0.0)
        return max(known[victim.gang], saved_at(victim))

    def _record_refusal(self, unit: str, refusal: str) -> None:
        """Write into the decision that its preemption was refused."""
        decision = self._state.decisions.get(unit)
        if decision is not None:
            fit, _, _ = decision.message.rpartition("preemption: ")
            decision.message = f"{fit}preemption: {refusal}."
            decision.preemption = tuple(
                replace(trial, chosen=False, refusal=refusal) if trial.chosen else trial
                for trial in decision.preemption
            )


def _was_evicted(pod: PodInfo) -> bool:
    """Tell whether a pod ends because it was evicted."""
    conditions = pod.pod.status.conditions
    return pod.terminating and any(
        one.type == "DisruptionTarget" and one.status == "True" for one in conditions
    )


def _nomination_time(unit: Unit) -> float:
    """Return for how many seconds nodes stay nominated for a unit."""
    return unit.gang.wait if unit.gang is not None and unit.gang.wait else NOMINATION_SECONDS
