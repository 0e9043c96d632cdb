"""The watched kinds, their paths in the API, and the decoding of their objects."""

from __future__ import annotations

from typing import Any

import msgspec

from bayplan.api import (
    KINDS,
    ApiObject,
    ClusterColocationProfile,
    DaemonSet,
    Deployment,
    Kind,
    Node,
    ObjectMeta,
    Pod,
    VolcanoCommand,
)
from bayplan.api.configmap import ConfigMap
from bayplan.api.kueue import MultiKueueCluster, MultiKueueConfig
from bayplan.api.lease import Lease
from bayplan.api.objects import DecodeError, decode_json

__all__ = [
    "Part",
    "WatchedResource",
    "is_required",
    "of_snapshots",
    "watched",
    "what_is_used",
]

_FIRST = (Node,)
_LAST = (Pod,)
_UNREAD = (
    *(DaemonSet, Deployment, ConfigMap, Lease, VolcanoCommand),
    *(MultiKueueCluster, MultiKueueConfig, ClusterColocationProfile),
)
_POD = KINDS["", "Pod"]
_USES = ("containers", "initContainers", "overhead", "nodeName", "priority", "schedulerName")


def watched() -> tuple[Kind, ...]:
    """Return the kinds that the scheduler watches, in the best order to handle: pods last."""
    kinds = [kind for kind in KINDS.values() if kind.type not in _UNREAD]
    return tuple(
        sorted(kinds, key=lambda kind: (kind.type in _LAST, kind.type not in _FIRST, kind.group))
    )


def comes_last(kind: Kind) -> bool:
    """Return whether objects of a kind are handled best once those of the others are known."""
    return kind.type in _LAST


def of_snapshots() -> tuple[Kind, ...]:
    """Return the kinds of a snapshot: also those that create pods in simulations."""
    return (*watched(), KINDS["apps", "DaemonSet"], KINDS["apps", "Deployment"])


def is_required(kind: Kind) -> bool:
    """Return whether scheduling needs a kind: those built into every API server."""
    return kind.type not in _UNREAD and (
        kind.group in ("", "apps", "batch", "policy") or kind.name == "PriorityClass"
    )


class Part(msgspec.Struct, frozen=True):
    """Those objects of a kind that are watched: of a namespace, with labels, of a name; "" for all.

    A right to one name is enough to watch that object.
    """

    namespace: str = ""
    selector: str = ""
    name: str = ""


class WatchedResource(msgspec.Struct, frozen=True):
    """A kind in one of its versions, or a part of it."""

    kind: Kind
    version: str
    part: Part = Part()

    @property
    def root(self) -> str:
        """The path of the group and version."""
        group = self.kind.group
        return f"/apis/{group}/{self.version}" if group else f"/api/{self.version}"

    @property
    def collection(self) -> str:
        """The path of all objects, of all namespaces."""
        return f"{self.root}/{self.kind.plural}"

    @property
    def watched(self) -> str:
        """The path of the objects that are watched."""
        if self.part.namespace:
            return f"{self.root}/namespaces/{self.part.namespace}/{self.kind.plural}"
        return self.collection

    @property
    def query(self) -> dict[str, str]:
        """What a list or a watch of them asks for."""
        found = {"labelSelector": self.part.selector} if self.part.selector else {}
        if self.part.name:
            found["fieldSelector"] = f"metadata.name={self.part.name}"
        return found

    @property
    def name(self) -> str:
        """The name in roles and messages, such as ``jobs.batch``."""
        return f"{self.kind.plural}.{self.kind.group}" if self.kind.group else self.kind.plural

    def path(self, key: str) -> str:
        """Return an object's path; ``key`` is ``namespace/name``, or ``name``."""
        namespace, _, name = key.rpartition("/")
        if namespace:
            return f"{self.root}/namespaces/{namespace}/{self.kind.plural}/{name}"
        return f"{self.collection}/{name}"

    def read(self, content: bytes | msgspec.Raw) -> ApiObject:
        """Decode an object.

        :raises DecodeError: when it does not fit its kind.
        """
        try:
            return decode_json(self.kind, self.version, bytes(content))
        except RecursionError:
            raise DecodeError("is nested too deeply", "$") from None


def what_is_used(content: bytes) -> Pod | None:
    """Return a reduced pod with the resources that an undecodable pod uses, None without a node.

    A newer API server may send values that this program does not know. Such a pod cannot be
    scheduled, but its resources must not be given to another one.
    """
    try:
        pod = msgspec.json.decode(content, type=_Used)
    except msgspec.DecodeError:
        return None
    if not pod.spec.get("nodeName"):
        return None
    kept = {name: pod.spec[name] for name in _USES if name in pod.spec}
    plain = {"metadata": pod.metadata, "spec": kept, "status": {"phase": pod.status.get("phase")}}
    try:
        found = decode_json(_POD, "v1", msgspec.json.encode(plain))
    except DecodeError:
        return None
    assert isinstance(found, Pod), "decoded as a pod"
    return found


class _Used(msgspec.Struct):
    metadata: ObjectMeta
    spec: dict[str, Any]
    status: dict[str, Any] = {}
