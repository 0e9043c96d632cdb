"""API discovery: groups, versions and resources."""

from __future__ import annotations

from typing import Any

import msgspec

from bayplan.cluster.apiserver.metrics_api import RESOURCES as USAGE
from bayplan.cluster.apiserver.openapi import openapi_index, openapi_v2, openapi_v3
from bayplan.cluster.apiserver.openapi_protobuf import MEDIA_TYPES, encode_document
from bayplan.cluster.apiserver.resources import SCALED, Resource, Resources

__all__ = ["VERSION", "OpenApiV2", "discover", "openapi"]

Content = dict[str, Any]

VERSION = {
    "major": "1",
    "minor": "35",
    "gitVersion": "v1.35.0-bayplan",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}
_REVIEWS = {
    ("authorization.k8s.io", "v1"): (
        ("selfsubjectaccessreviews", "SelfSubjectAccessReview"),
        ("selfsubjectrulesreviews", "SelfSubjectRulesReview"),
        ("subjectaccessreviews", "SubjectAccessReview"),
    ),
    ("authentication.k8s.io", "v1"): (
        ("selfsubjectreviews", "SelfSubjectReview"),
        ("tokenreviews", "TokenReview"),
    ),
}


_METRICS = {("metrics.k8s.io", "v1beta1"): USAGE}


def discover(resources: Resources, path: str, address: str) -> Content | None:
    """Return the discovery document at a path, None when there is none."""
    steps = path.strip("/").split("/")
    if steps == ["api"]:
        return {
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
        }
    if steps == ["apis"]:
        groups = [_group(g, v) for g, v in _groups(resources).items() if g]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    if steps[0] == "api" and len(steps) == 2:
        return _resource_list(resources, "", steps[1])
    if steps[0] == "apis" and len(steps) == 2:
        versions = _groups(resources).get(steps[1])
        return {"apiVersion": "v1", **_group(steps[1], versions)} if versions else None
    if steps[0] == "apis" and len(steps) == 3:
        return _resource_list(resources, steps[1], steps[2])
    return None


def _groups(resources: Resources) -> dict[str, list[str]]:
    return resources.groups() | {group: [version] for group, version in (*_REVIEWS, *_METRICS)}


def _group(name: str, versions: list[str]) -> Content:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"kind": "APIGroup", "name": name, "versions": listed, "preferredVersion": listed[0]}


def _resource_list(resources: Resources, group: str, version: str) -> Content | None:
    entries: list[Content] = [
        {"name": plural, "singularName": "", "namespaced": False, "kind": kind, "verbs": ["create"]}
        for plural, kind in _REVIEWS.get((group, version), ())
    ]
    entries += _METRICS.get((group, version), ())
    for plural, resource in resources.served(group, version):
        entries += _entries(plural, resource)
    if not entries:
        return None
    api_version = f"{group}/{version}" if group else version
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": api_version,
        "resources": entries,
    }


def _entries(plural: str, resource: Resource) -> list[Content]:
    entry: Content = {
        "name": plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    subs: list[tuple[str, str, list[str], Content]] = []
    if resource.status:
        subs.append(("status", resource.kind, ["get", "patch", "update"], {}))
    if (resource.group, plural) == ("", "pods"):
        eviction = {"group": "policy", "version": "v1"}
        subs.append(("binding", "Binding", ["create"], {}))
        subs.append(("eviction", "Eviction", ["create"], eviction))
    if resource.group == "apps" and plural in SCALED:
        scale = {"group": "autoscaling", "version": "v1"}
        subs.append(("scale", "Scale", ["get", "patch", "update"], scale))
    made = [
        {
            "name": f"{plural}/{name}",
            "singularName": "",
            "namespaced": resource.namespaced,
            "kind": kind,
            "verbs": verbs,
            **more,
        }
        for name, kind, verbs, more in subs
    ]
    return [entry, *made]


# OpenAPI ---------------------------------------------------------------------------------------


def openapi(resources: Resources, path: str) -> Content | None:
    """Return the document at a path under /openapi/v3, None when there is none."""
    rest = path.removeprefix("/openapi/v3").strip("/")
    if not rest:
        return openapi_index((g, v) for g, found in _groups(resources).items() for v in found)
    return openapi_v3(resources, rest, str(VERSION["gitVersion"]))


class OpenApiV2:
    """The version 2 document, made again when the resources change."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._made_at = -1
        self._encoded: dict[str, bytes] = {}

    def document(self, accept: str) -> tuple[bytes, str]:
        """Return the document and its content type, as a client accepts it."""
        asked, answered = MEDIA_TYPES
        content_type = answered if asked in accept else "application/json"
        if self._made_at != self._resources.changes:
            self._encoded, self._made_at = {}, self._resources.changes
        if content_type not in self._encoded:
            made = openapi_v2(self._resources, str(VERSION["gitVersion"]))
            encode = encode_document if asked in accept else msgspec.json.encode
            self._encoded[content_type] = encode(made)
        return self._encoded[content_type], content_type
