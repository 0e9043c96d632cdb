"""Which error an API server's refusal becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bayplan.cluster.kubernetes.curl import Answer
from bayplan.cluster.kubernetes.transport import error_of
from bayplan.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    NotFound,
    Terminating,
    TooManyDisruptions,
    Transient,
)


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        (403, {"reason": "Forbidden"}, Forbidden),
        (403, {"details": {"causes": [{"reason": "NamespaceTerminating"}]}}, Terminating),
        (404, {"reason": "NotFound"}, NotFound),
        (409, {"reason": "AlreadyExists"}, AlreadyExists),
        (409, {"reason": "Conflict"}, Conflict),
        (422, {"details": {"causes": [{"field": "metadata.uid"}]}}, Conflict),
        (429, {"details": {"causes": [{"reason": "DisruptionBudget"}]}}, TooManyDisruptions),
        (429, {"details": {"retryAfterSeconds": 2}}, Transient),
        (503, {}, Transient),
    ],
)
def test_a_refusal_is_known_by_its_code_and_cause(
    code: int, status: dict[str, Any], expected: type[ClusterError]
) -> None:
    body = json.dumps({"message": "no", **status}).encode()
    found = error_of("POST /somewhere", Answer(code, body))
    assert type(found) is expected
    assert str(found) == f"no (POST /somewhere: {code})"
