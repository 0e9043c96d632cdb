"""The node driver over its life: restarts, slices, health."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from tests.dra.driver.driver_stage import (
    MACHINE,
    DriverNode,
    EmbeddedApi,
    claim_pod,
    eventually,
    make_driver,
    short_folder,
    template,
)
from tests.dra.driver.fake_kubelet import Kubelet

from bayplan.api import Node
from bayplan.errors import BayplanError, ClusterError
from bayplan.testing import Cluster, make_node
from bayplan_dra.driver.publish.devices import DRIVER

# Restarts ------------------------------------------------------------------------------------


def test_a_socket_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    api = EmbeddedApi(Cluster([make_node("n")]).api)
    with pytest.raises(BayplanError, match="a socket's path has at most 107 bytes, this has"):
        make_driver(tmp_path / ("x" * 90), MACHINE, api)


def test_a_restart_brings_cdi_files_back_and_removes_stale_ones(node: DriverNode) -> None:
    claim = node.bind("p", "one")
    node.kubelet.prepare(claim)
    before = node.cdi()
    node.driver.stop()
    folder = node.root / "cdi"
    for path in folder.iterdir():
        path.unlink()
    (folder / f"{DRIVER}-claim_gone.json").write_text("{}")
    (folder / f"{DRIVER}-claim_half.json.tmp").write_text("{")
    (folder / "nvidia.yaml").write_text("{}")
    node.driver = node.start()
    (folder / "nvidia.yaml").unlink()
    assert node.cdi() == before
    assert node.kubelet.unprepare(claim) == {claim.metadata.name: ""}


def test_a_damaged_checkpoint_affects_only_its_own_claim(node: DriverNode) -> None:
    first, second = node.bind("p", "one"), node.bind("q", "one")
    node.kubelet.prepare(first, second)
    node.driver.stop()
    folder = node.root / "plugins" / DRIVER / "claims"
    path = folder / f"{first.metadata.uid}.json"
    path.write_bytes(path.read_bytes()[:40])
    (folder / "x.json.tmp").write_text("{")
    node.driver = node.start()
    assert list(node.cdi()) == [second.metadata.uid]
    assert sorted(one.suffix for one in folder.iterdir()) == [".damaged", ".json"]
    assert node.kubelet.prepare(first)[first.metadata.name].error == ""


def test_two_instances_during_an_update_agree(node: DriverNode) -> None:
    claim = node.bind("p", "two")
    first = node.kubelet.prepare(claim)
    writes = len(node.api.writes)
    old, node.driver = node.driver, node.start(pod_uid="11111111-2222-3333-4444-555555555555")
    assert node.kubelet.prepare(claim) == first
    old.stop()
    assert node.kubelet.prepare(claim) == first
    assert node.kubelet.unprepare(claim) == {claim.metadata.name: ""}
    assert len(node.api.writes) == writes, "slices flapped"


def test_no_call_is_lost_while_instances_take_turns(node: DriverNode) -> None:
    claims = [node.bind(f"p-{index}", "one") for index in range(4)]
    stopped = threading.Event()
    errors: list[str] = []
    calls = 0

    def call() -> None:
        nonlocal calls
        while not stopped.is_set():
            for answer in node.kubelet.prepare(*claims).values():
                errors.append(answer.error)
            errors.extend(node.kubelet.unprepare(*claims).values())
            calls += 2

    writes = len(node.api.writes)
    caller = threading.Thread(target=call)
    caller.start()
    for turn in range(4):
        old, node.driver = node.driver, node.start(pod_uid=f"0000000{turn}-1111")
        # The kubelet calls the newest; a call to the old one is answered before that ends.
        seen = calls
        eventually(lambda seen=seen: calls > seen + 2)
        old.stop()
    stopped.set()
    caller.join()
    assert set(errors) == {""}
    assert len(node.api.writes) == writes, "slices flapped"


# Slices --------------------------------------------------------------------------------------


def test_a_recreated_node_gets_its_own_slices(resyncing_node: DriverNode) -> None:
    node = resyncing_node
    with node.api.lock:
        api = node.cluster.api
        api.delete(Node, "n")
        api.create(make_node("n", cpu=64))
    new = api.get(Node, "n")
    assert new is not None
    uid = new.metadata.uid

    def owners() -> set[str]:
        return {one.uid for found in node.slices() for one in found.metadata.owner_references}

    eventually(lambda: owners() == {uid})


def test_the_devices_are_published_and_owned_by_the_node(node: DriverNode) -> None:
    (found,) = node.slices()
    assert found.metadata.name.startswith(f"00000-{DRIVER}-n-")
    (owner,) = found.metadata.owner_references
    assert (owner.kind, owner.name, owner.controller) == ("Node", "n", True)
    types = [device.attributes["type"].string for device in found.spec.devices]
    assert types.count("gpu") == 8
    assert found.spec.pool.resource_slice_count == 1


def test_a_deleted_slice_comes_back(resyncing_node: DriverNode) -> None:
    (found,) = resyncing_node.slices()
    resyncing_node.api.delete(found)
    eventually(resyncing_node.slices)


def test_an_unhealthy_device_has_a_taint_until_it_recovers(node: DriverNode) -> None:
    def taints() -> dict[str, list[str]]:
        (found,) = node.slices()
        return {one.name: [t.key for t in one.taints] for one in found.spec.devices if one.taints}

    node.driver.health.report("gpu-3", "xid", "Xid 79: fallen off the bus")
    eventually(lambda: taints() == {"gpu-3": [f"{DRIVER}/xid"]})
    generation = node.slices()[0].spec.pool.generation
    with node.api.lock:
        node.cluster.add(template("all", gpu=8), claim_pod("p", "all"))
        node.cluster.schedule()
        assert "1 tainted" in node.cluster.message("p")
    node.driver.health.report("gpu-3", "xid", "")
    eventually(lambda: taints() == {})
    assert node.slices()[0].spec.pool.generation == generation


def test_the_kubelet_gets_every_change_of_health(node: DriverNode) -> None:
    with node.kubelet.one_more_stream() as answers:
        assert {one.health for one in next(answers).values()} == {1}
        node.driver.health.report("gpu-3", "xid", "Xid 79")
        unhealthy = next(answers)["gpu-3"]
        assert (unhealthy.health, unhealthy.message, unhealthy.device.pool_name) == (
            2,
            "Xid 79",
            "n",
        )
        node.driver.health.report("gpu-3", "xid", "")
        assert next(answers)["gpu-3"].health == 1


def test_streams_of_health_leave_room_for_claims(node: DriverNode) -> None:
    claim = node.bind("p", "one")
    with ExitStack() as streams:
        for _ in range(3):
            next(streams.enter_context(node.kubelet.one_more_stream()))
        with (
            node.kubelet.one_more_stream() as one_more,
            pytest.raises(grpc.RpcError, match="at most 4"),
        ):
            next(one_more)
        assert node.kubelet.prepare(claim)[claim.metadata.name].error == ""

    def again() -> bool:
        with node.kubelet.one_more_stream() as answers:
            try:
                return bool(next(answers))
            except grpc.RpcError:
                return False

    eventually(again)


def test_a_failing_api_server_delays_only_publishing() -> None:
    with short_folder() as root:
        cluster = Cluster([make_node("n")])
        api = EmbeddedApi(cluster.api, failing=ClusterError("connection refused"))
        driver = make_driver(root, MACHINE, api)
        driver.start()
        assert driver.ready() == "not registered with the kubelet"
        kubelet = Kubelet(root)
        kubelet.advance()
        assert driver.ready() == "its slices are not published yet"
        api.failing = None
        eventually(lambda: driver.ready() == "")
        driver.stop()
        kubelet.stop()
