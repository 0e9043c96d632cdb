"""Whoever asks the node table what changed learns of every change, or that it is too long ago."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from bayplan.api import Node, ObjectMeta
from bayplan.snapshot import nodes as module
from bayplan.snapshot.nodes import NodeTable

STEPS = st.lists(st.sampled_from(["change", "ask", "trim", "node"]), max_size=40)


def node(name: str) -> Node:
    return Node(ObjectMeta(name=name))


@given(STEPS)
@examples(100)
def test_changes_are_told_once_or_are_too_long_ago(steps: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHANGES_LIMIT", 4)
        table = NodeTable()
        table.apply({"a": node("a"), "b": node("b")})
        seen, missed = table.position, 0
        for count, step in enumerate(steps):
            if step == "change":
                table.mark_changed(count % 2)
                missed += 1
            elif step == "trim":
                table.trim_changes()
            elif step == "node":
                table.apply({f"n{count}": node(f"n{count}")})
                missed = 10**6
            else:
                found = table.changed_since(seen)
                assert found is None or len(found) == missed
                seen, missed = table.position, 0
                assert table.changed_since(seen) == []
