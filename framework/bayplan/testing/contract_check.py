"""The rules for every plugin, checked on random clusters."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from bayplan.api import (
    Pod,
    PodSpec,
)
from bayplan.api.objects import decode_part
from bayplan.cycle.evaluation import Evaluation
from bayplan.cycle.evaluator import Evaluator
from bayplan.cycle.placer import EVERYWHERE
from bayplan.errors import InputError, PluginError
from bayplan.plugin.base import CycleState, Unit
from bayplan.plugin.contract import check_class, hook_names
from bayplan.plugin.events import ClusterEvent
from bayplan.plugin.hookspecs import BoolColumn
from bayplan.plugin.plugin import Plugin
from bayplan.profiles.runtime import HookCall, Runtime, guard
from bayplan.snapshot import NodeRow, NodeView, PodInfo, Snapshot
from bayplan.testing import fingerprints
from bayplan.testing.cluster import Cluster, checked_args, evaluator_of, runtime_of
from bayplan.testing.random_clusters import random_cluster, random_pod
from bayplan.testing.twins import relabelled, twins_of, watched

__all__ = ["PluginCheckError", "check_plugin"]

_MOST_NAMED = 4


class PluginCheckError(AssertionError):
    """A plugin breaks the contract; the text says which rule and where."""


def check_plugin(
    plugin: type[Plugin[Any]], args: Mapping[str, Any] | None = None, rounds: int = 10
) -> None:
    """Check on random clusters that a plugin keeps the contract.

    - every hook's name and arguments are known, and the arguments' model has a schema;
    - ``filter`` and ``filter_node`` agree, ``score`` and ``score_node`` agree;
    - the answer is the same twice, and the same from cached evaluations as from scratch;
    - pods that share answers (of equal spec, and equal ``sign`` where there is one) get equal ones,
      whatever their names, namespaces, owners, labels and annotations are;
    - scores are finite, and within 0..100 when normalised;
    - no hook changes what it is given: nodes, pods, other objects, columns, the cycle state of
      other plugins; and ``unreserve`` undoes what ``reserve`` counted.

    :raises PluginCheckError: naming the rule that is broken, and the hook.
    """
    given = dict(args or {})
    try:
        check_class(plugin.__name__, plugin)
        checked_args(plugin, given)
    except InputError as exc:
        raise PluginCheckError(str(exc)) from None
    try:
        for seed in range(rounds):
            cluster = random_cluster(seed)
            _check_on(plugin, given, cluster, seed)
            _check_beside_others(plugin, given, cluster, seed)
    except PluginError as exc:
        raise PluginCheckError(str(exc)) from exc


def _probes(seed: int) -> list[Pod]:
    """Return the pods to ask a plugin about; the same for the same seed."""
    draw = random.Random(seed + 1000)  # noqa: S311 - test data
    return [random_pod(draw, f"probe-{index}") for index in range(6)]


def _check_on(
    plugin: type[Plugin[Any]], args: Mapping[str, Any], cluster: Cluster, seed: int
) -> None:
    kept = evaluator_of(plugin, cluster, args, cached=True)
    plain = evaluator_of(plugin, cluster, args)
    for index, probe in enumerate(_probes(seed)):
        pod = PodInfo(probe)
        before = fingerprints.of_objects(cluster.snapshot, [pod])
        first, again, cached = plain.evaluate(pod), plain.evaluate(pod), kept.evaluate(pod)
        things = fingerprints.changed(before, fingerprints.of_objects(cluster.snapshot, [pod]))
        if things:
            raise _meddling(plugin, args, seed, index, things)
        _same(plugin, "two evaluations of one pod", first, again)
        _same(plugin, "an evaluation that was kept and one from scratch", first, cached)
        _check_spellings(plugin, args, cluster, pod, first)
        # Pods of other labels on the nodes reveal what the answer makes of them.
        placed = _check_twins(plugin, args, cluster, probe, seed + index)
        # The plugin runs alone here; the default profile says where the pod fits at all.
        room = cluster.profile.evaluator.evaluate(pod).feasible
        row = first.best(np.flatnonzero(room & first.feasible))
        if row is not None:
            _check_other_hooks(plugin, args, cluster, pod, first, row)
            cluster.snapshot.add_pod(placed, cluster.snapshot.nodes.names[row])


def _check_twins(
    plugin: type[Plugin[Any]],
    args: Mapping[str, Any],
    cluster: Cluster,
    probe: Pod,
    seed: int,
) -> PodInfo:
    """Ask about pods of the spec of a probe that differ in all else.

    :returns: a pod of the probe's name and spec, with other labels where the plugin reads some.
    """
    runtime = runtime_of(plugin, cluster, args)
    if not (plugin.by_spec or runtime["sign"]):
        return PodInfo(probe)
    read = _metadata_read(plugin, runtime, cluster.snapshot, probe)
    kept, plain = (Evaluator(runtime, cluster.snapshot, cached) for cached in (True, False))
    first = relabelled(random.Random(seed), probe, *read)  # noqa: S311 - test data
    kept.evaluate(PodInfo(first))
    equal = "spec and sign" if runtime["sign"] else "spec"
    for twin in twins_of(first, *read):
        pod = PodInfo(twin.pod)
        what = f"pods that share answers (equal {equal}, different {twin.differs})"
        _same(plugin, what, plain.evaluate(pod), kept.evaluate(pod))
    return PodInfo(first)


def _metadata_read(
    plugin: type[Plugin[Any]], runtime: Runtime, snapshot: Snapshot, probe: Pod
) -> tuple[list[str], list[str]]:
    """Return the labels and the annotations of a pod that Filter and Score ask for.

    :raises PluginCheckError: when the plugin says that it asks for none.
    """
    copy, labels, annotations = watched(probe)
    pod = PodInfo(copy)
    # What was asked for until here is the framework's.
    labels.asked.clear()
    annotations.asked.clear()
    readers: dict[str, str] = {}

    def noted(call: HookCall) -> HookCall:
        def run(*given: Any) -> Any:
            answer = _in_full(call, call.call(*given))
            for kind, read in (("label", labels.asked), ("annotation", annotations.asked)):
                for name in read:
                    readers.setdefault(f'{kind} "{name}"', call.hook)
            return answer

        return replace(call, call=run)

    Evaluator(runtime.with_calls(noted), snapshot, cached=False).evaluate(pod)
    if readers and plugin.by_spec:
        what, hook = next(iter(readers.items()))
        raise PluginCheckError(
            f"{plugin.__name__}: {hook} reads the {what} of a pod, but by_spec = True says that "
            f"only its spec counts; leave that out, and return what else counts from sign(pod)"
        )
    return list(labels.asked), list(annotations.asked)


def _same(plugin: type[Plugin[Any]], what: str, one: Evaluation, other: Evaluation) -> None:
    if not np.array_equal(one.feasible, other.feasible):
        raise PluginCheckError(f"{plugin.__name__}: {what} differ in the nodes they allow")
    if not np.array_equal(one.total, other.total):
        raise PluginCheckError(f"{plugin.__name__}: {what} differ in scores")


def _own_mask(found: Evaluation) -> BoolColumn:
    """Return the nodes that the one filter refuses for themselves."""
    mask = found.filters[0].mask
    return mask if found.failure is None else mask & ~found.failure.others


def _check_spellings(
    plugin: type[Plugin[Any]],
    args: Mapping[str, Any],
    cluster: Cluster,
    pod: PodInfo,
    found: Evaluation,
) -> None:
    runtime = runtime_of(plugin, cluster, args)
    if found.refusal is not None:
        return
    view = NodeView(cluster.snapshot.nodes)
    names = cluster.snapshot.nodes.names
    for vector, single in (("filter", "filter_node"), ("score", "score_node")):
        if not (runtime[vector] and runtime[single]):
            continue
        skipped = found.skipped["pre_filter" if vector == "filter" else "pre_score"]
        if plugin.__name__ in skipped:
            continue
        column = _own_mask(found) if vector == "filter" else found.scores[0].raw
        for row, node in enumerate(view):
            answer = runtime[single][0](pod, node, found.state)
            expected = (answer is not None) if vector == "filter" else float(answer)
            if column[row] != expected:
                raise PluginCheckError(
                    f"{plugin.__name__}: {vector} and {single} disagree on {names[row]} "
                    f"for {pod.key}: {column[row]} and {answer}"
                )


def _meddling(
    plugin: type[Plugin[Any]],
    args: Mapping[str, Any],
    seed: int,
    probe: int,
    things: Sequence[str],
) -> PluginCheckError:
    """Return the error for a plugin that changes things while it filters and scores.

    :raises PluginCheckError: naming the hook, if one can be identified.
    """
    # The changed cluster is unusable: run again on one of the same seed, and watch each call.
    cluster, pod = random_cluster(seed), PodInfo(_probes(seed)[probe])
    watched = _Watch(plugin, cluster.snapshot, pod)
    runtime = runtime_of(plugin, cluster, args).with_calls(watched.world)
    Evaluator(runtime, cluster.snapshot, cached=False).evaluate(pod)
    return PluginCheckError(f"{plugin.__name__} changes {_listed(things)}")


class _Watch:
    """Wraps calls of a plugin's hooks, to find out which one changes what it is given."""

    def __init__(self, plugin: type[Plugin[Any]], snapshot: Snapshot, pod: PodInfo) -> None:
        self._name = plugin.__name__
        self._snapshot = snapshot
        self._pod = pod
        self._own: set[object] = set()

    def world(self, call: HookCall) -> HookCall:
        """Return the call, watching the snapshot and the pod."""

        def run(*given: Any) -> Any:
            before = fingerprints.of_objects(self._snapshot, [self._pod])
            answer = _in_full(call, call.call(*given))
            after = fingerprints.of_objects(self._snapshot, [self._pod])
            self._compare(call, fingerprints.changed(before, after))
            return answer

        return replace(call, call=run)

    def state(self, call: HookCall) -> HookCall:
        """Return the call, watching what other plugins have written to the cycle's state."""
        arguments = hook_names()[call.hook]
        if call.name != self._name or "state" not in arguments:
            return call
        at = arguments.index("state")

        def run(*given: Any) -> Any:
            before = fingerprints.of_state(given[at])
            answer = _in_full(call, call.call(*given))
            after = fingerprints.of_state(given[at])
            self._own |= after.keys() - before.keys()
            others = {key: value for key, value in before.items() if key not in self._own}
            wrong = [str(key) for key, value in others.items() if after.get(key) != value]
            self._compare(call, [f"{key} of another plugin" for key in wrong])
            return answer

        return replace(call, call=run)

    def _compare(self, call: HookCall, things: Sequence[str]) -> None:
        if things:
            raise PluginCheckError(f"{self._name}: {call.hook} changes {_listed(things)}")


def _in_full(call: HookCall, answer: Any) -> Any:
    """Return a hook's answer; for a generator, all that it yields."""
    return guard(call, list, answer) if isinstance(answer, Iterator) else answer


def _listed(things: Sequence[str]) -> str:
    more = len(things) - _MOST_NAMED
    return ", ".join(things[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _check_other_hooks(
    plugin: type[Plugin[Any]],
    args: Mapping[str, Any],
    cluster: Cluster,
    pod: PodInfo,
    found: Evaluation,
    row: int,
) -> None:
    """Run the hooks around Filter and Score on a node that takes the pod."""
    snapshot = cluster.snapshot
    runtime = runtime_of(plugin, cluster, args)
    if runtime["reserve"] and not runtime["unreserve"]:
        raise PluginCheckError(f"{plugin.__name__} has reserve and no unreserve")
    watched = runtime.with_calls(_Watch(plugin, snapshot, pod).world)
    node, unit, state = NodeRow(snapshot.nodes, row), Unit(pod.key, [pod]), CycleState(found.state)
    before = fingerprints.of_objects(snapshot, [pod])

    def run(hook: str, *given: Any, of: Runtime = watched) -> None:
        for call in of[hook]:
            _in_full(call, call(*given))

    run("pre_enqueue", pod)
    run("queue_sort", unit, 0.0)
    run("requeue_hint", pod, ClusterEvent.NODE_ADDED, None)
    run("requeue_hint", pod, ClusterEvent.POD_REMOVED, pod)
    if plugin.__name__ not in found.skipped["pre_filter"]:
        run("slots", pod, NodeView(snapshot.nodes), found.state)
    run("placement_score", unit, EVERYWHERE, state)
    run("reserve", pod, node, state, of=runtime)
    run("permit", pod, node, unit, state)
    run("pre_bind", pod, node, state)
    run("bind", pod, node, state)
    for _ in range(2):
        # Unreserve may be called when there is nothing to undo.
        run("unreserve", pod, node, state, of=runtime)
    things = fingerprints.changed(before, fingerprints.of_objects(snapshot, [pod]))
    if things:
        text = f"unreserve does not undo reserve, which changes {_listed(things)}"
        raise PluginCheckError(f"{plugin.__name__}: {text}")
    run("post_bind", pod, node, state)


def _check_beside_others(
    plugin: type[Plugin[Any]], args: Mapping[str, Any], cluster: Cluster, seed: int
) -> None:
    """Run a plugin after those of the default profile, whose state it must not change."""
    name = plugin.__name__
    profile = cluster.profile.profile
    made = runtime_of(plugin, cluster, args).plugins[name]
    last = [] if name in profile.plugins else [(name, 1)]
    points = {hook: [*order, *last] for hook, order in profile.points.items()}
    draw = random.Random(seed + 2000)  # noqa: S311 - test data
    pod = PodInfo(_spread(random_pod(draw, "probe")))
    runtime = Runtime.compiled({**cluster.profile.runtime.plugins, name: made}, points)
    watched = runtime.with_calls(_Watch(plugin, cluster.snapshot, pod).state)
    Evaluator(watched, cluster.snapshot, cached=False).evaluate(pod)


def _spread(pod: Pod) -> Pod:
    """Return a pod with constraints on others, so that plugins keep some state."""
    selector = {"matchLabels": dict(pod.metadata.labels)}
    constraint = {
        "maxSkew": 5,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": selector,
    }
    soft = {**constraint, "whenUnsatisfiable": "ScheduleAnyway"}
    spec = decode_part(PodSpec, {"topologySpreadConstraints": [constraint, soft]})
    constraints = spec.topology_spread_constraints
    changed = msgspec.structs.replace(pod.spec, topology_spread_constraints=constraints)
    return msgspec.structs.replace(pod, spec=changed)
