"""Request bodies that are not stored objects: Binding, Eviction, DeleteOptions, Scale."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from bayplan.api.meta import ApiStruct
from bayplan.cluster.api_errors import bad_request

__all__ = [
    "BindingBody",
    "BodyMetadata",
    "DeleteOptions",
    "EvictionBody",
    "Preconditions",
    "ScaleBody",
    "read_body",
]

Body = TypeVar("Body")


class BodyMetadata(ApiStruct, frozen=True):
    """The metadata of these bodies."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class BindingTarget(ApiStruct, frozen=True):
    """The node of a binding."""

    kind: str = "Node"
    name: str = ""


class BindingBody(ApiStruct, frozen=True):
    """v1 Binding."""

    kind: str = "Binding"
    metadata: BodyMetadata = BodyMetadata()
    target: BindingTarget = BindingTarget()


class Preconditions(ApiStruct, frozen=True):
    """Preconditions of a deletion."""

    uid: str | None = None
    resource_version: str | None = None


class DeleteOptions(ApiStruct, frozen=True):
    """meta/v1 DeleteOptions."""

    grace_period_seconds: int | None = None
    preconditions: Preconditions | None = None
    propagation_policy: str | None = None
    orphan_dependents: bool | None = None
    dry_run: list[str] | None = None


class EvictionBody(ApiStruct, frozen=True):
    """policy/v1 Eviction."""

    metadata: BodyMetadata = BodyMetadata()
    delete_options: DeleteOptions | None = None


class ScaleBodySpec(ApiStruct, frozen=True):
    """The spec of a Scale."""

    replicas: int = 0


class ScaleBody(ApiStruct, frozen=True):
    """autoscaling/v1 Scale."""

    metadata: BodyMetadata = BodyMetadata()
    spec: ScaleBodySpec = ScaleBodySpec()


def read_body(type_: type[Body], body: Any) -> Body:
    """Convert a body to its type; missing and null fields mean the defaults.

    :raises ApiError: 400, when it does not fit.
    """
    try:
        return msgspec.convert(_present(body or {}), type_)
    except msgspec.ValidationError as exc:
        raise bad_request(f"expected a {type_.__name__.removesuffix('Body')}: {exc}") from None


def _present(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _present(item) for key, item in value.items() if item is not None}
    return value
