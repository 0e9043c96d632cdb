"""What would admit a job that its queue holds back is tried with its topology, and works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from bayplan.cli import cli

LAYERS = ("block", "rack", "kubernetes.io/hostname")


def world(racks: int = 2, quota: int = 64, layer: str | None = "rack", pods: int = 2) -> list[Any]:
    """Racks of one node with 8 GPUs each, two of them in a block; a job of pods with 8 GPUs."""
    nodes = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": f"n{index}",
                "labels": {
                    "pool": "gpu",
                    "block": f"b{index // 2}",
                    "rack": f"r{index}",
                    "kubernetes.io/hostname": f"n{index}",
                },
            },
            "status": {
                "allocatable": {"cpu": 64, "memory": "1Ti", "pods": 110, "nvidia.com/gpu": 8}
            },
        }
        for index in range(racks)
    ]
    required = {} if layer is None else {"kueue.x-k8s.io/podset-required-topology": layer}
    container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 8}}}
    amounts = [{"name": "nvidia.com/gpu", "nominalQuota": quota}]
    group = {
        "coveredResources": ["nvidia.com/gpu"],
        "flavors": [{"name": "f", "resources": amounts}],
    }
    kueue = "kueue.x-k8s.io/v1beta1"
    levels = [{"nodeLabel": one} for one in LAYERS]
    return [
        *nodes,
        _object(kueue, "Topology", "dc", {"levels": levels}),
        _object(
            kueue, "ResourceFlavor", "f", {"nodeLabels": {"pool": "gpu"}, "topologyName": "dc"}
        ),
        _object(kueue, "ClusterQueue", "cq", {"namespaceSelector": {}, "resourceGroups": [group]}),
        _object(kueue, "LocalQueue", "q", {"clusterQueue": "cq"}),
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "job", "labels": {"kueue.x-k8s.io/queue-name": "q"}},
            "spec": {
                "suspend": True,
                "parallelism": pods,
                "completions": pods,
                "template": {
                    "metadata": {"annotations": required},
                    "spec": {"restartPolicy": "Never", "containers": [container]},
                },
            },
        },
    ]


def _object(version: str, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def run(folder: Path, objects: list[Any], *command: str) -> Any:
    path = folder / "world.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    done = CliRunner().invoke(cli, [*command, "-f", str(path), "-o", "json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def advice(folder: Path, **given: Any) -> list[str]:
    about = run(folder, world(**given), "explain", "job/job")
    return [one["text"] for one in about.get("suggestions", ())]


def placed(folder: Path, **given: Any) -> int:
    return len(run(folder, world(**given), "simulate")["placements"])


QUOTA = '8 more f/nvidia.com/gpu in the quota of queue "cq"'
BLOCK = "would be admitted with block instead of rack as the required layer"


def test_quota_alone_is_suggested_where_the_pods_would_get_nodes(tmp_path: Path) -> None:
    given = {"layer": "block", "quota": 8}
    assert advice(tmp_path, **given) == [f"would be admitted with {QUOTA}"]
    assert (placed(tmp_path, **given), placed(tmp_path, **{**given, "quota": 16})) == (0, 2)


def test_a_job_larger_than_any_domain_is_told_so_and_which_layer_would_do(tmp_path: Path) -> None:
    never, first, *_ = advice(tmp_path)
    assert never.startswith("can never fit with the nodes as they are: of its 2 pods the largest ")
    assert never.endswith(
        "has room for 1; it would with block instead of rack as the required layer"
    )
    assert first == BLOCK
    assert (placed(tmp_path), placed(tmp_path, layer="block")) == (0, 2)


def test_quota_and_layer_are_suggested_together_where_neither_is_enough(tmp_path: Path) -> None:
    _, first, *_ = advice(tmp_path, quota=8)
    assert first == f"{BLOCK}, and with {QUOTA}"
    alone = (placed(tmp_path, quota=16), placed(tmp_path, quota=8, layer="block"))
    assert (alone, placed(tmp_path, quota=16, layer="block")) == ((0, 0), 2)


@pytest.mark.parametrize("quota", [64, 8])
def test_nodes_are_counted_for_all_pods_of_a_job_that_is_no_gang(
    tmp_path: Path, quota: int
) -> None:
    given = {"layer": None, "pods": 5, "quota": quota}
    (only,) = advice(tmp_path, **given)
    assert only.startswith("would be admitted if the cluster had 3 more nodes like n0")
    assert placed(tmp_path, **{**given, "quota": 64, "racks": 4}) == 0
    assert placed(tmp_path, **{**given, "quota": 64, "racks": 5}) == 5
