"""Writes of volumes and their claims, as requests to the API server.

Both writes are guarded by the version of the object just read, so that no concurrent change of
the volume controller or a provisioner is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from bayplan.api import ApiObject, PersistentVolume, PersistentVolumeClaim
from bayplan.api.volumes import (
    BOUND_BY_CONTROLLER,
    SELECTED_NODE,
    is_available,
    is_kept_for,
    reference_to,
)
from bayplan.cluster.kubernetes.resources import WatchedResource
from bayplan.cluster.kubernetes.transport import MERGE_PATCH, Requests
from bayplan.cluster.protocol import BindVolume, SelectNode
from bayplan.errors import Conflict

__all__ = ["VolumeWrites"]

Obj = TypeVar("Obj", PersistentVolume, PersistentVolumeClaim)


class VolumeWrites:
    """Writes of volumes.

    :param resource_of: returns where objects of a type are in the API.
    """

    def __init__(
        self, transport: Requests, resource_of: Callable[[type[ApiObject]], WatchedResource | None]
    ) -> None:
        self._transport = transport
        self._resource_of = resource_of

    async def bind(self, write: BindVolume, sent: bool) -> None:
        """Reserve a volume for a claim; the volume controller completes the binding."""
        claim = await self._claim(write.claim, write.uid)
        volume = await self._read(PersistentVolume, write.volume)
        if claim.spec.volume_name not in ("", write.volume):
            raise Conflict(f"claim {write.claim} is bound to {claim.spec.volume_name} already")
        reference = reference_to(claim)
        kept = is_kept_for(volume, claim)
        if kept and volume.spec.claim_ref == reference:
            return
        if not kept and not is_available(volume):
            raise Conflict(f"PersistentVolume {write.volume} is no longer available")
        annotations = {} if kept else {BOUND_BY_CONTROLLER: "yes"}
        spec = {"claimRef": msgspec.to_builtins(reference)}
        await self._patch(
            volume, write.volume, {"metadata": {"annotations": annotations}, "spec": spec}
        )

    async def select_node(self, write: SelectNode, sent: bool) -> None:
        """Request a volume that the node can use."""
        claim = await self._claim(write.claim, write.uid)
        selected = claim.metadata.annotations.get(SELECTED_NODE, "")
        if selected == write.node:
            return
        if claim.spec.volume_name:
            raise Conflict(f"claim {write.claim} is bound to {claim.spec.volume_name}")
        if selected and write.node:
            raise Conflict(f"claim {write.claim} is to be used on node {selected}")
        body = {"metadata": {"annotations": {SELECTED_NODE: write.node or None}}}
        await self._patch(claim, write.claim, body)

    async def _claim(self, key: str, uid: str) -> PersistentVolumeClaim:
        claim = await self._read(PersistentVolumeClaim, key)
        if uid and claim.metadata.uid != uid:
            raise Conflict(f"claim {key} was recreated meanwhile")
        if claim.metadata.deletion_timestamp is not None:
            raise Conflict(f"claim {key} is being deleted")
        return claim

    async def _read(self, type_: type[Obj], key: str) -> Obj:
        resource = self._resource(type_)
        found = resource.read(await self._transport.request("GET", resource.path(key)))
        assert isinstance(found, type_), "the path is that of the type"
        return found

    async def _patch(
        self, obj: PersistentVolume | PersistentVolumeClaim, key: str, body: dict[str, Any]
    ) -> None:
        meta = {**body["metadata"], "resourceVersion": obj.metadata.resource_version}
        content = msgspec.json.encode({**body, "metadata": meta})
        path = self._resource(type(obj)).path(key)
        await self._transport.request("PATCH", path, content, MERGE_PATCH)

    def _resource(self, type_: type[ApiObject]) -> WatchedResource:
        resource = self._resource_of(type_)
        assert resource is not None, "volumes are watched"
        return resource
