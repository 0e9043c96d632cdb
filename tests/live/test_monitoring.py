"""Rules and the dashboards ask for what the scheduler exports."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY, CollectorRegistry
from tests.billing.bills import price_file
from tests.live.deployed import DEPLOY, documents, manifests, only
from tests.live.queue_builders import queue
from tests.live.stage import stage

from bayplan.api import ComputePool, ObjectMeta
from bayplan.api.pools import ComputePoolSpec
from bayplan.api.quantity import Quantity
from bayplan.billing.terms import BillingTermsFiles
from bayplan.live.bill_pages import Bills
from bayplan.metering.journal import Journal
from bayplan.testing import make_node, make_pod
from bayplan_plugins.recovery import metrics as recovery_metrics

MONITORING = DEPLOY / "monitoring"
GROUPS = only("PrometheusRule", documents(*manifests(MONITORING)))["spec"]["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
BOARDS: dict[str, Any] = {
    path.name: json.loads(path.read_text()) for path in sorted(MONITORING.glob("grafana-*.json"))
}
PANELS = {
    name: [panel for panel in board["panels"] if panel["type"] != "row"]
    for name, board in BOARDS.items()
}
# Of NVIDIA's dcgm-exporter.
ELSEWHERE = {
    **{
        name: {"gpu", "modelName", "Hostname", "UUID"}
        for name in ("DCGM_FI_PROF_NVLINK_TX_BYTES", "DCGM_FI_PROF_NVLINK_RX_BYTES")
    },
    # Of schedulers that have a budget: they come with the second scrape.
    **{f"bayplan_budget_{name}_ratio": {"tenant"} for name in ("spent", "forecast")},
}
# What Prometheus adds to everything that it scrapes.
ADDED = {"job", "instance"}
FUNCTIONS = {
    *("absent", "avg_over_time", "histogram_quantile", "max", "min", "rate", "sum", "time", "topk"),
}
WORDS = {"and", "by", "on", "or", "unless"}


def queries() -> Iterator[str]:
    yield from (rule["expr"] for rule in RULES)
    for panels in PANELS.values():
        yield from (target["expr"] for panel in panels for target in panel["targets"])


def asked_for(query: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the metrics of a query, with the labels that they are selected by."""
    bare = re.sub(r"\[[^]]*\]", " ", query)
    bare = re.sub(r"\b(by|on)\s*\([^)]*\)", " ", bare)
    for name, matchers in re.findall(r"([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?", _without_numbers(bare)):
        if name not in FUNCTIONS | WORDS:
            yield name, set(re.findall(r"(\w+)\s*(?:=|!)", matchers))


def _without_numbers(query: str) -> str:
    return re.sub(r"(?<![\w:])\d[\d.e]*", " ", query)


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """The labels of every metric that a scheduler has exported after it did a little of each."""
    return asyncio.run(labels_after_a_little_of_each())


async def labels_after_a_little_of_each() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    registry = CollectorRegistry()
    labels = {"bayplan.dev/machine": "a100-pcie-bridged"}
    mine = {"scheduling.volcano.sh/queue-name": "q"}
    shares = {name: {"cpu": Quantity(4)} for name in ("deserved", "capability")}
    pooled = {**labels, "pool": "p", "nvidia.com/gpu.product": "A100"}
    pool = ComputePool(ObjectMeta(name="p"), ComputePoolSpec(node_selector={"pool": "p"}))
    objects = [make_node("n", cpu=8, labels=pooled, gpu=4), queue("q", **shares), pool]
    journal = Journal()
    with tempfile.TemporaryDirectory() as folder:
        bills = Bills.of_journal(BillingTermsFiles(price_file(Path(folder))), journal)
    async with stage(objects) as made:
        await made.start(registry=registry, journal=journal, bills=bills)
        low = make_pod("low", cpu=4, priority=1, annotations=mine)
        made.create(make_pod("large", cpu=16), low)
        await made.run_out()
        made.create(make_pod("high", cpu=6, priority=9))
        made.create(make_pod("gpus", gpu=2, annotations={"gpu.topology/policy": "nvlink"}))
        of_pool = {"bayplan.dev/pool": "p"}
        made.create(*(make_pod(f"p{index}", cpu="10m", labels=of_pool) for index in range(12)))
        await made.run_out(until=1200)
        assert len(made.placements()) == 14
        # The default profile has no plugin Recovery.
        recovery_metrics.seen({}, 0, ())
        for one in (registry, REGISTRY):
            for family in one.collect():
                for sample in family.samples:
                    found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("query", dict.fromkeys(queries()))
def test_a_query_asks_for_what_is_exported(query: str, exported: dict[str, set[str]]) -> None:
    asked = list(asked_for(query))
    assert asked
    known = {**exported, **ELSEWHERE}
    for name, labels in asked:
        if name not in RECORDED:
            assert name in known
            assert labels <= known[name] | ADDED, name


def test_what_is_exported_is_shown_or_watched(exported: dict[str, set[str]]) -> None:
    asked = {re.sub("_(bucket|sum)$", "", name) for q in queries() for name, _ in asked_for(q)}
    own = {
        re.sub("_(bucket|sum|count|created)$", "", name)
        for name in exported
        if name.startswith(("scheduler_", "gpu_", "rest_client_", "leader_", "bayplan_"))
        # The node driver has a board of its own; another test may have loaded it.
        and not name.startswith("bayplan_driver_")
    }
    own = {name for name in own if f"{name}_total" not in own}
    assert own - asked == set()


def test_metrics_that_others_have_too_are_those_of_our_job() -> None:
    job = only("Service")["metadata"]["name"]
    for query in queries():
        for name, matchers in re.findall(r"([a-z_]+)\{([^}]*)\}", query):
            if name.startswith(("scheduler_", "rest_client_", "leader_", "process_")):
                assert f'job="{job}"' in matchers, query
        for name, labels in asked_for(query):
            if name.startswith(("scheduler_", "rest_client_", "leader_", "process_")):
                assert "job" in labels, query


def test_values_that_are_selected_exist(exported: dict[str, set[str]]) -> None:
    from bayplan.live.metrics import QUEUE_LABELS, RESULT_LABELS

    values = {
        "queue": set(QUEUE_LABELS.values()),
        "result": set(RESULT_LABELS.values()),
        "satisfied": {"true", "false"},
        "same_numa": {"true", "false"},
        "reason": {"unmet", "unknown"},
    }
    texts = [*queries(), *(rule["annotations"]["description"] for rule in RULES if "alert" in rule)]
    for label, known in values.items():
        for text in texts:
            assert set(re.findall(rf'\b{label}="([^"]*)"', text)) <= known


def test_the_alerts_that_operators_count_on_are_there() -> None:
    alerts = {rule["alert"]: rule for rule in RULES if "alert" in rule}
    for name, rule in alerts.items():
        assert rule["labels"]["severity"] in ("warning", "critical"), name
        assert rule["annotations"].keys() == {"summary", "description"}, name
    failures = alerts["HighTopologyConstraintFailureRate"]
    assert failures["expr"] == "gpu_topology_scheduling_success_rate < 0.8"
    assert failures["for"] == "10m"
    several = alerts["HighCrossNUMAScheduling"]
    assert several["expr"] == "gpu_cross_numa_scheduling_ratio > 0.5"
    assert several["for"] == "30m"


def test_the_boards_are_deployed_and_differ() -> None:
    (made,) = yaml.safe_load((MONITORING / "kustomization.yaml").read_text())["configMapGenerator"]
    assert sorted(made["files"]) == list(BOARDS)
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS)


@pytest.mark.parametrize("name", BOARDS)
def test_panels_do_not_overlap_and_each_has_a_title_of_its_own(name: str) -> None:
    places: set[tuple[int, int]] = set()
    for panel in BOARDS[name]["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & places, panel["title"]
        places |= cells
    titles = [panel["title"] for panel in PANELS[name]]
    assert len(titles) == len(set(titles))
    assert len({panel["id"] for panel in BOARDS[name]["panels"]}) == len(BOARDS[name]["panels"])


def test_gpu_counters_are_exported_before_the_first_pod() -> None:
    script = """
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from bayplan.live.metrics import LiveMetrics
from bayplan.testing import Cluster
LiveMetrics(CollectorRegistry()).watch(Cluster().scheduler)
print(generate_latest(REGISTRY).decode())
"""
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    for series in (
        'gpu_scheduler_topology_schedules_total{satisfied="true"} 0.0',
        'gpu_scheduler_topology_fallbacks_total{reason="unmet"} 0.0',
        'gpu_scheduler_allocations_total{same_numa="false"} 0.0',
    ):
        assert series in shown.stdout.splitlines()
