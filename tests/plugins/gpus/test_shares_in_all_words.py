"""Shares in the words of every system: in gangs, before preemption, and as explain tells them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import pytest
from msgspec.structs import replace
from tests.plugins.gpus.gpu_builders import device_class, gpu, request, slice_of, template

from bayplan.api import ApiObject, Pod
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.cluster.embedded.device_plugins import VirtualDevicePlugins
from bayplan.explain.explanation import explain
from bayplan.profiles.loading import default_profiles
from bayplan.scheduler.scheduler import Scheduler
from bayplan.testing import Cluster, make_gang, make_node, make_object, make_pod
from bayplan.topology.machine.readers.hami_register import REGISTER, VOLCANO_REGISTER

KOORDINATOR = "koordinator.sh/"


@dataclass(frozen=True)
class Words:
    """How a system says it: a node with one GPU, and a pod that takes 60 % of a GPU.

    ``gpu`` is what makes the node's GPU known beside the node itself. ``told`` is what explain
    says would help a pod that finds the GPU taken.
    """

    offered: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    gpu: Callable[[str], Sequence[ApiObject]] = lambda node: ()
    asked: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    told: str = ""
    template: Mapping[str, Any] | None = None

    def node(self, name: str) -> list[ApiObject]:
        own = make_node(
            name, cpu=64, labels=self.labels, annotations=self.annotations, **self.offered
        )
        return [own, *self.gpu(name)]

    def pod(self, name: str, **more: Any) -> Pod:
        if self.template is not None:
            claims = [{"name": "part", "resourceClaimTemplateName": "part"}]
            more = {**more, "spec": {**more.get("spec", {}), "resourceClaims": claims}}
        return make_pod(name, annotations=self.notes, **self.asked, **more)

    def objects(self) -> list[ApiObject]:
        """Return what the cluster has once."""
        wanted = request(**self.template) if self.template is not None else request()
        return [device_class(), template("part", wanted)]


def _hami_gpu(mode: str = "hami-core") -> str:
    profile = {
        "name": "4g.40gb",
        "memoryMB": 40960,
        "core": 57,
        "sliceCount": 4,
        "placements": [{"start": 0, "size": 4}],
    }
    own = {"id": "GPU-0", "count": 10, "devmem": 81920, "devcore": 100, "type": "NVIDIA-A100"}
    return json.dumps([{**own, "mode": mode, "health": True, "migProfiles": [profile]}])


def _koordinator_device(node: str) -> list[ApiObject]:
    amounts = {"gpu-core": "100", "gpu-memory-ratio": "100", "gpu-memory": "80Gi"}
    resources = {f"{KOORDINATOR}{key}": text for key, text in amounts.items()}
    gpu = {"type": "gpu", "id": "GPU-0", "minor": 0, "health": True, "resources": resources}
    kind = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device"}
    return [make_object({**kind, "metadata": {"name": node}, "spec": {"devices": [gpu]}})]


def _tensor_fusion_gpu(node: str) -> list[ApiObject]:
    status = {
        "phase": "Running",
        "vendor": "NVIDIA",
        "capacity": {"tflops": "100", "vram": "80Gi"},
        "index": 0,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "gpuModel": "A100",
    }
    kind = {"apiVersion": "tensor-fusion.ai/v1", "kind": "GPU"}
    return [make_object({**kind, "metadata": {"name": f"gpu-{node}"}, "status": status})]


def _shared_device(node: str) -> list[ApiObject]:
    step = {"default": "80Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}
    capacity = {"memory": {"value": "80Gi", "requestPolicy": step}}
    return [slice_of(node, [{**gpu(0), "allowMultipleAllocations": True, "capacity": capacity}])]


def _divided_device(node: str) -> list[ApiObject]:
    slices = {f"memory-slice-{at}": {"value": "1"} for at in range(8)}

    def half(start: int) -> dict[str, Any]:
        own = {key: slices[key] for key in list(slices)[start : start + 5]}
        taken = [{"counterSet": "gpu-0", "counters": own}]
        return {"name": f"gpu-0-mig-{start}", "consumesCounters": taken}

    sets = [{"name": "gpu-0", "counters": slices}]
    counters = slice_of(
        node,
        None,
        name=f"sets-{node}",
        sharedCounters=sets,
        pool={"name": node, "resourceSliceCount": 2},
    )
    devices = slice_of(node, [half(0), half(3)], pool={"name": node, "resourceSliceCount": 2})
    return [counters, devices]


WORDS = {
    "HAMi": Words(
        offered={"gpu": 10},
        annotations={REGISTER: _hami_gpu()},
        asked={"gpu": 1, "nvidia.com/gpumem": 49152, "nvidia.com/gpucores": 60},
        told="would fit on a if 16 GiB and 20 % of compute on one GPU were freed",
    ),
    "HAMi, MIG": Words(
        offered={"gpu": 10},
        annotations={REGISTER: _hami_gpu("mig")},
        asked={"gpu": 1, "nvidia.com/gpumem": 40000},
        told="would fit on a if pods left its GPUs (1/1 CardMigTopologyInfeasible)",
    ),
    "Volcano": Words(
        offered={"volcano.sh/vgpu-number": 10},
        annotations={VOLCANO_REGISTER: _hami_gpu()},
        asked={"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 49152},
        told="would fit on a if 16 GiB on one GPU were freed",
    ),
    "Koordinator": Words(
        offered={f"{KOORDINATOR}gpu-core": 100, f"{KOORDINATOR}gpu-memory-ratio": 100},
        gpu=_koordinator_device,
        asked={f"{KOORDINATOR}gpu-core": 60, f"{KOORDINATOR}gpu-memory-ratio": 60},
        told=(
            "would fit if 20 koordinator.sh/gpu-core and 20 koordinator.sh/gpu-memory-ratio were "
            "freed on a and if 16 GiB and 20 % of compute on one GPU were freed"
        ),
    ),
    "KAI": Words(
        offered={"gpu": 1},
        labels={"nvidia.com/gpu.memory": "80000"},
        notes={"gpu-fraction": "0.6"},
        told=(
            "would fit if 16000 MiB more were free on one GPU of a; "
            "its shared GPUs have 32000 MiB left"
        ),
    ),
    "time slicing": Words(
        offered={"gpu": 2},
        labels={"nvidia.com/gpu.replicas": "2", "nvidia.com/gpu.sharing-strategy": "time-slicing"},
        asked={"gpu": 2},
        told="would fit if 2 nvidia.com/gpu were freed on a",
    ),
    "MIG": Words(
        offered={"nvidia.com/mig-4g.40gb": 1},
        labels={"nvidia.com/mig.strategy": "mixed"},
        asked={"nvidia.com/mig-4g.40gb": 1},
        told="would fit if 1 nvidia.com/mig-4g.40gb was freed on a",
    ),
    "TensorFusion": Words(
        gpu=_tensor_fusion_gpu,
        notes={"tensor-fusion.ai/tflops-request": "60", "tensor-fusion.ai/vram-request": "48Gi"},
        told="would fit on a if 16 GiB on one GPU were freed",
    ),
}

WORDS |= {
    "consumable capacity": Words(
        gpu=_shared_device,
        template={"capacity": {"requests": {"memory": "48Gi"}}},
        told="would fit on a if 16Gi of memory of device gpu-0 was freed",
    ),
    "partitions of claims": Words(
        gpu=_divided_device,
        template={},
        told="would fit on a if the device of claim default/p-part-* was freed",
    ),
}

every_system = pytest.mark.parametrize("words", WORDS.values(), ids=list(WORDS))


def cluster_of(words: Words, *nodes: str) -> Cluster:
    """Return a cluster whose kubelets and device plugins run."""
    cluster = Cluster()
    start_controllers(cluster.api)
    VirtualDevicePlugins(cluster.api)
    cluster.add(*words.objects())
    for name in nodes:
        cluster.add(*words.node(name))
    return cluster


@every_system
def test_a_gang_of_which_a_part_finds_no_gpu_holds_none(words: Words) -> None:
    cluster = cluster_of(words, "a", "b")
    cluster.add(make_gang("g", 3), *(words.pod(f"g-{n}", gang="g") for n in range(3)))
    cluster.advance(60)
    assert not [name for name in cluster.placements() if name.startswith("g-")]
    cluster.add(words.pod("p"), words.pod("q"))
    cluster.advance(60)
    assert {"p", "q"} <= cluster.placements().keys()


@every_system
def test_the_pods_of_a_gang_get_different_gpus_where_one_has_too_little(words: Words) -> None:
    cluster = cluster_of(words, "a", "b", "c")
    cluster.add(make_gang("g", 3), *(words.pod(f"g-{n}", gang="g") for n in range(3)))
    cluster.advance(60)
    found = cluster.placements()
    assert sorted(found[f"g-{n}"] for n in range(3)) == ["a", "b", "c"]


@every_system
def test_a_pod_of_higher_priority_takes_one_gpu_and_no_more(words: Words) -> None:
    cluster = cluster_of(words, "a", "b")
    cluster.add(words.pod("p", priority=1), words.pod("q", priority=1))
    cluster.advance(60)
    assert {"p", "q"} <= cluster.placements().keys()
    cluster.add(words.pod("high", priority=1000))
    cluster.advance(120)
    found = cluster.placements()
    assert "high" in found
    assert len({"p", "q"} & found.keys()) == 1


@every_system
def test_explain_says_what_would_have_to_be_free(words: Words) -> None:
    cluster = cluster_of(words, "a")
    cluster.add(words.pod("p", priority=10), words.pod("q", priority=1))
    cluster.advance(60)
    assert "q" not in cluster.placements()
    pod = cluster.api.get(Pod, "default/q")
    assert pod is not None
    about = explain(cluster.scheduler, pod)
    (one,) = about.suggestions
    assert fnmatchcase(one.text, words.told)
    assert one.ends == (() if words is WORDS["partitions of claims"] else ("default/p",))


def test_explain_says_that_shared_devices_have_enough_left_but_none_alone() -> None:
    words = WORDS["consumable capacity"]
    cluster = cluster_of(words)
    step = {"default": "80Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}
    shared = {
        "allowMultipleAllocations": True,
        "capacity": {"memory": {"value": "80Gi", "requestPolicy": step}},
    }
    cluster.add(make_node("a", cpu=64), slice_of("a", [{**gpu(n), **shared} for n in range(2)]))
    cluster.add(words.pod("p0"), words.pod("p1"), words.pod("q", priority=-1))
    cluster.advance(60)
    pod = cluster.api.get(Pod, "default/q")
    assert pod is not None
    (one,) = explain(cluster.scheduler, pod).suggestions
    assert one.text == (
        "would fit on a if 16Gi of memory of device gpu-0 was freed; "
        "its devices have 32Gi, 32Gi left: fragmented"
    )


@pytest.mark.parametrize("kind", ["consumable capacity", "partitions of claims"])
def test_two_schedulers_at_once_never_give_out_more_of_a_device_than_there_is(kind: str) -> None:
    words = WORDS[kind]
    cluster = cluster_of(words, "a", "b")
    profiles = default_profiles()
    own = replace(profiles.profiles[0], scheduler_name="second")
    second = Scheduler(cluster.api, replace(profiles, profiles=(own,), any_scheduler=False))
    cluster.add(*(words.pod(f"p{n}") for n in range(3)))
    cluster.add(*(words.pod(f"q{n}", spec={"schedulerName": "second"}) for n in range(3)))
    for _ in range(60):
        cluster.scheduler.step()
        second.step()
        cluster.api.deliver()
        cluster.advance(1)
    assert sorted(cluster.placements().values()) == ["a", "b"]
