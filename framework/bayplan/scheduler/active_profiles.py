"""The profiles that a scheduler runs, each with its plugin instances."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from bayplan.api import Pod
from bayplan.cycle.evaluator import Evaluator
from bayplan.cycle.scheduling_cycle import Cycle
from bayplan.plugin.queueing import Queueing
from bayplan.profiles.loading import Profile
from bayplan.profiles.runtime import Runtime

__all__ = ["ActiveProfile", "ActiveProfiles", "actions_of"]


class ActiveProfile(msgspec.Struct, frozen=True, eq=False):
    """One profile with its plugin instances and its caches.

    ``actions`` are the ways to preempt of all its plugins, in order.
    """

    profile: Profile
    runtime: Runtime
    evaluator: Evaluator
    cycle: Cycle
    actions: tuple[str, ...] = ()

    def action(self, tried: int) -> str | None:
        """Return the action for a unit that has tried some; "" for none yet, None after the last.

        :param tried: how many actions were tried; the first is plain placement.
        """
        if tried == 0:
            return ""
        return self.actions[tried - 1] if tried <= len(self.actions) else None


def actions_of(runtime: Runtime) -> tuple[str, ...]:
    """Return the ways to preempt of a profile's plugins, in the order of ``post_filter``."""
    found = (name for call in runtime["post_filter"] for name in call.plugin.actions if name)
    return tuple(dict.fromkeys(found))


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

    def queueing_of(self, pod: Pod) -> Queueing | None:
        """Return the queues of the profile that schedules a pod; None without any."""
        profile = self.of(pod)
        return profile.runtime.queueing if profile is not None else None

    def queueing(self) -> Iterator[Queueing]:
        """Yield the queues of each profile that has any."""
        for profile in self.by_name.values():
            if profile.runtime.queueing is not None:
                yield profile.runtime.queueing
