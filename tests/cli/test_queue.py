"""bayplan queue: on manifests, on a saved snapshot, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bayplan.api import kind_of
from bayplan.cli import cli
from bayplan.cluster.archive import write_archive
from bayplan.cluster.manifests import load_manifests
from bayplan.errors import InputError

QUEUES = """
apiVersion: v1
kind: Node
metadata: {name: n}
status: {allocatable: {cpu: 8, memory: 32Gi, pods: 110}}
---
apiVersion: scheduling.run.ai/v2
kind: Queue
metadata: {name: research}
spec: {resources: {cpu: {quota: 4000, limit: -1, overQuotaWeight: 1}}}
---
apiVersion: scheduling.run.ai/v2
kind: Queue
metadata: {name: language}
spec: {parentQueue: research, resources: {cpu: {quota: 4000, limit: 4000, overQuotaWeight: 1}}}
"""
POD = """---
apiVersion: v1
kind: Pod
metadata:
  name: %s
  labels: {kai.scheduler/queue: language}
  annotations: {%s}
spec: {containers: [{name: c, resources: {requests: {cpu: %s}}}]}
"""
CLOSED = """---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: closed}
status: {state: Closed}
---
apiVersion: v1
kind: Pod
metadata: {name: p, annotations: {scheduling.volcano.sh/queue-name: closed}}
spec: {containers: [{name: c}]}
"""
RESERVES = """
apiVersion: v1
kind: Node
metadata: {name: n}
status: {allocatable: {cpu: 8, memory: 32Gi, pods: 110}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: f}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: cq}
spec:
  namespaceSelector: {}
  admissionChecksStrategy: {admissionChecks: [{name: budget}]}
  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{name: f, resources: [{name: cpu, nominalQuota: 8}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: q, namespace: default}
spec: {clusterQueue: cq}
---
apiVersion: batch/v1
kind: Job
metadata: {name: checked, labels: {kueue.x-k8s.io/queue-name: q}}
spec:
  suspend: true
  template:
    spec: {restartPolicy: Never, containers: [{name: c, resources: {requests: {cpu: 6}}}]}
"""
CHECK = """---
apiVersion: kueue.x-k8s.io/v1beta2
kind: AdmissionCheck
metadata: {name: budget}
spec: {controllerName: example.com/budget}
status:
  conditions:
  - {type: Active, status: "%s", reason: R, message: m, lastTransitionTime: "2026-01-01T00:00:00Z"}
"""
ENDS = 'bayplan.dev/duration: "60s"'
JOBS = POD % ("short", ENDS, 3) + POD % ("next", "a: b", 2) + POD % ("large", "a: b", 16)


def bayplan(*arguments: object) -> Result:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    path = tmp_path / "all.yaml"
    path.write_text(QUEUES + JOBS)
    return path


def shown(*arguments: object) -> Any:
    return json.loads(bayplan("queue", *arguments, "-o", "json").stdout)


def test_a_list_has_every_queue_at_the_end_of_the_simulation(manifests: Path) -> None:
    content = shown("list", "-f", manifests)
    by_name = {one["name"]: one for one in content["queues"]}
    assert content["at"] >= 60
    assert by_name.keys() >= {"research", "language"}
    language = by_name["language"]
    assert language["parent"] == "research"
    assert (language["waiting"], language["running"]) == (1, 1)
    assert language["resources"]["cpu"]["used"] == 2000
    assert language["resources"]["cpu"]["limit"] == 4000
    assert language["resources"]["cpu"]["demand"] == 18000


def test_the_table_shows_amounts_in_units_that_people_use(manifests: Path) -> None:
    lines = bayplan("queue", "list", "-f", manifests).stdout.splitlines()
    (row,) = [line.split() for line in lines if line.startswith("language")]
    assert row[:2] == ["language", "Open"]
    assert row[3:5] == ["cpu", "2"]
    assert row[7] == "4"
    assert row[-2:] == ["1", "1"]


def test_a_tree_draws_children_below_their_parents(manifests: Path) -> None:
    out = bayplan("queue", "tree", "-f", manifests).stdout
    assert out.index("research") < out.index("└── language")
    assert "cpu 2/" in out


def test_one_queue_is_shown_with_its_line_and_its_ancestors(manifests: Path) -> None:
    content = shown("show", "language", "-f", manifests)
    assert [one["name"] for one in content["ancestors"]] == ["research"]
    (job,) = content["line"]
    assert (job["job"], job["place"], job["pods"]) == ("default/large", 1, 1)
    assert "cpu" in job["why"]
    assert [one["name"] for one in shown("show", "research", "-f", manifests)["children"]] == [
        "language"
    ]
    out = bayplan("queue", "show", "kai/language", "-f", manifests).stdout
    assert "Ancestors" in out
    assert "1. large" in out


def test_jobs_that_are_held_back_are_told_apart_from_the_line(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(QUEUES + CLOSED)
    content = shown("show", "closed", "-f", path)
    assert [(job["job"], job["place"]) for job in content["line"]] == [("default/p", 0)]
    assert "Closed" in content["line"][0]["why"]
    assert "held p" in bayplan("queue", "show", "closed", "-f", path).stdout


def test_what_is_wrong_or_odd_about_queues_is_said(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    odd = QUEUES.replace("parentQueue: research", "parentQueue: gone")
    more = QUEUES[QUEUES.rindex("---") :].replace("language", "vision")
    path.write_text(odd + more.replace("quota: 4000", "quota: 4500"))
    said = bayplan("queue", "list", "-f", path).stdout
    assert 'queue "language" cannot be used: its parent "gone" does not exist\n' in said
    note = "its children deserve 4.5 cpu together, more than its own 4"
    assert f'queue "research": {note}\n' in said
    assert f"  {note}\n" in bayplan("queue", "show", "research", "-f", path).stdout


def test_watched_manifests_print_a_table_at_each_change(manifests: Path) -> None:
    out = bayplan("queue", "list", "-w", "-f", manifests).stdout
    times = [line for line in out.splitlines() if line.startswith("at ")]
    assert times[0] == "at 0 s"
    assert times[-1] == "at 60 s"
    objects = bayplan("queue", "list", "-w", "-o", "json", "-f", manifests).stdout.splitlines()
    assert [json.loads(line)["at"] for line in objects] == [0, 60]


def test_a_saved_snapshot_is_read(manifests: Path, tmp_path: Path) -> None:
    found: dict[Any, list[Any]] = {}
    for obj in load_manifests([str(manifests)], in_full=True).contents or ():
        assert obj.obj is not None
        found.setdefault(kind_of(obj.obj), []).append(obj.obj)
    archive = tmp_path / "cluster.zip"
    write_archive(archive, found, {})
    assert {one["name"] for one in shown("list", "-f", archive)["queues"]} >= {"language"}


def test_an_unknown_queue_is_an_error_that_names_the_nearest(manifests: Path) -> None:
    with pytest.raises(InputError, match=r'there is no queue "langage"; did you mean "language"'):
        bayplan("queue", "show", "langage", "-f", manifests)


def test_a_cluster_without_queues_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(QUEUES.partition("---")[0])
    for arguments in (["list"], ["tree"], ["show", "a"], ["list", "-w"]):
        with pytest.raises(InputError, match="there is no queue: "):
            bayplan("queue", *arguments, "-f", path)


def test_manifests_and_a_cluster_exclude_each_other(manifests: Path) -> None:
    with pytest.raises(InputError, match="-f and --kubeconfig exclude each other"):
        bayplan("queue", "list", "-f", manifests, "--kubeconfig", "x")


def test_quota_is_shown_that_jobs_hold_before_they_run(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(RESERVES + CHECK % "True")
    (queue,) = shown("list", "-f", path)["queues"]
    column = queue["resources"]["f/cpu"]
    assert (column["used"], column["reserved"]) == (0, 6000)
    table = bayplan("queue", "list", "-f", path).stdout.splitlines()
    assert table[0].split()[3:7] == ["resource", "used", "reserved", "fair"]
    assert table[1].split()[3:7] == ["f/cpu", "0", "6", "8"]
    assert "uses 0 of 8 that it may have now, reserves 6" in bayplan(
        "queue", "show", "cq", "-f", path
    ).stdout.replace("\n", " ")
    about = bayplan("explain", "job/checked", "-f", path).stdout.replace("\n", " ")
    assert "uses 0 of 8 that it may have now, reserves 6" in about


@pytest.mark.parametrize(
    ("check", "fault"),
    [
        ("", "references missing AdmissionCheck(s): budget"),
        (CHECK % "False", "references inactive AdmissionCheck(s): budget"),
    ],
)
def test_a_queue_says_which_of_its_admission_checks_cannot_be_used(
    tmp_path: Path, check: str, fault: str
) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(RESERVES + check)
    table = bayplan("queue", "list", "-f", path).stdout
    assert f'queue "cq" cannot be used: {fault}\n' in table
    assert table.splitlines()[1].split()[:2] == ["cq", "Invalid"]
    (job,) = shown("show", "cq", "-f", path)["line"]
    assert (job["job"], job["why"]) == ("default/checked", f"Can't admit new workloads: {fault}")
    about = bayplan("explain", "job/checked", "-f", path).stdout.replace("\n", " ")
    assert f"Can't admit new workloads: {fault}" in about


def test_the_table_has_no_column_for_what_is_reserved_where_all_of_it_is_used(
    manifests: Path,
) -> None:
    assert "reserved" not in bayplan("queue", "list", "-f", manifests).stdout
