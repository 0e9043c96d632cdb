"""The status that operators write of their workloads, as the table of kinds reads it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from bayplan.api import Pod
from bayplan.kinds import Counted, Ends, Role, When, WorkloadKind, role_of

__all__ = ["status_of"]


def status_of(
    row: WorkloadKind,
    status: Mapping[str, Any],
    roles: tuple[Role, ...],
    pods: Iterable[Pod],
    now: str,
) -> dict[str, Any]:
    """Return the status of an object with these pods; as it is, where its row cannot say an end.

    :param status: the status before; :param now: the time of new conditions.
    """
    made: dict[str, Any] = copy.deepcopy(dict(status))
    if row.unit:
        return made
    phases: dict[str, Counter[str]] = {role.name: Counter() for role in roles}
    of_pods = list(pods)
    for pod in of_pods:
        role = role_of(roles, pod.metadata.labels)
        if role is not None:
            phases[role.name][pod.status.phase] += 1
    if row.ends is not None and row.ends.state:
        _put_state(row.ends, roles, phases, of_pods, made)
        return made
    for role in roles:
        _count(role, phases[role.name], made)
    end = _end(row.ends, roles, phases) if row.ends is not None else ""
    running = all(
        phases[role.name]["Running"] + phases[role.name]["Succeeded"] >= role.count
        for role in roles
    )
    if row.running:
        name = row.running.partition("[")[2].rstrip("]")
    if row.running and name:
        _condition(made, name, running and not end, row.name, now)
    if end:
        _condition(made, end, True, row.name, now)
    return made


def _put_state(
    ends: Ends,
    roles: tuple[Role, ...],
    phases: Mapping[str, Counter[str]],
    pods: Iterable[Pod],
    status: dict[str, Any],
) -> None:
    """Write the state of an object that has one, and of its pods where it tells it."""
    state = _end(ends, roles, phases)
    for role in roles:
        for one in role.made.ready:
            if isinstance(one, When) and one.path == ends.state and not state:
                state = one.value if phases[role.name]["Running"] >= role.count else ""
            elif isinstance(one, Counted):
                # The values are those of pods that run, and of those that have succeeded.
                words = dict(zip(("Running", "Succeeded"), one.values, strict=False))
                own = [pod for pod in pods if role_of(roles, pod.metadata.labels) == role]
                states = {pod.metadata.name: words.get(pod.status.phase, "PENDING") for pod in own}
                _put(status, one.path, states)
    if state:
        _put(status, ends.state, state)


def _put(status: dict[str, Any], path: str, value: Any) -> None:
    """Set a value at a path that begins with ``status.``."""
    *above, last = path.split(".")[1:]
    at = status
    for step in above:
        if not isinstance(at.get(step), dict):
            at[step] = {}
        at = at[step]
    at[last] = value


def _end(ends: Ends, roles: tuple[Role, ...], phases: Mapping[str, Counter[str]]) -> str:
    """Return the condition of the end that pods have brought, "" for none."""
    if any(phases[role.name]["Failed"] for role in roles) and ends.bad:
        return ends.bad[0]
    there = {role.name: role for role in roles}
    leading = [there[name] for name in ends.by if name in there][:1] or list(roles)
    done = all(phases[role.name]["Succeeded"] >= role.count for role in leading)
    return ends.good[0] if done and leading and ends.good else ""


def _count(role: Role, phases: Counter[str], status: dict[str, Any]) -> None:
    """Write the numbers of a role's pods where its templates say that they are."""
    made = role.made
    if made.each:
        return
    numbers = [(path, phases["Running"]) for path in made.ready[:1] if isinstance(path, str)]
    numbers += [(made.succeeded, phases["Succeeded"])] if made.succeeded else []
    for path, number in numbers:
        _put(status, path if path.startswith("status.") else f"{made.status}.{path}", number)


def _condition(status: dict[str, Any], name: str, holds: bool, kind: str, now: str) -> None:
    given = status.get("conditions")
    entries = given if isinstance(given, (list, tuple)) else ()
    known = {one.get("type"): one for one in entries if isinstance(one, dict)}
    value = "True" if holds else "False"
    if known.get(name, {}).get("status", "False") == value:
        return
    known[name] = {
        "type": name,
        "status": value,
        "reason": f"{kind}{name}",
        "lastTransitionTime": now,
    }
    status["conditions"] = list(known.values())
