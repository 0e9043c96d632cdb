"""Koordinator's quotas, in the shapes of their own APIs.

Much of a quota is in labels and annotations; their names are as in koordinator-sh/koordinator v1.8
(apis/extension/elastic_quota.go).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bayplan.api.meta import ApiStruct, LabelSelector, ObjectMeta
from bayplan.api.quantity import Quantity
from bayplan.inputs.jsontext import parse_json
from bayplan.inputs.limits import ANNOTATION

__all__ = [
    "QUOTA_PREFIX",
    "REPORTED_ANNOTATIONS",
    "ElasticQuota",
    "ElasticQuotaProfile",
    "amounts_in",
    "elastic_quota_problems",
    "names_in",
    "quota_profile_problems",
]

Problem = tuple[str, str]

QUOTA_PREFIX = "quota.scheduling.koordinator.sh/"
"""What the labels and annotations of quotas begin with."""
REPORTED_ANNOTATIONS = frozenset(
    QUOTA_PREFIX + name
    for name in (
        "allocated",
        "child-request",
        "non-preemptible-request",
        "non-preemptible-used",
        "request",
        "runtime",
    )
)
"""The annotations that only report what a quota has; ``guaranteed`` is read, too."""
_BOOLEAN_LABELS = (
    "is-parent",
    "is-root",
    "allow-lent-resource",
    "ignore-default-tree",
    "allow-force-update",
)
_AMOUNT_ANNOTATIONS = ("shared-weight", "guaranteed", "total-resource")
_NAME_ANNOTATIONS = ("namespaces", "max-strict-check-resource-keys", "resource-keys")


class ElasticQuotaSpec(ApiStruct, frozen=True):
    """spec of a quota: what it may have whenever it asks, and the most that it may have."""

    min: dict[str, Quantity] = {}
    max: dict[str, Quantity] = {}


class ElasticQuotaStatus(ApiStruct, frozen=True):
    """status of a quota."""

    used: dict[str, Quantity] = {}


class ElasticQuota(ApiStruct, frozen=True):
    """scheduling.sigs.k8s.io/v1alpha1 ElasticQuota."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ElasticQuotaSpec = ElasticQuotaSpec()
    status: ElasticQuotaStatus = ElasticQuotaStatus()


class ElasticQuotaProfileSpec(ApiStruct, frozen=True):
    """spec of a profile: the nodes whose resources the root of a tree of quotas gets."""

    quota_name: str = ""
    quota_labels: dict[str, str] = {}
    resource_ratio: str | None = None
    node_selector: LabelSelector | None = None


class ElasticQuotaProfile(ApiStruct, frozen=True):
    """quota.koordinator.sh/v1alpha1 ElasticQuotaProfile."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ElasticQuotaProfileSpec = ElasticQuotaProfileSpec()


def amounts_in(text: str) -> dict[str, Quantity]:
    """Return the amounts by resource of an annotation, such as ``{"cpu": 8, "memory": "4Gi"}``.

    :raises ValueError: for anything else.
    """
    value = parse_json(text, ANNOTATION)
    if not isinstance(value, dict):
        raise ValueError('expected amounts such as {"cpu": 8, "memory": "4Gi"}')
    return {name: _quantity(name, amount) for name, amount in value.items()}


def _quantity(name: str, amount: Any) -> Quantity:
    if not isinstance(amount, str | int | float) or isinstance(amount, bool):
        raise ValueError(f'expected an amount of "{name[:40]}", got {str(amount)[:40]}')
    return Quantity(amount)


def names_in(text: str) -> list[str]:
    """Return the names of an annotation, such as ``["cpu", "memory"]``.

    :raises ValueError: for anything else.
    """
    value = parse_json(text, ANNOTATION)
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError('expected names such as ["one", "other"]')
    return value


def elastic_quota_problems(quota: ElasticQuota) -> Iterator[Problem]:
    """Yield (JSON path, message) for what Koordinator's webhook would refuse, or misread."""
    least, most = quota.spec.min, quota.spec.max
    yield from _negative("$.spec.min", least)
    yield from _negative("$.spec.max", most)
    for name, amount in least.items():
        limit = most.get(name)
        if limit is None:
            yield f"$.spec.min[{name}]", "is not in spec.max"
        elif amount.amount > limit.amount:
            yield f"$.spec.min[{name}]", f"{amount.text} is more than spec.max has, {limit.text}"
    labels = quota.metadata.labels
    for key in _BOOLEAN_LABELS:
        value = labels.get(QUOTA_PREFIX + key, "")
        if value not in ("", "true", "false"):
            yield (
                f'$.metadata.labels["{QUOTA_PREFIX}{key}"]',
                f'expected "true" or "false", got "{value[:40]}"',
            )
    if quota.metadata.name and labels.get(f"{QUOTA_PREFIX}parent") == quota.metadata.name:
        yield f'$.metadata.labels["{QUOTA_PREFIX}parent"]', "a quota cannot be its own parent"
    yield from _annotations(quota.metadata.annotations)


def _annotations(annotations: Mapping[str, str]) -> Iterator[Problem]:
    for key in (*_AMOUNT_ANNOTATIONS, *_NAME_ANNOTATIONS):
        text = annotations.get(QUOTA_PREFIX + key, "")
        if not text:
            continue
        path = f'$.metadata.annotations["{QUOTA_PREFIX}{key}"]'
        try:
            amounts = amounts_in(text) if key in _AMOUNT_ANNOTATIONS else None
            if amounts is None:
                names_in(text)
        except ValueError as exc:
            yield path, str(exc)
            continue
        if amounts is not None:
            yield from _negative(path, amounts)


def _negative(path: str, amounts: Mapping[str, Quantity]) -> Iterator[Problem]:
    for name, amount in amounts.items():
        if amount.amount < 0:
            yield f"{path}[{name}]", f"expected 0 or more, got {amount.text}"


def quota_profile_problems(profile: ElasticQuotaProfile) -> Iterator[Problem]:
    """Yield (JSON path, message) for what makes a profile select nothing, or mean nothing."""
    spec = profile.spec
    if not spec.quota_name:
        yield "$.spec.quotaName", "is required"
    if spec.node_selector is None:
        yield "$.spec.nodeSelector", "is required; {} selects every node"
    if spec.resource_ratio is not None:
        try:
            within = 0 < float(spec.resource_ratio) <= 1
        except ValueError:
            within = False
        if not within:
            got = spec.resource_ratio[:40]
            yield "$.spec.resourceRatio", f'expected more than 0 and at most 1, got "{got}"'
    yield from _annotations(profile.metadata.annotations)
