"""What clients ask first: which groups, versions and resources there are."""

from __future__ import annotations

from typing import Any

from bayplan.cluster.apiserver.resources import SCALED, Resource, Resources
from bayplan.cluster.apiserver.usage import RESOURCES as USAGE

__all__ = ["VERSION", "discover", "openapi"]

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
    """Return what stands at a path of discovery, None where nothing does."""
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
    """Return what stands at a path under /openapi/v3, None where nothing does.

    Only what kubectl has to know before it writes: that the server validates fields itself.
    """
    rest = path.removeprefix("/openapi/v3").strip("/")
    if not rest:
        versions = [(group, v) for group, found in _groups(resources).items() for v in found]
        paths = [f"apis/{group}/{v}" if group else f"api/{v}" for group, v in versions]
        return {"paths": {p: {"serverRelativeURL": f"/openapi/v3/{p}"} for p in paths}}
    steps = rest.split("/")
    group, version = ("", steps[-1]) if steps[0] == "api" else (steps[1], steps[-1])
    served = resources.served(group, version)
    if not served:
        return None
    return {
        "openapi": "3.0.0",
        "info": {"title": "bayplan", "version": VERSION["gitVersion"]},
        "paths": {
            _path(rest, plural, resource): _operations(group, version, resource)
            for plural, resource in served
        },
        "components": {
            "schemas": {r.kind: _schema(group, version, r) for _, r in served},
        },
    }


def _schema(group: str, version: str, resource: Resource) -> Content:
    kind = {"group": group, "version": version, "kind": resource.kind}
    return {
        "type": "object",
        "description": f"{resource.kind}; this server describes no fields.",
        "x-kubernetes-group-version-kind": [kind],
    }


def _path(prefix: str, plural: str, resource: Resource) -> str:
    scope = "namespaces/{namespace}/" if resource.namespaced else ""
    return f"/{prefix}/{scope}{plural}/{{name}}"


def _operations(group: str, version: str, resource: Resource) -> Content:
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
        for name in ("dryRun", "fieldManager", "fieldValidation", "force")
    ]
    return {
        "patch": {
            "parameters": parameters,
            "x-kubernetes-action": "patch",
            "x-kubernetes-group-version-kind": {
                "group": group,
                "version": version,
                "kind": resource.kind,
            },
            "responses": {"200": {"description": "OK"}},
        }
    }
