"""What ``fair-share`` evicts and moves on a cluster, and that a stable demand comes to rest."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace
from tests.paths import ROOT

from bayplan.api import ApiObject, Job, KaiPodGroup, OwnerReference, Pod
from bayplan.profiles.loading import load_profiles
from bayplan.testing import Cluster, make_node, make_object, make_pod

PROFILES = load_profiles(ROOT / "configs/profiles/kai.yaml")
SECONDS_TO_REST = 900
gpus_of: dict[str, int] = {}
"""What each pod asks for, to create it again."""


def queue(name: str, quota: float, weight: float = 1.0, parent: str = "", **more: Any) -> Any:
    free = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    gpu = {"quota": quota, "limit": more.pop("limit", -1), "overQuotaWeight": weight}
    spec = {"resources": {"gpu": gpu, "cpu": free, "memory": free}, "parentQueue": parent, **more}
    meta = {"name": name}
    kind = {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue"}
    return make_object({**kind, "metadata": meta, "spec": spec})


def add_job(
    cluster: Cluster,
    name: str,
    queue: str,
    pods: int = 1,
    gpus: int = 1,
    least: int | None = None,
    priority: int = 50,
    **spec: Any,
) -> None:
    kind = {"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup"}
    content = {"queue": queue, "minMember": pods if least is None else least, **spec}
    meta = {"name": name, "namespace": "default"}
    cluster.add(make_object({**kind, "metadata": meta, "spec": content}))
    for index in range(pods):
        gpus_of[f"{name}-{index}"] = gpus
        cluster.add(member(name, index, gpus, priority))


def member(job: str, index: int, gpus: int, priority: int) -> Any:
    amounts = {"cpu": "1", "nvidia.com/gpu": str(gpus)}
    resources = {"requests": amounts, "limits": {"nvidia.com/gpu": str(gpus)}}
    container = {"name": "main", "image": "train", "resources": resources}
    return make_object(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{job}-{index}",
                "namespace": "default",
                "annotations": {"pod-group-name": job},
            },
            "spec": {
                "schedulerName": "kai-scheduler",
                "priority": priority,
                "terminationGracePeriodSeconds": 1,
                "containers": [container],
            },
        }
    )


def world(nodes: int, gpus: int, *queues: Any, args: Mapping[str, Any] | None = None) -> Cluster:
    plugins = {"Queues": {"kai": args}} if args else {}
    cluster = Cluster(profiles=PROFILES, plugins=plugins)
    cluster.add(*(make_node(f"n{i}", cpu=64, memory="256Gi", gpu=gpus) for i in range(nodes)))
    cluster.add(*queues)
    return cluster


def evicted(cluster: Cluster) -> set[str]:
    return {one.pod.removeprefix("default/") for one in cluster.scheduler.evictor.evicted}


def test_lent_gpus_come_back_to_the_queue_that_deserves_them() -> None:
    cluster = world(1, 4, queue("a", 2), queue("b", 2))
    for index in range(4):
        add_job(cluster, f"a{index}", "a")
    cluster.advance(1)
    add_job(cluster, "b0", "b", gpus=2)
    placed = cluster.advance(60)
    assert evicted(cluster) == {"a2-0", "a3-0"}
    assert placed["b0-0"] == "n0"


@pytest.mark.parametrize(
    ("priority", "args", "kept"),
    [
        (50, None, ""),
        (100, None, 'its queue "a" does not take back what it has'),
        (50, {"defaultPreemptMinRuntime": "5m"}, 'queue "a" protects it for 299 s more'),
    ],
    ids=["may be moved", "not preemptible", "within its minimum runtime"],
)
def test_what_a_queue_keeps_in_its_place(
    priority: int, args: Mapping[str, Any] | None, kept: str
) -> None:
    cluster = world(1, 4, queue("a", 4), args=args)
    add_job(cluster, "job", "a", priority=priority)
    cluster.advance(1)
    (pod,) = (pod for pod, _ in cluster.snapshot.placed.values())
    queueing = cluster.profile.runtime.queueing
    assert queueing is not None
    assert (queueing.keep_in_place(pod) or "") == kept


def test_a_queue_within_its_share_loses_nothing() -> None:
    cluster = world(1, 4, queue("a", 2), queue("b", 2))
    add_job(cluster, "a0", "a", gpus=2)
    add_job(cluster, "b0", "b", gpus=2)
    cluster.advance(1)
    add_job(cluster, "b1", "b", gpus=1)
    assert "b1-0" not in cluster.advance(60)
    assert not evicted(cluster)


def test_nobody_is_evicted_where_the_job_would_not_fit_nonetheless() -> None:
    cluster = world(2, 2, queue("a", 0), queue("b", 4))
    add_job(cluster, "fixed", "a", gpus=1)
    cluster.advance(1)
    for index in range(3):
        add_job(cluster, f"a{index}", "a")
    cluster.advance(1)
    add_job(cluster, "b0", "b", gpus=3)
    cluster.advance(60)
    assert not evicted(cluster), "no node has three GPUs"


def test_a_job_is_moved_so_that_another_fits() -> None:
    cluster = world(2, 4, queue("a", 8))
    for job, gpus in (("a0", 3), ("a1", 3), ("a2", 1)):
        add_job(cluster, job, "a", gpus=gpus)
        cluster.advance(1)
    cluster.remove(
        "a0-0" if cluster.placements()["a2-0"] == cluster.placements()["a0-0"] else "a1-0"
    )
    add_job(cluster, "big", "a", gpus=4)
    placed = cluster.advance(60)
    assert "big-0" in placed
    moves = [(one.pod, one.moves_to) for one in cluster.scheduler.evictor.evicted]
    other = {"n0": "n1", "n1": "n0"}[placed["big-0"]]
    assert moves == [("default/a2-0", other)]


def test_a_higher_priority_preempts_in_its_own_queue_only() -> None:
    cluster = world(1, 2, queue("a", 1), queue("b", 1))
    add_job(cluster, "low", "a")
    add_job(cluster, "other", "b")
    cluster.advance(1)
    add_job(cluster, "high", "a", priority=75)
    assert "high-0" in cluster.advance(60)
    assert evicted(cluster) == {"low-0"}


def test_an_elastic_job_loses_its_surplus_first_and_the_youngest_pod_first() -> None:
    cluster = world(1, 4, queue("a", 1), queue("b", 2))
    add_job(cluster, "grows", "a", pods=4, least=1)
    cluster.advance(1)
    assert len(cluster.placements()) == 4
    add_job(cluster, "b0", "b", gpus=2)
    cluster.advance(60)
    assert evicted(cluster) == {"grows-2", "grows-3"}


def test_an_elastic_job_gets_the_nodes_that_were_freed_for_its_minimum() -> None:
    cluster = world(1, 4, queue("a", 4, limit=4))
    add_job(cluster, "low", "a", pods=4)
    cluster.advance(1)
    add_job(cluster, "high", "a", pods=4, least=2, priority=75)
    placed = cluster.advance(120)
    assert set(placed) == {f"high-{index}" for index in range(4)}


def test_a_young_job_is_safe_until_its_minimum_runtime_is_over() -> None:
    cluster = world(1, 2, queue("a", 0, reclaimMinRuntime="5m"), queue("b", 2))
    add_job(cluster, "a0", "a", gpus=2)
    cluster.advance(1)
    add_job(cluster, "b0", "b", gpus=2)
    cluster.advance(120)
    assert not evicted(cluster)
    cluster.advance(600)
    assert evicted(cluster) == {"a0-0"}


def test_a_job_with_a_preemption_delay_waits_before_it_evicts() -> None:
    cluster = world(1, 2, queue("a", 0), queue("b", 2))
    add_job(cluster, "a0", "a", gpus=2)
    cluster.advance(1)
    add_job(cluster, "b0", "b", gpus=2, preemptionDelay="5m")
    cluster.advance(120)
    assert not evicted(cluster)
    cluster.advance(600)
    assert evicted(cluster) == {"a0-0"}


@pytest.mark.parametrize("grace", ["2m", "-1s"])
def test_a_gang_that_lost_a_member_for_good_is_evicted_after_its_grace_period(grace: str) -> None:
    cluster = world(1, 2, queue("a", 2))
    add_job(cluster, "gang", "a", pods=2, stalenessGracePeriod=grace)
    cluster.advance(1)
    cluster.remove("gang-1")
    cluster.advance(60)
    assert not evicted(cluster)
    cluster.advance(120)
    assert evicted(cluster) == (set() if grace.startswith("-") else {"gang-0"})


@pytest.mark.parametrize("slow", [True, False], ids=["nominated", "no node"])
def test_a_member_whose_node_is_cleared_by_a_slow_victim_keeps_its_gang(slow: bool) -> None:
    cluster = world(2, 2, queue("a", 4), queue("b", 0))
    add_job(cluster, "gang", "a", pods=2, gpus=2, stalenessGracePeriod="1m")
    cluster.advance(1)
    cluster.remove("gang-1")
    add_job(cluster, "rest", "b", gpus=2)
    victim = cluster.api.get(Pod, "default/rest-0")
    assert victim is not None
    grace = 240 if slow else 1
    spec = replace(victim.spec, termination_grace_period_seconds=grace)
    cluster.api.update(replace(victim, spec=spec))
    cluster.schedule()
    if slow:
        cluster.add(member("gang", 1, 2, 50))
    cluster.advance(180)
    assert evicted(cluster) == ({"rest-0"} if slow else {"gang-0"})
    cluster.advance(120)
    assert ("gang-1" in cluster.placements()) == slow


def test_a_limit_holds_a_job_back_with_the_numbers() -> None:
    cluster = world(1, 4, queue("a", 1, limit=2))
    add_job(cluster, "a0", "a", gpus=2)
    cluster.advance(1)
    add_job(cluster, "a1", "a")
    cluster.advance(1)
    message = cluster.message("a1-0")
    assert 'queue "a": limit of nvidia.com/gpu exceeded: 1 requested, 2 of 2 used' in message


@pytest.mark.parametrize("seed", range(8))
def test_a_stable_demand_comes_to_rest(seed: int) -> None:
    rng = random.Random(seed)
    queues = [queue(f"q{i}", rng.randrange(5), float(rng.randrange(3))) for i in range(4)]
    cluster = world(4, 4, *queues)
    for index in range(14):
        pods = rng.choice([1, 1, 2, 3])
        job = f"j{index}"
        least = rng.randint(1, pods)
        add_job(cluster, job, f"q{rng.randrange(4)}", pods, rng.choice([1, 1, 2]), least)
        cluster.advance(rng.choice([0, 5]))
        again(cluster)
    before = -1
    for _ in range(10):
        cluster.advance(SECONDS_TO_REST / 10)
        again(cluster)
        if len(cluster.scheduler.evictor.evicted) == before:
            return
        before = len(cluster.scheduler.evictor.evicted)
    raise AssertionError(f"{before} evictions, and no end")


@pytest.mark.parametrize("seed", range(60))
def test_nothing_is_left_to_do_at_rest(seed: int) -> None:
    """Gangs larger than quotas come to rest, and then a node that helps nobody changes nothing."""
    rng = random.Random(seed)
    cluster = world(4, 8, *(queue(f"q{i}", rng.randrange(9), rng.randrange(3)) for i in range(4)))
    for index in range(16):
        pods = rng.choice([1, 2, 3, 5, 7, 9])
        least = rng.choice([pods, pods, rng.randint(1, pods)])
        add_job(cluster, f"j{index}", f"q{rng.randrange(4)}", pods, rng.choice([1, 1, 1, 2]), least)
        cluster.advance(rng.choice([0, 5]))
        again(cluster)
    # Less than the time after which everybody is tried again without an event.
    for _ in range(4):
        cluster.advance(60)
        again(cluster)
    evicted, bound = len(cluster.scheduler.evictor.evicted), cluster.scheduler.statistics.bound
    cluster.add(make_node("without", cpu=64, memory="256Gi"))
    for _ in range(2):
        cluster.advance(30)
        again(cluster)
    assert len(cluster.scheduler.evictor.evicted) == evicted
    assert cluster.scheduler.statistics.bound == bound


def test_an_elastic_gang_takes_the_nodes_that_it_made_free() -> None:
    """Its surplus pod needs no node for it to start."""
    cluster = world(1, 4, queue("lent", 0), queue("owner", 4))
    add_job(cluster, "running", "lent", pods=4)
    cluster.advance(1)
    add_job(cluster, "elastic", "owner", pods=5, least=4)
    assert sorted(cluster.advance(10)) == [f"elastic-{index}" for index in range(4)]


def again(cluster: Cluster) -> None:
    """Create evicted pods again, as their controllers would."""
    cluster.advance(2)
    living = {pod.metadata.name for pod in cluster.api.list(Pod)}
    for one in list(cluster.scheduler.evictor.evicted):
        name = one.pod.removeprefix("default/")
        if name not in living:
            job, _, index = name.rpartition("-")
            assert cluster.api.get(KaiPodGroup, f"default/{job}") is not None
            cluster.add(member(job, int(index), gpus_of[name], 50))
            living.add(name)


def test_a_disruption_budget_keeps_its_pods_from_being_reclaimed() -> None:
    cluster = world(1, 2, queue("lent", 0), queue("owner", 2))
    add_job(cluster, "running", "lent", pods=2, least=1)
    cluster.schedule()
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "keep", "namespace": "default"},
        "spec": {"minAvailable": 2, "selector": {}},
        "status": {"disruptionsAllowed": 0},
    }
    cluster.add(make_object(budget))
    add_job(cluster, "asking", "owner", pods=1)
    cluster.advance(60)
    assert set(cluster.placements()) == {"running-0", "running-1"}
    assert not cluster.scheduler.evictor.evicted


def test_a_queue_that_used_more_before_gets_less_of_what_is_left_over() -> None:
    args = {"kValue": 0.5, "usage": {"window": "1h", "resolution": "1m"}}
    cluster = world(1, 8, queue("greedy", 0), queue("modest", 0), args=args)
    add_job(cluster, "first", "greedy", pods=8, least=1)
    cluster.advance(1800)
    assert len(cluster.placements()) == 8
    add_job(cluster, "second", "modest", pods=8, least=1)
    cluster.advance(60)
    names = [name.partition("-")[0] for name in cluster.placements()]
    assert names.count("second") > names.count("first") > 0


def test_a_minimum_runtime_begins_when_the_kubelet_reports_the_start() -> None:
    cluster = world(1, 2, queue("a", 0, reclaimMinRuntime="5m"), queue("b", 2))
    for name in ("a", "b"):
        pod = member(name, 0, 2, 50)
        meta = replace(pod.metadata, annotations={}, labels={"kai.scheduler/queue": name})
        cluster.add(replace(pod, metadata=meta))
        cluster.advance(1 if name == "a" else 100)
    pod = cluster.api.get(Pod, "default/a-0")
    assert pod is not None
    started = replace(pod.status, phase="Running", start_time=cluster.api.timestamp())
    cluster.api.update(replace(pod, status=started))
    cluster.advance(290)
    assert not evicted(cluster)
    cluster.advance(20)
    assert evicted(cluster) == {"a-0"}


def owned_pod(name: str, owner: Any, priority: int = 50, **labels: str) -> Any:
    """Return a pod of a Job, without a PodGroup."""
    made = member(name, 0, 1, priority)
    reference = OwnerReference("Job", owner.metadata.name, owner.metadata.uid, "batch/v1", True)
    meta = replace(made.metadata, annotations={}, labels=labels, owner_references=(reference,))
    return replace(made, metadata=meta)


def owner_of_pods(
    cluster: Cluster, labels: dict[str, str], annotations: dict[str, str] | None = None
) -> Any:
    template = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    meta = {"name": "j", "labels": labels, "annotations": annotations or {}}
    kind = {"apiVersion": "batch/v1", "kind": "Job"}
    cluster.add(make_object({**kind, "metadata": meta, "spec": {"template": template}}))
    found = cluster.api.get(Job, "default/j")
    assert found is not None
    return found


QUEUE = "kai.scheduler/queue"


@pytest.mark.parametrize(
    ("of_job", "of_pod", "waits"),
    [
        ({QUEUE: "a"}, {}, True),
        ({QUEUE: "a"}, {QUEUE: "b"}, True),
        ({}, {QUEUE: "b"}, False),
        ({"project": "a"}, {}, True),
        ({"project": "nowhere"}, {}, False),
        ({}, {}, True),
    ],
)
def test_pods_without_a_group_are_in_the_queue_that_labels_say(
    of_job: dict[str, str], of_pod: dict[str, str], waits: bool
) -> None:
    names = ("a", "b", "default-queue")
    queues = [queue(name, 0, limit=-1 if name == "b" else 0) for name in names]
    cluster = world(1, 4, *queues)
    cluster.add(owned_pod("p", owner_of_pods(cluster, of_job), **of_pod))
    cluster.advance(5)
    assert (bound(cluster, "p-0") is None) == waits


@pytest.mark.parametrize("place", ["job", "pod"])
def test_a_label_says_that_pods_without_a_group_are_not_preempted(place: str) -> None:
    mark = {"kai.scheduler/preemptibility": "non-preemptible"}
    cluster = world(1, 1, queue("a", 1))
    owner = owner_of_pods(cluster, {QUEUE: "a"} | (mark if place == "job" else {}))
    cluster.add(owned_pod("low", owner, **(mark if place == "pod" else {})))
    cluster.advance(5)
    add_job(cluster, "high", "a", priority=90)
    cluster.advance(60)
    assert evicted(cluster) == set()


def test_pods_without_a_group_evict_nobody_before_their_delay_is_over() -> None:
    cluster = world(1, 1, queue("a", 1))
    add_job(cluster, "low", "a")
    cluster.advance(5)
    marks = {"kai.scheduler/preemption-delay": "2m"}
    cluster.add(owned_pod("high", owner_of_pods(cluster, {QUEUE: "a"}, marks), 90))
    cluster.advance(60)
    assert evicted(cluster) == set()
    cluster.advance(120)
    assert evicted(cluster) == {"low-0"}


def bound(cluster: Cluster, name: str) -> str | None:
    pod = cluster.api.get(Pod, f"default/{name}")
    return pod.spec.node_name or None if pod is not None else None


# Gangs of sub-groups that are alike -------------------------------------------------------------


def of_two_parts(name: str, head: int, workers: int, gpu: int) -> list[ApiObject]:
    parts = [{"name": "head", "minMember": head}, {"name": "workers", "minMember": workers}]
    found = make_object(
        {
            "apiVersion": "scheduling.run.ai/v2alpha2",
            "kind": "PodGroup",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"minMember": head + workers, "queue": "a", "subGroups": parts},
        }
    )
    pods = [
        make_pod(
            f"{name}-{part}-{index}",
            annotations={"pod-group-name": name},
            labels={"kai.scheduler/subgroup-name": part},
            gpu=gpu,
        )
        for part, count in (("head", head), ("workers", workers))
        for index in range(count)
    ]
    return [found, *pods]


def test_of_gangs_whose_sub_groups_are_alike_one_is_tried_for_all() -> None:
    def cycles(gangs: int) -> int:
        cluster = Cluster([make_node("n", gpu=4), queue("a", 4)])
        for index in range(gangs):
            cluster.add(*of_two_parts(f"g{index}", 1, 2, gpu=2))
        cluster.schedule()
        return cluster.scheduler.statistics.cycles

    assert cycles(9) == cycles(2)


def test_a_gang_whose_sub_groups_ask_for_less_is_tried_all_the_same() -> None:
    cluster = Cluster([make_node("n", gpu=4), queue("a", 4)])
    cluster.add(*of_two_parts("large", 1, 2, gpu=2), *of_two_parts("small", 1, 1, gpu=2))
    assert set(cluster.schedule()) == {"small-head-0", "small-workers-0"}
