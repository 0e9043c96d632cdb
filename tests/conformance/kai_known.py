"""KAI's scenarios that end differently here, each with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from tests.conformance.kai_rounds import Mismatch
from tests.conformance.kai_scenarios import Case

__all__ = ["known_difference"]

_TOPOLOGY = "domains have as much free: KAI fills the last by name first, bayplan the first"
_CLAIMS = "asks the pre-filter alone; no node has the devices of both claims"
_WAITS = "starts at once on a free GPU instead of waiting for a share that becomes free"
_PIPELINED = "begins with a pod that has a node and waits for nobody; it starts there"

_KNOWN: dict[str, str] = {
    "actions/allocate/allocateTopology#TestHandleTopologyAllocation-16": _TOPOLOGY,
    "actions/allocate/allocateTopology#TestHandleTopologyAllocation-18": _TOPOLOGY,
    "actions/allocate/allocateTopology#TestHandleTopologyAllocation-19": _TOPOLOGY,
    "plugins/dynamicresources/dynamicresources#TestDynamicResourceAllocationPreFilter-2": _CLAIMS,
}


def known_difference(case: Case, wrong: Sequence[Mismatch]) -> str | None:
    """Return why a scenario ends differently here; None for a difference that nobody knows."""
    return _KNOWN.get(case["id"]) or _early_start(case, wrong)


def _early_start(case: Case, wrong: Sequence[Mismatch]) -> str | None:
    """Return why all that is wrong is that shares start where they should wait."""
    tasks = [task for job in case["jobs"] for task in job["tasks"] if task.get("gpu_groups")]
    states = {task["state"] for task in tasks}
    if not all(_starts(one) or one.task in ("binds", "evictions") for one in wrong):
        return None
    if "Pipelined" in states:
        return _PIPELINED
    on_their_nodes = all(one.task != "evictions" and _is_there(one) for one in wrong)
    return _WAITS if "Releasing" in states and on_their_nodes else None


def _starts(one: Mismatch) -> bool:
    return (one.expected.split()[0], one.found.split()[0]) == ("Pipelined", "Binding")


def _is_there(one: Mismatch) -> bool:
    """Tell whether a task is on the node where it is expected, if on any."""
    node = one.expected.partition(" ")[2] if _starts(one) else ""
    return node in ("", one.found.partition(" ")[2])
