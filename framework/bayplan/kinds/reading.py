"""Reads an object of a workload kind by the kind's row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.kinds.kind import PodTemplates, When, WorkloadKind

__all__ = ["PodPlan", "Role", "minimum_of", "pods_of", "role_of", "roles_of"]

_MOST_PODS = 1_000_000
Content = Mapping[str, Any]


@dataclass(frozen=True)
class Role:
    """The pods of one template of an object.

    :param count: how many there are, of each indivisible part of the object.
    :param least: how many of them it needs.
    :param later: whether they are created only once others run.
    :param serial: whether each is created only once the one before it is ready.
    :param labels: what tells them from pods of other roles.
    """

    name: str
    count: int
    least: int
    later: bool
    serial: bool
    labels: Mapping[str, str]
    template: Content
    made: PodTemplates


@dataclass(frozen=True)
class PodPlan:
    """A pod that an operator makes for an object: its name, its labels and its template."""

    name: str
    labels: Mapping[str, str]
    template: Content


def roles_of(kind: WorkloadKind, content: Content) -> tuple[Role, ...]:
    """Return the roles of an object that have pods.

    :param content: the object as JSON.
    :raises ValueError: for what is no number of pods; the message names the path.
    """
    found = (role for pods in kind.pods for role in _roles(pods, content))
    return tuple(role for role in found if role.count)


def minimum_of(kind: WorkloadKind, content: Content) -> int | None:
    """Return the number of pods that an object says it needs, None if it does not.

    :raises ValueError: for what is no number of pods; the message names the path.
    """
    for path in kind.minimum:
        value = _at(content, path)
        if value is not None:
            return _number(value, path)
    return None


def role_of(roles: tuple[Role, ...], labels: Mapping[str, str]) -> Role | None:
    """Return the role of a pod by its labels, None if it has none of them."""
    for role in roles:
        if all(labels.get(key) == value for key, value in role.labels.items()):
            return role
    return None


def _roles(pods: PodTemplates, content: Content) -> Iterator[Role]:
    for own, entry, where in _entries(pods, content):
        name = pods.role or own.lower()
        template = _first(entry, content, pods.template)
        if not isinstance(template, Mapping) or _look(entry, content, pods.absent) is True:
            continue
        count = max(0, _product(pods.count, entry, content, where, pods.bounds) - pods.less)
        if pods.left is not None:
            total, done = (_look(entry, content, path) for path in pods.left)
            if isinstance(total, int) and isinstance(done, int):
                count = min(count, max(0, total - done))
        least = 0
        if pods.least and _look(entry, content, pods.least[0]) is not None:
            least = _product(pods.least, entry, content, where)
        yield Role(
            name,
            count,
            min(least or count, count),
            any(_holds(when, entry, content) for when in pods.later),
            any(_holds(when, entry, content) for when in pods.serial),
            _filled(pods.labels, {"role": name, "name": own}),
            template,
            pods,
        )


def pods_of(kind: WorkloadKind, content: Content) -> Iterator[PodPlan]:
    """Yield the pods that the operator of a kind makes for an object, one part after the other.

    :raises ValueError: for what is no number of pods; the message names the path.
    """
    if kind.suspend and _at(content, kind.suspend) is True:
        return
    roles = roles_of(kind, content)
    units = _product((kind.units,) if kind.units else (), content, content, "")
    for unit in range(units):
        for role in roles:
            for index in range(role.made.first, role.made.first + role.count):
                values = {
                    "object": content["metadata"]["name"],
                    "role": role.name,
                    "unit": str(unit),
                    "index": str(index),
                }
                marks = _filled({**kind.labels, "": role.made.pod}, values)
                name = marks.pop("")
                yield PodPlan(name, {**marks, **role.labels}, role.template)


def _filled(texts: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """Return texts with the values for ``{name}``; ``str.format`` would reach into objects."""
    found = {}
    for key, text in texts.items():
        for name, value in values.items():
            text = text.replace(f"{{{name}}}", value)
        found[key] = text
    return found


def _entries(pods: PodTemplates, content: Content) -> Iterator[tuple[str, Content, str]]:
    """Yield the name, the content and the path of what has a template."""
    if not pods.each:
        yield pods.role, content, ""
        return
    found = _at(content, pods.each)
    if isinstance(found, Mapping):
        for name, entry in found.items():
            if isinstance(entry, Mapping):
                yield name, entry, f"{pods.each}.{name}."
    elif isinstance(found, (list, tuple)):
        for index, entry in enumerate(found):
            if isinstance(entry, Mapping):
                yield str(entry.get(pods.name, index)), entry, f"{pods.each}[{index}]."


def _product(
    factors: tuple[str, ...],
    entry: Content,
    content: Content,
    where: str,
    bounds: tuple[str, str] | None = None,
) -> int:
    """Return the product of some factors of a number of pods; ``bounds`` are the first one's."""
    numbers: list[int] = []
    for factor in factors:
        paths = factor.split(",")
        values = ((path, _look(entry, content, path)) for path in paths)
        there = [_number(value, where + path) for path, value in values if value is not None]
        if bounds is not None and not numbers:
            least, most = (_look(entry, content, path) for path in bounds)
            found = max(min(there, default=0), _number(least or 0, where + bounds[0]))
            # An API may state "any number" by the largest one.
            numbers.append(min(found, most) if isinstance(most, int) else found)
        else:
            numbers.append(min(there, default=1))
    return min(math.prod(numbers), _MOST_PODS)


def _number(value: Any, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_PODS:
        expected = f"expected a number of pods, 0 to {_MOST_PODS}"
        raise ValueError(f"{path}: {expected}, got {str(value)[:40]}")
    return value


def _holds(when: When, entry: Content, content: Content) -> bool:
    if when.annotation:
        value = (_at(content, "metadata.annotations") or {}).get(when.path)
    else:
        value = _look(entry, content, when.path)
    if isinstance(value, bool) and when.value:
        value = str(value).lower()
    return value == when.value if when.value else bool(value)


def _first(entry: Content, content: Content, paths: str) -> Any:
    found = (_look(entry, content, path) for path in paths.split(","))
    return next((value for value in found if value is not None), None)


def _look(entry: Content, content: Content, path: str) -> Any:
    """Return what a path leads to, from the object or from one of its entries; None if nothing."""
    if not path:
        return None
    return _at(content if path.startswith(("spec.", "status.")) else entry, path)


def _at(content: Any, path: str) -> Any:
    for step in path.split("."):
        content = content.get(step) if isinstance(content, Mapping) else None
    return content
