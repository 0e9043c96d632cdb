"""KAI's shares of GPUs: the strings of pods and nodes, and what is written for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.dialects.kai.shares import (
    SHARE_ANNOTATIONS,
    GpuShareRequest,
    config_maps,
    gpu_memory_of,
    gpu_share_of,
    group_labels,
    groups_of,
    is_reservation,
    mig_gpus,
    received,
    reservation_pod,
    reserved_index,
)
from bayplan.testing import make_pod

INITS = {
    "initContainers": [{"name": "fetch", "image": "i"}],
    "containers": [{"name": "web", "image": "i"}, {"name": "model", "image": "i"}],
}


def share(spec: object = None, **annotations: str) -> GpuShareRequest | str | None:
    named = {name.replace("_", "-"): text for name, text in annotations.items()}
    return gpu_share_of(make_pod("p", annotations=named, spec=spec))  # type: ignore[arg-type]


def test_what_pods_ask_for() -> None:
    assert share() is None
    assert share(mps="false") is None
    assert share(gpu_fraction="0.5") == GpuShareRequest(0.5)
    assert share(gpu_fraction="5e-1", mps="true") == GpuShareRequest(0.5)
    assert share(gpu_memory="4096") == GpuShareRequest(memory=4096)
    assert share(gpu_fraction=".25", gpu_fraction_num_devices="2") == GpuShareRequest(0.25, 0, 2)


@pytest.mark.parametrize(("name", "index"), [("fetch", 0), ("web", 1), ("model", 2)])
def test_the_container_that_uses_the_gpus(name: str, index: int) -> None:
    assert share(INITS, gpu_fraction="0.5") == GpuShareRequest(0.5, container=1)
    found = share(INITS, gpu_fraction="0.5", gpu_fraction_container_name=name)
    assert found == GpuShareRequest(0.5, container=index)


FRACTION = "annotation gpu-fraction: expected a number above 0 and below 1, got"
MEMORY = "annotation gpu-memory: expected a whole number of MiB, above 0, got"


@pytest.mark.parametrize(
    ("annotations", "problem"),
    [
        ({"gpu_fraction": "1"}, f'{FRACTION} "1"'),
        ({"gpu_fraction": "-0.5"}, f'{FRACTION} "-0.5"'),
        ({"gpu_fraction": "nan"}, f'{FRACTION} "nan"'),
        ({"gpu_fraction": "500m"}, f'{FRACTION} "500m"'),
        ({"gpu_fraction": "1e-999"}, f'{FRACTION} "1e-999"'),
        ({"gpu_fraction": "0." + "1" * 5000}, f'{FRACTION} "0.{"1" * 38}"'),
        ({"gpu_memory": "0"}, f'{MEMORY} "0"'),
        ({"gpu_memory": "2Gi"}, f'{MEMORY} "2Gi"'),
        ({"gpu_memory": "٣"}, f'{MEMORY} "٣"'),
        (
            {"gpu_fraction": "0.5", "gpu_memory": "100"},
            "annotations gpu-fraction and gpu-memory: expected one of them",
        ),
        (
            {"gpu_fraction": "0.5", "mps": "yes"},
            'annotation mps: expected "true" or "false", got "yes"',
        ),
        ({"mps": "true"}, "annotation mps: expected gpu-fraction or gpu-memory beside it"),
        (
            {"gpu_fraction_num_devices": "2"},
            "annotation gpu-fraction-num-devices: expected gpu-fraction or gpu-memory beside it",
        ),
        (
            {"gpu_fraction": "0.5", "gpu_fraction_num_devices": "0"},
            'annotation gpu-fraction-num-devices: expected a whole number from 1 to 1024, got "0"',
        ),
        (
            {"gpu_fraction": "0.5", "gpu_fraction_container_name": "none"},
            "annotation gpu-fraction-container-name: expected the name of a container (main), "
            'got "none"',
        ),
    ],
)
def test_what_cannot_be_read_is_named(annotations: dict[str, str], problem: str) -> None:
    assert share(**annotations) == problem


def test_a_share_beside_a_whole_gpu_is_refused() -> None:
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}, "name": "c", "image": "i"}
    problem = share({"containers": [limits]}, gpu_fraction="0.5")
    assert problem == (
        "annotation gpu-fraction: expected no limit of nvidia.com/gpu in a pod that shares GPUs"
    )


_TEXTS = st.text(max_size=60) | st.from_regex(r"[-+]?[0-9.]{0,8}([eE][-+]?[0-9]{0,3})?[a-zA-Z]?")


@given(st.dictionaries(st.sampled_from(SHARE_ANNOTATIONS), _TEXTS))
def test_any_annotations_give_a_sound_request_or_a_message(annotations: dict[str, str]) -> None:
    found = gpu_share_of(make_pod("p", annotations=annotations))
    if isinstance(found, GpuShareRequest):
        assert (0 < found.fraction < 1) != (found.memory > 0)
        assert 1 <= found.devices <= 1024
        assert found.part_of(80_000) > 0
    elif found is not None:
        assert any(name in found for name in annotations)
        assert len(found) < 300


@given(st.text(max_size=40) | st.integers(0, 1 << 70).map(str))
def test_any_label_gives_a_size(text: str) -> None:
    size = gpu_memory_of({"nvidia.com/gpu.memory": text})
    assert size >= 100
    assert size % 100 == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [("81559", 81500), ("80", 100), ("", 100), ("16Gi", 100), ("85899345920", 81900)],
)
def test_the_size_of_a_gpu_is_rounded_down(text: str, size: int) -> None:
    assert gpu_memory_of({"nvidia.com/gpu.memory": text}) == size


def test_memory_counts_in_hundredths_rounded_up() -> None:
    assert GpuShareRequest(memory=30_000).part_of(81_500) == 0.37
    assert GpuShareRequest(memory=7).part_of(100) == 0.07
    assert GpuShareRequest(memory=101).part_of(100) == 1.01
    assert GpuShareRequest(0.5).memory_of(81_500) == 40_750


def test_groups_are_labels() -> None:
    one, two = GpuShareRequest(0.5), GpuShareRequest(0.5, devices=2)
    assert group_labels(one, ("a",)) == {"runai-gpu-group": "a"}
    labels = group_labels(two, ("a", "b"))
    assert labels == {"runai-gpu-group/a": "a", "runai-gpu-group/b": "b"}
    assert groups_of(make_pod("p", labels=labels)) == ("a", "b")
    assert groups_of(make_pod("p", labels={"runai-gpu-group": "g"})) == ("g",)


def test_a_reservation_pod() -> None:
    source = make_pod("p", spec={"tolerations": [{"key": "gpu", "operator": "Exists"}]})
    pod = reservation_pod("node-1", "g", source, "image:1")
    assert pod.key == "kai-resource-reservation/gpu-reservation-bafbdd401dbddcc2"
    assert is_reservation(pod)
    assert pod.spec.node_name == "node-1"
    assert pod.spec.tolerations == source.spec.tolerations
    assert pod.spec.containers[0].resources.limits["nvidia.com/gpu"].units == 1
    assert reserved_index(pod) is None
    meta = replace(pod.metadata, annotations={"run.ai/reserve_for_gpu_index": "3"})
    assert reserved_index(replace(pod, metadata=meta)) == 3
    meta = replace(pod.metadata, annotations={"run.ai/reserve_for_gpu_index": "GPU-1"})
    assert reserved_index(replace(pod, metadata=meta)) == (
        'annotation run.ai/reserve_for_gpu_index: expected an index, got "GPU-1"'
    )


def test_the_config_maps_of_a_container() -> None:
    known = {"runai/shared-gpu-configmap": "train-abc1234-shared-gpu"}
    pod = make_pod("p", annotations=known, spec=INITS)
    first, second = config_maps(pod, GpuShareRequest(0.5, devices=2, container=0), 0.5, (1, 3))
    assert first.key == "default/train-abc1234-shared-gpu-i0"
    assert first.data == {
        "NVIDIA_VISIBLE_DEVICES": "1,3",
        "RUNAI_NUM_OF_GPUS": "0.50",
        "GPU_PORTION": "0.50",
    }
    assert second.key == "default/train-abc1234-shared-gpu-i0-evar"
    assert second.data == {"NVIDIA_VISIBLE_DEVICES": "1,3"}
    assert [one.name for one in first.metadata.owner_references] == ["p"]
    (third, _) = config_maps(pod, GpuShareRequest(0.5, container=2), 0.5, (0,))
    assert third.key == "default/train-abc1234-shared-gpu-1"


def test_the_name_of_a_config_map_fits_a_volume() -> None:
    pod = make_pod("x" * 200)
    name = received(pod)["runai/shared-gpu-configmap"]
    assert len(f"{name}-i0-evar-vol") <= 63
    broken = make_pod("p", annotations={"runai/shared-gpu-configmap": "../../etc"})
    assert received(broken)["runai/shared-gpu-configmap"].startswith("p-")


@pytest.mark.parametrize(
    ("resource", "count"),
    [
        ("nvidia.com/mig-1g.10gb", 1),
        ("nvidia.com/mig-3g.40gb", 3),
        ("nvidia.com/mig-1g.10gb.me", 1),
        ("nvidia.com/gpu", 0),
        ("nvidia.com/mig-big", 0),
    ],
)
def test_partitions_count_their_compute_slices(resource: str, count: int) -> None:
    assert mig_gpus(resource) == count
