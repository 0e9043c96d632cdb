"""Invoices and costs of simulations."""

from __future__ import annotations

import json
from pathlib import Path

from bills import GPU, H100, price_file, version
from click.testing import CliRunner, Result

from bayplan.cli import cli

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
