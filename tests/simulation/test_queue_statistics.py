"""What simulations say of queues: arrivals over time, waits, shares, use and fairness."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bayplan.cli import cli
from bayplan.cli.queue_statistics import sparkline
from bayplan.simulation.queue_statistics import Waits, jain

CLUSTER = """
apiVersion: v1
kind: Node
metadata: {name: n}
status: {allocatable: {cpu: 4, memory: 8Gi, pods: 110}}
---
apiVersion: scheduling.run.ai/v2
kind: Queue
metadata: {name: a}
spec: {resources: {cpu: {quota: 2000, limit: 2000}}}
---
apiVersion: scheduling.run.ai/v2
kind: Queue
metadata: {name: b}
spec: {resources: {cpu: {quota: 2000, limit: -1, overQuotaWeight: 1}}}
---
apiVersion: scheduling.run.ai/v2
kind: Queue
metadata: {name: c}
spec: {parentQueue: b, resources: {cpu: {quota: 2000, limit: -1, overQuotaWeight: 1}}}
"""
JOBS = """name,queue,arrival,duration,cpu
first,a,0,100s,2
second,a,0,100s,2
late,c,300,100s,1
"""


def simulated(tmp_path: Path, *more: object, cluster: str = CLUSTER, jobs: str = JOBS) -> Any:
    (tmp_path / "cluster.yaml").write_text(cluster)
    arguments = ["simulate", "-f", str(tmp_path / "cluster.yaml"), *map(str, more)]
    if jobs:
        (tmp_path / "jobs.csv").write_text(jobs)
        arguments += ["--arrivals", str(tmp_path / "jobs.csv")]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return json.loads(result.stdout) if "json" in arguments else result.stdout


def test_jobs_of_a_trace_arrive_run_and_end_in_virtual_time(tmp_path: Path) -> None:
    content = simulated(tmp_path, "-o", "json")
    queues, fairness = content["queues"], content["fairness"]
    assert fairness["until"] == pytest.approx(400, abs=1)
    assert queues["a"]["wait"]["started"] == 2
    assert queues["a"]["wait"]["max"] == pytest.approx(100, abs=2)
    assert queues["a"]["wait"]["p50"] == pytest.approx(50, abs=2)
    # Half of the cluster for half of the time.
    assert queues["a"]["meanShare"] == pytest.approx(0.25, abs=0.01)
    assert queues["a"]["share"][0] == [0, 0.5]
    assert queues["a"]["share"][-1][1] == 0
    assert queues["a"]["utilisation"] == pytest.approx(0.5, abs=0.01)
    # A parent counts what its children do.
    assert queues["b"]["wait"] == queues["c"]["wait"]
    assert queues["c"]["wait"]["max"] == 0
    assert queues["b"]["utilisation"] == pytest.approx(100 / 800, abs=0.01)
    assert fairness["utilisation"]["cpu"] == pytest.approx(500 / 1600, abs=0.01)
    assert fairness["jain"] == pytest.approx(1.0)
    bound = {e["pod"]: e["at"] for e in content["timeline"] if e["kind"] == "Bound"}
    assert [at for pod, at in bound.items() if pod.startswith("default/late-")] == [300]


def test_a_trace_runs_to_its_end_unless_until_is_given(tmp_path: Path) -> None:
    jobs = "name,queue,arrival,duration,cpu\nday,a,24h,2h,1\n"
    assert simulated(tmp_path, "-o", "json", jobs=jobs)["fairness"]["until"] == 26 * 3600
    short = simulated(tmp_path, "-o", "json", "--until", "1h", jobs=jobs)
    assert short["stats"]["pods"] == 0


def test_jobs_that_starve_count_with_their_wait_so_far(tmp_path: Path) -> None:
    jobs = "name,queue,arrival,duration,cpu\nlarge,a,0,,3\nsmall,c,0,500s,1\n"
    content = simulated(tmp_path, "-o", "json", jobs=jobs)
    wait = content["queues"]["a"]["wait"]
    assert (wait["started"], wait["waiting"]) == (0, 1)
    assert wait["max"] >= 500
    # One of two queues got what it asked for.
    assert content["fairness"]["jain"] == pytest.approx(0.5)


POD = """---
apiVersion: v1
kind: Pod
metadata:
  name: %s
  creationTimestamp: "%s"
  labels: {kai.scheduler/queue: a}
  annotations: {bayplan.dev/duration: "60s"}
spec: {containers: [{name: c, resources: {requests: {cpu: 1}}}]}
"""


def test_manifests_arrive_at_their_creation_timestamps(tmp_path: Path) -> None:
    pods = POD % ("early", "2026-01-01T00:00:00Z") + POD % ("late", "2026-01-01T02:00:00Z")
    content = simulated(tmp_path, "-o", "json", cluster=CLUSTER + pods, jobs="")
    bound = {e["pod"]: e["at"] for e in content["timeline"] if e["kind"] == "Bound"}
    assert bound == {"default/early": 0, "default/late": 7200}
    assert content["fairness"]["until"] == 7260


def test_evicted_jobs_wait_again_and_start_over(tmp_path: Path) -> None:
    jobs = (
        "name,queue,arrival,duration,cpu\nlent,c,0,600s,2\nborrowed,c,0,600s,2\nback,a,60,60s,2\n"
    )
    content = simulated(tmp_path, "-o", "json", jobs=jobs)
    queues = content["queues"]
    assert queues["c"]["evictions"] == queues["b"]["evictions"] == len(content["evicted"]) == 1
    assert queues["a"]["evictions"] == 0
    assert queues["c"]["wait"]["started"] == 3
    assert queues["c"]["wait"]["waiting"] == 0
    # What was evicted has lost its first minute.
    assert content["fairness"]["until"] > 660


def test_without_queues_nothing_is_said_of_them(tmp_path: Path) -> None:
    content = simulated(tmp_path, "-o", "json", cluster=CLUSTER.partition("---")[0], jobs="")
    assert not {"queues", "fairness"} & content.keys()
    out = simulated(tmp_path, cluster=CLUSTER.partition("---")[0], jobs="")
    assert "Queues" not in out


def test_the_table_draws_shares_over_time(tmp_path: Path) -> None:
    out = simulated(tmp_path)
    (row,) = [line for line in out.splitlines() if line.startswith("  a ")]
    assert "████" in row
    assert row.split()[-6:] == ["2", "0", "50s", "95s", "100s", "0"]
    assert "fairness 1.00 (Jain)" in out


def test_a_sparkline_has_the_mean_of_each_part_of_the_time() -> None:
    assert sparkline([(0, 1.0)], 10, 1.0) == "█" * 24
    line = sparkline([(0, 0.0), (5, 1.0)], 10, 1.0)
    assert line == " " * 12 + "█" * 12
    assert sparkline([(0, 0.5)], 10, 1.0) == "▅" * 24
    assert sparkline([], 10, 1.0) == ""


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1, 1, 1], 1.0), ([1, 0], 0.5), ([1, 0, 0, 0], 0.25), ([], None), ([0, 0], None)],
)
def test_jains_index(values: list[float], expected: float | None) -> None:
    assert jain(values) == expected


def test_percentiles_of_waits() -> None:
    waits = Waits.of([0, 10], [20])
    assert (waits.p50, waits.longest, waits.started, waits.waiting) == (10, 20, 2, 1)
    assert Waits.of([], []) == Waits(None, None, None, 0, 0)
