"""Decoding of protobuf request bodies.

kubectl sends some kinds as protobuf, whatever the server accepts. Only the kinds that it creates
itself are decoded; answers are always JSON, which every client accepts.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from bayplan.cluster.api_errors import bad_request, unsupported_media_type
from bayplan.cluster.apiserver.protobuf_schemas import AMOUNT, META, QUANTITY, ROOT, Schema

__all__ = ["MEDIA_TYPE", "decode_protobuf"]

Content = dict[str, Any]

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

_TYPE_META: Schema = {1: ("apiVersion", "text"), 2: ("kind", "text")}
_ENVELOPE: Schema = {1: ("typeMeta", _TYPE_META), 2: ("raw", "raw")}


def decode_protobuf(body: bytes) -> Content:
    """Decode an object from protobuf to JSON.

    :raises ApiError: 415 for a kind without a schema here, 400 for invalid protobuf.
    """
    if not body.startswith(_MAGIC):
        raise bad_request("the body of the request is no Kubernetes protobuf")
    try:
        envelope = _message(body[len(_MAGIC) :], _ENVELOPE)
        identity = envelope.get("typeMeta", {})
        kind = identity.get("kind", "")
        schema = ROOT.get(f"{identity.get('apiVersion', '')} {kind}", ROOT.get(kind))
        if schema is None:
            raise unsupported_media_type(("application/json", "application/yaml"))
        if kind != "DeleteOptions":
            schema = {1: ("metadata", META), **schema}
        return {**identity, **_message(envelope.get("raw", b""), schema)}
    except (IndexError, UnicodeDecodeError, ValueError) as exc:
        raise bad_request(f"the body of the request is no valid protobuf: {exc}") from None


def _message(data: bytes, schema: Schema) -> Content:
    content: Content = {}
    for number, value in _fields(data):
        if number not in schema:
            continue
        name, kind = schema[number]
        if isinstance(kind, list):
            content.setdefault(name, []).append(_value(value, kind[0]))
        elif isinstance(kind, dict) and "inline" in kind:
            content |= _message(value, kind["inline"])
        elif isinstance(kind, dict) and "map" in kind:
            pair = _message(value, {1: ("key", "text"), 2: ("value", kind["map"])})
            content.setdefault(name, {})[pair.get("key", "")] = pair.get("value", "")
        else:
            found = _value(value, kind)
            if found != "":
                content[name] = found
    return content


def _value(value: Any, kind: Any) -> Any:
    if isinstance(kind, dict):
        if kind is QUANTITY:
            return _message(value, kind).get("text", "0")
        if kind is AMOUNT:
            amount = _message(value, kind)
            return amount.get("strVal", "") if amount.get("type") else amount.get("intVal", 0)
        return _message(value, kind)
    if kind == "int":
        return value - (1 << 64) if value >> 63 else value
    if kind == "bool":
        return bool(value)
    if kind == "data":
        return base64.b64encode(value).decode()
    return value if kind == "raw" else value.decode()


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (number, value) of a message's fields."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        wire = tag & 7
        if wire == _VARINT:
            value: Any
            value, position = _varint(data, position)
        elif wire == _BYTES:
            length, position = _varint(data, position)
            value, position = data[position : position + length], position + length
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
            value, position = data[position : position + size], position + size
        else:
            raise ValueError(f"wire type {wire}")
        if position > len(data):
            raise ValueError("it is cut off")
        yield tag >> 3, value


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
