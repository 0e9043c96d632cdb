"""Which GPUs can be divided, and what NVIDIA calls their partitions."""

import pytest

from bayplan.topology.machine.mig import mig_gpu, mig_gpus, resource_name

GIB = 1 << 30


@pytest.mark.parametrize(
    ("model", "memory", "gpu"),
    [
        ("NVIDIA A100-SXM4-40GB", 40 * GIB, "A100-40"),
        ("NVIDIA A100-SXM4-40GB", 0, "A100-40"),
        ("NVIDIA A100 80GB PCIe", 80 * GIB, "A100-80"),
        ("NVIDIA-H100-80GB-HBM3", 0, "H100-80"),
        ("NVIDIA H200", 141 * GIB, "H200"),
        ("NVIDIA GB200", 186 * GIB, "GB200"),
        ("NVIDIA A30", 24 * GIB, "A30"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 0, "RTX-PRO-6000"),
    ],
)
def test_a_gpu_is_known_by_its_product_and_memory(model: str, memory: int, gpu: str) -> None:
    found = mig_gpu(model, memory)
    assert found is not None
    assert found.name == gpu


@pytest.mark.parametrize("model", ["NVIDIA L40S", "NVIDIA A10", "", "H100 NVL 94GB"])
def test_a_gpu_without_known_partitions_has_none(model: str) -> None:
    assert mig_gpu(model) is None


def test_a_profile_says_what_a_partition_gets() -> None:
    gpu = mig_gpu("NVIDIA H100 80GB HBM3", 80 * GIB)
    assert gpu is not None
    small, *_, whole = gpu.profiles
    assert (small.id, small.name, small.multiprocessors) == (19, "1g.10gb", 16)
    assert small.partition.memory == 9984 << 20
    assert small.partition.compute == 121
    assert (whole.id, whole.partition.compute, whole.partition.size) == (0, 1000, 8)


def test_partitions_are_never_more_than_the_gpu() -> None:
    for gpu in mig_gpus():
        whole = gpu.whole
        for one in gpu.profiles:
            own = one.partition
            count = min(gpu.compute_slices // own.slices, len(own.starts))
            assert count * own.memory <= whole.partition.memory * 1.001, one.name
            assert count * own.compute <= 1000, one.name
            assert max(own.starts) + own.size <= gpu.memory_slices


def test_a_plus_in_a_profile_is_a_dot_in_its_resource() -> None:
    assert resource_name("1g.10gb+me") == "nvidia.com/mig-1g.10gb.me"
    assert resource_name("3g.40gb") == "nvidia.com/mig-3g.40gb"
