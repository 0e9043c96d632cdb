"""Repacking: pods move for a gain, within limits, never in vain, and come to rest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from bayplan.api import ApiObject
from bayplan.dialects.kai.shares import GROUP_LABEL, RESERVATIONS, reservation_pod
from bayplan.errors import InputError
from bayplan.plugin.base import Eviction
from bayplan.profiles.loading import load_profiles
from bayplan.simulation import Simulation
from bayplan.testing import make_node, make_object, make_pod
from bayplan_plugins.gpus.ledger import GpuLedger

HOUR = 3600.0
CORE, RATIO = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory-ratio"
WHOLE_GPUS = [
    {"cpu": "4", "gpus": 1, "count": 50},
    {"cpu": "1", "gpus": 1, "gpuMilli": 300, "count": 1},
]


@dataclass(frozen=True)
class Work:
    """A Deployment of one pod, or with a duration in seconds a Job, that has a part of a GPU."""

    name: str
    percent: int
    at: float = 0.0
    duration: float | None = None
    label: tuple[str, str] = ("", "")

    def object(self) -> ApiObject:
        requests = {"cpu": "1", "koordinator.sh/gpu": str(self.percent)}
        main = {"name": "main", "image": "x", "resources": {"requests": requests}}
        main["resources"]["limits"] = requests  # type: ignore[index]
        labels = {"app": self.name} | ({self.label[0]: self.label[1]} if self.label[0] else {})
        meta: dict[str, Any] = {"labels": labels}
        spec: dict[str, Any] = {"containers": [main]}
        if self.duration is not None:
            meta["annotations"] = {"bayplan.dev/duration": f"{self.duration:g}s"}
            spec["restartPolicy"] = "Never"
            template = {"metadata": meta, "spec": spec}
            job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": self.name}}
            return make_object(job | {"spec": {"template": template}})
        selector = {"matchLabels": {"app": self.name}}
        template = {"metadata": meta, "spec": spec}
        content = {"replicas": 1, "selector": selector, "template": template}
        head = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": self.name}}
        return make_object(head | {"spec": content})


def nodes(count: int, gpus: int) -> Iterator[ApiObject]:
    for number in range(count):
        name = f"node-{number}"
        amounts: dict[str, Any] = {CORE: str(100 * gpus), RATIO: str(100 * gpus)}
        yield make_node(name, cpu="32", memory="64Gi", **amounts)
        gpu = {CORE: "100", RATIO: "100", "koordinator.sh/gpu-memory": "16Gi"}
        devices = [
            {"type": "gpu", "id": f"{name}-{i}", "minor": i, "health": True, "resources": gpu}
            for i in range(gpus)
        ]
        device = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device"}
        yield make_object(device | {"metadata": {"name": name}, "spec": {"devices": devices}})


def profile(folder: Path, **repack: Any) -> Path:
    args = {"repack": repack, "workload": WHOLE_GPUS}
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [
            {
                "schedulerName": "default-scheduler",
                "pluginConfig": [{"name": "GPUFragmentation", "args": args}],
            }
        ],
    }
    path = folder / "profile.json"
    path.write_text(json.dumps(config))
    return path


class Story:
    """A cluster, the work that comes, and what happened to it."""

    def __init__(
        self,
        folder: Path,
        cluster: Sequence[ApiObject],
        work: Sequence[Work],
        hours: float,
        **repack: Any,
    ) -> None:
        self.simulation = Simulation(load_profiles(profile(folder, **repack)), until=hours * HOUR)
        self.simulation.create([*cluster, *(one.object() for one in work if not one.at)])
        self.simulation.arrive((one.at, one.object()) for one in work if one.at)
        self.simulation.on_settled(self._look)
        self.simulation.run()

    def _look(self, simulation: Simulation) -> None:
        ledger = simulation.scheduler.snapshot.shared(GpuLedger, GpuLedger)
        for name in simulation.scheduler.snapshot.nodes.names:
            state = ledger.state(name)
            assert state is None or all(one.compute <= 1000 for one in state.used)

    @property
    def moves(self) -> list[Eviction]:
        found = list(self.simulation.scheduler.evictor.evicted)
        assert {one.action for one in found} <= {"repack"}
        return found

    def node_of(self, name: str) -> str:
        placed = self.simulation.placements()
        return next((node for key, node in placed.items() if f"/{name}-" in key), "")

    def arrivals(self, move: Eviction) -> list[str]:
        """Return the nodes on which a pod of the moved one's Deployment started at once."""
        deployment = move.pod.rsplit("-", 2)[0]
        return [
            entry.node
            for entry in self.simulation.timeline()
            if entry.kind == "Bound" and entry.at == move.at and entry.pod.startswith(deployment)
        ]


def half_empty(label: tuple[str, str] = ("", "")) -> list[Work]:
    """Two GPUs that are full for two hours, and nearly idle after that."""
    jobs = [Work(f"night-{number}", 70, duration=2 * HOUR) for number in range(2)]
    rest = [Work(f"notebook-{number}", 30, label=label) for number in range(2)]
    return [jobs[0], rest[0], jobs[1], rest[1]]


REPACK: dict[str, Any] = {"movesPerHour": 4, "minRuntime": "30m"}


def test_a_whole_gpu_becomes_free(tmp_path: Path) -> None:
    work = [*half_empty(), Work("train", 100, at=5 * HOUR, duration=HOUR)]
    still = Story(tmp_path, list(nodes(2, 1)), work, 5.5)
    assert still.moves == []
    assert still.node_of("train") == ""
    story = Story(tmp_path, list(nodes(2, 1)), work, 5.5, **REPACK)
    (move,) = story.moves
    assert move.at == 2 * HOUR
    assert move.reason.endswith("it frees 1.00 GPUs that would stay idle")
    assert story.node_of("notebook-0") == story.node_of("notebook-1") == move.moves_to
    assert story.node_of("train")


@pytest.mark.parametrize(
    ("label", "repack"),
    [
        (("scheduling.koordinator.sh/disable-preemptible", "true"), {}),
        (("", ""), {"minRuntime": "4h"}),
        (("", ""), {"leastGain": 1.5}),
    ],
    ids=["not preemptible", "too young", "too little gained"],
)
def test_what_keeps_a_pod_in_its_place(
    tmp_path: Path, label: tuple[str, str], repack: dict[str, Any]
) -> None:
    story = Story(tmp_path, list(nodes(2, 1)), half_empty(label), 3.9, **REPACK | repack)
    assert story.moves == []


def test_pods_that_become_old_enough_are_moved_though_nothing_else_happens(tmp_path: Path) -> None:
    story = Story(tmp_path, list(nodes(2, 1)), half_empty(), 8, **REPACK | {"minRuntime": "5h"})
    (move,) = story.moves
    assert 5 * HOUR <= move.at <= 5.5 * HOUR


def test_a_disruption_budget_keeps_pods_in_their_place(tmp_path: Path) -> None:
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "notebooks", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"kind": "notebook"}}},
    }
    work = half_empty(("kind", "notebook"))
    guarded = [*nodes(2, 1), make_object(budget | {"spec": budget["spec"] | {"minAvailable": 2}})]  # type: ignore[operator]
    assert Story(tmp_path, guarded, work, 5, **REPACK).moves == []
    lenient = [*nodes(2, 1), make_object(budget)]
    assert len(Story(tmp_path, lenient, work, 5, **REPACK).moves) == 1


@pytest.mark.parametrize(("owner", "moves"), [("", 0), ("ReplicaSet/notebook", 1)])
def test_a_pod_that_nobody_makes_again_stays(tmp_path: Path, owner: str, moves: int) -> None:
    parts: dict[str, Any] = {CORE: 30, RATIO: 30}
    pods = [make_pod(f"p{n}", node=f"node-{n}", owner=owner, **parts) for n in range(2)]
    story = Story(tmp_path, [*nodes(2, 1), *pods], [], 3, **REPACK)
    assert len(story.moves) == moves


def test_a_fraction_in_kais_words_is_moved_and_its_gpu_becomes_free(tmp_path: Path) -> None:
    objects: list[ApiObject] = []
    for number in range(2):
        name, labels = f"node-{number}", {"nvidia.com/gpu.memory": "80000"}
        objects.append(make_node(name, cpu="32", memory="64Gi", labels=labels, gpu=1))
        pod = make_pod(
            f"p{number}",
            node=name,
            owner="ReplicaSet/notebook",
            annotations={"gpu-fraction": "0.3"},
            labels={GROUP_LABEL: f"g{number}"},
        )
        objects += [pod, reservation_pod(name, f"g{number}", pod)]
    story = Story(tmp_path, objects, [], 3, **REPACK)
    (move,) = [one for one in story.simulation.scheduler.evictor.evicted if one.action == "repack"]
    assert move.pod in ("default/p0", "default/p1")
    placed = story.simulation.scheduler.snapshot.placed
    held = [node for pod, node in placed.values() if pod.namespace == RESERVATIONS]
    assert held == [move.moves_to]


def test_repacking_needs_its_measure(tmp_path: Path) -> None:
    path = profile(tmp_path, **REPACK)
    path.write_text(path.read_text().replace('"workload"', '"policy": "FGD", "workload"'))
    with pytest.raises(InputError, match="repack needs the policy LeastStranded"):
        load_profiles(path)


# Properties ----------------------------------------------------------------------------------

PERCENTS = st.sampled_from((20, 30, 40, 50, 60, 70, 100))
LABELS = st.sampled_from(
    (("", ""),) * 3 + (("quota.scheduling.koordinator.sh/preemptible", "false"),)
)


@st.composite
def works(draw: st.DrawFn, latest: int) -> list[Work]:
    """Deployments and jobs in turn; those of a later hour come while others are moved."""
    made = []
    for number in range(draw(st.integers(2, 10))):
        at = draw(st.integers(0, latest)) * 1800.0
        hours = draw(st.none() | st.integers(1, 4))
        duration = None if hours is None else hours * HOUR
        made.append(Work(f"w{number}", draw(PERCENTS), at, duration, draw(LABELS)))
    return made


@examples(12)
@given(st.integers(2, 4), st.integers(1, 2), works(8), st.sampled_from((0.5, 1, 3, 6)))
def test_moves_keep_to_their_limits_and_are_never_in_vain(
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    gpus: int,
    work: list[Work],
    moves: float,
) -> None:
    folder = tmp_path_factory.mktemp("story")
    repack = {"movesPerHour": moves, "minRuntime": "20m", "leastGain": 0.1}
    story = Story(folder, list(nodes(count, gpus)), work, 14, **repack)
    protected = {one.name for one in work if one.label[0]}
    times = [one.at for one in story.moves]
    for move in story.moves:
        window = max(HOUR, HOUR / moves)
        assert sum(move.at - window < at <= move.at for at in times) <= max(1, moves)
        name = move.pod.partition("/")[2].split("-")[0]
        assert name not in protected
        if next(one for one in work if one.name == name).duration is None:
            assert move.moves_to in story.arrivals(move), "it is where its move helps"
    pods = [(one.pod, one.at) for one in story.moves]
    assert len(set(pods)) == len(pods)


@examples(12)
@given(st.integers(2, 4), st.integers(1, 2), works(0))
def test_moves_come_to_rest(
    tmp_path_factory: pytest.TempPathFactory, count: int, gpus: int, work: list[Work]
) -> None:
    folder = tmp_path_factory.mktemp("story")
    repack = {"movesPerHour": 12, "minRuntime": "10m", "leastGain": 0.1}
    story = Story(folder, list(nodes(count, gpus)), work, 24, **repack)
    gained = [float(one.reason.rsplit("it frees ", 1)[1].split()[0]) for one in story.moves]
    assert all(gain >= 0.09 for gain in gained)
    after = [one for one in story.moves if one.at > 4 * HOUR]
    # All jobs have ended by then: what is stranded only falls, and is a GPU each at most.
    assert sum(gained[len(gained) - len(after) :]) <= count * gpus + 0.01 * len(after)
    assert not [one for one in story.moves if one.at > 12 * HOUR]
