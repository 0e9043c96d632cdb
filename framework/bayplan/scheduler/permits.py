"""Permit: placed units that plugins hold back, and how each wait ends.

A gang does not wait here for its members: the cycle places all of them, or none.

Each plugin holds each pod separately. A unit goes on when every plugin has let go of every pod. It
is refused when a plugin rejects it, or when the first of its waits times out. Orders (``allow``,
``reject``) may come from any hook, listener or thread; ``settle`` applies them between cycles.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from bayplan.cycle.scheduling_cycle import Reserved, Waits
from bayplan.errors import PluginError
from bayplan.plugin.base import Unit, Wait
from bayplan.plugin.events import ClusterEvent
from bayplan.profiles.runtime import HookCall, Runtime
from bayplan.snapshot import PodInfo, Snapshot

__all__ = ["Ending", "PermitWait", "Permits"]

Whom = Unit | PodInfo | str
Failed = Callable[[PodInfo, PluginError], None]


class PermitWait(msgspec.Struct, frozen=True):
    """A placed unit that waits at Permit.

    ``plugins`` still hold it back, in the order of the profile. ``nodes`` are the nodes that its
    pods are assumed on, by pod key. It has waited since ``since`` and is refused at ``deadline``,
    both in seconds of the scheduler's clock.
    """

    unit: str
    plugins: tuple[str, ...]
    nodes: Mapping[str, str]
    since: float
    deadline: float

    def __str__(self) -> str:
        """Say which plugins hold it, and for how long at most."""
        plugins = "plugin" if len(self.plugins) == 1 else "plugins"
        names = ", ".join(f'"{name}"' for name in self.plugins)
        seconds = self.deadline - self.since
        return f"Waiting on permit from {plugins} {names} for at most {seconds:g}s"


class Ending(msgspec.Struct, frozen=True):
    """The end of a wait: the unit may be bound, or ``refusal`` or ``error`` says why not.

    ``plugins`` are the plugins that refused it.
    """

    unit: str
    refusal: str | None = None
    plugins: frozenset[str] = frozenset()
    error: PluginError | None = None


class _Order(msgspec.Struct, frozen=True):
    """An order of a plugin for a unit or one pod of it: ``reason`` None allows, a text rejects."""

    unit: str
    pod: str | None
    plugin: str | None
    reason: str | None = None


class _Held(msgspec.Struct, eq=False):
    """A waiting unit; ``pending`` has, by plugin, the pods it still holds and their deadlines."""

    unit: Unit
    reserved: Mapping[str, Reserved]
    calls: Sequence[HookCall]
    hints: Mapping[str, HookCall]
    since: float
    pending: dict[str, dict[str, float]]
    stale: set[str] = msgspec.field(default_factory=set)

    def record(self) -> PermitWait:
        """Return the wait as others see it."""
        return PermitWait(
            self.unit.key,
            tuple(call.name for call in self.calls if call.name in self.pending),
            {key: one.node for key, one in self.reserved.items()},
            self.since,
            self.deadline(),
        )

    def deadline(self) -> float:
        """Return when the first of the waits times out."""
        return min(min(pods.values()) for pods in self.pending.values())

    def let_go(self, plugin: str | None, pod: str | None) -> None:
        """End the holds of a plugin (None: of all plugins) on a pod (None: on all pods)."""
        for name in [plugin] if plugin is not None else list(self.pending):
            pods = self.pending.pop(name, {})
            left = {} if pod is None else {key: at for key, at in pods.items() if key != pod}
            if left:
                self.pending[name] = left


class Permits:
    """The units that wait at Permit, by key.

    :param failed: called when a plugin raises in ``requeue_hint``.
    """

    def __init__(self, snapshot: Snapshot, failed: Failed) -> None:
        self._snapshot = snapshot
        self._failed = failed
        self._held: dict[str, _Held] = {}
        self._unit_of: dict[str, str] = {}
        self._orders: deque[_Order] = deque()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def idle(self) -> bool:
        """Whether nothing waits, nor is to be let go."""
        return not (self._held or self._orders)

    def begin(
        self, unit: Unit, reserved: Iterable[Reserved], runtime: Runtime, waits: Waits, now: float
    ) -> PermitWait:
        """Hold a unit back for as long as plugins asked; return the wait."""
        held = _Held(
            unit,
            {one.pod.key: one for one in reserved},
            [call for call in runtime["permit"] if call.name in waits],
            runtime.by_plugin("requeue_hint"),
            now,
            {name: {pod: now + s for pod, s in pods.items()} for name, pods in waits.items()},
        )
        self._held[unit.key] = held
        self._unit_of |= dict.fromkeys(held.reserved, unit.key)
        return held.record()

    def forget(self, unit: str) -> None:
        """Drop a unit's wait, if there is one."""
        held = self._held.pop(unit, None)
        for pod in held.reserved if held is not None else ():
            self._unit_of.pop(pod, None)

    def waiting(self, whom: Whom) -> PermitWait | None:
        """Return the wait of a unit, or of the unit of a pod; None when it does not wait."""
        unit, _ = self._find(whom)
        return self._held[unit].record() if unit is not None else None

    def _find(self, whom: Whom) -> tuple[str | None, str | None]:
        """Return the key of the waiting unit, and that of the pod if ``whom`` is one."""
        if isinstance(whom, PodInfo):
            return self._unit_of.get(whom.key), whom.key
        key = whom.key if isinstance(whom, Unit) else whom
        if key in self._held:
            return key, None
        return (self._unit_of.get(key), key) if isinstance(whom, str) else (None, None)

    # Orders ------------------------------------------------------------------------------

    def allow(self, whom: Whom, plugin: str | None = None) -> bool:
        """Have a plugin (None: every plugin) let go of a unit or a pod before the next cycle.

        :returns: whether the plugin held it.
        """
        unit, pod = self._find(whom)
        held = self._held.get(unit) if unit is not None else None
        if unit is None or held is None:
            return False
        pods = held.pending.get(plugin, {}) if plugin is not None else held.pending
        self._orders.append(_Order(unit, pod, plugin))
        return bool(pods) and (plugin is None or pod is None or pod in pods)

    def reject(self, whom: Whom, reason: str, plugin: str | None = None) -> bool:
        """Refuse a unit that waits, before the next cycle; return whether it was waiting."""
        unit, pod = self._find(whom)
        if unit is None:
            return False
        self._orders.append(_Order(unit, pod, plugin, reason))
        return True

    def on_event(self, event: ClusterEvent, subject: PodInfo | None) -> None:
        """Mark the plugins that have to be asked again after an event.

        :param event: one event, no union.
        :param subject: the pod that was placed, changed or removed, None for any other event.
        """
        for held in self._held.values():
            for call in held.calls:
                name = call.name
                if name in held.pending and name not in held.stale:
                    if event & call.plugin.requeue_on and self._hints(held, name, event, subject):
                        held.stale.add(name)

    def _hints(
        self, held: _Held, plugin: str, event: ClusterEvent, subject: PodInfo | None
    ) -> bool:
        hint = held.hints.get(plugin)
        if hint is None:
            return True
        pod = held.reserved[next(iter(held.pending[plugin]))].pod
        try:
            return bool(hint(pod, event, subject))
        except PluginError as exc:
            self._failed(pod, exc)
            return True

    # Endings -----------------------------------------------------------------------------

    def next_time(self, now: float) -> float | None:
        """Return when ``settle`` has something to do; None when never."""
        if self._orders or any(held.stale for held in self._held.values()):
            return now
        return min((held.deadline() for held in self._held.values()), default=None)

    def settle(self, now: float) -> tuple[list[Ending], list[PermitWait]]:
        """Apply orders, ask plugins again after events, and end waits that timed out.

        :returns: the waits that ended, which are dropped, and those that fewer plugins hold now.
        """
        endings: list[Ending] = []
        touched: dict[str, None] = {}
        while self._orders:
            order = self._orders.popleft()
            held = self._held.get(order.unit)
            if held is not None:
                touched[order.unit] = None
                self._carry_out(order, held, endings)
        for key, held in list(self._held.items()):
            if held.stale:
                touched[key] = None
                ending = self._ask_again(held)
                if ending is not None:
                    self._end(ending, endings)
        for held in list(self._held.values()):
            if held.deadline() <= now:
                self._end(_timeout(held, now), endings)
        return endings, [self._held[key].record() for key in touched if key in self._held]

    def _carry_out(self, order: _Order, held: _Held, endings: list[Ending]) -> None:
        if order.reason is not None:
            by = frozenset((order.plugin,)) if order.plugin is not None else frozenset[str]()
            self._end(Ending(order.unit, order.reason, by), endings)
            return
        held.let_go(order.plugin, order.pod)
        if not held.pending:
            self._end(Ending(order.unit), endings)

    def _ask_again(self, held: _Held) -> Ending | None:
        """Ask ``permit`` of the plugins that an event may have changed, until one still waits."""
        key = held.unit.key
        stale, held.stale = held.stale, set()
        for call in held.calls:
            if call.name not in stale:
                continue
            for pod in list(held.pending.get(call.name, ())):
                one = held.reserved[pod]
                try:
                    answer = call(one.pod, self._snapshot.row(one.node), held.unit, one.state)
                except PluginError as exc:
                    return Ending(key, error=exc)
                if isinstance(answer, Wait):
                    break
                if answer is not None:
                    return Ending(key, answer, frozenset((call.name,)))
                held.let_go(call.name, pod)
        return None if held.pending else Ending(key)

    def _end(self, ending: Ending, endings: list[Ending]) -> None:
        self.forget(ending.unit)
        endings.append(ending)


def _timeout(held: _Held, now: float) -> Ending:
    """Return the end of a wait that timed out, in kube-scheduler's words."""
    late = [name for name, pods in held.pending.items() if min(pods.values()) <= now]
    first = min(late, key=lambda name: min(held.pending[name].values()))
    waited = min(held.pending[first].values()) - held.since
    message = f"rejected due to timeout after waiting {waited:g}s at plugin {first}"
    return Ending(held.unit.key, message, frozenset(late))
