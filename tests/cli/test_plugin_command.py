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


TESTED = """\
from bayplan import Args, Plugin, hookimpl


class Anywhere(Plugin[Args]):
    @hookimpl
    def filter_node(self):
        return None
"""
TEST = """\
from anywhere import Anywhere


def test_is_a_plugin():
    assert Anywhere
"""


def test_a_folder_may_hold_plugins_and_their_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pd").mkdir()
    Path("pd/anywhere.py").write_text(TESTED)
    Path("pd/test_anywhere.py").write_text(TEST)
    Path("pd/anywhere_test.py").write_text(TEST)
    Path("pd/conftest.py").write_text("import not_installed_here\n")
    Path("pf.yaml").write_text(PROFILE.replace("Gate", "Anywhere"))
    Path("w.yaml").write_text(CLUSTER)
    for arguments, said in (
        (["simulate", "-f", "w.yaml", "--config", "pf.yaml", "--plugins-dir", "pd"], "1 of 1 pods"),
        (["plugin", "list", "--plugins-dir", "pd"], "Anywhere"),
        (["plugin", "check", "pd"], "Anywhere: ok"),
    ):
        answer = CliRunner().invoke(cli, arguments)
        assert answer.exit_code == 0, answer.output
        assert said in answer.output


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import not_installed_here\n", "cannot be imported: ModuleNotFoundError"),
        (TESTED.replace("filter_node(self)", "filter_node(self, node, pods)"), "pods"),
        (TESTED.replace("return None", "return 7"), "filter_node"),
    ],
)
def test_a_broken_file_of_a_folder_is_named(source: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "anywhere.py").write_text(TESTED)
    (tmp_path / "broken.py").write_text(source)
    answer = CliRunner().invoke(cli, ["plugin", "check", str(tmp_path)])
    assert isinstance(answer.exception, InputError)
    assert str(tmp_path / "broken.py") in str(answer.exception)
    assert problem in str(answer.exception)


def test_a_plugin_that_reads_more_than_it_says_is_refused(tmp_path: Path) -> None:
    source = TESTED.replace("    @hookimpl", "    by_spec = True\n\n    @hookimpl")
    reads = source.replace(
        "(self):\n        return None", "(self, pod):\n        pod.labels.get('a')"
    )
    path = tmp_path / "anywhere.py"
    path.write_text(reads)
    answer = CliRunner().invoke(cli, ["plugin", "check", str(path)])
    assert isinstance(answer.exception, InputError)
    assert 'filter_node reads the label "a" of a pod, but by_spec' in str(answer.exception)
