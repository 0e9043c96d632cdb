"""Validation of names, labels and annotations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from bayplan.cluster.apiserver.api_errors import Cause, invalid
from bayplan.cluster.apiserver.resources import Resource
from bayplan.cluster.apiserver.selectors import at_path

__all__ = ["check_metadata"]

Content = Mapping[str, Any]

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = f"({_QUALIFIED})?"
_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex "
    f"used for validation is '{_LABEL}')"
)
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    f"for validation is '{_SUBDOMAIN}')"
)
_QUALIFIED_TEXT = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    f"validation is '{_QUALIFIED}')"
)
_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  "
    f"or '12345', regex used for validation is '{_VALUE}')"
)
_MOST_ANNOTATIONS = 262144
"""The most bytes in all annotations of an object."""


def check_metadata(resource: Resource, content: Content) -> None:
    """Validate names, labels and annotations as the API server does.

    :param content: an object; the metadata of its pod template is validated, too.
    :raises ApiError: 422, with all problems.
    """
    meta = content["metadata"]
    causes = [*_names(resource, meta), *_labels(meta), *_annotations(meta)]
    template = at_path(content, "spec.template.metadata")
    if not resource.custom and isinstance(template, dict):
        causes += _labels(template, "spec.template")
        causes += _annotations(template, "spec.template")
    if causes:
        name = str(meta.get("name") or meta.get("generateName") or "")
        raise invalid(resource.group, resource.kind, name, causes)


def _invalid(field: str, value: str, why: str) -> Cause:
    return Cause("FieldValueInvalid", f'Invalid value: "{value}": {why}', field)


def _names(resource: Resource, meta: Content) -> Iterator[Cause]:
    name, prefix = meta.get("name"), meta.get("generateName")
    if isinstance(name, str) and name:
        for why in _name_problems(resource, name):
            yield _invalid("metadata.name", name, why)
    elif isinstance(prefix, str) and prefix:
        # The generated suffix is always valid.
        for why in _name_problems(resource, f"{prefix.rstrip('-.')}x"):
            yield _invalid("metadata.generateName", prefix, why)


def _name_problems(resource: Resource, name: str) -> Iterator[str]:
    if resource.group == "rbac.authorization.k8s.io":
        yield from (f"may not contain '{mark}'" for mark in ("/", "%") if mark in name)
        return
    short = resource.plural == "namespaces"
    pattern, text, most = (_LABEL, _LABEL_TEXT, 63) if short else (_SUBDOMAIN, _SUBDOMAIN_TEXT, 253)
    if short and "." in name and re.fullmatch(_SUBDOMAIN, name):
        yield "must not contain dots"
    elif not re.fullmatch(pattern, name):
        yield text
    if len(name) > most:
        yield f"must be no more than {most} characters"


def _texts(found: Any) -> Mapping[str, Any]:
    """Return a mapping whose keys are strings, else an empty one: its type is checked elsewhere."""
    is_right = isinstance(found, dict) and all(isinstance(key, str) for key in found)
    return found if is_right else {}


def _labels(meta: Content, path: str = "metadata") -> Iterator[Cause]:
    for key, value in _texts(meta.get("labels")).items():
        for why in _key_problems(key, "a valid label key"):
            yield _invalid(f"{path}.labels", key, why)
        if isinstance(value, str) and not re.fullmatch(_VALUE, value):
            yield _invalid(f"{path}.labels", value, _VALUE_TEXT)
        if isinstance(value, str) and len(value.encode()) > 63:
            yield _invalid(f"{path}.labels", value, "must be no more than 63 bytes")


def _annotations(meta: Content, path: str = "metadata") -> Iterator[Cause]:
    annotations = _texts(meta.get("annotations"))
    for key in annotations:
        for why in _key_problems(key.lower(), "a valid annotation key"):
            yield _invalid(f"{path}.annotations", key, why)
    size = sum(len(key.encode()) + len(str(value).encode()) for key, value in annotations.items())
    if size > _MOST_ANNOTATIONS:
        text = f"Too long: may not be more than {_MOST_ANNOTATIONS} bytes"
        yield Cause("FieldValueTooLong", text, f"{path}.annotations")


def _key_problems(key: str, what: str) -> Iterator[str]:
    """Yield the problems of a key such as ``example.com/name``."""
    parts = key.split("/")
    if len(parts) > 2:
        yield (
            f"{what} {_QUALIFIED_TEXT} with an optional DNS subdomain prefix and '/' "
            "(e.g. 'example.com/MyName')"
        )
        return
    if len(parts) == 2:
        if not parts[0]:
            yield "prefix part must be non-empty"
        elif not re.fullmatch(_SUBDOMAIN, parts[0]):
            yield f"prefix part {_SUBDOMAIN_TEXT}"
        if len(parts[0].encode()) > 253:
            yield "prefix part must be no more than 253 bytes"
    if not parts[-1]:
        yield "name part must be non-empty"
    elif len(parts[-1].encode()) > 63:
        yield "name part must be no more than 63 bytes"
    if not re.fullmatch(_QUALIFIED, parts[-1]):
        yield f"name part {_QUALIFIED_TEXT}"
