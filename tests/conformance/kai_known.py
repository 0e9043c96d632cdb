"""KAI's scenarios that end differently here: a rule for each kind, no case by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tests.conformance.kai_rounds import Mismatch
from tests.conformance.kai_scenarios import Case

__all__ = ["known_difference"]

_EQUAL_DOMAINS = "domains have as much free: KAI fills the last by name first, bayplan the first"
_NO_DEVICES = "asks the pre-filter alone; no node has the devices of all claims"
_WAITS = "starts at once on a free GPU instead of waiting for a share that becomes free"
_PIPELINED = "begins with a pod that has a node and waits for nobody; it starts there"


def known_difference(case: Case, wrong: Sequence[Mismatch]) -> str | None:
    """Return why a scenario ends differently here; None for a difference that nobody knows."""
    if _is_mirrored(case, wrong):
        return _EQUAL_DOMAINS
    if _lacks_devices(case, wrong):
        return _NO_DEVICES
    return _early_start(case, wrong)


def _is_mirrored(case: Case, wrong: Sequence[Mismatch]) -> bool:
    """Tell whether tasks are where they should be but for the names of equal, empty domains."""
    levels = [level["node_label"] for one in case.get("topologies", ()) for level in one["levels"]]
    labels = {node["name"]: node.get("labels", {}) for node in case["nodes"]}
    kinds = {str({**node, "name": "", "labels": {}}) for node in case["nodes"]}
    started = any(task["state"] != "Pending" for job in case["jobs"] for task in job["tasks"])
    if not levels or started or len(kinds) > 1:
        return False
    expected = {
        name: task["node_name"]
        for name, task in case["expected"].get("tasks", {}).items()
        if task.get("node_name")
    }
    found = dict(expected)
    for one in wrong:
        wanted, got = one.expected.split(), one.found.split()
        if one.task not in found or len(wanted) != 2 or len(got) != 2 or wanted[0] != got[0]:
            return False
        found[one.task] = got[1]
    places = [_places(one, labels, levels) for one in (expected, found)]
    return places[0] == places[1]


def _places(
    nodes: Mapping[str, str], labels: Mapping[str, Mapping[str, str]], levels: Iterable[str]
) -> list[list[bool]]:
    """Return, for the nodes and then for each level, which two tasks are in one domain."""
    by_level = [nodes] + [
        {task: labels[node].get(level, "") for task, node in nodes.items()} for level in levels
    ]
    return [[one[a] == one[b] for a in one for b in one] for one in by_level]


def _lacks_devices(case: Case, wrong: Sequence[Mismatch]) -> bool:
    """Tell whether a pre-filter lets a task pass whose claims no node can serve together."""
    dra = case.get("dra") or {}
    asked = {one["name"]: one["count"] for one in dra.get("resource_claims", ())}
    offered: dict[str, int] = {}
    for one in dra.get("resource_slices", ()):
        offered[one["node_name"]] = offered.get(one["node_name"], 0) + one["count"]
    checked = {one["task"] for one in case.get("checks", ()) if one["type"] == "prefilter"}
    needs = [
        sum(asked.get(name, 0) for name in task.get("resource_claim_names", ()))
        for job in case["jobs"]
        for task in job["tasks"]
        if task["id"] in checked
    ]
    return bool(wrong) and bool(needs) and min(needs) > max(offered.values(), default=0)


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
