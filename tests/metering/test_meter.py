"""The meter: what pods hold, who pays, and what nodes offer in which state."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.examples import examples

from bayplan.api import ApiObject, Pod, ResourceClaim
from bayplan.api.dra import ResourceClaimStatus
from bayplan.cluster.protocol import WatchEvent, WatchType
from bayplan.errors import Stopped
from bayplan.metering.journal import Journal
from bayplan.metering.meter import Meter
from bayplan.metering.record import CapacityState, UsageRecord
from bayplan.testing.builders import make_node, make_object, make_pod

START = 1_790_000_000
END = 2**60
IN_SERVICE, RESERVED = CapacityState.IN_SERVICE, CapacityState.RESERVED
MAINTENANCE, FAILED = CapacityState.MAINTENANCE, CapacityState.FAILED


class Stage:
    """A meter, its clock in seconds from the start, and short ways to tell it of objects."""

    def __init__(self) -> None:
        self.at = 0.0
        self.journal = Journal()
        self.spares: set[str] | None = set()
        self.meter = self.started()

    def started(self) -> Meter:
        """Return a meter that goes on from the journal, as after a kill."""
        return Meter(self.journal, lambda: START + self.at, lambda pod: "q", lambda: self.spares)

    def see(self, *objects: ApiObject, kind: WatchType = WatchType.MODIFIED) -> None:
        for obj in objects:
            self.meter.handle(WatchEvent(kind, obj))
        self.meter.settle()

    def gone(self, *objects: ApiObject) -> None:
        self.see(*objects, kind=WatchType.DELETED)

    def used(self) -> list[tuple[str, str, str, int, float, float | None]]:
        """Return (tenant, resource, model, amount, since, until) of all records, in order."""
        self.meter.flush()
        found = sorted(self.journal.records(0, END), key=lambda one: (one.since, repr(one)))
        return [
            (r.tenant, r.resource, r.model, r.amount, *self._span(r.since, r.until)) for r in found
        ]

    def offered(self, resource: str) -> list[tuple[CapacityState, int, float, float | None]]:
        self.meter.flush()
        found = [one for one in self.journal.capacity(0, END) if one.resource == resource]
        found.sort(key=lambda one: (one.since, repr(one)))
        return [(one.state, one.amount, *self._span(one.since, one.until)) for one in found]

    @staticmethod
    def _span(since: int, until: int | None) -> tuple[float, float | None]:
        return since / 1000 - START, None if until is None else until / 1000 - START


@pytest.fixture
def stage() -> Stage:
    return Stage()


def gpu_node(name: str = "n1", **changes: Any) -> ApiObject:
    labels = {"nvidia.com/gpu.product": "H100", "pool": "main"}
    return make_node(name, gpu=8, labels=labels, **changes)


def gpu_pod(name: str = "a", gpus: int = 2, node: str = "n1", **changes: Any) -> Pod:
    pod = make_pod(name, cpu=None, memory=None, gpu=gpus, node=node, **changes)
    return replace(pod, metadata=replace(pod.metadata, uid=f"uid-{name}"))


def test_a_pod_holds_its_requests_from_binding_to_end(stage: Stage) -> None:
    stage.see(gpu_node())
    pod = make_pod("a", cpu="1500m", memory="1Gi", gpu=2, namespace="red", owner="Job/train")
    stage.see(pod)
    stage.at = 5.25
    bound = replace(pod, spec=replace(pod.spec, node_name="n1"))
    stage.see(bound, bound)
    stage.at = 9
    stage.gone(bound)
    assert stage.used() == [
        ("red", "cpu", "", 1500, 5.25, 9.0),
        ("red", "memory", "", 2**30 * 1000, 5.25, 9.0),
        ("red", "nvidia.com/gpu", "H100", 2000, 5.25, 9.0),
    ]
    (record,) = (one for one in stage.journal.records(0, END) if one.resource == "cpu")
    assert (record.job, record.pod, record.queue, record.node) == ("red/train", "red/a", "q", "n1")


def test_a_new_tenant_or_amount_ends_a_record_and_begins_the_next(stage: Stage) -> None:
    pod = gpu_pod()
    stage.see(gpu_node(), pod)
    stage.at = 10
    labels = {"ai.example.com/tenant": "blue"}
    moved = replace(pod, metadata=replace(pod.metadata, labels=labels))
    stage.see(moved)
    stage.at = 12
    stage.see(replace(moved, metadata=replace(moved.metadata, labels={**labels, "x": "y"})))
    assert stage.used() == [
        ("default", "nvidia.com/gpu", "H100", 2000, 0, 10),
        ("blue", "nvidia.com/gpu", "H100", 2000, 10, None),
    ]


def test_shares_count_as_parts_once_the_node_registers_its_gpus(stage: Stage) -> None:
    node = make_node("n1", gpu=20)
    pod = gpu_pod(gpus=1, **{"nvidia.com/gpumem": 20_000})
    stage.see(node, pod)
    stage.at = 10
    one = {"count": 10, "devmem": 80_000, "devcore": 100, "type": "H100", "health": True}
    gpus = [{"id": f"GPU-{index}", "index": index, **one} for index in range(2)]
    noted = {"hami.io/node-nvidia-register": json.dumps(gpus)}
    stage.see(replace(node, metadata=replace(node.metadata, annotations=noted)))
    assert stage.used() == [
        ("default", "nvidia.com/gpu", "", 1000, 0, 10),
        ("default", "nvidia.com/gpu", "", 250, 10, None),
    ]
    in_service = [one for one in stage.offered("nvidia.com/gpu") if one[0] is IN_SERVICE]
    assert [amount for _, amount, *_ in in_service] == [20_000, 2_000]


def test_what_runs_on_a_cordoned_node_counts_as_in_service(stage: Stage) -> None:
    pod = gpu_pod()
    stage.see(gpu_node(), pod)
    stage.at = 10
    stage.see(gpu_node(unschedulable=True))
    stage.at = 20
    stage.gone(pod)
    stage.at = 30
    stage.see(gpu_node())
    assert stage.offered("nvidia.com/gpu") == [
        (IN_SERVICE, 8000, 0, 10),
        (IN_SERVICE, 2000, 10, 20),
        (MAINTENANCE, 6000, 10, 20),
        (MAINTENANCE, 8000, 20, 30),
        (IN_SERVICE, 8000, 30, None),
    ]


def test_nodes_fail_and_leave(stage: Stage) -> None:
    node = gpu_node()
    stage.see(node)
    stage.at = 1
    stage.see(gpu_node(taints=["node.kubernetes.io/unreachable:NoExecute"]))
    stage.at = 2
    stage.gone(node)
    assert stage.offered("nvidia.com/gpu") == [(IN_SERVICE, 8000, 0, 1), (FAILED, 8000, 1, 2)]


POOL = {
    "apiVersion": "bayplan.dev/v1alpha1",
    "kind": "ComputePool",
    "metadata": {"name": "main"},
    "spec": {
        "nodeSelector": {"pool": "main"},
        "capacity": {"reserved": "25%"},
        "quotas": [{"tenant": "red", "namespaces": ["team-r"]}],
    },
}


def test_a_pool_names_tenants_and_keeps_some_free(stage: Stage) -> None:
    stage.see(gpu_node("n1"), gpu_node("n2"), make_object(POOL))
    stage.at = 5
    stage.see(gpu_pod("a", 6, "n1", namespace="team-r"), gpu_pod("b", 5, "n2"))
    stage.meter.flush()
    assert [(one.tenant, one.pool) for one in stage.journal.records(0, END)] == [
        ("red", "main"),
        ("default", "main"),
    ]
    now = [
        (one.node, one.state, one.amount)
        for one in stage.journal.capacity((START + 5) * 1000, END)
        if one.resource == "nvidia.com/gpu" and one.until is None
    ]
    assert sorted(now, key=repr) == [
        ("n1", IN_SERVICE, 6000),
        ("n1", RESERVED, 2000),
        ("n2", IN_SERVICE, 6000),
        ("n2", RESERVED, 2000),
    ]


def test_what_is_free_of_a_spare_is_reserved(stage: Stage) -> None:
    node = gpu_node("n1")
    stage.see(
        node, gpu_node("n2"), make_object(POOL | {"spec": {"nodeSelector": {"pool": "main"}}})
    )
    stage.at, stage.spares = 1, {"n1", "unknown"}
    stage.see()
    stage.at = 2
    # Preemptible work may use it meanwhile, and pays for that.
    stage.see(gpu_pod("low", 3, "n1"))
    stage.at, stage.spares = 3, set()
    stage.see()
    assert stage.offered("nvidia.com/gpu") == [
        (IN_SERVICE, 8000, 0, 1),
        (IN_SERVICE, 8000, 0, None),
        (RESERVED, 8000, 1, 2),
        (IN_SERVICE, 3000, 2, 3),
        (RESERVED, 5000, 2, 3),
        (IN_SERVICE, 8000, 3, None),
    ]


def test_a_spare_that_was_used_up_while_nobody_looked_is_reserved_no_more(stage: Stage) -> None:
    stage.spares = {"n1"}
    stage.see(gpu_node("n1"))
    stage.meter.flush()
    stage.at, stage.spares = 5, set()
    stage.meter = stage.started()
    stage.see(gpu_node("n1"))
    assert [one[:2] for one in stage.offered("nvidia.com/gpu") if one[3] is None] == [
        (IN_SERVICE, 8000)
    ]


def test_a_spare_stays_one_until_it_is_known_after_a_restart(stage: Stage) -> None:
    stage.spares = {"n1"}
    stage.see(gpu_node("n1"))
    stage.meter.flush()
    stage.at, stage.spares = 5, None
    stage.meter = stage.started()
    stage.see(gpu_node("n1"))
    stage.at, stage.spares = 6, {"n1"}
    stage.see()
    found = stage.offered("nvidia.com/gpu")
    assert [one for one in found if one[1:] != (8000, 0, 0)] == [(RESERVED, 8000, 0, None)]


def test_a_pool_keeps_its_growth_free_beside_its_spares(stage: Stage) -> None:
    def kept() -> list[tuple[str, int]]:
        stage.meter.flush()
        found = stage.journal.capacity((START + stage.at) * 1000, END)
        return sorted(
            (one.node, one.amount)
            for one in found
            if one.resource == "nvidia.com/gpu" and one.state is RESERVED and one.until is None
        )

    stage.spares = {"n10"}
    stage.see(gpu_node("n2"), gpu_node("n10"), make_object(POOL))
    stage.at = 1
    assert kept() == [("n10", 8000), ("n2", 4000)]
    stage.at = 2
    stage.meter = stage.started()
    stage.see(gpu_node("n2"), gpu_node("n10"), make_object(POOL))
    stage.at = 3
    assert kept() == [("n10", 8000), ("n2", 4000)]
    stage.at, stage.spares = 4, {"n2"}
    stage.see()
    stage.at = 5
    assert kept() == [("n10", 4000), ("n2", 8000)]


def slices_of(taints: list[dict[str, str]] | None = None) -> list[ApiObject]:
    product = {"productName": {"string": "B200"}}
    part = {"counterSet": "gpu-1", "counters": {"slices": {"value": "3"}}}
    counters = {"name": "gpu-1", "counters": {"slices": {"value": "7"}}}
    devices = [
        {"name": "gpu-0", "attributes": product, "taints": taints or []},
        {"name": "mig-1", "attributes": product, "consumesCounters": [part]},
        {"name": "mig-2", "attributes": product, "consumesCounters": [part]},
    ]
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 2}
    plain = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    both = {"driver": "gpu.nvidia.com", "nodeName": "n1", "pool": pool}
    return [
        make_object({**plain, "metadata": {"name": name}, "spec": {**both, **spec}})
        for name, spec in (("c", {"sharedCounters": [counters]}), ("d", {"devices": devices}))
    ]


def claim_of(*consumers: str) -> ApiObject:
    device = {"request": "r", "driver": "gpu.nvidia.com", "pool": "n1"}
    results = [{**device, "device": "gpu-0"}, {**device, "device": "mig-1"}]
    return make_object(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "c", "namespace": "default"},
            "spec": {"devices": {"requests": []}},
            "status": {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [{"resource": "pods", "name": one, "uid": one} for one in consumers],
            },
        }
    )


def test_claimed_devices_count_once_and_partitions_as_parts(stage: Stage) -> None:
    first, second = (gpu_pod(name, 0) for name in "ab")
    stage.see(make_node("n1"), *slices_of(), claim_of("uid-a", "uid-b"), first, second)
    stage.at = 4
    stage.gone(first)
    stage.at = 6
    stage.see(claim_of())
    assert stage.used() == [
        ("default", "gpu.nvidia.com", "B200", 1428, 0, 4),
        ("default", "gpu.nvidia.com", "B200", 1428, 4, 6),
    ]
    assert {one.pod for one in stage.journal.records(0, END)} == {"default/a", "default/b"}
    assert stage.offered("gpu.nvidia.com") == [(IN_SERVICE, 2000, 0, None)]


def test_tainted_devices_are_out_of_service(stage: Stage) -> None:
    stage.see(make_node("n1"), *slices_of())
    stage.at = 1
    stage.see(*slices_of([{"key": "driver/unhealthy", "effect": "NoExecute"}]))
    rule = {
        "apiVersion": "resource.k8s.io/v1beta2",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "fix"},
        "spec": {
            "taint": {"key": "fix", "effect": "NoSchedule"},
            "deviceSelector": {"pool": "n1", "device": "mig-1"},
        },
    }
    stage.at = 2
    stage.see(make_object(rule))
    assert stage.offered("gpu.nvidia.com") == [
        (IN_SERVICE, 2000, 0, 1),
        (FAILED, 1000, 1, None),
        (IN_SERVICE, 1000, 1, 2),
        (IN_SERVICE, 572, 2, None),
        (MAINTENANCE, 428, 2, None),
    ]
    stage.at = 3
    rule["spec"]["deviceSelector"] = {"pool": "n1"}
    stage.see(make_object(rule))
    left = [one for one in stage.offered("gpu.nvidia.com") if one[3] is None]
    assert left == [(FAILED, 1000, 1, None), (MAINTENANCE, 1000, 3, None)]


def test_what_a_pod_holds_is_in_service_also_on_a_device_with_a_taint(stage: Stage) -> None:
    taint = {"key": "driver/unhealthy", "effect": "NoExecute"}
    stage.see(make_node("n1"), *slices_of([taint]), claim_of("uid-a"), gpu_pod("a", 0))
    # The other device is free for others.
    assert stage.offered("gpu.nvidia.com") == [(IN_SERVICE, 2000, 0, None)]
    stage.at = 1
    released = claim_of()
    assert isinstance(released, ResourceClaim)
    stage.see(replace(released, status=ResourceClaimStatus()))
    stage.gone(gpu_pod("a", 0))
    left = {one[:2] for one in stage.offered("gpu.nvidia.com") if one[3] is None}
    assert left == {(IN_SERVICE, 1000), (FAILED, 1000)}


def test_a_pool_is_charged_for_the_devices_that_it_selects_only(stage: Stage) -> None:
    selects = 'device.attributes["gpu.nvidia.com"].memory > 100'
    spec = {**POOL["spec"], "deviceSelector": selects, "capacity": {"reserved": "50%"}}
    node = make_node("n1", labels={"pool": "main"})
    slice_ = device_slice(SIZES)
    stage.see(node, slice_, make_object({**POOL, "spec": spec}))
    stage.at = 1
    users = [gpu_pod("a", 0), claim_on("a", "large-0"), gpu_pod("b", 0), claim_on("b", "small-0")]
    stage.see(*users)
    stage.meter.flush()
    stage.at = 2
    stage.meter = Meter(stage.journal, lambda: START + stage.at, lambda pod: "q")
    stage.see(node, slice_, make_object({**POOL, "spec": spec}), *users)
    stage.at = 3
    stage.gone(gpu_pod("b", 0))
    stage.meter.flush()
    found = [one for one in stage.journal.records(0, END) if one.resource == "gpu.nvidia.com"]
    assert sorted((one.pod, one.pool, one.amount) for one in found) == [
        ("default/a", "main", 1000),
        ("default/b", "", 1000),
    ], "also after a restart"
    now = [one for one in stage.journal.capacity(0, END) if one.until is None]
    devices = {(one.pool, one.state, one.amount) for one in now if one.resource == "gpu.nvidia.com"}
    assert devices == {("main", IN_SERVICE, 1000), ("main", RESERVED, 1000), ("", IN_SERVICE, 1000)}


SIZES = {"large-0": 192, "large-1": 192, "small-0": 80}
DEVICES = st.sampled_from(sorted(SIZES))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["claim", "release", "taint", "fix"]), DEVICES),
        st.tuples(st.sampled_from(["select", "all", "restart"]), st.just("")),
    ),
    max_size=12,
)


@examples(40)
@given(STEPS)
def test_every_device_is_accounted_for_at_every_moment(steps: list[tuple[str, str]]) -> None:
    stage, tainted, users = Stage(), set[str](), set[str]()
    spec = {**POOL["spec"], "capacity": {"reserved": "50%"}}

    def pool() -> ApiObject:
        return make_object({**POOL, "spec": spec})

    def everything() -> list[ApiObject]:
        claims = [one for name in sorted(users) for one in (claim_on(name, name), gpu_pod(name, 0))]
        node = make_node("n1", labels={"pool": "main"})
        return [node, device_slice(SIZES, tainted), pool(), *claims]

    stage.see(*everything())
    for at, (kind, device) in enumerate(steps, 1):
        stage.at = at
        if kind == "claim":
            users.add(device)
        elif kind == "release" and device in users:
            users.discard(device)
            stage.gone(gpu_pod(device, 0), claim_on(device, device))
        elif kind in ("taint", "fix"):
            (tainted.add if kind == "taint" else tainted.discard)(device)
        elif kind in ("select", "all"):
            most = 'device.attributes["gpu.nvidia.com"].memory > 100'
            spec["deviceSelector"] = most if kind == "select" else ""
        elif kind == "restart":
            stage.meter.flush()
            stage.meter = Meter(stage.journal, lambda: START + stage.at, lambda pod: "q")
        stage.see(*everything())
        now = devices_now(stage)
        assert sum(amount for amount, *_ in now) == 3000
        assert sum(amount for amount, _, state in now if state is FAILED) == 1000 * len(
            tainted - users
        )
        selected = {n for n, size in SIZES.items() if not spec.get("deviceSelector") or size > 100}
        assert sum(amount for amount, pool, _ in now if pool == "main") == 1000 * len(selected)
        held = [one for one in stage.journal.records(0, END) if one.until is None]
        charged = {one.pod: one.pool for one in held if one.resource == "gpu.nvidia.com"}
        pools = {f"default/{name}": "main" if name in selected else "" for name in users}
        assert charged == pools


def devices_now(stage: Stage) -> list[tuple[int, str, CapacityState]]:
    """Return amount, pool and state of the devices that are offered now."""
    stage.meter.flush()
    return [
        (one.amount, one.pool, one.state)
        for one in stage.journal.capacity(0, END)
        if one.resource == "gpu.nvidia.com" and one.until is None
    ]


def device_slice(sizes: dict[str, int], tainted: Collection[str] = ()) -> ApiObject:
    bad = [{"key": "unhealthy", "effect": "NoExecute"}]
    devices = [
        {
            "name": name,
            "attributes": {"memory": {"int": size}, "model": {"string": "X"}},
            "taints": bad if name in tainted else [],
        }
        for name, size in sizes.items()
    ]
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "n1", "pool": pool, "devices": devices}
    plain = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    return make_object({**plain, "metadata": {"name": "d"}, "spec": spec})


def claim_on(pod: str, device: str) -> ApiObject:
    result = {"request": "r", "driver": "gpu.nvidia.com", "pool": "n1", "device": device}
    user = {"resource": "pods", "name": pod, "uid": f"uid-{pod}"}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
    plain = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    meta = {"name": pod, "namespace": "default"}
    return make_object(
        {**plain, "metadata": meta, "spec": {"devices": {"requests": []}}, "status": status}
    )


def test_a_clock_that_is_set_back_neither_charges_twice_nor_loses_time(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "bayplan.metering")
    pod = gpu_pod()
    stage.see(gpu_node(), pod)
    stage.at = 100
    stage.see(gpu_node())
    for stage.at in (40, 50):
        other = gpu_pod("b")
        stage.see(other)
        stage.gone(other)
    stage.at = 120
    stage.gone(pod)
    assert stage.used() == [("default", "nvidia.com/gpu", "H100", 2000, 0, 120)]
    assert stage.meter.clock.jumps == 1
    assert len(caplog.records) == 1


def test_one_process_writes(stage: Stage) -> None:
    stage.see(gpu_node(), gpu_pod())
    stage.meter.flush()
    other = Meter(stage.journal, lambda: START + 5)
    other.handle(WatchEvent(WatchType.ADDED, gpu_node()))
    other.handle(WatchEvent(WatchType.ADDED, gpu_pod()))
    other.settle()
    stolen = stage.journal._known
    stage.at = 6
    stage.journal._known = replace_writer(stolen)
    with pytest.raises(Stopped):
        stage.meter.flush()
    stage.journal._known = stolen
    other.flush()
    assert len(list(stage.journal.records(0, END))) == 2  # The queue is another: "" instead of q.


def replace_writer(known: Any) -> Any:
    return replace(known, writer="somebody else")


def test_without_changes_only_the_heartbeat_is_written_now_and_then(stage: Stage) -> None:
    stage.see(gpu_node())
    assert stage.meter.take() is not None
    stage.at = 5
    stage.meter.settle()
    assert stage.meter.take() is None
    stage.at = 10
    stage.meter.settle()
    batch = stage.meter.take()
    assert batch is not None
    assert (batch.opened, batch.closed, batch.heartbeat) == ([], [], (START + 10) * 1000)


def test_a_process_on_standby_takes_over_without_a_gap(stage: Stage) -> None:
    pod = gpu_pod()
    standby = Meter(stage.journal, lambda: START + stage.at, lambda pod: "q")
    for obj in (gpu_node(), pod):
        standby.handle(WatchEvent(WatchType.ADDED, obj))
        standby.stand_by()
        stage.see(obj)
    stage.at = 7
    stage.meter.settle()
    stage.meter.flush()
    stage.at = 20
    standby.settle()
    stage.at = 30
    standby.handle(WatchEvent(WatchType.DELETED, pod))
    standby.settle()
    standby.flush()
    found = list(stage.journal.records(0, END))
    assert [(one.since, one.until) for one in found] == [(START * 1000, (START + 30) * 1000)]
    assert all(isinstance(one, UsageRecord) for one in found)


def test_absurd_amounts_of_one_pod_and_node_keep_the_journal_going(stage: Stage) -> None:
    stage.see(make_node("n1", cpu="9E", memory="9E"), make_node("n2", cpu=8))
    absurd = [make_pod(f"a{i}", cpu=2**43, memory=2**53, node="n1") for i in range(3)]
    stage.see(*absurd, make_pod("fine", cpu=2, memory=None, node="n2"))
    stage.at = 3600
    stage.gone(*absurd, make_pod("fine", cpu=2, memory=None, node="n2"))
    fine = [(amount, since, until) for *_, amount, since, until in stage.used() if amount == 2000]
    assert fine == [(2000, 0, 3600)]
    assert max(amount for _, amount, *_ in stage.offered("cpu")) == 2**58


@pytest.mark.parametrize("restarts", [False, True])
def test_a_clock_that_was_ahead_for_a_moment_costs_nobody_and_nothing(
    stage: Stage, restarts: bool
) -> None:
    first, later, short = (
        replace(pod, metadata=replace(pod.metadata, uid=pod.metadata.name))
        for pod in (make_pod(n, cpu=c, node="n1") for n, c in (("a", 1), ("b", 8), ("c", 2)))
    )
    stage.see(make_node("n1", cpu=64), first, short)
    stage.at = 86400
    stage.see(make_node("n1", cpu=32))
    stage.meter.flush()
    stage.at = 30
    if restarts:
        stage.meter = Meter(stage.journal, lambda: START + stage.at, lambda pod: "q")
    stage.see(make_node("n1", cpu=32), first, short)
    stage.at = 60
    stage.gone(short)
    stage.at = 90
    stage.see(later)
    stage.meter.flush()
    stage.at = 90 + 3 * 3600
    stage.gone(later)
    stage.at += 60
    stage.gone(first)
    cpu = [
        (amount, until - since)
        for _, name, _, amount, since, until in stage.used()
        if name == "cpu" and until is not None and until > since
    ]
    assert cpu == [(1000, 90 + 3 * 3600 + 60), (2000, 60), (8000, 3 * 3600)]
    assert stage.journal.heartbeat == (START + stage.at) * 1000


def test_a_clock_that_was_behind_for_a_moment_costs_that_moment(stage: Stage) -> None:
    pod = make_pod("a", cpu=1, node="n1")
    stage.see(make_node("n1", cpu=64))
    stage.at = -86400
    stage.see(pod)
    stage.at = 3600
    stage.gone(pod)
    assert [(since, until) for *_, since, until in stage.used()][:1] == [(0, 3600)]
