"""Request info: method, path and parameters say the verb, the resource and the object."""

from __future__ import annotations

import pytest

from bayplan.cluster.api_errors import ApiError
from bayplan.cluster.apiserver.request_info import PathNotFound, RequestInfo, parse_request
from bayplan.cluster.apiserver.resources import Resources


def parse(method: str, path: str, **params: str) -> RequestInfo:
    return parse_request(Resources(), method, path, params)


@pytest.mark.parametrize(
    ("method", "path", "verb", "target", "namespace", "name"),
    [
        ("GET", "/api/v1/pods", "list", "pods", "", ""),
        ("GET", "/api/v1/namespaces/a/pods", "list", "pods", "a", ""),
        ("GET", "/api/v1/namespaces/a/pods/p", "get", "pods", "a", "p"),
        ("POST", "/api/v1/namespaces/a/pods/p/binding", "create", "pods/binding", "a", "p"),
        ("POST", "/api/v1/namespaces/a/bindings", "create", "pods/binding", "a", ""),
        ("PATCH", "/api/v1/nodes/n/status", "patch", "nodes/status", "", "n"),
        ("GET", "/api/v1/namespaces/a/status", "get", "namespaces/status", "", "a"),
        ("DELETE", "/apis/apps/v1/namespaces/a/deployments", "deletecollection", "deployments",
         "a", ""),
        ("PUT", "/apis/apps/v1/namespaces/a/deployments/d/scale", "update", "deployments/scale",
         "a", "d"),
    ],
)  # fmt: skip
def test_paths_name_verbs_and_resources(
    method: str, path: str, verb: str, target: str, namespace: str, name: str
) -> None:
    info = parse(method, path)
    assert (info.verb, info.target, info.namespace, info.name) == (verb, target, namespace, name)


def test_a_parameter_makes_a_list_or_a_get_a_watch() -> None:
    assert parse("GET", "/api/v1/pods", watch="1").verb == "watch"
    assert parse("GET", "/api/v1/namespaces/a/pods/p", watch="true").verb == "watch"
    assert parse("GET", "/api/v1/pods", watch="0").verb == "list"


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1",
        "/api/v2/pods",
        "/apis/nobody.example/v1/things",
        "/api/v1/namespaces/a/nodes/n",
        "/api/v1/pods/p",
        "/api/v1/nodes/n/status/more",
    ],
)
def test_unknown_paths_are_not_found(path: str) -> None:
    with pytest.raises(PathNotFound):
        parse("GET", path)


def test_methods_without_a_meaning_are_not_allowed() -> None:
    for method, path in (("POST", "/api/v1/nodes/n"), ("PUT", "/api/v1/nodes"),
                         ("POST", "/api/v1/pods")):  # fmt: skip
        with pytest.raises(ApiError) as refused:
            parse(method, path)
        assert refused.value.code == 405


def test_parameters_are_numbers_and_booleans() -> None:
    info = parse("GET", "/api/v1/pods", limit="5", pretty="true", dryRun="All")
    assert (info.number("limit"), info.number("other")) == (5, 0)
    assert (info.truth("pretty"), info.truth("other")) == (True, False)
    assert info.dry_run
    with pytest.raises(ApiError):
        parse("GET", "/api/v1/pods", limit="x").number("limit")


def test_the_schema_is_that_of_the_requested_version() -> None:
    schema = parse("GET", "/apis/apps/v1/namespaces/a/deployments").schema
    assert schema is not None
    assert "spec" in schema.fields
