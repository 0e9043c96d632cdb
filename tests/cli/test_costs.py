"""Invoices and costs of simulations."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result
from tests.billing.bills import GPU, H100, price_file, version
from tests.page.reading import data_of

from bayplan.cli import cli
from bayplan.errors import InputError

CLUSTER = f"""
apiVersion: v1
kind: Node
metadata: {{name: n, labels: {{nvidia.com/gpu.product: {H100}}}}}
status: {{allocatable: {{cpu: 64, memory: 512Gi, pods: 110, nvidia.com/gpu: 8}}}}
"""
POD = """---
apiVersion: v1
kind: Pod
metadata:
  name: %s
  namespace: %s
  labels: {%s}
  annotations: {bayplan.dev/duration: %s}
spec:
  containers:
  - {name: main, image: i, resources: {limits: {nvidia.com/gpu: %d}, requests: {cpu: 4}}}
"""
MANIFESTS = (
    CLUSTER
    + POD % ("one", "vision", "", "6h", 4)
    + POD % ("two", "language", "bayplan.dev/tenant: rival", "90m", 2)
)
ENTRIES = [
    {"resource": GPU, "perHour": 1},
    {"resource": GPU, "model": H100, "perHour": 4},
]


def run(folder: Path, *arguments: str) -> Result:
    (folder / "cluster.yaml").write_text(MANIFESTS)
    prices = price_file(folder, version("2000-01-01", prices=ENTRIES))
    given = [*arguments, "-f", str(folder / "cluster.yaml"), "--until", "8h"]
    return CliRunner().invoke(cli, [*given, "--prices", str(prices)], catch_exceptions=False)


def test_a_simulation_can_be_billed(tmp_path: Path) -> None:
    found = json.loads(run(tmp_path, "invoice", "vision", "2000-01", "-o", "json").stdout)
    [line] = found["lines"]
    assert (line["model"], line["hours"], line["amount"]) == (H100, "24", "96.00")
    assert found["asOf"] == "2000-01-01T08:00:00Z"
    rival = json.loads(run(tmp_path, "invoice", "rival", "2000-01", "-o", "json").stdout)
    assert rival["total"] == "12.00"


def test_a_simulation_says_what_it_earns_and_idles(tmp_path: Path) -> None:
    found = json.loads(run(tmp_path, "simulate", "-o", "json").stdout)["costs"]
    assert found == {
        "currency": "EUR",
        "byTenant": {"rival": "12.00", "vision": "96.00"},
        "total": "108.00",
        "idle": "148.00",
    }
    shown = run(tmp_path, "simulate").stdout
    [head] = [line for line in shown.splitlines() if line.startswith("Costs")]
    assert head == "Costs  in EUR"
    assert "vision" in shown
    assert "148.00" in shown


# Several policies -----------------------------------------------------------------------------

QUEUE = """---
apiVersion: v1
kind: ConfigMap
metadata: {name: lab, namespace: queues, labels: {bayplan.dev/queue: lab}}
data: {maxCapacity: "{nvidia.com/gpu: 4}"}
"""
JOBS = "name,queue,arrival,duration,priority,nvidia.com/gpu\n" + "".join(
    f"{name},lab,{at},{duration},{priority},4\n"
    for name, at, duration, priority in (
        ("early", 0, "1h", 0),
        ("urgent", 600, "30m", 100),
    )
)


def compared(folder: Path, *arguments: str) -> Result:
    (folder / "cluster.yaml").write_text(CLUSTER + QUEUE)
    (folder / "jobs.csv").write_text(JOBS)
    for policy in ("fifo", "priority"):
        args = f"{{configmap: {{policy: {policy}, preempt: {str(policy != 'fifo').lower()}}}}}"
        (folder / f"{policy}.yaml").write_text(
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
            "profiles:\n- schedulerName: default-scheduler\n  pluginConfig:\n"
            f"  - {{name: Queues, args: {args}}}\n"
        )
    given = ["simulate", "-f", str(folder / "cluster.yaml"), *arguments]
    for policy in ("fifo", "priority"):
        given += ["--config", str(folder / f"{policy}.yaml")]
    return CliRunner().invoke(cli, given, catch_exceptions=False)


def test_policies_are_compared_over_the_time_of_the_longest(tmp_path: Path) -> None:
    prices = price_file(tmp_path, version("2000-01-01", prices=ENTRIES))
    jobs = ("--arrivals", str(tmp_path / "jobs.csv"))
    shown = compared(tmp_path, *jobs, "--prices", str(prices), "-o", "json")
    fifo, priority = json.loads(shown.stdout)["policies"]
    assert (fifo["policy"], priority["policy"]) == (
        str(tmp_path / "fifo.yaml"),
        str(tmp_path / "priority.yaml"),
    )
    # In order of arrival, the urgent job waits for 50 minutes, and all is done after 90.
    assert (fifo["wait"]["max"], fifo["evicted"]) == (3000, 0)
    assert fifo["costs"]["total"] == "24.00"
    # By priority, the other one is evicted after 10 minutes, with 30 seconds to end, and starts
    # over after 30 minutes.
    assert (priority["wait"]["started"], priority["wait"]["max"]) == (3, 1830)
    assert priority["evicted"] == 1
    assert priority["costs"]["total"] == "26.80"
    # Both runs count the same time, 8 GPUs at 4 an hour; billed and idle add up to that.
    assert fifo["seconds"] == priority["seconds"]
    hours = fifo["seconds"] / 3600
    for one in (fifo, priority):
        billed, idle = float(one["costs"]["total"]), float(one["costs"]["idle"])
        assert abs(billed + idle - 32 * hours) < 0.011
        assert abs(one["utilisation"][GPU] - billed / (32 * hours)) < 0.001


def test_policies_are_compared_without_prices(tmp_path: Path) -> None:
    shown = compared(tmp_path, "--arrivals", str(tmp_path / "jobs.csv")).stdout
    head, names, *rows = shown.splitlines()
    assert head.startswith("Comparison  over 1")
    assert names.split() == [str(tmp_path / "fifo.yaml"), str(tmp_path / "priority.yaml")]
    figures = {row[:20].strip(): row[20:].split() for row in rows}
    assert figures["jobs started"] == ["2", "3"]
    assert figures["wait, longest"] == ["50m", "30m"]
    assert not any("billed" in row or "idle" in row for row in rows)


def test_what_is_about_one_run_needs_one_policy(tmp_path: Path) -> None:
    given = ["simulate", "-f", ".", "--config", "a", "--config", "b", "--trace", "default/p"]
    result = CliRunner().invoke(cli, given)
    assert isinstance(result.exception, InputError | SystemExit)
    assert "--trace: is about one run: give one --config" in result.output + str(result.exception)


def test_a_comparison_has_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    compared(tmp_path, "--arrivals", str(tmp_path / "jobs.csv"), "--report", str(page))
    found = data_of(page.read_text())["comparison"]
    assert len(found["policies"]) == 2
    assert found["differences"][0]["changes"]


def test_a_comparison_says_which_jobs_wait_longer_and_what_is_lost(tmp_path: Path) -> None:
    jobs = ("--arrivals", str(tmp_path / "jobs.csv"))
    found = json.loads(compared(tmp_path, *jobs, "-o", "json").stdout)
    fifo, priority = found["policies"]
    # In order of arrival, 4 of 8 GPUs are free while the urgent job waits for 50 minutes.
    assert fifo["idleWhileWaiting"][GPU] == 4 * 3000
    assert fifo["lost"] == {}
    # The early job had run for 10 minutes with 4 GPUs when it was told to go.
    assert priority["lost"][GPU] == 4 * 600
    (change,) = found["differences"]
    assert change["against"] == fifo["policy"]
    assert change["jobs"] == 2
    early, urgent = change["changes"]
    assert (early["job"], early["waitsLongerBy"]) == ("default/early", 1830)
    assert (urgent["job"], urgent["waitsLongerBy"]) == ("default/urgent", 30 - 3000)
    assert (early["before"]["evicted"], early["after"]["evicted"]) == (0, 1)
    assert not early["moved"]


def test_a_comparison_tells_where_jobs_run(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(
        CLUSTER
        + "---"
        + CLUSTER.replace("name: n,", "name: m,")
        + POD % ("small", "default", "", "1h", 4)
        + POD % ("other", "default", "", "1h", 4)
    )
    # The default profile packs GPUs.
    (tmp_path / "spread.yaml").write_text(
        "kind: KubeSchedulerConfiguration\nprofiles:\n"
        "- plugins: {multiPoint: {disabled: [{name: GPUFragmentation}]}}\n"
    )
    given = ["simulate", "-f", str(tmp_path / "all.yaml")]
    given += ["--compare", str(tmp_path / "spread.yaml")]
    result = CliRunner().invoke(cli, given, catch_exceptions=False)
    head, *rest = result.stdout.partition("spread.yaml  against default profile")
    assert "default profile" in head
    assert rest[1].splitlines()[1:] == ["  Run elsewhere: 1 of 2 jobs", "    other  m → n"]


def test_the_same_policy_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(CLUSTER + POD % ("p", "default", "", "1h", 4))
    (tmp_path / "same.yaml").write_text("kind: KubeSchedulerConfiguration\n")
    given = ["simulate", "-f", str(tmp_path / "all.yaml")]
    for _ in range(2):
        given += ["--compare", str(tmp_path / "same.yaml")]
    result = CliRunner().invoke(cli, given, catch_exceptions=False)
    assert "No job waits longer or less, or runs elsewhere." in result.stdout
