"""bayplan pool: what pools have, of manifests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from bayplan.cli import cli
from bayplan.errors import InputError

NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n", "labels": {"pool": "p", "nvidia.com/gpu.product": "H100"}},
    "status": {"allocatable": {"cpu": "8", "nvidia.com/gpu": "8", "pods": "110"}},
}
POOL = {
    "apiVersion": "ai.example.com/v1",
    "kind": "ComputePool",
    "metadata": {"name": "training"},
    "spec": {
        "nodeSelector": {"pool": "p"},
        "capacity": {"reserved": "25%"},
        "quotas": [{"tenant": "a", "guaranteed": {"nvidia.com/gpu": 2}}],
    },
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "x", "namespace": "a", "labels": {"ai.example.com/pool": "training"}},
    "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": 3}}}]},
}


@pytest.fixture
def manifests(tmp_path: Path) -> str:
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all([NODE, POOL, POD]))
    return str(path)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["pool", *arguments])
    return result.exit_code, result.output


def test_the_list_says_what_becomes_of_each_device(manifests: str) -> None:
    code, text = run("list", "-f", manifests)
    assert code == 0
    assert text.splitlines()[1].split() == [
        *("training", "gpu", "1", "nvidia.com/gpu"),
        *("8", "3", "3", "2", "-", "-"),
    ]


def test_one_pool_is_shown_by_model_with_its_tenants(manifests: str) -> None:
    code, text = run("show", "training", "-f", manifests)
    assert code == 0
    assert "H100" in text
    assert "training/a" in text
    assert "training/others" in text


def test_json_has_the_same_amounts(manifests: str) -> None:
    code, text = run("list", "-f", manifests, "-o", "json")
    assert code == 0
    (pool,) = json.loads(text)["pools"]
    gpus = pool["resources"]["nvidia.com/gpu"]
    assert (gpus["total"], gpus["allocated"], gpus["available"], gpus["reserved"]) == (8, 3, 3, 2)
    assert [one["name"] for one in pool["tenants"]] == ["training/a", "training/others"]


def test_a_pool_that_is_not_there_is_named(manifests: str, tmp_path: Path) -> None:
    def ask(*arguments: str) -> None:
        CliRunner().invoke(cli, ["pool", *arguments], catch_exceptions=False)

    with pytest.raises(InputError, match='there is no ComputePool "trainin"; did you mean "train'):
        ask("show", "trainin", "-f", manifests)
    empty = tmp_path / "empty.yaml"
    empty.write_text(yaml.safe_dump(NODE))
    with pytest.raises(InputError, match="there is no ComputePool"):
        ask("list", "-f", str(empty))
