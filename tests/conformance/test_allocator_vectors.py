"""The allocator against the reference's answers (Kubernetes 1.36)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.conformance.case_format import complete
from tests.conformance.vectors import AllocatorCase, cases, comparable, decode
from tests.dra.allocator.worlds import World

from bayplan_dra.allocator import AllocationError, Failure, NodeError


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    found = cases(
        metafunc.config, "--allocator-vectors", "dra-allocator.jsonl", "own-allocator.jsonl"
    )
    metafunc.parametrize("case", found)


REASONS = (
    "invalid resource pools were encountered",
    "could not retrieve device class",
    "missing device class name (unsupported request type?)",
    "is currently being updated",
    "admin access is requested, but the feature is disabled",
    "because a claim constraint would not be satisfied",
    "CEL expression empty (unsupported selector type?)",
    "unsupported count mode",
    "empty constraint (unsupported constraint type?)",
    "undeclared reference",
    "exceeds the claim limit",
    "has subrequests, but the DRAPrioritizedList feature is disabled",
    "has capacity requests, but the DRAConsumableCapacity feature is disabled",
    "unsupported attribute value",
)


def test_strict_reference_gives_the_references_answer(case: dict[str, Any]) -> None:
    case = complete(AllocatorCase, case)
    given = decode(case)
    before = given.state.copy()
    error = case["error"]
    if error:
        expected = NodeError if case["errorIsNodeLocal"] else AllocationError
        with pytest.raises(expected) as raised:
            given.allocate(strict=True)
        reason = next((text for text in REASONS if text in error), None)
        assert reason is not None, f"nobody compares the error {error}"
        assert reason in str(raised.value)
        return
    found = given.allocate(strict=True)
    got = Counter() if isinstance(found, Failure) else Counter(map(comparable, found))
    assert got == Counter(map(comparable, case["results"]))
    assert given.state == before


def why_not(given: World) -> str:
    """Return why there is no allocation."""
    try:
        found = given.allocate()
    except AllocationError as exc:
        return str(exc)
    return found.reason if isinstance(found, Failure) else ""


def test_by_default_we_allocate_whatever_the_reference_allocates(
    case: dict[str, Any],
) -> None:
    case = complete(AllocatorCase, case)
    given = decode(case)
    before = given.state.copy()
    wanted = case["results"]
    if wanted:
        found = given.allocate()
        assert not isinstance(found, Failure)
        assert len(found) >= len(wanted)
    elif given.claims:
        assert why_not(given)
    assert given.state == before
