"""Quotas of pools' tenants count devices of claims as the pool's capacity does."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from tests.examples import examples

from bayplan.api import (
    ApiObject,
    ComputePool,
    DeviceClass,
    Node,
    Pod,
    ResourceClaim,
    ResourceSlice,
)
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.explain.pools import pool_reports
from bayplan.live.pool_metrics import PoolMetrics
from bayplan.testing import Cluster, make_node, make_object, make_pod
from bayplan_plugins.queues.plain.pools import PoolPolicy

DRIVER = "gpu.nvidia.com"
GPU = "nvidia.com/gpu"
GI = 2**30


def pool(*quotas: dict[str, Any], **spec: Any) -> ApiObject:
    whole = {"nodeSelector": {"pool": "p"}, "quotas": list(quotas), **spec}
    meta = {"name": "p"}
    kind = {"apiVersion": "bayplan.dev/v1alpha1", "kind": "ComputePool"}
    return make_object({**kind, "metadata": meta, "spec": whole})


def quota(tenant: str, limit: Any = None, guaranteed: Any = None) -> dict[str, Any]:
    return {"tenant": tenant, "limit": limit or {}, "guaranteed": guaranteed or {}}


def slice_of(node: str, devices: int = 4) -> ApiObject:
    """Return a slice of whole devices."""
    listed = [device(f"g{at}", "gpu") for at in range(devices)]
    return resource_slice(node, node, 1, devices=listed)


def halves_of(node: str, devices: int = 4) -> list[ApiObject]:
    """Return slices of devices each of which can be two halves instead."""
    listed = []
    for at in range(devices):
        listed.append(device(f"g{at}", "gpu", consumesCounters=counters(at, 80)))
        for half in range(2):
            listed.append(device(f"g{at}-{half}", "half", consumesCounters=counters(at, 40)))
    shared = [
        {"name": f"g{at}", "counters": {"memory": {"value": f"{80 * GI}"}}} for at in range(devices)
    ]
    return [
        resource_slice(node, node, 2, devices=listed),
        resource_slice(f"{node}-counters", node, 2, sharedCounters=shared),
    ]


def device(name: str, type_: str, **more: Any) -> dict[str, Any]:
    attributes = {"type": {"string": type_}, "model": {"string": "H100"}}
    return {"name": name, "attributes": attributes, **more}


def resource_slice(name: str, node: str, slices: int, **more: Any) -> ApiObject:
    pool = {"name": node, "generation": 1, "resourceSliceCount": slices}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, **more}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    return make_object({**kind, "metadata": {"name": name}, "spec": spec})


def counters(at: int, memory: int) -> list[Any]:
    return [{"counterSet": f"g{at}", "counters": {"memory": {"value": f"{memory * GI}"}}}]


def device_class(name: str = "gpu", type_: str = "gpu", **spec: Any) -> ApiObject:
    cel = {"expression": f'device.attributes["{DRIVER}"].type == "{type_}"'}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
    return make_object(
        {**kind, "metadata": {"name": name}, "spec": {"selectors": [{"cel": cel}], **spec}}
    )


def claim(name: str, count: int = 1, class_: str = "gpu", space: str = "a") -> ApiObject:
    exactly = {"deviceClassName": class_, "count": count}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    devices = {"requests": [{"name": "r", "exactly": exactly}]}
    meta = {"name": name, "namespace": space}
    return make_object({**kind, "metadata": meta, "spec": {"devices": devices}})


def user(name: str, claim: str, space: str = "a", **more: Any) -> Pod:
    uses = {"resourceClaims": [{"name": "c", "resourceClaimName": claim}]}
    labels = {"bayplan.dev/pool": "p"}
    return make_pod(name, namespace=space, labels=labels, spec=uses, **more)


def claimants(count: int, space: str = "a", class_: str = "gpu", **more: Any) -> list[ApiObject]:
    """Return pods of a tenant, each with a claim for a device of its own."""
    found: list[ApiObject] = []
    for at in range(count):
        own = f"{space}-{class_}-{at}"
        found += [claim(own, class_=class_, space=space), user(own, own, space, **more)]
    return found


def template(space: str) -> ApiObject:
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    meta = {"name": "one", "namespace": space}
    spec = {"spec": {"devices": {"requests": requests}}}
    return make_object({**kind, "metadata": meta, "spec": spec})


def with_templates(count: int, space: str) -> list[ApiObject]:
    """Return pods of a tenant for each of which a claim is made."""
    uses = {"resourceClaims": [{"name": "c", "resourceClaimTemplateName": "one"}]}
    labels = {"bayplan.dev/pool": "p"}
    made = [
        make_pod(f"{space}-{at}", namespace=space, labels=labels, spec=uses) for at in range(count)
    ]
    return [template(space), *made]


def with_plugin(name: str, gpus: int = 4) -> Node:
    return make_node(name, gpu=gpus, labels={"pool": "p"})


def with_slices(name: str) -> Node:
    return make_node(name, labels={"pool": "p"})


def run(*objects: ApiObject) -> Cluster:
    cluster = Cluster(objects)
    start_controllers(cluster.api)
    cluster.advance(60.0)
    return cluster


def tenants(cluster: Cluster) -> Counter[str]:
    placed = [pod for pod in cluster.api.list(Pod) if pod.spec.node_name]
    return Counter(pod.metadata.namespace for pod in placed)


def used(cluster: Cluster, tenant: str = "a", resource: str = DRIVER) -> float:
    (report,) = [one for one in cluster.scheduler.queues.reports() if one.name == f"p/{tenant}"]
    return report.resources[resource].used


def test_a_limit_of_devices_holds_for_claims_and_says_what_is_missing() -> None:
    quotas = quota("a", {DRIVER: 2})
    cluster = run(with_slices("n"), slice_of("n"), device_class(), pool(quotas), *claimants(4))
    assert tenants(cluster) == {"a": 2}
    assert used(cluster) == 2
    waiting = next(pod for pod in cluster.api.list(Pod) if not pod.spec.node_name)
    said = "limit of gpu.nvidia.com exceeded: 1 requested, 2 of 2 used, 1 missing"
    assert said in cluster.message(waiting.key)
    assert 'tenant "a" of pool "p"' in cluster.message(waiting.key)


def test_extended_resources_and_claims_of_a_tenant_share_one_limit() -> None:
    served = device_class(extendedResourceName=GPU)
    plugin = [
        make_pod(f"x-{at}", gpu=1, namespace="a", labels={"bayplan.dev/pool": "p"})
        for at in range(2)
    ]
    both = [with_plugin("old", 4), with_slices("new"), slice_of("new"), served]
    cluster = run(*both, pool(quota("a", {GPU: 3})), *plugin, *claimants(4))
    assert tenants(cluster) == {"a": 3}
    assert used(cluster, resource=GPU) == 3
    assert (
        sum("limit of nvidia.com/gpu" in cluster.message(pod.key) for pod in cluster.api.list(Pod))
        == 3
    )


def test_an_extended_resource_that_a_class_serves_counts_as_its_devices() -> None:
    served = device_class(extendedResourceName=GPU)
    asking = [
        make_pod(f"x-{at}", gpu=1, namespace="a", labels={"bayplan.dev/pool": "p"})
        for at in range(3)
    ]
    world = [with_slices("n"), slice_of("n"), served, pool(quota("a", {DRIVER: 3}))]
    cluster = run(*world, *asking, *claimants(2))
    assert tenants(cluster) == {"a": 3}
    assert used(cluster) == 3


def test_a_quota_may_name_a_class() -> None:
    classes = [device_class(), device_class("half", "half")]
    quotas = quota("a", {"deviceclass/half": 1})
    world = [with_slices("n"), *halves_of("n"), *classes, pool(quotas)]
    cluster = run(*world, *claimants(2), *claimants(3, class_="half"))
    assert tenants(cluster) == {"a": 3}
    assert used(cluster, resource="deviceclass/half") == 1


def test_partitions_count_as_parts_of_their_device() -> None:
    classes = [device_class(), device_class("half", "half")]
    world = [with_slices("n"), *halves_of("n"), *classes]
    cluster = run(*world, pool(quota("a", {DRIVER: 1.5})), *claimants(5, class_="half"))
    assert tenants(cluster) == {"a": 3}
    assert used(cluster) == 1.5


def test_alternatives_count_as_the_largest_until_one_is_chosen() -> None:
    classes = [device_class(), device_class("half", "half")]
    either = [
        {"name": "small", "deviceClassName": "half"},
        {"name": "large", "deviceClassName": "gpu"},
    ]
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    requests = [{"name": "r", "firstAvailable": either}]
    made: list[ApiObject] = []
    for name in ("x", "y"):
        meta, spec = {"name": name, "namespace": "a"}, {"devices": {"requests": requests}}
        made += [make_object({**kind, "metadata": meta, "spec": spec}), user(name, name)]
    world = [with_slices("n"), *halves_of("n"), *classes, pool(quota("a", {DRIVER: 1}))]
    cluster = run(*world, *made)
    assert tenants(cluster) == {"a": 1}, "the second one might get a whole device"
    assert used(cluster) == 0.5
    as_counted_from_nothing(cluster)


def test_a_shared_claim_is_charged_once_and_its_end_gives_back() -> None:
    shared = [claim("s", 2), *(user(f"s-{at}", "s") for at in range(3))]
    world = [with_slices("n"), slice_of("n"), device_class(), pool(quota("a", {DRIVER: 3}))]
    cluster = run(*world, *shared)
    assert (tenants(cluster), used(cluster)) == ({"a": 3}, 2)
    cluster.add(claim("t", 2), user("t", "t"))
    cluster.advance(60.0)
    assert tenants(cluster) == {"a": 3}
    for at in range(3):
        cluster.remove(f"a/s-{at}")
    cluster.advance(300.0)
    assert (tenants(cluster), used(cluster)) == ({"a": 1}, 2)


def test_a_restart_counts_the_same_again() -> None:
    world = [with_slices("n"), slice_of("n"), device_class(), pool(quota("a", {DRIVER: 2}))]
    cluster = run(*world, *claimants(3))
    kinds = (Node, ResourceSlice, DeviceClass, ComputePool, ResourceClaim, Pod)
    again = run(*(one for kind in kinds for one in cluster.api.list(kind)))
    assert tenants(again) == {"a": 2}
    assert used(again) == 2
    again.add(*claimants(1, space="b"))
    again.advance(60.0)
    assert tenants(again) == {"a": 2, "b": 1}


@pytest.mark.parametrize("unit", [DRIVER, "deviceclass/gpu"])
def test_a_tenant_takes_back_the_devices_that_it_is_guaranteed(unit: str) -> None:
    quotas = [quota("a", guaranteed={unit: 1}), quota("b", guaranteed={unit: 3})]
    world = [with_slices("n"), slice_of("n"), device_class(), pool(*quotas)]
    cluster = run(*world, *with_templates(4, "a"))
    assert tenants(cluster) == {"a": 4}
    cluster.add(*with_templates(4, "b"))
    cluster.advance(300.0)
    assert tenants(cluster) == {"a": 1, "b": 3}


def test_what_is_reserved_of_devices_stays_free() -> None:
    world = [with_slices("n"), slice_of("n"), device_class(), pool(capacity={"reserved": "25%"})]
    cluster = run(*world, *claimants(4))
    assert tenants(cluster) == {"a": 3}


def test_devices_that_come_later_count_at_once() -> None:
    world = [with_slices("n"), with_slices("m"), slice_of("n", 1), device_class()]
    cluster = run(*world, pool(quota("a", {"deviceclass/gpu": 3})), *claimants(4))
    assert tenants(cluster) == {"a": 1}
    cluster.add(slice_of("m", 4))
    cluster.advance(300.0)
    assert tenants(cluster) == {"a": 3}


def test_devices_that_a_pool_does_not_select_do_not_count() -> None:
    none = f'device.attributes["{DRIVER}"].model != "H100"'
    world = [with_slices("n"), slice_of("n"), device_class()]
    cluster = run(*world, pool(quota("a", {DRIVER: 1}), deviceSelector=none), *claimants(3))
    assert tenants(cluster) == {"a": 3}


def test_administrators_look_at_devices_without_taking_them() -> None:
    namespace = make_object(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "a", "labels": {"resource.kubernetes.io/admin-access": "true"}},
        }
    )
    exactly = {"deviceClassName": "gpu", "adminAccess": True, "allocationMode": "All"}
    looking = make_object(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "look", "namespace": "a"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
        }
    )
    world = [namespace, with_slices("n"), slice_of("n"), device_class()]
    cluster = run(*world, pool(quota("a", {DRIVER: 1})), looking, user("look", "look"))
    assert tenants(cluster) == {"a": 1}
    assert used(cluster) == 0


def test_a_tenant_s_devices_are_a_metric_and_in_the_report_of_the_pool() -> None:
    world = [with_slices("n"), *halves_of("n"), device_class("half", "half"), pool(quota("a"))]
    cluster = run(*world, *claimants(3, class_="half"))
    registry = CollectorRegistry()
    PoolMetrics(registry, lambda: cluster.scheduler)
    labels = {"pool": "p", "resource_type": DRIVER, "tenant_id": "a"}
    assert registry.get_sample_value("compute_pool_usage", labels) == 1.5
    (report,) = pool_reports(cluster.scheduler)
    (tenant,) = [one for one in report.as_json()["tenants"] if one["name"] == "p/a"]
    assert tenant["resources"][DRIVER]["used"] == 1.5
    assert not tenant["notes"]


events = st.lists(
    st.tuples(
        st.sampled_from(["claim", "share", "extended", "template", "remove", "slices"]),
        st.sampled_from("ab"),
        st.integers(1, 3),
    ),
    min_size=2,
    max_size=12,
)


@examples(25)
@given(events)
def test_no_tenant_exceeds_its_limit_and_the_ledger_counts_what_claims_hold(
    events: list[tuple[str, str, int]],
) -> None:
    served = device_class(extendedResourceName=GPU)
    quotas = [quota("a", {DRIVER: 3}), quota("b", {GPU: 2})]
    cluster = run(with_slices("n"), with_slices("m"), slice_of("n"), served, pool(*quotas))
    cluster.add(template("a"), template("b"))
    for number, (kind, space, count) in enumerate(events):
        happen(cluster, kind, space, count, f"x{number}")
        cluster.advance(30.0)
        held = {one: held_by(cluster, one) for one in "ab"}
        assert held["a"] <= 3
        assert held["b"] <= 2
        assert {one: used(cluster, one) for one in "ab"} == held
        as_counted_from_nothing(cluster)


def as_counted_from_nothing(cluster: Cluster) -> None:
    queues = cluster.profile.runtime.plugins["Queues"]
    (policy,) = [one for one in queues.policies if isinstance(one, PoolPolicy)]  # type: ignore[attr-defined]
    tree, plain = policy.ledger.tree, policy.ledger.recounted()
    for column in ("used", "demand"):
        followed, counted = getattr(tree, column), getattr(plain, column)
        for name, at in plain.column_of.items():
            own = followed[:, tree.column_of[name]]
            assert np.allclose(own, counted[:, at]), f"{column} of {name}"


def happen(cluster: Cluster, kind: str, space: str, count: int, name: str) -> None:
    labels = {"bayplan.dev/pool": "p"}
    if kind == "claim":
        cluster.add(claim(name, count, space=space), user(name, name, space))
    elif kind == "share":
        cluster.add(claim(name, space=space), *(user(f"{name}-{n}", name, space) for n in range(3)))
    elif kind == "extended":
        cluster.add(make_pod(name, gpu=count, namespace=space, labels=labels))
    elif kind == "template":
        uses = {"resourceClaims": [{"name": "c", "resourceClaimTemplateName": "one"}]}
        cluster.add(make_pod(name, namespace=space, labels=labels, spec=uses))
    elif kind == "slices" and cluster.api.get(ResourceSlice, "m") is None:
        cluster.add(slice_of("m"))
    elif kind == "remove":
        own = [pod for pod in cluster.api.list(Pod) if pod.metadata.namespace == space]
        for pod in own[:count]:
            cluster.api.delete(Pod, pod.key, grace=0)


def held_by(cluster: Cluster, space: str) -> int:
    """Return how many devices the claims of running pods of a namespace have."""
    running = {pod.metadata.uid for pod in cluster.api.list(Pod) if pod.spec.node_name}
    return sum(
        len(one.status.allocation.devices.results)
        for one in cluster.api.list(ResourceClaim)
        if one.metadata.namespace == space
        and one.status.allocation is not None
        and any(consumer.uid in running for consumer in one.status.reserved_for)
    )
