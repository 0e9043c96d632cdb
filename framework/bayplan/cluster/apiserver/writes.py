"""create, update and patch, with the checks of the real API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bayplan.api import ApiObject, Pod, decode_object
from bayplan.api.objects import DecodeError
from bayplan.cluster.apiserver.api_errors import (
    Cause,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid,
    method_not_allowed,
    not_found,
    unsupported_media_type,
)
from bayplan.cluster.apiserver.apply import apply
from bayplan.cluster.apiserver.condition_validation import check_conditions
from bayplan.cluster.apiserver.conversion import core_event
from bayplan.cluster.apiserver.crds import check_definition
from bayplan.cluster.apiserver.defaults import pod_update_defaults
from bayplan.cluster.apiserver.field_validation import FieldValidation
from bayplan.cluster.apiserver.immutable_fields import check_pod_update
from bayplan.cluster.apiserver.metadata import check_metadata
from bayplan.cluster.apiserver.patches import json_patch, merge_patch, strategic_patch
from bayplan.cluster.apiserver.reads import convert_for, find
from bayplan.cluster.apiserver.request_info import RequestInfo
from bayplan.cluster.apiserver.resources import Resource
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.apiserver.watch_cache import StoredObject
from bayplan.cluster.apiserver.workload_defaults import with_defaults
from bayplan.errors import AlreadyExists, InputError

__all__ = ["create", "decode", "patch", "update", "without_nulls"]

Content = dict[str, Any]

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

_SYSTEM = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "resourceVersion",
    "name",
    "namespace",
    "generateName",
)
"""Metadata that clients cannot write."""


# Reading what came ---------------------------------------------------------------------------


def decode(resource: Resource, content: Content) -> ApiObject:
    """Decode stored JSON to a typed object.

    :raises ApiError: 422, when the API server would refuse it.
    """
    name = str(content["metadata"].get("name") or "")
    if resource.plural == "customresourcedefinitions":
        check_definition(content)
    try:
        if resource.known is not None:
            return decode_object(resource.known, content)
        return msgspec.convert(content, resource.type)
    except DecodeError as exc:
        cause = Cause("FieldValueInvalid", exc.message, exc.path.removeprefix("$."))
    except msgspec.ValidationError as exc:
        cause = Cause("FieldValueInvalid", str(exc))
    raise invalid(resource.group, resource.kind, name, [cause])


def _own(info: RequestInfo, body: Any) -> Content:
    """Return a body as an object of the resource, in the storage version.

    :raises ApiError: 400, when it does not fit.
    """
    return _stored(info, _identified(info, body))


def _sent(info: RequestInfo, body: Any) -> Content:
    """Return the object of a create or an update, validated, in the storage version.

    :raises ApiError: 400, when it is another kind, or has unknown fields in strict mode.
    """
    _identified(info, body)
    kind, custom = info.resource.kind, info.resource.custom
    decoded = info.fields.decoded(info.api_version, kind, info.schema, body, custom)
    return _own(info, decoded)


def _identified(info: RequestInfo, body: Any) -> Content:
    """Return a body as an object of the resource, with apiVersion, kind and metadata."""
    resource = info.resource
    if not isinstance(body, dict):
        raise bad_request("the body of the request is no object")
    api_version = body.get("apiVersion") or info.api_version
    kind = body.get("kind") or resource.kind
    if (api_version, kind) != (info.api_version, resource.kind):
        raise bad_request(
            f"the object provided is a {kind} of {api_version}, expected a {resource.kind} of "
            f"{info.api_version}"
        )
    content: Content = without_nulls({"apiVersion": api_version, "kind": kind, **body})
    if not isinstance(content.get("metadata", {}), dict):
        raise bad_request("$.metadata: expected a mapping")
    content.setdefault("metadata", {})
    return content


def _stored(info: RequestInfo, content: Content) -> Content:
    if info.group == "events.k8s.io":
        return core_event(content)
    convert = info.resource.incoming(info.version)
    return convert(content) if convert is not None else content


def without_nulls(value: Any) -> Any:
    """Return JSON without null fields."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


# Creating ------------------------------------------------------------------------------------


def create(cluster: ServedCluster, info: RequestInfo, body: Any) -> StoredObject:
    """Create an object.

    :raises ApiError: when it is refused.
    """
    resource = info.resource
    content = _sent(info, body)
    meta = _new_metadata(info, content["metadata"])
    _check_namespace(cluster, info)
    content = {**content, "metadata": meta}
    check_metadata(resource, content)
    if resource.status and resource.plural != "nodes":
        content.pop("status", None)
    content = with_defaults(resource, content)
    cluster.check_space(content)
    obj = decode(resource, content)
    try:
        with cluster.carrying(content, obj):
            if info.dry_run:
                return cluster.rehearse(obj)
            cluster.create(obj)
    except AlreadyExists:
        raise already_exists(resource.group, resource.plural, obj.metadata.name) from None
    except InputError as exc:
        name = obj.metadata.name
        text = f'{resource.plural} "{name}" is forbidden: {exc.message}'
        raise forbidden(text, resource.group, resource.plural, name) from None
    assert cluster.last is not None
    return cluster.last


def _new_metadata(info: RequestInfo, given: Mapping[str, Any]) -> Content:
    resource = info.resource
    meta = {key: value for key, value in given.items() if key not in _SYSTEM}
    if given.get("resourceVersion"):
        raise bad_request("resourceVersion should not be set on objects to be created")
    named = {k: given[k] for k in ("name", "generateName") if given.get(k)}
    if not named:
        cause = Cause(
            "FieldValueRequired",
            "Required value: name or generateName is required",
            "metadata.name",
        )
        raise invalid(resource.group, resource.kind, "", [cause])
    namespace = given.get("namespace", "")
    if namespace and namespace != info.namespace:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if resource.namespaced:
        named["namespace"] = info.namespace
    return {**named, **meta}


def _check_namespace(cluster: ServedCluster, info: RequestInfo) -> None:
    """Refuse objects in a missing or terminating namespace."""
    if not info.resource.namespaced:
        return
    resource = cluster.resources.named("", "namespaces")
    assert resource is not None
    record = cluster.records(resource).get(info.namespace)
    if record is None:
        raise not_found("", "namespaces", info.namespace)
    if record.obj.metadata.deletion_timestamp is not None:
        text = (
            f"unable to create new content in namespace {info.namespace} because it is being "
            "terminated"
        )
        raise forbidden(f"{info.resource.plural} is forbidden: {text}", "", info.resource.plural)


# Changing ------------------------------------------------------------------------------------


def update(cluster: ServedCluster, info: RequestInfo, body: Any) -> StoredObject:
    """Update an object or its status.

    :raises ApiError: when it is refused.
    """
    current = find(cluster, info)
    content = _sent(info, body)
    name = content["metadata"].get("name", info.name)
    if name != info.name:
        raise bad_request(
            f"the name of the object ({name}) does not match the name on the URL ({info.name})"
        )
    return _replace(cluster, info, current, content)


def patch(
    cluster: ServedCluster, info: RequestInfo, content_type: str, body: Any
) -> tuple[StoredObject, bool]:
    """Patch an object or its status; return it, and whether it was created.

    :raises ApiError: when it is refused.
    """
    resource = info.resource
    accepted: tuple[str, ...] = (JSON_PATCH, MERGE_PATCH, APPLY_PATCH)
    accepted += () if resource.custom else (STRATEGIC_PATCH,)
    if content_type not in accepted:
        raise unsupported_media_type(accepted)
    if content_type == APPLY_PATCH:
        return _apply(cluster, info, body)
    current = find(cluster, info)
    convert = convert_for(info)
    shown = convert(current.content) if convert is not None else current.content
    made = patched(content_type, shown, body)
    if isinstance(made, dict):
        strategic = content_type == STRATEGIC_PATCH
        made = info.fields.patched(info.schema, made, strategic, body)
    return _replace(cluster, info, current, _own(info, made)), False


def patched(content_type: str, shown: Content, body: Any) -> Any:
    """Apply a patch of any type to an object.

    :raises ApiError: 400 or 422, for a patch that cannot be applied.
    """
    try:
        if content_type == JSON_PATCH:
            return json_patch(shown, body)
        if not isinstance(body, dict):
            raise bad_request("error decoding patch: expected an object")
        if content_type == STRATEGIC_PATCH:
            return strategic_patch(shown, body)
        return merge_patch(shown, body)
    except (AttributeError, IndexError, TypeError, ValueError) as exc:
        # The patch has another shape than the object.
        raise bad_request(f"the patch does not fit the object: {exc}") from None


def _apply(cluster: ServedCluster, info: RequestInfo, body: Any) -> tuple[StoredObject, bool]:
    """Carry out a server-side apply, which creates a missing object."""
    resource = info.resource
    manager = info.params.get("fieldManager", "")
    if not manager:
        text = "Required value: is required for apply patch"
        cause = Cause("FieldValueRequired", text, "fieldManager")
        raise invalid("meta.k8s.io", "PatchOptions", "", [cause])
    info.fields.applied(info.name, info.schema, _identified(info, body))
    wanted = _own(info, body)
    meta = {**wanted["metadata"], "name": info.name}
    if resource.namespaced:
        meta["namespace"] = info.namespace
    wanted = {**wanted, "metadata": meta}
    current = cluster.records(resource).get(resource.key(info.namespace, info.name))
    if current is None and info.subresource:
        raise not_found(resource.group, resource.plural, info.name)
    base = current.content if current is not None else {"metadata": {}}
    stamp = cluster.timestamp()
    try:
        merged = apply(base, wanted, manager, stamp, typed_lists=not resource.custom)
    except (AttributeError, IndexError, TypeError, ValueError) as exc:
        raise bad_request(f"the configuration does not fit the object: {exc}") from None
    stored = {
        **info.__dict__,
        "version": resource.storage_version,
        "group": resource.group,
        "fields": FieldValidation(),
    }
    if current is None:
        return create(cluster, RequestInfo(**{**stored, "verb": "create"}), merged), True
    return _replace(cluster, RequestInfo(**stored), current, merged), False


def _replace(
    cluster: ServedCluster, info: RequestInfo, current: StoredObject, content: Content
) -> StoredObject:
    """Store the new state, as far as the request may change it."""
    resource = info.resource
    meta, old = content["metadata"], current.content["metadata"]
    if meta.get("uid") not in (None, "", old["uid"]):
        text = (
            f"Precondition failed: UID in precondition: {meta['uid']}, "
            f"UID in object meta: {old['uid']}"
        )
        raise conflict(resource.group, resource.plural, info.name, text)
    if meta.get("resourceVersion") not in (None, "", "0", old["resourceVersion"]):
        raise conflict(resource.group, resource.plural, info.name)
    content = with_defaults(resource, _merged(info, current.content, content))
    if not info.subresource:
        check_metadata(resource, content)
    if resource.type is Pod and not info.subresource:
        decode(resource, content)
        content = pod_update_defaults(current.content, content)
    if content == current.content:
        return current
    cluster.check_space(content)
    obj = decode(resource, content)
    if info.subresource == "status":
        check_conditions(resource, content)
    if isinstance(obj, Pod) and info.subresource == "":
        check_pod_update(current.content, content)
    if info.dry_run:
        return StoredObject(current.key, obj, content, current.version)
    # Unchanged typed parts must keep their identity.
    with cluster.carrying(content, obj):
        cluster.update(obj)
    assert cluster.last is not None
    return cluster.last


def _merged(info: RequestInfo, current: Content, wanted: Content) -> Content:
    """Return the current state with the parts of the new one that the request may write."""
    resource, sub = info.resource, info.subresource
    if sub not in ("", "status"):
        raise method_not_allowed()
    if sub == "status" and not resource.status:
        raise not_found(resource.group, resource.plural, info.name)
    if sub == "status":
        meta = current["metadata"] if resource.custom else wanted["metadata"]
        content = {**current, "metadata": meta}
        content.pop("status", None)
        if "status" in wanted:
            content["status"] = wanted["status"]
    else:
        content = dict(wanted)
        if resource.status:
            content.pop("status", None)
            if "status" in current:
                content["status"] = current["status"]
    meta = {k: v for k, v in content["metadata"].items() if k not in _SYSTEM}
    kept = {k: v for k, v in current["metadata"].items() if k in _SYSTEM}
    return {**content, "metadata": {**kept, **meta}}
