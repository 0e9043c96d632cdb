"""Victims of several queues: running jobs as steps, in the order in which they may go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from bayplan import Handle, PodInfo
from bayplan.dialects import may_be_evicted
from bayplan.dialects.reading import timestamp
from bayplan.gangs.completeness import rank_order
from bayplan_plugins.queues.policy import Step

__all__ = ["RunningJob", "running_jobs"]


class RunningJob:
    """The pods of one job that are on nodes.

    ``priority`` is the highest of its pods, ``started`` when the first of them started, in seconds
    since 1970 (0 before that).
    """

    def __init__(self, key: str, pods: Sequence[PodInfo], least: int) -> None:
        self.key = key
        self.pods = sorted(pods, key=rank_order)
        self.priority = max(pod.priority for pod in pods)
        self.started = min(timestamp(pod.pod.status.start_time) for pod in pods)
        self._least = least

    def steps(self) -> Iterator[Step]:
        """Yield the surplus pods one by one, the last first, then all that is left of the job."""
        spare = len(self.pods) - self._least if 0 < self._least < len(self.pods) else 0
        for pod in reversed(self.pods[len(self.pods) - spare :]):
            yield [pod]
        yield self.pods[: len(self.pods) - spare]


def running_jobs(
    handle: Handle, pods: Iterable[PodInfo], wanted: Callable[[PodInfo], bool]
) -> list[RunningJob]:
    """Return the jobs of some pods on nodes whose every pod may be evicted.

    :param wanted: whether a pod's job may be a victim at all.
    """
    jobs: dict[str, list[PodInfo]] = {}
    kept: set[str] = set()
    for pod in pods:
        key = pod.gang or pod.key
        if pod.terminating:
            continue
        if wanted(pod) and may_be_evicted(pod.pod):
            jobs.setdefault(key, []).append(pod)
        else:
            kept.add(key)
    found = []
    for key, members in jobs.items():
        if key in kept:
            continue
        gang = handle.gang(key).gang if members[0].gang is not None else None
        least = gang.min_member if gang is not None and not gang.whole else len(members)
        found.append(RunningJob(key, members, least))
    return found
