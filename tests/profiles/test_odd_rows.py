"""Rows of users' own kinds with odd paths, and objects that are not as the paths say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.gangs.test_owned import add, owned_by

from bayplan.errors import InputError
from bayplan.profiles.loading import load_profiles
from bayplan.testing import Cluster, make_node, make_object, make_pod

PATHS = ("spec", "spec..x", "a[b].c", "status.conditions[Ready]", "метрика", "./x", "x" * 500)
TEMPLATE = {"spec": {"containers": [{"name": "c"}]}}
SPECS: tuple[dict[str, Any], ...] = (
    {},
    {"template": None},
    {"template": []},
    {"template": {"spec": 5}},
    {"template": TEMPLATE, "workers": True},
    {"template": TEMPLATE, "workers": 10**30},
    {"template": TEMPLATE, "workers": {"a": 1}},
)


@pytest.mark.parametrize("field", ["count", "template", "suspend", "units", "domain", "minimum"])
@pytest.mark.parametrize("path", PATHS)
def test_whatever_a_row_says_the_others_get_nodes(path: str, field: str, tmp_path: Path) -> None:
    pods: dict[str, Any] = {"role": "w", "template": "spec.template", "count": ["spec.workers"]}
    row: dict[str, Any] = {"group": "odd.example.com", "kind": "Odd", "version": "v1"}
    if field in pods:
        pods[field] = [path] if field == "count" else path
    else:
        row[field] = [path] if field == "minimum" else path
    file = tmp_path / "profile.yaml"
    head = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    file.write_text(yaml.safe_dump({**head, "workloadKinds": [{**row, "pods": [pods]}]}))
    try:
        profiles = load_profiles(file)
    except InputError:
        return
    for spec in SPECS:
        made = Cluster([make_node("n")], profiles)
        meta = {"name": "t", "labels": {"kueue.x-k8s.io/queue-name": "q"}}
        content = {"apiVersion": "odd.example.com/v1", "kind": "Odd", "metadata": meta}
        owner = add(made, make_object({**content, "spec": spec}))
        made.add(owned_by(make_pod("p"), owner), make_pod("other"))
        assert "other" in made.advance(3)
        made.remove("p")
        assert "other" in made.advance(3)
