"""What explain says of costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.billing.bills import GPU, H100, price_file, version

from bayplan.cli import cli
from bayplan.errors import InputError

NODE = """
apiVersion: v1
kind: Node
metadata: {name: %s, labels: {nvidia.com/gpu.product: %s}}
status: {allocatable: {cpu: 64, memory: 512Gi, pods: 110, nvidia.com/gpu: 2}}
---
"""
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  parallelism: 4
  completions: 4
  template:
    metadata: {annotations: {%s}}
    spec:
      restartPolicy: Never
      containers:
      - {name: main, image: i, resources: {limits: {nvidia.com/gpu: 1}, requests: {cpu: 8}}}
"""
ENTRIES = [
    {"resource": GPU, "perHour": 1},
    {"resource": GPU, "model": H100, "perHour": 4},
    {"resource": GPU, "pool": "cheap", "perHour": "0.5"},
]


def explained(folder: Path, manifests: str, *more: str) -> Result:
    (folder / "cluster.yaml").write_text(manifests)
    prices = price_file(folder, version("2000-01-01", prices=ENTRIES))
    given = ["explain", "job/train", "-f", str(folder / "cluster.yaml"), "--prices", str(prices)]
    return CliRunner().invoke(cli, [*given, *more], catch_exceptions=False)


def test_a_pending_job_says_what_it_will_cost(tmp_path: Path) -> None:
    manifests = NODE % ("n", H100) + JOB % 'bayplan.dev/duration: "6h"'
    shown = explained(tmp_path, manifests)
    assert f"costs at list price: 4 x {H100} for 6h: 96.00 EUR" in shown.stdout
    found = json.loads(explained(tmp_path, manifests, "-o", "json").stdout)
    assert found["cost"] == f"4 x {H100} for 6h: 96.00 EUR"


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (NODE % ("n", H100), f"4 x {H100}: 16.00 EUR per hour"),
        (NODE % ("n", "other"), "4 x other: 4.00 EUR per hour"),
    ],
)
def test_without_a_duration_it_is_the_cost_of_an_hour(
    tmp_path: Path, nodes: str, expected: str
) -> None:
    assert expected in explained(tmp_path, nodes + JOB % "").stdout


def test_of_several_models_a_pending_pod_costs_the_default(tmp_path: Path) -> None:
    full = "status: {allocatable: {cpu: 64, memory: 512Gi, pods: 110, nvidia.com/gpu: 2}}"
    none = full.replace("cpu: 64", "cpu: 1")
    nodes = (NODE % ("a", H100) + NODE % ("b", "other")).replace(full, none)
    assert f"4 x {GPU}: 4.00 EUR per hour" in explained(tmp_path, nodes + JOB % "").stdout


def test_prices_that_begin_later_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(NODE % ("n", H100) + JOB % "")
    prices = str(price_file(tmp_path, version("2026-01-01")))
    given = ["explain", "job/train", "-f", str(tmp_path / "cluster.yaml"), "--prices", prices]
    with pytest.raises(InputError, match="begins on 2026-01-01"):
        CliRunner().invoke(cli, given, catch_exceptions=False)


QUEUE = """---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: any}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: q}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors: [{name: any, resources: [{name: nvidia.com/gpu, nominalQuota: 1}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: q, namespace: default}
spec: {clusterQueue: q}
---
"""


def suspended(manifest: str) -> str:
    return manifest.replace(
        "metadata: {name: train}\nspec:",
        "metadata: {name: train, labels: {kueue.x-k8s.io/queue-name: q}}\nspec:\n  suspend: true",
    )


def test_a_suspended_job_says_what_its_pods_will_cost(tmp_path: Path) -> None:
    manifests = NODE % ("n", H100) + QUEUE + suspended(JOB % 'bayplan.dev/duration: "6h"')
    shown = explained(tmp_path, manifests).stdout
    assert "is suspended: it has no pods yet" in shown
    assert f"will cost at list price: 4 x {H100} for 6h: 96.00 EUR" in shown
    found = json.loads(explained(tmp_path, manifests, "-o", "json").stdout)
    assert (found["state"], found["cost"]) == ("Suspended", f"4 x {H100} for 6h: 96.00 EUR")


def test_all_templates_of_a_suspended_job_count(tmp_path: Path) -> None:
    worker = "{replicas: %d, template: {spec: {containers: [{name: c, image: i, resources: %s}]}}}"
    gpus = "{limits: {nvidia.com/gpu: 2}}"
    job = f"""
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: train, labels: {{kueue.x-k8s.io/queue-name: q}}}}
spec:
  runPolicy: {{suspend: true}}
  pytorchReplicaSpecs:
    Master: {worker % (1, gpus)}
    Worker: {worker % (3, gpus)}
"""
    (tmp_path / "cluster.yaml").write_text(NODE % ("n", H100) + QUEUE + job)
    prices = price_file(tmp_path, version("2000-01-01", prices=ENTRIES))
    given = ["explain", "pytorchjob/train", "-f", str(tmp_path / "cluster.yaml")]
    shown = CliRunner().invoke(cli, [*given, "--prices", str(prices)], catch_exceptions=False)
    assert f"8 x {H100}: 32.00 EUR per hour" in shown.stdout
