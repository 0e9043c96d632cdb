"""What plugins do between a decision and the bindings: writes, and waiting until all is ready."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bayplan.cluster.protocol import Cluster, Write
from bayplan.errors import ClusterError, PluginError
from bayplan.plugin.base import Preparation

__all__ = ["Preparations"]

Failed = Callable[[str | PluginError, bool], None]


@dataclass(eq=False)
class _Work:
    """One unit's preparations; ``writing`` counts those with unanswered writes."""

    pods: frozenset[str]
    waiting: list[Preparation]
    writing: int
    until: float
    done: Callable[[], None]
    failed: Failed
    over: bool = field(default=False)


class Preparations:
    """The units being prepared, by key. Times are in seconds."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._units: dict[str, _Work] = {}
        self._unit_of: dict[str, str] = {}
        self._written: dict[str, _Work] = {}
        """The units whose writes are done, and that wait until they are ready."""

    def __len__(self) -> int:
        return len(self._units)

    def begin(
        self,
        unit: str,
        pods: frozenset[str],
        preparations: Sequence[Preparation],
        done: Callable[[], None],
        failed: Failed,
    ) -> None:
        """Submit the writes of a unit's pods, each pod's in order, and wait until all are ready.

        :param pods: the keys of the unit's pods.
        :param done: called when the unit may be bound.
        :param failed: called with the reason when it may not, and whether that is an error
            (rather than a refusal).
        """
        seconds = max(preparation.seconds for preparation in preparations)
        work = _Work(
            pods,
            [one for one in preparations if one.ready is not None],
            len(preparations),
            self._cluster.now + seconds,
            done,
            failed,
        )
        self._units[unit] = work
        self._unit_of |= dict.fromkeys(pods, unit)
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
        for preparation in list(work.waiting):
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
                work.waiting.remove(preparation)
                last += [preparation.then] if preparation.then is not None else []
        if last:
            self._write_last(unit, work, last)
        elif not work.waiting:
            self._forget(unit, work)
            work.done()
        else:
            self._written[unit] = work

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

    def recheck(self, pods: Iterable[str] | None = None) -> None:
        """Ask units again whether they are ready, because an object changed.

        :param pods: the pods, by key, that the object concerns; None for all.
        """
        if not self._written:
            return
        units = self._written if pods is None else dict.fromkeys(map(self._unit_of.get, pods))
        for unit in list(units):
            work = self._written.get(unit) if unit is not None else None
            if unit is not None and work is not None:
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

    def next_times(self) -> list[float]:
        """Return when ``tick`` has something to do, in seconds."""
        return [work.until for work in self._written.values()]

    def tick(self) -> None:
        """End preparations that were not ready in time."""
        now = self._cluster.now
        for unit, work in list(self._written.items()):
            if work.until <= now:
                self._end(unit, work, "was not ready to be bound in time", error=False)
