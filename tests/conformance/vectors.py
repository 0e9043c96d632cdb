"""Cases in the format of the reference's vectors: reading them, comparing results."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec import UNSET, UnsetType
from tests.conformance.case_format import Part, UnknownFieldError, checked
from tests.dra.allocator.worlds import World

from bayplan.api import DeviceClass, Node, Quantity, ResourceClaim, ResourceSlice
from bayplan.api.dra import AllocationResult, DeviceId
from bayplan.api.objects import decode_part
from bayplan_dra.allocator import AllocatedState, Features, Inventory

Made = TypeVar("Made")
_DRA = "resource.k8s.io/v1"
HERE = Path(__file__).parent
SHARED = HERE.parent.parent.parent / "shared" / "conformance"
FEATURES = {
    "DRAAdminAccess": "admin_access",
    "DRAPrioritizedList": "prioritized_list",
    "DRAPartitionableDevices": "partitionable_devices",
    "DRADeviceTaints": "device_taints",
    "DRADeviceBindingConditions+DRAResourceClaimDeviceStatus": "binding_conditions",
    "DRAConsumableCapacity": "consumable_capacity",
    "DRAListTypeAttributes": "list_attributes",
}


def cases(config: pytest.Config, option: str, shared: str, own: str) -> list[Any]:
    """Return the cases as pytest parameters; a missing file is one skipped case."""
    found = _read(HERE / own, "own")
    given = config.getoption(option, default=None)
    beside = SHARED / shared
    if given is not None:
        return found + _read(Path(given), "given")
    if beside.exists():
        return found + _read(beside, "shared")
    reason = f"the reference's vectors ({shared}) do not lie beside the project"
    return [*found, pytest.param({}, id=shared, marks=pytest.mark.skip(reason=reason))]


def _read(path: Path, prefix: str) -> list[Any]:
    lines = path.read_text(encoding="utf-8").splitlines()
    parsed = [json.loads(line) for line in lines if line.strip()]
    return [pytest.param(case, id=f"{prefix}-{case['name']}") for case in parsed]


class AllocatorCase(Part, kw_only=True):
    """A case of the allocator; how often Go's functions are called is not compared."""

    name: str
    features: list[str] = []
    classes: list[dict[str, Any]] = []
    slices: list[dict[str, Any]] = []
    claims: list[dict[str, Any]] = []
    node: dict[str, Any] = {}
    allocatedDevices: list[str] = []
    allocatedSharedDeviceIDs: list[str] = []
    aggregatedCapacity: dict[str, dict[str, str]] = {}
    results: list[dict[str, Any]] = []
    error: str = ""
    errorIsNodeLocal: bool = False
    allocateOneCalls: int = 0


class SelectorCase(Part, kw_only=True):
    """A case of a CEL selector; that an expression is new says which costs are allowed for it."""

    name: str
    driver: str = ""
    attributes: dict[str, Any] = {}
    capacity: dict[str, Any] = {}
    allowMultipleAllocations: bool = False
    expression: str = ""
    enableConsumableCapacity: bool = False
    enableListTypeAttributes: bool | UnsetType = UNSET
    newExpressionsOnly: bool = False
    expectCompileError: str = ""
    expectMatch: bool = False
    expectMatchError: str = ""


def _object(type_: type[Made], kind: str, content: dict[str, Any]) -> Made:
    whole = checked("v1" if kind == "Node" else _DRA, kind, content)
    return decode_part(type_, {k: v for k, v in whole.items() if k not in ("apiVersion", "kind")})


def decode(case: dict[str, Any]) -> World:
    """Return an allocator case as the world that it describes.

    :raises UnknownFieldError: for a field or feature that nobody reads.
    """
    given = case["features"]
    unknown = sorted(set(given) - FEATURES.keys())
    if unknown:
        raise UnknownFieldError(f"nobody reads the feature {unknown[0]}")
    features = Features(**{field: name in given for name, field in FEATURES.items()})
    inventory = Inventory(features)
    seen: set[str] = set()
    for index, content in enumerate(case["slices"]):
        # The reference's cases give several slices one name; their order is what counts.
        meta = dict(content["metadata"])
        if meta["name"] in seen:
            meta["name"] += f"-{index}"
        seen.add(meta["name"])
        inventory.set_slice(_object(ResourceSlice, "ResourceSlice", {**content, "metadata": meta}))
    return World(
        inventory,
        {c["metadata"]["name"]: _object(DeviceClass, "DeviceClass", c) for c in case["classes"]},
        _object(Node, "Node", case["node"]),
        [_object(ResourceClaim, "ResourceClaim", content) for content in case["claims"]],
        AllocatedState(
            {_device(text) for text in case["allocatedDevices"]},
            dict(Counter(_device(text) for text in case["allocatedSharedDeviceIDs"])),
            {
                _device(text): {name: Quantity(amount).number for name, amount in used.items()}
                for text, used in case["aggregatedCapacity"].items()
            },
        ),
    )


def _device(text: str) -> DeviceId:
    driver, pool, device, *_ = text.split("/")
    return DeviceId(driver, pool, device)


def comparable(allocation: AllocationResult | dict[str, Any]) -> object:
    """Return an allocation in a form that can be compared: order and share ids do not count."""
    plain = _plain(allocation)
    devices = plain.get("devices", {})
    results = []
    for result in devices.get("results") or ():
        one = dict(result)
        if "shareID" in one:
            one["shareID"] = "SHARE"
        if "consumedCapacity" in one:
            consumed = one["consumedCapacity"]
            one["consumedCapacity"] = {n: str(Quantity(q).number) for n, q in consumed.items()}
        tolerations = one.get("tolerations", ())
        if tolerations:
            one["tolerations"] = [{"operator": "Equal", **t} for t in tolerations]
        results.append(_text(one))
    selector = plain.get("nodeSelector")
    terms = [_term(term) for term in selector["nodeSelectorTerms"]] if selector else None
    config = sorted(_text(one) for one in devices.get("config") or ())
    return _text([sorted(results), config, sorted(terms) if terms is not None else None])


def _plain(allocation: AllocationResult | dict[str, Any]) -> dict[str, Any]:
    if isinstance(allocation, dict):
        return allocation
    encoded = msgspec.json.encode(allocation, enc_hook=lambda quantity: quantity.text)
    plain: dict[str, Any] = json.loads(encoded)
    return plain


def _term(term: dict[str, Any]) -> str:
    parts = []
    for field in ("matchExpressions", "matchFields"):
        requirements = [
            _text({**requirement, "values": sorted(requirement.get("values") or ())})
            for requirement in term.get(field) or ()
        ]
        parts.append(sorted(requirements))
    return _text(parts)


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
