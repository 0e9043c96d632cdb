"""What the objects of queues say of them, in the words of their systems."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
from msgspec.structs import replace
from tests.plugins.queues.koordinator.quota_builders import GPU, PREFIX, quota

from bayplan.api import ApiObject, ElasticQuota, KaiQueue, Pod, Quantity, VolcanoQueue
from bayplan.api.queue_objects import KaiQueueStatus, VolcanoQueueStatus
from bayplan.cluster.protocol import PatchAnnotations, PatchStatus, Write
from bayplan.testing import Cluster, make_node, make_object, make_pod


def volcano_queue(name: str, gpus: int, state: str = "", **spec: Any) -> ApiObject:
    return make_object(
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "Queue",
            "metadata": {"name": name},
            "spec": {"capability": {GPU: gpus}, **spec},
            "status": {"state": state},
        }
    )


def volcano_group(name: str, queue: str, members: int) -> ApiObject:
    return make_object(
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"queue": queue, "minMember": members},
        }
    )


def members(group: str, count: int) -> list[Pod]:
    annotations = {"scheduling.k8s.io/group-name": group}
    return [
        make_pod(f"{group}-{index}", "500m", None, annotations=annotations, gpu=1)
        for index in range(count)
    ]


def written(cluster: Cluster) -> list[Write]:
    """Note from now on which statuses of queues are written."""
    found: list[Write] = []
    submit = cluster.api.submit

    def noted(write: Write, done: Any = None) -> None:
        if isinstance(write, PatchStatus | PatchAnnotations) and "Queue" in write.type.__name__:
            found.append(write)
        submit(write, done)

    cluster.api.submit = noted  # type: ignore[method-assign]
    return found


def status(cluster: Cluster, type_: type[Any], name: str) -> Any:
    found = cluster.api.get(type_, name)
    assert found is not None
    return found.status


# Volcano ---------------------------------------------------------------------------------------


def test_a_volcano_queue_counts_its_pod_groups_and_what_they_use() -> None:
    cluster = Cluster([make_node("n", gpu=8), volcano_queue("a", 4), volcano_queue("b", 4)])
    cluster.add(*(volcano_group(name, "a", 2) for name in ("g", "h", "i")))
    cluster.add(*members("g", 2), *members("h", 2), *members("i", 2))
    assert len(cluster.schedule()) == 4
    found = status(cluster, VolcanoQueue, "a")
    assert (found.state, found.running, found.pending + found.inqueue) == ("Open", 2, 1)
    assert found.allocated == {"cpu": Quantity("2"), GPU: Quantity("4"), "pods": Quantity("4")}
    assert status(cluster, VolcanoQueue, "b") == VolcanoQueueStatus("Open")


def test_a_status_is_written_once_and_only_where_something_changed() -> None:
    cluster = Cluster([make_node("n", gpu=8), volcano_queue("a", 4), volcano_queue("b", 4)])
    cluster.schedule()
    writes = written(cluster)
    cluster.add(volcano_group("g", "a", 2), *members("g", 2))
    cluster.advance(60)
    assert writes
    assert {write.key for write in writes} == {"a"}  # type: ignore[union-attr]
    assert status(cluster, VolcanoQueue, "a").running == 1
    writes.clear()
    cluster.add(make_node("other"))
    cluster.advance(60)
    assert writes == []


def test_what_another_program_says_stays_until_something_changes() -> None:
    cluster = Cluster([make_node("n", gpu=8), volcano_queue("a", 4)])
    cluster.schedule()
    # In the first minute it may be what a scheduler wrote that was killed.
    cluster.advance(61)
    queue = cluster.api.get(VolcanoQueue, "a")
    assert queue is not None
    cluster.api.update(replace(queue, status=replace(queue.status, unknown=7)))
    cluster.advance(60)
    assert status(cluster, VolcanoQueue, "a").unknown == 7
    cluster.add(volcano_group("g", "a", 2), *members("g", 2))
    cluster.advance(60)
    assert status(cluster, VolcanoQueue, "a").unknown == 0


def test_a_queue_that_is_closed_closes_once_its_pod_groups_are_gone() -> None:
    cluster = Cluster([volcano_queue("a", 4, "Closed"), volcano_queue("b", 4, "Closing")])
    cluster.add(volcano_group("g", "a", 1))
    cluster.schedule()
    assert status(cluster, VolcanoQueue, "a").state == "Closing"
    assert status(cluster, VolcanoQueue, "b").state == "Closed"
    cluster.add(*members("g", 1))
    cluster.schedule()
    assert cluster.message("g-0") == 'Queue "a" is Closing and takes no jobs'


# KAI -------------------------------------------------------------------------------------------


def kai_queue(name: str, parent: str = "") -> ApiObject:
    amounts = {
        one: {"quota": quota, "limit": -1, "overQuotaWeight": 1}
        for one, quota in (("gpu", 2), ("cpu", -1), ("memory", -1))
    }
    return make_object(
        {
            "apiVersion": "scheduling.run.ai/v2",
            "kind": "Queue",
            "metadata": {"name": name},
            "spec": {"resources": amounts, **({"parentQueue": parent} if parent else {})},
        }
    )


def test_a_kai_queue_says_what_its_jobs_ask_for_and_have() -> None:
    queues = [kai_queue("top"), kai_queue("b", "top"), kai_queue("a", "top")]
    cluster = Cluster([make_node("n", gpu=2), *queues])
    labels = {"kai.scheduler/queue": "a"}
    for index in range(3):
        cluster.add(make_pod(f"p{index}", None, "1Gi", labels=labels, gpu=1, priority=50 * index))
    assert len(cluster.schedule()) == 2
    top, own = (status(cluster, KaiQueue, name) for name in ("top", "a"))
    assert top.child_queues == ("a", "b")
    assert own.requested == {"memory": Quantity("3Gi"), GPU: Quantity("3")}
    assert own.allocated == {"memory": Quantity("2Gi"), GPU: Quantity("2")}
    assert own.allocated_non_preemptible == {"memory": Quantity("1Gi"), GPU: Quantity("1")}
    assert replace(top, child_queues=()) == own
    assert replace(status(cluster, KaiQueue, "b"), conditions=()) == KaiQueueStatus()


# Koordinator -----------------------------------------------------------------------------------


def test_an_elastic_quota_says_what_it_uses_and_in_annotations_what_it_may_have() -> None:
    cluster = Cluster([make_node("n", gpu=8), quota("a", 4, 8), quota("b", 4, 8)])
    labels = {f"{PREFIX}name": "a", f"{PREFIX}preemptible": "false"}
    cluster.add(*(make_pod(f"p{index}", "1", None, labels=labels, gpu=2) for index in range(2)))
    writes = written(cluster)
    cluster.advance(60)
    (key,) = (f"{q.metadata.namespace}/a" for q in [cluster.api.list(ElasticQuota)[0]])
    found = cluster.api.get(ElasticQuota, key)
    assert found is not None
    assert found.status.used == {GPU: Quantity("4")}
    said = {
        name.removeprefix(PREFIX): json.loads(text)
        for name, text in found.metadata.annotations.items()
    }
    four = {GPU: "4"}
    assert said["request"] == said["child-request"] == said["runtime"] == four
    assert said["non-preemptible-request"] == said["non-preemptible-used"] == four
    writes.clear()
    cluster.add(make_node("other"))
    cluster.advance(60)
    assert writes == []


# Amounts that nothing has ------------------------------------------------------------------------

MOST = 2**63 - 1


def absurd_claims(count: int, labels: dict[str, str], annotations: dict[str, str]) -> list[Any]:
    """Return claims for more devices than there are, each with a pod of one tenant."""
    found: list[Any] = [
        make_object(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceClass",
                "metadata": {"name": "gpu"},
                "spec": {"extendedResourceName": GPU},
            }
        )
    ]
    for index in range(count):
        exactly = {
            "deviceClassName": "gpu",
            "count": MOST,
            "capacity": {"requests": {"memory": "7E"}},
        }
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": f"c{index}", "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}},
        }
        container = {
            "name": "main",
            "image": "busybox",
            "resources": {"claims": [{"name": "gpus"}]},
        }
        spec = {
            "resourceClaims": [{"name": "gpus", "resourceClaimName": f"c{index}"}],
            "containers": [container],
            "nodeName": "n",
        }
        pod = make_pod(f"absurd-{index}", labels=labels, annotations=annotations, spec=spec)
        found += [make_object(claim), pod]
    return found


def test_absurd_claims_of_one_tenant_leave_every_volcano_queue_its_status() -> None:
    name = "scheduling.volcano.sh/queue-name"
    cluster = Cluster([make_node("n", gpu=8), volcano_queue("a", 8), volcano_queue("b", 8)])
    cluster.add(*absurd_claims(3, {}, {name: "a"}))
    cluster.add(make_pod("fine", None, None, annotations={name: "b"}, gpu=1))
    assert cluster.schedule()["fine"] == "n"
    assert status(cluster, VolcanoQueue, "a").allocated["deviceclass/gpu"] == Quantity(MOST)
    assert status(cluster, VolcanoQueue, "b").allocated[GPU] == Quantity("1")


def test_absurd_claims_and_quotas_leave_every_kai_queue_its_status() -> None:
    queue = "kai.scheduler/queue"
    huge = {"quota": 1e300, "limit": 1e300, "overQuotaWeight": 1e300}
    boundless = make_object(
        {
            "apiVersion": "scheduling.run.ai/v2",
            "kind": "Queue",
            "metadata": {"name": "a"},
            "spec": {"resources": dict.fromkeys(("gpu", "cpu", "memory"), huge)},
        }
    )
    cluster = Cluster([make_node("n", gpu=8), boundless, kai_queue("b")])
    cluster.add(*absurd_claims(3, {queue: "a"}, {}))
    cluster.add(make_pod("fine", None, None, labels={queue: "b"}, gpu=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cluster.schedule()["fine"] == "n"
    assert status(cluster, KaiQueue, "a").requested[GPU] == Quantity(MOST)
    assert status(cluster, KaiQueue, "b").requested == {GPU: Quantity("1")}


def test_absurd_requests_leave_every_elastic_quota_its_status() -> None:
    cluster = Cluster([make_node("n", gpu=8), quota("a", 4, 8), quota("b", 4, 8)])
    for tenant, count, gpus in (("a", 1100, 2**53), ("b", 1, 1)):
        labels = {f"{PREFIX}name": tenant}
        cluster.add(
            *(make_pod(f"{tenant}{i}", None, None, labels=labels, gpu=gpus) for i in range(count))
        )
    cluster.schedule()
    said = {
        one.metadata.name: json.loads(one.metadata.annotations[f"{PREFIX}child-request"])
        for one in cluster.api.list(ElasticQuota)
    }
    assert said == {"a": {GPU: str(MOST)}, "b": {GPU: "1"}}


def test_a_queue_whose_status_cannot_be_told_takes_none_of_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(amounts: dict[str, float]) -> dict[str, Quantity]:
        if amounts:
            raise ValueError("beyond all amounts")
        return {}

    monkeypatch.setattr("bayplan_plugins.queues.volcano.queue_status.quantities", failing)
    queues = [volcano_queue(name, 8) for name in ("a", "b", "c")]
    cluster = Cluster([make_node("n", gpu=8), *queues, kai_queue("k")])
    cluster.add(volcano_group("g", "b", 1), *members("g", 1))
    cluster.schedule()
    states = [status(cluster, VolcanoQueue, name).state for name in ("a", "b", "c")]
    assert states == ["Open", "", "Open"]
    assert status(cluster, KaiQueue, "k").conditions
    told = [one.message for one in caplog.records if "status of Queue b failed" in one.message]
    assert len(told) == 1
    assert "beyond all amounts" in told[0]
