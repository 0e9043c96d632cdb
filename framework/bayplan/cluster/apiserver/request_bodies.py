"""Request bodies in JSON and YAML, with their duplicate keys."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from bayplan.cluster.api_errors import bad_request
from bayplan.inputs.jsontext import duplicate_key, parse_json
from bayplan.inputs.limits import BODY, LimitExceeded
from bayplan.inputs.yamltext import YamlProblem, parse_yaml

__all__ = ["Body", "Repeated", "read_json", "read_yaml"]


class Repeated(dict[str, Any]):
    """A mapping with duplicate keys; ``pairs`` holds all key-value pairs, in order."""

    pairs: list[tuple[str, Any]]


class Body(msgspec.Struct, frozen=True):
    """A request's body.

    :param content: the decoded body, with the last value of each key.
    :param tree: the same with ``Repeated`` mappings, None when a JSON body has no duplicates.
    :param lines: the real server's messages about duplicate keys of a YAML body.
    """

    content: Any
    tree: Any = None
    lines: tuple[str, ...] = ()


def read_json(text: bytes) -> Body:
    """Decode a JSON body.

    :raises ApiError: 400, when it is invalid.
    """
    try:
        content = parse_json(text, BODY)
    except LimitExceeded as exc:
        raise bad_request(f"the body of the request {exc}") from None
    except ValueError as exc:
        why = str(exc).removeprefix("not JSON: ")
        raise bad_request(f"couldn't get version/kind; json parse error: {why}") from None
    if duplicate_key(text, content) is None:
        return Body(content)
    return Body(content, json.loads(text, object_pairs_hook=_mapping))


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    repeated = Repeated(made)
    repeated.pairs = pairs
    return repeated


def read_yaml(text: bytes) -> Body:
    """Decode a YAML (or JSON) body.

    :raises ApiError: 400, when it is invalid.
    """
    repeats: list[tuple[int, str]] = []
    try:
        content = next(parse_yaml(text.decode(), BODY, repeats), None)
    except LimitExceeded as exc:
        raise bad_request(f"the body of the request {exc}") from None
    except YamlProblem as exc:
        line = f"line {exc.line}: " if exc.line else ""
        raise bad_request(f"error converting YAML to JSON: yaml: {line}{exc.message}") from None
    except UnicodeDecodeError as exc:
        raise bad_request(f"error converting YAML to JSON: {exc}") from None
    lines = tuple(f'line {line}: key "{key}" already set in map' for line, key in repeats)
    return Body(content, lines=lines)
