"""The OpenAPI version 2 document as protobuf, the only encoding that Go clients read.

Field numbers are those of gnostic's OpenAPIv2.proto; only the fields of our document are written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["MEDIA_TYPES", "encode_document"]

Content = Mapping[str, Any]

MEDIA_TYPES = (
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
)
"""The media type that clients ask for, and the one of answers."""
_VERBS = {"get": 2, "patch": 8}


def encode_document(document: Content) -> bytes:
    """Return a document as protobuf."""
    info = _text(1, document["info"]["title"]) + _text(2, document["info"]["version"])
    paths = _named(2, document["paths"], _path)
    definitions = _named(1, document["definitions"], _schema)
    return (
        _text(1, document["swagger"])
        + _message(2, info)
        + _message(8, paths)
        + _message(9, definitions)
    )


def _path(path: Content) -> bytes:
    return b"".join(_message(_VERBS[verb], _operation(path[verb])) for verb in path)


def _operation(operation: Content) -> bytes:
    parameters = b"".join(_message(8, _parameter(one)) for one in operation["parameters"])
    responses = _named(1, operation["responses"], lambda r: _message(1, _text(1, r["description"])))
    return parameters + _message(9, responses) + _extensions(13, operation)


def _parameter(parameter: Content) -> bytes:
    query = _text(2, parameter["in"]) + _text(4, parameter["name"]) + _text(6, parameter["type"])
    # A parameter in the query: neither a reference nor in the body.
    return _message(1, _message(2, _message(3, query)))


def _schema(schema: Content) -> bytes:
    parts = [
        _text(1, schema.get("$ref", "")),
        _text(2, schema.get("format", "")),
        _text(4, schema.get("description", "")),
        *(_text(19, name) for name in schema.get("required", ())),
    ]
    if "additionalProperties" in schema:
        parts.append(_message(21, _message(1, _schema(schema["additionalProperties"]))))
    if "type" in schema:
        parts.append(_message(22, _text(1, schema["type"])))
    if "items" in schema:
        parts.append(_message(23, _message(1, _schema(schema["items"]))))
    if "properties" in schema:
        parts.append(_message(25, _named(1, schema["properties"], _schema)))
    return b"".join(parts) + _extensions(31, schema)


def _extensions(number: int, content: Content) -> bytes:
    # Values are YAML, and JSON is YAML.
    found = {key: value for key, value in content.items() if key.startswith("x-")}
    return _named(number, found, lambda value: _text(2, json.dumps(value)))


def _named(number: int, items: Content, encode: Any) -> bytes:
    pairs: Iterable[tuple[str, Any]] = items.items()
    return b"".join(_message(number, _text(1, k) + _message(2, encode(v))) for k, v in pairs)


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode()) if text else b""


def _message(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
