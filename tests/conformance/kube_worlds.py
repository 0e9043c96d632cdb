"""Decisions of kube-scheduler on small worlds, asked again of the scheduler on an embedded cluster.

The format of a world is that of ``record_worlds.py``. A step sees what kube-scheduler saw: where it
bound a pod, the pod stands there for the steps after it.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType
from tests.conformance.case_format import Part, checked, complete

from bayplan import Unit
from bayplan.api import ApiObject, Pod
from bayplan.profiles.loading import ProfileSet
from bayplan.snapshot import PodInfo
from bayplan.testing import Cluster, make_object
from bayplan_plugins.preemption.dry_run import DryRun
from bayplan_plugins.preemption.known import KnownEvictions
from bayplan_plugins.shared.victims import Evictable

__all__ = ["Comparison", "compared", "image_sizes", "table"]

Content = Mapping[str, Any]
Sizes = Mapping[str, int]

_MOST_TRIED = 720
"""The variants of a world that are tried before a difference counts: the orders of six pods."""
_PRIORITIES = {"low": 100, "middle": 500, "high": 1000}
_NAMESPACES: dict[str, dict[str, str]] = {"fz": {"team": "x"}, "fz2": {}}
_CHANGING = ("PersistentVolume", "PersistentVolumeClaim", "PodDisruptionBudget", "ResourceClaim")

_GATED = "Scheduling is blocked due to non-empty scheduling gates"
"""What the API server writes; kube-scheduler writes nothing about such a pod."""
STALE_IMAGES = "an image has the size that a node of an earlier world reported"
LOTTERY = "nodes of equal cost, or victims of equal importance that have not started"
BUDGET = "a budget refuses the eviction of a victim that kube-scheduler would delete"
_REFUSED = "preemption: the eviction of "
BROKEN_POST_FILTER = 'PostFilter fails with "not found" after a refusal in PreFilter'


@dataclass(frozen=True)
class Comparison:
    """One thing that kube-scheduler decided, and what bayplan would have decided.

    ``excuse`` says why a difference comes from kube-scheduler's memory or chance, "" when it does
    not.
    """

    kind: str
    world: object
    pod: str
    recorded: object
    found: object
    agrees: bool
    excuse: str = ""


@dataclass(frozen=True)
class Answer:
    """What bayplan decides about one pod.

    ``best`` are the nodes with the highest score and ``scores`` says how they came about. For a pod
    that is refused, ``nominated`` is the node that it preempts on, and ``victims`` are those on
    each node of the lowest cost.
    """

    best: Sequence[str] = ()
    scores: str = ""
    message: str = ""
    nominated: str = ""
    victims: Mapping[str, Sequence[str]] = field(default_factory=dict)


def compared(worlds: Iterable[Content], profiles: ProfileSet) -> Iterator[Comparison]:
    """Replay worlds; yield one comparison for each thing that was decided."""
    known = [_checked(world) for world in worlds]
    sizes = image_sizes(known)
    for world in known:
        replay = _Replay(world, profiles, world["bound"])
        for index, step in enumerate(world["steps"]):
            if not {"node", "message"} & step.keys():
                continue
            answer = replay.ask(step)
            for one in _comparisons(world, step, answer):
                yield one if one.agrees else _excused(one, world, index, profiles, sizes)
            replay.follow(step)


class _Step(Part, kw_only=True):
    """A pod, and what kube-scheduler decided about it."""

    pod: dict[str, Any]
    objects: list[dict[str, Any]] = []
    node: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    nominated: str = ""
    victims: list[str] = []
    refused: Any = UNSET
    timeout: Any = UNSET


class _World(Part, kw_only=True):
    """A world; ``bad`` says what of it the API server did not take."""

    seed: Any = None
    bad: Any = None
    nodes: list[dict[str, Any]] = []
    bound: list[dict[str, Any]] = []
    objects: list[dict[str, Any]] = []
    steps: list[_Step] = []


def _checked(world: Content) -> Content:
    """Return a world with all its fields.

    :raises UnknownFieldError: for a field that nobody reads.
    """
    found = complete(_World, world)
    pods = [step["pod"] for step in found["steps"]]
    others = [one for step in found["steps"] for one in step["objects"]]
    for one in (*found["nodes"], *found["bound"], *found["objects"], *pods, *others):
        checked(one["apiVersion"], one["kind"], one)
    return found


def table(found: Sequence[Comparison]) -> str:
    """Return how many of each kind agree, and why the others may differ."""
    kinds = sorted({one.kind for one in found})
    lines = [f"{'':10} {'decided':>8} {'equal':>8} {'excused':>8} {'differ':>8}"]
    for kind in kinds:
        own = [one for one in found if one.kind == kind]
        equal = sum(one.agrees for one in own)
        excused = sum(bool(one.excuse) for one in own)
        counts = (len(own), equal, excused, len(own) - equal - excused)
        lines.append(f"{kind:10} {' '.join(f'{count:8}' for count in counts)}")
    reasons = Counter(one.excuse for one in found if one.excuse)
    return "\n".join([*lines, *(f"{count:4} {reason}" for reason, count in reasons.most_common())])


# Replaying -----------------------------------------------------------------------------------


class _Replay:
    """A world on an embedded cluster.

    :param standing: the pods that have a node, with it, in the order in which they came.
    :param sizes: sizes of images, in bytes by name, instead of those that the nodes report.
    """

    def __init__(
        self,
        world: Content,
        profiles: ProfileSet,
        standing: Iterable[Content],
        sizes: Sizes | None = None,
    ) -> None:
        # Kubernetes evicts nobody for a claim.
        strict = {"DynamicResources": {"strictReference": True}}
        self.cluster = Cluster(profiles=profiles, plugins=strict)
        for name, labels in _NAMESPACES.items():
            meta = {"name": name, "labels": labels}
            self._create({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        for name, value in _PRIORITIES.items():
            content = {"metadata": {"name": name}, "value": value}
            self._create({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", **content})
        for content in world.get("objects", ()):
            if content["kind"] not in _CHANGING:
                self._create(content)
        for content in world["nodes"]:
            self._create(_with_sizes(content, sizes or {}))
        for content in standing:
            self._create(content)
        self._changing: dict[tuple[type, str], ApiObject] = {}

    def _create(self, content: Content) -> None:
        self.cluster.add(make_object(content))

    def ask(self, step: Content) -> Answer:
        """Return what bayplan decides about the step's pod; the pod is gone afterwards."""
        cluster = self.cluster
        self._set_changing(step.get("objects", ()))
        pod = make_object(step["pod"])
        assert isinstance(pod, Pod)
        cluster.add(pod)
        made = cluster.api.get(Pod, pod.key)
        assert made is not None
        cluster.snapshot.sync()
        profile = cluster.scheduler.profile_of(made)
        assert profile is not None, "a profile of tests/conformance/profiles.yaml"
        found = profile.evaluator.evaluate(PodInfo(made))
        names = cluster.snapshot.nodes.names
        top = found.feasible & (found.total == found.total.max(initial=-np.inf))
        best = [names[row] for row in np.flatnonzero(top)]
        scores = str(found.describe(names, finalists=True).finalists)
        victims = {} if best else self._victims(PodInfo(made))
        if "node" not in step:
            cluster.schedule()
        message = cluster.message(pod.key)
        after = cluster.api.get(Pod, pod.key)
        nominated = after.status.nominated_node_name if after is not None else ""
        cluster.remove(pod.key)
        return Answer(best, scores, message, nominated, victims)

    def follow(self, step: Content) -> None:
        """Put the step's pod where kube-scheduler bound it."""
        for content in _bound_by([step]):
            self._create(content)

    def _set_changing(self, contents: Iterable[Content]) -> None:
        """Make the volumes, claims and budgets what they were before a step."""
        wanted = {}
        for content in contents:
            # Nothing here would take finalizers off.
            meta = {k: v for k, v in content["metadata"].items() if k != "finalizers"}
            obj = make_object({**content, "metadata": meta})
            wanted[type(obj), self.cluster.api.key_of(obj)] = obj
        api = self.cluster.api
        for type_, key in self._changing.keys() - wanted.keys():
            api.delete(type_, key)
        for (type_, key), obj in wanted.items():
            if api.get(type_, key) is not None:
                api.delete(type_, key)
            api.create(obj)
        self._changing = wanted
        api.deliver()

    def _victims(self, pod: PodInfo) -> dict[str, list[str]]:
        """Return the victims on each node where preemption for a pod costs least."""
        if pod.spec.preemption_policy == "Never":
            return {}
        profile = pod.spec.scheduler_name
        handle = self.cluster.scheduler.handle_for("DefaultPreemption", profile)
        unit = Unit(pod.key, (pod,))
        dry_run = DryRun(handle, unit, Evictable.by(unit, handle), KnownEvictions(handle), most=100)
        dry_run.run()
        lowest = min((found.cost for found in dry_run.solutions), default=None)
        return {
            found.placement.name: sorted(victim.name for victim in found.victims)
            for found in dry_run.solutions
            if found.cost == lowest
        }


def _bound_by(steps: Iterable[Content]) -> list[Content]:
    """Return the pods that kube-scheduler bound in these steps, with their nodes."""
    return [
        {**step["pod"], "spec": {**step["pod"]["spec"], "nodeName": step["node"]}}
        for step in steps
        if "node" in step
    ]


def _with_sizes(node: Content, sizes: Sizes) -> Content:
    if not sizes:
        return node
    images = [
        {**image, "sizeBytes": sizes.get(image["names"][0], image["sizeBytes"])}
        for image in node["status"].get("images", ())
    ]
    return {**node, "status": {**node["status"], "images": images}}


# Comparing -----------------------------------------------------------------------------------


def _comparisons(world: Content, step: Content, answer: Answer) -> Iterator[Comparison]:
    about = (world["seed"], step["pod"]["metadata"]["name"])
    if "node" in step:
        agrees = step["node"] in answer.best
        found = answer.scores if answer.best else answer.message
        yield Comparison("node", *about, step["node"], found, agrees)
        return
    yield _message(about, step, answer)
    if step["nominated"]:
        cheapest = sorted(answer.victims)
        agrees = {step["nominated"], answer.nominated} <= answer.victims.keys()
        refused = step["nominated"] in cheapest and _REFUSED in answer.message
        excuse = BUDGET if refused else ""
        yield Comparison("nominated", *about, step["nominated"], cheapest, agrees, excuse)
        names = answer.victims.get(step["nominated"], ())
        yield Comparison("victims", *about, step["victims"], names, step["victims"] == names)


def _message(about: tuple[object, str], step: Content, answer: Answer) -> Comparison:
    recorded, found = step["message"], _without_details(answer.message)
    if recorded == _GATED:
        agrees = found.startswith("waiting for scheduling gates: [")
        return Comparison("gated", *about, recorded, found, agrees)
    if step["nominated"]:
        # What bayplan says of the preemption comes after kube-scheduler's sentence.
        found, _, own = found.partition(" preemption: ")
        return Comparison("message", *about, recorded, found, recorded == found and bool(own))
    agrees = recorded == found
    excuse = ""
    if not agrees and recorded.endswith(". not found"):
        agrees_so_far = found.startswith(recorded.removesuffix("not found"))
        excuse = BROKEN_POST_FILTER if agrees_so_far else ""
    return Comparison("message", *about, recorded, found, agrees, excuse)


_DETAILS = re.compile(r"(\d+) (cannot allocate all claims) \((?:[^()]|\([^()]*\))*\)")


def _without_details(message: str) -> str:
    """Leave out what bayplan adds to kube-scheduler's reasons: why claims cannot be allocated."""
    if not _DETAILS.search(message):
        return message
    sentences = re.split(r"(?<=available: )|(?=\. )|(?=\.$)", _DETAILS.sub(r"\1 \2", message))
    return "".join(_summed(one) if " cannot allocate" in one else one for one in sentences)


def _summed(reasons: str) -> str:
    counts: Counter[str] = Counter()
    for reason in reasons.split(", "):
        count, _, text = reason.partition(" ")
        counts[text] += int(count)
    return ", ".join(sorted(f"{count} {text}" for text, count in counts.items()))


# Excuses -------------------------------------------------------------------------------------


def _excused(
    one: Comparison, world: Content, index: int, profiles: ProfileSet, sizes: Mapping[str, set[int]]
) -> Comparison:
    """Say whether a difference is one of kube-scheduler's memory or chance, by trying it."""
    if one.excuse:
        return one
    step = world["steps"][index]
    standing = [*world["bound"], *_bound_by(world["steps"][:index])]
    tried: Iterable[tuple[str, list[Content], Sizes]] = ()
    if one.kind == "node":
        images = sorted(_images(step["pod"]) & sizes.keys())
        choices = itertools.product(*(sorted(sizes[image]) for image in images))
        tried = ((STALE_IMAGES, standing, dict(zip(images, c, strict=True))) for c in choices)
    elif one.kind in ("nominated", "victims"):
        tried = ((LOTTERY, order, {}) for order in _orders(standing, step["nominated"]))
    for excuse, order, remembered in itertools.islice(tried, _MOST_TRIED):
        again = _Replay(world, profiles, order, remembered).ask(step)
        found = [other for other in _comparisons(world, step, again) if other.kind == one.kind]
        if all(other.agrees for other in found):
            return dataclasses.replace(one, excuse=excuse)
    return one


def _orders(standing: list[Content], node: str) -> Iterator[list[Content]]:
    """Return the orders in which the pods of a node that have not started may have come."""
    loose = [
        pod
        for pod in standing
        if pod["spec"]["nodeName"] == node and "startTime" not in pod.get("status", {})
    ]
    others = [pod for pod in standing if pod not in loose]
    for order in itertools.permutations(loose):
        yield [*others, *order]


def image_sizes(worlds: Iterable[Content]) -> dict[str, set[int]]:
    """Return the sizes in bytes that any node of any world reports for an image, by its name."""
    sizes: dict[str, set[int]] = {}
    for world in worlds:
        for node in world["nodes"]:
            for image in node["status"].get("images", ()):
                for name in image["names"]:
                    sizes.setdefault(name, set()).add(image["sizeBytes"])
    return sizes


def _images(pod: Content) -> set[str]:
    spec = pod["spec"]
    return {c["image"] for c in (*spec["containers"], *spec.get("initContainers", ()))}
