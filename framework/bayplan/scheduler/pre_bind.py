"""What plugins do between a decision and the bindings: writes, and waiting until all is ready."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from bayplan.cluster.protocol import Cluster, Write
from bayplan.errors import ClusterError, PluginError
from bayplan.plugin.base import Preparation

__all__ = ["AwaitedPreparation", "Preparations"]

Failed = Callable[[str | PluginError, bool], None]
_Subject = tuple[type, str]
"""An object, by type and key."""


class AwaitedPreparation(msgspec.Struct, frozen=True):
    """What a unit waits for before it is bound, since when and until when; times in seconds."""

    missing: str
    since: float
    until: float

    @property
    def limit(self) -> float:
        """How long it may take."""
        return self.until - self.since


class _Wait(msgspec.Struct, frozen=True):
    """A preparation that is not ready; times in seconds."""

    preparation: Preparation
    since: float
    until: float

    def missing(self) -> str:
        """Return what is not ready; "" if the plugin does not say."""
        missing = self.preparation.missing
        return missing() if missing is not None else ""


class _Work(msgspec.Struct, eq=False):
    """One unit's preparations; ``writing`` counts those with unanswered writes."""

    pods: frozenset[str]
    waiting: list[_Wait]
    writing: int
    until: float
    done: Callable[[], None]
    failed: Failed
    reported: Callable[[Sequence[AwaitedPreparation]], None] | None = None
    awaited: Sequence[AwaitedPreparation] = ()
    follows: frozenset[_Subject] | None = None
    """What it is asked again after; None for any."""
    over: bool = msgspec.field(default=False)


class Preparations:
    """The units being prepared, by key. Times are in seconds."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._units: dict[str, _Work] = {}
        self._unit_of: dict[str, str] = {}
        self._written: dict[str, _Work] = {}
        """The units whose writes are done, and that wait until they are ready."""
        self._following: dict[_Subject | None, dict[str, None]] = {}
        """Units by what they follow; None for those that follow anything."""

    def __len__(self) -> int:
        return len(self._units)

    def begin(
        self,
        unit: str,
        pods: frozenset[str],
        preparations: Sequence[Preparation],
        done: Callable[[], None],
        failed: Failed,
        waiting: Callable[[Sequence[AwaitedPreparation]], None] | None = None,
    ) -> None:
        """Submit the writes of a unit's pods, each pod's in order, and wait until all are ready.

        :param pods: the keys of the unit's pods.
        :param done: called when the unit may be bound.
        :param failed: called with the reason when it may not, and whether that is an error
            (rather than a refusal).
        :param waiting: called with what the unit waits for, whenever that changes.
        """
        seconds = max(preparation.seconds for preparation in preparations)
        asked = [one.follows for one in preparations if one.ready is not None]
        follows = [one for one in asked if one is not None]
        now = self._cluster.now
        work = _Work(
            pods,
            [
                _Wait(one, now - one.waited, now + one.seconds)
                for one in preparations
                if one.ready is not None
            ],
            len(preparations),
            now + seconds,
            done,
            failed,
            waiting,
            follows=frozenset[_Subject]().union(*follows) if len(follows) == len(asked) else None,
        )
        self._units[unit] = work
        self._unit_of |= dict.fromkeys(pods, unit)
        for subject in _subjects(work):
            self._following.setdefault(subject, {})[unit] = None
        for preparation in preparations:
            if work.over:
                return
            self._write(unit, work, list(preparation.writes))

    def _write(self, unit: str, work: _Work, writes: list[Write]) -> None:
        if not writes:
            work.writing -= 1
            self._check(unit, work)
            return
        first, *rest = writes

        def answered(error: ClusterError | None) -> None:
            if work.over:
                return
            if error is None:
                self._write(unit, work, rest)
            else:
                self._end(unit, work, str(error), error=True)

        self._cluster.submit(first, answered)

    def _check(self, unit: str, work: _Work) -> None:
        if work.over or work.writing:
            return
        last: list[Callable[[], Sequence[Write]]] = []
        for wait in list(work.waiting):
            preparation = wait.preparation
            assert preparation.ready is not None
            try:
                answer = preparation.ready()
            except PluginError as exc:
                self._end(unit, work, exc, error=True)
                return
            if isinstance(answer, str):
                self._end(unit, work, answer, error=False)
                return
            if answer:
                work.waiting.remove(wait)
                last += [preparation.then] if preparation.then is not None else []
        if last:
            self._write_last(unit, work, last)
        elif not work.waiting:
            self._forget(unit, work)
            work.done()
        else:
            self._written[unit] = work
            self._report(unit, work)

    def _report(self, unit: str, work: _Work) -> None:
        """Tell what the unit waits for, if that changed."""
        if work.reported is None:
            return
        try:
            awaited = self.awaited(unit)
        except PluginError as exc:
            self._end(unit, work, exc, error=True)
            return
        if awaited != work.awaited:
            work.awaited = awaited
            work.reported(awaited)

    def _write_last(
        self, unit: str, work: _Work, last: Iterable[Callable[[], Sequence[Write]]]
    ) -> None:
        """Submit what preparations write once they are ready; then the unit is looked at again."""
        work.writing += 1
        try:
            writes = [write for then in last for write in then()]
        except PluginError as exc:
            self._end(unit, work, exc, error=True)
        else:
            self._write(unit, work, writes)

    def _end(self, unit: str, work: _Work, why: str | PluginError, error: bool) -> None:
        self._forget(unit, work)
        work.failed(why, error)

    def _forget(self, unit: str, work: _Work) -> None:
        work.over = True
        del self._units[unit]
        self._written.pop(unit, None)
        for pod in work.pods:
            self._unit_of.pop(pod, None)
        for subject in _subjects(work):
            units = self._following[subject]
            units.pop(unit, None)
            if not units:
                del self._following[subject]

    def recheck(self, pods: Iterable[str] | None = None) -> None:
        """Ask units again whether they are ready, because an object changed.

        :param pods: the pods, by key, that the object concerns; None for all.
        """
        if not self._written:
            return
        units = self._written if pods is None else dict.fromkeys(map(self._unit_of.get, pods))
        self._check_all(unit for unit in units if unit is not None)

    def recheck_followers(self, subjects: Iterable[_Subject]) -> None:
        """Ask units again that follow claims and volumes, by type and key, or follow anything."""
        if self._written:
            found = (self._following.get(one, {}) for one in (None, *subjects))
            self._check_all(unit for units in found for unit in units)

    def _check_all(self, units: Iterable[str]) -> None:
        for unit in dict.fromkeys(units):
            work = self._written.get(unit)
            if work is not None:
                self._check(unit, work)

    def cancel(self, unit: str, why: str) -> None:
        """End a unit's preparation with an error, if there is one."""
        work = self._units.get(unit)
        if work is not None:
            self._end(unit, work, why, error=True)

    def cancel_pod(self, pod: str, why: str) -> bool:
        """End the preparation of the unit of a pod, by key; return False when there is none."""
        unit = self._unit_of.get(pod)
        if unit is None:
            return False
        self._end(unit, self._units[unit], why, error=True)
        return True

    def awaited(self, unit: str) -> list[AwaitedPreparation]:
        """Return what a unit's pods wait for, as far as plugins say what that is.

        :raises PluginError: when a plugin raises.
        """
        work = self._written.get(unit)
        return [
            AwaitedPreparation(missing, wait.since, wait.until)
            for wait in (work.waiting if work is not None else ())
            if (missing := wait.missing())
        ]

    def next_times(self) -> list[float]:
        """Return when ``tick`` has something to do, in seconds."""
        return [
            min([work.until, *(wait.until for wait in work.waiting)])
            for work in self._written.values()
        ]

    def tick(self) -> None:
        """End preparations that were not ready in time."""
        now = self._cluster.now
        for unit, work in list(self._written.items()):
            late = next((wait for wait in work.waiting if wait.until <= now), None)
            if late is not None or work.until <= now:
                try:
                    why = _late(late)
                except PluginError as exc:
                    self._end(unit, work, exc, error=True)
                else:
                    self._end(unit, work, why, error=False)


def _subjects(work: _Work) -> Iterable[_Subject | None]:
    return (None,) if work.follows is None else work.follows


def _late(wait: _Wait | None) -> str:
    missing = wait.missing() if wait is not None else ""
    if wait is None or not missing:
        return "was not ready to be bound in time"
    return f"waited {wait.until - wait.since:.0f} s for {missing}"
