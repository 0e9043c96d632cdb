"""Koordinator's ClusterColocationProfiles as policies, which do what its webhook did at creation.

One policy changes pods, profile by profile in the order of names. A second one gives pods of
``koord-batch`` and ``koord-mid`` the resources of their class: it is asked again once the API
server knows the priority that a class by name stands for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bayplan.admission.writing import label, mutating, rule
from bayplan.api.colocation import ClusterColocationProfile
from bayplan.api.meta import LabelSelector, SelectorRequirement
from bayplan.dialects.koordinator.colocation import (
    BY_PROFILE,
    CLASS_RESOURCES,
    SKIP_RESOURCES,
    SPEC_ANNOTATION,
    SUB_PRIORITY_LABEL,
)
from bayplan.dialects.koordinator.qos import PRIORITY_LABEL, PRIORITY_RANGES, QOS_LABEL

__all__ = ["colocation_policies"]

Content = dict[str, Any]
_LABELS, _ANNOTATIONS = "metadata/labels", "metadata/annotations"
_SELECTOR = "spec/nodeSelector"
_JOINED = 'variables.names.join(",")'
_NAMES = f"object.metadata.?annotations[?{json.dumps(BY_PROFILE)}].orValue('').split(',')"


def colocation_policies(profiles: Sequence[ClusterColocationProfile]) -> Iterator[Content]:
    """Yield the policies of these profiles; none without any that changes pods."""
    own = sorted((one for one in profiles if one.is_on), key=lambda one: one.key)
    if not own:
        return
    # Who is chosen is decided at first, by what the pod itself says.
    names = " + ".join(f"({_matches(one)} ? [{_text(one.key)}] : [])" for one in own)
    chosen = f"variables.names.size() == 0 ? [] : {_made(_ANNOTATIONS)}"
    policy = mutating(
        "bayplan-colocation",
        [rule("", ("v1",), ("pods",))],
        [],
        {"names": names},
        f"{chosen} + [{_set(_ANNOTATIONS, BY_PROFILE, _JOINED)}]",
        *(step for one in own for step in _steps(one)),
        *_forgotten([one.key for one in own if SKIP_RESOURCES in one.metadata.annotations]),
    )
    # What a profile appends to labels must not be appended twice.
    policy["spec"]["reinvocationPolicy"] = "Never"
    yield policy
    yield _resources()


# Profiles ------------------------------------------------------------------------------------


def _matches(profile: ClusterColocationProfile) -> str:
    spec = profile.spec
    terms = [
        *_selects("namespaceObject", spec.namespace_selector),
        *_selects("object", spec.selector),
    ]
    return " && ".join(f"({one})" for one in terms) or "true"


def _selects(of: str, selector: LabelSelector | None) -> Iterator[str]:
    """Yield expressions all of which hold if a selector selects an object."""
    if selector is None:
        return
    given = f"{of}.metadata.?labels"
    for key, value in sorted(selector.match_labels.items()):
        yield f"{given}[?{_text(key)}] == optional.of({_text(value)})"
    for term in selector.match_expressions:
        yield _meets(f"{given}[?{_text(term.key)}]", term)


def _meets(value: str, term: SelectorRequirement) -> str:
    if term.operator in ("Exists", "DoesNotExist"):
        return f"{'' if term.operator == 'Exists' else '!'}{value}.hasValue()"
    among = f"{json.dumps(list(term.values))}.exists(v, {value} == optional.of(v))"
    return among if term.operator == "In" else f"!{among}"


def _steps(profile: ClusterColocationProfile) -> Iterator[str]:
    """Yield the patches of a profile, each of which sees what those before it made."""
    spec = profile.spec
    groups = [
        [
            *(_set(_LABELS, key, _text(value)) for key, value in spec.labels.items()),
            *(_set(_ANNOTATIONS, key, _text(value)) for key, value in spec.annotations.items()),
        ],
        [
            *(_set(_LABELS, n, _value(_LABELS, o)) for o, n in spec.label_keys_mapping.items()),
            *(
                _set(_ANNOTATIONS, new, _value(_ANNOTATIONS, old))
                for old, new in spec.annotation_keys_mapping.items()
            ),
        ],
    ]
    for group in groups:
        if group:
            yield _if_chosen(profile, f"[{', '.join(group)}]")
    for key, suffix in spec.label_suffixes.items():
        known = f"{_text(key)} in object.metadata.?labels.orValue({{}})"
        longer = _set(_LABELS, key, f"{_value(_LABELS, key)} + {_text(suffix)}")
        yield _if_chosen(profile, f"({known} ? [{longer}] : [])")
    fields = _fields(profile)
    if fields:
        yield _if_chosen(profile, " + ".join(fields))


def _fields(profile: ClusterColocationProfile) -> list[str]:
    """Return the patches of what a profile says in fields of its own, and in its patch."""
    spec, found = profile.spec, []
    if spec.scheduler_name:
        found.append(_replaced("/spec/schedulerName", spec.scheduler_name))
    if spec.qos_class:
        found.append(f"[{_set(_LABELS, QOS_LABEL, _text(spec.qos_class))}]")
    if spec.koordinator_priority is not None:
        found.append(
            f"[{_set(_LABELS, SUB_PRIORITY_LABEL, _text(str(spec.koordinator_priority)))}]"
        )
    if spec.priority_class_name:
        found.append(_replaced("/spec/priorityClassName", spec.priority_class_name))
        # The API server fills them in again, and refuses what does not fit the class.
        found += [_without("spec", field) for field in ("priority", "preemptionPolicy")]
    patch = spec.patch or {}
    meta, of_pod = patch.get("metadata", {}), patch.get("spec", {})
    for path, values in (
        (_LABELS, meta.get("labels", {})),
        (_ANNOTATIONS, meta.get("annotations", {})),
        (_SELECTOR, of_pod.get("nodeSelector", {})),
    ):
        found += _merged(path, values)
    if "schedulerName" in of_pod:
        found.append(_replaced("/spec/schedulerName", of_pod["schedulerName"]))
    if "tolerations" in of_pod:
        found.append(_replaced("/spec/tolerations", of_pod["tolerations"]))
    return found


def _merged(path: str, values: Mapping[str, str | None]) -> list[str]:
    found = [_made(path)] if values and path == _SELECTOR else []
    for key, value in values.items():
        if value is None:
            found.append(_without(path, key))
        else:
            found.append(f"[{_set(path, key, _text(value))}]")
    return found


def _forgotten(names: Sequence[str]) -> Iterator[str]:
    """Yield the patch by which pods of these profiles keep their resources."""
    if names:
        skips = f"{_NAMES}.exists(n, {json.dumps(list(names))}.exists(s, s == n))"
        yield f"{skips} ? {_without(_ANNOTATIONS, BY_PROFILE)} : []"


def _if_chosen(profile: ClusterColocationProfile, patch: str) -> str:
    # A map that stays empty is gone for the next patch.
    made = f"{_made(_LABELS)} + " if f'"/{_LABELS}/' in patch else ""
    return f"{_NAMES}.exists(n, n == {_text(profile.key)}) ? {made}{patch} : []"


# Resources -----------------------------------------------------------------------------------


def _resources() -> Content:
    """Return the policy that renames what pods of Batch and mid ask for."""
    known = label("object", PRIORITY_LABEL)
    priority = "object.spec.?priority.orValue(0)"
    by_priority = " : ".join(
        f"{known} == '' && {priority} >= {least} && {priority} <= {most} ? '{name}'"
        for name, (least, most) in PRIORITY_RANGES.items()
    )
    of_class = (
        f"{json.dumps(list(PRIORITY_RANGES))}.exists(c, c == {known}) ? {known} : {by_priority}"
        f" : {label('object', QOS_LABEL)} == 'BE' ? 'koord-batch' : ''"
    )
    names = " : ".join(
        f"variables.class == '{one}' ? {json.dumps(names)}"
        for one, names in CLASS_RESOURCES.items()
    )
    # Without a priority, a class by name is not looked up yet.
    chosen = f"{json.dumps(BY_PROFILE)} in object.metadata.?annotations.orValue({{}})"
    ready = f"{chosen} && has(object.spec.priority)"
    renamed = " + ".join(
        _renamed(containers, part, resource)
        for containers in ("initContainers", "containers")
        for part in ("requests", "limits")
        for resource in ("cpu", "memory")
    )
    return mutating(
        "bayplan-colocation-resources",
        [rule("", ("v1",), ("pods",))],
        [],
        {"ready": ready, "class": of_class, "names": f"{names} : {{}}"},
        f"!variables.ready || variables.names.size() == 0 ? [] : {renamed}",
        _spec_annotation(),
    )


def _renamed(containers: str, part: str, resource: str) -> str:
    """Return a patch that renames one resource in requests, or limits, of all containers."""
    own = f"object.spec.?{containers}.orValue([])"
    amounts = f"{own}[i].?resources.?{part}.orValue({{}})"
    which = f"lists.range({own}.size()).filter(i, '{resource}' in {amounts})"
    amount = f"string({amounts}['{resource}'])"
    if resource == "cpu":
        amount = f"string(int(quantity({amount}).asApproximateFloat() * 1000.0 + 0.5))"
    path = f"'/spec/{containers}/' + string(i) + '/resources/{part}/'"
    name = f"jsonpatch.escapeKey(variables.names['{resource}'])"
    return (
        f'{which}.map(i, JSONPatch{{op: "add", path: {path} + {name}, value: {amount}}})'
        f" + {which}.map(i, JSONPatch{{op: \"remove\", path: {path} + '{resource}'}})"
    )


def _spec_annotation() -> str:
    """Return the patch that says in an annotation what containers ask for of Batch resources."""
    batch = json.dumps(sorted(CLASS_RESOURCES["koord-batch"].values()))

    def amounts(part: str) -> str:
        own = f"c.?resources.?{part}.orValue({{}})"
        return (
            f"{batch}.filter(n, n in {own})"
            f".map(n, '\"' + n + '\":\"' + string({own}[n]) + '\"').join(',')"
        )

    parts = " + ".join(
        f"({amounts(part)} == '' ? [] : ['\"{part}\":{{' + {amounts(part)} + '}}'])"
        for part in ("limits", "requests")
    )
    whole = f"object.spec.containers.map(c, ['\"' + c.name + '\":{{', ({parts}).join(','), '}}'])"
    stated = f"{whole}.filter(p, p[1] != '').map(p, p.join(''))"
    text = f"'{{\"containers\":{{' + {stated}.join(',') + '}}}}'"
    written = _set(_ANNOTATIONS, SPEC_ANNOTATION, text)
    asks = f"variables.ready && variables.class == 'koord-batch' && {stated}.size() > 0"
    return f"{asks} ? [{written}] : []"


# JSON patches --------------------------------------------------------------------------------


def _text(value: str) -> str:
    return json.dumps(value)


def _key(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _value(path: str, key: str) -> str:
    return f"object.{path.replace('/', '.?')}[?{_text(key)}].orValue('')"


def _set(path: str, key: str, value: str) -> str:
    pointer = json.dumps(f"/{path}/{_key(key)}")
    return f'JSONPatch{{op: "add", path: {pointer}, value: {value}}}'


def _made(path: str) -> str:
    """Return a patch that makes a map which is not there yet."""
    known = f"has(object.{path.replace('/', '.')})"
    return f'({known} ? [] : [JSONPatch{{op: "add", path: "/{path}", value: {{}}}}])'


def _without(path: str, key: str) -> str:
    known = f"object.{path.replace('/', '.?')}[?{_text(key)}].hasValue()"
    if path == "spec":
        known = f"has(object.spec.{key})"
    return (
        f'({known} ? [JSONPatch{{op: "remove", path: {json.dumps(f"/{path}/{_key(key)}")}}}] : [])'
    )


def _replaced(pointer: str, value: object) -> str:
    return f'[JSONPatch{{op: "add", path: "{pointer}", value: {json.dumps(value)}}}]'
