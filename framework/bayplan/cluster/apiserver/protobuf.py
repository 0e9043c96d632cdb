"""The protobuf bodies that Go clients insist on sending.

kubectl writes some kinds as protobuf, whatever the server accepts. Only those that it makes
itself are read; answers are always JSON, which every client takes.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from bayplan.cluster.apiserver.status import bad_request, unsupported_media_type

__all__ = ["MEDIA_TYPE", "decode_protobuf"]

Content = dict[str, Any]
Schema = Mapping[int, tuple[str, Any]]

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

# A field is (name, type). Types: text, int, bool, data; a schema; [type] for a repeated field;
# {"map": type} for a map. Field numbers are those of k8s.io/api's generated.proto files.
_MAP = {"map": "text"}
_OWNER: Schema = {
    1: ("kind", "text"),
    3: ("name", "text"),
    4: ("uid", "text"),
    5: ("apiVersion", "text"),
    6: ("controller", "bool"),
    7: ("blockOwnerDeletion", "bool"),
}
_META: Schema = {
    1: ("name", "text"),
    2: ("generateName", "text"),
    3: ("namespace", "text"),
    5: ("uid", "text"),
    6: ("resourceVersion", "text"),
    11: ("labels", _MAP),
    12: ("annotations", _MAP),
    13: ("ownerReferences", [_OWNER]),
    14: ("finalizers", ["text"]),
}
_REQUIREMENT: Schema = {1: ("key", "text"), 2: ("operator", "text"), 3: ("values", ["text"])}
_SELECTOR: Schema = {1: ("matchLabels", _MAP), 2: ("matchExpressions", [_REQUIREMENT])}
_PORT: Schema = {
    1: ("name", "text"),
    2: ("hostPort", "int"),
    3: ("containerPort", "int"),
    4: ("protocol", "text"),
}
_CONTAINER: Schema = {
    1: ("name", "text"),
    2: ("image", "text"),
    3: ("command", ["text"]),
    4: ("args", ["text"]),
    6: ("ports", [_PORT]),
}
_POD_SPEC: Schema = {2: ("containers", [_CONTAINER]), 3: ("restartPolicy", "text")}
_TEMPLATE: Schema = {1: ("metadata", _META), 2: ("spec", _POD_SPEC)}
_DEPLOYMENT: Schema = {
    1: ("replicas", "int"),
    2: ("selector", _SELECTOR),
    3: ("template", _TEMPLATE),
}
_JOB: Schema = {1: ("parallelism", "int"), 2: ("completions", "int"), 6: ("template", _TEMPLATE)}
_AMOUNT: Schema = {1: ("type", "int"), 2: ("intVal", "int"), 3: ("strVal", "text")}
_BUDGET: Schema = {
    1: ("minAvailable", _AMOUNT),
    2: ("selector", _SELECTOR),
    3: ("maxUnavailable", _AMOUNT),
}
_QUANTITY: Schema = {1: ("string", "text")}
_SCOPE: Schema = {1: ("scopeName", "text"), 2: ("operator", "text"), 3: ("values", ["text"])}
_QUOTA: Schema = {
    1: ("hard", {"map": _QUANTITY}),
    2: ("scopes", ["text"]),
    3: ("scopeSelector", {1: ("matchExpressions", [_SCOPE])}),
}
_RULE: Schema = {
    1: ("verbs", ["text"]),
    2: ("apiGroups", ["text"]),
    3: ("resources", ["text"]),
    4: ("resourceNames", ["text"]),
    5: ("nonResourceURLs", ["text"]),
}
_SUBJECT: Schema = {
    1: ("kind", "text"),
    2: ("apiGroup", "text"),
    3: ("name", "text"),
    4: ("namespace", "text"),
}
_ROLE_REF: Schema = {1: ("apiGroup", "text"), 2: ("kind", "text"), 3: ("name", "text")}
_ROLE: Schema = {2: ("rules", [_RULE])}
_ROLE_BINDING: Schema = {2: ("subjects", [_SUBJECT]), 3: ("roleRef", _ROLE_REF)}
_SERVICE_PORT: Schema = {
    1: ("name", "text"),
    2: ("protocol", "text"),
    3: ("port", "int"),
    4: ("targetPort", _AMOUNT),
}
_SERVICE: Schema = {
    1: ("ports", [_SERVICE_PORT]),
    2: ("selector", _MAP),
    3: ("clusterIP", "text"),
    4: ("type", "text"),
    10: ("externalName", "text"),
}
_PRECONDITIONS: Schema = {1: ("uid", "text"), 2: ("resourceVersion", "text")}
_DELETE: Schema = {
    1: ("gracePeriodSeconds", "int"),
    2: ("preconditions", _PRECONDITIONS),
    4: ("propagationPolicy", "text"),
    5: ("dryRun", ["text"]),
}
_RESOURCE: Schema = {
    1: ("namespace", "text"),
    2: ("verb", "text"),
    3: ("group", "text"),
    4: ("version", "text"),
    5: ("resource", "text"),
    6: ("subresource", "text"),
    7: ("name", "text"),
}
_PATH: Schema = {1: ("path", "text"), 2: ("verb", "text")}
_ACCESS: Schema = {1: ("resourceAttributes", _RESOURCE), 2: ("nonResourceAttributes", _PATH)}
_ROOT: Mapping[str, Schema] = {
    "ClusterRole": _ROLE,
    "ClusterRoleBinding": _ROLE_BINDING,
    "ConfigMap": {2: ("data", _MAP), 3: ("binaryData", {"map": "data"})},
    "DeleteOptions": _DELETE,
    "Deployment": {2: ("spec", _DEPLOYMENT)},
    "Eviction": {2: ("deleteOptions", _DELETE)},
    "Job": {2: ("spec", _JOB)},
    "Namespace": {},
    "PodDisruptionBudget": {2: ("spec", _BUDGET)},
    "PriorityClass": {
        2: ("value", "int"),
        3: ("globalDefault", "bool"),
        4: ("description", "text"),
        5: ("preemptionPolicy", "text"),
    },
    "ResourceQuota": {2: ("spec", _QUOTA)},
    "Role": _ROLE,
    "RoleBinding": _ROLE_BINDING,
    "Secret": {2: ("data", {"map": "data"}), 3: ("type", "text"), 4: ("stringData", _MAP)},
    "SelfSubjectAccessReview": {2: ("spec", _ACCESS)},
    "SelfSubjectReview": {},
    "SelfSubjectRulesReview": {2: ("spec", {1: ("namespace", "text")})},
    "Service": {2: ("spec", _SERVICE)},
    "ServiceAccount": {},
}
_TYPE_META: Schema = {1: ("apiVersion", "text"), 2: ("kind", "text")}
_ENVELOPE: Schema = {1: ("typeMeta", _TYPE_META), 2: ("raw", "raw")}


def decode_protobuf(body: bytes) -> Content:
    """Return the JSON of an object that came as protobuf.

    :raises ApiError: 415 for a kind that is not known in this form, 400 for what is no protobuf.
    """
    if not body.startswith(_MAGIC):
        raise bad_request("the body of the request is no Kubernetes protobuf")
    try:
        envelope = _message(body[len(_MAGIC) :], _ENVELOPE)
        identity = envelope.get("typeMeta", {})
        schema = _ROOT.get(identity.get("kind", ""))
        if schema is None:
            raise unsupported_media_type(("application/json", "application/yaml"))
        if identity["kind"] != "DeleteOptions":
            schema = {1: ("metadata", _META), **schema}
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
        if kind is _AMOUNT:
            amount = _message(value, kind)
            return amount.get("strVal", "") if amount.get("type") else amount.get("intVal", 0)
        found = _message(value, kind)
        return found.get("string", "") if kind is _QUANTITY else found
    if kind == "int":
        return value - (1 << 64) if value >> 63 else value
    if kind == "bool":
        return bool(value)
    if kind == "data":
        return base64.b64encode(value).decode()
    return value if kind == "raw" else value.decode()


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of the fields of a message."""
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
