"""What commands read: a whole cluster, or an explanation from its scheduler."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bayplan.api import ApiObject, Kind
from bayplan.cluster.kubernetes.credentials import Credentials
from bayplan.cluster.kubernetes.object_cache import ObjectCache
from bayplan.cluster.kubernetes.resources import SNAPSHOT
from bayplan.cluster.kubernetes.transport import Transport
from bayplan.errors import BayplanError, Forbidden, NotFound
from bayplan.live.config_maps import config_maps
from bayplan.profiles.loading import ProfileSet
from bayplan.profiles.settings import LeaderElection

__all__ = ["ClusterView", "Question", "ask_scheduler", "read_cluster"]

_SECONDS = 60.0
_UNWRAPPED = 1_000
_ASK_SECONDS = 30.0
_PROBE_SECONDS = 10.0


@dataclass(frozen=True)
class Question:
    """What a page of the scheduler is asked; ``output`` is table or json."""

    path: str
    params: Mapping[str, str]
    output: str = "table"


class ClusterView:
    """Everything that a scheduler reads of a cluster, at one point in time.

    ``left_out`` lists what could not be read, and why.
    """

    def __init__(
        self,
        server: str,
        objects: Mapping[Kind, Sequence[ApiObject]],
        left_out: Sequence[str],
    ) -> None:
        self.server = server
        self.objects = objects
        self.left_out = left_out


async def read_cluster(kubeconfig: Path | None, context: str, profiles: ProfileSet) -> ClusterView:
    """Read a cluster once.

    :param profiles: say which ConfigMaps are read.
    :raises BayplanError: when it cannot be reached, or its pods or nodes cannot be read.
    """
    credentials = Credentials(kubeconfig, context)
    await credentials.endpoint()
    transport = Transport(credentials)
    cache = ObjectCache(transport, SNAPSHOT, parts=config_maps(profiles))
    # Problems are reported once, at the end, instead of in the log.
    logging.getLogger("bayplan.cluster").addHandler(logging.NullHandler())
    try:
        # Fail at once when there is no server: a person is waiting.
        await transport.request("GET", "/version", seconds=_PROBE_SECONDS)
        await cache.start()
        await _listed(cache, credentials.source)
        objects = {kind: list(found.values()) for kind, found in cache.objects().items()}
        unreadable = [f"{kind} {key}: {why}" for (kind, key), why in cache.unreadable.items()]
        return ClusterView(transport.url, objects, [*cache.problems(), *unreadable])
    finally:
        await cache.stop()
        await transport.close()


async def _listed(cache: ObjectCache, source: str) -> None:
    """Wait for all lists; skip what the credentials do not allow, except pods and nodes."""
    try:
        async with asyncio.timeout(_SECONDS):
            while not cache.settled_or_refused:
                await asyncio.sleep(0.02)
    except TimeoutError:
        problems = "\n  ".join(cache.problems())
        raise BayplanError(f"{source}: no answer in {_SECONDS:g} s\n  {problems}") from None
    needed = [r for r in cache.reflectors if r.kind.name in ("Pod", "Node") and not r.kind.group]
    refused = [reflector.problem for reflector in needed if not reflector.settled.is_set()]
    if refused:
        raise BayplanError("\n  ".join([f"{source} may not read the cluster:", *refused]))


async def ask_scheduler(
    kubeconfig: Path | None, context: str, question: Question, lease: LeaderElection
) -> tuple[str | None, str]:
    """Return the running scheduler's answer, or None, and why it could not be asked.

    The scheduler's address is in its Lease.

    :raises ClusterError: when the API server fails, or the scheduler knows no such thing.
    :raises InputError: when the credentials cannot be used.
    """
    credentials = Credentials(kubeconfig, context)
    await credentials.endpoint()
    transport = Transport(credentials)
    path = (
        f"/apis/coordination.k8s.io/v1/namespaces/{lease.resource_namespace}"
        f"/leases/{lease.resource_name}"
    )
    name = f"{lease.resource_namespace}/{lease.resource_name}"
    try:
        content: Any = json.loads(await transport.request("GET", path, seconds=_PROBE_SECONDS))
        holder = content.get("spec", {}).get("holderIdentity")
        url = content["metadata"].get("annotations", {}).get("bayplan.dev/url", "")
    except NotFound:
        return None, f"there is no Lease {name}: no scheduler has ever led by it"
    except Forbidden as exc:
        return None, str(exc)
    except (ValueError, KeyError, AttributeError):
        return None, f"the Lease {name} cannot be read"
    finally:
        await transport.close()
    if not holder:
        return None, f"nobody holds the Lease {name}: no scheduler runs"
    answer = await _get(url, question) if url else None
    return (
        answer,
        f"{holder}, which holds the Lease {name}, cannot be asked at {url or 'any address'}",
    )


async def _get(url: str, question: Question) -> str | None:
    limit = aiohttp.ClientTimeout(total=_ASK_SECONDS, connect=3.0)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _UNWRAPPED
    params = {**question.params, "output": question.output, "width": str(width)}
    try:
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            session.get(f"{url}{question.path}", params=params) as answer,
        ):
            text = await answer.text()
            if answer.status == 404 and text.startswith("there is no "):
                raise NotFound(f"the scheduler at {url} says: {text.strip()}")
            return text if answer.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None
