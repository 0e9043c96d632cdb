"""The profiles that a scheduler runs, each with its plugin instances."""

from __future__ import annotations

from dataclasses import dataclass

from bayplan.api import Pod
from bayplan.cycle.evaluator import Evaluator
from bayplan.cycle.scheduling_cycle import Cycle
from bayplan.profiles.loading import Profile
from bayplan.profiles.runtime import Runtime

__all__ = ["ActiveProfile", "ActiveProfiles"]


@dataclass(frozen=True, eq=False)
class ActiveProfile:
    """One profile with its plugin instances and its caches."""

    profile: Profile
    runtime: Runtime
    evaluator: Evaluator
    cycle: Cycle


class ActiveProfiles:
    """The profiles of one scheduler, by scheduler name.

    :param any_scheduler: whether the first profile also takes pods of any other scheduler name.
    """

    def __init__(self, any_scheduler: bool) -> None:
        self.by_name: dict[str, ActiveProfile] = {}
        self._any_scheduler = any_scheduler

    @property
    def first(self) -> ActiveProfile:
        """The profile that sorts the queue."""
        return next(iter(self.by_name.values()))

    @property
    def take_any_pod(self) -> bool:
        """Whether pods of every scheduler name are scheduled."""
        return self._any_scheduler

    def of(self, pod: Pod) -> ActiveProfile | None:
        """Return the profile that schedules a pod, None when no profile does."""
        found = self.by_name.get(pod.spec.scheduler_name)
        return self.first if found is None and self._any_scheduler else found
