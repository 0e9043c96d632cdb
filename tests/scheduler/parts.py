"""The state of a scheduler with a profile of a few plugins, for tests of one part."""

from __future__ import annotations

from typing import Any

from tests.scheduler.fake_cluster import FakeCluster

from bayplan import Args, Plugin, PodInfo, Unit, hookimpl
from bayplan.api import Node, Pod
from bayplan.cycle.evaluator import Evaluator
from bayplan.cycle.scheduling_cycle import Cycle
from bayplan.profiles.loading import Profile, ProfileSet
from bayplan.profiles.runtime import Runtime
from bayplan.scheduler.active_profiles import ActiveProfile
from bayplan.scheduler.observer import Observer
from bayplan.scheduler.state import SchedulerState

NAME = "default-scheduler"


class Order(Plugin[Args]):
    """Sorts the queue by priority, then arrival."""

    @hookimpl
    def queue_sort(self, unit: Unit, added: float) -> tuple[float, ...]:
        return (-float(unit.priority), added)


def profile_of(*plugins: type[Plugin[Any]]) -> Profile:
    """Return a profile of ``Order`` and these plugins, in this order at every hook."""
    classes = {plugin.__name__: plugin for plugin in (Order, *plugins)}
    return Profile(NAME, classes, {name: Args() for name in classes}, {})


def profiles_of(*plugins: type[Plugin[Any]]) -> ProfileSet:
    """Return the profiles of a scheduler that takes every pod."""
    return ProfileSet((profile_of(*plugins),), any_scheduler=True)


def state_of(
    cluster: FakeCluster,
    *plugins: type[Plugin[Any]],
    nodes: tuple[Node, ...] = (),
    observer: Observer | None = None,
) -> SchedulerState:
    """Return a scheduler's state with one active profile; the plugins get no handle."""
    profiles = profiles_of(*plugins)
    state = SchedulerState(cluster, profiles, 100, observer or Observer())
    (profile,) = profiles.profiles
    made = {
        name: plugin(Args(), None)  # type: ignore[arg-type]
        for name, plugin in profile.plugins.items()
    }
    runtime = Runtime.compiled(made, {})
    evaluator = Evaluator(runtime, state.snapshot)
    cycle = Cycle(runtime, evaluator, state.snapshot, state.recorder.plugin_failed)
    state.profiles.by_name[NAME] = ActiveProfile(profile, runtime, evaluator, cycle)
    for node in nodes:
        state.snapshot.set_node(node)
    state.snapshot.sync()
    return state


def queue_pod(state: SchedulerState, pod: Pod) -> PodInfo:
    """Make a pending pod known to all parts; return it."""
    info = PodInfo(pod)
    state.pods[info.key] = info
    state.gangs.set_pending(info)
    state.claims.add(info)
    state.queue.add(info, state.now)
    return info


def place_pod(state: SchedulerState, pod: Pod) -> PodInfo:
    """Make a pod known that is on its node; return it."""
    info = PodInfo(pod)
    state.pods[info.key] = info
    state.snapshot.add_pod(info, pod.spec.node_name)
    state.gangs.set_bound(info, pod.spec.node_name)
    return info
