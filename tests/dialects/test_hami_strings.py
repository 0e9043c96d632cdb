"""HAMi's and Volcano's strings: whatever they hold, there is a value or a message."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.damaged import damaged

from bayplan.api import Node, ObjectMeta, Pod, PodSpec, Quantity
from bayplan.api.gpu_shares import Partition
from bayplan.api.pod import Container, ResourceRequirements
from bayplan.dialects.hami.assignments import (
    Assigned,
    assignments_text,
    partitions_text,
    read_assignments,
    read_partitions,
    with_partitions,
)
from bayplan.dialects.hami.node_lock import lock_text, read_lock
from bayplan.dialects.hami.policies import gpu_options_of
from bayplan.dialects.hami.requests import RequestRules, container_request
from bayplan.dialects.hami.systems import HAMI, MIG_ALLOCATIONS, VOLCANO
from bayplan.snapshot import PodInfo, Snapshot
from bayplan.topology.machine.readers.hami import SCORE
from bayplan.topology.machine.readers.hami_register import (
    CORDON,
    HANDSHAKE,
    REGISTER,
    VOLCANO_REGISTER,
    read_register,
    read_volcano_register,
)
from bayplan_plugins.gpus.vendors.hami.adapter import hami_adapter, volcano_adapter

MOST = 2**31 - 1
GPU = {
    "id": "GPU-a",
    "index": 1,
    "count": 10,
    "devmem": 81920,
    "devcore": 100,
    "type": "NVIDIA-A100",
    "numa": 1,
    "mode": "mig",
    "health": True,
    "migProfiles": [
        {
            "name": "2g.20gb",
            "memoryMB": 20480,
            "core": 28,
            "sliceCount": 2,
            "placements": [{"start": 0, "size": 2}, {"start": 2, "size": 2}],
        }
    ],
}
OLDER = "GPU-a,10,32768,100,NVIDIA-A40,0,true:GPU-b,10,1,100,NVIDIA-V100,1,false,3,mig:"
OF_VOLCANO = "GPU-a,10,8192,NVIDIA-A40,true:GPU-b,4,1126,NVIDIA-V100,false,mig:"
DEVICES = "GPU-a,NVIDIA,3000,30:GPU-b,NVIDIA,1,0:;;GPU-a,NVIDIA,2147483647,100:;"
ALLOCATIONS = json.dumps(
    [
        {
            "containerIndex": 0,
            "deviceIndex": 0,
            "gpuUUID": "GPU-a",
            "profile": "2g.20gb",
            "placement": {"start": 0, "size": 2},
            "migUUID": "MIG-1",
            "gpuInstanceID": 3,
            "computeInstanceID": 0,
        }
    ]
)


def value_of(read: Callable[[str], Any], text: str) -> Any:
    """Return what a text holds; None if it has a message instead."""
    try:
        return read(text)
    except ValueError as exc:
        message = str(exc)
    assert 0 < len(message) < 500
    return None


@given(damaged(json.dumps([GPU, {**GPU, "id": "GPU-b"}]), OLDER) | st.text())
def test_a_register_of_hami_is_read_or_refused(text: str) -> None:
    check_register(value_of(read_register, text) or [])


@given(damaged(OF_VOLCANO, json.dumps([GPU])) | st.text())
def test_a_register_of_volcano_is_read_or_refused(text: str) -> None:
    check_register(value_of(read_volcano_register, text) or [])


def check_register(found: list[Any]) -> None:
    for gpu in found:
        assert gpu.uuid
        assert not set(",:;") & set(gpu.uuid)
        assert all(0 <= amount <= MOST for amount in (gpu.slots, gpu.memory, gpu.cores))
        for profile in gpu.profiles:
            assert profile.memory >= 0
            assert all(0 <= start < 64 for start in profile.starts)
            assert 0 < profile.size <= 64 or not profile.starts


@given(damaged(DEVICES) | st.text(), st.integers(0, 5))
def test_devices_of_a_pod_are_read_or_refused(text: str, containers: int) -> None:
    found = value_of(lambda one: read_assignments(one, containers), text)
    for devices in found or ():
        for one in devices:
            assert one.uuid
            assert 0 <= one.memory <= MOST
            assert 0 <= one.cores <= MOST
    assert found is None or len(found) == containers


@given(damaged(ALLOCATIONS) | st.text())
def test_partitions_of_a_pod_are_read_or_refused(text: str) -> None:
    found = value_of(read_partitions, text)
    for (container, device), (uuid, partition) in (found or {}).items():
        assert container >= 0
        assert device >= 0
        assert uuid
        assert partition.size > 0
        assert partition.start >= 0


NAMES = st.text("abcGPU-0123456789", min_size=1, max_size=20)
AMOUNTS = st.integers(0, MOST)
PARTITIONS = st.builds(Partition, NAMES, st.integers(0, 7), st.integers(1, 8))
ASSIGNED = st.builds(Assigned, NAMES, NAMES, AMOUNTS, AMOUNTS, st.none() | PARTITIONS)


@given(st.lists(st.lists(ASSIGNED, max_size=4), min_size=1, max_size=5), st.booleans())
def test_what_is_written_is_read_back(containers: list[list[Assigned]], ended: bool) -> None:
    text = assignments_text(containers, ended)
    found = read_assignments(text, len(containers))
    partitions = read_partitions(partitions_text(containers) or "[]")
    assert with_partitions(found, partitions) == tuple(map(tuple, containers))


def test_the_forms_of_hami_and_volcano() -> None:
    one = Assigned("GPU-a", "NVIDIA", 3000, 30)
    assert assignments_text([[one], [], [one, one]]) == (
        "GPU-a,NVIDIA,3000,30:;;GPU-a,NVIDIA,3000,30:GPU-a,NVIDIA,3000,30:;"
    )
    assert assignments_text([[one], []], ended=False) == "GPU-a,NVIDIA,3000,30:;"


@given(damaged(lock_text(1e9, "default", "p")) | st.text())
def test_a_lock_is_read_whatever_it_holds(text: str) -> None:
    assert read_lock(text).since >= -1e11


@pytest.mark.parametrize(
    ("text", "percentage"), [("-5", 100), ("0", 100), ("0.5", 100), ("1", 1), ("5000000000", 100)]
)
def test_a_percentage_that_says_nothing_is_none(text: str, percentage: int) -> None:
    names = HAMI.resources
    limits = {names.count: Quantity("1"), names.percentage: Quantity(text)}
    found = container_request(ResourceRequirements(limits, {}), RequestRules())
    assert found is not None
    assert (found.memory, found.percentage) == (0, percentage)


def test_a_lock_says_when_and_for_whom_it_was_taken() -> None:
    found = read_lock(lock_text(1e9, "default", "p"))
    assert (found.since, found.pod) == (1e9, "default/p")
    assert read_lock("2001-09-09T01:46:40Z").pod == ""


@given(
    st.sampled_from([HAMI, VOLCANO]),
    st.dictionaries(
        st.sampled_from(
            [
                "hami.io/gpu-scheduler-policy",
                "hami.io/node-scheduler-policy",
                "hami.io/device-scoring-weights",
                "nvidia.com/numa-bind",
                "nvidia.com/use-gputype",
                "nvidia.com/nouse-gputype",
                HAMI.annotations.mode,
                HAMI.annotations.use_uuids,
                VOLCANO.annotations.mode,
            ]
        ),
        damaged("binpack,numa", "slot=1,core=2,memory=3", "true", "hami-core,mig") | st.text(),
        max_size=4,
    ),
)
def test_options_of_a_pod_are_read_or_refused(system: Any, annotations: dict[str, str]) -> None:
    options = value_of(lambda _: gpu_options_of(annotations, system), "")
    if options is not None:
        weights = options.weights
        assert min(weights.slot, weights.core, weights.memory) >= 0


@given(
    st.sampled_from([hami_adapter, volcano_adapter]),
    damaged(json.dumps([GPU]), OLDER, OF_VOLCANO),
    damaged(DEVICES),
    damaged(ALLOCATIONS),
    st.dictionaries(st.sampled_from([SCORE, CORDON, HANDSHAKE]), st.text(max_size=30)),
    st.sampled_from(["1", "0", "16Gi", "99999999999", "4294967296"]),
)
def test_a_contract_answers_whatever_nodes_and_pods_say(
    make: Any, register: str, devices: str, allocations: str, more: dict[str, str], amount: str
) -> None:
    contract = make(Snapshot(lambda: 0.0))
    registers = {REGISTER: register, VOLCANO_REGISTER: register}
    gpus = contract.gpus(Node(ObjectMeta(name="n", annotations={**registers, **more})))
    assert gpus is not None
    offered = () if isinstance(gpus, str) else gpus
    notes = {
        HAMI.annotations.allocated: devices,
        VOLCANO.annotations.allocated: devices,
        MIG_ALLOCATIONS: allocations,
    }
    limits = {
        name: Quantity(amount) for system in (HAMI, VOLCANO) for name in system.resources.names
    }
    own = Container("c", resources=ResourceRequirements(limits=limits))
    pod = PodInfo(Pod(ObjectMeta(name="p", annotations=notes), PodSpec((own, own), node_name="n")))
    contract.request(pod)
    held = contract.held(pod, offered)
    for share in () if isinstance(held, str) else held:
        assert min(share.compute, share.memory, share.slots) >= 0


def test_a_message_names_the_annotation_and_the_place() -> None:
    contract = hami_adapter(Snapshot(lambda: 0.0))
    node = Node(ObjectMeta(name="n", annotations={REGISTER: '[{"id": "a", "count": "x"}]'}))
    assert contract.gpus(node) == (
        f"annotation {REGISTER}: [0].count: expected a whole number from 0 to {MOST}"
    )
    twice = Node(ObjectMeta(name="n", annotations={REGISTER: '[{"id": "a"}, {"id": "a"}]'}))
    assert contract.gpus(twice) == (f"annotation {REGISTER}: expected different ids, got a twice")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"health": "true"}, "[0].health: expected true or false"),
        ({"mode": ["mig"]}, "[0].mode: expected a text"),
        ({"type": 7}, "[0].type: expected a text"),
        ({"numa": "0"}, "[0].numa: expected an integer of 32 bits"),
        ({"index": 2**40}, "[0].index: expected a whole number from 0 to 2147483647"),
    ],
)
def test_a_register_with_a_value_of_another_type_is_refused(
    damage: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read_register(json.dumps([GPU | damage]))


@pytest.mark.parametrize("number", ["\u0661", "1_0", " 1", "9" * 5000])
def test_only_plain_digits_are_numbers_in_the_older_form(number: str) -> None:
    with pytest.raises(ValueError, match="expected a NUMA node"):
        read_register(f"GPU-a,10,32768,100,NVIDIA-A40,{number},true:")


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("Reported_2000.01.01 00:00:00", False),
        ("Deleted_2000.01.01 00:00:00", False),
        ("Requesting_2000.01.01 00:00:00", False),
        ("Requesting_soon", True),
        ("yes", True),
    ],
)
def test_a_handshake_that_cannot_be_read_is_told_on_the_node(text: str, is_told: bool) -> None:
    snapshot = Snapshot(lambda: 0.0)
    notes = {REGISTER: json.dumps([GPU]), HANDSHAKE: text}
    assert hami_adapter(snapshot).gpus(Node(ObjectMeta(name="n", annotations=notes)))
    assert (("n", f"annotation {HANDSHAKE}") in snapshot.problems) is is_told


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "expected a list of partitions"),
        ("[1]", r"\[0\]: expected a partition"),
        ('[{"gpuUUID": "a", "profile": "1g"}]', r"\[0\].placement: expected a start and a size"),
        (
            ALLOCATIONS.replace('"migUUID": "MIG-1", ', ""),
            "expected migUUID, gpuInstanceID, computeInstanceID, or none of them",
        ),
        (f"{ALLOCATIONS[:-1]}, {ALLOCATIONS[1:]}", "container 0, device 0 only once"),
    ],
)
def test_partitions_that_cannot_be_read_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_partitions(text)
