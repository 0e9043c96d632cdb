"""The parts that all objects share: metadata, owners, label selectors."""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

__all__ = [
    "ApiStruct",
    "Condition",
    "LabelSelector",
    "ObjectMeta",
    "OwnerReference",
    "SelectorRequirement",
    "explicit",
]

T = TypeVar("T")


class ApiStruct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """The base of every API struct: immutable, camelCase on the wire.

    A field with its default is not written, so the default has to be the zero of the field's JSON
    type, which is what an API server reads instead; any other default is :func:`explicit`.
    Objects are trees without cycles, so the garbage collector need not track them.
    """


def explicit(default: T) -> T:
    """Declare the default of an API struct's field as one that is always written."""
    return msgspec.field(default_factory=lambda: default)


class OwnerReference(ApiStruct, frozen=True):
    """metadata.ownerReferences[]."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool | None = None


class ObjectMeta(ApiStruct, frozen=True):
    """metadata. Times are RFC 3339 text, as on the wire."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None


class SelectorRequirement(ApiStruct, frozen=True):
    """One term of a label selector's matchExpressions."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()


class Condition(ApiStruct, frozen=True):
    """metav1.Condition: status.conditions[] of most custom resources."""

    type: str
    status: str
    reason: str = ""
    message: str = explicit("")
    last_transition_time: str | None = None
    observed_generation: int | None = None


class LabelSelector(ApiStruct, frozen=True):
    """metav1.LabelSelector. An empty selector selects everything, an absent one nothing."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[SelectorRequirement, ...] = ()
