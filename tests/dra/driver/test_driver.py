"""The node driver as the kubelet sees it, over its sockets."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from kubelet import (
    SERVICE,
    EmbeddedApi,
    Kubelet,
    eventually,
    make_driver,
    make_preparer,
    short_folder,
    with_uid,
)
from msgspec.structs import replace
from paths import ROOT

from bayplan.api import (
    ApiObject,
    DeviceClass,
    Pod,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from bayplan.api import Node as NodeObject
from bayplan.cluster.embedded.claims import ClaimController
from bayplan.cluster.manifests import load_manifests
from bayplan.errors import BayplanError, ClusterError
from bayplan.logs import set_up_logging
from bayplan.testing import Cluster, assert_placed, make_node, make_object, make_pod
from bayplan.topology.machine.readers.machinefile import known_machine
from bayplan_dra.driver.app import NodeDriver
from bayplan_dra.driver.prepare.preparer import PrepareError
from bayplan_dra.driver.publish.devices import DRIVER

MACHINE = known_machine("dgx-h100")


def device_class() -> ApiObject:
    expression = f'device.driver == "{DRIVER}"'
    return make_object(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "bayplan"},
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        }
    )


def template(name: str, config: Any = None, **counts: int) -> ApiObject:
    """Return a template that asks for so many devices of each type."""
    requests = []
    for kind, count in counts.items():
        expression = f'device.attributes["{DRIVER}"].type == "{kind}"'
        exactly = {
            "deviceClassName": "bayplan",
            "count": count,
            "selectors": [{"cel": {"expression": expression}}],
        }
        requests.append({"name": kind, "exactly": exactly})
    devices: dict[str, Any] = {"requests": requests}
    if config is not None:
        devices["config"] = [{"opaque": {"driver": DRIVER, "parameters": config}}]
    return make_object(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"spec": {"devices": devices}},
        }
    )


def claim_pod(name: str, wanted: str) -> Pod:
    claims = [{"name": "own", "resourceClaimTemplateName": wanted}]
    return make_pod(name, spec={"resourceClaims": claims})


class Node:
    """A node with a driver on it, in a cluster with a scheduler."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cluster = Cluster([make_node("n", cpu=64), device_class()])
        ClaimController(self.cluster.api)
        self.api = EmbeddedApi(self.cluster.api)
        self.kubelet = Kubelet(root / "registry")
        self.driver = self.start()

    def start(self, **more: Any) -> NodeDriver:
        driver = make_driver(self.root, MACHINE, self.api, **more)
        driver.start()
        eventually(driver.published.is_set)
        self.kubelet.register()
        return driver

    def claim_of(self, pod: str) -> ResourceClaim:
        (found,) = [
            one
            for one in self.cluster.api.list(ResourceClaim)
            if any(owner.name == pod for owner in one.metadata.owner_references)
        ]
        return found

    def bind(self, name: str, wanted: str) -> ResourceClaim:
        """Let the scheduler give a pod its node and its devices; return its claim."""
        with self.api.lock:
            self.cluster.add(claim_pod(name, wanted))
            assert_placed(self.cluster, **{name.replace("-", "_"): "n"})
            return self.claim_of(name)

    def slices(self) -> list[ResourceSlice]:
        with self.api.lock:
            return self.cluster.api.list(ResourceSlice)

    def cdi(self) -> dict[str, Any]:
        """Return the CDI files by the claim's UID."""
        return {
            path.stem.partition("_")[2]: json.loads(path.read_text())
            for path in (self.root / "cdi").iterdir()
        }


@pytest.fixture
def node() -> Iterator[Node]:
    with short_folder() as root:
        made = Node(root)
        made.cluster.add(template("two", gpu=2, nic=1), template("one", gpu=1))
        yield made
        made.driver.stop()


def devices_of(claim: ResourceClaim) -> list[str]:
    assert claim.status.allocation is not None
    return sorted(one.device for one in claim.status.allocation.devices.results)


# The whole chain -----------------------------------------------------------------------------


@pytest.mark.parametrize("service", [SERVICE, SERVICE.replace(".v1.", ".v1beta1.")])
def test_a_container_gets_exactly_the_devices_that_the_scheduler_chose(
    node: Node, service: str
) -> None:
    claim = node.bind("p", "two")
    answer = node.kubelet.prepare(claim, service=service)[claim.metadata.name]
    assert answer.error == ""
    assert sorted(one.device_name for one in answer.devices) == devices_of(claim)
    assert {tuple(one.request_names) for one in answer.devices} == {("gpu",), ("nic",)}
    spec = node.cdi()[claim.metadata.uid]
    named = {f"{spec['kind']}={one['name']}" for one in spec["devices"]}
    assert {name for one in answer.devices for name in one.cdi_device_ids} == named
    assert len(named) == 3
    environment = dict(line.split("=", 1) for line in spec["containerEdits"]["env"])
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    nic = next(name for name in devices_of(claim) if name.startswith("nic"))
    assert environment["NCCL_IB_HCA"] == f"={nic.removeprefix('nic-').replace('-', '_')}:1"


def test_preparing_twice_gives_the_same_and_unpreparing_leaves_nothing(node: Node) -> None:
    claim = node.bind("p", "two")
    assert node.kubelet.prepare(claim) == node.kubelet.prepare(claim)
    assert node.kubelet.unprepare(claim) == {claim.metadata.name: ""}
    assert node.cdi() == {}
    assert node.kubelet.unprepare(claim) == {claim.metadata.name: ""}


def test_unpreparing_needs_no_claim_and_no_api_server(node: Node) -> None:
    claim = node.bind("p", "one")
    node.kubelet.prepare(claim)
    node.api.failing = ClusterError("the API server is gone")
    assert node.kubelet.unprepare(claim) == {claim.metadata.name: ""}


def test_every_claim_of_a_call_gets_an_answer_of_its_own(node: Node) -> None:
    good = node.bind("p", "one")
    missing = replace(good, metadata=replace(good.metadata, name="missing", uid="u-2"))
    answers = node.kubelet.prepare(good, missing)
    assert answers[good.metadata.name].error == ""
    assert answers["missing"].error == "claim default/missing does not exist"


# What is refused -----------------------------------------------------------------------------


def test_a_claim_made_anew_under_the_same_name_is_refused(node: Node) -> None:
    claim = node.bind("p", "one")
    answer = node.kubelet.prepare(with_uid(claim, "older"))[claim.metadata.name]
    assert f"is another one by now: its UID is {claim.metadata.uid}" in answer.error


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("pool", "m", "is of pool m, this is n"),
        ("device", "gpu-77", "device gpu-77 is not on this node (any more)"),
        ("driver", "other.example.com", f"has no device of {DRIVER}"),
    ],
)
def test_devices_that_are_not_of_this_node_are_refused(
    node: Node, field: str, value: str, message: str
) -> None:
    claim = node.bind("p", "one")
    allocation = claim.status.allocation
    assert allocation is not None
    (result,) = allocation.devices.results
    devices = replace(allocation.devices, results=(replace(result, **{field: value}),))
    changed = replace(
        claim,
        status=replace(claim.status, allocation=replace(allocation, devices=devices)),
        metadata=replace(claim.metadata, resource_version=""),
    )
    with node.api.lock:
        node.cluster.api.update(changed)
    assert message in node.kubelet.prepare(claim)[claim.metadata.name].error
    assert node.cdi() == {}


def test_a_device_that_another_claim_has_is_refused(node: Node) -> None:
    first, second = node.bind("p", "one"), node.bind("q", "one")
    assert node.kubelet.prepare(first)[first.metadata.name].error == ""
    with node.api.lock:
        status = replace(second.status, allocation=first.status.allocation)
        meta = replace(second.metadata, resource_version="")
        node.cluster.api.update(replace(second, status=status, metadata=meta))
    error = node.kubelet.prepare(second)[second.metadata.name].error
    assert f"is prepared for claim default/{first.metadata.name}" in error
    assert list(node.cdi()) == [first.metadata.uid]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kind": "DeviceConfig", "ncl": {}}, '"ncl" is not known here; did you mean "nccl"?'),
        ({"visibleDevices": "all"}, "visibleDevices: "),
        ({"nccl": {"nics": "any"}}, "nccl.nics: "),
        ({"apiVersion": "v2"}, "apiVersion: "),
    ],
)
def test_a_typo_in_a_claims_configuration_is_told(node: Node, config: Any, message: str) -> None:
    with node.api.lock:
        node.cluster.add(template("odd", config, gpu=1))
    claim = node.bind("p", "odd")
    assert message in node.kubelet.prepare(claim)[claim.metadata.name].error


def test_a_claims_configuration_says_what_containers_are_told(node: Node) -> None:
    config = {"visibleDevices": "none", "nccl": {"environment": False}}
    with node.api.lock:
        node.cluster.add(template("quiet", config, gpu=2))
    claim = node.bind("p", "quiet")
    node.kubelet.prepare(claim)
    edits = node.cdi()[claim.metadata.uid]["containerEdits"]
    assert edits == {"env": ["NVIDIA_VISIBLE_DEVICES=0,1"]}


def test_a_name_that_is_no_uid_touches_no_file(node: Node) -> None:
    claim = with_uid(node.bind("p", "one"), "../../etc/passwd")
    assert "is no UID" in node.kubelet.prepare(claim)[claim.metadata.name].error
    assert "is no UID" in node.kubelet.unprepare(claim)[claim.metadata.name]


def test_an_api_server_that_is_gone_is_an_answer(node: Node) -> None:
    claim = node.bind("p", "one")
    node.api.failing = ClusterError("connection refused")
    assert node.kubelet.prepare(claim)[claim.metadata.name].error == "connection refused"


def test_a_socket_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    api = EmbeddedApi(Cluster([make_node("n")]).api)
    driver = make_driver(tmp_path / ("x" * 90), MACHINE, api)
    with pytest.raises(BayplanError, match="a socket's path has at most 107 bytes, this has"):
        driver.start()


# What happens meanwhile ----------------------------------------------------------------------


def test_every_device_of_a_cdi_file_edits_something(node: Node) -> None:
    # Runtimes refuse a file with a device that does not.
    claim = node.bind("p", "two")
    node.kubelet.prepare(claim)
    devices = node.cdi()[claim.metadata.uid]["devices"]
    assert all(one["containerEdits"] for one in devices)


def test_nothing_is_prepared_after_the_kubelet_has_given_up(node: Node) -> None:
    claim = node.bind("p", "one")

    class Slow:
        def claim(self, namespace: str, name: str) -> ResourceClaim | None:
            preparer.unprepare(claim.metadata.uid)
            return claim

    preparer = make_preparer(node.root / "own", Slow())
    with pytest.raises(PrepareError, match="does not wait for this any more"):
        preparer.prepare("default", claim.metadata.name, claim.metadata.uid)
    assert preparer.checkpoint.claims() == {}


def test_a_device_is_free_again_when_the_claim_that_had_it_is_gone(node: Node) -> None:
    first, second = node.bind("p", "one"), node.bind("q", "one")
    node.kubelet.prepare(first)
    with node.api.lock:
        api = node.cluster.api
        status = replace(second.status, allocation=first.status.allocation)
        meta = replace(second.metadata, resource_version="")
        api.update(replace(second, status=status, metadata=meta))
        gone = replace(first.metadata, finalizers=(), resource_version="")
        api.update(replace(first, metadata=gone))
        api.delete(ResourceClaim, first.key)
    assert node.kubelet.prepare(second)[second.metadata.name].error == ""
    assert list(node.cdi()) == [second.metadata.uid]


def test_a_claim_that_was_given_other_devices_is_prepared_anew(node: Node) -> None:
    claim = node.bind("p", "one")
    node.kubelet.prepare(claim)
    allocation = claim.status.allocation
    assert allocation is not None
    (result,) = allocation.devices.results
    devices = replace(allocation.devices, results=(replace(result, device="gpu-5"),))
    status = replace(claim.status, allocation=replace(allocation, devices=devices))
    with node.api.lock:
        meta = replace(claim.metadata, resource_version="")
        node.cluster.api.update(replace(claim, status=status, metadata=meta))
    (given,) = node.kubelet.prepare(claim)[claim.metadata.name].devices
    assert given.device_name == "gpu-5"


@pytest.mark.parametrize("form", ["console", "json"])
def test_an_unexpected_error_is_an_answer_for_its_own_claim_and_a_traceback_in_the_log(
    node: Node, form: str
) -> None:
    claim = node.bind("p", "one")
    node.api.failing = RecursionError("too deep")
    stream = io.StringIO()
    set_up_logging(form, stream=stream)
    answer = node.kubelet.prepare(claim)[claim.metadata.name]
    assert answer.error == "the driver failed: RecursionError; its log says more"
    assert "Traceback (most recent call last):" in stream.getvalue()
    assert "RecursionError: too deep" in stream.getvalue()


def test_a_node_made_anew_gets_slices_of_its_own() -> None:
    with short_folder() as root:
        made = Node(root)
        made.driver.stop()
        made.driver = made.start(resync_seconds=0.05)
        with made.api.lock:
            api = made.cluster.api
            api.delete(NodeObject, "n")
            api.create(make_node("n", cpu=64))
        new = api.get(NodeObject, "n")
        assert new is not None
        uid = new.metadata.uid

        def owners() -> set[str]:
            return {one.uid for found in made.slices() for one in found.metadata.owner_references}

        eventually(lambda: owners() == {uid})
        made.driver.stop()


# Many at once, and restarts ------------------------------------------------------------------


def test_claims_that_are_prepared_at_once_are_all_answered(node: Node) -> None:
    claims = [node.bind(f"p-{index}", "one") for index in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(node.kubelet.prepare, claims))
    given = [one.device_name for answer in answers for a in answer.values() for one in a.devices]
    assert sorted(given) == [f"gpu-{index}" for index in range(8)]
    assert len(node.cdi()) == 8


def test_a_restart_brings_cdi_files_back_and_removes_stale_ones(node: Node) -> None:
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


def test_a_damaged_checkpoint_concerns_its_own_claim_only(node: Node) -> None:
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


def test_two_instances_during_an_update_agree(node: Node) -> None:
    claim = node.bind("p", "two")
    first = node.kubelet.prepare(claim)
    writes = len(node.api.writes)
    old, node.driver = node.driver, node.start(pod_uid="11111111-2222-3333-4444-555555555555")
    assert node.kubelet.prepare(claim) == first
    old.stop()
    assert node.kubelet.prepare(claim) == first
    assert node.kubelet.unprepare(claim) == {claim.metadata.name: ""}
    assert len(node.api.writes) == writes, "slices flapped"


def test_no_call_is_lost_while_instances_take_turns(node: Node) -> None:
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


def test_the_nodes_devices_are_published_and_go_with_the_node(node: Node) -> None:
    (found,) = node.slices()
    assert found.metadata.name.startswith(f"00000-{DRIVER}-n-")
    (owner,) = found.metadata.owner_references
    assert (owner.kind, owner.name, owner.controller) == ("Node", "n", True)
    types = [device.attributes["type"].string for device in found.spec.devices]
    assert types.count("gpu") == 8
    assert found.spec.pool.resource_slice_count == 1


def test_a_slice_that_somebody_deletes_comes_back() -> None:
    with short_folder() as root:
        made = Node(root)
        made.driver.stop()
        made.driver = made.start(resync_seconds=0.05)
        (found,) = made.slices()
        made.api.delete(found)
        eventually(made.slices)
        made.driver.stop()


def test_a_sick_device_gets_a_taint_and_loses_it_when_it_is_well(node: Node) -> None:
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


def test_the_kubelet_is_told_of_health_at_every_change(node: Node) -> None:
    with node.kubelet.health() as answers:
        assert {one.health for one in next(answers).values()} == {1}
        node.driver.health.report("gpu-3", "xid", "Xid 79")
        sick = next(answers)["gpu-3"]
        assert (sick.health, sick.message, sick.device.pool_name) == (2, "Xid 79", "n")
        node.driver.health.report("gpu-3", "xid", "")
        assert next(answers)["gpu-3"].health == 1


def test_streams_of_health_leave_room_for_claims(node: Node) -> None:
    claim = node.bind("p", "one")
    with ExitStack() as streams:
        for _ in range(4):
            next(streams.enter_context(node.kubelet.health()))
        with node.kubelet.health() as one_more, pytest.raises(grpc.RpcError, match="at most 4"):
            next(one_more)
        assert node.kubelet.prepare(claim)[claim.metadata.name].error == ""

    def again() -> bool:
        with node.kubelet.health() as answers:
            try:
                return bool(next(answers))
            except grpc.RpcError:
                return False

    eventually(again)


def test_an_api_server_that_fails_delays_publishing_only() -> None:
    with short_folder() as root:
        cluster = Cluster([make_node("n")])
        api = EmbeddedApi(cluster.api, failing=ClusterError("connection refused"))
        driver = make_driver(root, MACHINE, api)
        driver.start()
        kubelet = Kubelet(root / "registry")
        kubelet.register()
        assert driver.ready() == "its slices are not published yet"
        api.failing = None
        eventually(driver.published.is_set)
        eventually(lambda: driver.ready() == "")
        driver.stop()


def test_the_example_gets_two_gpus_of_a_group_and_a_nic_beside_them(node: Node) -> None:
    configs = ROOT / "configs"
    paths = [configs / "deploy" / "dra-driver.yaml", configs / "examples" / "driver-gpu-nic"]
    objects = load_manifests([str(path) for path in paths]).objects
    wanted = (DeviceClass, ResourceClaimTemplate, Pod)
    with node.api.lock:
        node.cluster.add(*(one for one in objects if isinstance(one, wanted)))
        assert_placed(node.cluster, train="n")
        claim = node.claim_of("train")
    answer = node.kubelet.prepare(claim)[claim.metadata.name]
    assert answer.error == ""
    attributes = {
        device.name: device.attributes for one in node.slices() for device in one.spec.devices
    }
    given = [attributes[name] for name in devices_of(claim)]
    assert len({one["resource.kubernetes.io/numaNode"].integer for one in given}) == 1
    groups = [one["nvlinkGroup2"].integer for one in given if "nvlinkGroup2" in one]
    assert len(groups) == 2
    assert len(set(groups)) == 1
