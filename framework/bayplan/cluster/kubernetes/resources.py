"""What is watched, where it is in the API, and how its objects are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from bayplan.api import KINDS, ApiObject, DaemonSet, Deployment, Kind, Node, ObjectMeta, Pod
from bayplan.api.configmap import ConfigMap
from bayplan.api.objects import DecodeError, decode_json

__all__ = ["SNAPSHOT", "WATCHED", "WatchedResource", "is_required", "what_is_used"]

_FIRST = (Node,)
_LAST = (Pod,)
_UNREAD = (DaemonSet, Deployment, ConfigMap)
_POD = KINDS["", "Pod"]
_USES = ("containers", "initContainers", "overhead", "nodeName", "priority", "schedulerName")


def _watched() -> tuple[Kind, ...]:
    kinds = [kind for kind in KINDS.values() if kind.type not in _UNREAD]
    return tuple(
        sorted(kinds, key=lambda kind: (kind.type in _LAST, kind.type not in _FIRST, kind.group))
    )


WATCHED: tuple[Kind, ...] = _watched()
"""The kinds that the scheduler follows: nodes first, pods last, as they are best taken in."""
SNAPSHOT: tuple[Kind, ...] = (*WATCHED, KINDS["apps", "DaemonSet"], KINDS["apps", "Deployment"])
"""What a snapshot holds: also those that make pods on nodes which a simulation adds."""


def is_required(kind: Kind) -> bool:
    """Whether nothing can be scheduled without a kind: what is built into every API server."""
    return kind in WATCHED and (
        kind.group in ("", "apps", "batch", "policy") or kind.name == "PriorityClass"
    )


@dataclass(frozen=True)
class WatchedResource:
    """A kind in one of its versions."""

    kind: Kind
    version: str

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
    def name(self) -> str:
        """How roles and messages name it."""
        return f"{self.kind.plural}.{self.kind.group}" if self.kind.group else self.kind.plural

    def path(self, key: str) -> str:
        """Return an object's path; ``key`` is ``namespace/name``, or ``name``."""
        namespace, _, name = key.rpartition("/")
        if namespace:
            return f"{self.root}/namespaces/{namespace}/{self.kind.plural}/{name}"
        return f"{self.collection}/{name}"

    def read(self, content: bytes | msgspec.Raw) -> ApiObject:
        """Return an object.

        :raises DecodeError: when it is not as its kind should be.
        """
        try:
            return decode_json(self.kind, self.version, bytes(content))
        except RecursionError:
            raise DecodeError("is nested too deeply", "$") from None


def what_is_used(content: bytes) -> Pod | None:
    """Return what a pod that cannot be read uses of its node, None for one without a node.

    A newer API server may have words that this program does not know. Such a pod cannot be
    scheduled, but what it uses must not be given to another one.
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
    assert isinstance(found, Pod), "it is decoded as one"
    return found


class _Used(msgspec.Struct):
    metadata: ObjectMeta
    spec: dict[str, Any]
    status: dict[str, Any] = {}
