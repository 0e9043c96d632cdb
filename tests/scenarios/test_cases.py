"""Worked cases of each ecosystem, in its own manifests, with the expected result and why.

``expected.json`` of a case may hold: ``placements`` (pod: node), ``per_node`` and ``per_prefix``
(how many pods each node, or each node whose name starts so, takes), ``bound`` (how many pods of a
name prefix), ``same_domain`` with ``domains`` (pods that share one, by node names), ``pending``
(pod: parts of its message), ``pending_any`` (parts of every pending message), ``told`` (parts of
what a pod was told on the way), ``gpus`` (pod: indices of its GPUs), ``gpus_of_every_pod``,
``annotations`` (pod: what it is told of its GPUs, by name), ``evicted``. ``profile.yaml`` is used
where it lies beside.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bayplan.api.gpus import GPU_RESOURCES
from bayplan.cli import cli

CASES = Path(__file__).parent / "cases"


def simulate(folder: Path) -> dict[str, Any]:
    arguments = ["simulate", "-f", str(folder / "manifests.yaml"), "-o", "json"]
    if (folder / "profile.yaml").exists():
        arguments += ["--config", str(folder / "profile.yaml")]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@pytest.mark.parametrize("name", sorted(path.name for path in CASES.iterdir()))
def test_the_case_ends_as_it_should(name: str) -> None:
    folder = CASES / name
    expected = json.loads((folder / "expected.json").read_text())
    answer = simulate(folder)
    before = {
        line.split()[-1]
        for line in (folder / "manifests.yaml").read_text().splitlines()
        if "nodeName" in line
    }
    placed = {key.removeprefix("default/"): node for key, node in answer["placements"].items()}
    pending = {
        key.removeprefix("default/"): entry["message"] for key, entry in answer["pending"].items()
    }
    given = {key: placed.get(key) for key in expected.get("placements", {})}
    assert given == expected.get("placements", {}), pending
    for prefix, count in expected.get("bound", {}).items():
        assert sum(pod.startswith(prefix) for pod in placed) == count, pending
    if "per_node" in expected:
        assert Counter(placed.values()) == expected["per_node"], pending
    for prefix, count in expected.get("per_prefix", {}).items():
        assert sum(node.startswith(prefix) for node in placed.values()) == count, pending
    home = {node: name for name, nodes in expected.get("domains", {}).items() for node in nodes}
    for pods in expected.get("same_domain", []):
        assert len({home[placed[pod]] for pod in pods if pod in placed}) == 1, placed
    for pod, parts in expected.get("pending", {}).items():
        assert pod not in placed
        for part in parts:
            assert part in pending[pod]
    for part in expected.get("pending_any", []):
        assert pending
        for message in pending.values():
            assert part in message
    gpus = {
        key.removeprefix("default/"): [int(one["device"].removeprefix("gpu-")) for one in devices]
        for key, devices in answer["devices"].items()
        if devices[0]["request"] in GPU_RESOURCES
    }
    assert {pod: gpus.get(pod) for pod in expected.get("gpus", {})} == expected.get("gpus", {})
    for pod, told_of in expected.get("annotations", {}).items():
        written = answer["annotations"][f"default/{pod}"]
        assert {name: written.get(name) for name in told_of} == told_of
    if "gpus_of_every_pod" in expected:
        assert set(map(tuple, gpus.values())) == {tuple(expected["gpus_of_every_pod"])}
    for pod, parts in expected.get("told", {}).items():
        told = " ".join(e["message"] for e in answer["timeline"] if e["pod"] == f"default/{pod}")
        for part in parts:
            assert part in told
    if "evicted" in expected or not before:
        evicted = sorted(entry["pod"].removeprefix("default/") for entry in answer["evicted"])
        assert evicted == sorted(expected.get("evicted", []))
    assert expected["why"]
