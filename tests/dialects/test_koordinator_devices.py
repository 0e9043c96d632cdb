"""What pods and Device objects say in Koordinator's words: exact amounts, or a clear message."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from bayplan.api.configmap import ConfigMap
from bayplan.dialects.koordinator.allocations import (
    ALLOCATED,
    Allocation,
    Function,
    allocated_text,
    allocations_of,
)
from bayplan.dialects.koordinator.hints import gpu_groups, hints_of
from bayplan.dialects.koordinator.requests import (
    DEVICE_TYPES,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    device_requests,
    per_gpu,
    with_memory,
)
from bayplan.dialects.koordinator.templates import templates_of

HINT = "scheduling.koordinator.sh/device-allocate-hint"
JOINT = "scheduling.koordinator.sh/device-joint-allocate"
SPEC = "scheduling.koordinator.sh/gpu-partition-spec"
GROUPS = "scheduling.koordinator.sh/gpu-partitions"
READERS: dict[str, Callable[[dict[str, str]], Any]] = {
    HINT: hints_of,
    JOINT: hints_of,
    SPEC: hints_of,
    GROUPS: gpu_groups,
    ALLOCATED: allocations_of,
}
VALID = {
    HINT: '{"rdma":{"selector":{"matchLabels":{"a":"b"}},"vfSelector":{"matchExpressions":[{"key":'
    '"t","operator":"In","values":["x"]}]},"allocateStrategy":"ApplyForAll"},'
    '"gpu":{"requiredTopologyScope":"PCIe","exclusivePolicy":"DeviceLevel"}}',
    JOINT: '{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}',
    SPEC: '{"allocatePolicy":"Restricted","ringBusBandwidth":"400Gi"}',
    GROUPS: '{"2":[{"minors":[0,1],"gpuLinkType":"NVLink","allocationScore":1}]}',
    ALLOCATED: '{"gpu":[{"minor":0,"id":"G","resources":{"koordinator.sh/gpu-core":"50",'
    '"koordinator.sh/gpu-memory":"16Gi"},"extension":{"vfs":[{"minor":1,"busID":"0:1"}]}}]}',
}


@pytest.mark.parametrize("name", VALID)
def test_what_koordinator_writes_is_read(name: str) -> None:
    assert READERS[name]({name: VALID[name]})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (HINT, "[", "not JSON"),
        (HINT, "[]", "expected a JSON object"),
        (HINT, '{"tpu":{}}', 'expected one of gpu, rdma, fpga, got "tpu"'),
        (HINT, '{"gpu":{"requiredTopologyScope":"Rack"}}', "$.gpu.requiredTopologyScope"),
        (HINT, '{"gpu":{"selektor":{}}}', '$.gpu: "selektor" is not supported'),
        (
            HINT,
            '{"gpu":{"selector":{"matchExpressions":[{"key":"a","operator":"In"}]}}}',
            "$.gpu.selector.matchExpressions[0].values: expected some values for In",
        ),
        (JOINT, '{"deviceTypes":["gpu","gpu"]}', "$.deviceTypes: a type is named twice"),
        (SPEC, '{"ringBusBandwidth":"fast"}', "$.ringBusBandwidth: expected a quantity"),
        (GROUPS, '{"0":[]}', '$["0"]: expected a number of GPUs from 1 to 64'),
        (GROUPS, '{"2":[{"minors":[0]}]}', '$["2"][0].minors: expected 2 different numbers'),
        (GROUPS, '{"1":[{"minors":[64]}]}', "expected numbers from 0 to 63"),
        (ALLOCATED, '{"gpu":[{"minor":1.5}]}', "$.gpu[0].minor: expected an integer"),
        (ALLOCATED, '{"gpu":[{"minor":1},{"minor":1}]}', "the device 1 is named twice"),
        (
            ALLOCATED,
            '{"gpu":[{"minor":1,"resources":{"x":"-1"}}]}',
            '$.gpu[0].resources["x"]: expected an amount from 0 to 2^53, got "-1"',
        ),
    ],
)
def test_a_malformed_annotation_is_named_with_the_place(name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"^annotation ") as raised:
        READERS[name]({name: text})
    assert name in str(raised.value)
    assert message in str(raised.value)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@st.composite
def _broken(draw: st.DrawFn) -> tuple[str, str]:
    """Return an annotation that is valid but for a part that is cut out, doubled or replaced."""
    name = draw(st.sampled_from(sorted(VALID)))
    text = VALID[name]
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, min(len(text), start + 12)))
    part = draw(st.sampled_from(("", text[start:end] * 2, "-", "1e9", "null", '"', "{}", "9" * 30)))
    return name, draw(st.just(text[:start] + part + text[end:]) | _JSON.map(json.dumps))


def _read(name: str, text: str) -> tuple[Any, str]:
    try:
        return READERS[name]({name: text}), ""
    except ValueError as exc:
        return None, str(exc)


@examples(100)
@given(_broken())
def test_no_annotation_ends_in_anything_but_a_message(case: tuple[str, str]) -> None:
    name, text = case
    found, problem = _read(name, text)
    assert not problem or problem.startswith(f"annotation {name}: ")
    for one in found if name == ALLOCATED and not problem else ():
        assert all(amount >= 0 for _, amount in one.amounts)
        assert one.minor >= 0


_ALLOCATIONS = st.lists(
    st.builds(
        Allocation,
        st.sampled_from(DEVICE_TYPES),
        st.integers(0, 64),
        st.dictionaries(
            st.sampled_from((GPU_CORE, GPU_MEMORY, "koordinator.sh/rdma")), st.integers(0, 2**50)
        ).map(lambda amounts: tuple(sorted(amounts.items()))),
        st.sampled_from(("", "GPU-a")),
        st.lists(st.builds(Function, st.sampled_from(("0:1", "0:2")), st.integers(0, 9))).map(
            tuple
        ),
        st.sampled_from(("", "vir01")),
    ),
    max_size=4,
    unique_by=lambda one: (one.kind, one.minor),
)


@examples(50)
@given(_ALLOCATIONS)
def test_allocations_are_read_back_as_they_were_written(found: list[Allocation]) -> None:
    text = allocated_text(found)
    kept = allocations_of({ALLOCATED: text})
    assert sorted(kept, key=repr) == sorted(found, key=repr)
    # Another text of the same content is read anew.
    assert allocations_of({ALLOCATED: f"{text} "}) == kept


@examples(50)
@given(st.integers(1, 2**45), st.integers(1, 100))
def test_a_part_of_the_memory_is_never_more_than_that_part(total: int, percent: int) -> None:
    gpu = {GPU_MEMORY: total, GPU_MEMORY_RATIO: 100}
    memory = with_memory({GPU_MEMORY_RATIO: percent}, gpu)[GPU_MEMORY]
    assert memory * 100 <= percent * total
    assert with_memory({GPU_MEMORY: memory}, gpu)[GPU_MEMORY_RATIO] <= percent


_AMOUNTS = st.dictionaries(
    st.sampled_from(
        (
            "nvidia.com/gpu",
            "koordinator.sh/gpu",
            "koordinator.sh/gpu-core",
            "koordinator.sh/gpu-memory",
            "koordinator.sh/gpu-memory-ratio",
            "koordinator.sh/gpu.shared",
            "koordinator.sh/rdma",
            "huawei.com/npu-core",
            "huawei.com/npu-cpu",
        )
    ),
    st.integers(0, 1000),
    max_size=4,
)


@examples(50)
@given(_AMOUNTS)
def test_any_request_is_divided_exactly_or_refused(requests: dict[str, int]) -> None:
    try:
        found = device_requests(requests)
    except ValueError:
        return
    if "gpu" in found:
        gpu = per_gpu(found["gpu"])
        assert gpu.count >= 1
        for name, amount in gpu.amounts:
            if name in (GPU_CORE, GPU_MEMORY_RATIO):
                assert amount * gpu.count == found["gpu"][name]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "data.yaml: "),
        ("a: 1", 'data.yaml["a"]: expected a mapping'),
        ("a: {b: {c: x}}", 'data.yaml["a"]["b"]["c"]: expected a quantity'),
        ("a: {b: {c: -1}}", 'data.yaml["a"]["b"]["c"]: expected an amount from 0 to 2^53'),
        ("a: {}\n---\nb: {}", "data.yaml: expected one document, got 2"),
    ],
)
def test_malformed_templates_say_where(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"data\.yaml") as raised:
        templates_of(ConfigMap(data={"data.yaml": text}))
    assert message in str(raised.value)
