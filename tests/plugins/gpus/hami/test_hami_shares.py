"""Pods with shares of GPUs by HAMi: what they get, what is written, and what is read back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.api import ApiObject, Node, Pod
from bayplan.api.configmap import ConfigMap
from bayplan.api.gpu_shares import Share
from bayplan.api.meta import ObjectMeta
from bayplan.api.pod import Container, SecurityContext
from bayplan.cluster.embedded.device_plugins import VirtualDevicePlugins
from bayplan.dialects.hami.systems import HAMI, MIG_ALLOCATIONS
from bayplan.errors import InputError
from bayplan.plugin.events import ClusterEvent
from bayplan.scheduler.object_changes import node_difference
from bayplan.snapshot import PodInfo
from bayplan.testing import (
    Cluster,
    assert_pending,
    assert_placed,
    make_gang,
    make_node,
    make_object,
    make_pod,
)
from bayplan.topology.machine.readers.hami_register import CORDON, HANDSHAKE, REGISTER
from bayplan_plugins.gpus.ledger import GpuLedger

A100 = "NVIDIA-NVIDIA A100-SXM4-80GB"
KEYS = HAMI.annotations
MIB = 1 << 20
LABEL = "pod-group.scheduling.sigs.k8s.io"


def gpu(index: int, **more: Any) -> dict[str, Any]:
    own = {"id": f"GPU-{index}", "index": index, "count": 10, "devmem": 81920, "devcore": 100}
    return {**own, "type": A100, "mode": "hami-core", "health": True, **more}


def node(name: str, *gpus: Mapping[str, Any], **notes: str) -> Node:
    """Return a node whose HAMi device plugin has registered GPUs."""
    slots = sum(one["count"] for one in gpus)
    annotations = {REGISTER: json.dumps(gpus), **notes}
    return make_node(name, cpu=64, memory="512Gi", annotations=annotations, gpu=slots)


def pod(name: str, notes: Mapping[str, str] | None = None, **limits: Any) -> Pod:
    """Return a pod with a container; ``limits`` are HAMi's resources without their prefix."""
    return containers(name, [limits], notes=notes)


def containers(
    name: str,
    own: list[dict[str, Any]],
    init: list[dict[str, Any]] | None = None,
    notes: Mapping[str, str] | None = None,
    namespace: str = "default",
) -> Pod:
    """Return a pod with several containers."""
    found = make_object(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "annotations": dict(notes or {})},
            "spec": {
                "initContainers": [_container(f"i{n}", one) for n, one in enumerate(init or [])],
                "containers": [_container(f"c{n}", one) for n, one in enumerate(own)],
            },
        }
    )
    assert isinstance(found, Pod)
    return found


def _container(name: str, limits: Mapping[str, Any]) -> dict[str, Any]:
    always = limits.get("sidecar")
    named = {
        f"nvidia.com/{key.replace('_', '-')}": str(value)
        for key, value in limits.items()
        if key != "sidecar"
    }
    more = {"restartPolicy": "Always"} if always else {}
    return {"name": name, "image": "cuda", "resources": {"limits": named}, **more}


def started(objects: Iterable[ApiObject]) -> Cluster:
    """Return a cluster whose nodes have device plugins."""
    cluster = Cluster(objects)
    VirtualDevicePlugins(cluster.api)
    return cluster


def notes_of(cluster: Cluster, name: str, namespace: str = "default") -> Mapping[str, str]:
    found = cluster.api.get(Pod, f"{namespace}/{name}")
    assert found is not None
    return found.metadata.annotations


def devices_of(cluster: Cluster, name: str, namespace: str = "default") -> str:
    return notes_of(cluster, name, namespace)[KEYS.to_allocate]


def used(cluster: Cluster, name: str) -> list[tuple[int, int, int]]:
    """Return percent of compute, MiB and slots taken of each GPU of a node."""
    state = cluster.snapshot.shared(GpuLedger, GpuLedger).state(name)
    assert state is not None
    return [(use.compute // 10, use.memory // MIB, use.slots) for use in state.used]


def test_a_pod_gets_its_share_in_the_words_of_hami() -> None:
    cluster = started([node("n1", gpu(0), gpu(1)), pod("p", gpu=1, gpumem=3000, gpucores=30)])
    assert_placed(cluster, p="n1")
    notes = notes_of(cluster, "p")
    assert notes[KEYS.to_allocate] == "GPU-1,NVIDIA,3000,30:;"
    assert notes[KEYS.allocated] == notes[KEYS.to_allocate]
    assert notes[KEYS.node] == "n1"
    assert notes[KEYS.bind_time] == notes[KEYS.time]
    assert int(notes[KEYS.time]) > 0
    assert MIG_ALLOCATIONS not in notes
    assert used(cluster, "n1") == [(0, 0, 0), (30, 3000, 1)]


def restarted(cluster: Cluster) -> Cluster:
    """Return a cluster with the same objects and a scheduler that has just started."""
    again = started([*cluster.api.list(Node), *cluster.api.list(Pod)])
    again.schedule()
    return again


# What a pod requests ------------------------------------------------------------------------------


def privileged(name: str, **more: Any) -> Pod:
    """Return a pod with an ordinary container with limits, and a privileged one."""
    own = pod(name, **more)
    other = Container("root", security_context=SecurityContext(True))
    return replace(own, spec=replace(own.spec, containers=(*own.spec.containers, other)))


def test_pods_with_privileged_containers_get_no_shares() -> None:
    denied = 'container "root": HAMi gives no shares to pods with privileged ones'
    cluster = started([node("n1", gpu(0)), privileged("p", gpumem=3000), privileged("w", gpu=1)])
    for name in "pw":
        assert_pending(cluster, name, denied)
    cluster.add(make_node("plain", gpu=1))
    cluster.advance(20)
    assert_placed(cluster, w="plain")
    assert_pending(cluster, "p", denied, "no GPUs for shares by HAMi")


def test_a_privileged_pod_that_runs_keeps_its_gpu() -> None:
    running = privileged("r", gpu=1)
    running = replace(running, spec=replace(running.spec, node_name="n1"))
    cluster = started([node("n1", gpu(0)), running, pod("p", gpu=1, gpumem=1)])
    assert_pending(cluster, "p", "Insufficient shares of GPUs")


@pytest.mark.parametrize("annotation", ["gpu-fraction", "gpu-memory"])
def test_a_pod_in_the_words_of_two_systems_is_refused_with_both(annotation: str) -> None:
    notes = {annotation: "0.5" if annotation == "gpu-fraction" else "4096"}
    cluster = started([node("n1", gpu(0)), pod("p", notes, gpumem=3000)])
    assert_pending(
        cluster,
        "p",
        "expected shares of GPUs in the words of one system, "
        f"got nvidia.com/gpumem (HAMi) and {annotation} (KAI)",
    )


def test_a_pod_that_names_only_memory_gets_one_gpu() -> None:
    cluster = started([node("n1", gpu(0)), pod("p", gpumem=3000)])
    assert_placed(cluster, p="n1")
    assert devices_of(cluster, "p") == "GPU-0,NVIDIA,3000,0:;"


def test_a_whole_gpu_is_exclusive() -> None:
    cluster = started([node("n1", gpu(0)), pod("whole", gpu=1), pod("part", gpu=1, gpumem=1)])
    assert_placed(cluster, whole="n1")
    assert devices_of(cluster, "whole") == "GPU-0,NVIDIA,81920,100:;"
    assert_pending(cluster, "part", "1 Insufficient shares of GPUs")


def test_a_percentage_is_of_the_gpus_memory() -> None:
    cluster = started([node("n1", gpu(0, devmem=1001)), pod("p", gpu=1, gpumem_percentage=50)])
    assert_placed(cluster, p="n1")
    assert devices_of(cluster, "p") == "GPU-0,NVIDIA,500,0:;"


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"gpumem-percentage": 150}, "nvidia.com/gpumem-percentage: expected 0 to 100, got 150"),
        ({"gpumem": "16Gi"}, "nvidia.com/gpumem: expected a whole number from 0 to 2147483647"),
        ({"gpucores": 2**40}, "nvidia.com/gpucores: expected a whole number from 0"),
    ],
)
def test_amounts_that_hami_refuses_are_named(limits: dict[str, Any], message: str) -> None:
    cluster = started([node("n1", gpu(0)), pod("p", gpu=1, **limits)])
    assert_pending(cluster, "p", f'container "c0": {message}')


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("hami.io/gpu-scheduler-policy", "binpak", 'did you mean "binpack"?'),
        ("hami.io/device-scoring-weights", "slot=1", 'expected "slot=1,core=1,memory=1"'),
        ("hami.io/device-scoring-weights", "slot=0,core=0,memory=0", "one above 0"),
        ("nvidia.com/numa-bind", "yes", 'expected "true" or "false"'),
        ("nvidia.com/vgpu-mode", "time-slicing", "expected some of hami-core, mig, mps"),
    ],
)
def test_options_that_hami_does_not_know_are_named(name: str, text: str, expected: str) -> None:
    cluster = started([node("n1", gpu(0)), pod("p", {name: text}, gpu=1, gpumem=1)])
    assert_pending(cluster, "p", f"annotation {name}: ", expected)


# Which GPU ---------------------------------------------------------------------------------------


def test_reasons_count_gpus_as_hami_words_them() -> None:
    gpus = [gpu(0, devmem=1000), gpu(1, health=False), gpu(2, count=1)]
    uuid = {"nvidia.com/use-gpuuuid": "GPU-2"}
    cluster = started([node("n1", *gpus), pod("first", uuid, gpu=1, gpumem=900)])
    assert_placed(cluster, first="n1")
    assert devices_of(cluster, "first") == "GPU-2,NVIDIA,900,0:;"
    cluster.add(pod("p", {"nvidia.com/use-gputype": "A100"}, gpu=2, gpumem=1000))
    assert_pending(
        cluster,
        "p",
        "1/3 CardNotHealth, 1/3 CardTimeSlicingExhausted, 1/3 AllocatedCardsInsufficientRequest",
    )


def test_a_list_of_gpus_to_use_and_one_of_those_not_to_use_both_count() -> None:
    notes = {"nvidia.com/use-gpuuuid": "GPU-0, GPU-1", "nvidia.com/nouse-gpuuuid": "GPU-1"}
    cluster = started([node("n1", *map(gpu, range(3))), pod("p", notes, gpu=1, gpumem=1)])
    assert_placed(cluster, p="n1")
    assert devices_of(cluster, "p") == "GPU-0,NVIDIA,1,0:;"
    cluster.add(pod("none", {"nvidia.com/use-gpuuuid": ""}, gpu=1, gpumem=1))
    assert_pending(cluster, "none", "3/3 CardUuidMismatch")


@pytest.mark.parametrize(("text", "expected"), [("1", "pending"), ("True", "pending"), ("f", "n1")])
def test_numa_bind_is_a_truth_value_of_go(text: str, expected: str) -> None:
    notes = {"nvidia.com/numa-bind": text}
    gpus = [gpu(0, numa=0), gpu(1, numa=1)]
    cluster = started([node("n1", *gpus), pod("p", notes, gpu=2, gpumem=1)])
    assert cluster.schedule().get("p", "pending") == expected


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("spread", "GPU-1"), ("binpack", "GPU-0"), ("mutex", "GPU-1"), ("mutex,binpack", "GPU-1")],
)
def test_a_policy_decides_which_gpu(policy: str, expected: str) -> None:
    notes = {"hami.io/gpu-scheduler-policy": policy}
    uuid = {"nvidia.com/use-gpuuuid": "GPU-0"}
    cluster = started([node("n1", gpu(0), gpu(1)), pod("first", uuid, gpu=1, gpumem=1000)])
    assert_placed(cluster, first="n1")
    cluster.add(pod("p", notes, gpu=1, gpumem=1000))
    assert_placed(cluster, p="n1")
    assert devices_of(cluster, "p") == f"{expected},NVIDIA,1000,0:;"


def test_topology_aware_takes_the_nearest_gpus() -> None:
    pairs = {(0, 1): 10, (0, 2): 200, (0, 3): 10, (1, 2): 10, (1, 3): 20, (2, 3): 10}
    scores = [
        {
            "uuid": f"GPU-{one}",
            "score": {f"GPU-{a + b - one}": s for (a, b), s in pairs.items() if one in (a, b)},
        }
        for one in range(4)
    ]
    own = node("n1", *map(gpu, range(4)), **{"hami.io/node-nvidia-score": json.dumps(scores)})
    notes = {"hami.io/gpu-scheduler-policy": "topology-aware"}
    cluster = started([own, pod("p", notes, gpu=2, gpumem=1000)])
    assert_placed(cluster, p="n1")
    assert {part.split(",")[0] for part in devices_of(cluster, "p").split(":")[:2]} == {
        "GPU-0",
        "GPU-2",
    }


def test_topology_awareness_does_not_try_more_sets_of_gpus_than_can_be_compared() -> None:
    notes = {"hami.io/gpu-scheduler-policy": "topology-aware"}
    cluster = started([node("n1", *map(gpu, range(60))), pod("p", notes, gpu=12, gpumem=1)])
    assert_placed(cluster, p="n1")


def test_a_cordoned_gpu_keeps_its_pods_and_gets_no_more() -> None:
    cluster = started([node("n1", gpu(0), **{CORDON: "GPU-0"}), pod("p", gpu=1, gpumem=1)])
    assert_pending(cluster, "p", "Insufficient shares of GPUs")


@pytest.mark.parametrize("text", ["Deleted_2026.01.01 00:00:00", "Requesting_1999.12.31 00:00:00"])
def test_a_node_whose_device_plugin_does_not_answer_offers_no_gpus(text: str) -> None:
    cluster = started([node("n1", gpu(0), **{HANDSHAKE: text}), pod("p", gpu=1, gpumem=1)])
    assert_pending(cluster, "p", "Insufficient shares of GPUs")


def test_a_node_with_a_register_that_cannot_be_read_says_so() -> None:
    broken = make_node("n1", cpu=8, annotations={REGISTER: '[{"id": "a", "devmem": "x"}]'}, gpu=10)
    cluster = started([broken, pod("p", gpu=1, gpumem=1)])
    assert_pending(cluster, "p", "no GPUs for shares by HAMi")
    assert any("[0].devmem: expected" in text for text in cluster.snapshot.problems.values())


# What would help ----------------------------------------------------------------------------------


def helps(cluster: Cluster, name: str) -> list[str]:
    """Return what DeviceShare suggests for a pod."""
    own = cluster.api.get(Pod, f"default/{name}")
    assert own is not None
    (suggest,) = (
        call for call in cluster.profile.runtime["remedies"] if call.name == "DeviceShare"
    )
    view = cluster.snapshot.view()
    return [one.text for one in suggest(PodInfo(own), view)]


def test_gpus_that_nobody_may_use_are_told_where_they_would_be_enough() -> None:
    gpus = [gpu(0, health=False), gpu(1)]
    cluster = started([node("n1", *gpus, **{CORDON: "GPU-1"})])
    cluster.add(pod("p", gpumem=1000), pod("both", gpu=2, gpumem=1000), pod("whole", gpu=1))
    cluster.schedule()
    assert helps(cluster, "p") == ["would fit on n1 if GPU 0 was healthy"]
    assert helps(cluster, "both") == [
        "would fit on n1 if GPU 0 was healthy and GPU 1 was uncordoned"
    ]
    assert helps(cluster, "whole") == ["would fit on n1 if GPU 0 was healthy"]


def test_what_would_have_to_be_free_is_told() -> None:
    held = {KEYS.allocated: "".join(f"GPU-{n},NVIDIA,80384,50:" for n in range(3)) + ";"}
    first = on_node(pod("first", held, gpu=3, gpumem=80384, gpucores=50), "n1")
    gpus = [gpu(number) for number in range(3)]
    cluster = started([node("n1", *gpus), first, pod("p", gpumem=3584)])
    assert_pending(cluster, "p", "Insufficient shares of GPUs")
    assert helps(cluster, "p") == [
        "would fit on n1 if 2 GiB on one GPU were freed; 3 GPUs have 1.5 GiB each: fragmented"
    ]
    notes = {KEYS.mode: "hami-core"}
    cluster.add(pod("q", notes, gpu=2, gpumem=1, gpucores=60))
    assert_pending(cluster, "q", "Insufficient shares of GPUs")
    assert helps(cluster, "q") == [
        "would fit on n1 if 10 % of compute on each of 2 GPUs were freed"
    ]
    del notes[KEYS.mode]
    cluster.add(pod("r", gpu=2, gpumem=3584))
    gpus_text = "3 GPUs have 1.5 GiB each: fragmented"
    assert helps(cluster, "r") == [
        f"would fit on n1 if 2 GiB on each of 2 GPUs were freed; {gpus_text}"
    ]
    cluster.add(pod("never", gpumem=100000))
    assert helps(cluster, "never") == []


# Which node, and settings -------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "expected"), [("binpack", "n1"), ("spread", "n2")])
def test_a_node_policy_decides_which_node(policy: str, expected: str) -> None:
    nodes = [node("n1", gpu(0)), node("n2", gpu(1))]
    first = on_node(pod("first", {KEYS.allocated: "GPU-0,NVIDIA,40000,50:;"}, gpumem=40000), "n1")
    notes = {"hami.io/node-scheduler-policy": policy}
    cluster = started([*nodes, first, pod("p", notes, gpu=1, gpumem=1000)])
    assert_placed(cluster, p=expected)


def test_settings_of_hami_apply() -> None:
    settings = {
        "memoryFactor": 10,
        "defaultCores": 20,
        "gpuSchedulerPolicy": "binpack",
        "nodeSchedulerPolicy": "spread",
        "migProfileAllowlist": [{"models": ["A100"], "profiles": ["3g.40gb"]}],
    }
    mig = gpu(1, mode="mig", migProfiles=PROFILES)
    cluster = Cluster([node("n1", gpu(0), mig)], plugins={"DeviceShare": {"hami": settings}})
    VirtualDevicePlugins(cluster.api)
    cluster.add(pod("a", {KEYS.mode: "hami-core"}, gpumem=100))
    cluster.add(pod("b", {KEYS.mode: "mig"}, gpumem=100))
    assert cluster.advance(1) == {"a": "n1", "b": "n1"}
    assert devices_of(cluster, "a") == "GPU-0,NVIDIA,1000,20:;"
    assert json.loads(notes_of(cluster, "b")[MIG_ALLOCATIONS])[0]["profile"] == "3g.40gb"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gpuSchedulerPolicy": "topology"}, "expected some of binpack, spread, topology-aware"),
        ({"nodeSchedulerPolicy": "numa"}, "expected binpack or spread"),
        ({"migProfileAllowlist": [{"models": ["A100"]}]}, "profiles"),
        ({"defaultCores": 101}, "less than or equal to 100"),
    ],
)
def test_settings_that_hami_does_not_have_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Cluster(plugins={"DeviceShare": {"hami": settings}})


# Containers ---------------------------------------------------------------------------------------


def configured(text: str, **stated: Any) -> Cluster:
    """Return a cluster whose profile names HAMi's ConfigMap, with a GPU and a pod."""
    found = ConfigMap(ObjectMeta("c", namespace="hami"), {"device-config.yaml": text})
    hami = {"deviceConfigMap": "hami/c", **stated}
    cluster = Cluster(
        [found, node("n1", gpu(0)), pod("p", gpumem=30)], plugins={"DeviceShare": {"hami": hami}}
    )
    cluster.schedule()
    return cluster


def test_settings_of_hamis_config_map_count_where_the_profile_states_none() -> None:
    text = "nvidia: {memoryFactor: 100, defaultCores: 20, deviceSplitCount: 10}"
    assert used(configured(text), "n1") == [(20, 3000, 1)]
    assert used(configured(text, defaultCores=30), "n1") == [(30, 3000, 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nvidia: {memoryFactor: many}", "nvidia.memoryFactor: Input should be a valid integer"),
        ("nvidia: [", "device-config.yaml: "),
        ("[]", "device-config.yaml: expected one mapping with a mapping nvidia"),
    ],
)
def test_a_config_map_that_cannot_be_read_is_told_on_the_nodes(text: str, message: str) -> None:
    cluster = configured(text)
    assert cluster.snapshot.problems["n1", "ConfigMap hami/c"].startswith(message)
    assert used(cluster, "n1") == [(0, 30, 1)]


def test_init_containers_take_what_the_others_leave_of_a_peak() -> None:
    small, large = {"gpu": 1, "gpumem": 1000}, {"gpu": 1, "gpumem": 4000, "gpucores": 50}
    cluster = started([node("n1", gpu(0)), containers("p", [small, {}, small], [large])])
    assert_placed(cluster, p="n1")
    assert devices_of(cluster, "p") == (
        "GPU-0,NVIDIA,4000,50:;GPU-0,NVIDIA,1000,0:;;GPU-0,NVIDIA,1000,0:;"
    )
    assert used(cluster, "n1") == [(50, 4000, 2)]
    assert used(restarted(cluster), "n1") == [(50, 4000, 2)]


def test_a_sidecar_stays_beside_init_containers_and_the_others() -> None:
    sidecar = {"gpu": 1, "gpumem": 500, "sidecar": True}
    own, init = {"gpu": 1, "gpumem": 1000}, {"gpu": 1, "gpumem": 2000}
    cluster = started([node("n1", gpu(0)), containers("p", [own], [sidecar, init])])
    assert_placed(cluster, p="n1")
    assert used(cluster, "n1") == [(0, 2500, 2)]
    assert used(restarted(cluster), "n1") == [(0, 2500, 2)]


# MIG ----------------------------------------------------------------------------------------------

PROFILES = [
    {
        "name": "1g.10gb",
        "memoryMB": 10240,
        "core": 14,
        "sliceCount": 1,
        "placements": [{"start": start, "size": 1} for start in range(7)],
    },
    {
        "name": "2g.20gb",
        "memoryMB": 20480,
        "core": 28,
        "sliceCount": 2,
        "placements": [{"start": start, "size": 2} for start in (0, 2, 4)],
    },
    {
        "name": "3g.40gb",
        "memoryMB": 40960,
        "core": 42,
        "sliceCount": 3,
        "placements": [{"start": start, "size": 4} for start in (0, 4)],
    },
]


def test_a_pod_on_a_gpu_in_mig_mode_gets_the_smallest_partition_that_holds_it() -> None:
    mig = gpu(0, mode="mig", migProfiles=PROFILES)
    cluster = started([node("n1", mig), pod("p", gpu=2, gpumem=10000)])
    assert_placed(cluster, p="n1")
    assert devices_of(cluster, "p") == "GPU-0,NVIDIA,10240,14:GPU-0,NVIDIA,10240,14:;"
    found = json.loads(notes_of(cluster, "p")[MIG_ALLOCATIONS])
    assert found == [
        {
            "containerIndex": 0,
            "deviceIndex": device,
            "gpuUUID": "GPU-0",
            "profile": "1g.10gb",
            "placement": {"start": start, "size": 1},
        }
        for device, start in enumerate((6, 5))
    ]
    again = restarted(cluster)
    assert used(again, "n1") == used(cluster, "n1") == [(28, 20480, 2)]
    again.add(pod("q", {"nvidia.com/vgpu-mode": "mig"}, gpu=1, gpumem=40000))
    assert_placed(again, q="n1")
    assert json.loads(notes_of(again, "q")[MIG_ALLOCATIONS])[0]["placement"]["start"] == 0
    again.add(pod("r", gpu=1, gpumem=20000))
    assert_pending(again, "r", "1/1 CardMigTopologyInfeasible")


@pytest.mark.parametrize(
    ("stated", "problem"),
    [
        (400, "expected a place that GPU-0 has for 3g.40gb, got start 400 and size 4"),
        (None, "expected the partition of GPU-0"),
    ],
)
def test_a_partition_that_no_gpu_has_is_assumed_where_hami_would_put_it(
    stated: int | None, problem: str
) -> None:
    mig = gpu(0, mode="mig", migProfiles=PROFILES)
    entry = {"containerIndex": 0, "deviceIndex": 0, "gpuUUID": "GPU-0", "profile": "3g.40gb"}
    parts = [{**entry, "placement": {"start": stated, "size": 4}}] if stated is not None else []
    notes = {HAMI.annotations.allocated: "GPU-0,NVIDIA,40960,42:;"}
    notes |= {HAMI.annotations.node: "n1", MIG_ALLOCATIONS: json.dumps(parts)}
    old = pod("old", notes, gpu=1, gpumem=40000)
    old = replace(old, spec=replace(old.spec, node_name="n1"))
    cluster = started([node("n1", mig), old, pod("new", gpu=1, gpumem=40000)])
    assert_placed(cluster, new="n1")
    assert json.loads(notes_of(cluster, "new")[MIG_ALLOCATIONS])[0]["placement"]["start"] == 0
    assert problem in cluster.snapshot.problems["n1", "default/old"]


def test_init_containers_keep_their_partitions() -> None:
    mig = gpu(0, mode="mig", migProfiles=PROFILES)
    large = {"gpu": 1, "gpumem": 40000}
    cluster = started([node("n1", mig), containers("p", [large], [large])])
    assert_placed(cluster, p="n1")
    starts = [
        one["placement"]["start"] for one in json.loads(notes_of(cluster, "p")[MIG_ALLOCATIONS])
    ]
    assert sorted(starts) == [0, 4]


# Quotas -------------------------------------------------------------------------------------------


def quota(**hard: str) -> ApiObject:
    return make_object(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "gpus", "namespace": "default"},
            "spec": {"hard": {f"limits.nvidia.com/{name}": text for name, text in hard.items()}},
        }
    )


def test_a_namespace_gets_no_more_memory_of_gpus_than_its_quota() -> None:
    nodes = [node("n1", gpu(0)), node("n2", gpu(1))]
    cluster = started([*nodes, quota(gpumem="5000"), pod("a", gpu=1, gpumem=3000)])
    assert_placed(cluster, a="n1")
    cluster.add(pod("b", gpu=1, gpumem=3000))
    assert_pending(cluster, "b", "1/1 ResourceQuotaNotFit")
    cluster.add(containers("other", [{"gpu": 1, "gpumem": 9000}], namespace="free"))
    assert cluster.schedule()["free/other"]
    cluster.remove("a")
    assert cluster.advance(10)["b"]


def test_a_quota_of_memory_is_in_the_unit_of_requests() -> None:
    cluster = Cluster(
        [node("n1", gpu(0)), quota(gpumem="500")],
        plugins={"DeviceShare": {"hami": {"memoryFactor": 10}}},
    )
    VirtualDevicePlugins(cluster.api)
    cluster.add(pod("a", gpu=1, gpumem=400))
    assert_placed(cluster, a="n1")
    cluster.add(pod("b", gpu=1, gpumem=200))
    assert_pending(cluster, "b", "1/1 ResourceQuotaNotFit")


# After a crash ------------------------------------------------------------------------------------


def test_a_restart_reads_back_what_pods_hold() -> None:
    cluster = started([node("n1", gpu(0), gpu(1))])
    cluster.add(*(pod(f"p{n}", gpu=1, gpumem=1000 + n, gpucores=10 + n) for n in range(5)))
    cluster.schedule()
    again = restarted(cluster)
    assert used(again, "n1") == used(cluster, "n1")
    assert sum(one[2] for one in used(again, "n1")) == 5


def test_a_pod_whose_bind_phase_was_left_behind_keeps_its_share() -> None:
    cluster = started([node("n1", gpu(0)), pod("p", gpu=1, gpumem=3000)])
    assert_placed(cluster, p="n1")
    assert notes_of(cluster, "p")[KEYS.phase] in ("allocating", "success")
    assert used(restarted(cluster), "n1") == [(0, 3000, 1)]


def test_what_another_scheduler_wrote_before_it_died_does_not_count() -> None:
    left = {KEYS.allocated: "GPU-0,NVIDIA,80000,90:;", KEYS.phase: "allocating", KEYS.node: "n1"}
    cluster = started([node("n1", gpu(0)), pod("p", left, gpu=1, gpumem=3000)])
    assert_placed(cluster, p="n1")
    assert devices_of(cluster, "p") == "GPU-0,NVIDIA,3000,0:;"
    assert used(cluster, "n1") == [(0, 3000, 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("GPU-0,NVIDIA,3000", 'container 0: expected ":" at the end'),
        ("GPU-0,NVIDIA,30", 'container 0: expected ":" at the end'),
        ("GPU-0,NVIDIA,:;", 'container 0, device 0: expected "uuid,type,MiB,percent"'),
        ("GPU-0,NVIDIA,3000,-1:;", "container 0, device 0: expected percent from 0"),
        (";;;", "expected devices of 1 containers, got 3"),
    ],
)
def test_a_half_written_annotation_is_named_and_counts_as_the_request(
    text: str, message: str
) -> None:
    running = pod("p", {KEYS.allocated: text, KEYS.node: "n1"}, gpu=1, gpumem=3000)
    placed = containers("p", [{"gpu": 1, "gpumem": 3000}], notes=running.metadata.annotations)
    cluster = started([node("n1", gpu(0)), on_node(placed, "n1")])
    cluster.schedule()
    assert used(cluster, "n1") == [(0, 3000, 1)]
    problems = cluster.snapshot.problems
    assert any(f"annotation {KEYS.allocated}: {message}" in one for one in problems.values())


def test_shares_of_a_gpu_that_vanished_come_back_with_it() -> None:
    cluster = started([node("n1", gpu(0), gpu(1)), pod("p", gpu=2, gpumem=3000)])
    assert_placed(cluster, p="n1")
    assert used(cluster, "n1") == [(0, 3000, 1), (0, 3000, 1)]
    cluster.api.update(node("n1", gpu(1)))
    assert used(cluster, "n1") == [(0, 3000, 1)]
    again = restarted(cluster)
    assert used(again, "n1") == [(0, 3000, 1)]
    for one in (cluster, again):
        one.api.update(node("n1", gpu(0), gpu(1)))
        assert used(one, "n1") == [(0, 3000, 1), (0, 3000, 1)]


def test_a_gpu_in_mig_mode_without_profiles_is_given_to_nobody_and_told() -> None:
    # As HAMi up to 2.9 registers it: the geometries are in a file of its device plugin.
    cluster = Cluster([node("n1", gpu(0, mode="mig"), gpu(1))])
    cluster.add(pod("a", gpu=1, gpumem=4000), pod("b", gpu=2, gpumem=4000))
    assert_placed(cluster, a="n1")
    assert used(cluster, "n1") == [(0, 0, 0), (0, 4000, 1)]
    assert_pending(cluster, "b", "1/2 CardMigTopologyInfeasible")
    assert cluster.snapshot.problems["n1", f"annotation {REGISTER}"].startswith(
        "GPU-0 is in MIG mode"
    )


# Several schedulers -------------------------------------------------------------------------------


@pytest.mark.parametrize(("came", "keeps"), [(30000, True), (60000, False)])
def test_a_pod_whose_placement_was_taken_back_chooses_again_if_others_took_its_gpu(
    came: int, keeps: bool
) -> None:
    cluster = Cluster([node("n1", gpu(0))])
    snapshot, ledger = cluster.snapshot, cluster.snapshot.shared(GpuLedger, GpuLedger)
    ours = PodInfo(pod("ours", gpu=1, gpumem=50000))
    snapshot.add_pod(ours, "n1")
    ledger.hold(ours, "n1", [Share(0, 0, 50000 * MIB, 1)])
    snapshot.remove_pod(ours.key)
    snapshot.add_pod(PodInfo(bound_elsewhere("other", came)), "n1")
    snapshot.add_pod(ours, "n1")
    assert ledger.is_reserved(ours, "n1") is keeps


def test_a_bound_pod_keeps_the_gpu_that_it_states_whatever_was_assumed_there_before() -> None:
    cluster = Cluster([node("n1", gpu(0), gpu(1))])
    snapshot, ledger = cluster.snapshot, cluster.snapshot.shared(GpuLedger, GpuLedger)
    ours, other = PodInfo(pod("ours", gpu=1, gpumem=50000)), bound_elsewhere("other", 60000)
    snapshot.add_pod(ours, "n1")
    ledger.hold(ours, "n1", [Share(0, 0, 50000 * MIB, 1)])
    snapshot.add_pod(PodInfo(other), "n1")
    snapshot.replace_pod(PodInfo(replace(other)))
    assert used(cluster, "n1") == [(0, 110000, 2), (0, 0, 0)]
    snapshot.remove_pod(ours.key)
    assert used(cluster, "n1") == [(0, 60000, 1), (0, 0, 0)]


def bound_elsewhere(name: str, memory: int) -> Pod:
    """Return a pod that another scheduler has given memory of GPU 0, in MiB."""
    notes = {KEYS.allocated: f"GPU-0,NVIDIA,{memory},0:;", KEYS.node: "n1"}
    return on_node(pod(name, notes, gpu=1, gpumem=memory), "n1")


# Heartbeats ---------------------------------------------------------------------------------------


def test_locks_and_heartbeats_of_device_plugins_change_nothing_that_scheduling_reads() -> None:
    alive = {HANDSHAKE: "Reported_2026.01.01 00:00:00"}
    one = node("n1", gpu(0), **alive)
    later = {HANDSHAKE: "Reported_2026.01.01 00:00:30", KEYS.lock: "2026-01-01T00:00:30Z,a,b"}
    assert node_difference(one, node("n1", gpu(0), **later)) is ClusterEvent.NONE
    for word in ("Requesting_2026.01.01 00:00:00", "Deleted_2026.01.01 00:00:00"):
        changed = node("n1", gpu(0), **{HANDSHAKE: word})
        assert node_difference(one, changed) is ClusterEvent.NODE_OTHER


# The lock of a node ---------------------------------------------------------------------------


def lock_of(cluster: Cluster, name: str) -> str | None:
    found = cluster.api.get(Node, name)
    assert found is not None
    return found.metadata.annotations.get(KEYS.lock)


def test_a_pods_binding_locks_its_node_until_the_device_plugin_has_served_it() -> None:
    cluster = Cluster([node("n1", gpu(0)), *(pod(n, gpu=1, gpumem=1) for n in ("a", "b", "c"))])
    assert cluster.schedule() == {"a": "n1"}
    assert lock_of(cluster, "n1") == "2000-01-01T00:00:00Z,default,a"
    VirtualDevicePlugins(cluster.api)
    assert cluster.advance(1) == dict.fromkeys(("a", "b", "c"), "n1")
    assert lock_of(cluster, "n1") is None
    assert [notes_of(cluster, name)[KEYS.phase] for name in ("a", "b", "c")] == ["success"] * 3


def test_a_lock_held_by_a_dead_scheduler_is_broken_after_five_minutes() -> None:
    other = make_node("n2", cpu=8)
    waiting = make_pod("theirs", cpu=1, spec={"schedulerName": "hami"}, node="n2")
    lock = {KEYS.lock: "2000-01-01T00:00:00Z,default,theirs"}
    cluster = started([node("n1", gpu(0), **lock), other, waiting, pod("p", gpu=1, gpumem=1)])
    assert "p" not in cluster.advance(299)
    assert cluster.advance(10)["p"] == "n1"
    assert lock_of(cluster, "n1") is None


@pytest.mark.parametrize("text", ["2000-01-01T00:00:00Z,default,gone", "nonsense", ""])
def test_a_lock_of_nobody_is_broken_at_once(text: str) -> None:
    cluster = started([node("n1", gpu(0), **{KEYS.lock: text}), pod("p", gpu=1, gpumem=1)])
    assert_placed(cluster, p="n1")


def test_a_gang_on_one_node_is_served_pod_by_pod() -> None:
    members = [
        replace(own, metadata=replace(own.metadata, labels={LABEL: "g"}))
        for own in (pod(f"g{n}", gpu=1, gpumem=1000) for n in range(4))
    ]
    cluster = started([node("n1", gpu(0)), make_gang("g", 4), *members])
    assert cluster.advance(1) == {f"g{n}": "n1" for n in range(4)}
    assert used(cluster, "n1") == [(0, 4000, 4)]


def test_a_pod_that_is_deleted_while_it_waits_for_the_lock_gives_its_share_back() -> None:
    cluster = Cluster([node("n1", gpu(0)), pod("a", gpu=1, gpumem=1), pod("b", gpu=1, gpumem=2)])
    assert cluster.schedule() == {"a": "n1"}
    assert used(cluster, "n1") == [(0, 3, 2)]
    cluster.remove("b")
    cluster.advance(10)
    assert used(cluster, "n1") == [(0, 1, 1)]


def on_node(own: Pod, name: str) -> Pod:
    return replace(own, spec=replace(own.spec, node_name=name))
