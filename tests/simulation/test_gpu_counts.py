"""One count of GPUs: whatever shows or charges them says the same of nodes and of pods."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from bayplan.api import Node, Pod
from bayplan.cli.report import Recording
from bayplan.explain.overview import overview
from bayplan.explain.pools import pool_reports
from bayplan.metering.journal import Journal
from bayplan.metering.summary import Summary
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation, resource_use
from bayplan.testing import make_node, make_object, make_pod

GPU, NUMBER = "nvidia.com/gpu", "volcano.sh/vgpu-number"
MEMORY, CORES = "nvidia.com/gpumem", "nvidia.com/gpucores"
HOUR = 3600
POOL = {
    "apiVersion": "bayplan.dev/v1alpha1",
    "kind": "ComputePool",
    "metadata": {"name": "all"},
    "spec": {"poolType": "gpu"},
}


@dataclass(frozen=True)
class Seen:
    """What everybody says of the GPUs of a cluster after an hour: how many, and who has how many.

    ``tree`` is what ``simulate`` prints of nodes, ``page`` what the page says of nodes and of jobs
    by their pods, ``idle`` GPU hours.
    """

    pool: tuple[float, float]
    top: tuple[float, float]
    tree: tuple[float, float]
    page: tuple[float, float]
    jobs: Mapping[str, float]
    hours: Mapping[str, float]
    idle: float


def seen(*objects: Any, resource: str = GPU) -> Seen:
    """Run a cluster for an hour."""
    journal = Journal()
    simulation = Simulation(default_profiles(), until=HOUR, journal=journal)
    recording = Recording("test")
    recording(simulation)
    simulation.create([make_object(POOL), *objects])
    simulation.run()
    assert not simulation.pending()
    (report,) = pool_reports(simulation.scheduler)
    amounts = report.as_json()["resources"][resource]
    used = next(one for one in overview(simulation.scheduler).amounts if one.resource == resource)
    recording.cluster_view.look()
    table = simulation.scheduler.snapshot.nodes
    rows = [line for row in range(len(table.nodes)) for line in resource_use(table, row)]
    printed = [(float(o), float(u)) for name, u, o in rows if name == resource]
    tiles = recording.cluster_view.nodes.values()
    held = {
        key: sum(gpu.compute for gpu in row.stints[-1].gpus) / 1000
        for key, row in recording.cluster_view.pods.items()
        if row.stints
    }
    begin = round(simulation.cluster.start.timestamp() * 1000)
    summary = Summary(journal, begin, begin + HOUR * 1000)
    hours = {
        key[0]: total / (HOUR * 1e6)
        for key, total in summary.usage(["namespace", "resource"]).items()
        if key[1] == resource
    }
    capacity = summary.capacity(["resource"])[(resource,)] / (HOUR * 1e6)
    return Seen(
        (amounts["total"], amounts["allocated"]),
        (used.offered or 0.0, used.used),
        (sum(offered for offered, _ in printed), sum(used for _, used in printed)),
        (sum(tile.gpus for tile in tiles), sum(tile.used for tile in tiles) / 1000),
        {key: amount for key, amount in held.items() if amount},
        hours,
        round(capacity - sum(hours.values()), 6),
    )


def agree(found: Seen, gpus: float, **namespaces: float) -> None:
    """Assert that everybody counts the same."""
    used = sum(namespaces.values())
    expected = pytest.approx((gpus, used), abs=1e-9)
    assert found.pool == expected
    assert found.top == expected
    assert found.tree == expected
    assert found.page == expected
    assert found.hours == pytest.approx(namespaces)
    assert found.idle == pytest.approx(gpus - used)
    of_pods: dict[str, float] = {}
    for key, amount in found.jobs.items():
        namespace = key.partition("/")[0]
        of_pods[namespace] = of_pods.get(namespace, 0.0) + amount
    assert of_pods == pytest.approx(namespaces)


def hami_node(name: str, gpus: int = 2, count: int = 10) -> Node:
    register = [
        {"id": f"{name}-{gpu}", "index": gpu, "count": count, "devmem": 80_000, "devcore": 100}
        | {"type": "NVIDIA-H100", "numa": 0, "health": True}
        for gpu in range(gpus)
    ]
    noted = {"hami.io/node-nvidia-register": json.dumps(register)}
    return make_node(name, cpu=64, memory="512Gi", annotations=noted, gpu=gpus * count)


def pod_of(namespace: str, name: str, /, notes: Any = None, **asked: Any) -> Pod:
    return make_pod(name, namespace=namespace, annotations=notes or {}, **asked)


def test_shares_of_hami_are_parts_of_gpus() -> None:
    cores = pod_of("students", "cores", **{GPU: 1, MEMORY: 20_000, CORES: 30})
    memory = pod_of("students", "memory", **{GPU: 1, MEMORY: 40_000})
    whole = pod_of("research", "whole", **{GPU: 1})
    agree(seen(hami_node("n", 3), cores, memory, whole), 3, students=0.8, research=1)


def test_two_gpus_in_half_are_one_gpu() -> None:
    both = pod_of("students", "both", **{GPU: 2, MEMORY: 40_000, CORES: 10})
    agree(seen(hami_node("n"), both), 2, students=1)


def test_shares_of_volcano_are_parts_of_gpus() -> None:
    entries = ":".join(f"GPU-{gpu},10,80000,NVIDIA-H100,true,hami-core" for gpu in range(2))
    noted = {"volcano.sh/node-vgpu-register": f"{entries}:"}
    node = make_node("n", cpu=64, annotations=noted, **{NUMBER: 20})
    words = {NUMBER: 1, "volcano.sh/vgpu-memory": 20_000, "volcano.sh/vgpu-cores": 40}
    found = seen(node, pod_of("students", "p", **words), resource=NUMBER)
    assert found.pool == found.top == found.tree == found.page == (2, 0.4)
    assert found.hours == {"students": 0.4}
    assert found.idle == 1.6


def test_parts_in_kais_words_are_their_pods_and_not_their_reservations() -> None:
    node = make_node("n", cpu=64, gpu=2, labels={"nvidia.com/gpu.memory": "80000"})
    half = pod_of("nlp", "half", {"gpu-fraction": "0.5"})
    memory = pod_of("vision", "memory", {"gpu-memory": "20000"})
    agree(seen(node, half, memory), 2, nlp=0.5, vision=0.25)


def test_replicas_of_nvidias_plugin_are_parts_of_gpus() -> None:
    node = make_node("n", cpu=64, gpu=8, labels={"nvidia.com/gpu.replicas": "4"})
    one, two = (pod_of("a", name, **{GPU: 1}) for name in ("one", "two"))
    agree(seen(node, one, two), 2, a=0.5)


def test_whole_gpus_count_as_before() -> None:
    node = make_node("n", cpu=64, gpu=8)
    agree(seen(node, pod_of("a", "p", **{GPU: 3})), 8, a=3)


def test_what_pods_need_of_each_gpu_is_no_device_of_its_own() -> None:
    journal = Journal()
    simulation = Simulation(default_profiles(), until=HOUR, journal=journal)
    simulation.create([hami_node("n"), pod_of("a", "p", **{GPU: 1, MEMORY: 9, CORES: 5})])
    simulation.run()
    assert {record.resource for record in journal.records(0, 2**60)} == {"cpu", "memory", GPU}
