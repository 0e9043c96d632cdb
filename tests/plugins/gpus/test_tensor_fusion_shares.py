"""Shares of TensorFusion's GPUs, from GPU objects and annotations to what is written."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.api import ApiObject, Node, Pod, TensorFusionGpu
from bayplan.api.gpu_shares import GpuUse
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.dialects.tensor_fusion import PREFIX
from bayplan.dialects.tensor_fusion_shares import GPU_IDS
from bayplan.testing import Cluster, make_node, make_object, make_pod
from bayplan_plugins.gpus.ledger import GpuLedger

GIB = 1 << 30


def gpu(name: str, node: str = "n", index: int = 0, **status: Any) -> ApiObject:
    labels = {f"{PREFIX}gpupool": status.pop("pool", "main")}
    content = {
        "phase": "Running",
        "vendor": "NVIDIA",
        "capacity": {"tflops": "312", "vram": "80Gi"},
        "index": index,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "gpuModel": "A100",
        "usedBy": "tensor-fusion",
        **status,
    }
    meta = {"name": name, "labels": labels}
    return make_object(
        {"apiVersion": "tensor-fusion.ai/v1", "kind": "GPU", "metadata": meta, "status": content}
    )


def pod(name: str, spec: dict[str, Any] | None = None, **given: str) -> Pod:
    annotations = {f"{PREFIX}{key.replace('_', '-')}": text for key, text in given.items()}
    return make_pod(name, annotations=annotations, spec=spec)


def fused(*objects: ApiObject) -> Cluster:
    cluster = Cluster()
    start_controllers(cluster.api)
    cluster.add(*objects)
    cluster.advance(1)
    return cluster


def ids(cluster: Cluster, name: str) -> str | None:
    found = cluster.api.get(Pod, f"default/{name}")
    assert found is not None
    return found.metadata.annotations.get(GPU_IDS)


def used(cluster: Cluster, node: str = "n") -> list[tuple[int, int]]:
    state = cluster.snapshot.shared(GpuLedger, GpuLedger).state(node)
    uses: tuple[GpuUse, ...] = state.used if state is not None else ()
    return [(one.compute, one.memory // GIB) for one in uses]


TWO = (gpu("gpu-a"), gpu("gpu-b", index=1), make_node("n", cpu=64))


def test_shares_go_to_the_fullest_gpu_that_has_room() -> None:
    cluster = fused(*TWO, pod("a", tflops_request="78", vram_request="20Gi"))
    cluster.add(pod("b", tflops_limit="156", vram_limit="40Gi"))
    cluster.add(pod("c", compute_percent_request="50", vram_request="30Gi"))
    cluster.advance(1)
    assert ids(cluster, "a") == ids(cluster, "b")
    assert {ids(cluster, "a"), ids(cluster, "c")} == {"gpu-a", "gpu-b"}
    assert sorted(used(cluster)) == [(500, 30), (750, 60)]


def test_several_gpus_and_those_that_are_named() -> None:
    cluster = fused(*TWO, gpu("gpu-c", index=2, gpuModel="H100"))
    cluster.add(pod("two", vram_request="10Gi", gpu_count="2", gpu_model="a100"))
    cluster.add(pod("third", vram_request="10Gi", gpu_indices="2"))
    cluster.add(pod("other", vram_request="1Gi", gpupool="elsewhere"))
    cluster.add(pod("whole", dedicated_gpu="true", gpu_model="A100"))
    cluster.advance(1)
    assert sorted((ids(cluster, "two") or "").split(",")) == ["gpu-a", "gpu-b"]
    assert ids(cluster, "third") == "gpu-c"
    assert "no GPU of TensorFusion with this model" in cluster.message("other")
    assert "Insufficient free GPUs" in cluster.message("whole")
    cluster.remove("two")
    assert "whole" in cluster.advance(60)


def test_a_gpu_that_another_plugin_gives_out_is_left_alone() -> None:
    gpus = (gpu("gpu-a", usedBy="nvidia-device-plugin"), gpu("gpu-b", index=1, phase="Pending"))
    cluster = fused(*gpus, make_node("n"), pod("a", vram_request="1Gi"))
    assert cluster.placements() == {}
    cluster.api.update(gpu("gpu-b", index=1))
    assert cluster.advance(60) == {"a": "n"}
    assert ids(cluster, "a") == "gpu-b"


def test_pods_with_whole_gpus_count() -> None:
    node = make_node("n", cpu=64, gpu=2)
    cluster = fused(*TWO[:2], node, make_pod("whole", gpu=1), pod("a", vram_request="50Gi"))
    assert sorted(used(cluster)) == [(0, 50), (1000, 80)]
    cluster.add(pod("b", vram_request="50Gi"))
    cluster.advance(1)
    assert "Insufficient shares of GPUs" in cluster.message("b")


def test_a_restart_reads_back_what_pods_hold() -> None:
    cluster = fused(*TWO, pod("a", tflops_request="78", vram_request="20Gi"))
    cluster.add(pod("b", vram_request="70Gi"), pod("c", vram_request="60Gi"))
    cluster.advance(1)
    again = Cluster()
    again.add(*cluster.api.list(Node), *cluster.api.list(Pod), *cluster.api.list(TensorFusionGpu))
    assert used(again) == used(cluster)


def test_a_gpu_that_comes_back_has_its_shares_again() -> None:
    cluster = fused(*TWO[:1], TWO[2], pod("a", vram_request="60Gi"))
    before = used(cluster)
    cluster.api.delete(TensorFusionGpu, "gpu-a")
    cluster.add(pod("b", vram_request="60Gi"))
    assert cluster.advance(1) == {"a": "n"}
    cluster.add(TWO[0])
    assert cluster.advance(60) == {"a": "n"}
    assert used(cluster) == before == [(0, 60)]


def test_the_worker_of_a_client_gets_the_share() -> None:
    cluster = fused(*TWO, make_node("cpu", cpu=64))
    cluster.add(pod("train", is_local_gpu="false", tflops_request="78", vram_request="20Gi"))
    cluster.advance(1)
    assert cluster.placements()["train-tf"] == "n"
    assert ids(cluster, "train") is None
    assert ids(cluster, "train-tf") in ("gpu-a", "gpu-b")
    assert sorted(used(cluster)) == [(0, 0), (250, 20)]
    cluster.remove("train")
    cluster.advance(120)
    assert used(cluster) == [(0, 0), (0, 0)]


def test_no_gpu_is_ever_given_out_twice() -> None:
    chance = random.Random(3)
    nodes = [make_node(f"n{n}", cpu=64) for n in range(3)]
    gpus = [gpu(f"g{n}-{i}", f"n{n}", i) for n in range(3) for i in range(2)]
    cluster = fused(*gpus, *nodes)
    for number in range(60):
        given = {
            "tflops_request": str(chance.randint(1, 312)),
            "vram_request": f"{chance.randint(1, 80)}Gi",
            "gpu_count": str(chance.choice((1, 1, 2))),
        }
        cluster.add(pod(f"p{number}", **given))
        cluster.advance(1)
        placed = sorted(cluster.placements())
        if len(placed) > 6:
            cluster.remove(chance.choice(placed))
        for node in nodes:
            for compute, memory in used(cluster, node.metadata.name):
                assert compute <= 1000
                assert memory <= 80


# Bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"tflops_request": "much"}, "tflops-request: expected a quantity from 0 to 1000000, got"),
        ({"vram_request": "-1Gi"}, "vram-request: expected a quantity from 0 to"),
        ({"vram_request": "0"}, "vram-request: expected an amount above 0 of something"),
        ({"compute_percent_request": "101"}, "percent-request: expected a quantity from 0 to 100"),
        (
            {"tflops_request": "1", "compute_percent_request": "1"},
            "compute-percent-request: expected one of them",
        ),
        ({"vram_request": "1Gi", "qos": "best"}, "qos: expected one of low, medium, high"),
        ({"vram_request": "1Gi", "isolation": "partitioned"}, "isolation: expected one of shared"),
        ({"vram_request": "1Gi", "gpu_indices": "0,0"}, "gpu-indices: expected different numbers"),
        ({"dedicated_gpu": "true"}, "dedicated-gpu: expected tensor-fusion.ai/gpu-model beside"),
        ({"dedicated_gpu": "yes"}, "dedicated-gpu: expected one of true, false"),
    ],
)
def test_an_annotation_that_cannot_be_read_is_named(given: dict[str, str], expected: str) -> None:
    cluster = fused(*TWO, pod("a", **given))
    assert cluster.placements() == {}
    assert expected in cluster.message("a")


def test_a_client_is_told_what_is_wrong_with_its_share() -> None:
    cluster = fused(*TWO, pod("a", is_local_gpu="false", vram_request="lots"))
    assert "vram-request: expected a quantity" in cluster.message("a-tf")


def test_gpu_objects_that_cannot_be_are_told_at_the_node() -> None:
    twice = gpu("gpu-b", index=0)
    cluster = fused(TWO[0], twice, TWO[2], pod("a", vram_request="1Gi"))
    assert cluster.placements() == {}
    problems = " ".join(cluster.snapshot.problems.values())
    assert "status.index 0 is another GPU's, too" in problems
    cluster.api.update(replace(twice, status=replace(twice.status, index=1)))
    assert cluster.advance(60) == {"a": "n"}
