"""bayplan plugin, and plugins that wait, as their authors meet them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from click.testing import CliRunner

from bayplan.cli import cli
from bayplan.errors import InputError


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("spread-by-rack", "is not a plugin name"),
        ("NodeName", "a plugin of that name is installed"),
        ("HeadReservation", "a plugin of that name is installed"),
        ("Coscheduling", 'in profiles it means "Gang"'),
        ("Json", 'its module would hide "json" of Python\'s library'),
        ("Random", 'its module would hide "random" of Python\'s library'),
        ("Numpy", 'its module would hide the installed package "numpy"'),
        ("Bayplan", 'its module would hide the installed package "bayplan"'),
        ("BayplanPlugins", 'its module would hide the installed package "bayplan_plugins"'),
        ("Class", '"class" is a keyword of Python'),
        ("True", '"True" is a keyword of Python'),
        ("Reads", "plugins import bayplan.Reads"),
        ("Exception", "Python has a class of that name"),
    ],
)
def test_a_name_in_use_is_refused(name: str, why: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["plugin", "new", name, "--into", str(tmp_path)])
    # The command's main turns this into a message and exit status 2.
    assert isinstance(result.exception, InputError)
    assert f'"{name}"' in str(result.exception)
    assert why in str(result.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["SpreadByRack", "Match", "GPUFirst", "X"])
def test_any_other_name_will_do(name: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["plugin", "new", name, "--into", str(tmp_path)])
    assert result.exit_code == 0, result.output
    (folder,) = tmp_path.iterdir()
    sources = [path.read_text() for path in folder.rglob("*.py")]
    assert any(f"class {name}(" in source for source in sources)
    assert all(ast.parse(source) for source in sources)


GATE = """\
from bayplan import Args, Plugin, Wait, hookimpl


class Gate(Plugin[Args]):
    @hookimpl
    def permit(self):
        return Wait(20)
"""
PROFILE = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  plugins: {multiPoint: {enabled: [{name: Gate}]}}
"""
CLUSTER = """\
apiVersion: v1
kind: Node
metadata: {name: n0}
status: {allocatable: {cpu: 8, memory: 8Gi, pods: 10}}
---
apiVersion: v1
kind: Pod
metadata: {name: px}
spec: {containers: [{name: c, image: x, resources: {requests: {cpu: 1}}}]}
"""


def test_a_pod_that_waits_at_permit_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pd").mkdir()
    Path("pd/gate.py").write_text(GATE)
    Path("pf.yaml").write_text(PROFILE)
    Path("w.yaml").write_text(CLUSTER)
    arguments = ["-f", "w.yaml", "--config", "pf.yaml", "--plugins-dir", "pd"]
    waits = 'Waiting on permit from plugin "Gate" for at most 20s; assumed on node n0'
    told = CliRunner().invoke(cli, ["explain", "default/px", *arguments, "--until", "5s"])
    assert told.exit_code == 0, told.output
    assert waits in told.output
    shown = CliRunner().invoke(cli, ["simulate", *arguments, "--until", "5s"])
    assert waits in shown.output
    late = CliRunner().invoke(cli, ["simulate", *arguments, "--until", "20s"])
    assert "rejected due to timeout after waiting 20s at plugin Gate" in late.output
