"""bayplan simulate: what if there were more nodes, or a node failed, returned or was cordoned."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.page.reading import data_of
from tests.paths import ROOT

from bayplan.cli import cli, main

NODE = """
apiVersion: v1
kind: Node
metadata: {name: %s}
status: {allocatable: {cpu: 64, memory: 512Gi, pods: 110, nvidia.com/gpu: 8}}
"""
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: %s}
spec:
  template:
    metadata: {annotations: {bayplan.dev/duration: 6h}}
    spec:
      restartPolicy: Never
      containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 8}}}]
"""
AT = """
apiVersion: v1
kind: Node
metadata: {name: %s, annotations: {bayplan.dev/at: %s}}
%s
"""
READY = 'status: {conditions: [{type: Ready, status: "%s"}]}'
HOUR = 3600
GPU = "nvidia.com/gpu"


def write(path: Path, *documents: str) -> str:
    path.write_text("---\n".join(documents))
    return str(path)


def simulated(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli, ["simulate", *arguments, "-o", "json"], catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def bound(found: dict[str, Any], job: str) -> list[tuple[float, str]]:
    """Return when and on which nodes the pods of a job were bound."""
    return [
        (one["at"], one["node"])
        for one in found["timeline"]
        if one["kind"] == "Bound" and one["pod"].startswith(f"default/{job}-")
    ]


# A second input beside the first ------------------------------------------------------------


@pytest.mark.parametrize("as_folder", [False, True], ids=["file", "folder"])
def test_more_nodes_are_a_second_column(tmp_path: Path, as_folder: bool) -> None:
    given = write(tmp_path / "all.yaml", NODE % "a", JOB % "one", JOB % "two")
    (tmp_path / "more").mkdir()
    file = write(tmp_path / "more/plus.yaml", NODE % "b")
    added = str(tmp_path / "more") if as_folder else file
    found = simulated("-f", given, "--compare", added, "--until", "13h")
    without, plus = found["policies"]
    assert (without["policy"], plus["policy"]) == ("default profile", f"with {added}")
    assert (without["wait"]["max"], plus["wait"]["max"]) == (6 * HOUR, 0)
    (difference,) = found["differences"]
    (change,) = difference["changes"]
    assert (change["job"], change["waitsLongerBy"]) == ("default/two", -6 * HOUR)
    assert (change["before"]["nodes"], change["after"]["nodes"]) == ({"a": 1}, {"b": 1})


def test_more_nodes_are_compared_under_the_first_profile(tmp_path: Path) -> None:
    given = write(tmp_path / "all.yaml", NODE % "a", JOB % "one")
    added = write(tmp_path / "plus.yaml", NODE % "b")
    first, second = (
        write(tmp_path / name, "kind: KubeSchedulerConfiguration\n")
        for name in ("1.yaml", "2.yaml")
    )
    base = ("-f", given, "--compare", added, "--compare", second)
    for arguments, names in (
        ((*base, "--config", first), [first, second, f"with {added}"]),
        ((*base, "--compare", first), [second, first, f"with {added}"]),
        (base, ["default profile", second, f"with {added}"]),
    ):
        found = simulated(*arguments)
        assert [one["policy"] for one in found["policies"]] == names
        assert {one["against"] for one in found["differences"]} == {names[0]}


def test_the_page_of_a_comparison_shows_more_nodes(tmp_path: Path) -> None:
    given = write(tmp_path / "all.yaml", NODE % "a", JOB % "one", JOB % "two")
    added = write(tmp_path / "plus.yaml", NODE % "b")
    page = tmp_path / "page.html"
    simulated("-f", given, "--compare", added, "--report", str(page))
    policies = data_of(page.read_text())["comparison"]["policies"]
    assert [one["policy"] for one in policies] == ["default profile", f"with {added}"]


# Nodes that change at a time ----------------------------------------------------------------


@pytest.mark.parametrize(("status", "ends"), [("Unknown", 30), ("False", 0)])
def test_a_node_fails_and_returns(tmp_path: Path, status: str, ends: int) -> None:
    given = write(tmp_path / "all.yaml", NODE % "a", JOB % "train")
    # The order of the documents does not matter.
    events = write(
        tmp_path / "fail.yaml", AT % ("a", "3h", READY % "True"), AT % ("a", "1h", READY % status)
    )
    found = simulated("-f", given, "-f", events)
    # A silent kubelet ends its old pods once it is back.
    assert bound(found, "train") == [(0, "a"), (3 * HOUR + ends, "a")]
    (evicted,) = (one for one in found["timeline"] if one["kind"] == "TaintManagerEviction")
    assert evicted["at"] == HOUR + 300
    assert found["stats"]["pending"] == 0


def test_what_a_failure_costs_is_compared(tmp_path: Path) -> None:
    given = write(tmp_path / "all.yaml", NODE % "a", JOB % "train")
    events = write(
        tmp_path / "fail.yaml",
        AT % ("a", "1h", READY % "Unknown"),
        AT % ("a", "3h", READY % "True"),
    )
    found = simulated("-f", given, "--compare", events)
    without, failed = found["policies"]
    assert (without["evicted"], failed["evicted"]) == (0, 1)
    assert failed["lost"][GPU] == 8 * (HOUR + 300)
    # A node that failed is not free: its cores are so only while the old pod ends, once it is back.
    assert failed["idleWhileWaiting"]["cpu"] == 64_000 * 30
    (change,) = found["differences"][0]["changes"]
    assert change["after"]["evicted"] == 1
    assert change["after"]["nodes"] == {"a": 1}


def test_a_node_is_cordoned_uncordoned_and_another_one_added(tmp_path: Path) -> None:
    given = write(tmp_path / "all.yaml", NODE % "a", JOB % "one", JOB % "two")
    added = NODE.replace("{name: %s}", "{name: b, annotations: {bayplan.dev/at: 90m}}")
    events = write(
        tmp_path / "events.yaml",
        AT % ("a", "0s", "spec: {unschedulable: true}"),
        AT % ("a", "2h", "spec: {unschedulable: false}"),
        added,
    )
    found = simulated("-f", given, "-f", events)
    assert [*bound(found, "one"), *bound(found, "two")] == [(1.5 * HOUR, "b"), (2 * HOUR, "a")]


def test_a_node_that_is_added_can_fail(tmp_path: Path) -> None:
    given = write(tmp_path / "all.yaml", NODE % "a", JOB % "one", JOB % "two")
    added = NODE.replace("{name: %s}", "{name: b, annotations: {bayplan.dev/at: 1h}}")
    events = write(tmp_path / "events.yaml", AT % ("b", "2h", READY % "False"), added)
    found = simulated("-f", given, "-f", events)
    bound_at = sorted([*bound(found, "one"), *bound(found, "two")])
    assert bound_at == [(0, "a"), (HOUR, "b"), (6 * HOUR, "a")]


def test_a_node_as_kubectl_writes_it_can_change(tmp_path: Path) -> None:
    given = write(tmp_path / "all.yaml", NODE % "a", JOB % "one")
    head = "metadata: {name: a, resourceVersion: '7', uid: u, annotations: {bayplan.dev/at: 1h}}"
    event = f"apiVersion: v1\nkind: Node\n{head}\n{READY % 'False'}\n"
    found = simulated("-f", given, "-f", write(tmp_path / "event.yaml", event))
    assert "TaintManagerEviction" in {one["kind"] for one in found["timeline"]}


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (
            AT % ("gpu-01", "1h", READY % "False"),
            '3:18 (document 1): Node gpu-01: $.metadata.name: there is no Node "gpu-01" at that '
            'time; did you mean "gpu-001"?',
        ),
        (
            AT % ("late", "1h", READY % "False"),
            '3:18 (document 1): Node late: $.metadata.name: there is no Node "late" at that time; '
            "a Node that is added needs status.allocatable",
        ),
        (
            AT % ("gpu-001", "soon", READY % "False"),
            '3:57 (document 1): Node gpu-001: $.metadata.annotations["bayplan.dev/at"]: expected a '
            'duration such as "90s" or "1h30m", got "soon"',
        ),
        (
            JOB.replace("{name: %s}", "{name: j, annotations: {bayplan.dev/at: 1h}}"),
            '3:51 (document 1): Job j: $.metadata.annotations["bayplan.dev/at"]: only a Node '
            "changes at a time; a Job is there from the start, or from its creationTimestamp",
        ),
        (
            AT % ("gpu-001", "1h", "status: {allocatable: {cpu: many}}"),
            '4:29 (document 1): Node gpu-001: $.status.allocatable["cpu"]: expected a quantity '
            'such as "8", "500m", "1.5Gi" or "1e3", got "many"',
        ),
        (
            AT % ("gpu-001", "1h", "$patch: merged"),
            "1:1 (document 1): Node gpu-001: $: unknown patch type: merged in map: "
            "map[$patch:merged]",
        ),
    ],
    ids=["unknown node", "empty node", "no time", "no node", "no quantity", "no directive"],
)
def test_an_event_that_cannot_be_used_is_refused_with_its_place(
    event: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "all.yaml", NODE % "gpu-001")
    write(tmp_path / "event.yaml", event.lstrip())
    arguments = ["bayplan", "simulate", "-f", "all.yaml", "-f", "event.yaml"]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    assert (ended.value.code, captured.out) == (2, "")
    assert message in captured.err


def test_a_served_cluster_refuses_events(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    example = str(ROOT / "configs/examples/node-failure")
    kubeconfig = str(tmp_path / "kubeconfig")
    arguments = ["bayplan", "cluster", "up", "-f", example, "--kubeconfig", kubeconfig]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "is for bayplan simulate" in capsys.readouterr().err
