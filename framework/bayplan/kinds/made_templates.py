"""Pod templates as operators make their pods of them: with defaults, additions and copies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bayplan.api import Quantity
from bayplan.api.objects import decode_part
from bayplan.api.pod import PodTemplate
from bayplan.kinds.kind import Copied, PodTemplates
from bayplan.kinds.paths import Content, at, holds, look

__all__ = ["default_of", "with_added", "with_copies"]

_CONTAINER = "container."
_JAVA_MEMORY = re.compile("([0-9]+)([bkmgtp]?)b?")


def default_of(pods: PodTemplates, content: Content) -> Content | None:
    """Return the template of pods whose object leaves it out, None where it has to be there."""
    if pods.default is None or not pods.image:
        return pods.default
    containers = at(content, pods.image)
    heads = containers if isinstance(containers, (list, tuple)) else ()
    image = next((one.get("image") for one in heads if isinstance(one, Mapping)), None)
    spec = pods.default["spec"]
    first, *rest = spec["containers"]
    own = {**first, "image": image} if image else first
    return {**pods.default, "spec": {**spec, "containers": [own, *rest]}}


def with_added(pods: PodTemplates, template: Content, entry: Content, content: Content) -> Content:
    """Return a template with what the kind's operator adds to it.

    :raises DecodeError: for what is no pod template.
    """
    added = [one for one in pods.added if holds(one.when, entry, content)]
    if added:
        decode_part(PodTemplate, dict(template))
    for one in added:
        spec = template.get("spec") or {}
        containers = list(spec.get("containers") or ())
        if one.container and all(c.get("name") != one.container["name"] for c in containers):
            stated = look(entry, content, one.resources)
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


def with_copies(pods: PodTemplates, template: Content, entry: Content, content: Content) -> Content:
    """Return a template with what the kind's operator copies into it."""
    for one in pods.copied:
        found = (look(entry, content, path) for path in one.source.split(","))
        value = next((value for value in found if value not in (None, "", [], {})), None)
        if value is not None:
            template = _with_copy(pods, template, one, value)
    return template


def _with_copy(pods: PodTemplates, template: Content, one: Copied, value: Any) -> Content:
    if one.java:
        value = _kubernetes_memory(value)
    steps = one.to.removeprefix(_CONTAINER).split(".")
    if steps[-1] == "*":
        if not isinstance(value, Mapping) or not value.get("name"):
            return template
        steps[-1], value = value["name"], value.get("quantity")
    elif steps[-1] in ("cpu", "memory"):
        value = str(value)
    if not one.to.startswith(_CONTAINER):
        return _put(template, steps, value)
    spec = template.get("spec") or {}
    containers = [*(spec.get("containers") or ())]
    if not containers or not all(isinstance(each, Mapping) for each in containers):
        return template
    names = [each.get("name") for each in containers]
    index = names.index(pods.container) if pods.container in names else 0
    containers[index] = _put(containers[index], steps, value)
    return {**template, "spec": {**spec, "containers": containers}}


def _put(content: Content, steps: list[str], value: Any) -> Content:
    """Return JSON with a value: a map is merged, a list follows what is there."""
    first, *rest = steps
    known = content.get(first)
    if rest:
        value = _put(known if isinstance(known, Mapping) else {}, rest, value)
    elif isinstance(value, Mapping) and isinstance(known, Mapping):
        value = {**known, **value}
    elif isinstance(value, (list, tuple)) and isinstance(known, (list, tuple)):
        value = [*known, *value]
    return {**content, first: value}


def _kubernetes_memory(value: Any) -> Any:
    """Return an amount of memory of Java's, such as "2g", as a quantity: numbers alone are MiB."""
    found = _JAVA_MEMORY.fullmatch(str(value).lower())
    if found is None:
        return value
    unit = found[2].upper() or "M"
    return found[1] if unit == "B" else f"{found[1]}{unit}i"
