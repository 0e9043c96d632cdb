"""What became of each job of a simulation: how long it waited, where it ran, what it lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from bayplan.api.object_key import controller_key
from bayplan.snapshot import PodInfo

__all__ = ["JobHistories", "JobHistory", "job_of"]


class JobHistory(msgspec.Struct):
    """One job: times are seconds, ``nodes`` counts its pods by the node that each last had.

    ``waited`` is the longest that any part of it waited at once, up to now if it is ``waiting``; an
    evicted pod waits again. ``lost`` is what its evicted pods had held until they were asked to go,
    in amounts times seconds (CPU in milli-CPU): work that starts over.
    """

    waited: float = 0.0
    waiting: bool = False
    nodes: Counter[str] = msgspec.field(default_factory=Counter)
    evicted: int = 0
    lost: dict[str, float] = msgspec.field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "waited": round(self.waited, 3),
            "waiting": self.waiting,
            "nodes": dict(sorted(self.nodes.items())),
            "evicted": self.evicted,
            "lost": {name: round(lost, 3) for name, lost in sorted(self.lost.items())},
        }


class _Held(msgspec.Struct, frozen=True):
    """What a pod has held, on which node, since when in seconds."""

    node: str
    since: float
    requests: Mapping[str, int]


class JobHistories:
    """Follows the pods of jobs. A job is named by what makes its pods, which is so in every run.

    :param now: returns the time in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._held: dict[str, _Held] = {}
        self.found: dict[str, JobHistory] = {}

    def bound(self, pod: PodInfo, node: str) -> None:
        """Note that a pod has a node."""
        self._held[pod.key] = _Held(node, self._now(), pod.requests)
        self._of(job_of(pod)).nodes[node] += 1

    def evicted(self, pod: PodInfo) -> None:
        """Note that a pod has lost its node, and what it did there."""
        history = self._of(job_of(pod))
        history.evicted += 1
        held = self._held.pop(pod.key, None)
        if held is None:
            return
        history.nodes[held.node] -= 1
        if not history.nodes[held.node]:
            del history.nodes[held.node]
        seconds = self._now() - held.since
        for name, amount in held.requests.items():
            history.lost[name] = history.lost.get(name, 0.0) + amount * seconds

    def waited(self, job: str, seconds: float) -> None:
        """Note how long a part of a job waited until it started."""
        history = self._of(job)
        history.waited = max(history.waited, seconds)

    def with_waiting(self, waiting: Mapping[str, float]) -> dict[str, JobHistory]:
        """Return the histories up to now.

        :param waiting: the jobs that wait now, and for how many seconds.
        """
        found = {job: msgspec.structs.replace(one) for job, one in self.found.items()}
        for job, seconds in waiting.items():
            history = found.setdefault(job, JobHistory())
            history.waited = max(history.waited, seconds)
            history.waiting = True
        return dict(sorted(found.items()))

    def _of(self, job: str) -> JobHistory:
        return self.found.setdefault(job, JobHistory())


def job_of(pod: PodInfo) -> str:
    """Return the key of a pod's controller, or else of its gang, or else its own.

    Names of generated groups differ from run to run, those of controllers do not.
    """
    return controller_key(pod.pod.metadata) or pod.gang or pod.key
