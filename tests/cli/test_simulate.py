"""bayplan simulate: objects that are refused, reports that cannot be written, exit statuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.page.reading import data_of

from bayplan.cli import main

NODE = """
apiVersion: v1
kind: Node
metadata: {name: n}
status: {allocatable: {cpu: 8, memory: 8Gi, pods: 10}}
---
apiVersion: v1
kind: Pod
metadata: {name: good}
spec: {containers: [{name: c}]}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: bad}
spec: {priorityClassName: hihg, containers: [{name: c}]}
"""
CLASS = """
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 1000
"""
PENDING = """
apiVersion: v1
kind: Pod
metadata: {name: large}
spec: {containers: [{name: c, resources: {requests: {cpu: 64}}}]}
"""
TEMPLATE = (
    "{metadata: {labels: {a: b}}, spec: {priorityClassName: none, restartPolicy: Never, "
    "containers: [{name: c}]}}"
)
SELECTOR = "replicas: 2, selector: {matchLabels: {a: b}}"


@pytest.fixture
def bayplan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run a command in an empty folder: exit status, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["bayplan", *arguments])
        status: object = 0
        try:
            main()
        except SystemExit as exc:
            status = exc.code or 0
        out, err = capsys.readouterr()
        assert isinstance(status, int)
        return status, out, err

    return run


def file(*documents: str) -> str:
    Path("all.yaml").write_text("---\n".join(documents))
    return "all.yaml"


# Objects that an API server would refuse ---------------------------------------------------


def test_a_pod_of_an_unknown_priority_class_does_not_end_the_simulation(bayplan):
    status, out, _ = bayplan("simulate", "-f", file(NODE, CLASS, POD))
    assert status == 0
    assert "1 of 1 pods have a node" in out
    lines = out.splitlines()
    text = 'no PriorityClass with name "hihg" was found; did you mean "high"?'
    assert lines[lines.index("  Pod default/bad") + 1].strip() == text


def test_json_names_what_is_refused(bayplan):
    _, out, _ = bayplan("simulate", "-f", file(NODE, POD), "-o", "json")
    answer = json.loads(out)
    assert answer["placements"] == {"default/good": "n"}
    assert answer["refused"] == {"Pod default/bad": 'no PriorityClass with name "hihg" was found'}


@pytest.mark.parametrize("command", [["explain", "bad"], ["simulate", "--trace", "default/bad"]])
def test_a_question_about_a_refused_pod_is_answered_with_the_reason(bayplan, command):
    status, out, err = bayplan(*command, "-f", file(NODE, POD))
    assert (status, out) == (2, "")
    assert "default/bad: an API server refuses it: no PriorityClass" in err


@pytest.mark.parametrize(
    ("api_version", "kind", "spec"),
    [
        ("batch/v1", "Job", f"parallelism: 2, template: {TEMPLATE}"),
        ("apps/v1", "ReplicaSet", f"{SELECTOR}, template: {TEMPLATE}"),
        ("apps/v1", "StatefulSet", f"serviceName: s, {SELECTOR}, template: {TEMPLATE}"),
        ("apps/v1", "Deployment", f"{SELECTOR}, template: {TEMPLATE}"),
        ("batch.volcano.sh/v1alpha1", "Job", f"tasks: [{{replicas: 2, template: {TEMPLATE}}}]"),
    ],
)
def test_a_workload_whose_pods_are_refused_is_named_once(bayplan, api_version, kind, spec):
    workload = f"apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: w}}\nspec: {{{spec}}}\n"
    status, out, _ = bayplan("simulate", "-f", file(workload, NODE), "-o", "json")
    answer = json.loads(out)
    assert status == 0
    assert answer["placements"] == {"default/good": "n"}
    assert answer["refused"] == {
        f"{kind} default/w": 'no PriorityClass with name "none" was found',
    }


def test_a_bad_duration_of_a_pod_that_a_controller_made_is_a_note(bayplan):
    template = (
        "{metadata: {annotations: {bayplan.dev/duration: often}}, spec: {containers: [{name: c}]}}"
    )
    job = (
        "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: v}\n"
        f"spec: {{tasks: [{{replicas: 1, template: {template}}}]}}\n"
    )
    status, out, err = bayplan("simulate", "-f", file(NODE, job))
    assert status == 0
    assert "2 of 2 pods have a node" in out
    assert err.startswith("note: Pod default/v-default0-0: annotation bayplan.dev/duration: ")


@pytest.mark.parametrize(
    "spec",
    [
        "runtimeClassName: none",
        "serviceAccountName: nobody",
        "imagePullSecrets: [{name: none}]",
        "volumes: [{name: v, persistentVolumeClaim: {claimName: none}}]",
        "resourceClaims: [{name: r, resourceClaimName: none}]",
        "resourceClaims: [{name: r, resourceClaimTemplateName: none}]",
    ],
)
def test_a_pod_that_refers_to_nothing_leaves_the_others_alone(bayplan, spec):
    other = POD.replace("priorityClassName: hihg", spec)
    status, out, _ = bayplan("simulate", "-f", file(other, NODE), "-o", "json")
    assert status == 0
    assert json.loads(out)["placements"]["default/good"] == "n"


def test_a_pod_on_a_node_that_does_not_exist_is_shown(bayplan):
    lost = POD.replace("priorityClassName: hihg", "nodeName: ghost")
    status, out, _ = bayplan("simulate", "-f", file(NODE, lost))
    assert status == 0
    assert "ghost (no such node)  bad" in out


# Exit statuses -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("documents", "expected"), [((NODE,), 0), ((NODE, PENDING), 3), ((NODE, POD), 3)]
)
def test_fail_on_pending_changes_the_exit_status_and_nothing_else(bayplan, documents, expected):
    path = file(*documents)
    plain, table, _ = bayplan("simulate", "-f", path)
    status, out, err = bayplan("simulate", "-f", path, "--fail-on-pending")
    assert (plain, status, err) == (0, expected, "")
    assert out.splitlines()[0] == table.splitlines()[0]
    assert len(out.splitlines()) == len(table.splitlines())


# Reports and other files -------------------------------------------------------------------


def test_a_report_goes_to_standard_output(bayplan):
    status, out, err = bayplan("simulate", "-f", file(NODE, PENDING, POD), "--report", "-")
    assert (status, err) == (0, "")
    assert out.startswith("<!doctype html>")
    data = data_of(out)
    assert "default/large" in data["pods"]
    assert "Pod default/bad" in data["refused"]
    assert "pods have a node;" not in out
    assert not Path("-").exists()


def test_a_page_and_json_do_not_share_standard_output(bayplan):
    status, out, err = bayplan("simulate", "-f", file(NODE), "--report", "-", "-o", "json")
    assert (status, out) == (2, "")
    assert "--report -" in err


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (["simulate", "-f", "all.yaml", "--report"], "1 of 1 pods have a node"),
        (["topology", "show", "--machine", "dgx-h100", "--svg"], "GPU7"),
    ],
)
def test_a_file_that_cannot_be_written_does_not_lose_the_answer(bayplan, command, answer):
    file(NODE)
    status, out, err = bayplan(*command, "nowhere/page")
    assert status == 2
    assert answer in out
    assert err.startswith("bayplan: ")
    assert "nowhere/page: No such file or directory" in err


def test_a_snapshot_that_cannot_be_written_is_refused_before_the_cluster_is_read(bayplan):
    status, _, err = bayplan("snapshot", "--kubeconfig", "none", "-o", "nowhere/cluster.zip")
    assert (status, err) == (2, "bayplan: nowhere: there is no such folder\n")


@pytest.mark.parametrize("option", ["--token-file", "--tls-cert-file", "--tls-private-key-file"])
def test_a_file_of_the_page_that_is_missing_is_refused_at_the_start(bayplan, option):
    files = {"--tls-cert-file": "cert.pem", "--tls-private-key-file": "key.pem", option: "none"}
    for name in ("cert.pem", "key.pem"):
        Path(name).touch()
    given = [part for pair in files.items() for part in pair]
    status, out, err = bayplan("run", "--config", "profile.yaml", *given)
    assert (status, out) == (2, "")
    assert err == f"bayplan: {option} none: No such file or directory\n"
