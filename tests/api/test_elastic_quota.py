"""Quotas of Koordinator: what is read, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.api import ElasticQuota, Quantity
from bayplan.api.objects import KINDS, DecodeError, decode_object

PREFIX = "quota.scheduling.koordinator.sh/"
QUOTA = KINDS["scheduling.sigs.k8s.io", "ElasticQuota"]
PROFILE = KINDS["quota.koordinator.sh", "ElasticQuotaProfile"]


def quota(
    least: dict[str, str] | None = None,
    most: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> dict[str, Any]:
    meta = {
        "name": "team",
        "labels": {PREFIX + key: value for key, value in (labels or {}).items()},
        "annotations": {PREFIX + key: value for key, value in (annotations or {}).items()},
    }
    return {"metadata": meta, "spec": {"min": least or {}, "max": most or {}}}


def test_a_quota_is_read() -> None:
    content = quota({"cpu": "8"}, {"cpu": "16"}, {"parent": "dept"})
    content["status"] = {"used": {"cpu": "500m"}}
    read = decode_object(QUOTA, content)
    assert isinstance(read, ElasticQuota)
    assert read.spec.min == {"cpu": Quantity("8")}
    assert read.status.used["cpu"].milli == 500


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (quota({"cpu": "9"}, {"cpu": "8"}), "$.spec.min[cpu]: 9 is more than spec.max has, 8"),
        (quota({"cpu": "1"}, {}), "$.spec.min[cpu]: is not in spec.max"),
        (quota({}, {"cpu": "-1"}), "$.spec.max[cpu]: expected 0 or more, got -1"),
        (
            quota(labels={"is-parent": "yes"}),
            f'$.metadata.labels["{PREFIX}is-parent"]: expected "true" or "false", got "yes"',
        ),
        (
            quota(labels={"parent": "team"}),
            f'$.metadata.labels["{PREFIX}parent"]: a quota cannot be its own parent',
        ),
        (
            quota(annotations={"shared-weight": "[1]"}),
            f'$.metadata.annotations["{PREFIX}shared-weight"]: '
            'expected amounts such as {"cpu": 8, "memory": "4Gi"}',
        ),
        (
            quota(annotations={"shared-weight": '{"cpu": true}'}),
            f'$.metadata.annotations["{PREFIX}shared-weight"]: '
            'expected an amount of "cpu", got True',
        ),
        (
            quota(annotations={"shared-weight": '{"cpu": -2}'}),
            f'$.metadata.annotations["{PREFIX}shared-weight"][cpu]: expected 0 or more, got -2',
        ),
        (
            quota(annotations={"namespaces": '{"a": 1}'}),
            f'$.metadata.annotations["{PREFIX}namespaces"]: '
            'expected names such as ["one", "other"]',
        ),
    ],
)
def test_a_quota_that_contradicts_itself_is_refused(content: dict[str, Any], message: str) -> None:
    with pytest.raises(DecodeError) as refused:
        decode_object(QUOTA, content)
    assert str(refused.value) == message


def test_an_annotation_that_is_no_json_is_refused() -> None:
    with pytest.raises(DecodeError, match="not JSON"):
        decode_object(QUOTA, quota(annotations={"total-resource": "{"}))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"nodeSelector": {}}, "$.spec.quotaName: is required"),
        ({"quotaName": "q"}, "$.spec.nodeSelector: is required; {} selects every node"),
        (
            {"quotaName": "q", "nodeSelector": {}, "resourceRatio": "1.5"},
            '$.spec.resourceRatio: expected more than 0 and at most 1, got "1.5"',
        ),
        (
            {"quotaName": "q", "nodeSelector": {}, "resourceRatio": "most"},
            '$.spec.resourceRatio: expected more than 0 and at most 1, got "most"',
        ),
    ],
)
def test_a_profile_that_selects_nothing_is_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(DecodeError) as refused:
        decode_object(PROFILE, {"metadata": {"name": "p"}, "spec": spec})
    assert str(refused.value) == message
