"""Who uses the devices of claims: late consumers, and pods that taints drive out."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.api import DeviceTaintRule, Pod, ResourceClaim, ResourceSlice
from bayplan.api.dra import DeviceTaint, DeviceTaintRuleSpec, DeviceTaintSelector
from bayplan.api.objects import decode_part
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.testing import make_node, make_object, make_pod

DRIVER = "gpu.example.com"


def published(*taints: dict[str, str]) -> ResourceSlice:
    devices = [{"name": "gpu0", "taints": list(taints)}, {"name": "gpu1"}]
    spec = {
        "driver": DRIVER,
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": devices,
    }
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}}
    found = make_object(head | {"spec": spec})
    assert isinstance(found, ResourceSlice)
    return found


def claim(name: str, device: str, *tolerations: dict[str, Any]) -> ResourceClaim:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
    result = {"request": "gpu", "driver": DRIVER, "pool": "n", "device": device}
    status = {
        "allocation": {"devices": {"results": [result | {"tolerations": list(tolerations)}]}},
        "reservedFor": [{"resource": "pods", "name": name, "uid": name}],
    }
    spec = {"devices": {"requests": [request]}}
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
    found = make_object(head | {"spec": spec, "status": status})
    assert isinstance(found, ResourceClaim)
    return found


def pod(name: str) -> Pod:
    made = make_pod(name, node="n", spec={"terminationGracePeriodSeconds": 0})
    uses = decode_part(
        type(made.spec), {"resourceClaims": [{"name": "g", "resourceClaimName": name}]}
    )
    return replace(
        made,
        metadata=replace(made.metadata, uid=name),
        spec=replace(made.spec, resource_claims=uses.resource_claims),
        status=replace(made.status, phase="Running"),
    )


@pytest.fixture
def cluster() -> MemoryCluster:
    """Two pods with a device each; the second one tolerates a failure for 20 seconds."""
    made = MemoryCluster()
    start_controllers(made)
    bears = {"key": "failed", "operator": "Exists", "tolerationSeconds": 20}
    objects = make_node("n"), published(), claim("a", "gpu0"), claim("b", "gpu1", bears)
    for obj in (*objects, pod("a"), pod("b")):
        made.create(obj)
    made.deliver()
    return made


def passes(cluster: MemoryCluster, seconds: float) -> list[str]:
    end = cluster.now + seconds
    cluster.deliver()
    while (due := cluster.clock.next_time(False)) is not None and due <= end:
        cluster.clock.advance(due)
        cluster.deliver()
    cluster.clock.advance(end)
    cluster.deliver()
    return sorted(one.metadata.name for one in cluster.list(Pod))


def rule(effect: str, cluster: MemoryCluster, **selects: str) -> DeviceTaintRule:
    meta = make_node("rule").metadata
    taint = DeviceTaint("failed", effect, time_added=cluster.timestamp())
    return DeviceTaintRule(DeviceTaintRuleSpec(taint, DeviceTaintSelector(**selects)), meta)


def test_only_the_pod_of_the_tainted_device_goes(cluster: MemoryCluster) -> None:
    current = cluster.get(ResourceSlice, "s")
    assert current is not None
    tainted = published({"key": "xid", "value": "79", "effect": "NoExecute"})
    cluster.update(replace(current, spec=tainted.spec))
    assert passes(cluster, 5) == ["b"]


@pytest.mark.parametrize("effect", ["NoSchedule", "None"])
def test_other_effects_drive_nobody_out(cluster: MemoryCluster, effect: str) -> None:
    cluster.create(rule(effect, cluster, driver=DRIVER))
    assert passes(cluster, 60) == ["a", "b"]


def test_a_rule_taints_all_devices_that_it_selects_and_tolerations_end(
    cluster: MemoryCluster,
) -> None:
    cluster.create(rule("NoExecute", cluster, driver=DRIVER))
    assert passes(cluster, 10) == ["b"]
    assert passes(cluster, 11) == []


def test_a_taint_that_is_removed_in_time_drives_nobody_out(cluster: MemoryCluster) -> None:
    cluster.create(rule("NoExecute", cluster, pool="n", device="gpu1"))
    assert passes(cluster, 10) == ["a", "b"]
    cluster.delete(DeviceTaintRule, "rule")
    assert passes(cluster, 60) == ["a", "b"]


def test_a_consumer_that_is_added_after_its_pod_had_gone_is_taken_off(
    cluster: MemoryCluster,
) -> None:
    current = cluster.get(ResourceClaim, "default/a")
    assert current is not None
    (mine,) = current.status.reserved_for
    late = replace(mine, name="b", uid="of another pod of that name")
    cluster.update(replace(current, status=replace(current.status, reserved_for=(mine, late))))
    cluster.deliver()
    found = cluster.get(ResourceClaim, "default/a")
    assert found is not None
    assert found.status.reserved_for == (mine,)
