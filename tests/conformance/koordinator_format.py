"""What Koordinator's cases of quotas may say: tables, and scripts of operations step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.conformance.case_format import Common, Number, Part, UnknownFieldError, complete

__all__ = ["completed"]

Amounts = dict[str, str]


class _Case(Common, kw_only=True):
    feature_gates: dict[str, bool] = {}


class _Sibling(Part, kw_only=True):
    name: str
    shared_weight: int = 0
    request: int = 0
    min: int = 0
    guarantee: int = 0
    allow_lent: bool = False


class _Runtimes(Part, kw_only=True):
    runtime: dict[str, int] = {}


class Runtime(_Case, kw_only=True):
    """quota-runtime."""

    total: int = 0
    nodes: list[_Sibling] = []
    expected: _Runtimes = _Runtimes()


class _Scaled(Part, kw_only=True):
    applies: bool = False
    min: Amounts | None = None


class ScaledMin(_Case, kw_only=True):
    """quota-scale-min."""

    enable_sum: Amounts | None = None
    disable_sum: Amounts | None = None
    original_min: Amounts | None = None
    scale_enabled: bool = False
    total: Amounts | None = None
    expected: _Scaled = _Scaled()


class _Revoked(Part, kw_only=True):
    revoked_in_order: list[str] = []


class Revoke(_Case, kw_only=True):
    """quota-revoke; ``quota`` is the name of the only one."""

    quota: Any = ""
    runtime: Amounts = {}
    used: Amounts = {}
    pods: list[dict[str, Any]] = []
    expected: _Revoked = _Revoked()


class _Trial(Part, kw_only=True):
    used: Amounts = {}
    non_preemptible_used: Amounts = {}
    used_limit: Amounts = {}


class _Step(Part, kw_only=True, omit_defaults=True):
    """One step: an operation, fields that a test sets, or what the quotas have to be."""

    op: str = ""
    on: str = ""
    args: dict[str, Any] = {}
    result: Any = None
    state: dict[str, Any] | None = None
    set_state: dict[str, Any] | None = None
    asserts: int = 0
    plugin_args: dict[str, Any] = {}
    names_known_to_plugin: list[str] = []
    post_filter_state: _Trial | None = None
    post_filter_state_after: _Trial | None = None


class Script(_Case, kw_only=True):
    """quota-script and quota-webhook; ``expected`` repeats the results of steps, but for paths."""

    steps: list[_Step] = []
    expected: dict[str, Any] = {}


class QuotaState(Part, kw_only=True, omit_defaults=True):
    """Fields of a quota, or the totals of a tree."""

    parent: str | None = None
    is_parent: bool | None = None
    tree: str | None = None
    name: str | None = None
    allow_lent: bool | None = None
    max: Amounts | None = None
    min: Amounts | None = None
    auto_scale_min: Amounts | None = None
    shared_weight: Amounts | None = None
    total: Amounts | None = None
    total_except_system_default_used: Amounts | None = None
    request: Amounts | None = None
    child_request: Amounts | None = None
    limit_request: Amounts | None = None
    non_preemptible_request: Amounts | None = None
    self_request: Amounts | None = None
    self_non_preemptible_request: Amounts | None = None
    used: Amounts | None = None
    non_preemptible_used: Amounts | None = None
    self_used: Amounts | None = None
    self_non_preemptible_used: Amounts | None = None
    runtime: Amounts | None = None
    allocated: Amounts | None = None
    guaranteed: Amounts | None = None
    pods_assigned: dict[str, bool] | None = None


class _Arguments(Part, kw_only=True):
    """Arguments of operations; objects among them are read where they are made."""

    pod: Any = None
    p: Any = None
    obj: Any = None
    oldObj: Any = None
    newObj: Any = None
    oldPod: Any = None
    newPod: Any = None
    node: Any = None
    newNode: Any = None
    oldNode: Any = None
    nodeName: str = ""
    nodeInfo: Any = None
    nodesToVictims: Any = None
    nominatedNodeStatus: Any = None
    candidates: Any = None
    pdbs: Any = None
    victim: Any = None
    podToSchedule: Any = None
    podInfoToRemove: Any = None
    podInfoToAdd: Any = None
    podRequest: Amounts | None = None
    quota: Any = None
    oldQuota: Any = None
    newQuota: Any = None
    quotaInfo: QuotaState | None = None
    oldQuotaInfo: QuotaState | None = None
    newQuotaInfo: QuotaState | None = None
    quotaName: str | None = None
    oldQuotaName: str | None = None
    newQuotaName: str | None = None
    curQuotaName: str | None = None
    parentName: str | None = None
    selfQuotaIndex: Number = 0
    isDelete: bool = False
    isAdd: bool = False
    isAssigned: bool = False
    flag: bool = False
    enableUpdateResourceKey: bool = False
    total: Amounts | None = None
    delta: Amounts | None = None
    deltaRes: Amounts | None = None
    deltaReq: Amounts | None = None
    deltaNonPreemptibleRequest: Amounts | None = None
    deltaNonPreemptibleUsed: Amounts | None = None
    out: str | None = None
    in_: str | None = None


_FORMATS: dict[str, type[_Case]] = {
    "quota-runtime": Runtime,
    "quota-scale-min": ScaledMin,
    "quota-revoke": Revoke,
    "quota-script": Script,
    "quota-webhook": Script,
}


_INFOS = ("quotaInfo", "oldQuotaInfo", "newQuotaInfo")
_ZERO = {"parent": "", "is_parent": False, "allow_lent": False}


def completed(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return a case with all fields of its kind.

    :raises UnknownFieldError: for a field that the kind does not have.
    """
    found = complete(_FORMATS[case["kind"]], case, nulls=True)
    for step in found.get("steps", ()):
        for what in ("state", "set_state"):
            for name, fields in (step.get(what) or {}).items():
                if fields is not None and name != "$children":
                    complete(QuotaState, {**fields, "name": name}, nulls=True)
        if "op" in step:
            step["args"] = _arguments(step["op"], step.get("args", {}))
            step.setdefault("result", None)
    return found


def _arguments(op: str, given: Mapping[str, Any]) -> dict[str, Any]:
    renamed = {"in_" if name == "in" else name: one for name, one in given.items()}
    try:
        found = complete(_Arguments, renamed, nulls=True)
    except UnknownFieldError as exc:
        raise UnknownFieldError(f"{op}: {exc}") from None
    found["in"] = found.pop("in_")
    for name in _INFOS:
        if found[name] is not None:
            found[name] = {**_ZERO, **found[name]}
    return found
