"""Tokens, rules, reviews, and the record of what was called."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster.apiserver.faces import Client, Face, pod, serving

from bayplan.cluster.apiserver import Role

PODS = "/api/v1/namespaces/default/pods"
READER = Role.of(
    "reader",
    [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": ["mine"],
            "verbs": ["update"],
        },
        {"nonResourceURLs": ["/metrics"], "verbs": ["get"]},
    ],
)


@pytest.fixture
def face() -> Iterator[Face]:
    with serving(tokens={"all": None, "some": READER}) as face:
        yield face


def test_nobody_is_let_in_without_a_token(face: Face) -> None:
    for token in ("", "wrong"):
        answer = Client(face.server.url, token).get(PODS)
        assert (answer.code, answer.json["reason"]) == (401, "Unauthorized")
    assert Client(f"{face.server.url}/token/all").get(PODS).code == 200


def test_rules_say_what_a_user_may_do(face: Face) -> None:
    reader = Client(face.server.url, "some")
    assert reader.get(PODS).code == 200
    assert reader.get("/version").code == 200
    refused = reader.post(PODS, pod("a"))
    assert (refused.code, refused.json["reason"]) == (403, "Forbidden")
    assert refused.json["message"] == (
        'pods is forbidden: User "reader" cannot create resource "pods" in API group "" in the '
        'namespace "default"'
    )
    watch = reader.get("/api/v1/nodes", watch="true")
    assert watch.json["message"] == (
        'nodes is forbidden: User "reader" cannot watch resource "nodes" in API group "" at the '
        "cluster scope"
    )
    binding = {"metadata": {"name": "none"}, "target": {"name": "n"}}
    assert reader.post(f"{PODS}/none/binding", binding).code == 404
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    # An update of a lease that is missing would create it.
    missing = reader.put(f"{leases}/mine", {"metadata": {"name": "mine"}})
    assert (missing.code, missing.json["reason"]) == (403, "Forbidden")
    assert reader.put(f"{leases}/other", {"metadata": {"name": "other"}}).code == 403


def test_what_is_called_is_recorded(face: Face) -> None:
    client = Client(face.server.url, "all")
    client.post(PODS, pod("a"))
    client.get("/api/v1/pods")
    client.patch(f"{PODS}/a/status", {})
    assert dict(face.server.calls) == {
        ("create", "", "pods", True): 1,
        ("list", "", "pods", False): 1,
        ("patch", "", "pods/status", True): 1,
    }


def test_reviews_are_answered_from_the_tokens(face: Face) -> None:
    client = Client(face.server.url, "all")
    reviews = "/apis/authorization.k8s.io/v1"

    def allowed(**attributes: str) -> bool:
        spec = {"user": "reader", "resourceAttributes": attributes}
        answer = client.post(f"{reviews}/subjectaccessreviews", {"spec": spec})
        assert answer.code == 201
        return bool(answer.json["status"]["allowed"])

    assert allowed(verb="list", resource="pods")
    assert allowed(verb="create", resource="pods", subresource="binding")
    assert not allowed(verb="delete", resource="pods")
    path = {"user": "reader", "nonResourceAttributes": {"verb": "get", "path": "/metrics"}}
    assert client.post(f"{reviews}/subjectaccessreviews", {"spec": path}).json["status"]["allowed"]
    mine = Client(face.server.url, "some")
    spec = {"resourceAttributes": {"verb": "delete", "resource": "pods"}}
    own = mine.post(f"{reviews}/selfsubjectaccessreviews", {"spec": spec})
    assert not own.json["status"]["allowed"]
    tokens = "/apis/authentication.k8s.io/v1/tokenreviews"
    assert mine.post(tokens, {"spec": {"token": "all"}}).code == 403
    found = client.post(tokens, {"spec": {"token": "some"}}).json["status"]
    assert (found["authenticated"], found["user"]["username"]) == (True, "reader")
    assert not client.post(tokens, {"spec": {"token": "x"}}).json["status"]["authenticated"]
