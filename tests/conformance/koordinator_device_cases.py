"""Cases of Koordinator's DeviceShare, run through its contract for GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from tests.conformance.case_format import UnknownFieldError
from tests.conformance.fraction_cases import fraction_cases
from tests.conformance.vectors import SHARED

from bayplan import PodInfo
from bayplan.api import KoordinatorDevice, Node, ObjectMeta, Pod, Quantity
from bayplan.api.configmap import ConfigMap
from bayplan.api.gpu_shares import GpuUse
from bayplan.api.objects import decode_part
from bayplan.dialects.koordinator.allocations import (
    ALLOCATED,
    Allocation,
    allocated_text,
    allocations_of,
)
from bayplan.dialects.koordinator.hints import HOPPER_GROUPS
from bayplan.dialects.koordinator.requests import combination_of, converted, per_gpu, with_memory
from bayplan.snapshot import Snapshot
from bayplan_plugins.gpus.vendors.adapter import GpusInUse
from bayplan_plugins.gpus.vendors.koordinator.adapter import KoordinatorAdapter
from bayplan_plugins.gpus.vendors.koordinator.runtime import gpu_minors
from bayplan_plugins.gpus.vendors.koordinator.scoring import Scorer
from bayplan_plugins.gpus.vendors.koordinator.settings import KoordinatorArgs

__all__ = ["RUNNERS", "Case", "device_cases", "is_own"]

Case: TypeAlias = dict[str, Any]
NODE = "test-node-1"
_FILE = "koordinator-deviceshare.jsonl"
_OBJECTS = "*device-crs*.json"


def device_cases(config: pytest.Config) -> list[Any]:
    """Return the cases as pytest parameters, each with the Device objects beside the files."""
    given = config.getoption("--fraction-vectors", default=None) or ()
    objects = _objects(SHARED)
    for folder in sorted({Path(name).parent for name in given}):
        objects |= _objects(folder)
    cases = fraction_cases(config, _FILE, is_own)
    for case in cases:
        if "deviceCR" in case.values[0]:
            case.values[0]["objects"] = objects
    return cases


def is_own(case: Case) -> bool:
    """Tell whether a case is one of Koordinator's devices."""
    return case.get("kind") in RUNNERS and "/deviceshare/" in case.get("source", "")


def _objects(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(folder.glob(_OBJECTS)):
        found |= json.loads(path.read_text(encoding="utf-8"))
    return found


def _amounts(content: Mapping[str, str] | None) -> dict[str, int]:
    return {name: Quantity(amount).units for name, amount in (content or {}).items()}


# Requests ------------------------------------------------------------------------------------


def _validate(case: Case) -> None:
    try:
        found = sorted(combination_of(_amounts(case["request"])))
    except ValueError:
        assert case["wantErr"]
        return
    assert not case["wantErr"]
    assert found == sorted(case["want"])


def _convert(case: Case) -> None:
    found = converted(_amounts(case["request"]), frozenset(case["combination"]))
    assert found == _amounts(case["want"])


def _per_gpu(case: Case) -> None:
    found, want = per_gpu(_amounts(case["request"])), case["want"]
    assert dict(found.amounts) == _amounts(want["perGPU"])
    assert (found.count, found.shared) == (want["count"], want["shared"])


def _fill_memory(case: Case) -> None:
    for kind, entries in case["allocations"].items():
        for entry, want in zip(entries, case["want"].get(kind, ()), strict=True):
            totals = case["deviceTotal"].get(kind, {})
            total = _amounts(totals.get(str(entry["minor"])))
            try:
                found = with_memory(_amounts(entry["resources"]), total)
            except ValueError:
                assert case["wantErr"]
                continue
            assert not case["wantErr"]
            assert found == _amounts(want["resources"])


def _score(case: Case) -> None:
    if case["strategy"] not in ("MostAllocated", "LeastAllocated"):
        raise UnknownFieldError(f"nobody reads the strategy {case['strategy']}")
    scorer = Scorer(case["strategy"] == "MostAllocated")
    parts = (_amounts(case[name]) for name in ("request", "total", "free"))
    assert scorer.device(*parts) == case["want"]


def _minors(case: Case) -> None:
    gpus = [Allocation("gpu", one.get("Minor", 0), ()) for one in case["args"]["allocation"] or ()]
    assert gpu_minors(gpus) == case["want"]


def _table(case: Case) -> None:
    found = {
        str(size): [
            {"minors": list(one.minors), "gpuLinkType": one.link, "allocationScore": one.score}
            for one in groups
        ]
        for size, groups in HOPPER_GROUPS.groups
    }
    assert found == case["want"]


# Allocations ---------------------------------------------------------------------------------


def _allocate(case: Case) -> None:
    snapshot = Snapshot()
    content = json.loads(json.dumps(case["objects"][case["deviceCR"]]))
    if case.get("secondaryDeviceWellPlanned"):
        labels = content["metadata"].setdefault("labels", {})
        labels["node.koordinator.sh/secondary-device-well-planned"] = "true"
    snapshot.set_object(NODE, decode_part(KoordinatorDevice, content))
    if case.get("templates"):
        templates = ConfigMap(
            ObjectMeta(name="gpu-shared-resource-templates", namespace="koordinator-system"),
            {"data.yaml": json.dumps(case["templates"])},
        )
        snapshot.set_object(templates.key, templates)
    contract = KoordinatorAdapter(snapshot, _args(case))
    found = _chosen(
        contract, case, Node(ObjectMeta(name=NODE, labels=case.get("nodeLabels") or {}))
    )
    if found is None:
        assert case["wantErr"], "nothing was chosen"
        return
    if case["wantErr"] and _has_nics_at_each_switch(case, found):
        pytest.xfail("other GPUs are taken where the nearest have no NIC left at their switch")
    assert not case["wantErr"], found
    assert _plain(found) == _plain(_wanted(case["want"]))


def _has_nics_at_each_switch(case: Case, found: Sequence[Allocation]) -> bool:
    """Tell whether devices do that have to be behind the same switches."""
    if (case.get("jointAllocate") or {}).get("requiredScope") != "SamePCIe":
        return False
    devices = case["objects"][case["deviceCR"]]["spec"]["devices"]
    switches = {(one["type"], one["minor"]): one["topology"]["pcieID"] for one in devices}
    by_kind: dict[str, set[str]] = {}
    for one in found:
        by_kind.setdefault(one.kind, set()).add(switches[one.kind, one.minor])
    return len(by_kind) > 1 and len(set(map(frozenset, by_kind.values()))) == 1


def _args(case: Case) -> KoordinatorArgs:
    """Return the arguments of the case's scorer; without one, all devices score alike."""
    strategy, _, resource = (case.get("scorer") or "MostAllocated:nothing").partition(":")
    named = {"name": f"koordinator.sh/{resource}", "weight": 1}
    return KoordinatorArgs.model_validate(
        {"scoringStrategy": {"type": strategy, "resources": [named]}}
    )


def _chosen(contract: KoordinatorAdapter, case: Case, node: Node) -> tuple[Allocation, ...] | None:
    gpus = contract.gpus(node)
    assert isinstance(gpus, tuple)
    uses = {gpu.index: GpuUse() for gpu in gpus}
    if case.get("assigned"):
        other = _pod({ALLOCATED: allocated_text(_wanted(case["assigned"]))}, {})
        held = contract.held(other, gpus)
        assert isinstance(held, tuple), held
        for share in held:
            uses[share.gpu] = uses[share.gpu].plus(share)
    pod = _pod(_annotations(case), case["requests"], case["hostNetwork"])
    request = contract.request(pod)
    assert request is not None
    if request.problem:
        return None
    state = GpusInUse(gpus, tuple(uses.values()))
    choose = contract.fits if case.get("secondaryDeviceWellPlanned") else contract.choose
    choice = choose(pod, request, state)
    if not choice.shares:
        assert choice.reason
        return None
    written = contract.written(pod, node, gpus, choice.shares, 0.0)
    return allocations_of(written.annotations)


def _pod(
    annotations: Mapping[str, str], requests: Mapping[str, str], host_network: bool = False
) -> PodInfo:
    container = {"name": "main", "resources": {"requests": dict(requests)}}
    meta = {"name": "pod", "namespace": "default", "annotations": dict(annotations)}
    content = {"metadata": meta, "spec": {"containers": [container], "hostNetwork": host_network}}
    return PodInfo(decode_part(Pod, content))


def _annotations(case: Case) -> dict[str, str]:
    fields = {"device-allocate-hint": "allocateHint", "device-joint-allocate": "jointAllocate"}
    return {
        f"scheduling.koordinator.sh/{name}": json.dumps(case[field])
        for name, field in fields.items()
        if case.get(field)
    }


def _wanted(content: Mapping[str, Any]) -> tuple[Allocation, ...]:
    """Return the allocations of a case, which has virtual functions beside the resources."""
    entries = {kind: [_entry(one) for one in own] for kind, own in content.items()}
    return allocations_of({ALLOCATED: json.dumps(entries)})


def _entry(one: Mapping[str, Any]) -> dict[str, Any]:
    extension = {"vfs": one.get("vfs", []), "gpuSharedResourceTemplate": one.get("template", "")}
    return {"minor": one["minor"], "resources": one["resources"], "extension": extension}


def _plain(allocations: tuple[Allocation, ...]) -> list[Any]:
    return sorted(
        (one.kind, one.minor, one.amounts, one.functions, one.template) for one in allocations
    )


RUNNERS: Mapping[str, Callable[[Case], None]] = {
    "validate": _validate,
    "convert": _convert,
    "per-gpu": _per_gpu,
    "fill-memory": _fill_memory,
    "device-score": _score,
    "gpu-minors": _minors,
    "partition-table": _table,
    "allocate": _allocate,
    "allocate-template": _allocate,
}
