"""A pool on a real API server: an elastic job grows, makes way, and grows again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from faces import node
from live_cluster import Content, LiveCluster
from plane import wait_until
from process import PROFILE, Scheduler

from bayplan.metering.journal import Journal
from bayplan.metering.record import CapacityRecord, UsageRecord

JOBS = "/apis/batch/v1/namespaces/default/jobs"
ELASTIC = "/apis/bayplan.dev/v1alpha1/namespaces/default/elasticjobs"
SECONDS = 60.0


def pool() -> Content:
    quotas = [
        {"tenant": "research", "guaranteed": {"cpu": 2}},
        {"tenant": "serving", "guaranteed": {"cpu": 4}},
    ]
    spec = {"poolType": "cpu", "nodeSelector": {"pool": "p"}, "quotas": quotas}
    return {
        "apiVersion": "bayplan.dev/v1alpha1",
        "kind": "ComputePool",
        "metadata": {"name": "p"},
        "spec": spec,
    }


def template(tenant: str, cpu: int) -> Content:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": str(cpu)}}}
    labels = {"bayplan.dev/pool": "p", "bayplan.dev/tenant": tenant}
    spec = {
        "schedulerName": "bayplan",
        "terminationGracePeriodSeconds": 1,
        "restartPolicy": "Never",
        "containers": [container],
    }
    return {"metadata": {"labels": labels}, "spec": spec}


def elastic_job() -> Content:
    return {
        "apiVersion": "bayplan.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {
            "name": "train",
            "namespace": "default",
            "annotations": {"bayplan.dev/resize": "true"},
        },
        "spec": {
            "pool": "p",
            "scaling": {"minReplicas": 1, "maxReplicas": 4},
            "template": template("research", 2),
        },
    }


def serving_job() -> Content:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "answer", "namespace": "default"},
        "spec": {"parallelism": 2, "completions": 2, "template": template("serving", 2)},
    }


def of(cluster: LiveCluster, job: str) -> int:
    """Return how many pods of a job have nodes."""
    return sum(name.startswith(f"{job}-") for name in cluster.placements())


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """The default profile, with a resizer that does not wait."""
    content: dict[str, Any] = yaml.safe_load(PROFILE.read_text())
    arguments = {"growAfter": 1, "shrinkAfter": 1, "notice": 1}
    content["profiles"][0].setdefault("pluginConfig", []).append(
        {"name": "Resizer", "args": arguments}
    )
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_an_elastic_job_grows_makes_way_and_grows_again(
    real: LiveCluster, tmp_path: Path, profile: Path
) -> None:
    # The nodes have eight cores.
    real.apply([node("n0", pool="p"), pool()])
    usage = str(tmp_path / "usage.db")
    scheduler = Scheduler(real.kubeconfig, tmp_path, profile, "--usage-journal", usage)
    scheduler.start()
    try:
        real.apply([elastic_job()])
        real.used({"apiVersion": "v1", "kind": "Service", **at("train")})
        real.used({"apiVersion": "batch/v1", "kind": "Job", **at("train")})
        wait_until(lambda: of(real, "train") == 4, "it fills the pool", SECONDS)
        (job,) = real.items(JOBS)
        assert job["spec"]["completionMode"] == "Indexed"
        real.apply([serving_job()])
        wait_until(lambda: of(real, "answer") == 2, "serving has its guarantee", SECONDS)
        wait_until(lambda: of(real, "train") == 2, "it has made way", SECONDS)
        indexes = {
            pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
            for pod in real.items("/api/v1/namespaces/default/pods")
            if pod["metadata"]["name"].startswith("train-")
            and "deletionTimestamp" not in pod["metadata"]
        }
        assert indexes == {"0", "1"}
        # What is younger than a second is not written yet.
        wait_until(lambda: recorded(usage, "serving") == 2, "the journal has them", SECONDS)
        scheduler.kill()
        scheduler.start()
        real.client.delete(f"{JOBS}/answer", propagationPolicy="Background")
        wait_until(lambda: of(real, "train") == 4, "it has grown again", SECONDS)
        wait_until(lambda: said(real) == ("Running", 4, 4), "its status says so", SECONDS)
    finally:
        scheduler.stop()
    assert scheduler.problems() == []
    every_core_is_charged_once(usage)


def recorded(place: str, tenant: str) -> int:
    journal = Journal(place, create=False)
    records = journal.records(0, 2**60, tenant)
    return sum(one.resource == "cpu" for one in records)


def every_core_is_charged_once(place: str) -> None:
    """Check that the journal has each pod once, and all that the node offered."""
    journal = Journal(place, create=False)
    until = journal.heartbeat
    used = [one for one in journal.records(0, until) if one.resource == "cpu"]
    pods = Counter(one.pod_uid for one in used)
    assert set(pods.values()) == {1}, "each pod is one record, although the scheduler was killed"
    assert {one.tenant for one in used} == {"research", "serving"}
    assert len(pods) == 4 + 2 + 2
    offered = [one for one in journal.capacity(0, until) if one.resource == "cpu"]
    begin = min(one.since for one in offered)

    def total(records: Iterable[UsageRecord | CapacityRecord]) -> int:
        ends = ((one, until if one.until is None else min(one.until, until)) for one in records)
        return sum(one.amount * (end - one.since) for one, end in ends)

    assert total(offered) == 8000 * (until - begin), "no gap in what the node offers"
    assert total(used) <= total(offered)
    moments = sorted({one.since for one in used} | {one.until for one in used if one.until})
    for at in moments:
        held = sum(
            one.amount for one in used if one.since <= at and (one.until is None or at < one.until)
        )
        assert held <= 8000, "never more than the node has"


def at(name: str) -> Content:
    return {"metadata": {"name": name, "namespace": "default"}}


def said(cluster: LiveCluster) -> tuple[str, int, int]:
    (found,) = cluster.items(ELASTIC)
    status = found.get("status", {})
    return status.get("phase", ""), status.get("replicas", 0), status.get("ready", 0)
