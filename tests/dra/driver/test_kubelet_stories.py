"""The driver under a kubelet that behaves like a real one: restarts, updates, forced deletions."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.dra.driver.driver_stage import (
    DriverNode,
    devices_of,
    eventually,
    shared_claim,
    short_folder,
    template,
)
from tests.dra.driver.fake_kubelet import (
    KILL_SECONDS,
    RECONCILE_SECONDS,
    RESYNC_SECONDS,
    WIPE_SECONDS,
)

from bayplan.api import Pod, ResourceClaim
from bayplan.errors import Transient
from bayplan_dra.driver import metrics
from bayplan_dra.driver.publish import loop
from bayplan_dra.driver.publish.devices import DRIVER

OLD, NEW = "aaaaaaaa-0000", "bbbbbbbb-0000"


@pytest.fixture
def timed_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[DriverNode]:
    """A node whose driver tries once only, and waits for the kubelet in the kubelet's time."""
    with short_folder() as root:
        clock = SimpleNamespace(monotonic=lambda: 0.0)
        monkeypatch.setattr(loop, "time", clock)
        made = DriverNode(root, patience_seconds=0.0)
        clock.monotonic = lambda: made.kubelet.now
        made.cluster.add(template("one", gpu=1), template("two", gpu=2, nic=1))
        yield made
        made.close()


def runs(node: DriverNode, pod: Pod) -> bool:
    return pod.metadata.uid in node.kubelet.running


def offered(node: DriverNode) -> list[str]:
    found = [device.name for one in node.slices() for device in one.spec.devices]
    return [name for name in found if name.startswith("gpu")]


def left(node: DriverNode) -> list[str]:
    """Return the names of all files of claims."""
    folders = (node.root / "cdi", node.root / "plugins" / DRIVER / "claims")
    return [path.name for folder in folders for path in folder.iterdir()]


# Slices --------------------------------------------------------------------------------------


def test_slices_come_back_as_soon_as_a_restarted_kubelet_knows_the_driver(
    timed_node: DriverNode,
) -> None:
    node = timed_node
    node.kubelet.advance(100)
    node.kubelet.restart()
    node.settle()
    assert node.slices() == []
    node.kubelet.advance()
    eventually(node.slices)


def test_a_restart_of_the_kubelet_between_two_watches_is_no_different(
    timed_node: DriverNode,
) -> None:
    node = timed_node
    node.kubelet.advance(100)
    with node.api.lock:
        node.api.end()
        node.kubelet.restart()
    eventually(lambda: node.api.follows)
    node.settle()
    assert node.slices() == []
    node.kubelet.advance()
    eventually(node.slices)


def test_slices_come_back_after_a_kubelet_that_deletes_them_late(timed_node: DriverNode) -> None:
    node = timed_node
    node.api.failing = Transient("connection refused")
    node.kubelet.restart()
    node.kubelet.advance(10)
    node.api.failing = None
    node.kubelet.advance()
    assert node.api.writes[-1] == "wipe"
    node.settle()
    node.kubelet.advance(10)
    node.driver.health.wake()
    node.settle()
    assert node.slices()


def test_nothing_is_offered_before_the_kubelet_knows_the_driver(timed_node: DriverNode) -> None:
    node = timed_node
    node.stop(node.driver)
    node.kubelet.restart()
    node.kubelet.stop()
    node.driver = node.made()
    node.driver.start()
    node.settle()
    assert node.slices() == []
    assert node.driver.ready() == "not registered with the kubelet"
    node.kubelet.start()
    node.kubelet.advance()
    eventually(node.slices)


def test_a_short_restart_keeps_the_slices_and_a_long_one_brings_them_back(
    timed_node: DriverNode,
) -> None:
    node = timed_node
    written = len(node.api.writes)
    node.stop(node.driver)
    node.kubelet.advance(WIPE_SECONDS - 2)
    node.driver = node.start()
    node.kubelet.advance(WIPE_SECONDS)
    assert len(node.api.writes) == written
    node.stop(node.driver)
    node.kubelet.advance(WIPE_SECONDS + 1)
    assert node.slices() == []
    node.driver = node.start()
    assert node.slices()


# Updates -------------------------------------------------------------------------------------


def test_during_an_update_the_newest_instance_publishes_until_it_is_gone(
    timed_node: DriverNode,
) -> None:
    node = timed_node
    node.stop(node.driver)
    old = node.start(pod_uid=OLD)
    node.driver = node.start(pod_uid=NEW, gpus=range(4))
    newest = [f"gpu-{index}" for index in range(4)]
    eventually(lambda: offered(node) == newest)
    old.health.report("gpu-6", "xid", "Xid 79")
    eventually(old.health.is_published)
    assert offered(node) == newest
    node.kill(node.driver)
    old.health.wake()
    eventually(lambda: len(offered(node)) == 8)
    node.stop(old)


def test_either_instance_of_an_update_knows_the_claims_of_the_other(
    timed_node: DriverNode,
) -> None:
    node = timed_node
    node.stop(node.driver)
    old = node.start(pod_uid=OLD)
    first = node.run("p", "one")
    node.driver = node.start(pod_uid=NEW)
    second = node.run("q", "one")
    node.stop(node.driver)
    node.delete(second)
    node.kubelet.advance(KILL_SECONDS)
    node.kubelet.restart_containers(first)
    assert len(left(node)) == 2
    node.driver = node.start(pod_uid=NEW)
    node.stop(old)
    node.delete(first)
    node.kubelet.advance(KILL_SECONDS)
    assert left(node) == []


def before_joint_edits(node: DriverNode, claim: ResourceClaim) -> None:
    """Write a claim's state as the driver did whose CDI files had edits for the whole file."""
    path = node.root / "plugins" / DRIVER / "claims" / f"{claim.metadata.uid}.json"
    content = json.loads(path.read_text())["claim"]
    spec = json.loads(content["spec"])
    devices = [one for one in spec["devices"] if one["name"].startswith(f"{claim.metadata.uid}-")]
    (joint,) = (one for one in spec["devices"] if one["name"] == claim.metadata.uid)
    spec.update(devices=devices, containerEdits=joint["containerEdits"])
    content["spec"] = json.dumps(spec)
    del content["joint"]
    raw = msgspec.json.encode(content)
    whole = {"version": 1, "checksum": zlib.crc32(raw), "claim": msgspec.Raw(raw)}
    path.write_bytes(msgspec.json.encode(whole))


def test_a_claim_of_an_older_version_works_after_an_upgrade(timed_node: DriverNode) -> None:
    node = timed_node
    pod = node.run("p", "two")
    claim = node.claim_of("p")
    before = node.kubelet.running[pod.metadata.uid]["c"]
    node.stop(node.driver)
    before_joint_edits(node, claim)
    node.driver = node.start()
    node.kubelet.running.clear()
    node.kubelet.restart()
    node.kubelet.advance(5)
    again = node.kubelet.running[pod.metadata.uid]["c"]
    assert again.environment == before.environment
    node.delete(pod)
    node.kubelet.advance(KILL_SECONDS)
    assert left(node) == []


# Pods ----------------------------------------------------------------------------------------


def test_a_pod_that_is_placed_while_the_driver_restarts_runs_at_the_next_resync(
    timed_node: DriverNode,
) -> None:
    node = timed_node
    node.stop(node.driver)
    pod = node.run("p", "one")
    assert "connection is down" in node.kubelet.why_not(pod)
    node.driver = node.start()
    node.kubelet.advance(RESYNC_SECONDS - 2)
    assert not runs(node, pod)
    node.kubelet.advance(2)
    assert runs(node, pod)


def test_a_pod_goes_on_when_the_kubelet_restarts_and_ends_as_usual(
    timed_node: DriverNode,
) -> None:
    node = timed_node
    pod = node.run("p", "two")
    asked = node.api.asked
    node.kubelet.restart()
    node.kubelet.advance(RESYNC_SECONDS)
    assert node.api.asked == asked, "the kubelet has its own record of a running pod's claims"
    node.kubelet.restart_containers(pod)
    node.delete(pod)
    node.kubelet.advance(KILL_SECONDS)
    assert left(node) == []


@pytest.mark.parametrize("deleted", [False, True])
def test_a_kill_before_the_answer_leaves_a_claim_that_is_used_or_cleaned_up(
    timed_node: DriverNode, monkeypatch: pytest.MonkeyPatch, deleted: bool
) -> None:
    node = timed_node

    def dies(*_: Any) -> None:
        for server in node.driver._servers:
            server._server.stop(None)
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(metrics, "claim_done", dies)
        node.stop(node.driver)
        node.driver = node.start()
        pod = node.run("p", "one")
    assert node.kubelet.why_not(pod)
    assert len(left(node)) == 2, "it was prepared"
    node.kill(node.driver)
    node.driver = node.start()
    if deleted:
        node.delete(pod)
        node.kubelet.advance(KILL_SECONDS)
        assert left(node) == []
    else:
        node.kubelet.advance(RESYNC_SECONDS)
        assert runs(node, pod)


def test_a_claim_that_pods_share_stays_until_the_last_has_ended(timed_node: DriverNode) -> None:
    node = timed_node
    with node.api.lock:
        node.cluster.add(shared_claim(gpu=1))
    first, second = node.run("p", "shared", a="gpu"), node.run("q", "shared")
    running = node.kubelet.running
    assert running[first.metadata.uid]["a"].environment["NVIDIA_VISIBLE_DEVICES"] == "0"
    node.delete(first)
    node.kubelet.advance(KILL_SECONDS)
    node.kubelet.restart_containers(second)
    assert len(left(node)) == 2
    node.delete(second)
    node.kubelet.advance(KILL_SECONDS)
    assert left(node) == []


# Deletion by force ---------------------------------------------------------------------------


def test_the_device_of_a_pod_deleted_by_force_goes_to_the_next_once_its_containers_are_gone(
    timed_node: DriverNode,
) -> None:
    node = timed_node
    first = node.run("p", "one")
    given = devices_of(node.claim_of("p"))
    node.delete(first, force=True)
    second = node.run("q", "one")
    assert devices_of(node.claim_of("q")) == given
    assert not (runs(node, first) and runs(node, second))
    node.kubelet.advance(RESYNC_SECONDS)
    assert runs(node, second)
    assert len(left(node)) == 2


def test_a_pod_deleted_by_force_while_the_kubelet_was_away_does_not_harm_the_next(
    timed_node: DriverNode,
) -> None:
    node = timed_node
    first = node.run("p", "one")
    given = devices_of(node.claim_of("p"))
    node.kubelet.stop()
    node.delete(first, force=True)
    node.kubelet.start()
    node.kubelet.advance(5)
    assert not runs(node, first)
    eventually(node.slices)
    second = node.run("q", "one")
    assert devices_of(node.claim_of("q")) == given
    node.kubelet.advance(RECONCILE_SECONDS + RESYNC_SECONDS)
    assert runs(node, second)
    node.kubelet.restart_containers(second)
    assert len(left(node)) == 2


# Health --------------------------------------------------------------------------------------


def test_a_containers_status_shows_each_of_its_devices_once(timed_node: DriverNode) -> None:
    node = timed_node
    pod = node.run("p", "two", whole="", gpus="gpu")
    uid = node.claim_of("p").metadata.uid
    kind = f"{DRIVER}/claim={uid}"
    node.driver.health.report("gpu-1", "xid", "Xid 79")
    gpus = {f"{kind}-gpu-0": "Healthy", f"{kind}-gpu-1": "Unhealthy"}
    eventually(lambda: node.kubelet.allocated_status(pod, "gpus") == {"claim:own/gpu": gpus})
    (whole,) = node.kubelet.allocated_status(pod, "whole").values()
    nic = next(name for name in devices_of(node.claim_of("p")) if name.startswith("nic"))
    assert whole == {**gpus, f"{kind}-{nic}": "Healthy"}


def test_devices_are_unknown_while_no_driver_speaks_for_them(timed_node: DriverNode) -> None:
    node = timed_node
    pod = node.run("p", "one")

    def status() -> list[str]:
        (devices,) = node.kubelet.allocated_status(pod, "c").values()
        return list(devices.values())

    eventually(lambda: status() == ["Healthy"])
    node.stop(node.driver)
    eventually(lambda: status() == ["Unknown"])
    node.driver = node.start()
    eventually(lambda: status() == ["Healthy"])
