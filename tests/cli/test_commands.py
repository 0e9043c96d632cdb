"""The commands, as far as the scenario and document tests do not run them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.page.reading import data_of
from tests.paths import ROOT

from bayplan.cli import cli

EXAMPLE = str(ROOT / "configs/examples/prefer-gather")
PENDING = str(ROOT / "configs/examples/pending")


def run(*arguments: str, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(cli, arguments, input=stdin)
    assert result.exit_code == 0, result.output
    return result


def test_json_holds_every_part_of_the_answer() -> None:
    answer = json.loads(run("simulate", "-f", PENDING, "-o", "json").stdout)
    assert set(answer) == {
        "held",
        "placements",
        "devices",
        "annotations",
        "notes",
        "pending",
        "refused",
        "evicted",
        "timeline",
        "stats",
    }
    assert answer["placements"] == {"default/notebook": "node-4"}
    assert answer["pending"]["default/training-0"]["nominatedNode"] is None
    kinds = {entry["kind"] for entry in answer["timeline"]}
    assert kinds == {"Unschedulable"}
    assert set(answer["stats"]) == {
        "pods",
        "bound",
        "held",
        "pending",
        "seconds",
        "podsPerSecond",
        "cycles",
    }


def test_manifests_come_from_standard_input() -> None:
    text = "\n---\n".join(path.read_text() for path in sorted(Path(EXAMPLE).iterdir()))
    answer = json.loads(run("simulate", "-f", "-", "-o", "json", stdin=text).stdout)
    assert answer["stats"]["bound"] == 4


def test_ignored_kinds_are_counted() -> None:
    role = str(ROOT / "configs/deploy/rbac.yaml")
    result = run("simulate", "-f", EXAMPLE, "-f", role)
    assert "of kind ClusterRole (rbac.authorization.k8s.io/v1) ignored" in result.stderr


def test_the_report_is_one_page_with_everything(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    run("simulate", "-f", PENDING, "--report", str(page))
    data = data_of(page.read_text())
    assert "default/training-0" in data["pods"]
    assert data["details"]["default/training"]["domains"][0]["name"] == "RackLayer/rack-a"


def test_trace_names_each_hook_of_one_pod() -> None:
    result = run("simulate", "-f", EXAMPLE, "--trace", "default/training-pod-1")
    assert "trace default/training-pod-1: 12 nodes" in result.stderr
    assert "NodeResourcesFit" in result.stderr
    assert "training-pod-2:" not in result.stderr


def test_tracing_a_pod_changes_no_placement() -> None:
    plain = json.loads(run("simulate", "-f", EXAMPLE, "-o", "json").stdout)
    traced = run("simulate", "-f", EXAMPLE, "-o", "json", "--trace", "default/training-pod-1")
    assert json.loads(traced.stdout)["placements"] == plain["placements"]


def test_explain_shows_the_finalists_of_a_plain_pod(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"
        "spec: {containers: [{name: c, resources: {requests: {cpu: 1}}}]}\n"
    )
    text = run("explain", "p", "-f", EXAMPLE, "-f", str(tmp_path)).stdout
    # The gang takes node-5 to node-8; node-0 is the first of the others.
    assert "default/p is on node-0" in text
    assert "→ node-0" in text
    assert "NodeResourcesFit removed 4, 8 left" in text


def test_explain_of_a_pod_that_was_placed_by_hand() -> None:
    text = run("explain", "notebook", "-f", PENDING).stdout
    assert "did not decide it" in text


@pytest.mark.parametrize(
    ("spec", "advice"),
    [
        ("{nodeName: '', nodeSelector: {disk: ssd}}", "if its label disk was ssd (it has none)"),
        ("{resources: {cpu: 7}}", "would fit if 6 CPUs were freed on n"),
        ("{resources: {cpu: 64}}", "no node offers 64 CPUs; the largest offers 8 CPUs"),
        ("{resources: {example.com/fpga: 1}}", "cannot fit: no node offers example.com/fpga"),
    ],
)
def test_explain_shows_the_smallest_change_that_helps(
    tmp_path: Path, spec: str, advice: str
) -> None:
    import yaml

    fields = yaml.safe_load(spec)
    requests = fields.pop("resources", {"cpu": 1})
    content = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": requests}}], **fields},
    }
    busy = {
        **content,
        "metadata": {"name": "busy"},
        "spec": {
            "nodeName": "n",
            "containers": [{"name": "c", "resources": {"requests": {"cpu": 7}}}],
        },
    }
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n"},
        "status": {"allocatable": {"cpu": 8, "memory": "32Gi", "pods": 110}},
    }
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all([node, busy, content]))
    assert advice in run("explain", "p", "-f", str(tmp_path)).stdout


def test_plugin_list_shows_every_plugin_with_its_hooks() -> None:
    listed = json.loads(run("plugin", "list", "-o", "json").stdout)
    found = {plugin["name"]: plugin for plugin in listed}
    assert "filter" in found["NodeResourcesFit"]["hooks"]
    assert "scoringStrategy" in found["NodeResourcesFit"]["args"]
    assert found["NodeResourcesFit"]["schema"]["additionalProperties"] is False
    assert all("problem" not in plugin for plugin in listed)


def test_a_new_plugin_passes_its_tests_and_the_check(tmp_path: Path) -> None:
    run("plugin", "new", "SpreadByRack", "--into", str(tmp_path))
    folder = tmp_path / "spread-by-rack"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
    assert "SpreadByRack: ok" in run("plugin", "check", str(folder / "spread_by_rack.py")).stdout


def test_bench_prints_figures_and_the_size_of_its_input() -> None:
    answer = json.loads(run("bench", "basic", "--nodes", "20", "--pods", "50", "-o", "json").stdout)
    assert answer["name"] == "basic"
    assert answer["input"] == {"nodes": 20, "pods": 50}
    assert answer["figures"]["bound"] == 50
    assert answer["figures"]["podsPerSecond"] > 0


@pytest.mark.parametrize("name", ["affinity", "gang"])
def test_every_benchmark_places_all_of_its_pods(name: str) -> None:
    answer = json.loads(run("bench", name, "--nodes", "200", "--pods", "100", "-o", "json").stdout)
    assert answer["figures"]["bound"] == 100


def test_help_starts_without_importing_the_scheduler() -> None:
    code = (
        "import sys; from bayplan.cli import cli; "
        "cli(['--help'], standalone_mode=False); "
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_what_a_plugin_prints_stays_out_of_the_answer(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "from bayplan import Args, Plugin, hookimpl\n"
        "class Loud(Plugin[Args]):\n"
        '    """Prints."""\n'
        "    @hookimpl\n"
        "    def filter_node(self, pod):\n"
        "        print('hello from', pod.name)\n"
    )
    (tmp_path / "profile.yaml").write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        "profiles:\n- schedulerName: koord-scheduler\n"
        "  plugins: {multiPoint: {enabled: [{name: Loud}]}}\n"
    )
    profile = str(tmp_path / "profile.yaml")
    answer = run(
        "simulate", "-f", EXAMPLE, "--config", profile, "--plugins-dir", str(tmp_path), "-o", "json"
    )
    assert json.loads(answer.stdout)["stats"]["bound"] == 4
    assert "hello from training-pod-0" in answer.stderr


def test_a_command_with_a_new_name_runs_under_its_former_one() -> None:
    result = CliRunner().invoke(cli, ["pools", "--help"])
    assert result.exit_code == 0
    assert result.stderr == '"bayplan pools" is called "bayplan pool-controller" now\n'
    assert "pool-controller [OPTIONS]" in result.stdout
    assert "  pools " not in CliRunner().invoke(cli, ["--help"]).output
