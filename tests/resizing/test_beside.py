"""Pools beside another scheduler: it binds the pods, bayplan resizes jobs and tells what is there.

The other one has the filters of kube-scheduler, and knows neither queues nor elastic jobs.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry
from tests.resizing.elastic_builders import GPU, job

from bayplan.api import ApiObject, ComputePool, Job, Pod, Quantity
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import Bind, Done, Evict, PatchPodStatus, Write
from bayplan.cluster.wrapped import WrappedCluster
from bayplan.live.queue_metrics import QueueMetrics
from bayplan.profiles.loading import ProfileSet, load_profiles
from bayplan.scheduler.scheduler import Scheduler
from bayplan.scheduler.shadow_mode import EXPECTED_SECONDS
from bayplan.testing import make_node, make_object, make_pod


class Noted(WrappedCluster):
    """A cluster that notes what one scheduler writes."""

    def __init__(self, cluster: MemoryCluster) -> None:
        super().__init__(cluster)
        self.written: list[Write] = []

    def submit(self, write: Write, done: Done | None = None) -> None:
        self.written.append(write)
        super().submit(write, done)


def profiles(folder: Path, *names: str, **plugins: object) -> ProfileSet:
    content = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": name, **plugins} for name in names],
    }
    path = folder / "profile.yaml"
    path.write_text(yaml.safe_dump(content))
    return load_profiles(path)


class Both:
    """One cluster, the scheduler that binds, and the one beside it; ``off`` binds nothing."""

    def __init__(self, folder: Path) -> None:
        self.api = MemoryCluster()
        start_controllers(self.api)
        disabled = [{"name": name} for name in ("Resizer", "Queues", "Gang")]
        plugins = {"multiPoint": {"disabled": disabled}}
        self.other = Scheduler(self.api, profiles(folder, "default-scheduler", plugins=plugins))
        self.noted = Noted(self.api)
        arguments = {"growAfter": 60, "shrinkAfter": 10, "notice": 5}
        own = [{"name": "Resizer", "args": arguments}]
        chosen = profiles(folder, "default-scheduler", pluginConfig=own)
        self.beside = Scheduler(self.noted, chosen, binds=False)
        self.off = False

    def add(self, *objects: ApiObject) -> None:
        for obj in objects:
            self.api.create(obj)

    def settle(self) -> None:
        while True:
            busy = self.api.deliver()
            # The slower of the two acts first, so that what it expects matters.
            busy |= self.beside.step()
            if not self.off:
                busy |= self.other.step()
            if not busy and not self.api.deliver():
                return

    def advance(self, seconds: float) -> None:
        end = self.api.now + seconds
        while True:
            self.settle()
            asked = [self.beside] if self.off else [self.beside, self.other]
            times = [self.api.clock.next_time(True), *(one.next_time() for one in asked)]
            due = min((at for at in times if at is not None and at <= end), default=end)
            self.api.clock.advance(due)
            for one in asked:
                one.tick()
            if due == end:
                return self.settle()

    def size(self, name: str = "a") -> int:
        found = self.api.get(Job, f"default/{name}")
        assert found is not None
        return found.spec.parallelism or 0

    def on_nodes(self) -> dict[str, str]:
        pods = self.api.list(Pod)
        return {pod.metadata.name: pod.spec.node_name for pod in pods if pod.spec.node_name}


@pytest.fixture
def both(tmp_path: Path) -> Both:
    found = Both(tmp_path)
    found.add(make_node("n0", cpu=64, labels={"pool": "p"}, **{GPU: 8}))
    return found


def pool() -> ApiObject:
    return make_object(
        {
            "apiVersion": "bayplan.dev/v1alpha1",
            "kind": "ComputePool",
            "metadata": {"name": "p"},
            "spec": {
                "nodeSelector": {"pool": "p"},
                "quotas": [{"tenant": "t", "limit": {GPU: 5}, "namespaces": ["default"]}],
            },
        }
    )


def test_jobs_grow_and_make_way_although_another_scheduler_binds_their_pods(both: Both) -> None:
    both.add(job("a", 2, 8, now=4))
    both.advance(1)
    assert both.size() == 2, "it starts at its minimum"
    both.advance(120)
    assert both.size() == 8
    both.add(make_pod("other", "1", None, **{GPU: 5}))
    both.advance(30)
    assert both.size() == 3
    assert both.on_nodes()["other"] == "n0"
    both.api.delete(Pod, "default/other", grace=0)
    both.advance(120)
    assert both.size() == 8


def test_it_binds_evicts_and_marks_no_pod(both: Both) -> None:
    both.add(job("a", 2, 8), pool())
    both.advance(120)
    both.add(make_pod("urgent", "1", None, priority=9, **{GPU: 3}))
    both.add(make_pod("huge", "1", None, priority=9, **{GPU: 99}))
    both.off = True
    both.advance(60)
    kinds = {type(one) for one in both.noted.written}
    assert not kinds & {Bind, Evict, PatchPodStatus}
    assert "urgent" not in both.on_nodes(), "nobody else binds now"


def test_a_job_does_not_grow_into_what_a_waiting_pod_is_about_to_get(both: Both) -> None:
    both.add(job("a", 2, 8))
    both.advance(1)
    both.off = True
    both.add(make_pod("slow", "1", None, **{GPU: 4}))
    both.advance(3 * EXPECTED_SECONDS + 61)
    assert both.size() == 4, "four of eight are kept for the pod that the other has not bound yet"
    both.off = False
    both.advance(1)
    assert len(both.on_nodes()) == 5


def test_it_does_not_grow_while_the_replicas_that_it_has_are_not_bound(both: Both) -> None:
    both.off = True
    both.add(job("a", 2, 8))
    both.advance(300)
    assert both.size() == 2


def test_a_pod_that_no_longer_fits_where_it_was_expected_makes_room_anew(both: Both) -> None:
    both.add(job("a", 2, 4))
    both.advance(120)
    both.off = True
    both.add(make_pod("first", "1", None, **{GPU: 4}))
    both.advance(1)
    both.add(make_pod("second", "1", None, **{GPU: 2}, node="n0"))
    both.advance(60)
    assert both.size() == 2, "the other scheduler had bound another pod there"


def test_growth_stays_within_the_quota_of_the_tenant(both: Both) -> None:
    both.add(pool(), job("a", 2, 8))
    both.advance(300)
    assert both.size() == 5


def test_the_status_of_the_pool_is_written(both: Both) -> None:
    both.add(pool(), job("a", 2, 2), make_pod("b", "1", None, **{GPU: 1}))
    both.advance(20)
    (found,) = both.api.list(ComputePool)
    assert found.status.phase == "Ready"
    assert found.status.allocated[GPU] == Quantity(3)
    assert found.status.available[GPU] == Quantity(5)


def test_how_long_jobs_wait_for_the_other_scheduler_is_a_metric(both: Both) -> None:
    registry = CollectorRegistry()
    metrics = QueueMetrics(registry)
    metrics.watch(both.beside)
    both.off = True
    both.add(pool())
    for at in range(2):
        both.add(make_pod(f"x{at}", "1", None, **{GPU: 1}))
    both.advance(90)
    of = {"system": "pool", "queue": "p/t"}
    assert registry.get_sample_value("bayplan_queue_oldest_wait_seconds", of) == 90
    both.off = False
    both.advance(30)
    assert registry.get_sample_value("bayplan_queue_wait_seconds_count", of) == 2
    assert registry.get_sample_value("bayplan_queue_wait_seconds_sum", of) == 180
