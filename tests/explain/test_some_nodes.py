"""In a large cluster plugins are asked about some nodes: they say of each what they say of all."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bayplan import NodeView, Remedy
from bayplan.cli.options import simulate
from bayplan.explain import suggestions
from bayplan.explain.suggestions import Diagnosis
from bayplan.simulation.simulation import Simulation
from bayplan.testing import Cluster, make_gang, make_node, make_pod

CASES = sorted((Path(__file__).parent / "cases").glob("*.yaml"))


def remedies(simulation: Simulation, rows: list[int] | None) -> dict[str, list[Remedy]]:
    """Return what plugins offer for the first pod of each pending unit, for some nodes."""
    (profile,) = simulation.scheduler.profiles.values()
    table = simulation.scheduler.snapshot.nodes
    view = NodeView(table, None if rows is None else np.array(rows, dtype=np.intp))
    found: dict[str, list[Remedy]] = {}
    for key in simulation.scheduler.queue.units:
        unit = simulation.scheduler.pending_unit(key)
        if unit is None or not unit.pods:
            continue
        pod = unit.pods[0]
        evaluation = profile.evaluator.evaluate(pod)
        if evaluation.refusal is None and evaluation.failure is None:
            for call in profile.runtime["remedies"]:
                if call.name not in evaluation.skipped["pre_filter"]:
                    found[f"{key} {call.name}"] = list(call(pod, view, evaluation.state))
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_each_node_has_the_remedies_that_it_has_among_all(case: Path) -> None:
    simulation, _ = simulate((str(case),), None, None, 600.0, 0)
    everywhere = remedies(simulation, None)
    for row in range(len(simulation.scheduler.snapshot.nodes)):
        for plugin, found in remedies(simulation, [row]).items():
            expected = [one for one in everywhere[plugin] if one.row == row]
            assert [one for one in found if one.row is not None] == expected, plugin


def clusters() -> Iterator[tuple[Cluster, str]]:
    """Yield clusters of nearly full nodes with a pending pod or gang, and its name."""
    for seed in range(12):
        draw = random.Random(seed)
        nodes = [
            make_node(
                f"n{index}",
                cpu=draw.choice([4, 8]),
                gpu=draw.choice([0, 4]),
                taints=draw.choice([(), (), ("a=b:NoSchedule",)]),
            )
            for index in range(40)
        ]
        cluster = Cluster(nodes)
        for node in nodes:
            free = draw.choice([0, 1, 2])
            cpu = node.status.allocatable["cpu"].milli // 1000 - free
            cluster.add(make_pod(f"on-{node.metadata.name}", cpu, None, node=node.metadata.name))
        if seed % 2:
            cluster.add(make_gang("g", 3))
            cluster.add(*(make_pod(f"g-{index}", "3", None, gang="g") for index in range(3)))
            yield cluster, "g"
        else:
            cluster.add(make_pod("p", "3", None, gpu=draw.choice([0, 1])))
            yield cluster, "p"


def test_a_few_nodes_of_each_kind_give_the_suggestions_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for cluster, name in clusters():
        cluster.schedule()
        (profile,) = cluster.scheduler.profiles.values()
        diagnosis = Diagnosis(profile.runtime, profile.evaluator, profile.cycle, cluster.snapshot)
        unit = cluster.scheduler.pending_unit(f"default/{name}")
        assert unit is not None
        expected = diagnosis.suggest(unit, cluster.api.now)
        assert expected
        with monkeypatch.context() as patch:
            patch.setattr(suggestions, "_MOST_ASKED", 10)
            patch.setattr(suggestions, "_MOST_ASKED_OF_LARGE", 10)
            assert diagnosis.suggest(unit, cluster.api.now) == expected
