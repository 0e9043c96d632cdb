"""CEL selectors against the reference's answers (Kubernetes 1.36)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conformance.case_format import checked, complete
from tests.conformance.vectors import SelectorCase, cases

from bayplan.api.dra import Device
from bayplan.api.objects import decode_part
from bayplan_dra.cel import CelDevice, CelError, CompileError, compile_selector


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize(
        "case", cases(metafunc.config, "--cel-vectors", "dra-cel.jsonl", "own-cel.jsonl")
    )


def test_a_selector_answers_as_the_reference(case: dict[str, Any]) -> None:
    case = complete(SelectorCase, case)
    gate = case.get("enableListTypeAttributes")
    for lists in (False, True) if gate is None else (gate,):
        check(case, lists)


def check(case: dict[str, Any], lists: bool) -> None:
    shared = case["enableConsumableCapacity"]
    if case["expectCompileError"]:
        with pytest.raises(CompileError) as compiled:
            compile_selector(case["expression"], shared, lists)
        assert case["expectCompileError"] in str(compiled.value)
        return
    program = compile_selector(case["expression"], shared, lists)
    content = {
        "name": "device",
        "attributes": case["attributes"],
        "capacity": case["capacity"],
        "allowMultipleAllocations": case["allowMultipleAllocations"],
    }
    pool = {"name": "pool", "resourceSliceCount": 1, "generation": 1}
    spec = {"driver": case["driver"], "pool": pool, "devices": [content]}
    checked("resource.k8s.io/v1", "ResourceSlice", {"spec": spec})
    device = decode_part(Device, content)

    def evaluate() -> bool:
        view = CelDevice(
            case["driver"],
            device.attributes,
            device.capacity,
            device.allow_multiple_allocations,
            lists,
        )
        return program.matches(view)

    if case["expectMatchError"]:
        with pytest.raises(CelError) as raised:
            evaluate()
        assert case["expectMatchError"] in str(raised.value)
    else:
        assert evaluate() is case["expectMatch"]
