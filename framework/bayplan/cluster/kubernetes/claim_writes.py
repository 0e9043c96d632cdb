"""Writes of resource claims, in the order that Kubernetes' controllers expect.

The finalizer comes first, then allocation and reservedFor in one status update, both guarded by
the claim's resourceVersion (KEP-4381, and kube-scheduler's dynamicresources plugin).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from bayplan.api import ApiObject, Pod, ResourceClaim
from bayplan.api.dra import (
    CONSUMER_LIMIT,
    DELETE_PROTECTION,
    EXTENDED_RESOURCE_CLAIM,
    AllocationResult,
    ConsumerReference,
)
from bayplan.cluster.kubernetes.pod_writes import Lookup, pod_path
from bayplan.cluster.kubernetes.resources import WatchedResource
from bayplan.cluster.kubernetes.transport import MERGE_PATCH, STRATEGIC_PATCH, Requests
from bayplan.cluster.protocol import CreateClaim, ReleaseClaim, ReserveClaim
from bayplan.errors import AlreadyExists, ClusterError, Conflict, NotFound

__all__ = ["ClaimWrites"]

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST_BASE = 57
_ATTEMPTS = 5
"""How often a claim that keeps changing is retried before its pod is."""


class ClaimWrites:
    """Writes of claims; ``sent`` says that an earlier attempt may have been carried out.

    :param lookup: returns an object as it was last seen, by type and key, or None.
    :param resource_of: returns where objects of a type are in the API.
    """

    def __init__(
        self,
        transport: Requests,
        lookup: Lookup,
        resource_of: Callable[[type[ApiObject]], WatchedResource | None],
    ) -> None:
        self._transport = transport
        self._lookup = lookup
        self._resource_of = resource_of

    # Reserving -------------------------------------------------------------------------------

    async def reserve(self, write: ReserveClaim, sent: bool) -> None:
        """Reserve a claim for a pod; allocate the claim first if it has no allocation.

        :raises Conflict: when another allocation won, or the claim was recreated or keeps changing.
        :raises ClusterError: when the claim is reserved for too many pods, or a request fails.
        """
        if write.replaces:
            await self._clear(write)
        claim = self._lookup(ResourceClaim, write.claim)
        if sent or write.replaces or not isinstance(claim, ResourceClaim):
            claim = await self._read(write.claim)
        for attempt in range(_ATTEMPTS):
            try:
                await self._reserve(claim, write)
            except Conflict as exc:
                if attempt == _ATTEMPTS - 1 or isinstance(exc, _Lost):
                    raise
                claim = await self._read(write.claim)
            else:
                return

    async def _clear(self, write: ReserveClaim) -> None:
        """Release a claim that has another allocation than the one to be written."""
        assert write.allocation is not None, "it is replaced by this one"
        claim = await self._read(write.claim)
        known = claim.status.allocation
        if known is not None and not _same_devices(known, write.allocation):
            release = ReleaseClaim(write.claim, write.uid, write.pod_uid, deallocate=True)
            await self.release(release, False)

    async def _reserve(self, claim: ResourceClaim, write: ReserveClaim) -> None:
        if write.uid and claim.metadata.uid != write.uid:
            raise _Lost(f"ResourceClaim {write.claim} was recreated meanwhile")
        if claim.metadata.deletion_timestamp is not None:
            raise _Lost(f"ResourceClaim {write.claim} is being deleted")
        allocation = claim.status.allocation
        status: dict[str, Any] = {}
        if write.allocation is not None and not _same_devices(allocation, write.allocation):
            if allocation is not None:
                raise _Lost(f"claim {write.claim} was allocated elsewhere in the meantime")
            status["allocation"] = _plain(write.allocation)
        elif allocation is None:
            raise _Lost(f"claim {write.claim} lost its allocation in the meantime")
        reserved = claim.status.reserved_for
        if all(reference.uid != write.pod_uid for reference in reserved):
            if len(reserved) >= CONSUMER_LIMIT:
                raise ClusterError(
                    f"claim {write.claim} is reserved for {CONSUMER_LIMIT} pods already, "
                    "which is the limit"
                )
            name = write.pod.partition("/")[2]
            consumer = ConsumerReference("pods", name, write.pod_uid)
            status["reservedFor"] = [_plain(consumer)]
        version = claim.metadata.resource_version
        if DELETE_PROTECTION not in claim.metadata.finalizers:
            finalizers = [*claim.metadata.finalizers, DELETE_PROTECTION]
            version = await self._patch(
                write.claim, claim.metadata.uid, version, {"metadata": {"finalizers": finalizers}}
            )
        if status:
            body = {"status": status}
            await self._patch(write.claim, claim.metadata.uid, version, body, "/status")

    async def _patch(
        self, key: str, uid: str, version: str, body: dict[str, Any], sub: str = ""
    ) -> str:
        """Patch a claim at a resource version; return its new version."""
        meta = {**body.get("metadata", {}), "uid": uid, "resourceVersion": version}
        content = await self._transport.request(
            "PATCH",
            self._path(key) + sub,
            msgspec.json.encode({**body, "metadata": meta}),
            STRATEGIC_PATCH if sub else MERGE_PATCH,
        )
        return msgspec.json.decode(content, type=_Answer).metadata.resource_version

    # Releasing -------------------------------------------------------------------------------

    async def release(self, write: ReleaseClaim, sent: bool) -> None:
        """Remove a pod from a claim's reservedFor; deallocate the claim when no pod is left.

        :raises Conflict: when the claim was recreated, or keeps changing.
        :raises ClusterError: when a request fails.
        """
        for attempt in range(_ATTEMPTS):
            claim = await self._read(write.claim)
            if write.uid and claim.metadata.uid != write.uid:
                raise Conflict(f"ResourceClaim {write.claim} was recreated meanwhile")
            left = [r for r in claim.status.reserved_for if r.uid != write.pod_uid]
            if write.deallocate and not left:
                status: dict[str, Any] = {"allocation": None, "devices": None, "reservedFor": None}
            elif len(left) < len(claim.status.reserved_for):
                status = {"reservedFor": [_plain(reference) for reference in left] or None}
            else:
                return
            meta = {"uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version}
            try:
                await self._transport.request(
                    "PATCH",
                    f"{self._path(write.claim)}/status",
                    msgspec.json.encode({"metadata": meta, "status": status}),
                    MERGE_PATCH,
                )
            except Conflict:
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    # Creating --------------------------------------------------------------------------------

    async def create(self, write: CreateClaim, sent: bool) -> None:
        """Create and allocate the claim of a pod's extended resources; name it in the pod.

        :raises NotFound: when the pod is gone.
        :raises ClusterError: when a request fails.
        """
        namespace, _, name = write.pod.partition("/")
        pod = self._lookup(Pod, write.pod)
        if not isinstance(pod, Pod) or pod.metadata.uid != write.pod_uid:
            raise NotFound(f"Pod {write.pod} does not exist")
        base = f"{name}-extended-resources-"
        base = base if len(base) <= _LONGEST_BASE else f"{base[: _LONGEST_BASE - 1]}-"
        # The suffix depends only on the pod, so that a retry finds the claim of the first attempt.
        letters = "".join(random.Random(write.pod_uid).choices(_LETTERS, k=5))  # noqa: S311 - a name
        claim = f"{namespace}/{base}{letters}"
        owner = {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": name,
            "uid": write.pod_uid,
            "controller": True,
        }
        body = {
            "apiVersion": f"resource.k8s.io/{self._resource().version}",
            "kind": "ResourceClaim",
            "metadata": {
                "name": f"{base}{letters}",
                "namespace": namespace,
                "annotations": {EXTENDED_RESOURCE_CLAIM: "true"},
                "ownerReferences": [owner],
                "finalizers": [DELETE_PROTECTION],
            },
            "spec": _plain(write.claim.spec),
        }
        path = self._path(claim).rpartition("/")[0]
        try:
            await self._transport.request("POST", path, msgspec.json.encode(body))
        except AlreadyExists:
            found = await self._read(claim)
            if all(r.uid != write.pod_uid for r in found.metadata.owner_references):
                raise
        uid = (await self._read(claim)).metadata.uid
        await self.reserve(
            ReserveClaim(claim, uid, write.pod, write.pod_uid, write.allocation), True
        )
        await self._name_in_pod(write, claim.partition("/")[2])

    async def _name_in_pod(self, write: CreateClaim, claim: str) -> None:
        status = {
            "extendedResourceClaimStatus": {
                "resourceClaimName": claim,
                "requestMappings": [_plain(mapping) for mapping in write.mappings],
            }
        }
        await self._transport.request(
            "PATCH",
            f"{pod_path(write.pod)}/status",
            msgspec.json.encode({"metadata": {"uid": write.pod_uid}, "status": status}),
            STRATEGIC_PATCH,
        )

    # Reading ---------------------------------------------------------------------------------

    async def _read(self, key: str) -> ResourceClaim:
        content = await self._transport.request("GET", self._path(key))
        claim = self._resource().read(content)
        assert isinstance(claim, ResourceClaim), "the path is a claim's"
        return claim

    def _resource(self) -> WatchedResource:
        resource = self._resource_of(ResourceClaim)
        assert resource is not None, "claims are watched"
        return resource

    def _path(self, key: str) -> str:
        return self._resource().path(key)


def _same_devices(known: AllocationResult | None, wanted: AllocationResult) -> bool:
    return known is not None and known.devices.results == wanted.devices.results


class _Lost(Conflict):
    """A conflict that a retry cannot resolve."""


class _AnswerMeta(msgspec.Struct, rename="camel", frozen=True):
    resource_version: str = ""


class _Answer(msgspec.Struct):
    metadata: _AnswerMeta = _AnswerMeta()


def _plain(part: msgspec.Struct | AllocationResult) -> Any:
    return msgspec.to_builtins(part, enc_hook=lambda quantity: quantity.text)
