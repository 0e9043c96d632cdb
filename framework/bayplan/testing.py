"""For plugin authors: build a cluster, run one plugin or a whole cycle, check the contract.

from bayplan.testing import Cluster, check_plugin, make_node, make_pod, refusals

def test_refuses_small_nodes():
    cluster = Cluster([make_node("small", cpu="2"), make_node("large", cpu="64")])
    assert refusals(MyPlugin, make_pod("p"), cluster) == {"small": "too small"}

def test_keeps_the_contract():
    check_plugin(MyPlugin)
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import msgspec
import numpy as np

from bayplan import fingerprints
from bayplan.api import (
    ApiObject,
    ClusterNetworkTopology,
    Container,
    Node,
    ObjectMeta,
    Pod,
    PodGroup,
    PodSpec,
    Quantity,
    Taint,
)
from bayplan.api.meta import OwnerReference
from bayplan.api.network import ClusterNetworkTopologySpec, NetworkTopologyLayer
from bayplan.api.node import NodeSpec, NodeStatus
from bayplan.api.objects import KINDS, decode_object, decode_part
from bayplan.api.pod import ResourceRequirements
from bayplan.api.podgroup import PodGroupSpec
from bayplan.cluster import MemoryCluster
from bayplan.cycle.evaluation import Evaluation
from bayplan.cycle.evaluator import Evaluator
from bayplan.cycle.placer import EVERYWHERE
from bayplan.errors import InputError, PluginError
from bayplan.fieldcheck import check_fields
from bayplan.inputs.documents import Document, Text
from bayplan.inputs.validated import validated
from bayplan.plugin.base import Args, CycleState, Placement, Placements, Plugin, Unit
from bayplan.plugin.contract import check_class, hook_names
from bayplan.plugin.decision import Decision
from bayplan.plugin.events import ClusterEvent
from bayplan.plugin.failures import PLUGIN_RAISES, failure
from bayplan.profiles.finder import PluginFinder
from bayplan.profiles.loading import Profile, ProfileSet, default_profiles
from bayplan.profiles.runtime import HookCall, Runtime, guard
from bayplan.scheduler.scheduler import ProfileAtWork, Scheduler
from bayplan.snapshot import NodeRow, NodeView, PodInfo, Snapshot
from bayplan.topology.network import NODE_LAYER

__all__ = [
    "Cluster",
    "PluginCheckError",
    "assert_pending",
    "assert_placed",
    "check_plugin",
    "make_gang",
    "make_network",
    "make_node",
    "make_object",
    "make_pod",
    "random_cluster",
    "random_pod",
    "refusals",
    "scores",
]


PluginOrName: TypeAlias = type[Plugin[Any]] | str
_NO_ARGS: Mapping[str, Any] = {}
_MOST_NAMED = 4


class PluginCheckError(AssertionError):
    """A plugin breaks the contract; the text says which rule and where."""


# Building --------------------------------------------------------------------------------


def make_node(
    name: str,
    cpu: str | int = "8",
    memory: str = "32Gi",
    pods: int = 110,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[str] = (),
    unschedulable: bool = False,
    annotations: Mapping[str, str] | None = None,
    **resources: str | int,
) -> Node:
    """Return a node. Taints are written ``key=value:Effect`` or ``key:Effect``.

    ``gpu`` stands for nvidia.com/gpu; any other resource goes by its name.
    """
    amounts = {"cpu": cpu, "memory": memory, "pods": pods, **_resource_names(resources)}
    quantities = {key: Quantity(value) for key, value in amounts.items()}
    all_labels = {"kubernetes.io/hostname": name, **(labels or {})}
    spec = NodeSpec(unschedulable, tuple(_taint(text) for text in taints))
    meta = ObjectMeta(name=name, labels=all_labels, annotations=dict(annotations or {}))
    return Node(meta, spec, NodeStatus(quantities, quantities))


def make_pod(
    name: str,
    cpu: str | int | None = "1",
    memory: str | None = "1Gi",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    namespace: str = "default",
    priority: int | None = None,
    node: str = "",
    gang: str | None = None,
    spec: Mapping[str, Any] | None = None,
    owner: str = "",
    **resources: str | int,
) -> Pod:
    """Return a pod of one container; ``spec`` adds any fields of a pod's spec, as in YAML.

    ``owner`` is its controller, written ``Job/train``. Amounts are those of the one container,
    and count for nothing where ``spec`` has containers of its own.
    """
    asked = {"cpu": cpu, "memory": memory, **_resource_names(resources)}
    requests = {key: Quantity(value) for key, value in asked.items() if value is not None}
    content = dict(spec or {})
    all_labels = dict(labels or {})
    if gang is not None:
        all_labels["pod-group.scheduling.sigs.k8s.io"] = gang
    main = Container("main", "busybox", ResourceRequirements(requests))
    decoded = decode_part(PodSpec, content)
    fields = {field: getattr(decoded, field) for field in PodSpec.__struct_fields__}
    fields["containers"] = decoded.containers or (main,)
    fields["priority"] = decoded.priority if priority is None else priority
    fields["node_name"] = node or decoded.node_name
    kind, _, owner_name = owner.partition("/")
    meta = ObjectMeta(
        name=name,
        namespace=namespace,
        labels=all_labels,
        annotations=dict(annotations or {}),
        owner_references=(OwnerReference(kind, owner_name, controller=True),) if owner else (),
    )
    return Pod(meta, PodSpec(**fields))


def make_gang(name: str, min_member: int, annotations: Mapping[str, str] | None = None) -> PodGroup:
    """Return a PodGroup in the namespace "default"."""
    meta = ObjectMeta(name=name, namespace="default", annotations=dict(annotations or {}))
    return PodGroup(meta, PodGroupSpec(min_member))


def make_network(**layers: str) -> ClusterNetworkTopology:
    """Return the network of these layers, the outermost first; each is named by a node label."""
    found: list[NetworkTopologyLayer] = []
    parent = ""
    for name, label in layers.items():
        found.append(NetworkTopologyLayer(name, parent, (label,)))
        parent = name
    found.append(NetworkTopologyLayer(NODE_LAYER, parent))
    spec = ClusterNetworkTopologySpec(tuple(found))
    return ClusterNetworkTopology(ObjectMeta(name="default"), spec)


def make_object(content: Mapping[str, Any]) -> ApiObject:
    """Return any object from the mapping that its manifest would parse to."""
    kind = KINDS[str(content["apiVersion"]).rpartition("/")[0], content["kind"]]
    check_fields(kind, content)
    return decode_object(kind, dict(content))


def _resource_names(resources: Mapping[str, str | int]) -> dict[str, str | int]:
    return {"nvidia.com/gpu" if key == "gpu" else key: value for key, value in resources.items()}


def _taint(text: str) -> Taint:
    pair, _, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    return decode_part(Taint, {"key": key, "value": value, "effect": effect})


# Running ---------------------------------------------------------------------------------


class Cluster:
    """An embedded cluster with a scheduler on it.

    :param objects: what is there at the beginning.
    :param profiles: the profiles; without them the default one, for every pod.
    :param plugins: plugins to add to the first profile, with weight 1: classes, or a mapping of
        classes to their arguments as a profile has them, such as ``{Budget: {"teams": ["x"]}}``.
        A name instead of a class stands for an installed plugin; one that is in the profile
        already gets new arguments.
    :param cached: False evaluates every pod from scratch.
    """

    def __init__(
        self,
        objects: Iterable[ApiObject] = (),
        profiles: ProfileSet | None = None,
        plugins: Iterable[PluginOrName] | Mapping[PluginOrName, Mapping[str, Any]] = (),
        cached: bool = True,
    ) -> None:
        self.api = MemoryCluster()
        chosen = profiles or default_profiles()
        given = plugins if isinstance(plugins, Mapping) else dict.fromkeys(plugins, _NO_ARGS)
        if given:
            first = _with_plugins(chosen.profiles[0], given)
            chosen = ProfileSet((first, *chosen.profiles[1:]), any_scheduler=chosen.any_scheduler)
        self.scheduler = Scheduler(self.api, chosen, cached)
        self.add(*objects)

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
        """Delete a pod at once; without a namespace it is one of "default"."""
        self.api.delete(Pod, _key(pod), grace=0)
        self.api.deliver()

    def schedule(self) -> dict[str, str]:
        """Run cycles until nothing is left to try; return every pod's node."""
        self.api.deliver()
        while self.scheduler.step() or self.api.deliver():
            self.api.deliver()
        return self.placements()

    def advance(self, seconds: float) -> dict[str, str]:
        """Let virtual time pass, scheduling whenever there is something to do."""
        end = self.api.now + seconds
        self.schedule()
        while True:
            times = (self.api.clock.next_time(), self.scheduler.next_time())
            due = [at for at in times if at is not None and at <= end]
            self.api.clock.advance(min(due, default=end))
            self.scheduler.tick()
            self.schedule()
            if not due:
                return self.placements()

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
        return self._profile.evaluator.evaluate(PodInfo(pod))

    @property
    def _profile(self) -> ProfileAtWork:
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
    found = _alone(plugin, cluster, args).evaluate(PodInfo(pod))
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
    found = _alone(plugin, cluster, args).evaluate(PodInfo(pod))
    names = cluster.snapshot.nodes.names
    counted = found.scores[0].counted if found.scores else np.zeros(len(names))
    return {names[row]: float(counted[row]) for row in np.flatnonzero(found.feasible)}


def _key(name: str) -> str:
    return name if "/" in name else f"default/{name}"


def _alone(
    plugin: type[Plugin[Any]],
    cluster: Cluster,
    args: Mapping[str, Any] | None,
    cached: bool = False,
) -> Evaluator:
    return Evaluator(_runtime(plugin, cluster, args), cluster.snapshot, cached)


def _runtime(
    plugin: type[Plugin[Any]], cluster: Cluster, args: Mapping[str, Any] | None
) -> Runtime:
    """Return a runtime of one plugin, made as a scheduler would make it."""
    checked = _checked(plugin, args or _NO_ARGS)
    try:
        made = plugin(checked, _HandleOf(cluster, plugin.__name__))
    except PLUGIN_RAISES as exc:
        raise failure(plugin.__name__, "__init__", exc, plugin.__init__) from exc
    return Runtime({plugin.__name__: made}, {})


class _HandleOf:
    """What a plugin sees of a test cluster."""

    def __init__(self, cluster: Cluster, plugin: str) -> None:
        self._cluster = cluster
        self._plugin = plugin
        self.snapshot = cluster.scheduler.snapshot

    @property
    def now(self) -> float:
        return self._cluster.api.now

    def gang(self, key: str) -> Any:
        return self._cluster.scheduler.gangs[key]

    def is_waiting(self, unit: str) -> bool:
        return unit in self._cluster.scheduler.queue.units

    def is_first(self, unit: Unit) -> bool:
        return self._cluster.scheduler.is_first(unit)

    def is_held(self, pod: PodInfo) -> bool:
        return pod.key in self._cluster.scheduler.holds

    def is_spared(self, pod: PodInfo) -> bool:
        return False

    def offers(self, unit: Unit) -> Placements:
        return self._cluster._profile.cycle.offers(unit)

    def place(self, unit: Unit, placement: Placement) -> Mapping[str, str] | None:
        return self._cluster._profile.cycle.place_here(unit, placement)

    def free_slots(self, pod: PodInfo) -> Any:
        return self._cluster._profile.cycle.free_slots(pod)

    def hopeless(self, pod: PodInfo) -> Any:
        return self._cluster._profile.evaluator.evaluate(pod).hopeless()

    def hook(self, name: str) -> Any:
        return self._cluster._profile.runtime[name]

    def submit(self, write: Any, done: Any = None) -> None:
        self._cluster.api.submit(write, done)

    def allow(self, waiting: Unit | PodInfo | str) -> bool:
        return self._cluster.scheduler.allow(waiting, self._plugin)

    def reject(self, waiting: Unit | PodInfo | str, reason: str) -> bool:
        return self._cluster.scheduler.reject(waiting, reason, self._plugin)

    def fit_message(self, pod: PodInfo) -> str:
        evaluation = self._cluster._profile.evaluator.evaluate(pod)
        return evaluation.describe(self.snapshot.nodes.names, finalists=False).message


def _with_plugins(profile: Profile, plugins: Mapping[PluginOrName, Mapping[str, Any]]) -> Profile:
    finder = PluginFinder()
    classes: dict[str, type[Plugin[Any]]] = {}
    given: dict[str, Args] = {}
    for plugin, args in plugins.items():
        cls = finder.find(plugin) if isinstance(plugin, str) else plugin
        name = plugin if isinstance(plugin, str) else cls.__name__
        if classes.setdefault(name, cls) is not cls:
            raise InputError(f'two plugins are named "{name}"')
        given[name] = _checked(cls, args)
    new = [(name, 1) for name in classes if name not in profile.plugins]
    return Profile(
        profile.scheduler_name,
        {**profile.plugins, **classes},
        {**profile.args, **given},
        {hook: (*order, *new) for hook, order in profile.points.items()},
    )


def _checked(plugin: type[Plugin[Any]], args: Mapping[str, Any]) -> Args:
    """Return a plugin's arguments, checked as those of a profile are.

    :raises InputError: naming the plugin and the path of what is wrong.
    """
    document = Document("arguments", 1, args, Text("arguments", ""))
    return validated(plugin.Args, dict(args), document, plugin=plugin.__name__)


# Checking --------------------------------------------------------------------------------


def random_cluster(seed: int, nodes: int = 12, pods: int = 30) -> Cluster:
    """Return a cluster of mixed nodes with pods placed on them; the same for the same seed."""
    draw = random.Random(seed)  # noqa: S311 - test data
    made = [
        make_node(
            f"node-{index}",
            cpu=draw.choice([4, 8, 16]),
            memory=draw.choice(["16Gi", "32Gi"]),
            pods=draw.choice([5, 110]),
            labels={
                "topology.kubernetes.io/zone": draw.choice(["a", "b", "c"]),
                **({"disk": draw.choice(["ssd", "hdd"])} if draw.random() < 0.7 else {}),
            },
            taints=draw.choice([(), (), ("team=a:NoSchedule",), ("old:PreferNoSchedule",)]),
            unschedulable=draw.random() < 0.1,
            gpu=draw.choice([0, 0, 4, 8]),
        )
        for index in range(nodes)
    ]
    cluster = Cluster(made)
    cluster.add(*(random_pod(draw, f"placed-{index}") for index in range(pods)))
    cluster.schedule()
    return cluster


def random_pod(draw: random.Random, name: str) -> Pod:
    """Return a pod with random needs."""
    app = draw.choice(["web", "db", "train"])
    spec: dict[str, Any] = {}
    if draw.random() < 0.2:
        spec["nodeSelector"] = {"disk": "ssd"}
    if draw.random() < 0.3:
        spec["tolerations"] = [{"key": "team", "operator": "Exists"}]
    gpus = draw.choice([1, 2]) if draw.random() < 0.3 else None
    cpu = draw.choice([None, "250m", "1", "2"])
    memory = draw.choice([None, "512Mi", "2Gi"])
    labels = {"app": app}
    if gpus is None:
        return make_pod(name, cpu, memory, labels, spec=spec)
    return make_pod(name, cpu, memory, labels, spec=spec, gpu=gpus)


def check_plugin(
    plugin: type[Plugin[Any]], args: Mapping[str, Any] | None = None, rounds: int = 10
) -> None:
    """Prove on random clusters that a plugin keeps the contract.

    - every hook's name and arguments are known, and the arguments' model has a schema;
    - ``filter`` and ``filter_node`` agree, ``score`` and ``score_node`` agree;
    - the answer is the same twice, and from kept evaluations as from scratch;
    - scores are finite and come to 0..100;
    - no hook changes what it is given: nodes, pods, other objects, columns, the cycle state of
      other plugins; and ``unreserve`` undoes what ``reserve`` counted.

    :raises PluginCheckError: naming the rule that is broken, and the hook.
    """
    given = dict(args or {})
    try:
        check_class(plugin.__name__, plugin)
        _checked(plugin, given)
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
    kept = _alone(plugin, cluster, args, cached=True)
    plain = _alone(plugin, cluster, args)
    for index, probe in enumerate(_probes(seed)):
        pod = PodInfo(probe)
        before = fingerprints.of_world(cluster.snapshot, [pod])
        first, again, cached = plain.evaluate(pod), plain.evaluate(pod), kept.evaluate(pod)
        things = fingerprints.changed(before, fingerprints.of_world(cluster.snapshot, [pod]))
        if things:
            raise _meddling(plugin, args, seed, index, things)
        _same(plugin, "two evaluations of one pod", first, again)
        _same(plugin, "an evaluation that was kept and one from scratch", first, cached)
        _check_spellings(plugin, args, cluster, pod, first)
        # The plugin runs alone here; the default profile says where there is room at all.
        room = cluster._profile.evaluator.evaluate(pod).feasible
        row = first.best(np.flatnonzero(room & first.feasible))
        if row is not None:
            _check_other_hooks(plugin, args, cluster, pod, first, row)
            cluster.snapshot.add_pod(pod, cluster.snapshot.nodes.names[row])


def _same(plugin: type[Plugin[Any]], what: str, one: Evaluation, other: Evaluation) -> None:
    if not np.array_equal(one.feasible, other.feasible):
        raise PluginCheckError(f"{plugin.__name__}: {what} differ in the nodes they allow")
    if not np.array_equal(one.total, other.total):
        raise PluginCheckError(f"{plugin.__name__}: {what} differ in scores")


def _check_spellings(
    plugin: type[Plugin[Any]],
    args: Mapping[str, Any],
    cluster: Cluster,
    pod: PodInfo,
    found: Evaluation,
) -> None:
    runtime = _runtime(plugin, cluster, args)
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
        column = found.filters[0].mask if vector == "filter" else found.scores[0].raw
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

    :raises PluginCheckError: naming the hook, where one can be blamed.
    """
    # What was changed is spoilt: ask again on a cluster of the same seed, and watch each call.
    cluster, pod = random_cluster(seed), PodInfo(_probes(seed)[probe])
    watched = _Watch(plugin, cluster.snapshot, pod)
    runtime = _runtime(plugin, cluster, args).with_calls(watched.world)
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
            before = fingerprints.of_world(self._snapshot, [self._pod])
            answer = _in_full(call, call.call(*given))
            after = fingerprints.of_world(self._snapshot, [self._pod])
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
    """Return a hook's answer, and of a generator all that it yields."""
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
    runtime = _runtime(plugin, cluster, args)
    if runtime["reserve"] and not runtime["unreserve"]:
        raise PluginCheckError(f"{plugin.__name__} has reserve and no unreserve")
    watched = runtime.with_calls(_Watch(plugin, snapshot, pod).world)
    node, unit, state = NodeRow(snapshot.nodes, row), Unit(pod.key, [pod]), CycleState(found.state)
    before = fingerprints.of_world(snapshot, [pod])

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
        # Unreserve has to bear being called when there is nothing to undo.
        run("unreserve", pod, node, state, of=runtime)
    things = fingerprints.changed(before, fingerprints.of_world(snapshot, [pod]))
    if things:
        text = f"unreserve does not undo reserve, which changes {_listed(things)}"
        raise PluginCheckError(f"{plugin.__name__}: {text}")
    run("post_bind", pod, node, state)


def _check_beside_others(
    plugin: type[Plugin[Any]], args: Mapping[str, Any], cluster: Cluster, seed: int
) -> None:
    """Run a plugin after those of the default profile, whose state it has to leave alone."""
    name = plugin.__name__
    profile = cluster._profile.profile
    made = _runtime(plugin, cluster, args).plugins[name]
    last = [] if name in profile.plugins else [(name, 1)]
    points = {hook: [*order, *last] for hook, order in profile.points.items()}
    draw = random.Random(seed + 2000)  # noqa: S311 - test data
    pod = PodInfo(_spread(random_pod(draw, "probe")))
    runtime = Runtime({**cluster._profile.runtime.plugins, name: made}, points)
    watched = runtime.with_calls(_Watch(plugin, cluster.snapshot, pod).state)
    Evaluator(watched, cluster.snapshot, cached=False).evaluate(pod)


def _spread(pod: Pod) -> Pod:
    """Return a pod with constraints on others, so that plugins have something to remember."""
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
