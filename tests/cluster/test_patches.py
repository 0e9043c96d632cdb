"""Patches do what Kubernetes' do, and leave their input alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.cluster.api_errors import ApiError
from bayplan.cluster.apiserver.apply import apply
from bayplan.cluster.patches import json_patch, merge_patch, strategic_patch

KEYS = st.sampled_from(["a", "b", "c", "x/y", "~"])
VALUES = st.recursive(
    st.booleans() | st.integers(0, 3) | st.sampled_from(["", "a", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=10,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)
CONDITIONS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["A", "B", "C"]), "status": st.sampled_from(["True", "False"])}
    ),
    unique_by=lambda condition: str(condition["type"]),
)


def difference(old: Any, new: Any) -> Any:
    """Return the merge patch that turns one object into another."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    patch = {key: None for key in old if key not in new}
    changed = {key: value for key, value in new.items() if key not in old or old[key] != value}
    return patch | {
        key: difference(old[key], value) if isinstance(old.get(key), dict) else value
        for key, value in changed.items()
    }


@given(OBJECTS, OBJECTS)
def test_a_merge_patch_of_a_difference_makes_it(old: Any, new: Any) -> None:
    before = copy.deepcopy(old)
    assert merge_patch(old, difference(old, new)) == new
    assert old == before


@given(CONDITIONS, CONDITIONS)
def test_a_strategic_patch_of_conditions_is_a_union(old: Any, new: Any) -> None:
    target, patch = {"conditions": old}, {"conditions": new}
    before = copy.deepcopy(target)
    result = strategic_patch(target, patch)
    found = {c["type"]: c["status"] for c in result["conditions"]}
    assert found == {c["type"]: c["status"] for c in [*old, *new]}
    assert strategic_patch(result, patch) == result
    assert target == before


@given(OBJECTS, KEYS, VALUES)
def test_what_a_json_patch_adds_it_can_remove(target: Any, key: str, value: Any) -> None:
    target.pop(key, None)
    without = copy.deepcopy(target)
    path = f"/{key.replace('~', '~0').replace('/', '~1')}"
    added = json_patch(target, [{"op": "add", "path": path, "value": value}])
    assert added == {**without, key: value}
    assert json_patch(added, [{"op": "test", "path": path, "value": value}]) == added
    assert json_patch(added, [{"op": "remove", "path": path}]) == without
    assert target == without


CONTAINERS = {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        (
            CONTAINERS,
            {"containers": [{"name": "b", "image": "2"}]},
            {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]},
        ),
        (
            CONTAINERS,
            {"containers": [{"name": "a", "$patch": "delete"}]},
            {"containers": [{"name": "b", "image": "1"}]},
        ),
        (
            CONTAINERS,
            {"containers": [{"name": "c"}, {"$patch": "replace"}]},
            {"containers": [{"name": "c"}]},
        ),
        (
            CONTAINERS,
            {
                "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
                "containers": [{"name": "a", "image": None}],
            },
            {"containers": [{"name": "b", "image": "1"}, {"name": "a"}]},
        ),
        (
            {"finalizers": ["a", "b"]},
            {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]},
            {"finalizers": ["b", "c"]},
        ),
        (
            {"tolerations": [{"key": "a"}]},
            {"tolerations": [{"key": "b"}]},
            {"tolerations": [{"key": "b"}]},
        ),
        (
            {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}},
            {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}},
            {"strategy": {"type": "Recreate"}},
        ),
        (
            {"labels": {"a": "1"}},
            {"labels": {"$patch": "replace", "b": "2"}},
            {"labels": {"b": "2"}},
        ),
        (
            {"ports": [{"port": 1, "name": "a"}]},
            {"ports": [{"port": 1, "name": "b"}]},
            {"ports": [{"port": 1, "name": "b"}]},
        ),
    ],
)
def test_strategic_directives(target: Any, patch: Any, expected: Any) -> None:
    assert strategic_patch(target, patch) == expected


def test_patches_that_make_no_sense_are_refused() -> None:
    for patch, code in (
        ([{"op": "test", "path": "/a", "value": 2}], 422),
        ([{"op": "remove", "path": "/b"}], 422),
        ([{"op": "add", "path": "/a/b", "value": 1}], 422),
        ([{"op": "jump", "path": "/a"}], 422),
        ([{"op": "add"}], 422),
        ({}, 400),
    ):
        with pytest.raises(ApiError) as refused:
            json_patch({"a": 1}, patch)
        assert refused.value.code == code, patch
    with pytest.raises(ApiError, match="does not contain declared merge key: name"):
        strategic_patch(CONTAINERS, {"containers": [{"image": "2"}]})


def test_json_patches_move_and_copy() -> None:
    target = {"a": [1, 2], "b": {}}
    patch = [
        {"op": "move", "from": "/a/0", "path": "/b/x"},
        {"op": "copy", "from": "/b/x", "path": "/a/-"},
    ]
    assert json_patch(target, patch) == {"a": [2, 1], "b": {"x": 1}}


def test_what_is_applied_no_more_goes_unless_somebody_else_applies_it() -> None:
    def applied(current: Any, manager: str, labels: dict[str, str], env: list[str]) -> Any:
        wanted = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "a", "labels": labels},
            "spec": {"containers": [{"name": "c", "env": [{"name": n} for n in env]}]},
        }
        return apply(current, wanted, manager, "2026-01-01T00:00:00Z", typed_lists=True)

    state = applied({"metadata": {"uid": "1"}}, "one", {"x": "1", "y": "1"}, ["A", "B"])
    state = applied(state, "two", {"y": "1", "z": "1"}, ["C"])
    state = applied(state, "one", {}, ["A"])
    assert state["metadata"]["labels"] == {"y": "1", "z": "1"}
    assert state["metadata"]["uid"] == "1"
    assert [e["name"] for e in state["spec"]["containers"][0]["env"]] == ["A", "C"]
    managers = [entry["manager"] for entry in state["metadata"]["managedFields"]]
    assert managers == ["two", "one"]
