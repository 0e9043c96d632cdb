"""The OpenAPI documents hold together, whatever kinds are served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.apiserver.faces import Client, Face, serving

CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "things.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}
THINGS = "/apis/example.com/v1/namespaces/default/things"


@pytest.fixture
def face() -> Iterator[Face]:
    with serving() as face:
        yield face


@pytest.fixture
def client(face: Face) -> Client:
    return Client(face.server.url)


def references(document: Any) -> Iterator[str]:
    if isinstance(document, dict):
        for key, value in document.items():
            if key == "$ref" and isinstance(value, str):
                yield value
            else:
                yield from references(value)
    elif isinstance(document, list):
        for item in document:
            yield from references(item)


def test_every_reference_of_every_document_leads_somewhere(client: Client) -> None:
    index = client.get("/openapi/v3").json["paths"]
    assert "apis/apps/v1" in index
    seen = 0
    for entry in index.values():
        answer = client.get(entry["serverRelativeURL"])
        if answer.code == 404:
            continue  # reviews are no resources
        schemas = answer.json["components"]["schemas"]
        for reference in references(answer.json):
            assert reference.removeprefix("#/components/schemas/") in schemas
            seen += 1
    assert seen > 1000


def test_the_document_of_version_2_is_about_all_groups(client: Client) -> None:
    document = client.get("/openapi/v2").json
    definitions = document["definitions"]
    assert {r.removeprefix("#/definitions/") for r in references(document)} <= definitions.keys()
    [mark] = definitions["apps.v1.Deployment"]["x-kubernetes-group-version-kind"]
    assert mark == {"group": "apps", "version": "v1", "kind": "Deployment"}
    assert "/api/v1/namespaces/{namespace}/pods/{name}" in document["paths"]


def test_lists_say_by_which_key_patches_merge_them(client: Client) -> None:
    schemas = client.get("/openapi/v3/api/v1").json["components"]["schemas"]
    containers = schemas["core.v1.PodSpec"]["properties"]["containers"]
    assert containers["x-kubernetes-patch-merge-key"] == "name"
    assert containers["x-kubernetes-patch-strategy"] == "merge"
    assert schemas["core.v1.PodSpec"]["required"] == ["containers"]


def test_objects_of_a_kind_with_an_open_schema_are_taken_as_they_are(client: Client) -> None:
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    assert client.post(crds, CRD).code == 201
    thing = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}}
    answer = client.post(THINGS, {**thing, "any": {"thing": 1}}, fieldValidation="Strict")
    assert answer.code == 201
    assert answer.json["any"] == {"thing": 1}
    assert client.get("/openapi/v3/apis/example.com/v1").code == 200


def test_parts_that_definitions_leave_open_are_kept(client: Client) -> None:
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    amounts = {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True}}
    spec = {"type": "object", "properties": {"free": free, "amounts": amounts}}
    version = {
        **CRD["spec"]["versions"][0],  # type: ignore[index]
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}},
    }
    crd = {**CRD, "spec": {**CRD["spec"], "versions": [version]}}  # type: ignore[dict-item]
    assert client.post(crds, crd).code == 201
    thing = {
        "apiVersion": "example.com/v1",
        "kind": "Thing",
        "metadata": {"name": "t"},
        "spec": {"free": {"x": {"y": 1}}, "amounts": {"a": 1, "b": "2"}, "other": 1},
    }
    answer = client.post(THINGS, thing)
    assert answer.warnings == ['"unknown field \\"spec.other\\""']
    assert answer.json["spec"] == {"free": {"x": {"y": 1}}, "amounts": {"a": 1, "b": "2"}}
    told = client.post(THINGS, thing, fieldValidation="Strict").json["message"]
    assert told == (
        'Thing in version "v1" cannot be handled as a Thing: strict decoding error: '
        'unknown field "spec.other"'
    )
