"""Jobs that wait suspended for quota count as pending wherever somebody asks what waits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from tests.page.reading import shown

from bayplan.cli import cli
from bayplan.cluster.manifests import load_manifests

QUEUES = """
apiVersion: v1
kind: Node
metadata: {name: n, labels: {kubernetes.io/hostname: n}}
status: {allocatable: {cpu: 64, memory: 1Ti, pods: 110, nvidia.com/gpu: 16}}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: gpu}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: cq}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors: [{name: gpu, resources: [{name: nvidia.com/gpu, nominalQuota: 8}]}]
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {name: q, namespace: default}
spec: {clusterQueue: cq}
"""


def job(name: str, queue: str | None = "q", pods: int = 1) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 8 // pods}}}
    template = {
        "metadata": {"annotations": {"bayplan.dev/duration": "2h"}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    labels = {} if queue is None else {"kueue.x-k8s.io/queue-name": queue}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {"suspend": True, "parallelism": pods, "completions": pods, "template": template},
    }


def world(folder: Path, *jobs: dict[str, Any]) -> Path:
    path = folder / "world.yaml"
    path.write_text("---\n".join([QUEUES, *map(yaml.safe_dump, jobs)]))
    return path


def bayplan(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(one) for one in arguments])


def workload(name: str, gpus: int, queue: str = "q") -> dict[str, Any]:
    """Return a Workload of something that bayplan does not follow."""
    container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
    pod_set = {"name": "main", "count": 2, "template": {"spec": {"containers": [container]}}}
    owner = {"apiVersion": "example.com/v1", "kind": "Solver", "name": name, "uid": f"uid-{name}"}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": name, "ownerReferences": [{**owner, "controller": True}]},
        "spec": {"queueName": queue, "podSets": [pod_set]},
    }


@pytest.fixture
def two_jobs(tmp_path: Path) -> Path:
    return world(tmp_path, job("a"), job("b", pods=2))


def test_a_job_without_quota_is_pending_for_simulate(two_jobs: Path) -> None:
    given = ("simulate", "-f", two_jobs, "--until", "1h", "--fail-on-pending")
    done = bayplan(*given)
    assert done.exit_code == 3
    assert "1 of 1 pods have a node; 1 job with 2 pods is held back" in done.stdout
    assert "insufficient unused quota for nvidia.com/gpu in flavor gpu, 8 more" in done.stdout
    answer = json.loads(bayplan(*given, "-o", "json").stdout)
    (held,) = answer["held"]
    assert (held["kind"], held["job"], held["pods"]) == ("Job", "default/b", 2)
    assert (held["queue"], held["waits"], answer["stats"]["held"]) == ("kueue/cq", 3600, 1)


def test_once_all_were_admitted_nothing_is_pending(two_jobs: Path) -> None:
    done = bayplan("simulate", "-f", two_jobs, "--until", "3h", "--fail-on-pending")
    assert done.exit_code == 0, done.output
    assert "held back" not in done.stdout


def test_a_comparison_fails_for_jobs_without_quota_too(two_jobs: Path) -> None:
    given = ("--compare", "configs/profiles/default.yaml", "--until", "1h", "--fail-on-pending")
    assert bayplan("simulate", "-f", two_jobs, *given).exit_code == 3


def test_top_counts_jobs_without_quota(two_jobs: Path) -> None:
    done = bayplan("top", "-f", two_jobs, "--until", "1h", "-o", "json")
    found = json.loads(done.stdout)
    assert (found["waiting"], found["waiting_jobs"]) == (2, 1)
    (pending,) = found["pending"]
    assert (pending["first"], pending["waits"]) == ("job/default/b", 3600)


def test_a_job_of_a_queue_that_is_missing_is_held_and_one_that_its_user_suspended_is_not(
    tmp_path: Path,
) -> None:
    path = world(tmp_path, job("lost", queue="typo"), job("rests", queue=None))
    why = 'there is no LocalQueue "typo" in namespace "default"'
    (held,) = json.loads(bayplan("simulate", "-f", path, "-o", "json").stdout)["held"]
    assert (held["job"], held["message"]) == ("default/lost", why)
    assert why in bayplan("explain", "job/lost", "-f", path).stdout


def test_a_job_whose_local_queue_leads_nowhere_says_so(tmp_path: Path) -> None:
    nowhere = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "LocalQueue",
        "metadata": {"name": "nowhere", "namespace": "default"},
        "spec": {"clusterQueue": "typo"},
    }
    path = world(tmp_path, nowhere, job("lost", queue="nowhere"))
    (held,) = json.loads(bayplan("simulate", "-f", path, "-o", "json").stdout)["held"]
    assert held["message"] == (
        'its LocalQueue "nowhere" names a ClusterQueue that is not there: "typo"'
    )


def test_the_page_shows_a_job_without_quota_and_later_how_long_it_waited(two_jobs: Path) -> None:
    objects = load_manifests((str(two_jobs),)).objects
    page = shown(objects, until=3600.0)
    unit = page["units"]["default/b"]
    assert (unit["held"], unit["queue"]) == ([0.0, 2], "kueue/cq")
    assert "8 more needed" in unit["message"]
    assert page["samples"][-1][5] == 2
    assert "8 more needed" in page["details"]["default/b"]["message"]
    page = shown(objects, until=3 * 3600.0)
    unit = page["units"]["default/b"]
    assert "held" not in unit
    assert (unit["members"], unit["outcome"]) == (2, "Placed")
    pods = [pod for key, pod in page["pods"].items() if key.startswith("default/b-")]
    waits = [pod["stints"][0][1] - pod.get("created", 0.0) for pod in pods]
    assert waits == [7200.0, 7200.0]


def test_a_workload_of_what_bayplan_does_not_follow_is_pending_too(tmp_path: Path) -> None:
    path = world(tmp_path, workload("runs", 1), workload("waits", 8), workload("lost", 1, "none"))
    done = bayplan("simulate", "-f", path, "--fail-on-pending")
    assert done.exit_code == 3
    assert "2 jobs with 4 pods are held back" in done.stdout
    assert "runs" not in done.stdout
    why = bayplan("explain", "workload/waits", "-f", path).stdout
    assert why.startswith("Workload default/waits is pending: its pods come from a controller that")
    assert "insufficient quota for nvidia.com/gpu in flavor gpu" in why
    lost = json.loads(bayplan("explain", "workload/lost", "-f", path, "-o", "json").stdout)
    assert lost["state"] == "Pending"
    assert lost["message"] == 'there is no LocalQueue "none" in namespace "default"'
    runs = bayplan("explain", "workload/runs", "-f", path).stdout
    assert runs.startswith(
        "Workload default/runs is admitted: its pods come from a controller that"
    )
    quota = "it has quota in ClusterQueue cq: pod set main: 2 nvidia.com/gpu of flavor gpu"
    assert quota in " ".join(runs.split())
    nobody = bayplan("explain", "workload/wait", "-f", path)
    assert str(nobody.exception).startswith("there is no Workload default/wait at the end")
    assert "waits" in str(nobody.exception)


def test_a_workload_that_waits_for_a_check_is_inactive_or_finished_says_so(tmp_path: Path) -> None:
    checked = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "AdmissionCheck",
        "metadata": {"name": "quota-first"},
        "spec": {"controllerName": "example.com/somebody"},
        "status": {"conditions": [{"type": "Active", "status": "True", "reason": "Active"}]},
    }
    waits, idle, done = (workload(name, 1) for name in ("waits", "idle", "done"))
    idle["spec"]["active"] = False
    ended = {"type": "Finished", "status": "True", "reason": "Succeeded", "message": "It is done"}
    done["status"] = {"conditions": [{**ended, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
    path = world(tmp_path, checked, waits, idle, done)
    rule = "spec:\n  admissionChecksStrategy: {admissionChecks: [{name: quota-first}]}\n  namespace"
    path.write_text(path.read_text().replace("spec:\n  namespace", rule))

    def why(name: str) -> tuple[str, str]:
        given = ("explain", f"workload/{name}", "-f", path, "-o", "json")
        answer = json.loads(bayplan(*given).stdout)
        return answer["state"], answer["message"]

    quota = "it has quota in ClusterQueue cq: pod set main: 2 nvidia.com/gpu of flavor gpu"
    assert why("waits") == (
        "Pending",
        f"{quota}; it waits for admission checks: quota-first (Pending)",
    )
    assert why("idle") == ("Pending", "its Workload is not active")
    assert why("done") == ("Finished", "It is done")
