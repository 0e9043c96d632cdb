"""The examples of the kinds of workloads are what their own definitions accept."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.controlplane.installation import path_of, upstream_definitions
from tests.controlplane.live_cluster import LiveCluster
from tests.paths import ROOT

from bayplan.api import KINDS

EXAMPLES = sorted(
    path for path in (ROOT / "configs" / "examples" / "kinds").iterdir() if path.stem != "nodes"
)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_accepted_by_the_definition_of_its_kind(
    path: Path, real: LiveCluster
) -> None:
    content = yaml.safe_load(path.read_text())
    group = content["apiVersion"].rpartition("/")[0]
    if "." in group:
        kind = KINDS[group, content["kind"]]
        if f"{kind.plural}.{group}" not in upstream_definitions():
            pytest.skip("no definition of the kind's own project on this machine")
    strict = {"dryRun": "All", "fieldValidation": "Strict"}
    answer = real.client.post(path_of(content, name=False), content, **strict)
    assert answer.code == 201, answer.text
