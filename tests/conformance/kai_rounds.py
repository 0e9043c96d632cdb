"""Running KAI's scenarios through the scheduler, and comparing what became of each task."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from tests.conformance.case_format import UnknownFieldError
from tests.conformance.kai_nodes import differences, states_of
from tests.conformance.kai_scenarios import (
    Case,
    Outcome,
    Scenario,
    TaskState,
    key_of,
    loaded,
    next_round,
    task_id,
)

from bayplan.api import Pod, ResourceClaim
from bayplan.profiles.loading import ProfileSet
from bayplan.scheduler.scheduler import Scheduler
from bayplan.scheduler.virtual_time import VirtualTime
from bayplan_plugins.gpus.vendors.kai.groups import GpuGroups

Wanted = Mapping[str, Any]

_STEPS = 5_000
"""A scheduler that has not settled after so many steps never will."""


@dataclass(frozen=True)
class Mismatch:
    """A task that is not what the case expects."""

    task: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.task}: expected {self.expected}, found {self.found}"


def mismatches(case: Case, profiles: ProfileSet) -> list[Mismatch]:
    """Run a case; return what differs from what it expects, in the first round that differs."""
    scenario = Scenario(case)
    if case.get("runner") != "rounds":
        found = session(scenario, profiles)
        return [*_compared(case, scenario, found.tasks), *_done(case, scenario, found)]
    rounds = case.get("rounds") or {}
    calls: list[Mismatch] = []
    for _ in range(rounds.get("until_match") or 0):
        found = session(scenario, profiles)
        calls += _calls(case, scenario, found)
        scenario = next_round(scenario, found)
    wrong = [*_compared(case, scenario, scenario.tasks), *calls]
    for _ in range(rounds.get("after_match") or 0):
        if wrong:
            break
        found = session(scenario, profiles)
        wrong = [*_compared(case, scenario, found.tasks), *_done(case, scenario, found)]
        scenario = next_round(scenario, found)
    return wrong


def _done(case: Case, scenario: Scenario, found: Outcome) -> Iterator[Mismatch]:
    """Compare what a cycle did, and what it left of the nodes."""
    yield from _calls(case, scenario, found)
    for name, wanted in (case["expected"].get("nodes") or {}).items():
        for what, expected, got in differences(wanted, found.nodes[name]):
            yield Mismatch(f"{name}, {what}", expected, got)
    named = {**case["expected"]["jobs"], **case["expected"]["tasks"]}
    for name, wanted in named.items():
        zones = wanted.get("numa_zones")
        if zones is not None:
            own = [
                key_of(job, task)
                for job, task in scenario.jobs_of()
                if name in (job["name"], task_id(task))
            ]
            got = sorted({zone for key in own for zone in found.zones.get(key, ())})
            if got != sorted(zones):
                yield Mismatch(f"{name}, NUMA nodes", str(sorted(zones)), str(got))


def _calls(case: Case, scenario: Scenario, found: Outcome) -> Iterator[Mismatch]:
    """Compare how much was done in a cycle with the most that the case allows."""
    most = case["expected"].get("calls_per_cycle")
    if most is None:
        return
    counts = dict.fromkeys(("binds", "evictions", "pipelines"), 0)
    for name, state in found.tasks.items():
        counts["binds"] += state.status == "Binding"
        counts["pipelines"] += state.status == "Pipelined"
        stood = scenario.tasks[name].status not in ("Pending", "Releasing", "StuckInReleasing")
        counts["evictions"] += stood and state.status in ("Releasing", "Pipelined")
    for kind, count in counts.items():
        allowed = most.get(f"max_{kind}") or 0
        if count > allowed:
            yield Mismatch(kind, f"at most {allowed}", str(count))


def session(scenario: Scenario, profiles: ProfileSet) -> Outcome:
    """Return what became of a scenario once a scheduler has done all that it can at one instant."""
    cluster = loaded(scenario)
    scheduler = Scheduler(cluster, profiles)
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1
        assert steps < _STEPS, "the scheduler does not settle"

    VirtualTime(cluster, scheduler, count).settle()
    moves = {one.pod: one.moves_to for one in scheduler.evictor.evicted if one.moves_to}
    found = {}
    for job, task in scenario.jobs_of():
        before = scenario.tasks[task_id(task)]
        key = key_of(job, task)
        state = _state(cluster.get(Pod, key), before, scheduler, moves.get(key))
        if state.status == "Binding":
            groups = scheduler.snapshot.shared(GpuGroups, GpuGroups)
            state = dataclasses.replace(state, groups=groups.of_pod(key))
        found[task_id(task)] = state
    encode = msgspec.json.Encoder(enc_hook=lambda quantity: quantity.text).encode
    claims = {
        claim.metadata.name: msgspec.json.decode(encode(claim.status))
        for claim in cluster.list(ResourceClaim)
    }
    leaving, coming, placed = [], {}, scheduler.snapshot.placed
    for job, task in scenario.jobs_of():
        state, key = found[task_id(task)], key_of(job, task)
        if state.status == "Releasing" or (state.status == "Pipelined" and key in placed):
            leaving.append(key)
        if state.status == "Pipelined":
            coming[key] = (scheduler.snapshot.living[key], state.node)
    return Outcome(found, claims, *states_of(scheduler, leaving, coming))


def _state(
    pod: Pod | None, before: TaskState, scheduler: Scheduler, moved: str | None
) -> TaskState:
    if pod is None:
        return TaskState("Deleted")
    node = pod.spec.node_name
    ends = pod.metadata.deletion_timestamp is not None
    if before.status == "Pending" and node and not ends:
        return TaskState("Binding", node)
    if before.status == "Pending" and not ends:
        unit = scheduler.nominator.unit_of(pod.key)
        nomination = scheduler.nominator.get(unit) if unit is not None else None
        if nomination is not None:
            return TaskState("Pipelined", nomination.nodes[pod.key])
        return before
    if before.status in ("Releasing", "StuckInReleasing"):
        return before
    if ends:
        return TaskState("Pipelined", moved) if moved else TaskState("Releasing", node)
    return before


def _compared(case: Case, scenario: Scenario, found: Mapping[str, TaskState]) -> Iterator[Mismatch]:
    yield from _as_expected(case, scenario, found)
    for check in case.get("checks") or ():
        yield from _checked(check, scenario, found)


def _checked(check: Case, scenario: Scenario, found: Mapping[str, TaskState]) -> Iterator[Mismatch]:
    """Compare an assertion that a test of KAI makes in code.

    :raises UnknownFieldError: for an assertion that nobody models.
    """
    if check["type"] not in _CHECKS:
        raise UnknownFieldError(f"{scenario.case['name']}: nobody checks {check['type']}")
    yield from _CHECKS[check["type"]](check, scenario, found)


def _prefilter(
    check: Case, scenario: Scenario, found: Mapping[str, TaskState]
) -> Iterator[Mismatch]:
    status = found[check["task"]].status
    if (status == "Binding") != check["ok"]:
        yield Mismatch(check["task"], "placed" if check["ok"] else "refused", status)


def _statuses(
    check: Case, scenario: Scenario, found: Mapping[str, TaskState]
) -> Iterator[Mismatch]:
    count = 0
    for job, task in scenario.jobs_of():
        prefix = check["job_prefix"]
        if job["name"] == check["job"] or (prefix and job["name"].startswith(prefix)):
            count += 1
            yield from _differs(task_id(task), check, found[task_id(task)])
    if count != check.get("tasks", count):
        yield Mismatch("tasks", str(check["tasks"]), str(count))


def _sub_group(
    check: Case, scenario: Scenario, found: Mapping[str, TaskState]
) -> Iterator[Mismatch]:
    """Compare on which nodes, or in which domain, the placed tasks of a sub-group are."""
    name = check["sub_group"]
    nodes = _nodes_of(name, scenario, found)
    if "nodes" in check and not set(nodes) <= set(check["nodes"]):
        yield Mismatch(name, f"on {check['nodes']}", str(nodes))
    if "label" in check:
        domains = _domains(nodes, check["label"], scenario)
        if domains != [check["value"]] * check["tasks"]:
            yield Mismatch(name, f"{check['tasks']} tasks in {check['value']}", str(domains))


def _domain_each(
    check: Case, scenario: Scenario, found: Mapping[str, TaskState]
) -> Iterator[Mismatch]:
    """Compare whether each of some sub-groups is in one domain, and no two in the same one."""
    taken = []
    for name in check["sub_groups"]:
        domains = set(_domains(_nodes_of(name, scenario, found), check["label"], scenario))
        if len(domains) != 1 or not domains <= set(check["values"]):
            yield Mismatch(name, f"in one of {check['values']}", str(sorted(domains)))
        taken += domains
    if check.get("distinct") and len(set(taken)) < len(taken):
        yield Mismatch(str(check["sub_groups"]), "in different domains", str(taken))


def _nodes_of(sub_group: str, scenario: Scenario, found: Mapping[str, TaskState]) -> list[str]:
    tasks = (task for _, task in scenario.jobs_of() if task.get("sub_group_name") == sub_group)
    return [found[task_id(task)].node for task in tasks if found[task_id(task)].node]


def _domains(nodes: Sequence[str], label: str, scenario: Scenario) -> list[str]:
    labels = {node["name"]: node.get("labels") or {} for node in scenario.case["nodes"]}
    return [labels[node].get(label, "") for node in nodes]


_CHECKS = {
    "prefilter": _prefilter,
    "all_tasks_status": _statuses,
    "sub_group_domain": _sub_group,
    "sub_group_nodes": _sub_group,
    "sub_groups_one_domain_each": _domain_each,
}


def _as_expected(
    case: Case, scenario: Scenario, found: Mapping[str, TaskState]
) -> Iterator[Mismatch]:
    """Compare tasks; equal pods of one job may change places."""
    expected = case["expected"]
    ignored = set(expected.get("tasks_never_compared") or ())
    equals: dict[str, list[tuple[str, Wanted]]] = {}
    for job, task in scenario.jobs_of():
        name = task_id(task)
        for wanted in (
            (expected.get("jobs") or {}).get(job["name"]),
            (expected.get("tasks") or {}).get(name),
        ):
            if wanted is not None and name not in ignored:
                kind = {key: task[key] for key in task if key not in ("id", "name")}
                key = f"{job['name']} {json.dumps(kind, sort_keys=True)}"
                equals.setdefault(key, []).append((name, wanted))
    for pairs in equals.values():
        if not _may_change_places(pairs, found):
            for name, wanted in pairs:
                yield from _differs(name, wanted, found[name])


def _may_change_places(pairs: Sequence[tuple[str, Wanted]], found: Mapping[str, TaskState]) -> bool:
    """Tell whether equal pods are all where one of them is expected, in any order."""
    left = [found[name] for name, _ in pairs]
    for _, wanted in sorted(pairs, key=lambda pair: not pair[1].get("node_name")):
        fits = next((one for one in left if not [*_differs("", wanted, one)]), None)
        if fits is None:
            return False
        left.remove(fits)
    return True


def _differs(name: str, wanted: Wanted, found: TaskState) -> Iterator[Mismatch]:
    status, node = wanted.get("status", found.status), wanted.get("node_name", "")
    if found.status != status or (node and found.node != node):
        text = f"{found.status} {found.node}".strip()
        yield Mismatch(name, f"{status} {node}".strip(), text)


__all__ = ["Mismatch", "mismatches", "session"]
