"""Statuses, annotations and single fields of objects, and new objects, as requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import msgspec

from bayplan.api import ApiObject
from bayplan.api.conditions import stamped
from bayplan.api.configmap import ConfigMap
from bayplan.api.object_key import object_key
from bayplan.api.objects import only_written
from bayplan.api.times import rfc3339
from bayplan.cluster.kubernetes.pod_writes import Lookup
from bayplan.cluster.kubernetes.resources import WatchedResource
from bayplan.cluster.kubernetes.templates import at_pointer, complete
from bayplan.cluster.kubernetes.transport import JSON_PATCH, MERGE_PATCH, Requests
from bayplan.cluster.protocol import (
    CreateObject,
    DeleteObject,
    PatchAnnotations,
    PatchFields,
    PatchStatus,
    PutConfigMap,
    TemplateSource,
)
from bayplan.errors import AlreadyExists, Conflict, Invalid, NotFound

__all__ = ["StatusWrites"]


class StatusWrites:
    """Writes that do not place pods; every method raises ClusterError on failure.

    :param lookup: returns an object as it was last seen, by type and key, or None.
    :param resource_of: returns where objects of a type are in the API.
    :param is_absent: tells whether a kind was not installed when it was last looked up.
    """

    def __init__(
        self,
        transport: Requests,
        lookup: Lookup,
        resource_of: Callable[[type[ApiObject]], WatchedResource | None],
        is_absent: Callable[[type[ApiObject]], bool],
    ) -> None:
        self._transport = transport
        self._lookup = lookup
        self._resource_of = resource_of
        self._is_absent = is_absent
        self._whole: set[type[ApiObject]] = set()

    async def patch(self, write: PatchStatus, sent: bool) -> None:
        """Write a status, through the status subresource if the kind has one."""
        path = self._where(write.type).path(write.key)
        seen = self._lookup(write.type, write.key)
        status = stamped(write.status, getattr(seen, "status", None), rfc3339(time.time()))
        body = msgspec.json.encode({"status": _all_fields(status, getattr(seen, "status", None))})
        if write.type not in self._whole:
            try:
                await self._transport.request("PATCH", f"{path}/status", body, MERGE_PATCH)
            except NotFound:
                if self._lookup(write.type, write.key) is None:
                    raise
                # The object exists, so its CRD has no status subresource.
                await self._transport.request("PATCH", path, body, MERGE_PATCH)
                self._whole.add(write.type)
            return
        await self._transport.request("PATCH", path, body, MERGE_PATCH)

    async def patch_annotations(self, write: PatchAnnotations, sent: bool) -> None:
        """Set annotations of an object."""
        body = msgspec.json.encode({"metadata": {"annotations": write.annotations}})
        path = self._where(write.type).path(write.key)
        await self._transport.request("PATCH", path, body, MERGE_PATCH)

    async def patch_fields(self, write: PatchFields, sent: bool) -> None:
        """Set single fields of an object, if it is still the same one."""
        path = self._where(write.type).path(write.key)
        if write.subresource:
            path = f"{path}/{write.subresource}"
        same = {"op": "test", "path": "/metadata/uid", "value": write.uid}
        fields = dict(write.fields)
        for pointer, source in write.templates.items():
            where = next((one for one in fields if f"{pointer}/".startswith(f"{one}/")), None)
            if where is not None:
                await self._complete(fields[where], pointer.removeprefix(where), source)
        operations = [_operation(pointer, value) for pointer, value in fields.items()]
        body = msgspec.json.encode([same, *operations])
        try:
            await self._transport.request("PATCH", path, body, JSON_PATCH)
        except Invalid as exc:
            raise Conflict(str(exc)) from None

    async def create(self, write: CreateObject, sent: bool) -> None:
        """Create an object, unless there is one of its name.

        :raises NotFound: for a kind that was not installed when it was last looked up: if it is
            by now, others may have made what is not seen yet.
        """
        resource = self._where(type(write.obj))
        if self._is_absent(type(write.obj)):
            raise NotFound(f"{resource.name}: not installed when it was last looked up")
        version = resource.root.removeprefix("/apis/").removeprefix("/api/")
        content = {"apiVersion": version, "kind": resource.kind.name, **_plain(write.obj)}
        for pointer, value in write.fields.items():
            _add(content, pointer, value)
        for pointer, source in write.templates.items():
            await self._complete(content, pointer, source)
        collection = resource.path(object_key(write.obj)).rpartition("/")[0]
        with suppress(AlreadyExists):
            await self._transport.request("POST", collection, msgspec.json.encode(content))

    async def _complete(self, content: Any, pointer: str, source: TemplateSource) -> None:
        """Give a pod template what its original has beyond the types."""
        template = at_pointer(content, pointer)
        collection, _, name = self._where(source.type).path(source.key).rpartition("/")
        # Watching an object allows to list it, not to get it.
        query = {"fieldSelector": f"metadata.name={name}"}
        body = await self._transport.request("GET", collection, query=query)
        listed = msgspec.json.decode(body).get("items") or ()
        if listed and isinstance(template, dict):
            complete(template, at_pointer(listed[0], source.pointer))

    async def delete(self, write: DeleteObject, sent: bool) -> None:
        """Delete an object, if it is still the same one."""
        path = self._where(write.type).path(write.key)
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if write.uid:
            options["preconditions"] = {"uid": write.uid}
        if write.by_force:
            options["gracePeriodSeconds"] = 0
        with suppress(NotFound):
            await self._transport.request("DELETE", path, msgspec.json.encode(options))

    def _where(self, type_: type[ApiObject]) -> WatchedResource:
        """Return where objects of a type are in the API.

        :raises NotFound: for a kind that the cluster does not serve.
        """
        resource = self._resource_of(type_)
        if resource is not None:
            return resource
        kind = only_written(type_)
        if kind is None:
            raise NotFound(f"the cluster serves no {type_.__name__}")
        return WatchedResource(kind, kind.versions[0])

    async def put_config_map(self, write: PutConfigMap, sent: bool) -> None:
        """Create a ConfigMap, or replace what it holds."""
        content = write.config_map
        namespace, name = content.metadata.namespace, content.metadata.name
        collection = f"/api/v1/namespaces/{namespace}/configmaps"
        plain = msgspec.to_builtins(content)
        body = msgspec.json.encode({"apiVersion": "v1", "kind": "ConfigMap", **plain})
        try:
            await self._transport.request("POST", collection, body)
        except AlreadyExists:
            patch = msgspec.json.encode(_replacing(content))
            await self._transport.request("PATCH", f"{collection}/{name}", patch, JSON_PATCH)


def _add(content: Any, pointer: str, value: Any) -> None:
    """Add a field to an object in its JSON form; what lies above it has to be there."""
    *above, last = pointer.split("/")[1:]
    for name in above:
        content = content[name] if isinstance(content, dict) else content[int(name)]
    content[last] = value


def _operation(pointer: str, value: Any) -> dict[str, Any]:
    """Return an operation of a JSON patch; "add" replaces what is there."""
    if value is None:
        return {"op": "remove", "path": pointer}
    return {"op": "add", "path": pointer, "value": value}


def _replacing(content: ConfigMap) -> list[dict[str, Any]]:
    """Return a JSON patch; unlike a merge patch it leaves no keys of what was there before."""
    meta = content.metadata
    values = {
        "/data": content.data,
        "/metadata/annotations": meta.annotations,
        "/metadata/labels": meta.labels,
        "/metadata/ownerReferences": meta.owner_references,
    }
    return [{"op": "add", "path": path, "value": value} for path, value in values.items()]


def _all_fields(status: msgspec.Struct, before: msgspec.Struct | None) -> dict[str, Any]:
    """Return a status with all fields, so that a merge patch removes those that are unset.

    Maps and objects inside name what they had before, too.
    """
    plain = _plain(status)
    for name, encoded in _names_of(type(status)):
        if encoded not in plain:
            value = msgspec.to_builtins(getattr(status, name))
            plain[encoded] = value if value not in ([], {}) else None
    return _with_removals(plain, _plain(before) if before is not None else {})


@cache
def _names_of(type_: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """Return the names of a struct's fields, in Python and in JSON."""
    return tuple((one.name, one.encode_name) for one in msgspec.structs.fields(type_))


def _plain(status: msgspec.Struct) -> dict[str, Any]:
    return dict(msgspec.to_builtins(status, enc_hook=lambda quantity: quantity.text))


def _with_removals(new: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    """Return a merge patch that leaves nothing of ``old`` that is not in ``new``."""
    patch: dict[str, Any] = {**dict.fromkeys(old), **new}
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(old.get(key), dict):
            patch[key] = _with_removals(value, old[key])
    return patch
