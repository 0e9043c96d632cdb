"""Claims as the kubelet prepares them, over the driver's sockets."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec.structs import replace
from tests.dra.driver.driver_stage import (
    DriverNode,
    devices_of,
    eventually,
    make_preparer,
    template,
    with_result,
    with_uid,
)
from tests.paths import ROOT

from bayplan.api import DeviceClass, Pod, ResourceClaim, ResourceClaimTemplate
from bayplan.cluster.manifests import load_manifests
from bayplan.errors import ClusterError, Forbidden, Transient
from bayplan.logs import set_up_logging
from bayplan.testing import assert_placed
from bayplan_dra.driver.prepare.handover import Handover
from bayplan_dra.driver.prepare.planner import PrepareError
from bayplan_dra.driver.publish.devices import DRIVER

# The whole chain -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_container_gets_exactly_the_devices_that_the_scheduler_chose(
    node: DriverNode, version: str
) -> None:
    node.kubelet.services = [f"{version}.DRAPlugin"]
    node.kubelet.restart()
    node.kubelet.advance()
    eventually(node.slices)
    node.settle()
    claim = node.bind("p", "two")
    answer = node.kubelet.prepare(claim)[claim.metadata.name]
    assert answer.error == ""
    assert sorted({one.device_name for one in answer.devices}) == devices_of(claim)
    spec = node.cdi()[claim.metadata.uid]
    named = {f"{spec['kind']}={one['name']}" for one in spec["devices"]}
    assert {name for one in answer.devices for name in one.cdi_device_ids} == named
    nic = next(name for name in devices_of(claim) if name.startswith("nic"))
    hca = f"={nic.removeprefix('nic-').replace('-', '_')}:1"
    whole = node.said(claim)
    assert (whole["CUDA_VISIBLE_DEVICES"], whole["NCCL_IB_HCA"]) == ("0,1", hca)
    of_gpus = node.said(claim, "gpu")
    assert of_gpus["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "NCCL_IB_HCA" not in of_gpus
    assert node.said(claim, "nic")["NCCL_IB_HCA"] == hca
    assert "NVIDIA_VISIBLE_DEVICES" not in node.said(claim, "nic")


def test_preparing_twice_gives_the_same_and_unpreparing_leaves_nothing(node: DriverNode) -> None:
    claim = node.bind("p", "two")
    assert node.kubelet.prepare(claim) == node.kubelet.prepare(claim)
    assert node.kubelet.unprepare(claim) == {claim.metadata.name: ""}
    assert node.cdi() == {}
    assert node.kubelet.unprepare(claim) == {claim.metadata.name: ""}


def test_unpreparing_needs_no_claim_and_no_api_server(node: DriverNode) -> None:
    claim = node.bind("p", "one")
    node.kubelet.prepare(claim)
    node.api.failing = ClusterError("the API server is gone")
    assert node.kubelet.unprepare(claim) == {claim.metadata.name: ""}


def test_every_claim_of_a_call_gets_its_own_answer(node: DriverNode) -> None:
    good = node.bind("p", "one")
    missing = replace(good, metadata=replace(good.metadata, name="missing", uid="u-2"))
    answers = node.kubelet.prepare(good, missing)
    assert answers[good.metadata.name].error == ""
    assert answers["missing"].error == "claim default/missing does not exist"


def test_concurrent_claims_are_all_answered(node: DriverNode) -> None:
    claims = [node.bind(f"p-{index}", "one") for index in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(node.kubelet.prepare, claims))
    given = [one.device_name for answer in answers for a in answer.values() for one in a.devices]
    assert sorted(given) == [f"gpu-{index}" for index in range(8)]
    assert len(node.cdi()) == 8


def test_every_device_of_a_cdi_file_edits_something(node: DriverNode) -> None:
    # Runtimes refuse a file with a device that does not.
    claim = node.bind("p", "two")
    node.kubelet.prepare(claim)
    devices = node.cdi()[claim.metadata.uid]["devices"]
    assert all(one["containerEdits"] for one in devices)


def test_the_example_gets_two_gpus_of_a_group_and_a_nic_near_them(node: DriverNode) -> None:
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


# What is refused -----------------------------------------------------------------------------


def test_a_recreated_claim_with_the_same_name_is_refused(node: DriverNode) -> None:
    claim = node.bind("p", "one")
    answer = node.kubelet.prepare(with_uid(claim, "older"))[claim.metadata.name]
    assert f"was recreated: its UID is now {claim.metadata.uid}" in answer.error


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("pool", "m", "is of pool m, this is n"),
        ("device", "gpu-77", "device gpu-77 is not, or no longer, on this node"),
        ("driver", "other.example.com", f"has no device of {DRIVER}"),
    ],
)
def test_devices_of_other_nodes_or_drivers_are_refused(
    node: DriverNode, field: str, value: str, message: str
) -> None:
    claim = node.bind("p", "one")
    node.reallocate(claim, with_result(claim, **{field: value}))
    assert message in node.kubelet.prepare(claim)[claim.metadata.name].error
    assert node.cdi() == {}


def test_a_device_that_is_prepared_for_another_claim_is_refused(
    impatient_node: DriverNode,
) -> None:
    node = impatient_node
    first, second = node.bind("p", "one"), node.bind("q", "one")
    assert node.kubelet.prepare(first)[first.metadata.name].error == ""
    node.reallocate(second, first.status.allocation)
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
def test_a_typo_in_a_claims_configuration_is_named(
    node: DriverNode, config: Any, message: str
) -> None:
    with node.api.lock:
        node.cluster.add(template("odd", config, gpu=1))
    claim = node.bind("p", "odd")
    assert message in node.kubelet.prepare(claim)[claim.metadata.name].error


def test_a_name_that_is_not_a_uid_touches_no_file(node: DriverNode) -> None:
    claim = with_uid(node.bind("p", "one"), "../../etc/passwd")
    assert "is not a UID" in node.kubelet.prepare(claim)[claim.metadata.name].error
    assert "is not a UID" in node.kubelet.unprepare(claim)[claim.metadata.name]


def test_an_unreachable_api_server_is_an_answer(impatient_node: DriverNode) -> None:
    node = impatient_node
    claim = node.bind("p", "one")
    node.api.failing = Transient("connection refused")
    assert node.kubelet.prepare(claim)[claim.metadata.name].error == "connection refused"


def test_a_call_waits_until_another_claim_is_unprepared(node: DriverNode) -> None:
    first, second = node.bind("p", "one"), node.bind("q", "one")
    node.kubelet.prepare(first)
    node.reallocate(second, first.status.allocation)
    unpreparing = threading.Timer(0.3, node.kubelet.unprepare, [first])
    unpreparing.start()
    assert node.kubelet.prepare(second)[second.metadata.name].error == ""
    unpreparing.join()
    assert list(node.cdi()) == [second.metadata.uid]


@pytest.mark.parametrize("passing", [Transient("refused"), Forbidden("no role yet")])
def test_a_call_waits_until_the_api_server_answers(node: DriverNode, passing: Exception) -> None:
    claim = node.bind("p", "one")
    node.api.failing = passing
    answering = threading.Timer(0.3, setattr, [node.api, "failing", None])
    answering.start()
    assert node.kubelet.prepare(claim)[claim.metadata.name].error == ""
    answering.join()


def test_a_driver_that_stops_answers_the_calls_that_wait(node: DriverNode) -> None:
    claim = node.bind("p", "one")
    node.api.failing = Transient("connection refused")
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(node.kubelet.prepare, claim)
        eventually(lambda: node.api.asked)
        node.driver.stop()
        assert call.result()[claim.metadata.name].error == "connection refused"


@pytest.mark.parametrize("form", ["console", "json"])
def test_an_unexpected_error_is_an_answer_for_its_own_claim_and_a_traceback_in_the_log(
    node: DriverNode, form: str
) -> None:
    claim = node.bind("p", "one")
    node.api.failing = RecursionError("too deep")
    stream = io.StringIO()
    set_up_logging(form, stream=stream)
    answer = node.kubelet.prepare(claim)[claim.metadata.name]
    assert answer.error == "the driver failed: RecursionError; its log says more"
    assert "Traceback (most recent call last):" in stream.getvalue()
    assert "RecursionError: too deep" in stream.getvalue()


def test_a_device_that_the_device_plugin_offers_is_refused(node: DriverNode) -> None:
    claim = node.bind("p", "one")
    (device,) = devices_of(claim)
    handover = Handover(node.root / "plugins" / DRIVER)
    handover.offer([device])
    error = node.kubelet.prepare(claim)[claim.metadata.name].error
    assert error == f"device {device} is offered by the device plugin now"
    handover.offer([])
    assert node.kubelet.prepare(claim)[claim.metadata.name].error == ""


# What changes meanwhile ----------------------------------------------------------------------


def test_a_claims_configuration_decides_what_containers_get(node: DriverNode) -> None:
    config = {"visibleDevices": "none", "nccl": {"environment": False}}
    with node.api.lock:
        node.cluster.add(template("quiet", config, gpu=2))
    claim = node.bind("p", "quiet")
    node.kubelet.prepare(claim)
    assert node.said(claim, "gpu") == {"NVIDIA_VISIBLE_DEVICES": "0,1"}


def test_nothing_is_prepared_after_the_kubelet_has_given_up(node: DriverNode) -> None:
    claim = node.bind("p", "one")

    class Slow:
        def claim(self, namespace: str, name: str) -> ResourceClaim | None:
            preparer.unprepare(claim.metadata.uid)
            return claim

    preparer = make_preparer(node.root / "own", Slow())
    with pytest.raises(PrepareError, match="no longer waits for this"):
        preparer.prepare("default", claim.metadata.name, claim.metadata.uid)
    assert preparer.checkpoint.claims() == {}


def test_the_device_of_a_claim_that_is_gone_is_taken_if_the_kubelet_does_not_give_it_back(
    node: DriverNode,
) -> None:
    node.driver.stop()
    node.driver = node.start(abandoned_seconds=0.3)
    first, second = node.bind("p", "one"), node.bind("q", "one")
    node.kubelet.prepare(first)
    node.reallocate(second, first.status.allocation)
    with node.api.lock:
        api = node.cluster.api
        gone = replace(first.metadata, finalizers=(), resource_version="")
        api.update(replace(first, metadata=gone))
        api.delete(ResourceClaim, first.key)
    asked = node.api.asked
    assert node.kubelet.prepare(second)[second.metadata.name].error == ""
    assert node.api.asked > asked + 2, "it was taken at once"
    assert list(node.cdi()) == [second.metadata.uid]


def test_a_reallocated_claim_is_prepared_again(node: DriverNode) -> None:
    claim = node.bind("p", "one")
    node.kubelet.prepare(claim)
    node.reallocate(claim, with_result(claim, device="gpu-5"))
    (given,) = node.kubelet.prepare(claim)[claim.metadata.name].devices
    assert given.device_name == "gpu-5"
