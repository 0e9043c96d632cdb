"""Koordinator: the annotations of pods about the choice of devices, and of a node's GPU groups.

Names as in koordinator-sh/koordinator v1.8 (apis/extension/device_share.go).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from bayplan.api.meta import ApiStruct, LabelSelector
from bayplan.api.quantity import Quantity
from bayplan.api.selectors import Selector, compile_selector
from bayplan.dialects.koordinator.annotations import mapping_in, part_of
from bayplan.dialects.koordinator.requests import DEVICE_TYPES
from bayplan.dialects.reading import is_index

__all__ = [
    "HINT_ANNOTATIONS",
    "HOPPER_GROUPS",
    "NO_HINT",
    "NO_HINTS",
    "SCOPES",
    "AllocationHints",
    "DeviceHint",
    "GpuGroup",
    "GpuGroups",
    "GroupSpec",
    "JointAllocation",
    "gpu_groups",
    "hints_of",
]

_DOMAIN = "scheduling.koordinator.sh/"
_HINT = f"{_DOMAIN}device-allocate-hint"
_JOINT = f"{_DOMAIN}device-joint-allocate"
_GROUP_SPEC = f"{_DOMAIN}gpu-partition-spec"
_GROUPS = f"{_DOMAIN}gpu-partitions"
HINT_ANNOTATIONS = (_HINT, _JOINT, _GROUP_SPEC)
"""The annotations of pods about the choice of their devices."""
SCOPES: Mapping[str, int] = {"": 0, "Node": 1, "NUMANode": 2, "PCIe": 3, "Device": 4}
"""Topology scopes, the wider first."""
_MOST_MINORS = 64
_MOST_SCORE = 1_000_000


class _Hint(ApiStruct, frozen=True, forbid_unknown_fields=True):
    selector: LabelSelector | None = None
    vf_selector: LabelSelector | None = None
    allocate_strategy: Literal["", "ApplyForAll", "RequestsAsCount"] = ""
    required_topology_scope: Literal["", "Device", "PCIe", "NUMANode", "Node"] = ""
    exclusive_policy: Literal["", "DeviceLevel", "PCIeLevel"] = ""


class _Joint(ApiStruct, frozen=True, forbid_unknown_fields=True):
    device_types: tuple[Literal["gpu", "rdma", "fpga"], ...] = ()
    required_scope: Literal["", "SamePCIe"] = ""


class _GroupSpec(ApiStruct, frozen=True, forbid_unknown_fields=True):
    allocate_policy: Literal["", "BestEffort", "Restricted"] = ""
    ring_bus_bandwidth: Quantity | None = None


class _Group(ApiStruct, frozen=True, forbid_unknown_fields=True):
    minors: tuple[int, ...]
    gpu_link_type: str = msgspec.field(default="", name="gpuLinkType")
    ring_bus_bandwidth: Quantity | None = None
    allocation_score: int = 0


class DeviceHint(msgspec.Struct, frozen=True):
    """How to choose devices of one type.

    ``selector`` selects devices by their labels, ``functions`` virtual functions, of which each
    device then gives one. ``scope`` is a name in SCOPES. The strategy "ApplyForAll" takes all
    selected devices, "RequestsAsCount" as many as requested; then ``exclusive`` devices are taken
    whole.
    """

    selector: Selector | None = None
    functions: Selector | None = None
    strategy: str = ""
    scope: str = ""
    exclusive: bool = False


NO_HINT = DeviceHint()


class JointAllocation(msgspec.Struct, frozen=True):
    """Types of devices to take near each other, the primary one first.

    With ``same_pcie``, the devices of all types have to be behind the same PCIe switches.
    """

    types: tuple[str, ...]
    same_pcie: bool = False


class GroupSpec(msgspec.Struct, frozen=True):
    """What a pod asks of a group of GPUs that the node lists.

    ``restricted``: only groups of the best score. ``bandwidth``: the least that the group's ring
    has, in the unit of the node's table.
    """

    restricted: bool = False
    bandwidth: Quantity | None = None


class AllocationHints(msgspec.Struct, frozen=True):
    """All that a pod's annotations say about the choice of its devices."""

    hints: tuple[tuple[str, DeviceHint], ...] = ()
    joint: JointAllocation | None = None
    group: GroupSpec | None = None

    @property
    def empty(self) -> bool:
        """Whether the annotations say nothing."""
        return not self.hints and self.joint is None and self.group is None

    def hint(self, kind: str) -> DeviceHint:
        """Return the hint for a type of device."""
        return next((hint for name, hint in self.hints if name == kind), NO_HINT)


NO_HINTS = AllocationHints()


class GpuGroup(msgspec.Struct, frozen=True):
    """GPUs of a node that may be taken together; a higher score is better."""

    minors: tuple[int, ...]
    link: str = ""
    score: int = 0
    bandwidth: Quantity | None = None

    @property
    def mask(self) -> int:
        """The minor numbers as bits."""
        return sum(1 << minor for minor in self.minors)


class GpuGroups(msgspec.Struct, frozen=True):
    """The groups of a node by their number of GPUs, in the order of the table."""

    groups: tuple[tuple[int, tuple[GpuGroup, ...]], ...]

    def of(self, count: int) -> tuple[GpuGroup, ...]:
        """Return the groups with a number of GPUs; empty if none is listed."""
        return next((groups for size, groups in self.groups if size == count), ())


_NVLINK = "NVLink"
HOPPER_GROUPS = GpuGroups(
    tuple(
        (size, tuple(GpuGroup(tuple(range(at, at + size)), _NVLINK, 1) for at in range(0, 8, size)))
        for size in (1, 2, 4, 8)
    )
)
"""The aligned groups of NVIDIA's Hopper machines with 8 GPUs, for nodes that list none."""


def hints_of(annotations: Mapping[str, str]) -> AllocationHints | None:
    """Return what a pod's annotations say about its devices; None if they say nothing.

    :raises ValueError: for an annotation that cannot be read, naming it.
    """
    if not any(name in annotations for name in HINT_ANNOTATIONS):
        return None
    return AllocationHints(_hints(annotations), _joint(annotations), _group_spec(annotations))


def _hints(annotations: Mapping[str, str]) -> tuple[tuple[str, DeviceHint], ...]:
    content = mapping_in(annotations, _HINT)
    found = []
    for kind, value in sorted(content.items()):
        _check_type(_HINT, kind)
        if value is None:
            continue
        hint = part_of(_Hint, _HINT, f"$.{kind}", value)
        selectors = (
            _selector(hint.selector, f"$.{kind}.selector"),
            _selector(hint.vf_selector, f"$.{kind}.vfSelector"),
        )
        exclusive = hint.exclusive_policy == "DeviceLevel"
        found.append(
            (
                kind,
                DeviceHint(
                    *selectors, hint.allocate_strategy, hint.required_topology_scope, exclusive
                ),
            )
        )
    return tuple(found)


def _joint(annotations: Mapping[str, str]) -> JointAllocation | None:
    if _JOINT not in annotations:
        return None
    joint = part_of(_Joint, _JOINT, "$", mapping_in(annotations, _JOINT))
    if len(set(joint.device_types)) < len(joint.device_types):
        raise ValueError(f"annotation {_JOINT}: $.deviceTypes: a type is named twice")
    return JointAllocation(joint.device_types, joint.required_scope == "SamePCIe")


def _group_spec(annotations: Mapping[str, str]) -> GroupSpec | None:
    if _GROUP_SPEC not in annotations:
        return None
    spec = part_of(_GroupSpec, _GROUP_SPEC, "$", mapping_in(annotations, _GROUP_SPEC))
    return GroupSpec(spec.allocate_policy == "Restricted", spec.ring_bus_bandwidth)


def gpu_groups(annotations: Mapping[str, str]) -> GpuGroups | None:
    """Return the groups of GPUs that a Device lists; None if it lists none.

    :raises ValueError: for an annotation that cannot be read.
    """
    if not annotations.get(_GROUPS):
        return None
    found = []
    for size, groups in sorted(mapping_in(annotations, _GROUPS).items()):
        where = f'$["{size[:20]}"]'
        if not is_index(size) or not 1 <= int(size) <= _MOST_MINORS:
            raise ValueError(
                f"annotation {_GROUPS}: {where}: expected a number of GPUs from 1 to {_MOST_MINORS}"
            )
        if not isinstance(groups, list):
            raise ValueError(f"annotation {_GROUPS}: {where}: expected a list of groups")
        read = [_group(int(size), f"{where}[{place}]", one) for place, one in enumerate(groups)]
        found.append((int(size), tuple(read)))
    return GpuGroups(tuple(sorted(found, key=lambda pair: pair[0])))


def _group(size: int, where: str, content: Any) -> GpuGroup:
    group = part_of(_Group, _GROUPS, where, content)
    minors = group.minors
    if len(set(minors)) != size or len(minors) != size:
        raise ValueError(f"annotation {_GROUPS}: {where}.minors: expected {size} different numbers")
    if not all(0 <= minor < _MOST_MINORS for minor in minors):
        raise ValueError(
            f"annotation {_GROUPS}: {where}.minors: expected numbers from 0 to {_MOST_MINORS - 1}"
        )
    if not 0 <= group.allocation_score <= _MOST_SCORE:
        raise ValueError(
            f"annotation {_GROUPS}: {where}.allocationScore: expected a number from 0 to "
            f"{_MOST_SCORE}"
        )
    return GpuGroup(minors, group.gpu_link_type, group.allocation_score, group.ring_bus_bandwidth)


def _check_type(name: str, kind: str) -> None:
    if kind not in DEVICE_TYPES:
        raise ValueError(
            f'annotation {name}: expected one of {", ".join(DEVICE_TYPES)}, got "{kind[:40]}"'
        )


def _selector(selector: LabelSelector | None, where: str) -> Selector | None:
    if selector is None:
        return None
    for place, term in enumerate(selector.match_expressions):
        if (term.operator in ("In", "NotIn")) != bool(term.values):
            raise ValueError(
                f"annotation {_HINT}: {where}.matchExpressions[{place}].values: expected some "
                "values for In and NotIn, none for Exists and DoesNotExist"
            )
    return compile_selector(selector)
