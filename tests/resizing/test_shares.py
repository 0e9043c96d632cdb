"""Elastic jobs in queues: they grow within limits and by shares, and give way to what is owed."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.resizing.elastic_builders import GPU, cluster_of, events, running

from bayplan.api import ElasticJob, Pod
from bayplan.testing import Cluster, make_node, make_object, make_pod

POOL = {"bayplan.dev/pool": "west"}


def pool(**limits: int) -> Any:
    """A pool whose tenants have a limit each, and half of the pool's eight GPUs guaranteed."""
    quotas = [
        {
            "tenant": name,
            "limit": {GPU: limit},
            "guaranteed": {GPU: min(4, limit)},
            "namespaces": [name],
        }
        for name, limit in limits.items()
    ]
    spec = {"nodeSelector": {"pool": "west"}, "quotas": quotas}
    meta = {"name": "west"}
    content = {"apiVersion": "bayplan.dev/v1alpha1", "kind": "ComputePool", "metadata": meta}
    return make_object({**content, "spec": spec})


def elastic(tenant: str, least: int, most: int, name: str = "", **spec: Any) -> Any:
    scaling = {"minReplicas": least, "maxReplicas": most, "gpuPerReplica": 1}
    container = {"name": "main", "image": "trainer"}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 0}}
    return make_object(
        {
            "apiVersion": "ai.example.com/v1",
            "kind": "ElasticJob",
            "metadata": {"name": name or tenant, "namespace": tenant},
            "spec": {"pool": "west", "scaling": scaling, "template": template, **spec},
        }
    )


def west(count: int = 1) -> list[Any]:
    return [make_node(f"n{i}", cpu=64, labels={"pool": "west"}, **{GPU: 8}) for i in range(count)]


def gpu_pod(name: str, tenant: str, gpus: int) -> Pod:
    return make_pod(name, "1", None, namespace=tenant, labels=POOL, **{GPU: gpus})


def test_a_job_borrows_what_is_idle_and_gives_it_back_to_whom_it_is_guaranteed() -> None:
    cluster = cluster_of(*west(), pool(red=8, blue=8), elastic("red", 2, 8))
    assert running(cluster, "red-") == 8
    cluster.add(elastic("blue", 3, 8))
    cluster.advance(40)
    assert running(cluster, "blue-") == 3
    assert running(cluster, "red-") == 5
    assert not cluster.scheduler.evictor.evicted, "nobody but surplus has gone"
    cluster.api.delete(type(elastic("blue", 1, 1)), "blue/blue")
    cluster.advance(90)
    assert running(cluster, "red-") == 8


def test_no_job_grows_beyond_the_limit_of_its_queue() -> None:
    cluster = cluster_of(*west(), pool(red=5, blue=8), elastic("red", 1, 8))
    cluster.advance(200)
    assert running(cluster, "red-") == 5
    found = [one.message for one in events(cluster, "Resized")]
    assert found == ["1 to 5 replicas: there is idle capacity"]


def test_queues_grow_by_their_shares() -> None:
    jobs = elastic("red", 1, 8), elastic("red", 1, 8, "other"), elastic("blue", 1, 8)
    cluster = cluster_of(*west(), pool(red=8, blue=8), *jobs)
    assert running(cluster, "blue-") == 4
    assert running(cluster, "red-") + running(cluster, "other-") == 4


def test_what_others_reclaim_beyond_surplus_is_evicted_by_their_queues_rules() -> None:
    cluster = cluster_of(*west(), pool(red=8, blue=8), elastic("red", 6, 8))
    cluster.add(*(gpu_pod(f"b{i}", "blue", 1) for i in range(4)))
    cluster.advance(60)
    assert running(cluster, "b") == 4
    assert len(cluster.scheduler.evictor.evicted) == 2
    assert running(cluster, "red-") == 4


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_sizes_stay_within_bounds_and_queues_within_limits(data: st.DataObject) -> None:
    limits = {name: data.draw(st.integers(2, 10), label=f"limit of {name}") for name in "rb"}
    cluster = cluster_of(*west(2), pool(**limits), growAfter=20, notice=3)
    for step in range(data.draw(st.integers(3, 8), label="steps")):
        tenant = data.draw(st.sampled_from("rb"))
        if data.draw(st.booleans(), label="an elastic job"):
            least = data.draw(st.integers(1, 3))
            job = elastic(tenant, least, least + data.draw(st.integers(0, 6)), f"j{step}")
            cluster.add(job)
        else:
            cluster.add(gpu_pod(f"p{step}", tenant, data.draw(st.integers(1, 6))))
        if data.draw(st.booleans(), label="one pod ends"):
            ends(cluster, data)
        for _ in range(data.draw(st.integers(1, 4))):
            before = placed(cluster)
            cluster.advance(8)
            check(cluster, limits, before)


def placed(cluster: Cluster) -> dict[str, int]:
    return {
        one.metadata.name: sum(
            bool(pod.spec.node_name)
            for pod in cluster.api.list(Pod)
            if pod.metadata.name.startswith(f"{one.metadata.name}-")
        )
        for one in cluster.api.list(type(elastic("r", 1, 1)))
    }


def ends(cluster: Cluster, data: st.DataObject) -> None:
    fixed = sorted(pod.key for pod in cluster.api.list(Pod) if pod.metadata.name.startswith("p"))
    if fixed:
        cluster.remove(data.draw(st.sampled_from(fixed), label="ends"))


def check(cluster: Cluster, limits: dict[str, int], before: dict[str, int]) -> None:
    used = dict.fromkeys(limits, 0)
    for pod in cluster.api.list(Pod):
        if pod.spec.node_name:
            found = pod.spec.containers[0].resources
            amount = found.limits.get(GPU) or found.requests[GPU]
            used[pod.metadata.namespace] += int(amount.amount)
    assert all(used[name] <= limits[name] for name in limits), (used, limits)
    now = placed(cluster)
    evicted = {one.pod.rpartition("/")[2] for one in cluster.scheduler.evictor.evicted}
    for job in cluster.api.list(type(elastic("r", 1, 1))):
        assert isinstance(job, ElasticJob)
        scaling, name = job.spec.scaling, job.metadata.name
        size = job.spec.replicas or scaling.min_replicas
        assert scaling.min_replicas <= size <= scaling.max_replicas
        taken = any(pod.startswith(f"{name}-") for pod in evicted)
        if before.get(name, 0) >= scaling.min_replicas and not taken:
            assert now[name] >= scaling.min_replicas, "only reclaim takes from the minimum"
