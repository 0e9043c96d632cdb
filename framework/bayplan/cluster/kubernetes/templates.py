"""Pod templates that are copies of others: with the fields that bayplan's types do not hold.

What schedules a pod is typed; its commands, probes and mounts are not. Whoever compares a copy with
its original, as Kueue's manager does, needs all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, get_args

import msgspec

from bayplan.api.pod import PodSpec

__all__ = ["at_pointer", "complete"]


def at_pointer(content: Any, pointer: str) -> Any:
    """Return what a JSON pointer (RFC 6901) leads to, None if it leads nowhere."""
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(content, list | tuple) and name.isdecimal() and int(name) < len(content):
            content = content[int(name)]
        else:
            content = content.get(name) if isinstance(content, dict) else None
    return content


def complete(template: dict[str, Any], original: Any) -> None:
    """Add to the spec of a template what its original has in fields that no type holds.

    What bayplan left out of typed fields, such as the name of a node, stays out.

    :param original: a template, or a pod, in its JSON form.
    """
    spec = original.get("spec") if isinstance(original, Mapping) else None
    if isinstance(spec, Mapping):
        template["spec"] = _filled(PodSpec, template.get("spec") or {}, spec)


def _filled(type_: type, known: Mapping[str, Any], original: Mapping[str, Any]) -> dict[str, Any]:
    parts, found = _parts(type_), dict(known)
    for name, value in original.items():
        if name not in parts:
            found[name] = _last_of_each(value) if name == "env" else value
        elif name in found and (part := parts[name]) is not None:
            found[name] = _filled_value(part, found[name], value)
    return found


def _last_of_each(variables: Any) -> Any:
    """Return the variables of an environment, each once, with the value that counts.

    Pods may name one twice, but not the templates in a Workload, whose definition refuses that.
    """
    if not isinstance(variables, list) or not all(isinstance(one, Mapping) for one in variables):
        return variables
    return list({one.get("name"): one for one in variables}.values())


def _filled_value(type_: type, known: Any, original: Any) -> Any:
    if isinstance(known, Mapping) and isinstance(original, Mapping):
        return _filled(type_, known, original)
    if not isinstance(known, Sequence) or not isinstance(original, Sequence):
        return known
    by_name = {one.get("name"): one for one in original if isinstance(one, Mapping)}
    alike = len(by_name) == len(original) and None not in by_name
    same = len(known) == len(original)
    return [
        _filled(type_, one, by_name.get(one.get("name"), {}) if alike else original[index])
        if isinstance(one, Mapping) and (alike or same)
        else one
        for index, one in enumerate(known)
    ]


@cache
def _parts(type_: type) -> Mapping[str, type | None]:
    """Return the fields of a type by their names in JSON, with the type of what is in them."""
    fields = msgspec.structs.fields(type_)
    return {one.encode_name: _struct_in(one.type) for one in fields}


def _struct_in(annotation: Any) -> type | None:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    return next((one for arg in get_args(annotation) if (one := _struct_in(arg))), None)
