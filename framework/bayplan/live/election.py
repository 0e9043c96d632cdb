"""Leader election by a Lease, as in client-go: one process writes, the others stand by.

Times are measured with a monotonic clock and never compared with those of other machines: a lease
is taken over when this process has not seen it change for its whole duration. The official client
uses the wall clock and has no request timeout.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import random
import time
from collections.abc import Callable
from typing import Any

import msgspec

from bayplan.cluster.kubernetes.transport import Transport
from bayplan.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    InputError,
    NotFound,
)
from bayplan.live.leases import LABELS
from bayplan.profiles.settings import LeaderElection

__all__ = ["Election"]

_log = logging.getLogger("bayplan.election")


class _LeaseSpec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_transitions: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None


class _LeaseMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Lease(msgspec.Struct):
    metadata: _LeaseMeta = msgspec.field(default_factory=_LeaseMeta)
    spec: _LeaseSpec = msgspec.field(default_factory=_LeaseSpec)


class Election:
    """One candidate for a Lease.

    :param identity: this candidate's name, unique among the candidates.
    :param changed: called from the loop with whether this process leads now.
    :param annotations: returns the annotations of the lease, which describe its holder.
    :param clock: returns monotonic seconds; None for the time since boot.
    """

    def __init__(
        self,
        transport: Transport,
        settings: LeaderElection,
        identity: str,
        changed: Callable[[bool], None],
        annotations: Callable[[], dict[str, str]] = dict,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._transport = transport
        self._namespace, self._name = settings.resource_namespace, settings.resource_name
        self._root = f"/apis/coordination.k8s.io/v1/namespaces/{self._namespace}/leases"
        self._path = f"{self._root}/{self._name}"
        self.identity = identity
        self._times = settings
        self._changed = changed
        self._annotations = annotations
        self._seen: tuple[str, float] = ("", 0.0)
        self._now = clock or _since_boot
        self._renewed = 0.0
        self.leading = False
        self.holder = ""
        self.problem = ""

    async def run(self) -> None:
        """Wait for the lease, hold it as long as possible, and return when it is lost."""
        await self._acquire()
        self.leading = True
        _log.info("%s leads now", self.identity)
        self._changed(True)
        try:
            await self._hold()
        finally:
            self.leading = False
            self._changed(False)

    async def _acquire(self) -> None:
        logged = ""
        while True:
            try:
                async with asyncio.timeout(self._times.renew_deadline):
                    if await self._try():
                        return
                self.problem = ""
                if self.holder not in (logged, ""):
                    logged = self.holder
                    _log.info("standing by: %s holds the lease", logged)
            except (ClusterError, InputError, TimeoutError) as exc:
                self._note(exc)
            jitter = random.random()  # noqa: S311 - it keeps no secret
            await asyncio.sleep(self._times.retry_period * (1 + 0.2 * jitter))

    def leads(self) -> bool:
        """Return whether this process holds the lease now, without asking the API server.

        The answer is right even after this process was suspended.
        """
        return self.leading and self._now() - self._renewed < self._times.renew_deadline

    async def _hold(self) -> None:
        while True:
            await asyncio.sleep(self._times.retry_period)
            left = self._renewed + self._times.renew_deadline - self._now()
            try:
                if left <= 0:
                    raise TimeoutError
                async with asyncio.timeout(left):
                    ours = await self._try()
                if not ours:
                    _log.error("%s holds the lease now", self.holder)
                    return
                self.problem = ""
            except (ClusterError, InputError, TimeoutError) as exc:
                self._note(exc)
                if not self.leads():
                    _log.error("the lease was not renewed for %.1f s", self._now() - self._renewed)
                    return

    async def release(self) -> None:
        """Release the lease, so that a standby need not wait until it expires."""
        try:
            lease = await self._read()
            if lease is not None and lease.spec.holder_identity == self.identity:
                # client-go writes an empty holder and a duration of one second.
                await self._write(lease, "", 1)
        except (ClusterError, InputError) as exc:
            _log.warning("the lease was not released: %s", exc)

    async def _try(self) -> bool:
        """Acquire or renew the lease; return whether this process holds it."""
        began = self._now()
        lease = await self._read()
        if lease is None:
            try:
                await self._create()
            except AlreadyExists:
                return False
            self._renewed = began
            return True
        holder = lease.spec.holder_identity or ""
        self.holder = holder
        if lease.metadata.resource_version != self._seen[0]:
            self._seen = (lease.metadata.resource_version, self._now())
        over = self._now() - self._seen[1] > self._times.lease_duration
        if holder not in ("", self.identity) and not over:
            return False
        if holder != self.identity and self.leading:
            return False
        try:
            await self._write(lease, self.identity, round(self._times.lease_duration))
        except Conflict:
            if self.leading:
                # It was changed meanwhile; the next attempt shows whether it is still ours.
                raise
            return False
        self._renewed = began
        return True

    async def _read(self) -> _Lease | None:
        try:
            content = await self._transport.request("GET", self._path)
        except NotFound:
            return None
        try:
            return msgspec.json.decode(content, type=_Lease)
        except msgspec.DecodeError as exc:
            raise ClusterError(f"lease {self._namespace}/{self._name}: {exc}") from None

    async def _create(self) -> None:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": self._name,
                "namespace": self._namespace,
                "labels": dict(LABELS),
                "annotations": self._annotations(),
            },
            "spec": self._spec(
                self.identity,
                round(self._times.lease_duration),
                # Nobody held it before, so it does not change hands.
                _LeaseSpec(holder_identity=self.identity),
            ),
        }
        await self._transport.request("POST", self._root, msgspec.json.encode(body))

    async def _write(self, lease: _Lease, holder: str, seconds: int) -> None:
        body = {
            "metadata": {
                "resourceVersion": lease.metadata.resource_version,
                "labels": dict(LABELS),
                "annotations": self._annotations(),
            },
            "spec": self._spec(holder, seconds, lease.spec),
        }
        await self._transport.request(
            "PATCH",
            self._path,
            msgspec.json.encode(body),
            "application/merge-patch+json",
        )

    def _spec(self, holder: str, seconds: int, before: _LeaseSpec) -> dict[str, Any]:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        same = before.holder_identity == holder
        return {
            "holderIdentity": holder,
            "leaseDurationSeconds": seconds,
            "renewTime": now,
            "acquireTime": before.acquire_time if same and before.acquire_time else now,
            "leaseTransitions": (before.lease_transitions or 0) + (0 if same or not holder else 1),
        }

    def _note(self, exc: Exception) -> None:
        text = str(exc) or "no answer in time"
        if text != self.problem:
            level = logging.ERROR if isinstance(exc, Forbidden | InputError) else logging.WARNING
            _log.log(level, "lease %s/%s: %s", self._namespace, self._name, text)
        self.problem = text


def _since_boot() -> float:
    # Unlike the monotonic clock, it advances while the machine is suspended.
    return time.clock_gettime(time.CLOCK_BOOTTIME)
