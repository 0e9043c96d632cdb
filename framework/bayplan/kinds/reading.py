"""Reads an object of a workload kind by the kind's row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from bayplan.api import Quantity
from bayplan.api.objects import decode_part
from bayplan.api.pod import PodTemplate
from bayplan.kinds.kind import Ends, PodTemplates, When, WorkloadKind

__all__ = [
    "PodPlan",
    "Progress",
    "Role",
    "TemplateOf",
    "minimum_of",
    "pods_of",
    "policy_of",
    "progress_of",
    "role_of",
    "roles_of",
    "templates_of",
    "units_of",
]

_MOST_PODS = 1_000_000
_OF_OBJECT = ("spec.", "status.", "metadata.")
Content = Mapping[str, Any]
Steps = tuple[str | int, ...]


@dataclass(frozen=True)
class TemplateOf:
    """A pod template of an object, with what the object says of its pods.

    :param name: the role; :param own: the entry's name, as it is written.
    :param pointer: the JSON pointer of the template.
    :param absent: whether the object leaves it out, so that it has a default.
    :param counts: the JSON pointers of the factors of the number of pods.
    :param count: the number of pods, as if none had ended yet.
    :param each: how many of them come with one unit of the first factor.
    :param labels: what tells its pods from those of other roles.
    :param entry: what the template's paths lead from.
    """

    name: str
    own: str
    pointer: str
    absent: bool
    counts: tuple[str, ...]
    count: int
    each: int
    template: Content
    labels: Mapping[str, str]
    entry: Content
    made: PodTemplates


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


def units_of(kind: WorkloadKind, content: Content) -> int:
    """Return the number of an object's indivisible parts.

    :raises ValueError: for what is no number of them; the message names the path.
    """
    return math.prod(_numbers((kind.units,) if kind.units else (), content, content, ""))


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


def templates_of(kind: WorkloadKind, content: Content) -> Iterator[TemplateOf]:
    """Yield the pod templates of an object, those without pods, too.

    :raises ValueError: for what is no number of pods; the message names the path.
    """
    for pods in kind.pods:
        yield from _templates(pods, content)


def _templates(pods: PodTemplates, content: Content) -> Iterator[TemplateOf]:
    for own, entry, steps in _entries(pods, content):
        found = ((path, _look(entry, content, path)) for path in pods.template.split(","))
        given = next((one for one in found if isinstance(one[1], Mapping)), None)
        path, template = given or (pods.template.split(",")[0], _default(pods, content))
        if template is None or _look(entry, content, pods.absent) is True:
            continue
        if not all(_holds(when, entry, content) for when in pods.only):
            continue
        numbers = _numbers(pods.count, entry, content, _text(steps), pods.bounds)
        role = pods.role or own.lower()
        values = {"role": role, "name": own, "object": _at(content, "metadata.name") or ""}
        yield TemplateOf(
            role,
            own,
            _pointer(path, steps),
            given is None,
            tuple(_pointer(factor.split(",")[0], steps) for factor in pods.count),
            max(0, min(math.prod(numbers), _MOST_PODS) - pods.less),
            math.prod(numbers[1:]),
            _with_added(pods, template, entry, content),
            _filled(pods.labels, values),
            entry,
            pods,
        )


def _default(pods: PodTemplates, content: Content) -> Content | None:
    """Return the template of pods whose object leaves it out, None where it has to be there."""
    if pods.default is None:
        return None
    containers = _at(content, pods.image) if pods.image else None
    heads = containers if isinstance(containers, (list, tuple)) else ()
    image = next((one.get("image") for one in heads if isinstance(one, Mapping)), None)
    spec = pods.default["spec"]
    first, *rest = spec["containers"]
    own = {**first, "image": image} if image else first
    return {**pods.default, "spec": {**spec, "containers": [own, *rest]}}


def _with_added(pods: PodTemplates, template: Content, entry: Content, content: Content) -> Content:
    """Return a template with what the kind's operator adds to it.

    :raises DecodeError: for what is no pod template.
    """
    added = [one for one in pods.added if _holds(one.when, entry, content)]
    if added:
        decode_part(PodTemplate, dict(template))
    for one in added:
        spec = template.get("spec") or {}
        containers = list(spec.get("containers") or ())
        if one.container and all(c.get("name") != one.container["name"] for c in containers):
            stated = _look(entry, content, one.resources)
            own = {"resources": stated} if isinstance(stated, Mapping) else {}
            containers.append({**one.container, **own})
        if one.least and containers:
            containers[0] = _at_least(containers[0], one.least)
        template = {**template, "spec": {**spec, "containers": containers}}
    return template


def _at_least(container: Content, least: Mapping[str, str]) -> Content:
    """Return a container that requests no less of some resources."""
    resources = container.get("resources") or {}
    requests = dict(resources.get("requests") or {})
    for name, text in least.items():
        own = requests.get(name, (resources.get("limits") or {}).get(name))
        if own is None or Quantity(str(own)).number < Quantity(text).number:
            requests[name] = text
    return {**container, "resources": {**resources, "requests": requests}}


def _roles(pods: PodTemplates, content: Content) -> Iterator[Role]:
    for one in _templates(pods, content):
        count, entry = one.count, one.entry
        if pods.left is not None:
            count = min(count, left_of(pods, content, count))
        least = 0
        if pods.least and _look(entry, content, pods.least[0]) is not None:
            least = math.prod(_numbers(pods.least, entry, content, ""))
        yield Role(
            one.name,
            count,
            min(least or count, count),
            any(_holds(when, entry, content) for when in pods.later),
            any(_holds(when, entry, content) for when in pods.serial),
            one.labels,
            one.template,
            pods,
        )


def left_of(pods: PodTemplates, content: Content, count: int) -> int:
    """Return how many pods of a role still have to succeed; ``count`` where nothing says it."""
    if pods.left is None:
        return count
    total, done = (_at(content, path) for path in pods.left)
    if not isinstance(total, int):
        return count
    ended = done if isinstance(done, int) else 0
    if pods.indexed is not None and _holds(pods.indexed, content, content):
        texts = [text for path in pods.done if isinstance(text := _at(content, path), str)]
        ended = _indexes(texts, total)
    return max(0, total - ended)


def _indexes(texts: list[str], total: int) -> int:
    """Return how many indexes below a total some lists name, such as "0,2-5"."""
    found: set[int] = set()
    for part in ",".join(texts).split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last.isdecimal() or not last):
            found.update(range(int(first), min(int(last or first), total - 1) + 1))
    return sum(1 for one in found if one < total)


def pods_of(kind: WorkloadKind, content: Content) -> Iterator[PodPlan]:
    """Yield the pods that the operator of a kind makes for an object, one part after the other.

    :raises ValueError: for what is no number of pods; the message names the path.
    """
    if kind.suspend and _at(content, kind.suspend) is True:
        return
    roles = roles_of(kind, content)
    for unit in range(units_of(kind, content)):
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


def _entries(pods: PodTemplates, content: Content) -> Iterator[tuple[str, Content, Steps]]:
    """Yield the name, the content and the place of what has a template."""
    if not pods.each:
        yield pods.role, content, ()
        return
    found, at = _at(content, pods.each), tuple(pods.each.split("."))
    if isinstance(found, Mapping):
        for name, entry in found.items():
            if isinstance(entry, Mapping):
                yield name, entry, (*at, name)
    elif isinstance(found, (list, tuple)):
        for index, entry in enumerate(found):
            if isinstance(entry, Mapping):
                yield str(entry.get(pods.name, index)), entry, (*at, index)


def _text(steps: Steps) -> str:
    """Return a place as the beginning of a path, for messages."""
    text = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in steps)
    return f"{text[1:]}." if text else ""


def _pointer(path: str, steps: Steps) -> str:
    """Return the JSON pointer of a path, which leads from an entry unless it names the object's."""
    start = () if path.startswith(_OF_OBJECT) else steps
    tokens = (str(one).replace("~", "~0").replace("/", "~1") for one in (*start, *path.split(".")))
    return "".join(f"/{token}" for token in tokens)


def _numbers(
    factors: tuple[str, ...],
    entry: Content,
    content: Content,
    where: str,
    bounds: tuple[str, str] | None = None,
) -> list[int]:
    """Return the factors of a number of pods; ``bounds`` are the first one's.

    Of several paths of a factor the first is 1 where it is absent, and the smallest counts.
    """
    numbers: list[int] = []
    for factor in factors:
        values = [(path, _look(entry, content, path)) for path in factor.split(",")]
        there = [_number(value, where + path) for path, value in values if value is not None]
        if values[0][1] is None and (bounds is None or numbers):
            there.append(1)
        if bounds is not None and not numbers:
            least, most = (_look(entry, content, path) for path in bounds)
            given = min(there) if there else 0 if least is not None else 1
            found = max(given, _number(least or 0, where + bounds[0]))
            # An API may state "any number" by the largest one.
            numbers.append(min(found, most) if isinstance(most, int) else found)
        else:
            numbers.append(min(there))
    return numbers


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


def _look(entry: Content, content: Content, path: str) -> Any:
    """Return what a path leads to, from the object or from one of its entries; None if nothing."""
    if not path:
        return None
    return _at(content if path.startswith(_OF_OBJECT) else entry, path)


def _at(content: Any, path: str) -> Any:
    for name, condition in _steps(path):
        # JSON has no other mappings, and the test of an abstract one takes five times as long.
        if not isinstance(content, dict):
            return 0 if condition else None
        content = content.get(name)
        if condition:
            content = int(_condition(content, condition) is not None)
    return content


@lru_cache(maxsize=4096)
def _steps(path: str) -> tuple[tuple[str, str], ...]:
    """Return the keys of a path, each with the condition of a list that it names."""
    parts = (step.partition("[") for step in path.split("."))
    return tuple((name, condition.rstrip("]")) for name, _, condition in parts)


def _condition(conditions: Any, *types: str) -> Content | None:
    """Return the first condition of one of some types that is true."""
    found = conditions if isinstance(conditions, (list, tuple)) else ()
    return next(
        (
            one
            for one in found
            if isinstance(one, Mapping) and one.get("type") in types and one.get("status") == "True"
        ),
        None,
    )


# Status --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Progress:
    """How far a workload is, by its own status.

    :param end: the reason and the message of its end; None before.
    :param succeeded: whether it ended well.
    :param ready: the number of pods that are ready, or have succeeded.
    :param spare: by role, pods that it needs no more.
    """

    end: tuple[str, str] | None = None
    succeeded: bool = False
    ready: int = 0
    spare: Mapping[str, int] = field(default_factory=dict)


def progress_of(
    kind: WorkloadKind, content: Content, templates: tuple[TemplateOf, ...]
) -> Progress:
    """Return how far an object is.

    :param templates: those of the object.
    """
    end, succeeded = _end_of(kind.ends, content) if kind.ends is not None else (None, False)
    ready, spare = sum(_count(_at(content, path)) for path in kind.ready), {}
    for one in templates:
        status = _status_of(one, content)
        for path in one.made.ready:
            if isinstance(path, When):
                ready += _holds(path, content, content)
            else:
                ready += _count(_at(status, path)) * one.each
        if one.made.left is not None:
            # One pod alone is the whole job: it gives nothing back before its end.
            unneeded = one.count - left_of(one.made, content, one.count) if one.count > 1 else 0
        else:
            unneeded = _count(_at(status, one.made.succeeded)) * one.each
        if unneeded > 0:
            spare[one.name] = min(unneeded, one.count)
    if kind.running and _at(content, kind.running):
        ready = max(ready, sum(one.count for one in templates))
    return Progress(end, succeeded, ready, spare)


def policy_of(kind: WorkloadKind, content: Content) -> str:
    """Return what becomes of an object's pods at its end: "All", "Running" or "None"."""
    value = _at(content, kind.clean) if kind.clean else None
    return value if value in ("All", "Running") else "None"


def _status_of(template: TemplateOf, content: Content) -> Any:
    if not template.made.status:
        return content
    found = _at(content, template.made.status)
    if not template.made.each:
        return found
    if isinstance(found, Mapping):
        return found.get(template.own)
    entries = found if isinstance(found, (list, tuple)) else ()
    named = (one for one in entries if isinstance(one, Mapping))
    return next((one for one in named if one.get("name") == template.own), None)


def _count(value: Any) -> int:
    """Return a number of pods, or of what a list has; 0 for anything else."""
    if isinstance(value, (list, tuple)):
        return len(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _end_of(ends: Ends, content: Content) -> tuple[tuple[str, str] | None, bool]:
    """Return reason and message of an object's end, None before, and whether it ended well."""
    if not ends.state:
        conditions = _at(content, "status.conditions")
        found = _condition(conditions, *ends.good, *ends.bad)
        if found is None:
            return None, False
        reason = found.get("reason") or f"Job{found.get('type')}"
        return (reason, found.get("message") or ""), found.get("type") in ends.good
    state = _at(content, ends.state)
    if state not in (*ends.good, *ends.bad):
        return None, False
    reason, message = (_at(content, path) if path else "" for path in (ends.reason, ends.message))
    good = state in ends.good
    if ends.success is not None:
        good = _holds(ends.success, content, content)
    return (reason or state, message or ""), good
