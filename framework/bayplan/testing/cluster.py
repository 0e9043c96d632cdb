"""An embedded cluster with a scheduler, and the answers of one plugin or a whole cycle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from bayplan.api import (
    ApiObject,
    Pod,
)
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import Done, WatchHandler, Write
from bayplan.cluster.wrapped import WrappedCluster
from bayplan.cycle.evaluation import Evaluation
from bayplan.cycle.evaluator import Evaluator
from bayplan.errors import InputError
from bayplan.inputs.documents import Document, Text
from bayplan.inputs.validated import validated
from bayplan.plugin.base import Args
from bayplan.plugin.decision import Decision
from bayplan.plugin.failures import PLUGIN_RAISES, failure
from bayplan.plugin.plugin import Plugin
from bayplan.profiles.finder import PluginFinder
from bayplan.profiles.loading import Profile, ProfileSet, default_profiles
from bayplan.profiles.runtime import Runtime
from bayplan.scheduler.active_profiles import ActiveProfile
from bayplan.scheduler.observer import Observer
from bayplan.scheduler.scheduler import Scheduler
from bayplan.scheduler.virtual_time import VirtualTime
from bayplan.snapshot import PodInfo, Snapshot

__all__ = [
    "Cluster",
    "assert_pending",
    "assert_placed",
    "checked_args",
    "evaluator_of",
    "refusals",
    "runtime_of",
    "scores",
]


PluginOrName: TypeAlias = type[Plugin[Any]] | str
_NO_ARGS: Mapping[str, Any] = {}


class _Connection(WrappedCluster):
    """The cluster of a scheduler until it crashes: then nothing comes, and nothing is written."""

    def __init__(self, cluster: MemoryCluster) -> None:
        super().__init__(cluster)
        self._open = True

    def watch(self, handler: WatchHandler) -> None:
        super().watch(lambda event: handler(event) if self._open else None)

    def submit(self, write: Write, done: Done | None = None) -> None:
        if self._open:
            super().submit(write, done)

    def close(self) -> None:
        self._open = False


class Cluster:
    """An embedded cluster with a scheduler on it.

    :param objects: the initial objects.
    :param profiles: the profiles; without them the default one, for every pod.
    :param plugins: plugins to add to the first profile, with weight 1: classes, or a mapping of
        classes to their arguments as a profile has them, such as ``{Budget: {"teams": ["x"]}}``.
        A name instead of a class stands for an installed plugin; one that is in the profile
        already gets new arguments.
    :param cached: False evaluates every pod from scratch.
    :param observer: called at every cycle and binding.
    """

    def __init__(
        self,
        objects: Iterable[ApiObject] = (),
        profiles: ProfileSet | None = None,
        plugins: Iterable[PluginOrName] | Mapping[PluginOrName, Mapping[str, Any]] = (),
        cached: bool = True,
        observer: Observer | None = None,
    ) -> None:
        self.api = MemoryCluster()
        chosen = profiles or default_profiles()
        given = plugins if isinstance(plugins, Mapping) else dict.fromkeys(plugins, _NO_ARGS)
        if given:
            first = _with_plugins(chosen.profiles[0], given)
            chosen = ProfileSet((first, *chosen.profiles[1:]), any_scheduler=chosen.any_scheduler)
        self._connection = _Connection(self.api)
        self._begin = partial(Scheduler, profiles=chosen, cached=cached, observer=observer)
        self.restart()
        self.add(*objects)

    def crash(self) -> None:
        """End the scheduler at once: it hears of nothing any more, and writes nothing."""
        self._connection.close()

    def restart(self) -> None:
        """Begin with a scheduler that knows what the objects say, as after a crash."""
        self.crash()
        self._connection = _Connection(self.api)
        self.scheduler = self._begin(self._connection)
        self._time = VirtualTime(self.api, self.scheduler)

    @property
    def snapshot(self) -> Snapshot:
        """What the scheduler sees."""
        self.api.deliver()
        self.scheduler.snapshot.sync()
        return self.scheduler.snapshot

    def add(self, *objects: ApiObject) -> None:
        """Create objects."""
        for obj in objects:
            self.api.create(obj)
        self.api.deliver()

    def remove(self, pod: str) -> None:
        """Delete a pod at once; its namespace is "default" unless given."""
        self.api.delete(Pod, _key(pod), grace=0)
        self.api.deliver()

    def schedule(self) -> dict[str, str]:
        """Run cycles until nothing is left to try; return every pod's node."""
        self._time.settle()
        return self.placements()

    def advance(self, seconds: float) -> dict[str, str]:
        """Let virtual time pass, scheduling whenever there is something to do."""
        end = self.api.now + seconds
        self._time.advance(end)
        self.api.clock.advance(end)
        self.scheduler.tick()
        return self.schedule()

    def placements(self) -> dict[str, str]:
        """Return the node of every pod that has one; pods of "default" by their bare name."""
        return {
            pod.key.removeprefix("default/"): pod.spec.node_name
            for pod in self.api.list(Pod)
            if pod.spec.node_name
        }

    def message(self, pod: str) -> str:
        """Return why a pod is not scheduled, as its PodScheduled condition says."""
        found = self.api.get(Pod, _key(pod))
        assert found is not None, f"there is no pod {pod}"
        conditions = [c for c in found.status.conditions if c.type == "PodScheduled"]
        return conditions[0].message if conditions else ""

    def decision(self, unit: str) -> Decision:
        """Return the latest decision on a pod or a gang."""
        return self.scheduler.decisions[_key(unit)]

    def evaluate(self, pod: Pod) -> Evaluation:
        """Filter and score all nodes for a pod that need not exist."""
        self.snapshot.sync()
        return self.profile.evaluator.evaluate(PodInfo(pod))

    @property
    def profile(self) -> ActiveProfile:
        """The first of its profiles, with its plugin instances."""
        return next(iter(self.scheduler.profiles.values()))


def assert_placed(cluster: Cluster, **nodes: str) -> None:
    """Schedule, and assert where pods are; underscores in names stand for dashes."""
    placements = cluster.schedule()
    expected = {name.replace("_", "-"): node for name, node in nodes.items()}
    found = {name: placements.get(name) for name in expected}
    messages = {name: cluster.message(name) for name, node in found.items() if node is None}
    assert found == expected, f"{found} instead of {expected}; {messages}"


def assert_pending(cluster: Cluster, pod: str, *parts: str) -> None:
    """Schedule, and assert that a pod is pending with a message that holds all the parts."""
    placements = cluster.schedule()
    assert pod not in placements, f"{pod} is on {placements.get(pod)}"
    message = cluster.message(pod)
    for part in parts:
        assert part in message, f"{part!r} is not in {message!r}"


def refusals(
    plugin: type[Plugin[Any]], pod: Pod, cluster: Cluster, args: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Run one plugin's filter; return the reasons by node (several joined by "; ").

    A plugin that refuses the pod in ``pre_filter`` refuses every node.
    """
    found = evaluator_of(plugin, cluster, args).evaluate(PodInfo(pod))
    names = cluster.snapshot.nodes.names
    if found.refusal is not None:
        return dict.fromkeys(names, found.refusal[1])
    reasons: dict[str, list[str]] = {}
    for column in found.filters:
        for (reason, _), mask in column.refusals.items():
            for row in np.flatnonzero(mask):
                reasons.setdefault(names[row], []).append(reason)
    return {name: "; ".join(dict.fromkeys(found)) for name, found in reasons.items()}


def scores(
    plugin: type[Plugin[Any]], pod: Pod, cluster: Cluster, args: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Run one plugin's filter and score; return the normalised scores of the feasible nodes.

    A plugin that skips scoring gives 0 to every node.
    """
    found = evaluator_of(plugin, cluster, args).evaluate(PodInfo(pod))
    names = cluster.snapshot.nodes.names
    counted = found.scores[0].counted if found.scores else np.zeros(len(names))
    return {names[row]: float(counted[row]) for row in np.flatnonzero(found.feasible)}


def _key(name: str) -> str:
    return name if "/" in name else f"default/{name}"


def evaluator_of(
    plugin: type[Plugin[Any]],
    cluster: Cluster,
    args: Mapping[str, Any] | None,
    cached: bool = False,
) -> Evaluator:
    """Return an evaluator of one plugin, without the others of the profile.

    :raises InputError: for arguments that the plugin does not take.
    :raises PluginError: when its ``__init__`` raises.
    """
    return Evaluator(runtime_of(plugin, cluster, args), cluster.snapshot, cached)


def runtime_of(
    plugin: type[Plugin[Any]], cluster: Cluster, args: Mapping[str, Any] | None
) -> Runtime:
    """Return a runtime of one plugin, made as a scheduler would make it."""
    checked = checked_args(plugin, args or _NO_ARGS)
    handle = cluster.scheduler.handle_for(plugin.__name__, next(iter(cluster.scheduler.profiles)))
    try:
        made = plugin(checked, handle)
    except PLUGIN_RAISES as exc:
        raise failure(plugin.__name__, "__init__", exc, plugin.__init__) from exc
    return Runtime.compiled({plugin.__name__: made}, {})


def _with_plugins(profile: Profile, plugins: Mapping[PluginOrName, Mapping[str, Any]]) -> Profile:
    finder = PluginFinder()
    classes: dict[str, type[Plugin[Any]]] = {}
    given: dict[str, Args] = {}
    for plugin, args in plugins.items():
        cls = finder.find(plugin) if isinstance(plugin, str) else plugin
        name = plugin if isinstance(plugin, str) else cls.__name__
        if classes.setdefault(name, cls) is not cls:
            raise InputError(f'two plugins are named "{name}"')
        given[name] = checked_args(cls, args)
    new = [(name, 1) for name in classes if name not in profile.plugins]
    return Profile(
        profile.scheduler_name,
        {**profile.plugins, **classes},
        {**profile.args, **given},
        {hook: (*order, *new) for hook, order in profile.points.items()},
    )


def checked_args(plugin: type[Plugin[Any]], args: Mapping[str, Any]) -> Args:
    """Return a plugin's arguments, checked as those of a profile are.

    :raises InputError: naming the plugin and the path of what is wrong.
    """
    document = Document("arguments", 1, args, Text("arguments", ""))
    return validated(plugin.Args, dict(args), document, plugin=plugin.__name__)
