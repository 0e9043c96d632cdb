"""The Leases of bayplan's schedulers: who leads, for which pods, and where it can be asked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from bayplan.cluster.kubernetes.transport import Transport
from bayplan.errors import ClusterError, Forbidden, NotFound
from bayplan.inputs.sockets import is_loopback
from bayplan.profiles.settings import LeaderElection

__all__ = ["LABELS", "OTHERS", "SchedulerLease", "annotations_of", "find_leases"]

LABELS: Mapping[str, str] = {"app.kubernetes.io/part-of": "bayplan"}
"""By these, Leases are found in any namespace."""
OTHERS = "Bayplan-Other-Scheduler"
"""The header of a scheduler's answer about a pod that another scheduler places."""

_URL = "bayplan.dev/url"
_CERTIFICATE = "bayplan.dev/certificate-sha256"
_SCHEDULERS = "bayplan.dev/scheduler-names"
_GROUP = "/apis/coordination.k8s.io/v1"
_DEPLOYED = ("bayplan", "bayplan-pools")
"""The names of the Leases of ``configs/deploy``, all of them in one namespace."""
_USUAL = ("bayplan-system", "kube-system")
"""The namespace of ``configs/deploy``, and that of a Lease if the profile names none."""
_ADDRESS = re.compile(r"https?://(\[[0-9a-f:.]+\]|[0-9a-z.-]+):[0-9]{1,5}", re.IGNORECASE)
_SECONDS = 10.0


class SchedulerLease(msgspec.Struct, frozen=True):
    """A Lease that a bayplan scheduler holds or held.

    ``holder`` is "" when nobody holds it. ``scheduler_names`` are those whose pods it binds.
    ``renewed`` is a time in RFC 3339. ``certificate`` is the SHA-256 of the certificate that the
    URL serves, in hexadecimal digits; "" for plain HTTP, and in Leases of older versions.
    """

    namespace: str
    name: str
    holder: str
    url: str
    scheduler_names: tuple[str, ...]
    renewed: str
    certificate: str = ""

    @property
    def on_loopback(self) -> bool:
        """Whether the URL is one of this machine, where a scheduler asks nobody for a token."""
        return bool(self.url) and is_loopback(urlsplit(self.url).hostname or "")

    def __str__(self) -> str:
        """Return ``namespace/name``."""
        return f"{self.namespace}/{self.name}"


def annotations_of(
    url: str, scheduler_names: Iterable[str], certificate: str = ""
) -> dict[str, str]:
    """Return the annotations that say where the holder of a Lease is asked, and what it binds."""
    return {_URL: url, _SCHEDULERS: ",".join(scheduler_names), _CERTIFICATE: certificate}


async def find_leases(
    transport: Transport, given: LeaderElection | None, own: str = ""
) -> list[SchedulerLease]:
    """Return the Leases of bayplan's schedulers, the best to ask first.

    Those that are held come first, then those whose holder binds pods, then those of ``own`` and of
    the usual namespaces, in which tenants write no Leases, then the latest.

    :param given: the only Lease that matters; None for all that there are.
    :param own: this pod's namespace, "" for none.
    :raises ClusterError: when the API server fails or does not allow it.
    """
    if given is not None:
        found = await _named(transport, given)
        return [found] if found is not None else []
    try:
        query = {"labelSelector": ",".join(f"{key}={value}" for key, value in LABELS.items())}
        content = await transport.request("GET", f"{_GROUP}/leases", query=query, seconds=_SECONDS)
        leases = [_read(one) for one in _items(_decoded(content, f"{_GROUP}/leases"))]
    except Forbidden:
        leases = await _allowed(transport, own)
    leases.sort(key=lambda lease: lease.renewed, reverse=True)
    best = {name: place for place, name in enumerate(_places(own))}

    def order(lease: SchedulerLease) -> tuple[bool, bool, int]:
        return not lease.holder, not lease.scheduler_names, best.get(lease.namespace, len(best))

    return sorted(leases, key=order)


def _places(own: str) -> list[str]:
    """Return the namespaces in which Leases are trusted first, the best one first."""
    return list(dict.fromkeys(filter(None, (own, *_USUAL))))


async def _allowed(transport: Transport, own: str) -> list[SchedulerLease]:
    """Return those of the usual Leases that may be read.

    :raises Forbidden: when none may.
    """
    places = [
        LeaderElection(resource_namespace=namespace, resource_name=name)
        for namespace in _places(own)
        for name in _DEPLOYED
    ]
    found: list[SchedulerLease] = []
    refused: list[Forbidden] = []
    for place in places:
        try:
            lease = await _named(transport, place)
        except Forbidden as exc:
            refused.append(exc)
            continue
        if lease is not None:
            found.append(lease)
    if len(refused) == len(places):
        raise refused[0]
    return found


async def _named(transport: Transport, lease: LeaderElection) -> SchedulerLease | None:
    path = f"{_GROUP}/namespaces/{lease.resource_namespace}/leases/{lease.resource_name}"
    try:
        content = await transport.request("GET", path, seconds=_SECONDS)
    except NotFound:
        return None
    return _read(_decoded(content, path))


def _decoded(content: bytes, path: str) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        raise ClusterError(f"{path}: the API server's answer is no JSON") from None


def _items(content: Any) -> list[Any]:
    items = content.get("items") if isinstance(content, dict) else None
    return items if isinstance(items, list) else []


def _read(content: Any) -> SchedulerLease:
    """Read a Lease; what somebody else wrote into it counts as nothing."""
    meta, spec = _mapping(content, "metadata"), _mapping(content, "spec")
    annotations = _mapping(meta, "annotations")
    names = _text(annotations, _SCHEDULERS).split(",")
    return SchedulerLease(
        _text(meta, "namespace"),
        _text(meta, "name"),
        _text(spec, "holderIdentity"),
        _address(annotations),
        tuple(name for name in names if name),
        _text(spec, "renewTime"),
        _text(annotations, _CERTIFICATE),
    )


def _mapping(content: Any, name: str) -> Mapping[str, Any]:
    found = content.get(name) if isinstance(content, dict) else None
    return found if isinstance(found, dict) else {}


def _address(annotations: Mapping[str, Any]) -> str:
    """Return the URL of a Lease if it says where to ask, and nothing about what."""
    found = _text(annotations, _URL)
    return found if _ADDRESS.fullmatch(found) else ""


def _text(content: Mapping[str, Any], name: str) -> str:
    """Return a text; one that would move the cursor of a terminal counts as none."""
    found = content.get(name)
    return found if isinstance(found, str) and found.isprintable() else ""
