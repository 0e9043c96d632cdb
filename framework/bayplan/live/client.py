"""What commands read: a whole cluster, or an explanation from its scheduler."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from bayplan.api import KINDS, ApiObject, Kind
from bayplan.cluster.kubernetes.credentials import Credentials
from bayplan.cluster.kubernetes.kubeconfig import pod_namespace
from bayplan.cluster.kubernetes.object_cache import ObjectCache
from bayplan.cluster.kubernetes.resources import Part, of_snapshots
from bayplan.cluster.kubernetes.transport import APPLY_PATCH, JSON, MERGE_PATCH, Transport
from bayplan.errors import BayplanError, Forbidden, NotFound
from bayplan.live.leases import OTHERS, SchedulerLease, find_leases
from bayplan.live.parts import parts_of
from bayplan.live.pod_token import pod_token
from bayplan.profiles.loading import ProfileSet
from bayplan.profiles.settings import LeaderElection

__all__ = [
    "ClusterView",
    "Question",
    "Reply",
    "annotate_nodes",
    "apply_object",
    "ask_scheduler",
    "create_objects",
    "read_cluster",
    "read_kinds",
    "running_schedulers",
]

_SECONDS = 60.0
_UNWRAPPED = 1_000
_ASK_SECONDS = 30.0
_REACH_SECONDS = 1.0
_PROBE_SECONDS = 10.0
_NONE: Mapping[Kind, Sequence[Part]] = {}
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
"""The name of a pod or of a namespace."""
_CONTROL = re.compile(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]")


class Question(msgspec.Struct, frozen=True):
    """What a page of the scheduler is asked; ``output`` is table or json.

    ``command`` are the arguments of bayplan with which the same is asked elsewhere.
    """

    path: str
    params: Mapping[str, str]
    output: str = "table"
    command: Sequence[str] = ()


class Reply(msgspec.Struct, frozen=True):
    """What a running scheduler answers, None for no answer; ``notes`` say why not, or who does.

    ``leases`` are those of all bayplan's schedulers that were found.
    """

    text: str | None
    notes: Sequence[str] = ()
    leases: Sequence[SchedulerLease] = ()


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
    return await read_kinds(kubeconfig, context, of_snapshots(), parts_of(profiles))


async def read_kinds(
    kubeconfig: Path | None,
    context: str,
    kinds: Iterable[Kind],
    parts: Mapping[Kind, Sequence[Part]] = _NONE,
) -> ClusterView:
    """Read all objects of some kinds, and parts of others.

    :raises BayplanError: when the cluster cannot be reached, or pods or nodes, if they are asked
        for, cannot be read.
    """
    credentials = Credentials(kubeconfig, context)
    await credentials.endpoint()
    transport = Transport(credentials)
    cache = ObjectCache(transport, kinds, parts=parts)
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


async def apply_object(kubeconfig: Path | None, context: str, content: Mapping[str, Any]) -> None:
    """Create an object that bayplan owns, or bring it to what ``content`` says.

    :raises BayplanError: when the cluster cannot be reached, or refuses it.
    """
    path = f"{_collection(content)}/{content['metadata']['name']}"
    transport = Transport(Credentials(kubeconfig, context))
    body = json.dumps(content).encode()
    query = {"fieldManager": "bayplan", "force": "true"}
    try:
        await transport.request("PATCH", path, body, APPLY_PATCH, query)
    finally:
        await transport.close()


def _collection(content: Mapping[str, Any]) -> str:
    """Return the path of the objects of an object's kind in its namespace."""
    group, _, version = content["apiVersion"].rpartition("/")
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    plural = KINDS[group, content["kind"]].plural
    return f"{root}/namespaces/{content['metadata']['namespace']}/{plural}"


async def create_objects(
    kubeconfig: Path | None, context: str, contents: Sequence[Mapping[str, Any]]
) -> None:
    """Create objects, the first of which owns the others: they go with it.

    The server checks all of them before it keeps any.

    :raises BayplanError: when the cluster cannot be reached, or refuses one.
    """
    transport = Transport(Credentials(kubeconfig, context), field_validation="Strict")

    async def create(content: Mapping[str, Any], **query: str) -> Mapping[str, Any]:
        body, path = json.dumps(content).encode(), _collection(content)
        answer = await transport.request(
            "POST", path, body, JSON, {"fieldManager": "bayplan"} | query
        )
        found: Mapping[str, Any] = json.loads(answer)
        return found

    try:
        for content in contents:
            await create(content, dryRun="All")
        owner: Mapping[str, Any] | None = None
        for content in contents:
            if owner is None:
                owner = await create(content)
                continue
            reference = {key: owner[key] for key in ("apiVersion", "kind")}
            reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
            meta = {**content["metadata"], "ownerReferences": [reference]}
            await create({**content, "metadata": meta})
    finally:
        await transport.close()


async def annotate_nodes(
    kubeconfig: Path | None, context: str, nodes: Sequence[str], annotations: Mapping[str, str]
) -> None:
    """Set annotations of nodes.

    :raises BayplanError: when the cluster cannot be reached, or a node cannot be changed.
    """
    transport = Transport(Credentials(kubeconfig, context))
    body = json.dumps({"metadata": {"annotations": dict(annotations)}}).encode()
    try:
        for name in nodes:
            await transport.request("PATCH", f"/api/v1/nodes/{name}", body, MERGE_PATCH)
    finally:
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
    kubeconfig: Path | None, context: str, question: Question, given: LeaderElection | None
) -> Reply:
    """Ask the running schedulers, whose addresses are in their Leases; return the best answer.

    :param given: the Lease whose holder is asked; None for all that bayplan's schedulers hold.
    :raises ClusterError: when the API server fails, or no scheduler knows such a thing.
    :raises InputError: when the credentials cannot be used.
    """
    credentials = Credentials(kubeconfig, context)
    try:
        leases = await _leases(credentials, given)
    except Forbidden as exc:
        return Reply(None, (str(exc),))
    held = [lease for lease in leases if lease.holder]
    if not held:
        return Reply(None, (_nobody(leases, given),), leases)
    unasked: list[str] = []
    unknown: NotFound | None = None
    spare: tuple[SchedulerLease, str] | None = None
    for lease in held:
        token = _own_token(credentials, lease)
        if not token and not lease.on_loopback:
            unasked.append(_asked_elsewhere(lease, question, kubeconfig, context))
            continue
        try:
            answer = await _get(lease, question, token)
        except NotFound as exc:
            unknown = unknown or exc
            continue
        if answer is None:
            unasked.append(_unanswered(lease))
        elif answer.mine:
            return Reply(answer.text, _whose(lease, held), leases)
        else:
            spare = spare or (lease, answer.text)
    if spare is not None and not unasked:
        return Reply(spare[1], _whose(spare[0], held), leases)
    if unknown is not None and not unasked:
        raise unknown
    return Reply(None, tuple(unasked), leases)


async def running_schedulers(
    kubeconfig: Path | None, context: str, given: LeaderElection | None
) -> Sequence[SchedulerLease]:
    """Return the Leases of bayplan's schedulers, none if the credentials do not allow it.

    :raises ClusterError: when the API server fails.
    :raises InputError: when the credentials cannot be used.
    """
    try:
        return await _leases(Credentials(kubeconfig, context), given)
    except Forbidden:
        return ()


async def _leases(
    credentials: Credentials, given: LeaderElection | None
) -> Sequence[SchedulerLease]:
    await credentials.endpoint()
    transport = Transport(credentials)
    try:
        return await find_leases(transport, given, _own_namespace(credentials))
    finally:
        await transport.close()


def _own_namespace(credentials: Credentials) -> str:
    """Return the namespace of the pod that asks, "" outside of a cluster."""
    return pod_namespace() if credentials.of_pod else ""


def _own_token(credentials: Credentials, lease: SchedulerLease) -> str:
    """Return the token with which a pod of bayplan asks a scheduler of its namespace, or "".

    A Lease says where its holder is asked, and by which certificate it is known. Whoever may write
    one could collect tokens with it. So nobody's own token is ever shown: only bayplan's pods have
    one to show, which opens bayplan's pages, and nothing of the API server.
    """
    known = lease.certificate and lease.url.startswith("https://")
    if not known or not lease.namespace or lease.namespace != _own_namespace(credentials):
        return ""
    return pod_token()


def _asked_elsewhere(
    lease: SchedulerLease, question: Question, kubeconfig: Path | None, context: str
) -> str:
    """Say how a scheduler is asked that only pods of bayplan may ask."""
    pod, _, _ = lease.holder.rpartition("_")
    if not lease.url or not all(map(_NAME.fullmatch, (lease.namespace, pod))):
        return _unanswered(lease)
    place = ["--kubeconfig", str(kubeconfig)] if kubeconfig is not None else []
    place += ["--context", context] if context else []
    inside = ["exec", pod, "--", "bayplan", *question.command]
    command = shlex.join(["kubectl", *place, "-n", lease.namespace, *inside])
    return f"only bayplan's own pods may ask the holder of the Lease {lease}: {command}"


def _unanswered(lease: SchedulerLease) -> str:
    where = lease.url or "any address"
    return f"{lease.holder}, which holds the Lease {lease}, cannot be asked at {where}"


def _nobody(leases: Sequence[SchedulerLease], given: LeaderElection | None) -> str:
    if leases:
        names = " or ".join(map(str, leases))
        return f"nobody holds the Lease {names}: no scheduler runs"
    if given is None:
        return "there is no Lease of bayplan: no scheduler of it has ever led here"
    name = f"{given.resource_namespace}/{given.resource_name}"
    return f"there is no Lease {name}: no scheduler has ever led by it"


def _whose(lease: SchedulerLease, held: Sequence[SchedulerLease]) -> tuple[str, ...]:
    """Say who answers where several might."""
    others = ", ".join(str(one) for one in held if one is not lease)
    if not others:
        return ()
    return (f"the holder of the Lease {lease} answers; --config selects another: {others}",)


class _Answer(msgspec.Struct, frozen=True):
    """What a scheduler says; ``mine`` unless it is about a pod of another scheduler."""

    text: str
    mine: bool


async def _get(lease: SchedulerLease, question: Question, token: str) -> _Answer | None:
    url = lease.url
    if not await _listens(url):
        return None
    limit = aiohttp.ClientTimeout(total=_ASK_SECONDS)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _UNWRAPPED
    params = {**question.params, "output": question.output, "width": str(width)}
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        # Checked before anything is sent: it may be a certificate that each pod makes for itself.
        known = aiohttp.Fingerprint(bytes.fromhex(lease.certificate)) if lease.certificate else True
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            session.get(
                f"{url}{question.path}",
                params=params,
                headers=headers,
                ssl=known,
                allow_redirects=False,
            ) as answer,
        ):
            text = await answer.text()
            if answer.status == 404 and text.startswith("there is no "):
                raise NotFound(f"the scheduler at {url} says: {text.strip()}")
            if answer.status != 200 or not _is_an_answer(text, question.output):
                return None
            return _Answer(_CONTROL.sub("", text), OTHERS not in answer.headers)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None


async def _listens(url: str) -> bool:
    """Whether anything listens at an address: a scheduler that is busy does, and answers later."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(_REACH_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    except (OSError, TimeoutError, ValueError):
        return False
    writer.close()
    return True


def _is_an_answer(text: str, output: str) -> bool:
    """Whether it can be what was asked for: something else may listen at the address."""
    if output != "json":
        return True
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
