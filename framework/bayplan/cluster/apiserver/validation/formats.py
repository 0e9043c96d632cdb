"""Causes of refusals and the formats of names, in the words of the API server."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bayplan.cluster.api_errors import Cause

__all__ = [
    "LABEL",
    "SUBDOMAIN",
    "VALUE_TEXT",
    "at_least",
    "between",
    "duplicate",
    "forbidden",
    "immutable",
    "ip_address",
    "items",
    "label",
    "label_value",
    "mapping",
    "named",
    "qualified",
    "required",
    "subdomain",
    "too_long",
    "too_many",
    "unique",
    "unsupported",
    "wrong",
]

LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = rf"{LABEL}(\.{LABEL})*"
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = f"({_QUALIFIED})?"
_LABEL_RULE, _SUBDOMAIN_RULE = re.compile(LABEL), re.compile(SUBDOMAIN)
_QUALIFIED_RULE, _VALUE_RULE = re.compile(_QUALIFIED), re.compile(_VALUE)
_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex "
    f"used for validation is '{LABEL}')"
)
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    f"for validation is '{SUBDOMAIN}')"
)
_QUALIFIED_TEXT = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    f"validation is '{_QUALIFIED}')"
)
VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  "
    f"or '12345', regex used for validation is '{_VALUE}')"
)


# Causes --------------------------------------------------------------------------------------


def wrong(path: str, value: Any, why: str) -> Cause:
    """Return the cause of an invalid value."""
    return Cause("FieldValueInvalid", f"Invalid value: {_shown(value)}: {why}", path)


def required(path: str, why: str = "") -> Cause:
    """Return the cause of a missing value."""
    return Cause("FieldValueRequired", f"Required value{': ' if why else ''}{why}", path)


def unsupported(path: str, value: Any, known: Iterable[str]) -> Cause:
    """Return the cause of a value that is none of the known ones."""
    names = ", ".join(f'"{name}"' for name in known)
    text = f"Unsupported value: {_shown(value)}: supported values: {names}"
    return Cause("FieldValueNotSupported", text, path)


def duplicate(path: str, value: Any) -> Cause:
    """Return the cause of a value that is there already."""
    return Cause("FieldValueDuplicate", f"Duplicate value: {_shown(value)}", path)


def forbidden(path: str, why: str) -> Cause:
    """Return the cause of a field that must not be set or changed."""
    return Cause("FieldValueForbidden", f"Forbidden: {why}", path)


def too_long(path: str, most: int) -> Cause:
    """Return the cause of a text of more bytes than allowed."""
    return Cause("FieldValueTooLong", f"Too long: may not be more than {most} bytes", path)


def too_many(path: str, count: int, most: int) -> Cause:
    """Return the cause of a list with more items than allowed."""
    noun = "item" if most == 1 else "items"
    text = f"Too many: {count}: must have at most {most} {noun}"
    return Cause("FieldValueTooMany", text, path)


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# Shapes --------------------------------------------------------------------------------------


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping; an empty one in place of another value, whose type is checked elsewhere."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield (index, mapping) of a list's mappings; null stands for an empty one."""
    for index, item in enumerate(value if isinstance(value, list) else ()):
        if item is None or isinstance(item, dict):
            yield index, item or {}


def unique(values: Sequence[Any], path: str, field: str = "") -> Iterator[Cause]:
    """Yield the values of a list that were there before; ``field`` follows the index."""
    seen: list[Any] = []
    for index, value in enumerate(values):
        if value in seen:
            yield duplicate(f"{path}[{index}]{field}", value)
        seen.append(value)


def immutable(before: Any, after: Any, path: str, shown: Any = ...) -> Iterator[Cause]:
    """Refuse to change a field; what is empty counts as missing.

    :param shown: the value that the message shows, when it is not the new one.
    """
    if (before or None) != (after or None):
        yield wrong(path, after if shown is ... else shown, "field is immutable")


def at_least(least: int, value: Any, path: str) -> Iterator[Cause]:
    """Refuse a number below the least."""
    if _is_number(value) and value < least:
        yield wrong(path, value, f"must be greater than or equal to {least}")


def between(low: int, high: int, value: Any, path: str) -> Iterator[Cause]:
    """Refuse a number outside of a range."""
    if _is_number(value) and not low <= value <= high:
        yield wrong(path, value, f"must be between {low} and {high}, inclusive")


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# Names ---------------------------------------------------------------------------------------


def label(name: str) -> Iterator[str]:
    """Yield the problems of an RFC 1123 label."""
    if len(name) > 63:
        yield "must be no more than 63 characters"
    if not _LABEL_RULE.fullmatch(name):
        yield _LABEL_TEXT


def subdomain(name: str) -> Iterator[str]:
    """Yield the problems of an RFC 1123 subdomain."""
    if len(name) > 253:
        yield "must be no more than 253 characters"
    if not _SUBDOMAIN_RULE.fullmatch(name):
        yield _SUBDOMAIN_TEXT


def qualified(key: str, what: str = "a valid label key") -> Iterator[str]:
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
        elif not _SUBDOMAIN_RULE.fullmatch(parts[0]):
            yield f"prefix part {_SUBDOMAIN_TEXT}"
        if len(parts[0].encode()) > 253:
            yield "prefix part must be no more than 253 bytes"
    if not parts[-1]:
        yield "name part must be non-empty"
    elif len(parts[-1].encode()) > 63:
        yield "name part must be no more than 63 bytes"
    if not _QUALIFIED_RULE.fullmatch(parts[-1]):
        yield f"name part {_QUALIFIED_TEXT}"


def label_value(value: str) -> Iterator[str]:
    """Yield the problems of a label's value."""
    if len(value.encode()) > 63:
        yield "must be no more than 63 bytes"
    if not _VALUE_RULE.fullmatch(value):
        yield VALUE_TEXT


def named(problems: Iterable[str], path: str, value: Any) -> Iterator[Cause]:
    """Yield the causes of a name's problems."""
    for why in problems:
        yield wrong(path, value, why)


def ip_address(value: Any, path: str) -> Iterator[Cause]:
    """Refuse what is no IP address."""
    try:
        ipaddress.ip_address(str(value))
    except ValueError:
        yield wrong(path, value, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
