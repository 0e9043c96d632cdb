"""Whether a body is about the object that a request names: kind, name, namespace, version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayplan.cluster.api_errors import ApiError, bad_request, conflict, invalid
from bayplan.cluster.apiserver.request_info import RequestInfo
from bayplan.cluster.apiserver.resources import Resource
from bayplan.cluster.apiserver.validation.formats import mapping, wrong

__all__ = [
    "check_applied",
    "check_applied_kind",
    "check_custom_kind",
    "check_identity",
    "check_namespace",
    "check_version",
]

Content = dict[str, Any]

_CONDITIONAL = ("leases", "poddisruptionbudgets")
"""Built-in kinds of which an update has to say the version that it replaces."""


def check_custom_kind(info: RequestInfo, body: Content) -> None:
    """Refuse a custom resource without a kind, or with another one.

    :raises ApiError: 400 or 422.
    """
    kind, own = body.get("kind"), info.resource.kind
    if not kind:
        raise bad_request(
            f"the object provided is unrecognized (must be of type {own}): Object 'Kind' is missing"
        )
    if kind != own and body.get("apiVersion") == info.api_version:
        name = str(mapping(body.get("metadata")).get("name") or "")
        raise invalid(info.group, str(kind), name, [wrong("kind", kind, f"must be {own}")])


def check_identity(info: RequestInfo, meta: Mapping[str, Any]) -> None:
    """Refuse an object of another name or namespace than the URL says.

    :raises ApiError: 400.
    """
    name = meta.get("name")
    if not name:
        raise bad_request(
            f"the name of the object ({info.name} based on URL) was undeterminable: name must be "
            "provided"
        )
    if name != info.name:
        raise bad_request(
            f"the name of the object ({name}) does not match the name on the URL ({info.name})"
        )
    check_namespace(info, meta)


def check_namespace(info: RequestInfo, meta: Mapping[str, Any]) -> None:
    """Refuse an object of another namespace than the URL says.

    :raises ApiError: 400.
    """
    if info.resource.namespaced and meta.get("namespace") not in (None, "", info.namespace):
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )


def check_applied_kind(info: RequestInfo, body: Any) -> None:
    """Refuse a configuration of another kind than the URL says.

    :raises ApiError: 400.
    """
    if not isinstance(body, dict):
        raise bad_request("error decoding YAML: the configuration is no object")
    version, kind = str(body.get("apiVersion") or ""), str(body.get("kind") or "")
    if (version, kind) != (info.api_version, info.resource.kind):
        text = version if "/" in version else f"/{version}"
        raise bad_request(f"invalid object type: {text}, Kind={kind}")


def check_applied(info: RequestInfo, body: Content) -> None:
    """Refuse a configuration of another object than the URL says.

    :raises ApiError: 400.
    """
    meta = body.get("metadata")
    meta = meta if isinstance(meta, dict) else {}
    check_identity(info, meta)
    if meta.get("managedFields") is not None:
        raise bad_request("metadata.managedFields must be nil")


def check_version(info: RequestInfo, wanted: str, current: str) -> None:
    """Refuse an update of an older version.

    :raises ApiError: 409 for another version, 422 when the kind needs one, 500 for no number.
    """
    resource = info.resource
    if wanted and not wanted.isdecimal():
        raise ApiError(500, "", f'strconv.ParseUint: parsing "{wanted}": invalid syntax')
    if wanted not in ("", "0", current):
        raise conflict(resource.group, resource.plural, info.name)
    if info.verb == "update" and wanted in ("", "0") and _needs_version(resource):
        cause = wrong("metadata.resourceVersion", 0, "must be specified for an update")
        raise invalid(resource.group, resource.plural, info.name, [cause])


def _needs_version(resource: Resource) -> bool:
    """Return whether an update has to say which version it replaces."""
    return resource.custom or resource.plural in _CONDITIONAL
