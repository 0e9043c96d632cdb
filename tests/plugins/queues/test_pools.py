"""Compute pools: tenants share the nodes of a pool, and the pool says what it has."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.examples import examples

from bayplan.api import ApiObject, ComputePool, Node, Pod, ResourceClaim, ResourceSlice
from bayplan.api.dra import DeviceTaintRule
from bayplan.api.node import NodeCondition
from bayplan.api.node_state import NodeState, state_of
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


def status(cluster: Cluster, name: str = "p", resource: str = GPU) -> dict[str, int]:
    """Return the GPUs of a pool by what becomes of them."""
    found = cluster.api.get(ComputePool, name)
    assert found is not None
    fields = ("total", "allocated", "available", "reserved", "maintenance", "failed")
    return {one: int(getattr(found.status, one)[resource].amount) for one in fields}


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
    assert 'tenant "a" of pool "p": limit of nvidia.com/gpu exceeded' in cluster.message("a/a-7")


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


def everything(name: str, **spec: Any) -> ApiObject:
    """Return a pool without a nodeSelector."""
    found = pool(name, **spec)
    assert isinstance(found, ComputePool)
    return replace(found, spec=replace(found.spec, node_selector={}))


def test_a_pool_without_a_node_selector_has_all_nodes() -> None:
    cluster = run(*nodes(1), *nodes(1, "q"), everything("p"), *pods("a", 6))
    assert tenants(cluster) == {"a": 6}
    assert status(cluster)["total"] == 8


def test_a_pool_may_have_a_device_selector_only() -> None:
    world = [*nodes(1), *nodes(1, "q"), devices_of("p0"), devices_of("q0"), *CLASSES]
    only = everything("p", deviceSelector=LARGE, quotas=[{"tenant": "a", "limit": {DRIVER: 1}}])
    cluster = run(*world, only, *claimant("x", "large"), *claimant("y", "large"))
    assert tenants(cluster) == {"a": 1}
    assert status(cluster, resource=DRIVER)["total"] == 4


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        (
            (everything("p"), pool("q", "p")),
            ", which has all nodes, as it has no spec.nodeSelector",
        ),
        ((pool("p"), everything("q")), "; without spec.nodeSelector it has all nodes"),
        ((everything("p"), everything("q")), "; without spec.nodeSelector it has all nodes"),
    ],
)
def test_a_pool_of_all_nodes_says_so_where_another_one_has_some(
    objects: tuple[ApiObject, ...], words: str
) -> None:
    cluster = run(*nodes(1), *objects, *pods("a", 1, "q"))
    assert tenants(cluster) == {}
    assert f'pool "q": node p0 is in pool "p" already{words}' in cluster.message("a/a-0")


def test_a_pool_that_does_not_exist_is_waited_for() -> None:
    cluster = run(*nodes(1), pool(), *pods("a", 1, "nowhere"))
    assert 'waiting for pool "nowhere", which does not exist' in cluster.message("a/a-0")
    cluster.add(*nodes(1, "nowhere"), pool("nowhere", "nowhere"))
    cluster.advance(60.0)
    assert tenants(cluster) == {"a": 1}


DRIVER = "gpu.nvidia.com"
LARGE = f'device.attributes["{DRIVER}"].memory > 100'


def devices_of(node: str, broken: tuple[str, ...] = (), version: int = 1) -> ApiObject:
    """Return a slice: two large devices and one that is small."""
    made = [
        {
            "name": name,
            "attributes": {"memory": {"int": size}, "model": {"string": model}},
            "taints": [{"key": "unhealthy", "effect": "NoExecute"}] if name in broken else [],
        }
        for name, size, model in (("l0", 192, "B200"), ("l1", 192, "B200"), ("s0", 80, "A100"))
    ]
    pool = {"name": node, "generation": version, "resourceSliceCount": 1}
    return make_object(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": node},
            "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": made},
        }
    )


def device_class(name: str, expression: str) -> ApiObject:
    return make_object(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        }
    )


def claimant(name: str, device_class: str) -> list[ApiObject]:
    """Return a pod of the pool with a claim for a device of a class."""
    request = {"name": "r", "exactly": {"deviceClassName": device_class}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "a"},
        "spec": {"devices": {"requests": [request]}},
    }
    uses = {"resourceClaims": [{"name": "c", "resourceClaimName": name}]}
    labels = {"bayplan.dev/pool": "p"}
    return [make_object(claim), make_pod(name, namespace="a", labels=labels, spec=uses)]


def taint_rule(device: str) -> ApiObject:
    taint = {"key": "fix", "effect": "NoSchedule"}
    return make_object(
        {
            "apiVersion": "resource.k8s.io/v1beta2",
            "kind": "DeviceTaintRule",
            "metadata": {"name": "fix"},
            "spec": {"taint": taint, "deviceSelector": {"device": device}},
        }
    )


CLASSES = (device_class("large", LARGE), device_class("small", f"!({LARGE})"))


def test_a_pool_counts_the_devices_that_it_selects_by_model() -> None:
    users = [*claimant("x", "large"), *claimant("y", "small")]
    both = [*nodes(2), devices_of("p0"), devices_of("p1"), *CLASSES]
    cluster = run(*both, pool(deviceSelector=LARGE), *users)
    assert tenants(cluster) == {"a": 2}
    found = status(cluster, resource=DRIVER)
    assert (found["total"], found["allocated"], found["available"]) == (4, 1, 3)
    stored = cluster.api.get(ComputePool, "p")
    assert stored is not None
    models = {m.model: int(m.total.amount) for m in stored.status.models if m.resource == DRIVER}
    assert models == {"B200": 4}
    assert status(run(*both, pool(), *users), resource=DRIVER)["total"] == 6, "all of them"


def test_devices_with_taints_are_out_of_service_unless_a_pod_has_them() -> None:
    cluster = run(*nodes(1), devices_of("p0"), *CLASSES, pool(), *claimant("y", "small"))
    cluster.api.update(devices_of("p0", broken=("s0", "l0"), version=2))
    cluster.api.create(taint_rule("l1"))
    cluster.advance(5.0)
    found = status(cluster, resource=DRIVER)
    assert found == {
        "total": 3,
        "allocated": 1,
        "available": 0,
        "reserved": 0,
        "maintenance": 1,
        "failed": 1,
    }


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("device.drivr == 'x'", "undefined field 'drivr'"),
        ("1 + 1", "must evaluate to bool"),
        ("device.driver ==", "Syntax error"),
    ],
)
def test_an_expression_that_does_not_compile_is_told_in_the_words_of_the_compiler(
    expression: str, words: str
) -> None:
    cluster = run(*nodes(1), devices_of("p0"), pool(deviceSelector=expression), *pods("a", 1))
    assert tenants(cluster) == {}
    assert "spec.deviceSelector does not compile" in cluster.message("a/a-0")
    stored = cluster.api.get(ComputePool, "p")
    assert stored is not None
    (condition,) = stored.status.conditions
    assert (condition.type, condition.status) == ("Ready", "False")
    assert words in condition.message
    assert DRIVER not in stored.status.total


def test_a_device_on_which_the_expression_fails_is_not_selected() -> None:
    missing = f'device.attributes["{DRIVER}"].serial == "x"'
    cluster = run(*nodes(1), devices_of("p0"), pool(deviceSelector=missing))
    stored = cluster.api.get(ComputePool, "p")
    assert stored is not None
    assert stored.status.phase == "Ready"
    assert DRIVER not in stored.status.total


changes = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("add", "delete", "cordon", "fail", "restore", "grow", "remove"),
                *("claim", "break", "rule"),
            ]
        ),
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
    spec = {"capacity": {"reserved": reserved}, "quotas": quotas, "deviceSelector": LARGE}
    cluster = run(*nodes(2), devices_of("p0"), devices_of("p1"), *CLASSES, pool(**spec))
    for number, (kind, which) in enumerate(events):
        change(cluster, kind, which, number)
        cluster.advance(30.0)
        offered = sum(int(n.status.allocatable[GPU].amount) for n in cluster.api.list(Node))
        if not offered:
            continue
        found = status(cluster)
        assert found["total"] == sum(v for name, v in found.items() if name != "total")
        assert found["total"] == offered
        with_gpus = [
            pod
            for pod in cluster.api.list(Pod)
            if pod.spec.node_name and not pod.spec.resource_claims
        ]
        assert found["allocated"] == len(with_gpus)
        assert sum(pod.metadata.namespace == "a" for pod in with_gpus) <= 6
        no_device_is_lost(cluster)


def no_device_is_lost(cluster: Cluster) -> None:
    """Check the large devices of the pool's nodes against the cluster's own objects."""
    names = {node.key for node in cluster.api.list(Node)}
    slices = [one for one in cluster.api.list(ResourceSlice) if one.spec.node_name in names]
    if not slices:
        return
    found = status(cluster, resource=DRIVER)
    assert found["total"] == sum(v for name, v in found.items() if name != "total")
    assert found["total"] == 2 * len(slices)
    held = {
        (one.pool, one.device)
        for claim in cluster.api.list(ResourceClaim)
        if claim.status.allocation is not None
        for one in claim.status.allocation.devices.results
        if one.pool in names and one.device != "s0"
    }
    assert found["allocated"] == len(held)
    fixed = {rule.spec.device_selector.device for rule in rules(cluster)}
    broken = fixing = 0
    for one in slices:
        node = cluster.api.get(Node, one.spec.node_name)
        assert node is not None
        if state_of(node) is not NodeState.IN_SERVICE:
            continue
        free = [d for d in one.spec.devices[:2] if (one.spec.pool.name, d.name) not in held]
        broken += sum(bool(d.taints) for d in free)
        fixing += sum(not d.taints and d.name in fixed for d in free)
    assert found["failed"] >= broken
    assert found["maintenance"] >= fixing
    if all(state_of(n) is NodeState.IN_SERVICE for n in cluster.api.list(Node)):
        assert (found["failed"], found["maintenance"]) == (broken, fixing)


def rules(cluster: Cluster) -> list[DeviceTaintRule]:
    return [one for one in cluster.api.list(DeviceTaintRule) if one.spec.device_selector]


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
    elif kind == "claim":
        cluster.add(*claimant(f"c-{number}", ("large", "small")[which % 2]))
    elif kind == "break" and f"p{which % 2}" in {node.key for node in known}:
        broken = tuple(name for at, name in enumerate(("l0", "l1", "s0")) if which >> at & 2)
        cluster.api.update(devices_of(f"p{which % 2}", broken, version=number + 2))
    elif kind == "rule":
        gone = cluster.api.list(DeviceTaintRule)
        if gone:
            cluster.api.delete(DeviceTaintRule, "fix")
        else:
            cluster.add(taint_rule(f"l{which % 2}"))
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
