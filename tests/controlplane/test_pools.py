"""A pool on a real API server: an elastic job grows, makes way, and grows again.

bayplan schedules the pods, or runs beside kube-scheduler, which does. Either is killed halfway.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from tests.cluster.apiserver.faces import node
from tests.controlplane.history import History
from tests.controlplane.live_cluster import PODS, Content, Kubelet, LiveCluster
from tests.controlplane.plane import ControlPlane, wait_until
from tests.controlplane.process import PROFILE, Scheduler

from bayplan.cli import cli
from bayplan.metering.journal import Journal
from bayplan.metering.record import CapacityRecord, UsageRecord

JOBS = "/apis/batch/v1/namespaces/default/jobs"
ELASTIC = "/apis/bayplan.dev/v1alpha1/namespaces/default/elasticjobs"
SECONDS = 120.0


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


def template(tenant: str, cpu: int, scheduler: str) -> Content:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": str(cpu)}}}
    labels = {"bayplan.dev/pool": "p", "bayplan.dev/tenant": tenant}
    spec = {
        "schedulerName": scheduler,
        "terminationGracePeriodSeconds": 1,
        "restartPolicy": "Never",
        "containers": [container],
    }
    return {"metadata": {"labels": labels}, "spec": spec}


def elastic_job(scheduler: str) -> Content:
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
            "template": template("research", 2, scheduler),
        },
    }


def serving_job(scheduler: str) -> Content:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "answer", "namespace": "default"},
        "spec": {"parallelism": 2, "completions": 2, "template": template("serving", 2, scheduler)},
    }


def of(cluster: LiveCluster, job: str) -> int:
    """Return how many pods of a job have nodes."""
    return sum(name.startswith(f"{job}-") for name in cluster.placements())


def profile(folder: Path, scheduler: str) -> Path:
    """Return the default profile, with a resizer that does not wait."""
    content: dict[str, Any] = yaml.safe_load(PROFILE.read_text())
    arguments = {"growAfter": 1, "shrinkAfter": 1, "notice": 1}
    (one,) = content["profiles"]
    one["schedulerName"] = scheduler
    one["pluginConfig"] = [{"name": "Resizer", "args": arguments}]
    path = folder / "profile.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(params=["run", "pool-controller"])
def process(
    request: pytest.FixtureRequest,
    plane: ControlPlane,
    real: LiveCluster,
    pools_kubeconfig: Path,
    tmp_path: Path,
) -> Iterator[tuple[str, Scheduler]]:
    """The scheduler of the pods, and the process that has the pool: bayplan's, or beside it."""
    usage = ("--usage-journal", str(tmp_path / "usage.db"))
    if request.param == "run":
        yield "bayplan", Scheduler(real.kubeconfig, tmp_path, profile(tmp_path, "bayplan"), *usage)
        return
    name = "default-scheduler"
    with plane.kube_scheduler():
        chosen = profile(tmp_path, name)
        yield name, Scheduler(pools_kubeconfig, tmp_path, chosen, *usage, command=request.param)


def test_an_elastic_job_grows_makes_way_and_grows_again(
    real: LiveCluster, tmp_path: Path, process: tuple[str, Scheduler]
) -> None:
    # The nodes have eight cores.
    real.apply([node("n0", pool="p"), pool()])
    usage, (name, scheduler) = str(tmp_path / "usage.db"), process
    scheduler.start()
    with History(real.client) as history:
        try:
            real.apply([elastic_job(name)])
            real.used({"apiVersion": "v1", "kind": "Service", **at("train")})
            real.used({"apiVersion": "batch/v1", "kind": "Job", **at("train")})
            wait_until(lambda: of(real, "train") == 4, "it fills the pool", SECONDS)
            (job,) = real.items(JOBS)
            assert job["spec"]["completionMode"] == "Indexed"
            real.apply([serving_job(name)])
            wait_until(lambda: of(real, "answer") == 2, "serving has its guarantee", SECONDS)
            wait_until(lambda: of(real, "train") == 2, "it has made way", SECONDS)
            assert indexes(real) == {"0", "1"}
            # What is younger than a second is not written yet.
            wait_until(lambda: recorded(usage, "serving") == 2, "the journal has them", SECONDS)
            scheduler.kill()
            end_pods(real, "answer")
            scheduler.start()
            wait_until(lambda: of(real, "train") == 4, "it has grown again", SECONDS)
            wait_until(lambda: said(real) == ("Running", 4, 4), "its status says so", SECONDS)
            wait_until(lambda: allocated(real) == "8", "so does that of the pool", SECONDS)
            wait_until(lambda: recorded(usage, "research") == 6, "the journal has them", SECONDS)
        finally:
            scheduler.stop()
        assert scheduler.problems() == []
        assert history.problems == []
        every_core_is_charged_once(usage)
        the_journal_says_what_the_pods_say(usage, history)
        invoices_are_what_the_pods_say(usage, history, tmp_path / "prices.yaml")


def indexes(cluster: LiveCluster) -> set[str]:
    """Return the indexes of the elastic job's pods that stay."""
    return {
        pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
        for pod in cluster.items(PODS)
        if pod["metadata"]["name"].startswith("train-")
        and "deletionTimestamp" not in pod["metadata"]
    }


def end_pods(cluster: LiveCluster, job: str) -> None:
    """Let the pods of a job succeed."""
    kubelet = Kubelet(cluster.client)
    for pod in cluster.items(PODS):
        if pod["metadata"]["name"].startswith(f"{job}-"):
            kubelet.end_containers(pod, phase="Succeeded")


def allocated(cluster: LiveCluster) -> str:
    """Return how many cores of the pool are used, as its status says."""
    (found,) = cluster.items("/apis/bayplan.dev/v1alpha1/computepools")
    return str(found.get("status", {}).get("allocated", {}).get("cpu", ""))


def recorded(place: str, tenant: str) -> int:
    journal = Journal(place, create=False)
    records = journal.records(0, journal.heartbeat, tenant)
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


def cpu_records(place: str) -> list[UsageRecord]:
    journal = Journal(place, create=False)
    return [one for one in journal.records(0, 2**60) if one.resource == "cpu"]


def the_journal_says_what_the_pods_say(place: str, history: History) -> None:
    """Check that every pod is charged from its binding to its end, to the second."""
    found = {one.pod_uid: one for one in cpu_records(place)}
    assert {uid: one.since // 1000 for uid, one in found.items()} == history.bound
    ended = {uid: one.until // 1000 for uid, one in found.items() if one.until is not None}
    # Those that end after the last process are not known of.
    assert ended.items() <= history.ended.items()
    assert len(ended) == 4


def invoices_are_what_the_pods_say(place: str, history: History, prices: Path) -> None:
    """Check invoices against times of pods: a euro for a core and a second."""
    version = {"from": "2000-01-01", "prices": [{"resource": "cpu", "perHour": 3600}]}
    content = {"apiVersion": "bayplan.dev/v1alpha1", "kind": "PriceList", "currency": "EUR"}
    prices.write_text(yaml.safe_dump({**content, "versions": [version]}))
    until = Journal(place, create=False).heartbeat
    for tenant in ("research", "serving"):
        own = [one for one in cpu_records(place) if one.tenant == tenant]
        by_record = sum(one.amount * ((one.until or until) - one.since) for one in own)
        ends = ((history.bound[u], history.ended.get(u, until / 1000)) for u in map(uid_of, own))
        by_pods = sum(2 * (end - begin) for begin, end in ends)
        found = billed(place, tenant, prices)
        assert found == round(Decimal(by_record) / 1_000_000, 2)
        # Pods state whole seconds, the journal is more exact.
        assert abs(float(found) - by_pods) <= 2 * len(own)


def uid_of(record: UsageRecord) -> str:
    return record.pod_uid


def billed(place: str, tenant: str, prices: Path) -> Decimal:
    """Return the sum of a tenant's invoices of the months that a story may lie in."""
    total = Decimal(0)
    last = datetime.now(UTC).replace(day=1)
    for month in {last, (last - timedelta(days=1)), (last + timedelta(days=32))}:
        arguments = ["invoice", tenant, f"{month:%Y-%m}", "--prices", str(prices)]
        result = CliRunner().invoke(cli, [*arguments, "--journal", place, "-o", "json"])
        assert result.exit_code == 0, result.output
        total += Decimal(json.loads(result.stdout)["total"])
    return total


def at(name: str) -> Content:
    return {"metadata": {"name": name, "namespace": "default"}}


def said(cluster: LiveCluster) -> tuple[str, int, int]:
    (found,) = cluster.items(ELASTIC)
    status = found.get("status", {})
    return status.get("phase", ""), status.get("replicas", 0), status.get("ready", 0)
