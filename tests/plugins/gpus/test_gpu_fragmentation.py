"""GPUFragmentation: its policies against plain Python, and what they choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.paths import ROOT

from bayplan.api import ApiObject, Pod
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.profiles.loading import ProfileSet, load_profiles
from bayplan.testing import Cluster, make_node, make_object, make_pod
from bayplan_plugins.gpu_fragmentation import stranded
from bayplan_plugins.gpu_fragmentation.fragments import FragmentationGradient
from bayplan_plugins.gpu_fragmentation.known_states import KnownStates, StateTable
from bayplan_plugins.gpu_fragmentation.pod_classes import (
    LearnedWorkload,
    NodeChoice,
    PodClass,
    class_of,
    weighted,
)
from bayplan_plugins.gpu_fragmentation.policy import Rated, several_taken
from bayplan_plugins.gpu_fragmentation.rollouts import Rollouts
from bayplan_plugins.gpu_fragmentation.states import NodeStates, StateSource
from bayplan_plugins.gpu_fragmentation.stranded import LeastStranded
from bayplan_plugins.gpus.ledger import GpuLedger

WHOLE = 1000
CORE, RATIO = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory-ratio"


def class_with(cpu: int, gpus: int, compute: int = WHOLE) -> PodClass:
    return PodClass(cpu, gpus, compute if gpus else 0, NodeChoice())


def states(cpu: Sequence[int], left: Sequence[Sequence[int]]) -> NodeStates:
    return NodeStates(np.arange(len(cpu)), np.array(cpu), np.array(left))


def gpu_objects(name: str, gpus: int, cpu: str = "32") -> list[ApiObject]:
    """A node with Koordinator's Device."""
    amounts: dict[str, Any] = {CORE: str(100 * gpus), RATIO: str(100 * gpus)}
    gpu = {CORE: "100", RATIO: "100", "koordinator.sh/gpu-memory": "16Gi"}
    devices = [
        {"type": "gpu", "id": f"{name}-{minor}", "minor": minor, "health": True, "resources": gpu}
        for minor in range(gpus)
    ]
    device = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": name},
        "spec": {"devices": devices},
    }
    return [make_node(name, cpu=cpu, memory="64Gi", **amounts), make_object(device)]


def share_pod(name: str, percent: int, cpu: str = "1") -> Pod:
    amounts: dict[str, Any] = {CORE: percent, RATIO: percent}
    return make_pod(name, cpu=cpu, **amounts)


# Fragmentation -------------------------------------------------------------------------------


def plain_fragmentation(
    workload: Sequence[tuple[PodClass, float]], cpu: int, left: Sequence[int]
) -> float:
    """The published definition, one pod and one GPU at a time."""
    total = 0.0
    for pod, part in workload:
        fits = (
            pod.gpus > 0 and pod.cpu <= cpu and sum(one >= pod.compute for one in left) >= pod.gpus
        )
        lost = sum(one for one in left if one < pod.compute) if fits else sum(left)
        total += part * lost
    return total


SHAPES = st.builds(
    class_with,
    st.integers(0, 8).map(lambda n: 1000 * n),
    st.sampled_from((0, 1, 1, 1, 2, 4)),
    st.just(WHOLE),
) | st.builds(
    class_with,
    st.integers(0, 8).map(lambda n: 1000 * n),
    st.just(1),
    st.integers(1, 99).map(lambda n: 10 * n),
)
LEFT = st.lists(st.integers(0, 100).map(lambda n: 10 * n), min_size=4, max_size=4)


@examples(100)
@given(st.lists(SHAPES, min_size=1, max_size=5, unique=True), st.integers(0, 16), LEFT)
def test_fragmentation_is_what_typical_pods_could_not_use(
    classes: list[PodClass], cpu: int, left: list[int]
) -> None:
    cluster = Cluster([make_node("n", cpu="64")])
    source = StateSource(cluster.snapshot, cluster.snapshot.shared(GpuLedger, GpuLedger))
    policy = FragmentationGradient(source)
    workload = weighted((one, 1.0) for one in classes)
    policy.forget(workload)
    found = policy.fragmentation(states([1000 * cpu], [left]))
    kept = weighted(((one.pod_class, one.part) for one in workload), 0.95)
    expected = plain_fragmentation([(o.pod_class, o.part) for o in kept], 1000 * cpu, left)
    assert found[0] == pytest.approx(expected)


@examples(50)
@given(
    st.lists(SHAPES, min_size=1, max_size=5, unique=True),
    st.lists(st.tuples(st.integers(0, 16), LEFT), min_size=1, max_size=8),
)
def test_what_is_known_of_a_state_is_what_would_be_computed(
    classes: list[PodClass], nodes: list[tuple[int, list[int]]]
) -> None:
    cluster = Cluster([make_node(f"n{place}", cpu="64") for place in range(len(nodes))])
    source = StateSource(cluster.snapshot, cluster.snapshot.shared(GpuLedger, GpuLedger))
    policy = FragmentationGradient(source)
    policy.forget(weighted((one, 1.0) for one in classes))
    cpu, left = [1000 * one for one, _ in nodes], [gpus for _, gpus in nodes]
    turned = states(cpu, [gpus[::-1] for gpus in left])
    alone = [states([own], [gpus]) for own, gpus in zip(cpu, left, strict=True)]
    expected = [policy.fragmentation(one)[0] for one in alone]
    table = StateTable(lambda some: policy.fragmentation(some)[:, None])
    known, kind = KnownStates(), np.zeros(len(nodes), dtype=np.int64)
    for one in (states(cpu, left), turned, turned.part(np.arange(len(nodes))[::-1])):
        found = table.of(known.of(one, one.cpu, kind), one)[:, 0]
        assert sorted(found) == sorted(expected)
        assert found[np.argsort(one.rows)].tolist() == expected


# Rollouts ------------------------------------------------------------------------------------


@examples(100)
@given(SHAPES, st.integers(0, 32), LEFT)
def test_what_stays_idle_is_as_if_pods_were_placed_one_by_one(
    pod: PodClass, cpu: int, left: list[int]
) -> None:
    rollouts = Rollouts(weighted([(pod, 1.0)]), [0], 2, 6)
    found = rollouts.idle(np.array([1000 * cpu]), np.array([left]), np.ones((1, 1), dtype=np.bool_))
    gpus, cores = list(left), 1000 * cpu
    for _ in range(6):
        fitting = sorted((one, place) for place, one in enumerate(gpus) if one >= pod.compute)
        if pod.cpu > cores or len(fitting) < pod.gpus:
            break
        for _, place in fitting[: pod.gpus] if pod.gpus else ():
            gpus[place] -= pod.compute
        cores -= pod.cpu
    assert found[0] == sum(gpus)


def test_several_shares_take_the_gpus_with_the_least_left() -> None:
    left = several_taken(class_with(0, 2, 300), np.array([[900, 300, 200, 400]]))
    assert left.tolist() == [[900, 0, 200, 100]]


@examples(100)
@given(st.lists(st.floats(-9000, 9000), min_size=1, max_size=30))
def test_scores_stay_within_their_range(gains: list[float]) -> None:
    cluster = Cluster([make_node("n", cpu="64")])
    source = StateSource(cluster.snapshot, cluster.snapshot.shared(GpuLedger, GpuLedger))
    found = LeastStranded(source).normalized(np.array(gains))
    assert 0 <= found.min() <= found.max() == 100
    assert gains[int(np.argmax(found))] == pytest.approx(max(gains), abs=1e-9)


# The workload --------------------------------------------------------------------------------


def test_the_workload_is_learned_from_what_arrives() -> None:
    cluster = Cluster(gpu_objects("n", 8))
    ledger = cluster.snapshot.shared(GpuLedger, GpuLedger)
    learned = LearnedWorkload(lambda: (32_000, 8_000))
    for number in range(40):
        pod = share_pod(f"p{number}", 30 if number % 4 else 60)
        cluster.add(pod)
    for info in cluster.snapshot.living.values():
        learned.see(info, ledger.requests(info), 16 << 30)
    parts = {one.pod_class.compute: one.part for one in learned.in_use}
    assert parts == pytest.approx({300: 0.75, 600: 0.25}, abs=0.05)


def test_memory_counts_as_a_part_of_the_typical_gpu() -> None:
    cluster = Cluster(gpu_objects("n", 8))
    amounts: dict[str, Any] = {"koordinator.sh/gpu.shared": 1, "koordinator.sh/gpu-memory": "4Gi"}
    cluster.add(make_pod("p", **amounts))
    ledger = cluster.snapshot.shared(GpuLedger, GpuLedger)
    info = cluster.snapshot.living["default/p"]
    memory = StateSource(cluster.snapshot, ledger).gpu_memory()
    assert memory == 16 << 30
    assert class_of(info, ledger.requests(info), memory).compute == 250


# Choices -------------------------------------------------------------------------------------


def gpus_of_node(cluster: Cluster, node: str) -> dict[str, list[int]]:
    ledger = cluster.snapshot.shared(GpuLedger, GpuLedger)
    placed = [pod for pod, on in cluster.snapshot.placed.values() if on == node]
    return {pod.name: [one.gpu for one in ledger.shares(pod, node)] for pod in placed}


def test_a_share_goes_where_it_leaves_nothing_useless() -> None:
    objects = [*gpu_objects("a", 2), *gpu_objects("b", 2)]
    typical = [{"cpu": "1", "gpus": 1, "gpuMilli": 500, "count": 1}]
    cluster = Cluster(objects, plugins={"GPUFragmentation": {"policy": "FGD", "workload": typical}})
    for number in range(4):
        cluster.add(share_pod(f"p{number}", 50))
        cluster.schedule()
    found = [
        (node, gpu)
        for node in "ab"
        for gpus in gpus_of_node(cluster, node).values()
        for gpu in gpus
    ]
    assert sorted(map(found.count, set(found))) == [2, 2], "each used GPU is full"


@pytest.mark.parametrize(
    "policy",
    ["LeastStranded", "FGD", "BestFit", "DotProd", "GpuPacking", "GpuClustering", "Random"],
)
def test_no_policy_gives_more_of_a_gpu_than_it_has(policy: str) -> None:
    objects = [obj for node in ("a", "b", "c") for obj in gpu_objects(node, 4)]
    cluster = Cluster(objects, plugins={"GPUFragmentation": {"policy": policy}})
    for number in range(60):
        cluster.add(share_pod(f"p{number}", (30, 60, 100, 20, 200)[number % 5]))
        cluster.schedule()
    arrays = cluster.snapshot.shared(GpuLedger, GpuLedger).columns.arrays()
    placed = [pod for pod, _ in cluster.snapshot.placed.values()]
    total = sum(pod.requests[CORE] * 10 for pod in placed)
    assert (arrays.compute >= 0)[:, :4].all()
    assert total == 12 * WHOLE - arrays.compute.clip(min=0).sum()
    assert total > 0.8 * 12 * WHOLE, "the cluster is nearly full"


@examples(10)
@given(
    st.sampled_from(("LeastStranded", "FGD", "BestFit")),
    st.lists(st.sampled_from((30, 60, 100, 20, 200, 400)), min_size=20, max_size=60),
)
def test_the_cached_path_equals_the_plain_path(policy: str, percents: list[int]) -> None:
    objects = [obj for node in range(12) for obj in gpu_objects(f"n{node}", 4)]
    args = {"GPUFragmentation": {"policy": policy}}
    found = []
    for cached in (True, False):
        cluster = Cluster(objects, plugins=args, cached=cached)
        for number, percent in enumerate(percents):
            cluster.add(share_pod(f"p{number}", percent))
            cluster.schedule()
            if number % 7 == 6:
                cluster.remove(f"p{number - 3}")
        found.append([gpus_of_node(cluster, f"n{node}") for node in range(12)])
    assert found[0] == found[1]


@pytest.mark.parametrize("full", [False, True])
def test_few_nodes_are_rated_as_many_are(full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if full:
        # The numbers of states start again with every change.
        monkeypatch.setattr(KnownStates, "full", property(lambda self: True))
    cluster = Cluster([obj for node in range(12) for obj in gpu_objects(f"n{node}", 4)])
    source = StateSource(cluster.snapshot, cluster.snapshot.shared(GpuLedger, GpuLedger))
    policies = {few: LeastStranded(source) for few in (64, 0)}
    kinds = [
        class_with(1000, 1, 300),
        class_with(1000, 1, 600),
        class_with(4000, 2),
        class_with(8000, 4),
    ]
    for policy in policies.values():
        policy.forget(weighted((one, 1.0) for one in kinds))
    everywhere = np.arange(12)
    for number, percent in enumerate((30, 60, 20, 30, 100, 60, 20, 30, 60, 200, 30, 60, 20)):
        cluster.add(share_pod(f"p{number}", percent))
        node = cluster.schedule()[f"p{number}"]
        found: list[list[Rated]] = []
        for few, policy in policies.items():
            monkeypatch.setattr(stranded, "_FEW", few)
            monkeypatch.setattr(stranded, "_FEW_CHANGES", few)
            policy.changed([cluster.snapshot.nodes.row_of[node]])
            found.append([policy.rate(one, source.of(everywhere)) for one in kinds[:2]])
        for mine, theirs in zip(*found, strict=True):
            for column in ("scores", "gpus", "lost"):
                assert getattr(mine, column).tolist() == getattr(theirs, column).tolist(), column


def test_a_pod_for_a_whole_node_keeps_its_room() -> None:
    objects = [obj for node in "abcd" for obj in gpu_objects(node, 8)]
    workload = [
        {"cpu": "1", "gpus": 1, "gpuMilli": 500, "count": 10},
        {"cpu": "8", "gpus": 8, "gpuMilli": 1000, "count": 1},
    ]
    cluster = Cluster(objects, plugins={"GPUFragmentation": {"workload": workload}})
    for number in range(24):
        cluster.add(share_pod(f"p{number}", 50))
        cluster.schedule()
    assert len(set(cluster.placements().values())) <= 2
    cluster.add(share_pod("large", 800, cpu="8"))
    assert cluster.schedule()["large"]


# Shares in KAI's words -----------------------------------------------------------------------

KAI_TYPICAL = [{"cpu": "1", "gpus": 1, "gpuMilli": 500, "count": 1}]


def kai_cluster(
    policy: str, *nodes: str, gpus: int = 1, cached: bool = True, **args: Any
) -> Cluster:
    """Return a cluster whose kubelet runs pods, with nodes whose GPUs are 80,000 MiB."""
    given = {"GPUFragmentation": {"policy": policy, **args}}
    cluster = Cluster(plugins=given, cached=cached)
    start_controllers(cluster.api)
    labels = {"nvidia.com/gpu.memory": "80000"}
    cluster.add(*(make_node(name, cpu=64, gpu=gpus, labels=labels) for name in nodes))
    return cluster


def kai_pod(name: str, fraction: str = "", memory: str = "", node: str = "") -> Pod:
    asked = {"gpu-fraction": fraction} if fraction else {"gpu-memory": memory}
    spec = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    return make_pod(name, annotations=asked, spec=spec)


def left_of(cluster: Cluster, node: str) -> list[int]:
    """Return the thousandths left of each GPU of a node, as the policies see them."""
    ledger = cluster.snapshot.shared(GpuLedger, GpuLedger)
    row = cluster.snapshot.nodes.row_of[node]
    found: list[int] = StateSource(cluster.snapshot, ledger).of(np.array([row])).left[0].tolist()
    return sorted(one for one in found if one)


@pytest.mark.parametrize("policy", ["LeastStranded", "FGD"])
@pytest.mark.parametrize("asked", [{"fraction": "0.4"}, {"memory": "32000"}])
def test_a_pod_with_a_fraction_goes_where_it_leaves_nothing_useless(
    policy: str, asked: dict[str, str]
) -> None:
    cluster = kai_cluster(policy, "a", "b", workload=KAI_TYPICAL)
    cluster.add(kai_pod("half", "0.5", node="a"), kai_pod("more", "0.6", node="b"))
    cluster.schedule()
    assert (left_of(cluster, "a"), left_of(cluster, "b")) == ([500], [400])
    cluster.add(kai_pod("p", **asked))
    assert cluster.schedule()["p"] == "b"
    assert left_of(cluster, "b") == []


def test_a_fraction_leaves_room_for_a_pod_that_takes_a_whole_node() -> None:
    typical = [*KAI_TYPICAL, {"cpu": "4", "gpus": 4, "count": 1}]
    cluster = kai_cluster("LeastStranded", "a", "b", gpus=4, workload=typical)
    cluster.add(kai_pod("first", "0.7", node="b"))
    cluster.schedule()
    # There it shares no GPU, but the four GPUs of the other node stay free together.
    cluster.add(kai_pod("second", "0.7"))
    assert cluster.schedule()["second"] == "b"


def test_the_workload_is_learned_from_fractions_and_not_from_what_holds_their_gpus() -> None:
    cluster = kai_cluster("LeastStranded", "a", "b", gpus=4)
    cluster.add(*(kai_pod(f"p{number}", "0.4") for number in range(12)))
    cluster.schedule()
    (call,) = (one for one in cluster.profile.runtime["score"] if one.name == "GPUFragmentation")
    learned = call.plugin._learned.in_use
    assert [(one.pod_class.gpus, one.pod_class.compute) for one in learned] == [(1, 400)]


@examples(5)
@given(st.lists(st.sampled_from(("0.3", "0.6", "0.2", "0.5", "")), min_size=10, max_size=30))
def test_fractions_get_the_same_nodes_with_and_without_the_cache(asked: list[str]) -> None:
    found = []
    for cached in (True, False):
        cluster = kai_cluster("LeastStranded", *"abcd", gpus=2, cached=cached)
        for number, fraction in enumerate(asked):
            one = kai_pod(f"p{number}", fraction) if fraction else make_pod(f"p{number}", gpu=1)
            cluster.add(one)
            cluster.schedule()
            if number % 7 == 6:
                cluster.remove(f"p{number - 3}")
                cluster.advance(2)
        found.append(cluster.placements())
    assert found[0] == found[1]


# Whole GPUs ----------------------------------------------------------------------------------


def gpu_nodes(count: int) -> list[ApiObject]:
    return [make_node(f"n{number}", cpu="64", memory="512Gi", gpu=8) for number in range(count)]


def nodes_of(cluster: Cluster, prefix: str) -> list[str]:
    """Return the nodes of the pods whose names begin so, in order of their names."""
    found = cluster.schedule()
    return [found[name] for name in sorted(found) if name.startswith(prefix)]


def test_the_profile_that_people_start_with_keeps_machines_whole() -> None:
    cluster = Cluster(gpu_nodes(4))
    cluster.add(*(make_pod(f"small-{number}", cpu="4", gpu=1) for number in range(8)))
    assert len(set(nodes_of(cluster, "small"))) == 1
    cluster.add(*(make_pod(f"large-{number}", cpu="32", gpu=8) for number in range(3)))
    assert sorted(nodes_of(cluster, "large")) == sorted({"n0", "n1", "n2", "n3"} - {"n0"})


def test_mixed_sizes_fill_machines_one_after_the_other() -> None:
    cluster = Cluster(gpu_nodes(4))
    for number, gpus in enumerate((2, 4, 1, 1, 4, 2, 2)):
        cluster.add(make_pod(f"p{number}", cpu="2", gpu=gpus))
        cluster.schedule()
    assert len(set(nodes_of(cluster, "p"))) == 2


def test_pods_without_gpus_are_spread_as_before() -> None:
    packs = Cluster([*gpu_nodes(4), make_pod("gpu", cpu="4", gpu=1)])
    spreads = Cluster([*gpu_nodes(4), make_pod("gpu", cpu="4", gpu=1)], profiles=kube_scheduler())
    for cluster in (packs, spreads):
        cluster.schedule()
        for number in range(8):
            cluster.add(make_pod(f"web-{number}", cpu="2"))
            cluster.schedule()
    assert nodes_of(packs, "web") == nodes_of(spreads, "web")


def test_in_the_place_of_kube_scheduler_pods_with_gpus_are_spread_as_it_does() -> None:
    cluster = Cluster(gpu_nodes(4), profiles=kube_scheduler())
    cluster.add(*(make_pod(f"p{number}", cpu="4", gpu=1) for number in range(4)))
    assert len(set(nodes_of(cluster, "p"))) == 4


def kube_scheduler() -> ProfileSet:
    return load_profiles(ROOT / "configs" / "profiles" / "default-scheduler.yaml")
