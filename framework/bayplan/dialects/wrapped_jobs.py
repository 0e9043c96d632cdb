"""The objects in an AppWrapper, with what admission adds to them: workload.codeflare.dev/v1beta2.

An AppWrapper names, for each of its components, what is added to the pod templates in it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bayplan.dialects.reading import entries_of
from bayplan.kinds import KINDS_OF_WORKLOADS, templates_of

__all__ = ["components_of", "infos_by_component", "without_infos"]

_LABEL = "workload.codeflare.dev/appwrapper"
_COMPONENTS = "/spec/components/"
_INFOS = "podSetInfos"
_ROW = KINDS_OF_WORKLOADS["workload.codeflare.dev", "AppWrapper"]


def components_of(content: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the objects in an AppWrapper, as its operator makes them.

    :raises ValueError: for what is no list of objects, where one has to be.
    """
    made: dict[str, Any] = copy.deepcopy(dict(content))
    name = content["metadata"]["name"]
    pointers = [one.pointer for one in templates_of(_ROW, content)]
    components = entries_of(made.get("spec") or {}, "components", "spec.")
    for index, component in enumerate(map(dict, components)):
        start = f"{_COMPONENTS}{index}/"
        own = [pointer for pointer in pointers if pointer.startswith(start)]
        infos = entries_of(component, _INFOS, f"spec.components[{index}].")
        for pointer, info in zip(own, infos, strict=False):
            template = _at(component, pointer.removeprefix(start))
            _add(template, info)
            _label(template, name)
        for pointer in own[len(infos) :]:
            _label(_at(component, pointer.removeprefix(start)), name)
        part = component.get("template")
        if isinstance(part, dict):
            _label(part, name)
            yield part


def _at(component: dict[str, Any], pointer: str) -> dict[str, Any]:
    """Return the pod template at a pointer; of a pod, the pod itself."""
    found: Any = component
    for step in pointer.split("/"):
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(step)]
        elif step in found:
            found = found[step]
    return found if isinstance(found, dict) else {}


def _label(part: dict[str, Any], name: str) -> None:
    meta = part.setdefault("metadata", {})
    meta["labels"] = {**(meta.get("labels") or {}), _LABEL: name}


def _add(template: dict[str, Any], info: Mapping[str, Any]) -> None:
    meta, spec = template.setdefault("metadata", {}), template.setdefault("spec", {})
    for of, keys in ((meta, ("labels", "annotations")), (spec, ("nodeSelector",))):
        for key in keys:
            if info.get(key):
                of[key] = {**(of.get(key) or {}), **info[key]}
    for key in ("tolerations", "schedulingGates"):
        if info.get(key):
            spec[key] = [*(spec.get(key) or ()), *info[key]]


def infos_by_component(
    pointers: Sequence[str], infos: Sequence[Mapping[str, Any]]
) -> dict[str, list[Mapping[str, Any]]]:
    """Return the fields that add to the pod templates of an AppWrapper, by JSON pointer.

    :param pointers: the templates, as JSON pointers; :param infos: what is added to each.
    """
    fields: dict[str, list[Mapping[str, Any]]] = {}
    for pointer, info in zip(pointers, infos, strict=True):
        component = pointer.removeprefix(_COMPONENTS).partition("/")[0]
        fields.setdefault(f"{_COMPONENTS}{component}/{_INFOS}", []).append(info)
    return fields


def without_infos(content: Mapping[str, Any]) -> dict[str, None]:
    """Return the fields of an AppWrapper that take away what was added; none where nothing was."""
    components = (content.get("spec") or {}).get("components") or ()
    return {
        f"{_COMPONENTS}{index}/{_INFOS}": None
        for index, one in enumerate(components)
        if isinstance(one, Mapping) and one.get(_INFOS)
    }
