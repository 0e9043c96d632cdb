"""The annotations and ConfigMaps for NCCL that bound pods get."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayplan.api import Pod
from bayplan.api.configmap import ConfigMap
from bayplan.profiles.loading import load_profiles
from bayplan.testing import Cluster, make_gang, make_node, make_pod

RING = "bayplan.dev/nccl-ring"
ENVIRONMENT = "bayplan.dev/nccl-env"
SPANS = {"gpu.topology/multi-node-policy": "pack"}
PROFILE = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  pluginConfig:
  - name: GPUTopology
    args: {nccl: %s}
"""


def gang(folder: Path, pods: int, gpus: int, nodes: int, where: str = "annotations") -> Cluster:
    """Return a cluster of DGX H100 where all pods of a gang have their GPUs."""
    path = folder / "profile.yaml"
    path.write_text(PROFILE % where)
    cluster = Cluster(profiles=load_profiles(path))
    for index in range(nodes):
        labels = {"bayplan.dev/machine": "dgx-h100"}
        cluster.add(make_node(f"node-{index}", cpu=64, memory="512Gi", labels=labels, gpu=8))
    cluster.add(make_gang("job", pods, annotations=SPANS))
    for index in range(pods):
        cluster.add(make_pod(f"p{index}", annotations=SPANS, gang="job", gpu=gpus))
    assert len(cluster.schedule()) == pods
    return cluster


def annotations_of(cluster: Cluster, name: str) -> dict[str, str]:
    """Return a pod's annotations for NCCL."""
    pod = cluster.api.get(Pod, f"default/{name}")
    assert pod is not None
    return {key: text for key, text in pod.metadata.annotations.items() if "nccl" in key}


def test_a_pod_gets_its_part_of_the_ring(tmp_path: Path) -> None:
    cluster = gang(tmp_path, pods=3, gpus=8, nodes=3)
    node = cluster.placements()["p0"]
    before, after = {"0": "21", "1": "02", "2": "10"}[node[-1]]
    own = " ".join(f"{node}/{gpu}" for gpu in range(8))
    assert annotations_of(cluster, "p0")[RING] == (
        f"node-{before} > {own} > node-{after} (370.8 GB/s, 1 GiB reduced in 8.6 ms)"
    )
    assert annotations_of(cluster, "p0")[ENVIRONMENT].startswith("NCCL_IB_HCA==mlx5_0:1,mlx5_3:1,")


def test_two_pods_on_one_node_share_its_ring(tmp_path: Path) -> None:
    cluster = gang(tmp_path, pods=2, gpus=4, nodes=1)
    rings = {annotations_of(cluster, name)[RING] for name in ("p0", "p1")}
    own = " ".join(f"node-0/{gpu}" for gpu in range(8))
    assert f"{own} (370.8 GB/s, 1 GiB reduced in 5.1 ms)" in rings


def test_a_pods_annotations_do_not_grow_with_its_job(tmp_path: Path) -> None:
    def most(pods: int) -> int:
        cluster = gang(tmp_path, pods, gpus=8, nodes=pods)
        return max(len(str(annotations_of(cluster, f"p{index}"))) for index in range(pods))

    assert most(9) == most(3)


@pytest.mark.parametrize("where", ["none", "configMap"])
def test_annotations_are_written_only_where_the_profile_wants_them(
    tmp_path: Path, where: str
) -> None:
    cluster = gang(tmp_path, pods=2, gpus=8, nodes=2, where=where)
    assert annotations_of(cluster, "p0") == {}
    maps = {one.metadata.name: one for one in cluster.api.list(ConfigMap)}
    if where == "none":
        assert maps == {}
    else:
        assert set(maps) == {"p0-nccl", "p1-nccl"}
        assert maps["p0-nccl"].data["NCCL_IB_HCA"].startswith("=mlx5_0:1,")
        assert "GB/s" in maps["p0-nccl"].metadata.annotations[RING]
