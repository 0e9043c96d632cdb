"""What the queue asks the plugins: gates, the order of units, and which events help which units."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from weakref import WeakKeyDictionary

import msgspec

from bayplan.api.gang import Gang
from bayplan.errors import PluginError
from bayplan.gangs.directory import GangDirectory, GangMembers
from bayplan.plugin.base import Unit
from bayplan.plugin.events import ClusterEvent
from bayplan.profiles.runtime import HookCall, Runtime
from bayplan.scheduler.active_profiles import ActiveProfiles
from bayplan.scheduler.nominator import Nomination, Nominator
from bayplan.scheduler.queued_unit import Gate, QueuedUnit
from bayplan.scheduler.recorder import Recorder
from bayplan.snapshot import PodInfo, Snapshot

__all__ = ["RequeueRules"]

_MOST_SIGNATURES = 4096
_MOST_MATCHES = 4096
"""Pods of a unit times its sub-groups, up to which its equivalence is looked for."""


class _Known(msgspec.Struct, frozen=True, eq=False):
    """A queued unit, and what it was made of: ``changes`` counts those of the unit and its gang."""

    unit: Unit
    members: GangMembers | None
    nomination: Nomination | None
    changes: tuple[int, int]


class RequeueRules:
    """The rules of one scheduler's queue (``bayplan.scheduler.queued_unit.QueueRules``)."""

    def __init__(
        self,
        profiles: ActiveProfiles,
        gangs: GangDirectory,
        nominator: Nominator,
        recorder: Recorder,
        snapshot: Snapshot,
    ) -> None:
        self._profiles = profiles
        self._gangs = gangs
        self._nominator = nominator
        self._recorder = recorder
        self._snapshot = snapshot
        self._signatures: dict[Hashable, Hashable] = {}
        self._units: WeakKeyDictionary[QueuedUnit, _Known] = WeakKeyDictionary()

    def gate(self, pod: PodInfo) -> Gate | None:
        """Return the plugin whose ``pre_enqueue`` holds a pod back, and why; or None."""
        profile = self._profiles.of(pod.pod)
        assert profile is not None, "only pods of a profile are queued"
        try:
            calls = profile.runtime.of(pod)["pre_enqueue"]
        except PluginError as exc:
            self._recorder.log_failure(exc)
            # Whom the pod concerns may follow from objects of any kind.
            return Gate(str(exc), "")
        for call in calls:
            try:
                refusal: str | None = call.call(pod)
            except PluginError as exc:
                self._recorder.log_failure(exc)
                refusal = str(exc)
            if refusal is not None:
                return Gate(refusal, call.name)
        return None

    def reads_at_gate(self, plugin: str, kinds: Set[type]) -> bool:
        """Tell whether a plugin's ``pre_enqueue`` reads objects of any of some kinds."""
        for profile in self._profiles.by_name.values():
            found = profile.runtime.plugins.get(plugin)
            reads = found.gate_reads if found is not None else None
            if reads is None or any(kind in reads for kind in kinds):
                return True
        return False

    def sort_key(self, queued: QueuedUnit) -> tuple[float, ...]:
        """Return a unit's key in its queue: that of the queue's order, or else ``queue_sort``."""
        unit = self._plain_unit(queued)
        queueing = self._runtime_of(unit).queueing
        try:
            own = queueing.order(unit, queued.added) if queueing is not None else None
            if own is not None:
                return own
            key: tuple[float, ...] = self._profiles.first.runtime["queue_sort"][0].call(
                unit, queued.added
            )
        except PluginError as exc:
            self._recorder.plugin_failed(unit.pods[0], exc)
            return (-float(unit.priority), queued.added)
        return key

    def queue_of(self, queued: QueuedUnit) -> str:
        """Return the queue of a unit, "" for none."""
        if not self._has_queues():
            return ""
        unit = self._plain_unit(queued)
        queueing = self._runtime_of(unit).queueing
        try:
            return (queueing.queue_of(unit) if queueing is not None else None) or ""
        except PluginError as exc:
            self._recorder.plugin_failed(unit.pods[0], exc)
        return ""

    def equivalence(self, queued: QueuedUnit) -> tuple[Hashable, int]:
        """Return a unit's equivalence, and how many of its pods have to be placed at once.

        Units whose pods differ within a sub-group, or that depend on anything but resources and
        their gang's network, have one of their own; so has a unit with nominated nodes, which are
        free for it alone, and one that lacks pods, as some are behind gates: no node refused those.
        Where a plugin may refuse a unit and does not say by what it tells pods apart, all are
        different.
        """
        unit = self._plain_unit(queued)
        size = unit.min_placed
        if len(unit.pods) < size:
            return (queued.key, len(unit.pods)), size
        alone = (
            unit.counted
            or self._nominator.get(queued.key) is not None
            or (unit.gang is not None and unit.gang.together)
        )
        groups = None if alone else _by_sub_group(unit)
        if groups is None:
            return queued.key, size
        counted = unit.gang is not None and bool(unit.gang.sub_groups)
        found: list[Hashable] = [unit.pods[0].spec.scheduler_name, _network(unit.gang)]
        for names, pods in sorted(groups.items()):
            alike = self._alike(unit, pods)
            if alike is None:
                return queued.key, size
            # Without sub-groups, those that need fewer pods are easier to place.
            found.append((names, len(pods) if counted else 0, alike))
        return tuple(found), size

    def _alike(self, unit: Unit, pods: Sequence[PodInfo]) -> Hashable:
        """Return what pods have in common with equal ones of other units; None if nothing."""
        first = pods[0]
        spec = first.spec
        alone = (
            first.terms
            or first.facts.uses_claims
            or spec.topology_spread_constraints
            or any(pod.facts is not first.facts for pod in pods)
        )
        signature = None if alone else self._signature(unit, pods)
        if signature is None:
            return None
        # Placed pods may keep others off by their labels.
        labels = first.labels_id if self._snapshot.index.holds_terms else None
        return first.facts.signature, first.priority, labels, signature

    def _signature(self, unit: Unit, pods: Iterable[PodInfo]) -> Hashable:
        """Return what the plugins that may refuse a unit tell some of its pods apart by.

        None where one of them does not say, or fails.
        """
        view, runtime = self._snapshot.view(), self._runtime_of(unit)
        found: set[Hashable] = set()
        last: PodInfo | None = None
        signed: Hashable = None
        try:
            for pod in pods:
                if last is not None and _differ_in_name_only(pod, last):
                    continue
                last, signs = pod, runtime.of(pod).refusing_signs
                if signs is None:
                    return None
                sign = tuple([call(pod, view) for call in signs])
                # Most are made of the same objects; hashing them costs more than comparing them.
                if sign != signed:
                    found.add(sign)
                    signed = sign
        except (PluginError, TypeError):
            # What fails here, or is not hashable, does so again when the unit is tried.
            return None
        signature = frozenset(found)
        if len(self._signatures) >= _MOST_SIGNATURES:
            self._signatures.clear()
        # Equal signatures are one object, which makes comparing them cheap.
        return self._signatures.setdefault(signature, signature)

    def actions(self, queued: QueuedUnit) -> tuple[int, ...]:
        """Return the actions for a unit by their places: plain placement, then those that it has.

        Its queue says which of its plugin's actions a unit has; it has all of other plugins.
        """
        unit = self._plain_unit(queued)
        profile = self._profiles.of(unit.pods[0].pod)
        if profile is None:
            return (0,)
        queueing, without = profile.runtime.queueing, frozenset[str]()
        try:
            own = queueing.actions(unit) if queueing is not None else None
            if own is not None:
                without = profile.runtime.queueing_actions.difference(own)
        except PluginError as exc:
            self._recorder.plugin_failed(unit.pods[0], exc)
        names = enumerate(profile.actions, 1)
        return (0, *(place for place, name in names if name not in without))

    def may_preempt(self, queued: QueuedUnit, action: int) -> bool:
        """Tell whether an action may help a unit, by ``may_preempt``; one that raises may."""
        unit = self._plain_unit(queued)
        profile = self._profiles.of(unit.pods[0].pod)
        name = profile.action(action) if profile is not None else None
        if profile is None or not name:
            return False
        try:
            for call in profile.runtime["may_preempt"]:
                may: bool | None = call(unit, name) if name in call.plugin.actions else None
                if may is not None:
                    return may
        except PluginError as exc:
            self._recorder.plugin_failed(unit.pods[0], exc)
        return True

    def is_strict(self, queued: QueuedUnit) -> bool:
        """Tell whether a unit that does not fit holds back its queue."""
        unit = self._plain_unit(queued)
        queueing = self._runtime_of(unit).queueing
        try:
            return queueing is not None and queueing.is_strict(unit)
        except PluginError as exc:
            self._recorder.plugin_failed(unit.pods[0], exc)
        return False

    def choose(self, heads: Mapping[str, QueuedUnit], action: int) -> str | None:
        """Return the queue whose first unit is tried next; None for none.

        A plugin that raises leaves the choice to the order of the units.
        """
        units = {queue: self._plain_unit(queued) for queue, queued in heads.items()}
        first = next(iter(units.values()))
        named = self._profiles.of(first.pods[0].pod) or self._profiles.first
        queueing = named.runtime.queueing
        try:
            if queueing is not None:
                chosen = queueing.next_queue(units, named.action(action) or "")
                return chosen if chosen in units else None
        except PluginError as exc:
            self._recorder.plugin_failed(first.pods[0], exc)
        return min(heads, key=lambda queue: (self.sort_key(heads[queue]), queue))

    def _has_queues(self) -> bool:
        return any(one.runtime.queueing is not None for one in self._profiles.by_name.values())

    def _runtime_of(self, unit: Unit) -> Runtime:
        return (self._profiles.of(unit.pods[0].pod) or self._profiles.first).runtime

    def _plain_unit(self, queued: QueuedUnit) -> Unit:
        """Return a queued unit without its parts, the same one as long as nothing of it changes."""
        pod = next(iter(queued.ready.values()), None) or next(iter(queued.pods.values()))
        members = self._gangs[pod.gang] if pod.gang is not None else None
        changes = members.version if members is not None else 0
        nomination = self._nominator.get(queued.key)
        known = self._units.get(queued)
        if (
            known is not None
            and known.members is members
            and known.nomination is nomination
            and known.changes == (queued.version, changes)
        ):
            return known.unit
        pods = list(queued.ready.values()) or list(queued.pods.values())
        # The order follows from the pods; the parts of a unit matter to a cycle only.
        if members is None:
            unit = Unit(queued.key, pods)
        else:
            bound = tuple(members.bound.values())
            done = tuple(members.done)
            unit = Unit(queued.key, pods, members.gang, bound, succeeded=done)
        self._units[queued] = _Known(unit, members, nomination, (queued.version, changes))
        return unit

    def listens(self, plugins: frozenset[str], event: ClusterEvent) -> bool:
        """Tell whether an event can undo a refusal by any of these plugins, in any profile."""
        if not plugins:
            return True
        return any(
            event & found.requeue_on
            for profile in self._profiles.by_name.values()
            for name in plugins
            if (found := profile.runtime.plugins.get(name)) is not None
        )

    def waits_for_victims(self, queued: QueuedUnit) -> bool:
        """Tell whether a unit has nominated nodes that evicted pods have to leave first."""
        nomination = self._nominator.get(queued.key)
        return nomination is not None and bool(nomination.victims)

    def helps(self, queued: QueuedUnit, event: ClusterEvent, subject: PodInfo | None) -> bool:
        """Tell whether an event can help a refused unit: ``requeue_on``, then ``requeue_hint``.

        :param subject: the pod that was placed, changed or removed, None for any other event.
        """
        if subject is not None and self.waits_for_victims(queued):
            return False
        pod = next(iter(queued.pods.values()), None)
        profile = self._profiles.of(pod.pod) if pod is not None else None
        if pod is None or profile is None or not queued.refused_by:
            return True
        hints = profile.runtime.by_plugin("requeue_hint")
        for name in queued.refused_by:
            plugin = profile.runtime.plugins.get(name)
            if plugin is not None and event & plugin.requeue_on:
                if self._hints(hints.get(name), pod, event, subject):
                    return True
        return False

    def _hints(
        self, hint: HookCall | None, pod: PodInfo, event: ClusterEvent, subject: PodInfo | None
    ) -> bool:
        try:
            return hint is None or bool(hint(pod, event, subject))
        except PluginError as exc:
            self._recorder.plugin_failed(pod, exc)
            return True


def _differ_in_name_only(one: PodInfo, other: PodInfo) -> bool:
    """Tell whether two pods of a gang have equal specs, labels and annotations.

    Each of two that have claims may have its own.
    """
    return (
        one.facts is other.facts
        and not one.spec.resource_claims
        and one.labels == other.labels
        and one.pod.metadata.annotations == other.pod.metadata.annotations
        and one.inherited == other.inherited
    )


def _by_sub_group(unit: Unit) -> Mapping[tuple[str, ...], Sequence[PodInfo]] | None:
    """Return a unit's pods by the sub-groups that they are in; None where that takes long."""
    groups = unit.gang.sub_groups if unit.gang is not None else ()
    if not groups:
        return {(): unit.pods}
    if len(groups) * len(unit.pods) > _MOST_MATCHES or any(one.label_keys for one in groups):
        return None
    found: dict[tuple[str, ...], list[PodInfo]] = {}
    for pod in unit.pods:
        names = tuple(one.name for one in groups if one.selector.matches(pod.labels))
        found.setdefault(names, []).append(pod)
    return found


def _network(gang: Gang | None) -> Hashable:
    """Return what a gang asks of the network, and how it is put into it."""
    if gang is None:
        return None
    return (
        gang.gather,
        gang.slices,
        gang.sub_groups,
        gang.topology,
        gang.fill,
        gang.domain_order,
        gang.roles,
        gang.min_resources,
        gang.strict,
        gang.problem,
    )
