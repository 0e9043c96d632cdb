"""What the API server refuses, in the words of the real one.

With ``--kubeconfig FILE`` the same rows are asked of that cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.apiserver.faces import (
    APPLY,
    JSON_PATCH,
    MERGE,
    STRATEGIC,
    Client,
    client_of,
    serving,
)
from tests.contract import refusals
from tests.contract.refusals import NS, made, path_of

DRY = {"dryRun": "All"}
ROWS = refusals.table()
KINDS = {"apply": APPLY, "json": JSON_PATCH, "merge": MERGE, "strategic": STRATEGIC}
CREATES = [
    *(
        (plural, {"spec": sent}, said)
        for plural, rows in ROWS["specs"].items()
        for sent, said in rows
    ),
    *((plural, sent, said) for plural, rows in ROWS["others"].items() for sent, said in rows),
]


@pytest.fixture(scope="module")
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    path = request.config.getoption("--kubeconfig")
    if path is None:
        with serving() as face:
            client = Client(face.server.url)
            refusals.set_up(client)
            yield client
        return
    client = client_of(path)
    if not refusals.set_up(client):
        refusals.tear_down(client)
        pytest.skip("the cluster has no PodGroups of scheduling.k8s.io/v1alpha2")
    try:
        yield client
    finally:
        refusals.tear_down(client)


def check(answer: Any, expected: str) -> None:
    """Compare an answer with a row's: ``ok``, or the code and the beginning of the message."""
    code, _, text = expected.partition(" ")
    if code == "ok":
        assert answer.code < 300, answer
        return
    assert answer.code == int(code), answer
    message = answer.json["message"]
    assert answer.json["status"] == "Failure"
    _, invalid, causes = message.partition(" is invalid: ")
    assert (causes.lstrip("[") if invalid else message).startswith(text), message


@pytest.mark.parametrize(
    ("plural", "changes", "expected"), CREATES, ids=[f"{one[0]}: {one[2][:60]}" for one in CREATES]
)
def test_what_is_created_is_checked(
    client: Client, plural: str, changes: dict[str, Any], expected: str
) -> None:
    check(client.post(path_of(plural), made(plural, **changes), **DRY), expected)


@pytest.mark.parametrize(
    ("path", "kind", "patch", "expected"),
    ROWS["patches"],
    ids=[f"{one[0]}: {one[3][:60]}" for one in ROWS["patches"]],
)
def test_what_is_patched_is_checked(
    client: Client, path: str, kind: str, patch: Any, expected: str
) -> None:
    plural, _, rest = path.partition("/")
    options = {**DRY, "fieldManager": "m"} if kind == "apply" else DRY
    check(client.patch(f"{path_of(plural)}/{rest}", patch, KINDS[kind], **options), expected)


@pytest.mark.parametrize(
    ("method", "path", "body", "options", "expected"),
    ROWS["calls"],
    ids=[f"{one[0]} {one[1].rpartition('/')[2]}: {one[4][:60]}" for one in ROWS["calls"]],
)
def test_requests_are_checked(
    client: Client, method: str, path: str, body: Any, options: dict[str, str], expected: str
) -> None:
    options = {**(DRY if method != "GET" else {}), **options}
    kind = options.pop("kind", "application/json")
    if isinstance(body, dict) and "pod" in body:
        body = {**made("pods"), **body["pod"]}
    elif isinstance(body, dict) and "raw" in body:
        body = body["raw"].encode()
    path = path.replace("/namespaces/NS/", f"/namespaces/{NS}/")
    check(client.call(method, path, body, kind, **options), expected)
