"""What a cluster has, and whether the credentials allow a run, before anything is created."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from bayplan.api import KINDS
from bayplan.cluster.kubernetes.transport import Transport
from bayplan.errors import InputError
from bayplan_benchmarks.live_cluster.requests import at_once, served_version

__all__ = ["Served", "check_rights", "look_at"]

_PROBE_SECONDS = 10.0
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_DRA = "resource.k8s.io"
_OWN = ("create", "delete", "list")


class Served(msgspec.Struct, frozen=True):
    """What a server has.

    :param pod_groups: the version of Kubernetes' PodGroups, "" for none.
    :param devices: whether it has resource.k8s.io/v1.
    """

    pod_groups: str
    devices: bool


class _Right(msgspec.Struct, frozen=True):
    verb: str
    group: str
    resource: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{'.' if self.group else ''}{self.group}"


class _Status(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Status


async def look_at(transport: Transport) -> Served:
    """Return what a server has.

    :raises ClusterError: when it does not answer, or may not be asked.
    """
    await transport.request("GET", "/version", seconds=_PROBE_SECONDS)
    return Served(
        await served_version(transport, KINDS["scheduling.k8s.io", "PodGroup"]),
        await served_version(transport, KINDS[_DRA, "ResourceSlice"]) == "v1",
    )


async def check_rights(transport: Transport, source: str, served: Served) -> None:
    """Check that a run may create and delete what it needs.

    :param source: where the credentials come from.
    :raises InputError: naming the rights that are missing.
    """
    missing: list[_Right] = []

    async def ask(right: _Right) -> None:
        attributes = {"verb": right.verb, "group": right.group}
        attributes["resource"], _, attributes["subresource"] = right.resource.partition("/")
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = await transport.request("POST", _REVIEWS, msgspec.json.encode(body))
        if not msgspec.json.decode(answer, type=_Review).status.allowed:
            missing.append(right)

    await at_once(ask, _rights(served))
    if missing:
        raise InputError(f"may not {', '.join(sorted(map(str, missing)))}", source)


def _rights(served: Served) -> Iterator[_Right]:
    """Yield what is asked for; the scheduler itself says what it may not read."""
    yield _Right("create", "", "pods/binding")
    yield _Right("watch", "", "pods")
    yield _Right("get", "", "namespaces")
    yield _Right("create", "", "serviceaccounts")
    owned = [("", "namespaces"), ("", "nodes"), ("", "pods")]
    if served.pod_groups:
        owned.append(("scheduling.k8s.io", "podgroups"))
    if served.devices:
        yield _Right("create", _DRA, "resourceclaimtemplates")
        yield _Right("delete", _DRA, "resourceclaims")
        owned += [(_DRA, "resourceslices"), (_DRA, "deviceclasses")]
    for group, resource in owned:
        yield from (_Right(verb, group, resource) for verb in _OWN)
