"""Admission policies, evaluated as an API server does, by bayplan's own CEL.

What CEL calls ``object``, ``oldObject``, ``namespaceObject``, ``params`` and ``request`` are local
variables of what is compiled, and variables of the policy are written out. Texts are compiled once:
that takes most of the time.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from bayplan.cluster.patches import json_patch
from bayplan_dra.cel.compiled import Run
from bayplan_dra.cel.compiler import _Compiler
from bayplan_dra.cel.frame import COST_LIMIT
from bayplan_dra.cel.syntax import parse
from bayplan_dra.cel.types import DYN
from bayplan_dra.cel.values import Optional

Content = dict[str, Any]
_PATCH = "JSONPatch{"


def mutated(
    policy: Content,
    content: Content,
    namespace: Content,
    params: Content,
    old: Content | None = None,
) -> Content:
    """Return an object as a policy leaves it.

    :param namespace: the object's namespace; :param params: the policy's parameter.
    :param old: the object as it was, None at its creation.
    """
    spec = policy["spec"]
    names = {"object": content, "oldObject": old, "namespaceObject": namespace, "params": params}
    names["request"] = {"namespace": content["metadata"].get("namespace", "")}
    variables = {one["name"]: one["expression"] for one in spec.get("variables", ())}
    for one in spec.get("matchConditions", ()):
        if not _value(one["expression"], {}, names):
            return content
    for one in spec["mutations"]:
        patches = _value(one["jsonPatch"]["expression"], variables, {**names, "object": content})
        content = json_patch(copy.deepcopy(content), _plain(patches))
    return content


def refused(
    policy: Content,
    content: Content,
    old: Content | None,
    params: Content | None = None,
    groups: Sequence[str] = (),
) -> list[str]:
    """Return what a policy says of an object that is created or changed; nothing if it may be.

    :param old: the object as it was, None at its creation. :param params: the policy's parameter.
    :param groups: those of the user who asks.
    """
    spec = policy["spec"]
    request = {
        "operation": "CREATE" if old is None else "UPDATE",
        "namespace": content["metadata"].get("namespace", ""),
        "kind": {"kind": content["kind"]},
        "userInfo": {"groups": list(groups)},
    }
    names = {"object": content, "oldObject": old, "params": params, "request": request}
    variables = {one["name"]: one["expression"] for one in spec.get("variables", ())}
    if not all(_value(one["expression"], {}, names) for one in spec.get("matchConditions", ())):
        return []
    return [
        _value(one["messageExpression"], variables, names)
        for one in spec["validations"]
        if not _value(one["expression"], variables, names)
    ]


def watches(policy: Content, group: str, plural: str, operation: str = "") -> bool:
    """Tell whether a policy is about what happens to objects of a kind."""
    return any(
        group in one["apiGroups"]
        and plural in one["resources"]
        and (not operation or operation in one["operations"])
        for one in policy["spec"]["matchConstraints"]["resourceRules"]
    )


def _value(expression: str, variables: Mapping[str, str], names: Mapping[str, Any]) -> Any:
    compiled = _compiled(expression, tuple(variables.items()), tuple(names))
    return compiled.run(
        [None, 100 * COST_LIMIT, None, 0, *map(_as_cel, names.values()), *compiled.more]
    )


class _Compiled(NamedTuple):
    """What evaluates an expression in a frame, which ends with room for its own variables."""

    run: Run
    more: list[None]


@cache
def _compiled(
    expression: str, variables: tuple[tuple[str, str], ...], names: tuple[str, ...]
) -> _Compiled:
    compiler = _Compiler(multiple_allocations=True, lists=True)
    text = _patches_as_maps(_written_out(expression, dict(variables)))
    with compiler.scope.within(*((name, DYN) for name in names)):
        run = compiler.visit(parse(text)).run
    return _Compiled(run, [None] * (compiler.scope.most - len(names)))


def _as_cel(value: Any) -> Any:
    """Return JSON as CEL's values."""
    if isinstance(value, Mapping):
        return {key: _as_cel(one) for key, one in value.items()}
    return tuple(map(_as_cel, value)) if isinstance(value, list) else value


def _patches_as_maps(expression: str) -> str:
    """Return an expression whose patches are maps of the unknown type."""
    before, found, rest = expression.partition(_PATCH)
    if not found:
        return expression
    depth, end = 1, 0
    while depth:
        depth += {"{": 1, "}": -1}.get(rest[end], 0)
        end += 1
    start, _, value = rest[: end - 1].partition(", value: ")
    start = start.replace("op: ", '"op": dyn(', 1).replace(", path: ", '), "path": dyn(', 1)
    made = f'{{{start}), "value": dyn({value})}}'
    return f"{before}{made}{_patches_as_maps(rest[end:])}"


def _written_out(expression: str, variables: Mapping[str, str]) -> str:
    def own(match: re.Match[str]) -> str:
        return f"({_written_out(variables[match[1]], variables)})"

    return re.sub(r"variables\.([A-Za-z]+)", own, expression)


def _plain(value: Any) -> Any:
    if isinstance(value, Optional):
        return _plain(value.value)
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value
