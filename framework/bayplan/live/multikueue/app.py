"""``bayplan multikueue`` on a cluster: its parts, put together, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec

from bayplan.api import KINDS, Kind
from bayplan.cluster.kubernetes.credentials import Credentials
from bayplan.cluster.kubernetes.object_cache import ObjectCache
from bayplan.cluster.kubernetes.resources import Part
from bayplan.cluster.kubernetes.transport import Transport
from bayplan.dialects.kueue import MANAGER_LEASE
from bayplan.dialects.queued_jobs import queued_kinds
from bayplan.errors import BayplanError, ClusterError
from bayplan.inputs.sockets import allow_many_connections
from bayplan.kinds import KINDS_OF_WORKLOADS
from bayplan.live.election import Election
from bayplan.live.multikueue.controller import Controller, Settings
from bayplan.live.multikueue.workers import Workers
from bayplan.profiles.loading import ProfileSet

__all__ = ["Options", "run"]

_log = logging.getLogger("bayplan.multikueue")
_PAUSE_SECONDS = 0.1
"""Between two steps at least, and as long as a step takes: what comes together is read together."""
_LONGEST_PAUSE = 2.0
_LEASE = "bayplan-multikueue"
_KUEUE = "kueue.x-k8s.io"
_OF_KUEUE = (
    "Workload",
    "AdmissionCheck",
    "MultiKueueConfig",
    "MultiKueueCluster",
    "ClusterQueue",
    "LocalQueue",
)


class Options(msgspec.Struct, frozen=True):
    """What ``bayplan multikueue`` was asked for.

    :param profiles: those of the schedulers of the other clusters.
    :param namespace: where the Secrets with kubeconfigs are.
    """

    profiles: ProfileSet
    kubeconfig: Path | None
    context: str
    namespace: str
    leader_elect: bool
    settings: Settings


def _kinds() -> list[Kind]:
    """Return the kinds that are followed in the manager."""
    jobs = [
        kind
        for kind in KINDS.values()
        if kind.type in queued_kinds() and KINDS_OF_WORKLOADS[kind.group, kind.name].managed_by
    ]
    return [*(KINDS[_KUEUE, name] for name in _OF_KUEUE), *jobs]


async def run(options: Options) -> int:
    """Run until a signal ends it; return the exit status, 1 if the Lease was lost.

    :raises BayplanError: when the manager cannot be reached at the start.
    """
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    allow_many_connections(loop)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    credentials = Credentials(options.kubeconfig, options.context)
    await credentials.endpoint()
    transport = Transport(credentials)
    lost: list[bool] = []

    def changed(leads: bool) -> None:
        if not leads and not ended.is_set():
            lost.append(True)
            ended.set()

    election = _election(options, transport, changed)
    tasks = [asyncio.create_task(election.run())] if election is not None else []
    try:
        await _control(options, transport, election, ended)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if election is not None and not lost:
            with contextlib.suppress(BayplanError):
                await election.release()
        await transport.close()
    return 1 if lost else 0


def _election(
    options: Options, transport: Transport, changed: Callable[[bool], None]
) -> Election | None:
    settings = options.profiles.leader_election
    if not options.leader_elect:
        return None
    own = settings.model_copy(update={"resource_name": _LEASE})
    identity = f"{socket.gethostname()}_{uuid.uuid4()}"
    return Election(transport, own, identity, changed)


async def _control(
    options: Options, transport: Transport, election: Election | None, ended: asyncio.Event
) -> None:
    """Follow the manager, and take step after step while this process leads."""
    lease = {KINDS["coordination.k8s.io", "Lease"]: (Part(name=MANAGER_LEASE),)}
    seen = ObjectCache(transport, _kinds(), parts=lease)
    workers = Workers(transport, options.namespace, options.profiles)
    controller = Controller(transport, seen, workers, options.profiles, options.settings)
    await seen.start()
    said = ""
    loop = asyncio.get_running_loop()
    try:
        while not ended.is_set():
            began = loop.time()
            seen.changed.clear()
            workers.changed.clear()
            if seen.settled_or_refused and (election is None or election.leads()):
                try:
                    await controller.step()
                    said = ""
                except ClusterError as exc:
                    if said != str(exc):
                        said = str(exc)
                        _log.warning("%s; retrying", exc)
            pause = max(_PAUSE_SECONDS, loop.time() - began)
            if not await _any(pause, ended):
                await _any(_LONGEST_PAUSE, ended, seen.changed, workers.changed)
    finally:
        await workers.close()
        await seen.stop()


async def _any(seconds: float, *events: asyncio.Event) -> bool:
    """Wait until something happens; return whether it did in time."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    done, late = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    return bool(done)
