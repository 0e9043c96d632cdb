"""Somebody's jobs on a cluster: read with his own rights, in one namespace or in all."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from bayplan.api import KINDS, ApiObject, Job, Kind, Pod
from bayplan.api.objects import decode_json
from bayplan.cluster.kubernetes.credentials import Credentials
from bayplan.cluster.kubernetes.transport import Transport
from bayplan.errors import Forbidden

__all__ = ["read_jobs"]

_PAGE = "500"

Obj = TypeVar("Obj", bound=ApiObject)


class _Meta(msgspec.Struct, rename={"again": "continue"}):
    again: str = ""


class _List(msgspec.Struct):
    items: tuple[msgspec.Raw, ...] | None = ()
    metadata: _Meta = msgspec.field(default_factory=_Meta)


async def read_jobs(
    kubeconfig: Path | None, context: str, namespace: str
) -> tuple[list[Pod], list[Job]]:
    """Return the pods and the Jobs of a namespace; of all for "".

    Who may not list Jobs sees those that have pods.

    :raises BayplanError: when the cluster cannot be reached, or pods may not be listed.
    """
    transport = Transport(Credentials(kubeconfig, context))
    try:
        pods = await _listed(transport, KINDS["", "Pod"], Pod, namespace)
        try:
            jobs = await _listed(transport, KINDS["batch", "Job"], Job, namespace)
        except Forbidden:
            jobs = []
        return pods, jobs
    finally:
        await transport.close()


async def _listed(transport: Transport, kind: Kind, type_: type[Obj], namespace: str) -> list[Obj]:
    """Return all objects of a kind, a page at a time."""
    version = kind.versions[0]
    root = f"/apis/{kind.group}/{version}" if kind.group else f"/api/{version}"
    path = f"{root}/namespaces/{namespace}/{kind.plural}" if namespace else f"{root}/{kind.plural}"
    found: list[Obj] = []
    query = {"limit": _PAGE}
    while True:
        content = await transport.request("GET", path, query=query)
        page = msgspec.json.decode(content, type=_List)
        for one in page.items or ():
            decoded = decode_json(kind, version, bytes(one))
            assert isinstance(decoded, type_), "the path is that of its kind"
            found.append(decoded)
        if not page.metadata.again:
            return found
        query = {"limit": _PAGE, "continue": page.metadata.again}
