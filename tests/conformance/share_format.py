"""What the cases of shares of GPUs of HAMi and of Koordinator may say, kind by kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType
from tests.conformance.case_format import Common, Number, Part, complete

__all__ = ["completed"]

Texts = dict[str, str]


class _Case(Common, kw_only=True):
    source: str = ""


# HAMi --------------------------------------------------------------------------------------


class _Placement(Part, kw_only=True):
    Start: int = 0
    Size: int = 0


class _Profile(Part, kw_only=True):
    Name: str = ""
    MemoryMB: int = 0
    Core: int = 0
    SliceCount: int = 0
    Placements: list[_Placement] = []


class _Device(Part, kw_only=True):
    """A device as HAMi's scheduler has it."""

    id: str = ""
    index: int = 0
    type: str = ""
    mode: str = ""
    count: int = 0
    totalmem: int = 0
    totalcore: int = 0
    used: int = 0
    usedmem: int = 0
    usedcores: int = 0
    numa: int = 0
    health: bool = False
    score: Number = 0
    MigProfiles: list[_Profile] = []


class _Request(Part, kw_only=True):
    nums: int = 0
    type: str = ""
    memreq: int = 0
    memPercent: int = 0
    cores: int = 0


class _Pick(Part, kw_only=True):
    uuid: str = ""
    usedmem: int = 0
    usedcores: int = 0


class _FitWanted(Part, kw_only=True):
    fit: bool = False
    uuids: list[str] | UnsetType = UNSET
    devices: list[_Pick] | UnsetType = UNSET
    reason: str = ""
    reasonContains: str = ""
    reasonCounts: dict[str, int] | UnsetType = UNSET


class Fit(_Case, kw_only=True):
    """fit."""

    devices: list[_Device] = []
    request: _Request = _Request()
    podAnnotations: Texts = {}
    nodeAnnotations: Texts = {}
    want: _FitWanted = _FitWanted()


class FitInDevices(_Case, kw_only=True):
    """fitInDevices."""

    devices: list[_Device] = []
    requests: dict[str, _Request] = {}
    podAnnotations: Texts = {}
    want: _FitWanted = _FitWanted()


class _ScoredNode(Part, kw_only=True):
    policy: str = ""
    devices: list[_Device] = []


class _NodeWanted(Part, kw_only=True):
    node: str = ""
    score: Number = 0
    devices: dict[str, list[list[_Pick]]] = {}


class _ScoreWanted(Part, kw_only=True):
    nodes: list[_NodeWanted] = []
    failed: Texts = {}


class Score(_Case, kw_only=True):
    """calcScore."""

    nodes: dict[str, _ScoredNode] = {}
    requests: list[dict[str, _Request]] = []
    initContainers: int = 0
    podAnnotations: Texts = {}
    want: _ScoreWanted = _ScoreWanted()


class _RequestConfig(Part, kw_only=True):
    memoryFactor: int = 1
    defaultMemory: int = 0
    defaultCores: int = 0


class _RequestWanted(Part, kw_only=True):
    nums: int | UnsetType = UNSET
    type: str | UnsetType = UNSET
    memreq: int | UnsetType = UNSET
    memPercent: int | UnsetType = UNSET
    cores: int | UnsetType = UNSET


class Request(_Case, kw_only=True):
    """request and request-partial."""

    config: _RequestConfig = _RequestConfig()
    limits: Texts = {}
    requests: Texts = {}
    want: _RequestWanted = _RequestWanted()


class _Names(Part, kw_only=True):
    count: str = "nvidia.com/gpu"
    mem: str = ""
    memPercent: str = ""
    core: str = ""
    defaultGPUNum: int = 1


class _AdmissionWanted(Part, kw_only=True):
    coreLimitPresent: bool = False
    coreLimit: int | None = None
    coreRequest: int | None = None


class Admission(_Case, kw_only=True):
    """admission-exclusive-core."""

    names: _Names = _Names()
    limits: Texts = {}
    requests: Texts = {}
    want: _AdmissionWanted = _AdmissionWanted()


class _MigProfile(Part, kw_only=True):
    name: str = ""
    memoryMB: int = 0
    core: int = 0
    sliceCount: int = 0
    placements: list[list[int]] = []


class Mig(_Case, kw_only=True):
    """mig-feasible, mig-select-sequence and mig-filter."""

    profiles: list[_MigProfile] = []
    occupied: list[list[int]] = []
    requested: list[str] = []
    sequence: list[Any] = []
    gpu: str | int = ""
    queued: list[Any] = []
    memory: int = 0
    want: bool = False


class DeviceScore(_Case, kw_only=True):
    """device-score."""

    device: _Device = _Device()
    weights: dict[str, Number] = {}
    requests: list[_Request] = []
    want: Number = 0


class DeviceLess(_Case, kw_only=True):
    """device-less."""

    policy: str = ""
    numaBind: bool = False
    devices: list[_Device] = []
    want: bool = False


class NodeScore(_Case, kw_only=True):
    """node-score."""

    devices: list[_Device] = []
    want: Number = 0


class NodeLess(_Case, kw_only=True):
    """node-less."""

    policy: str = ""
    scores: list[Number] = []
    i: int = 0
    j: int = 0
    want: bool = False


class Quota(_Case, kw_only=True):
    """quota; the namespace is the one that the limits are of."""

    limits: dict[str, int] = {}
    numInit: int = 0
    numApp: int = 0
    tmp: list[_Pick] = []
    allocated: list[list[_Pick]] = []
    namespace: str = ""
    uuid: str = ""
    memreq: int = 0
    coresreq: int = 0
    want: bool = False


# Koordinator -------------------------------------------------------------------------------


class _Entry(Part, kw_only=True):
    minor: int = 0
    resources: Texts = {}
    vfs: list[dict[str, Any]] = []
    template: str = ""


Entries = dict[str, list[_Entry]]


class Allocate(_Case, kw_only=True):
    """allocate and allocate-template.

    ``hostNetwork`` is what virtual functions are for: a pod in the host's network names none.
    """

    objects: dict[str, Any] = {}
    deviceCR: str = ""
    nodeLabels: Texts = {}
    requests: Texts = {}
    hostNetwork: bool = False
    allocateHint: dict[str, Any] = {}
    jointAllocate: dict[str, Any] = {}
    templates: dict[str, Any] = {}
    scorer: str = ""
    secondaryDeviceWellPlanned: bool = False
    assigned: Entries = {}
    want: Entries = {}
    wantErr: bool = False


class Validate(_Case, kw_only=True):
    """validate."""

    request: Texts = {}
    want: list[str] = []
    wantErr: bool = False


class Convert(_Case, kw_only=True):
    """convert."""

    request: Texts = {}
    combination: list[str] = []
    want: Texts = {}


class _PerGpu(Part, kw_only=True):
    perGPU: Texts = {}
    count: int = 0
    shared: bool = False


class PerGpu(_Case, kw_only=True):
    """per-gpu."""

    request: Texts = {}
    want: _PerGpu = _PerGpu()


class FillMemory(_Case, kw_only=True):
    """fill-memory."""

    allocations: Entries = {}
    deviceTotal: dict[str, dict[str, Texts]] = {}
    want: Entries = {}
    wantErr: bool = False


class KoordinatorScore(_Case, kw_only=True):
    """device-score of Koordinator."""

    request: Texts = {}
    total: Texts = {}
    free: Texts = {}
    strategy: str = "LeastAllocated"
    want: Number = 0


class _Minor(Part, kw_only=True):
    Minor: int = 0


class _MinorArgs(Part, kw_only=True):
    allocation: list[_Minor] = []


class Minors(_Case, kw_only=True):
    """gpu-minors."""

    args: _MinorArgs = _MinorArgs()
    want: str = ""


class PartitionTable(_Case, kw_only=True):
    """partition-table."""

    want: dict[str, list[dict[str, Any]]] = {}


_HAMI: dict[str, type[_Case]] = {
    "fit": Fit,
    "fitInDevices": FitInDevices,
    "calcScore": Score,
    "request": Request,
    "request-partial": Request,
    "admission-exclusive-core": Admission,
    "mig-feasible": Mig,
    "mig-select-sequence": Mig,
    "mig-filter": Mig,
    "device-score": DeviceScore,
    "device-less": DeviceLess,
    "node-score": NodeScore,
    "node-less": NodeLess,
    "quota": Quota,
}
_KOORDINATOR: dict[str, type[_Case]] = {
    "allocate": Allocate,
    "allocate-template": Allocate,
    "validate": Validate,
    "convert": Convert,
    "per-gpu": PerGpu,
    "fill-memory": FillMemory,
    "device-score": KoordinatorScore,
    "gpu-minors": Minors,
    "partition-table": PartitionTable,
}


def completed(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return a case with all fields of its kind.

    :raises UnknownFieldError: for a field that the kind does not have.
    """
    formats = _KOORDINATOR if "/deviceshare/" in case.get("source", "") else _HAMI
    return complete(formats[case["kind"]], case)
