"""What Volcano's cases may say; objects of APIs are read in ``volcano_cycles``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import UNSET, UnsetType
from tests.conformance.case_format import Common, Number, Part, UnknownFieldError, complete

__all__ = ["completed"]

Object = dict[str, Any]


class _Plugin(Part, kw_only=True):
    name: str
    switches: dict[str, bool] = {}
    arguments: Object = {}
    registered: bool = True


class _Tier(Part, kw_only=True):
    plugins: list[_Plugin] = []


class _Action(Part, kw_only=True):
    """Arguments of an action; those known are of how preemption looks for nodes."""

    name: str
    arguments: Object = {}


class _Shard(Part, kw_only=True):
    mode: str = ""
    name: str = ""
    nodes_in_shard: list[str] = []


class _Expected(Part, kw_only=True):
    bind_num: int | UnsetType = UNSET
    bind_map: dict[str, str] = {}
    bind_map_checked: bool = True
    evict_num: int | UnsetType = UNSET
    evicted: list[str] | UnsetType = UNSET
    pipelined: dict[str, list[str]] = {}
    podgroup_phase: dict[str, str] = {}
    task_status_nums: dict[str, dict[str, int]] | UnsetType = UNSET
    bind_nums_in_hypernode: list[int] | UnsetType = UNSET


class _World(Common, kw_only=True):
    """A cycle or a session.

    ``row`` repeats the test's table, which sessions compare with. ``hypernode_tier_names`` repeats
    what the HyperNodes say.
    """

    actions: list[str] = []
    checks: list[str] = []
    plugins: list[str] = []
    tiers: list[_Tier] = []
    configurations: list[_Action] = []
    sharding: _Shard | UnsetType = UNSET
    nodes: list[Object] = []
    queues: list[Object] = []
    podgroups: list[Object] = []
    pods: list[Object] = []
    priority_classes: list[Object] = []
    hypernodes: list[Object] = []
    hypernodes_by_tier: dict[str, list[str]] = {}
    hypernode_nodes: dict[str, list[str]] = {}
    hypernode_tier_names: dict[str, int] = {}
    pvs: list[Object] = []
    pvcs: list[Object] = []
    storage_classes: list[Object] = []
    resource_slices: list[Object] = []
    device_classes: list[Object] = []
    resource_claims: list[Object] = []
    resource_quotas: list[Object] = []
    row: Object = {}
    unproven: bool | str = ""
    expected: _Expected = _Expected()


class _Amounts(Part, kw_only=True):
    """Amounts; ``max_task_num`` is of nodes, and no amount of a job."""

    max_task_num: int = 0
    milli_cpu: Number = 0
    memory: Number = 0
    scalar_resources: dict[str, Number] = {}


class _Share(Part, kw_only=True):
    share: Number = 0


class _ShareInput(Part, kw_only=True):
    deserved: _Amounts = _Amounts()
    allocated: _Amounts = _Amounts()
    request: _Amounts = _Amounts()


class CapacityShare(Common, kw_only=True):
    """unit:capacity-share."""

    input: _ShareInput = _ShareInput()
    expected: _Share = _Share()


class _ElasticInput(Part, kw_only=True):
    podgroup: Object
    pods: list[Object] = []


class _Elastic(Part, kw_only=True):
    elastic: _Amounts = _Amounts()


class ElasticResources(Common, kw_only=True):
    """unit:elastic-resources."""

    input: _ElasticInput
    expected: _Elastic = _Elastic()


_FORMATS: dict[str, type[Common]] = {
    "cycle": _World,
    "session": _World,
    "unit:capacity-share": CapacityShare,
    "unit:elastic-resources": ElasticResources,
}
_CHECKS = frozenset(
    (
        *("CheckAll", "CheckBind", "CheckEvict", "CheckPipelined", "CheckPGStatus"),
        *("CheckTaskStatusNums", "CheckBindInHyperNode"),
    )
)
_ACTION_ARGUMENTS = frozenset(
    (
        *("enableTopologyAwarePreemption", "topologyAwarePreemptWorkerNum"),
        *("minCandidateNodesPercentage", "minCandidateNodesAbsolute"),
        "maxCandidateNodesAbsolute",
    )
)
_SWITCHES = frozenset(
    (
        *("enableJobOrder", "enableJobReady", "enableJobPipelined", "enableJobEnqueued"),
        *("enableJobStarving", "enableTaskOrder", "enablePreemptable", "enableReclaimable"),
        *("enablePreemptive", "enableQueueOrder", "enablePredicate", "enableNodeOrder"),
        *("enabledOverused", "enabledAllocatable", "enabledVictim", "enableHierarchy"),
        *("enabledBestNode", "enabledTargetJob", "enabledReservedNodes", "enabledClusterOrder"),
        # Domains and sub-groups are chosen by other plugins here, which are always on.
        *("enabledHyperNodeOrder", "enabledHyperNodeGradient"),
        *("enabledSubJobReady", "enabledSubJobOrder", "enabledSubJobPipelined"),
    )
)


def completed(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return a case with all fields of its kind.

    :raises UnknownFieldError: for a field, check, switch or argument that nobody reads.
    """
    found = complete(_FORMATS[case["kind"]], case)
    plugins = [plugin for tier in found.get("tiers", ()) for plugin in tier["plugins"]]
    actions = found.get("configurations", ())
    _known("check", found.get("checks", ()), _CHECKS)
    _known("switch", (name for plugin in plugins for name in plugin["switches"]), _SWITCHES)
    _known("argument", (name for one in actions for name in one["arguments"]), _ACTION_ARGUMENTS)
    return found


def _known(what: str, given: Iterable[str], known: frozenset[str]) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        raise UnknownFieldError(f"nobody reads the {what} {unknown[0]}")
