"""Definitions of kinds in a cluster: created where there are none, and never changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bayplan.cluster.kubernetes.credentials import Credentials
from bayplan.cluster.kubernetes.transport import JSON, Transport
from bayplan.errors import AlreadyExists, NotFound
from bayplan.schemas.upstream import Definition

__all__ = ["create_absent", "served_versions"]

_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


async def create_absent(
    kubeconfig: Path | None, context: str, definitions: Iterable[Definition], dry_run: bool
) -> Mapping[str, bool]:
    """Create definitions that a cluster lacks; return by name whether each was created.

    :param dry_run: the server checks everything, and keeps nothing.
    :raises BayplanError: when the cluster cannot be reached, or refuses one; those before it stay.
    """
    transport = Transport(Credentials(kubeconfig, context))
    query = {"dryRun": "All"} if dry_run else None
    created = {}
    try:
        for one in definitions:
            body = json.dumps(one.content).encode()
            try:
                await transport.request("POST", _PATH, body, JSON, query)
                created[one.name] = True
            except AlreadyExists:
                created[one.name] = False
    finally:
        await transport.close()
    return created


async def served_versions(
    kubeconfig: Path | None, context: str, names: Iterable[str]
) -> Mapping[str, tuple[str, ...]]:
    """Return the versions that a cluster serves of each of these definitions that it has.

    :raises BayplanError: when the cluster cannot be reached, or they may not be read.
    """
    transport = Transport(Credentials(kubeconfig, context))
    found = {}
    try:
        for name in names:
            try:
                content: Any = json.loads(await transport.request("GET", f"{_PATH}/{name}"))
            except NotFound:
                continue
            versions = content["spec"]["versions"]
            found[name] = tuple(one["name"] for one in versions if one.get("served"))
    finally:
        await transport.close()
    return found
