"""Admission policies as objects: what they watch, on which conditions, and what they do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bayplan.kinds import KINDS_OF_WORKLOADS

__all__ = [
    "OF_NO_JOB",
    "OWNERS",
    "annotation",
    "bound",
    "label",
    "mutating",
    "rule",
    "validating",
]

Content = dict[str, Any]
_VERSION = "admissionregistration.k8s.io/v1"
OWNERS = "object.metadata.?ownerReferences.orValue([])"
_JOBS = [
    f"{group}/{name}"
    for (group, name), row in KINDS_OF_WORKLOADS.items()
    if row.suspend or row.queued
]
OF_NO_JOB = (
    f"!{OWNERS}.exists(o, o.?controller.orValue(false)"
    f" && o.apiVersion.split('/')[0] + '/' + o.kind in {json.dumps(sorted(_JOBS))})"
)
"""A job of another one waits with that; one of a CronJob, say, waits itself."""


def label(of: str, name: str) -> str:
    """Return an expression for the value of a label, '' without it."""
    return f"{of}.metadata.?labels[?'{name}'].orValue('')"


def annotation(of: str, name: str) -> str:
    """Return an expression for the value of an annotation, '' without it."""
    return f"{of}.metadata.?annotations[?'{name}'].orValue('')"


def rule(
    group: str,
    versions: Sequence[str],
    plurals: Sequence[str],
    operations: Sequence[str] = ("CREATE",),
) -> Content:
    """Return a rule for what happens to objects of some kinds."""
    return {
        "apiGroups": [group],
        "apiVersions": list(versions),
        "operations": list(operations),
        "resources": sorted(plurals),
    }


def _policy(
    kind: str,
    name: str,
    rules: Sequence[Content],
    conditions: Sequence[tuple[str, str]],
    variables: Mapping[str, str],
) -> Content:
    spec: Content = {
        "failurePolicy": "Ignore",
        "matchConstraints": {"resourceRules": list(rules)},
    }
    if conditions:
        spec["matchConditions"] = [{"name": n, "expression": text} for n, text in conditions]
    if variables:
        spec["variables"] = [{"name": n, "expression": text} for n, text in variables.items()]
    return {
        "apiVersion": _VERSION,
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


def mutating(
    name: str,
    rules: Sequence[Content],
    conditions: Sequence[tuple[str, str]],
    variables: Mapping[str, str],
    *patches: str,
) -> Content:
    """Return a policy that changes objects.

    :param conditions: named expressions, all of which have to hold.
    :param variables: expressions by the names that others use for them.
    :param patches: expressions of JSON patches; each sees what those before it made.
    """
    policy = _policy("MutatingAdmissionPolicy", name, rules, conditions, variables)
    policy["spec"]["reinvocationPolicy"] = "IfNeeded"
    policy["spec"]["mutations"] = [
        {"patchType": "JSONPatch", "jsonPatch": {"expression": one}} for one in patches
    ]
    return policy


def validating(
    name: str,
    rules: Sequence[Content],
    conditions: Sequence[tuple[str, str]],
    variables: Mapping[str, str],
    validations: Sequence[tuple[str, str]],
    with_facts: bool = False,
) -> Content:
    """Return a policy that refuses objects, or warns of them.

    :param validations: expressions that have to be true, and those of what is said otherwise.
    :param with_facts: whether it reads a ConfigMap.
    """
    policy = _policy("ValidatingAdmissionPolicy", name, rules, conditions, variables)
    if with_facts:
        policy["spec"]["paramKind"] = {"apiVersion": "v1", "kind": "ConfigMap"}
    policy["spec"]["validations"] = [
        # What a webhook refuses is forbidden, too: clients of Kueue's and HAMi's expect that.
        {"expression": true, "messageExpression": said, "reason": "Forbidden"}
        for true, said in validations
    ]
    return policy


def bound(policies: Sequence[Content], kind: str, more: Content) -> list[Content]:
    """Return policies, each followed by its binding."""
    found = []
    for one in policies:
        name = one["metadata"]["name"]
        spec = {"policyName": name, **more}
        binding = {"apiVersion": _VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
        found += [one, binding]
    return found
