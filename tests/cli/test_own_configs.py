"""bayplan reads all that it ships: each manifest of ``configs``, from files and from clusters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from tests.paths import ROOT

from bayplan.api import KINDS
from bayplan.api.objects import decode_json, kind_of
from bayplan.cli.simulate import command
from bayplan.cluster.manifests import load_manifests

CONFIGS = ROOT / "configs"
TEMPLATES = CONFIGS / "chart"
"""Manifests only once Helm has rendered them (tests/chart)."""
MANIFESTS = sorted(path for path in CONFIGS.rglob("*.yaml") if TEMPLATES not in path.parents)
SCHEDULER = CONFIGS / "deploy" / "scheduler.yaml"


def contents(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a file."""
    yield from filter(None, yaml.safe_load_all(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_every_file_is_read_as_a_manifest_and_as_a_cluster_sends_it(path: Path) -> None:
    # A change to a node is read beside the node.
    assert load_manifests([str(path.parent if path.name == "failure.yaml" else path)])
    for content in contents(path):
        group, _, version = content["apiVersion"].rpartition("/")
        kind = KINDS.get((group, content["kind"]))
        if kind is not None:
            made = decode_json(kind, version, json.dumps(content).encode())
            assert kind_of(made) is kind


@pytest.mark.parametrize("path", [SCHEDULER, SCHEDULER.with_name("pools.yaml")])
def test_what_installs_bayplan_can_be_simulated(path: Path) -> None:
    result = CliRunner().invoke(command, ["-f", str(path), "--until", "1s"])
    assert result.exit_code == 0, result.output


def test_a_quota_of_some_pods_has_its_scope_selector() -> None:
    (quota,) = (one for one in contents(SCHEDULER) if one["kind"] == "ResourceQuota")
    made = decode_json(KINDS["", "ResourceQuota"], "v1", json.dumps(quota).encode())
    assert made.spec.scope_selector == quota["spec"]["scopeSelector"]  # type: ignore[attr-defined]
