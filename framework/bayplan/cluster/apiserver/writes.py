"""create, update and patch, with the checks of the real API server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.api import ApiObject, Pod, decode_object
from bayplan.api.objects import DecodeError
from bayplan.cluster.api_errors import (
    ApiError,
    Cause,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid,
    method_not_allowed,
    not_found,
    precondition_failed,
    unsupported_media_type,
)
from bayplan.cluster.apiserver.admission import (
    admission_problems,
    check_priority,
    check_runtime_class,
)
from bayplan.cluster.apiserver.apply import apply
from bayplan.cluster.apiserver.conversion import core_event
from bayplan.cluster.apiserver.crds import check_definition
from bayplan.cluster.apiserver.defaults import pod_update_defaults
from bayplan.cluster.apiserver.field_validation import FieldValidation
from bayplan.cluster.apiserver.object_identity import (
    check_applied,
    check_applied_kind,
    check_custom_kind,
    check_identity,
    check_namespace,
    check_version,
)
from bayplan.cluster.apiserver.reads import convert_for, find
from bayplan.cluster.apiserver.request_info import RequestInfo
from bayplan.cluster.apiserver.request_options import APPLY_PATCH
from bayplan.cluster.apiserver.resources import Resource
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.apiserver.validation.formats import wrong
from bayplan.cluster.apiserver.validation.rules import problems
from bayplan.cluster.apiserver.validation.typed import merged, typed_causes
from bayplan.cluster.apiserver.watch_cache import StoredObject
from bayplan.cluster.apiserver.workload_defaults import with_defaults
from bayplan.cluster.patches import json_patch, merge_patch, not_a, strategic_patch
from bayplan.errors import AlreadyExists, InputError

__all__ = ["create", "creates", "decode", "patch", "update", "without_nulls"]

Content = dict[str, Any]

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

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
_FIXED = ("uid", "deletionTimestamp", "deletionGracePeriodSeconds")
"""Metadata whose change is refused; the rest of it is ignored."""
_CREATED_BY_UPDATES = ("events", "leases", "services")


# Reading what came ---------------------------------------------------------------------------


def decode(resource: Resource, content: Content, causes: Sequence[Cause] = ()) -> ApiObject:
    """Decode stored JSON to a typed object.

    :param causes: what is wrong with it already.
    :raises ApiError: 422, when the API server would refuse it.
    """
    meta = content["metadata"]
    name = str(meta.get("name") or meta.get("generateName") or "")
    if resource.plural == "customresourcedefinitions":
        check_definition(content)
    typed: list[Cause] = []
    try:
        obj = _decoded(resource, content)
    except DecodeError as exc:
        typed = list(typed_causes(exc, content))
    except msgspec.ValidationError as exc:
        typed = [Cause("FieldValueInvalid", str(exc))]
    found = merged(causes, typed)
    if found:
        raise invalid(resource.group, resource.kind, name, found)
    return obj


def _decoded(resource: Resource, content: Content) -> ApiObject:
    if resource.known is not None:
        return decode_object(resource.known, content)
    return msgspec.convert(content, resource.type)


def _own(info: RequestInfo, body: Any) -> Content:
    """Return a body as an object of the resource, in the storage version.

    :raises ApiError: 400, when it does not fit.
    """
    return _stored(info, _identified(info, body))


def _sent(info: RequestInfo, body: Any) -> Content:
    """Return the object of a create or an update, validated, in the storage version.

    :raises ApiError: 400, when it is another kind, or has unknown fields in strict mode.
    """
    kind, custom = info.resource.kind, info.resource.custom
    if custom and isinstance(body, dict):
        check_custom_kind(info, body)
    _identified(info, body)
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
    if resource.status and resource.plural != "nodes":
        content.pop("status", None)
    content = with_defaults(resource, content)
    cluster.check_space(content)
    check_runtime_class(cluster, content)
    found = problems(resource, content, group=info.group)
    obj = decode(resource, content, [*found, *admission_problems(cluster, info, content)])
    try:
        if isinstance(obj, Pod):
            check_priority(cluster, obj)
        with cluster.carrying(content, obj):
            if info.dry_run:
                return cluster.dry_run(obj)
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
    check_namespace(info, given)
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


def creates(cluster: ServedCluster, info: RequestInfo) -> bool:
    """Return whether an update would create its object: some kinds allow that."""
    resource = info.resource
    if resource.plural not in _CREATED_BY_UPDATES or info.subresource:
        return False
    return resource.key(info.namespace, info.name) not in cluster.records(resource)


def update(cluster: ServedCluster, info: RequestInfo, body: Any) -> tuple[StoredObject, bool]:
    """Update an object or its status; return it, and whether it was created.

    :raises ApiError: when it is refused.
    """
    resource = info.resource
    record = None if creates(cluster, info) else find(cluster, info)
    content = _sent(info, body)
    meta = content["metadata"]
    check_identity(info, meta)
    uid, known = meta.get("uid"), record.content["metadata"]["uid"] if record is not None else ""
    if uid not in (None, "", known):
        raise precondition_failed(resource.plural, info.namespace, info.name, uid, known)
    if record is not None:
        return _replace(cluster, info, record, content), False
    created = {**content, "metadata": {k: v for k, v in meta.items() if k != "resourceVersion"}}
    return create(cluster, replace(info, verb="create", fields=FieldValidation()), created), True


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
    why = ""
    if not isinstance(made, dict):
        why = f"couldn't get version/kind; json parse error: {not_a('struct', made)}"
    elif (made.get("apiVersion"), made.get("kind")) != (info.api_version, resource.kind):
        why = f"unable to find api field {made.get('apiVersion')}, Kind={made.get('kind')}"
    if why:
        raise invalid("", "", "", [wrong("patch", msgspec.json.encode(made).decode(), why)])
    strategic = content_type == STRATEGIC_PATCH
    made = info.fields.patched(info.schema, made, strategic, body, resource.custom)
    content = _own(info, made)
    check_identity(info, content["metadata"])
    return _replace(cluster, info, current, content), False


def patched(content_type: str, shown: Content, body: Any) -> Any:
    """Apply a patch of any type to an object.

    :raises ApiError: 400 or 422, for a patch that cannot be applied.
    """
    try:
        if content_type == JSON_PATCH:
            return json_patch(shown, body)
        if not isinstance(body, dict):
            raise _no_mapping(content_type, body)
        if content_type == STRATEGIC_PATCH:
            return strategic_patch(shown, body)
        return merge_patch(shown, body)
    except (AttributeError, IndexError, TypeError, ValueError) as exc:
        # The patch has another shape than the object.
        raise bad_request(f"the patch does not fit the object: {exc}") from None


def _no_mapping(content_type: str, body: Any) -> ApiError:
    prefix = "" if content_type == STRATEGIC_PATCH else "error decoding patch: "
    why = not_a("map[string]interface {}", body)
    return bad_request(prefix + ("unexpected end of JSON input" if body is None else why))


def _apply(cluster: ServedCluster, info: RequestInfo, body: Any) -> tuple[StoredObject, bool]:
    """Carry out a server-side apply, which creates a missing object."""
    resource = info.resource
    manager = info.params.get("fieldManager", "")
    if not manager:
        text = "Required value: is required for apply patch"
        cause = Cause("FieldValueRequired", text, "fieldManager")
        raise invalid("meta.k8s.io", "PatchOptions", "", [cause])
    if info.subresource:
        find(cluster, info)
    check_applied_kind(info, body)
    info.fields.applied(info.name, info.schema, body)
    check_applied(info, body)
    current = cluster.records(resource).get(resource.key(info.namespace, info.name))
    merged = _applied(cluster, info, current, _own(info, body), manager)
    stored = replace(
        info, version=resource.storage_version, group=resource.group, fields=FieldValidation()
    )
    if current is None:
        return create(cluster, replace(stored, verb="create"), merged), True
    return _replace(cluster, stored, current, merged), False


def _applied(
    cluster: ServedCluster,
    info: RequestInfo,
    current: StoredObject | None,
    wanted: Content,
    manager: str,
) -> Content:
    """Return the object with a configuration applied.

    :raises ApiError: 409 when it is for another object, 400 when it does not fit.
    """
    resource = info.resource
    meta = {**wanted["metadata"], "name": info.name}
    if resource.namespaced:
        meta["namespace"] = info.namespace
    if current is None and meta.get("uid"):
        why = (
            f"uid mismatch: the provided object specified uid {meta['uid']}, and no existing "
            "object was found"
        )
        raise conflict(resource.group, resource.plural, info.name, why)
    base = current.content if current is not None else {"metadata": {}}
    wanted = {**wanted, "metadata": meta}
    try:
        return apply(base, wanted, manager, cluster.timestamp(), typed_lists=not resource.custom)
    except (AttributeError, IndexError, TypeError, ValueError) as exc:
        raise bad_request(f"the configuration does not fit the object: {exc}") from None


def _replace(
    cluster: ServedCluster, info: RequestInfo, current: StoredObject, content: Content
) -> StoredObject:
    """Store the new state, as far as the request may change it."""
    resource = info.resource
    meta, old = content["metadata"], current.content["metadata"]
    check_version(info, str(meta.get("resourceVersion") or ""), old["resourceVersion"])
    status = info.subresource == "status"
    # The status of a custom resource is written whatever its metadata say.
    fixed = [
        wrong(f"metadata.{field}", meta[field], "field is immutable")
        for field in (() if resource.custom and status else _FIXED)
        if meta.get(field) not in (None, "", old.get(field))
    ]
    content = with_defaults(resource, _merged(info, current.content, content))
    if resource.type is Pod and not info.subresource:
        content = pod_update_defaults(current.content, content)
    if content == current.content and not fixed:
        return current
    cluster.check_space(content)
    found = problems(resource, content, current.content, status, info.group)
    obj = decode(resource, content, [*fixed, *found])
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
