"""``fieldValidation``: unknown and duplicate fields.

Strict refuses them, Warn (the default) reports them in Warning headers, Ignore says nothing. They
are never stored. Server-side apply refuses unknown fields in every mode, as the real server does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from bayplan.cluster.api_errors import ApiError, Cause, bad_request, invalid
from bayplan.cluster.apiserver.decoding import decoding_problems, untyped
from bayplan.cluster.apiserver.request_bodies import Body, Repeated
from bayplan.cluster.apiserver.resources import Resource
from bayplan.cluster.apiserver.validation.formats import wrong
from bayplan.cluster.patches import as_go
from bayplan.schemas.catalog import ListOf, MapOf, RecordType, Scalar, Type, record_of
from bayplan.schemas.checkers import ItemBudget, checker_of
from bayplan.schemas.problems import Step, Walk, record_problems

__all__ = ["FieldValidation", "pruned", "read_mode", "subresource_kind", "type_of"]

Content = dict[str, Any]

_MODES = ("", "Ignore", "Strict", "Warn")
_OPTIONS = {"create": "CreateOptions", "update": "UpdateOptions", "patch": "PatchOptions"}
_OPERATION = ("op", "path", "from", "value")


def read_mode(verb: str, params: Mapping[str, str]) -> str:
    """Return the fieldValidation mode of a request, "Warn" by default.

    :raises ApiError: 422, for an unknown mode.
    """
    mode = params.get("fieldValidation", "")
    if mode not in _MODES:
        known = ", ".join(f'"{one}"' for one in _MODES)
        text = f'Unsupported value: "{mode}": supported values: {known}'
        cause = Cause("FieldValueNotSupported", text, "fieldValidation")
        raise invalid("meta.k8s.io", _OPTIONS.get(verb, "CreateOptions"), "", [cause])
    return mode or "Warn"


class FieldValidation(msgspec.Struct):
    """Checks the fields of one request and collects warnings.

    :param body: the request's body; None for requests that the server makes itself.
    """

    mode: str = "Ignore"
    body: Body | None = None
    warnings: list[str] = msgspec.field(default_factory=list)

    def decoded(
        self,
        api_version: str,
        kind: str,
        schema: RecordType | None,
        content: Any,
        custom: bool = False,
    ) -> Any:
        """Return the object of a create or an update, without unknown fields.

        :param custom: whether its kind comes from a CRD; the real server sorts these fields.
        :raises ApiError: 400, for unknown or duplicate fields in strict mode, and for values of the
            wrong type in a built-in kind.
        """
        if not custom:
            _check_types(api_version, kind, schema, content)
        elif isinstance(content, dict):
            # The schema of a CRD says nothing of these; its own fields are checked elsewhere.
            own = {name: content.get(name) for name in ("apiVersion", "kind", "metadata")}
            _check_types(api_version, kind, record_of("v1", "ConfigMap"), own)
        found, unknown = self._found(schema, content, custom)
        if found and self.mode == "Strict":
            version = api_version.rpartition("/")[2]
            text = ", ".join(self._in_yaml(found))
            raise bad_request(
                f'{kind} in version "{version}" cannot be handled as a {kind}: strict decoding '
                f"error: {text}"
            )
        self._warn(found)
        return _without(content, unknown)

    def patched(
        self,
        schema: RecordType | None,
        content: Any,
        strategic: bool,
        patch: Any,
        custom: bool = False,
    ) -> Any:
        """Return the result of a patch, without unknown fields.

        :param custom: whether its kind comes from a CRD, whose values are checked elsewhere.
        :raises ApiError: 422, for unknown or duplicate fields in strict mode, and for values of the
            wrong type in a built-in kind.
        """
        for text in _type_problems(schema, content) if schema is not None and not custom else ():
            raise _no_result(content, text, strategic, patch)
        unknown = _unknown(schema, content)
        found = [
            *self._of_operations(patch),
            *_repeated(self.body.tree if self.body and isinstance(patch, dict) else None),
            *(f'unknown field "{_dotted(steps)}"' for steps in sorted(unknown, key=_sortable)),
        ]
        if found and self.mode == "Strict":
            text = f"strict decoding error: {', '.join(found)}"
            raise _no_result(content, text, strategic, patch)
        self._warn(found)
        return _without(content, unknown)

    def applied(self, name: str, schema: RecordType | None, content: Content) -> None:
        """Check a configuration for server-side apply.

        :param name: the object's name in the URL, for a configuration without one.
        :param content: an object with apiVersion and kind.
        :raises ApiError: 500 for unknown fields in every mode; 400 for duplicate keys in strict
            mode.
        """
        unknown = _unknown(schema, content)
        messages = [
            f"{_keyed(schema, content, steps)}: field not declared in schema" for steps in unknown
        ]
        if schema is not None:
            messages += untyped(schema, content)
        if messages:
            meta = content.get("metadata")
            meta = meta if isinstance(meta, dict) else {}
            text = messages[0] if len(messages) == 1 else "errors:\n  " + "\n  ".join(messages)
            raise ApiError(
                500,
                "",
                f"failed to create typed patch object ({meta.get('namespace', '')}/"
                f"{meta.get('name', name)}; {content['apiVersion']}, "
                f"Kind={content['kind']}): {text}",
            )
        lines = self.body.lines if self.body is not None else ()
        if lines and self.mode == "Strict":
            text = "\n  ".join(("yaml: unmarshal errors:", *lines))
            raise bad_request(f"error strict decoding YAML: error converting YAML to JSON: {text}")
        self._warn(list(lines))

    def _found(
        self, schema: RecordType | None, content: Any, custom: bool
    ) -> tuple[list[str], list[_Steps]]:
        """Return the messages about an object, and the paths of its unknown fields."""
        unknown = _unknown(schema, content)
        body = self.body
        if body is None:
            return [], unknown
        if body.tree is not None:
            return list(_in_order(schema, body.tree, ())), unknown
        if body.lines or custom:
            unknown.sort(key=_sortable)
        names = [f'unknown field "{_dotted(steps)}"' for steps in unknown]
        return [*body.lines, *names], unknown

    def _in_yaml(self, found: list[str]) -> list[str]:
        """Return the messages, with the duplicate keys of YAML as one error."""
        count = len(self.body.lines) if self.body is not None else 0
        if not count:
            return found
        return ["\n  ".join(("yaml: unmarshal errors:", *found[:count])), *found[count:]]

    def _of_operations(self, patch: Any) -> Iterator[str]:
        """Yield the duplicate and unknown fields in the operations of a JSON patch."""
        tree = self.body.tree if self.body is not None and self.body.tree else patch
        for index, operation in enumerate(tree if isinstance(tree, list) else ()):
            if isinstance(operation, dict):
                for text in _repeated(operation):
                    yield "json patch " + text.replace('"', f'"[{index}].', 1)
                for key in operation.keys() - _OPERATION:
                    yield f'json patch unknown field "[{index}].{key}"'

    def _warn(self, found: list[str]) -> None:
        if self.mode == "Warn":
            self.warnings += found


def _no_result(content: Any, why: str, strategic: bool, patch: Any) -> ApiError:
    """Return the error for a patch whose result cannot be decoded."""
    shown = as_go(patch) if strategic else msgspec.json.encode(content).decode()
    return invalid("", "", "", [wrong("patch", shown, why)])


# Types -------------------------------------------------------------------------------------------

_GO = {"boolean": "bool", "bytes": "[]uint8", "integer": "int32", "number": "float64"}
_MOST_UNKNOWN = 64
"""The most unknown fields of an object that are named; the real server limits its warnings, too."""
_OWN_DECODERS = ("any", "int-or-string", "quantity", "time")
"""Scalars whose values the real server reads in ways of their own."""
_JSON = {bool: "bool", dict: "object", float: "number", int: "number", list: "array", str: "string"}


def _check_types(api_version: str, kind: str, schema: RecordType | None, content: Any) -> None:
    """Refuse values of the wrong type, with the message of the real server's decoder.

    :raises ApiError: 400, for the first such value.
    """
    if schema is None:
        return
    version = api_version.rpartition("/")[2]
    for text in _type_problems(schema, content):
        raise bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {text}')


def _type_problems(schema: RecordType, content: Any) -> Iterator[str]:
    """Yield what the real server's decoder says of values of the wrong type."""
    for problem in record_problems(schema, content):
        if problem.unknown or not problem.steps:
            continue
        field, type_, value = _at(schema, content, problem.steps)
        if isinstance(type_, Scalar) and type_.name in _OWN_DECODERS:
            continue
        yield (
            f"json: cannot unmarshal {_JSON.get(type(value), 'value')} into Go struct field "
            f"{field} of type {_go_type(type_)}"
        )
    yield from decoding_problems(schema, content)


def _at(type_: Type, value: Any, steps: _Steps) -> tuple[str, Type, Any]:
    """Return the field at a path as Go names it, its type and its value.

    Go leaves out indices and keys, and names the struct around the last field.
    """
    owner, names = "", []
    for step in steps:
        value = value[step]
        if isinstance(type_, RecordType):
            owner, type_ = type_.name.rpartition(".")[2], type_.fields[str(step)].type
            names.append(str(step))
        elif isinstance(type_, ListOf):
            type_ = type_.items
        elif isinstance(type_, MapOf):
            type_ = type_.values
    return ".".join((owner, *names)), type_, value


def _go_type(type_: Type) -> str:
    if isinstance(type_, ListOf):
        return f"[]{_go_type(type_.items)}"
    if isinstance(type_, MapOf):
        return f"map[string]{_go_type(type_.values)}"
    if isinstance(type_, RecordType):
        return ".".join(type_.name.split(".")[-2:])
    return _GO.get(type_.name, type_.name)


# Places ------------------------------------------------------------------------------------------

_Steps = tuple[Step, ...]


def _unknown(schema: RecordType | None, content: Any) -> list[_Steps]:
    if schema is None or checker_of(schema)(content, ItemBudget()):
        return []
    unknown = (one.steps for one in Walk().find(schema, content, ()) if one.unknown)
    return list(itertools.islice(unknown, _MOST_UNKNOWN))


def _dotted(steps: _Steps) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return text.removeprefix(".")


def _sortable(steps: _Steps) -> tuple[tuple[bool, str], ...]:
    return tuple((step != "metadata" or place > 0, str(step)) for place, step in enumerate(steps))


def _keyed(schema: Type | None, content: Any, steps: _Steps) -> str:
    """Return a path as structured-merge-diff writes it, with list items by their keys."""
    text, key = "", ""
    for step in steps:
        if isinstance(step, int):
            content = content[step]
            mark = content.get(key) if isinstance(content, dict) else None
            text += f'[{key}="{mark}"]' if key and mark else f"[{step}]"
            schema = schema.items if isinstance(schema, ListOf) else None
            continue
        text += f".{step}"
        content = content.get(step) if isinstance(content, dict) else None
        if isinstance(schema, RecordType) and step in schema.fields:
            key, schema = schema.fields[step].merge_key, schema.fields[step].type
        else:
            schema = schema.values if isinstance(schema, MapOf) else None
    return text


def _without(content: Any, unknown: list[_Steps]) -> Any:
    """Return a copy of an object without the fields at these paths."""
    for steps in unknown:
        content = _removed(content, steps)
    return content


def _removed(content: Any, steps: _Steps) -> Any:
    first, *rest = steps
    if isinstance(content, list) and isinstance(first, int):
        return [_removed(v, tuple(rest)) if i == first else v for i, v in enumerate(content)]
    if not rest:
        return {key: value for key, value in content.items() if key != first}
    return {**content, first: _removed(content[first], tuple(rest))}


# Repeated keys -----------------------------------------------------------------------------------


def _repeated(tree: Any) -> Iterator[str]:
    return (text for text in _in_order(None, tree, ()) if text.startswith("duplicate"))


def _in_order(type_: Type | None, tree: Any, steps: _Steps) -> Iterator[str]:
    """Yield messages about duplicate and unknown fields, in the order of the document."""
    if isinstance(tree, list):
        items = type_.items if isinstance(type_, ListOf) else None
        for index, item in enumerate(tree):
            yield from _in_order(items, item, (*steps, index))
    elif isinstance(tree, dict):
        seen = set()
        for key, value in tree.pairs if isinstance(tree, Repeated) else tree.items():
            here = (*steps, key)
            below: Type | None = type_.values if isinstance(type_, MapOf) else None
            if key in seen:
                yield f'duplicate field "{_dotted(here)}"'
            elif isinstance(type_, RecordType) and key not in type_.fields and not type_.open:
                yield f'unknown field "{_dotted(here)}"'
            seen.add(key)
            if isinstance(type_, RecordType) and key in type_.fields:
                below = type_.fields[key].type
            yield from _in_order(below, value, here)


def subresource_kind(name: str) -> tuple[str, str] | None:
    """Return apiVersion and kind of a subresource's body, None when it has none of its own."""
    return _SUBRESOURCES.get(name)


_SUBRESOURCES = {
    "binding": ("v1", "Binding"),
    "eviction": ("policy/v1", "Eviction"),
    "scale": ("autoscaling/v1", "Scale"),
}


def type_of(resource: Resource, api_version: str) -> RecordType | None:
    """Return the type of a resource's objects, from its CRD if it has one; None when unknown."""
    own = resource.schemas.get(api_version.rpartition("/")[2])
    return own or record_of(api_version, resource.kind)


def pruned(schema: RecordType | None, content: Content) -> Content:
    """Return a copy of an object without unknown fields."""
    found: Content = _without(content, _unknown(schema, content))
    return found
