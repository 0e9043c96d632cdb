"""Running KAI's scenarios through the scheduler, and comparing what became of each task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from kai_scenarios import (
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
        return list(_compared(case, scenario, session(scenario, profiles).tasks))
    rounds = case.get("rounds") or {}
    for _ in range(rounds.get("until_match") or 0):
        scenario = next_round(scenario, session(scenario, profiles))
    wrong = list(_compared(case, scenario, scenario.tasks))
    for _ in range(rounds.get("after_match") or 0):
        if wrong:
            break
        found = session(scenario, profiles)
        wrong = list(_compared(case, scenario, found.tasks))
        scenario = next_round(scenario, found)
    return wrong


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
        found[task_id(task)] = _state(cluster.get(Pod, key), before, scheduler, moves.get(key))
    encode = msgspec.json.Encoder(enc_hook=lambda quantity: quantity.text).encode
    claims = {
        claim.metadata.name: msgspec.json.decode(encode(claim.status))
        for claim in cluster.list(ResourceClaim)
    }
    return Outcome(found, claims)


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
    expected = case["expected"]
    ignored = set(expected.get("tasks_never_compared") or ())
    for job, task in scenario.jobs_of():
        for wanted in (
            (expected.get("jobs") or {}).get(job["name"]),
            (expected.get("tasks") or {}).get(task_id(task)),
        ):
            if wanted is not None and task_id(task) not in ignored:
                yield from _differs(task_id(task), wanted, found[task_id(task)])


def _differs(name: str, wanted: Mapping[str, Any], found: TaskState) -> Iterator[Mismatch]:
    status, node = wanted.get("status", found.status), wanted.get("node_name", "")
    if found.status != status or (node and found.node != node):
        text = f"{found.status} {found.node}".strip()
        yield Mismatch(name, f"{status} {node}".strip(), text)


__all__ = ["Mismatch", "mismatches", "session"]
