"""What simulations say of queues: arrivals over time, waits, shares, use and fairness."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.page.reading import data_of

from bayplan.api import ApiObject
from bayplan.cli import cli
from bayplan.cli.queue_statistics import sparkline
from bayplan.inputs.limits import ANNOTATION
from bayplan.inputs.yamltext import parse_yaml
from bayplan.profiles.loading import default_profiles
from bayplan.queues.report import KnownReports, ResourceReport
from bayplan.simulation import Simulation
from bayplan.simulation.queue_statistics import Waits, jain
from bayplan.testing import make_object
from bayplan_plugins.queues.position import reports

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


def test_what_runs_for_ever_is_in_use_though_no_time_passes(tmp_path: Path) -> None:
    pod = """
---
apiVersion: v1
kind: Pod
metadata: {name: p, labels: {kai.scheduler/queue: a}}
spec:
  schedulerName: kai-scheduler
  containers: [{name: c, image: i, resources: {requests: {cpu: 2}}}]
"""
    told = simulated(tmp_path, cluster=CLUSTER + pod, jobs="")
    assert "Queues  at this instant" in told
    assert "cluster used: cpu 50%" in told
    content = simulated(tmp_path, "-o", "json", cluster=CLUSTER + pod, jobs="")
    assert content["queues"]["a"]["meanShare"] == 0.5
    assert content["queues"]["a"]["utilisation"] == 1.0


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


class PlainHistory:
    """Adds up all queues at each instant, from reports made from nothing: the oracle."""

    def __init__(self, simulation: Simulation) -> None:
        self.sums: dict[str, Counter[str]] = {}
        self._holds: dict[str, dict[str, float]] = {}
        self._since = 0.0
        simulation.on_settled(self.look)

    def look(self, simulation: Simulation) -> None:
        """Count what held until now, and take in what holds from now on."""
        scheduler = simulation.scheduler
        for name, held in self._holds.items():
            sums = self.sums.setdefault(name, Counter())
            for key, amount in held.items():
                sums[key] += amount * (scheduler.now - self._since)
        self._since = scheduler.now
        (plugin,) = [call.plugin for call in profile_of(scheduler)["queueing"]]
        for policy in plugin.policies:
            if policy.active:
                fresh = KnownReports(policy.system, policy.name)
                found = reports(plugin.handle, policy, fresh)
                assert [*found] == scheduler.queues.reports(), "what is kept is what is made"
                self._holds |= {one.name: amounts(one.resources["cpu"]) for one in found}


def objects_of(text: str) -> list[ApiObject]:
    return [make_object(content) for content in parse_yaml(text, ANNOTATION)]


def profile_of(scheduler: Any) -> Any:
    return next(iter(scheduler.profiles.values())).runtime


def amounts(cpu: ResourceReport) -> dict[str, float]:
    entitled = min(cpu.fair, cpu.demand)
    return {"used": cpu.used, "deserved": cpu.deserved, "entitled": entitled}


ARRIVALS = st.lists(
    st.tuples(st.sampled_from("ac"), st.integers(0, 300), st.integers(1, 300), st.integers(1, 3)),
    min_size=1,
    max_size=8,
)


@examples(15)
@given(ARRIVALS)
def test_what_is_added_up_by_changes_is_what_is_added_up_at_each_instant(
    jobs: list[tuple[str, int, int, int]],
) -> None:
    simulation = Simulation(default_profiles())
    simulation.create(objects_of(CLUSTER))
    plain = PlainHistory(simulation)
    pod = "{kind: Pod, apiVersion: v1, metadata: {name: p%d, labels: {kai.scheduler/queue: %s}, "
    pod += 'annotations: {bayplan.dev/duration: "%ds"}}, '
    pod += "spec: {containers: [{name: c, resources: {requests: {cpu: %d}}}]}}"
    simulation.arrive(
        (float(at), one)
        for index, (queue, at, seconds, cpu) in enumerate(jobs)
        for one in objects_of(pod % (index, queue, seconds, cpu))
    )
    simulation.run()
    found = simulation.queue_statistics()
    assert found is not None
    plain.look(simulation)
    for one in found.queues:
        sums = plain.sums.get(one.name, Counter())
        assert one.mean_share * found.until == pytest.approx(sums["used"] / 4000, abs=1e-6)
        if one.utilisation is not None:
            assert one.utilisation == pytest.approx(sums["used"] / sums["deserved"])
        if one.satisfaction is not None:
            assert one.satisfaction == pytest.approx(min(1, sums["used"] / sums["entitled"]))


def test_the_report_shows_shares_over_time_waits_and_fairness(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    simulated(tmp_path, "--report", page)
    data = data_of(page.read_text())
    shares = [(sample[0], [*sample[8].values()]) for sample in data["samples"]]
    # Half of the cluster, the highest share of all, for the first 200 of 400 seconds.
    assert max(max(own) for at, own in shares if at < 200) == 0.5
    found = data["statistics"]["queues"]
    assert any(
        (one["meanShare"], one["utilisation"], one["wait"]["started"]) == (0.25, 0.5, 2)
        for one in found.values()
    )
    assert data["statistics"]["fairness"]["jain"] == 1
    assert round(data["statistics"]["fairness"]["utilisation"]["cpu"], 2) == 0.31
    # Without queues, nothing is said of them.
    nodes = CLUSTER.partition("---")[0]
    simulated(tmp_path, "--report", page, cluster=nodes, jobs="")
    data = data_of(page.read_text())
    assert (data["queues"], data.get("statistics")) == ([], None)
