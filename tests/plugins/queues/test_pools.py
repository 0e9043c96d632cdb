"""Compute pools: tenants share the nodes of a pool, and the pool says what it has."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.api import ApiObject, ComputePool, Node, Pod
from bayplan.api.node import NodeCondition
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.testing import Cluster, make_node, make_object, make_pod

GPU = "nvidia.com/gpu"
MODEL = {"nvidia.com/gpu.product": "H100"}


def pool(name: str = "p", selector: str = "p", **spec: Any) -> ApiObject:
    return make_object(
        {
            "apiVersion": "bayplan.dev/v1alpha1",
            "kind": "ComputePool",
            "metadata": {"name": name},
            "spec": {"nodeSelector": {"pool": selector}, **spec},
        }
    )


def quota(tenant: str, guaranteed: int = 0, limit: int | None = None, *spaces: str) -> Any:
    most = {"limit": {GPU: limit}} if limit is not None else {}
    own = {"namespaces": list(spaces)} if spaces else {}
    return {"tenant": tenant, "guaranteed": {GPU: guaranteed}, **most, **own}


def nodes(count: int, pool: str = "p") -> list[Node]:
    labels = {"pool": pool, **MODEL}
    return [make_node(f"{pool}{index}", gpu=4, labels=labels) for index in range(count)]


def pods(tenant: str, count: int, pool: str = "p", **more: Any) -> list[Pod]:
    labels = {"bayplan.dev/pool": pool}
    return [
        make_pod(f"{tenant}-{index}", gpu=1, namespace=tenant, labels=labels, **more)
        for index in range(count)
    ]


def run(*objects: ApiObject) -> Cluster:
    cluster = Cluster(objects)
    cluster.schedule()
    cluster.advance(60.0)
    return cluster


def tenants(cluster: Cluster) -> Counter[str]:
    placed = [pod for pod in cluster.api.list(Pod) if pod.spec.node_name]
    return Counter(pod.metadata.namespace for pod in placed)


def status(cluster: Cluster, name: str = "p") -> dict[str, int]:
    """Return the GPUs of a pool by what becomes of them."""
    found = cluster.api.get(ComputePool, name)
    assert found is not None
    fields = ("total", "allocated", "available", "reserved", "maintenance", "failed")
    return {one: int(getattr(found.status, one)[GPU].amount) for one in fields}


def test_pods_use_the_nodes_of_their_pool_only() -> None:
    cluster = run(*nodes(1), *nodes(1, "q"), pool(), pool("q", "q"), *pods("a", 6))
    assert set(cluster.placements().values()) == {"p0"}
    assert tenants(cluster) == {"a": 4}


def test_a_tenant_gets_back_what_it_is_guaranteed_and_no_more() -> None:
    quotas = [quota("a", 2), quota("b", 3)]
    cluster = run(*nodes(2), pool(quotas=quotas), *pods("a", 8))
    assert tenants(cluster) == {"a": 8}
    cluster.add(*pods("b", 5))
    cluster.advance(300.0)
    assert tenants(cluster) == {"a": 5, "b": 3}


def test_a_tenant_stays_within_its_limit() -> None:
    cluster = run(*nodes(2), pool(quotas=[quota("a", 0, 3)]), *pods("a", 8))
    assert tenants(cluster) == {"a": 3}
    assert 'queue "p/a": limit of nvidia.com/gpu exceeded' in cluster.message("a/a-7")


def test_what_is_reserved_for_growth_stays_free() -> None:
    cluster = run(*nodes(2), pool(capacity={"reserved": "25%"}), *pods("a", 8))
    assert tenants(cluster) == {"a": 6}
    assert status(cluster) == {
        "total": 8,
        "allocated": 6,
        "available": 0,
        "reserved": 2,
        "maintenance": 0,
        "failed": 0,
    }


def test_a_namespace_belongs_to_the_tenant_that_names_it() -> None:
    quotas = [quota("research", 0, 2, "team-a", "team-b")]
    both = [make_pod(f"x-{i}", gpu=1, namespace=f"team-{'ab'[i % 2]}") for i in range(4)]
    cluster = run(*nodes(1), pool(quotas=quotas), *both)
    assert sum(tenants(cluster).values()) == 2


def test_cordoned_and_failed_nodes_are_out_of_service() -> None:
    first, second, third = nodes(3)
    cordoned = replace(first, spec=replace(first.spec, unschedulable=True))
    condition = (NodeCondition("Ready", "False"),)
    failed = replace(second, status=replace(second.status, conditions=condition))
    cluster = run(cordoned, failed, third, pool(), *pods("a", 1))
    found = status(cluster)
    assert (found["maintenance"], found["failed"], found["allocated"]) == (4, 4, 1)
    stored = cluster.api.get(ComputePool, "p")
    assert stored is not None
    (model,) = [one for one in stored.status.models if one.resource == GPU]
    assert (model.model, int(model.total.amount), int(model.allocated.amount)) == ("H100", 12, 1)


def test_the_status_counts_what_is_placed_long_after_the_event_that_helped_it() -> None:
    cluster = run(*nodes(1), pool(), *pods("a", 4))
    late = make_pod("late", gpu=1, namespace="b", labels={"bayplan.dev/pool": "p"})
    cluster.add(late)
    cluster.schedule()
    cluster.remove("a/a-0")
    cluster.schedule()
    assert tenants(cluster) == {"a": 3}, "it waits for the end of its backoff"
    cluster.advance(30.0)
    assert tenants(cluster) == {"a": 3, "b": 1}
    assert status(cluster)["allocated"] == 4


def test_a_pool_that_shares_a_node_takes_no_jobs_and_says_why() -> None:
    other = pool("q", quotas=[])
    cluster = run(*nodes(1), pool(), other, *pods("a", 1, "q"))
    assert tenants(cluster) == {}
    assert 'node p0 is in pool "p" already' in cluster.message("a/a-0")
    stored = cluster.api.get(ComputePool, "q")
    assert stored is not None
    assert stored.status.phase == "Invalid"


def test_a_pool_that_does_not_exist_is_waited_for() -> None:
    cluster = run(*nodes(1), pool(), *pods("a", 1, "nowhere"))
    assert 'waiting for queue "nowhere", which does not exist' in cluster.message("a/a-0")
    cluster.add(*nodes(1, "nowhere"), pool("nowhere", "nowhere"))
    cluster.advance(60.0)
    assert tenants(cluster) == {"a": 1}


changes = st.lists(
    st.tuples(
        st.sampled_from(["add", "delete", "cordon", "fail", "restore", "grow", "remove"]),
        st.integers(0, 30),
    ),
    min_size=1,
    max_size=15,
)


@pytest.mark.parametrize("reserved", ["0%", "30%"])
@examples(25)
@given(changes)
def test_nothing_of_a_pool_is_ever_lost(reserved: str, events: list[tuple[str, int]]) -> None:
    quotas = [quota("a", 2, 6), quota("b", 3)]
    cluster = run(*nodes(2), pool(capacity={"reserved": reserved}, quotas=quotas))
    for number, (kind, which) in enumerate(events):
        change(cluster, kind, which, number)
        cluster.advance(30.0)
        offered = sum(int(n.status.allocatable[GPU].amount) for n in cluster.api.list(Node))
        if not offered:
            continue
        found = status(cluster)
        assert found["total"] == sum(v for name, v in found.items() if name != "total")
        assert found["total"] == offered
        assert found["allocated"] == sum(tenants(cluster).values())
        assert tenants(cluster)["a"] <= 6


def change(cluster: Cluster, kind: str, which: int, number: int) -> None:
    known = cluster.api.list(Node)
    if kind == "add":
        (one,) = pods("ab"[which % 2], 1)
        cluster.add(replace(one, metadata=replace(one.metadata, name=f"x-{number}")))
    elif kind == "delete":
        living = cluster.api.list(Pod)
        if living:
            cluster.api.delete(Pod, living[which % len(living)].key, grace=0)
    elif kind == "grow":
        (one,) = nodes(1)
        meta = replace(one.metadata, name=f"new-{number}")
        cluster.add(replace(one, metadata=meta))
    elif known:
        node = known[which % len(known)]
        if kind == "remove":
            for pod in cluster.api.list(Pod):
                if pod.spec.node_name == node.key:
                    cluster.api.delete(Pod, pod.key, grace=0)
            cluster.api.delete(Node, node.key)
            return
        ready = NodeCondition("Ready", "False" if kind == "fail" else "True")
        spec = replace(node.spec, unschedulable=kind == "cordon")
        state = replace(node.status, conditions=(ready,))
        cluster.api.update(replace(node, spec=spec, status=state))
    cluster.schedule()


def test_an_elastic_job_that_is_not_preemptible_keeps_its_minimum() -> None:
    def elastic(preemptible: bool) -> Cluster:
        container = {"name": "c", "image": "i"}
        job = make_object(
            {
                "apiVersion": "bayplan.dev/v1alpha1",
                "kind": "ElasticJob",
                "metadata": {"name": "x", "namespace": "a"},
                "spec": {
                    "pool": "p",
                    "preemptible": preemptible,
                    "scaling": {"minReplicas": 4, "maxReplicas": 4, "gpuPerReplica": 1},
                    "template": {"spec": {"containers": [container]}},
                },
            }
        )
        quotas = [quota("a", 0), quota("b", 4)]
        cluster = Cluster([*nodes(1), pool(quotas=quotas)])
        start_controllers(cluster.api)
        cluster.add(job)
        cluster.advance(60.0)
        assert tenants(cluster) == {"a": 4}
        cluster.add(*pods("b", 4))
        cluster.advance(300.0)
        return cluster

    assert tenants(elastic(preemptible=True)) == {"b": 4}
    assert tenants(elastic(preemptible=False)) == {"a": 4}
