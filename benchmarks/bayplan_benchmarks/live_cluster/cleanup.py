"""Deletes what a run has created, and waits until it is gone."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec

from bayplan.api import KINDS, Kind
from bayplan.cluster.kubernetes.transport import Transport
from bayplan.errors import ClusterError, NotFound, Transient
from bayplan.naming import listed
from bayplan_benchmarks.live_cluster.objects import LABEL
from bayplan_benchmarks.live_cluster.preflight import Served
from bayplan_benchmarks.live_cluster.requests import at_once, collection, delete, pages

__all__ = ["Cleanup"]

_DRA = "resource.k8s.io"
_PATIENCE = 120.0
"""Seconds without progress after which a deletion is given up."""
_POLL = 0.2
_NAMED = 5


class Cleanup(msgspec.Struct, frozen=True):
    """Deletes the objects of a run."""

    transport: Transport
    run: str
    namespace: str
    served: Served

    async def empty(self) -> list[str]:
        """Delete everything but the namespace; return what could not be deleted, and why."""
        left = await self._delete_all(KINDS["", "Pod"], "v1")
        if groups := self.served.pod_groups:
            left += await self._delete_all(KINDS["scheduling.k8s.io", "PodGroup"], groups)
        if self.served.devices:
            for name in ("ResourceClaim", "ResourceSlice", "DeviceClass"):
                left += await self._delete_all(KINDS[_DRA, name], "v1")
        return left + await self._delete_all(KINDS["", "Node"], "v1")

    async def all(self) -> list[str]:
        """Delete everything; return what could not be deleted, and why."""
        left = await self.empty() + await self._delete_namespace()
        # What was under way when the run was interrupted may have been created meanwhile.
        return left or await self.empty()

    async def _delete_namespace(self) -> list[str]:
        path = f"/api/v1/namespaces/{self.namespace}"
        until = _now() + _PATIENCE
        try:
            await delete(self.transport, path)
            while _now() < until:
                with suppress(Transient):
                    await self.transport.request("GET", path)
                await asyncio.sleep(_POLL)
        except NotFound:
            return []
        except ClusterError as exc:
            return [f"namespace {self.namespace}: {exc}"]
        return [f"namespace {self.namespace}: still terminating after {_PATIENCE:g} s"]

    async def _delete_all(self, kind: Kind, version: str) -> list[str]:
        path = collection(kind, version, self.namespace if kind.namespaced else "")
        query = {} if kind.namespaced else {"labelSelector": f"{LABEL}={self.run}"}
        fewest, until, why = None, _now() + _PATIENCE, "something holds them"
        names: list[str] = []
        while _now() < until:
            try:
                names = [n async for p in pages(self.transport, path, query) for n in p.names]
                if not names:
                    return []
                await at_once(lambda name: delete(self.transport, f"{path}/{name}"), names)
            except Transient as exc:
                why = str(exc)
            except ClusterError as exc:
                return [f"{listed(names, _NAMED) or kind.plural}: {exc}"]
            if fewest is None or len(names) < fewest:
                fewest, until = len(names), _now() + _PATIENCE
            await asyncio.sleep(_POLL)
        return [f"{kind.plural} {listed(names, _NAMED)}: {why}"]


def _now() -> float:
    return asyncio.get_running_loop().time()
