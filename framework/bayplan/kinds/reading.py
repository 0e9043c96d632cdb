"""Reads an object of a workload kind by the kind's row."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.kinds.kind import Counted, Ends, PodTemplates, When, WorkloadKind
from bayplan.kinds.made_templates import default_of, with_added, with_copies
from bayplan.kinds.paths import (
    Content,
    Steps,
    at,
    condition_of,
    holds,
    look,
    pointer_of,
    pointer_to,
)
from bayplan.kinds.table import KINDS_OF_WORKLOADS

__all__ = [
    "PodPlan",
    "Progress",
    "Role",
    "SegmentSizes",
    "TemplateOf",
    "domain_of",
    "is_made_again",
    "lack_of",
    "minimum_of",
    "part_before",
    "pods_of",
    "policy_of",
    "progress_of",
    "role_of",
    "roles_of",
    "segments_of",
    "some_roles_of",
    "templates_of",
    "units_now",
    "units_of",
]

_MOST_PODS = 1_000_000
_COUNT = re.compile("0*[1-9][0-9]{0,7}")


class TemplateOf(msgspec.Struct, frozen=True):
    """A pod template of an object, with what the object says of its pods.

    :param name: the role; :param own: the entry's name, as it is written.
    :param pointer: the JSON pointer of the template.
    :param absent: whether the object leaves it out, so that it has a default.
    :param counts: the JSON pointers of the factors of the number of pods.
    :param count: the number of pods, as if none had ended yet.
    :param each: how many of them come with one unit of the first factor.
    :param labels: what tells its pods from those of other roles.
    :param entry: what the template's paths lead from.
    :param places: where fields of the template such as ``spec.nodeSelector`` are copied from, as
        JSON pointers.
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
    places: Mapping[str, str] = msgspec.field(default_factory=dict)


class Role(msgspec.Struct, frozen=True):
    """The pods of one template of an object.

    :param count: how many there are, of each indivisible part of the object.
    :param least: how many of them it needs.
    :param later: whether they are created only once others run.
    :param serial: whether each is created only once the one before it is ready.
    :param labels: what tells them from pods of other roles.
    :param part: its equal parts.
    :param pointer: where its template is; roles of one template are one pod set.
    """

    name: str
    count: int
    least: int
    later: bool
    serial: bool
    labels: Mapping[str, str]
    template: Content
    made: PodTemplates
    part: Part | None = None
    pointer: str = ""


class Part(msgspec.Struct, frozen=True):
    """Equal parts of a role: the label of pods that tells them, how many pods one has and needs."""

    label: str
    size: int
    least: int


class PodPlan(msgspec.Struct, frozen=True):
    """A pod that an operator makes for an object: its name, its labels and its template.

    :param after: the names of the pods that have to run before.
    """

    name: str
    labels: Mapping[str, str]
    template: Content
    after: tuple[str, ...] = ()


def roles_of(kind: WorkloadKind, content: Content) -> tuple[Role, ...]:
    """Return the roles of an object that have pods.

    :param content: the object as JSON.
    :raises ValueError: for what is no number of pods; the message names the path.
    """
    if kind.wraps:
        return _roles_of_parts(kind, content)
    found = (role for pods in kind.pods for role in _roles(pods, content))
    return tuple(role for role in found if role.count)


def units_of(kind: WorkloadKind, content: Content) -> int:
    """Return the number of an object's indivisible parts.

    :raises ValueError: for what is no number of them; the message names the path.
    """
    return math.prod(_numbers((kind.units,) if kind.units else (), content, content, ""))


def units_now(kind: WorkloadKind, content: Content) -> int:
    """Return the number of an object's indivisible parts, with those of a rolling update.

    :raises ValueError: for what is no number of them; the message names the path.
    """
    wanted, surge = units_of(kind, content), kind.surge
    if surge is None or at(content, surge.most) in (None, 0, "0", "0%"):
        return wanted
    updated, there = _count(at(content, surge.updated)), _count(at(content, surge.parts))
    return max(wanted, min(there, _MOST_PODS)) if updated < wanted else wanted


def is_made_again(kind: WorkloadKind, content: Content, part: str) -> bool:
    """Tell whether an object makes pods again that are gone: it runs, and has such a part.

    :param part: the number of the part; "" for the object itself.
    """
    if kind.suspend and at(content, kind.suspend) is True:
        return False
    try:
        if progress_of(kind, content, tuple(templates_of(kind, content))).end is not None:
            return False
        number = part.partition(":")[0]
        return not number.isdecimal() or int(number[:9]) < units_now(kind, content)
    except ValueError:
        return False


def part_before(wanted: int, part: str) -> str:
    """Return the part whose place one takes that a rolling update adds; "" for none.

    The last parts are updated first, so the first that is added stands in for the last.

    :param wanted: the number of parts without those.
    """
    number = int(part[:9]) if part.isdecimal() else -1
    before = 2 * wanted - 1 - number
    return str(before) if 0 <= before < wanted <= number else ""


def minimum_of(kind: WorkloadKind, content: Content) -> int | None:
    """Return the number of pods that an object says it needs, None if it does not.

    :raises ValueError: for what is no number of pods; the message names the path.
    """
    if kind.wraps:
        parts = list(_parts(kind, content))
        return minimum_of(parts[0][0], parts[0][1]) if len(parts) == 1 else None
    for path in kind.minimum:
        value = at(content, path)
        if value is not None:
            return _number(value, path)
    return None


def some_roles_of(kind: WorkloadKind, content: Content) -> int | None:
    """Return how many of its roles an object says it needs, None if it needs all.

    :raises ValueError: for what is no number of them.
    """
    stated = at(content, "metadata.annotations") if kind.some_roles else None
    return _stated(stated, kind.some_roles)


def _stated(annotations: Any, name: str) -> int | None:
    text = annotations.get(name) if isinstance(annotations, Mapping) else None
    if text is None:
        return None
    if not (isinstance(text, str) and _COUNT.fullmatch(text)):
        expected = "expected a whole number of 1 or more"
        raise ValueError(f'annotation {name}: {expected}, got "{str(text)[:40]}"')
    return int(text)


def lack_of(kind: WorkloadKind, content: Content) -> str:
    """Return which role without pods keeps an object from running, "" for none."""
    for pods in kind.pods if kind.no_empty_roles else ():
        if pods.needed and at(content, pods.template) is None:
            return f"{pods.template}: expected a template, as it does not run without such pods"
        if at(content, pods.count[0]) == 0:
            return f"{pods.count[0]}: expected 1 or more pods, got 0"
    return ""


def domain_of(kind: WorkloadKind, content: Content) -> str:
    """Return the label of nodes of which all pods of a gang have one value; "" for none."""
    value = at(content, kind.domain) if kind.domain else None
    return value if isinstance(value, str) else ""


class SegmentSizes(msgspec.Struct, frozen=True):
    """Segments of an object: the label of the index of pods, the size, and whose the leader is."""

    index: str
    size: int
    leader_excluded: bool


def segments_of(kind: WorkloadKind, content: Content) -> SegmentSizes | None:
    """Return how an object's parts are cut into segments, None if they are not.

    :raises ValueError: for what is no size; the message names the path.
    """
    if kind.segments is None:
        return None
    size = at(content, kind.segments.size)
    if size is None:
        return None
    excluded = holds(kind.segments.leader_excluded, content, content)
    return SegmentSizes(kind.segments.index, _number(size, kind.segments.size), excluded)


def role_of(roles: tuple[Role, ...], labels: Mapping[str, str]) -> Role | None:
    """Return the role of a pod by its labels, None if it has none of them."""
    for role in roles:
        if role.labels.items() <= labels.items():
            return role
    return None


def templates_of(kind: WorkloadKind, content: Content) -> Iterator[TemplateOf]:
    """Yield the pod templates of an object, those without pods, too.

    :raises ValueError: for what is no number of pods; the message names the path.
    """
    if kind.wraps:
        yield from _templates_of_parts(kind, content)
    for pods in kind.pods:
        yield from _templates(pods, content)


def _templates(pods: PodTemplates, content: Content) -> Iterator[TemplateOf]:
    for own, entry, steps in _entries(pods, content):
        found = ((path, look(entry, content, path)) for path in pods.template.split(","))
        given = next((one for one in found if isinstance(one[1], Mapping)), None)
        path, template = given or (pods.template.split(",")[0], default_of(pods, content))
        if template is None or look(entry, content, pods.absent) is True:
            continue
        if not all(holds(when, entry, content) for when in pods.only):
            continue
        numbers = _numbers(pods.count, entry, content, _text(steps), pods.bounds)
        role = pods.role or own.lower()
        values = {"role": role, "name": own, "object": at(content, "metadata.name") or ""}
        count = math.prod((*numbers[:-1], max(0, numbers[-1] - pods.less))) if numbers else 1
        yield TemplateOf(
            role,
            own,
            pointer_of(path, steps),
            given is None,
            tuple(pointer_of(factor.split(",")[0], steps) for factor in pods.count),
            min(count, _MOST_PODS),
            math.prod(numbers[1:]),
            with_copies(pods, with_added(pods, template, entry, content), entry, content),
            _filled(pods.labels, values),
            entry,
            pods,
            dict(_places(pods, entry, content, steps)),
        )


def _places(
    pods: PodTemplates, entry: Content, content: Content, steps: Steps
) -> Iterator[tuple[str, str]]:
    """Yield the fields of a template that are copied, and the pointers of what they are of."""
    for one in pods.copied:
        paths = one.source.split(",")
        there = (path for path in paths if look(entry, content, path) is not None)
        yield one.to, pointer_of(next(there, paths[-1]), steps)


# Objects in objects ------------------------------------------------------------------------------

_POD = WorkloadKind("", "Pod", (PodTemplates("template", "main"),))
_DEPLOYMENT = WorkloadKind(
    "apps", "Deployment", (PodTemplates("spec.template", "main", count=("spec.replicas",)),)
)
_SINGLE = {("", "Pod"): _POD, ("apps", "Deployment"): _DEPLOYMENT}
"""Kinds whose pods are counted by queues, and are no gang."""


def _parts(kind: WorkloadKind, content: Content) -> Iterator[tuple[WorkloadKind, Content, Steps]]:
    """Yield the objects in an object that have pods, each with its row and its place."""
    entries = at(content, kind.wraps)
    for index, entry in enumerate(entries if isinstance(entries, (list, tuple)) else ()):
        part = entry.get("template") if isinstance(entry, Mapping) else None
        if not isinstance(part, Mapping):
            continue
        key = str(part.get("apiVersion", "")).rpartition("/")[0], str(part.get("kind"))
        row = KINDS_OF_WORKLOADS.get(key) or _SINGLE.get(key)
        if row is not None:
            yield row, part, (*kind.wraps.split("."), index)


def _templates_of_parts(kind: WorkloadKind, content: Content) -> Iterator[TemplateOf]:
    """Yield the pod templates of the objects in an object, named by their number."""
    name, number = at(content, "metadata.name") or "", 0
    for row, part, steps in _parts(kind, content):
        if row is _POD:
            meta = {
                key: value
                for key, value in (part.get("metadata") or {}).items()
                if key in ("labels", "annotations")
            }
            part = {"template": {"metadata": meta, "spec": part.get("spec") or {}}}
        for one in templates_of(row, part):
            place = pointer_to((*steps, "template"))
            counts = tuple(place + pointer for pointer in one.counts)
            yield replace(one, name=f"{name}-{number}", pointer=place + one.pointer, counts=counts)
            number += 1


def _roles_of_parts(kind: WorkloadKind, content: Content) -> tuple[Role, ...]:
    """Return the roles of the only object in an object, or one role of all of its pods.

    There are none where the pods of one are not known.
    """
    parts = [(row, part) for row, part, _ in _parts(kind, content) if row not in _SINGLE.values()]
    found = [roles_of(row, part) for row, part in parts]
    if len(found) == 1 or not all(row.pods for row, _ in parts):
        return found[0] if len(found) == 1 else ()
    roles = [role for of_part in found for role in of_part if not (role.later or role.serial)]
    count, least = sum(one.count for one in roles), sum(one.least for one in roles)
    if not roles:
        return ()
    return (replace(roles[0], name="pods", count=count, least=least, labels={}, template={}),)


def _roles(pods: PodTemplates, content: Content) -> Iterator[Role]:
    for one in _templates(pods, content):
        count, entry = one.count, one.entry
        if pods.left is not None:
            count = min(count, left_of(pods, content, count))
        least, part = 0, _part_of(pods, entry, content, one.count)
        if part is not None and part.least < part.size:
            least = part.least * (one.count // part.size)
        if pods.least and look(entry, content, pods.least[0]) is not None:
            least = math.prod(_numbers(pods.least, entry, content, ""))
        yield Role(
            one.name,
            count,
            min(least or count, count),
            any(holds(when, entry, content) for when in pods.later),
            any(holds(when, entry, content) for when in pods.serial),
            one.labels,
            one.template,
            pods,
            part,
            one.pointer,
        )


def _part_of(pods: PodTemplates, entry: Content, content: Content, count: int) -> Part | None:
    if pods.part is None:
        return None
    label, path = pods.part
    (number,) = _numbers((path,), entry, content, "")
    size = max(1, count // max(1, number))
    stated = None
    if pods.fewer is not None:
        annotations, name = pods.fewer
        stated = _stated(look(entry, content, annotations), name)
    return Part(label, size, size if stated is None else min(stated, size))


def left_of(pods: PodTemplates, content: Content, count: int) -> int:
    """Return how many pods of a role still have to succeed; ``count`` where nothing says it."""
    if pods.left is None:
        return count
    total, done = (at(content, path) for path in pods.left)
    if not isinstance(total, int):
        return count
    ended = done if isinstance(done, int) else 0
    if pods.indexed is not None and holds(pods.indexed, content, content):
        texts = [text for path in pods.done if isinstance(text := at(content, path), str)]
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
    if kind.suspend and at(content, kind.suspend) is True:
        return
    roles = sorted(roles_of(kind, content), key=lambda role: role.later)
    for unit in range(units_of(kind, content)):
        first: list[str] = []
        for role in roles:
            after = tuple(first) if role.later else ()
            for index in range(role.made.first, role.made.first + role.count):
                values = {
                    "object": content["metadata"]["name"],
                    "role": role.name,
                    "unit": str(unit),
                    "index": str(index),
                }
                marks = _filled({**kind.labels, "": role.made.pod}, values)
                name = marks.pop("")
                yield PodPlan(name, {**marks, **role.labels}, role.template, after)
                if not role.later:
                    first.append(name)


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
    found, place = at(content, pods.each), tuple(pods.each.split("."))
    if isinstance(found, Mapping):
        for name, entry in found.items():
            if isinstance(entry, Mapping):
                yield name, entry, (*place, name)
    elif isinstance(found, (list, tuple)):
        for index, entry in enumerate(found):
            if isinstance(entry, Mapping):
                yield str(entry.get(pods.name, index)), entry, (*place, index)


def _text(steps: Steps) -> str:
    """Return a place as the beginning of a path, for messages."""
    text = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in steps)
    return f"{text[1:]}." if text else ""


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
        values = [(path, look(entry, content, path)) for path in factor.split(",")]
        there = [_number(value, where + path) for path, value in values if value is not None]
        if values[0][1] is None and (bounds is None or numbers):
            there.append(1)
        if bounds is not None and not numbers:
            least, most = (look(entry, content, path) for path in bounds)
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


# Status --------------------------------------------------------------------------------------


class Progress(msgspec.Struct, frozen=True):
    """How far a workload is, by its own status.

    :param end: the reason and the message of its end; None before.
    :param succeeded: whether it ended well.
    :param ready: the number of pods that are ready, or have succeeded.
    :param spare: by role, pods that it needs no more.
    :param on_hold: whether its controller makes no pods until it changes.
    """

    end: tuple[str, str] | None = None
    succeeded: bool = False
    ready: int = 0
    spare: Mapping[str, int] = msgspec.field(default_factory=dict)
    on_hold: bool = False


def progress_of(
    kind: WorkloadKind, content: Content, templates: tuple[TemplateOf, ...]
) -> Progress:
    """Return how far an object is.

    :param templates: those of the object.
    """
    end, succeeded = _end_of(kind.ends, content) if kind.ends is not None else (None, False)
    ready, spare = sum(_count(at(content, path)) for path in kind.ready), {}
    for one in templates:
        status = _status_of(one, content)
        for path in one.made.ready:
            if isinstance(path, When):
                ready += holds(path, content, content)
            elif isinstance(path, Counted):
                states = at(content, path.path)
                found = states.values() if isinstance(states, Mapping) else ()
                ready += sum(1 for state in found if state in path.values)
            else:
                ready += _count(at(status, path)) * one.each
        if one.made.left is not None:
            # One pod alone is the whole job: it gives nothing back before its end.
            unneeded = one.count - left_of(one.made, content, one.count) if one.count > 1 else 0
        else:
            unneeded = _count(at(status, one.made.succeeded)) * one.each
        if unneeded > 0:
            spare[one.name] = min(unneeded, one.count)
    if kind.running and at(content, kind.running):
        ready = max(ready, sum(one.count for one in templates))
    on_hold = kind.on_hold is not None and holds(kind.on_hold, content, content)
    return Progress(end, succeeded, ready, spare, on_hold)


def policy_of(kind: WorkloadKind, content: Content) -> str:
    """Return what becomes of an object's pods at its end: "All", "Running" or "None"."""
    value = at(content, kind.clean) if kind.clean else None
    return value if value in ("All", "Running") else "None"


def _status_of(template: TemplateOf, content: Content) -> Any:
    if not template.made.status:
        return content
    found = at(content, template.made.status)
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
        conditions = at(content, "status.conditions")
        found = condition_of(conditions, *ends.good, *ends.bad)
        if found is None:
            return None, False
        reason = found.get("reason") or f"Job{found.get('type')}"
        return (reason, found.get("message") or ""), found.get("type") in ends.good
    state = at(content, ends.state)
    if state not in (*ends.good, *ends.bad):
        return None, False
    reason, message = (at(content, path) if path else "" for path in (ends.reason, ends.message))
    good = state in ends.good
    if ends.success is not None:
        good = holds(ends.success, content, content)
    if not good and ends.unless is not None and holds(ends.unless, content, content):
        return None, False
    return (reason or state, message or ends.texts.get(state, "")), good
