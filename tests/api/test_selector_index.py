"""Selectors are found by labels as a look at each of them finds them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from bayplan.api import LabelSelector
from bayplan.api.meta import SelectorRequirement
from bayplan.api.selector_index import SelectorIndex
from bayplan.api.selectors import compile_selector

NAMES = st.sampled_from(["a", "b"])
LABELS = st.dictionaries(NAMES, NAMES, max_size=2)
EXISTS = SelectorRequirement("a", "Exists")
SELECTORS = st.none() | st.builds(LabelSelector, LABELS, st.sampled_from([(), (EXISTS,)]))
CHANGES = st.lists(
    st.tuples(st.sampled_from("xyz"), st.none() | st.tuples(NAMES, SELECTORS)), max_size=8
)


@examples(200)
@given(CHANGES, NAMES, LABELS)
def test_whatever_comes_and_goes_those_that_match_are_found(
    changes: list[Any], namespace: str, labels: dict[str, str]
) -> None:
    index, there = SelectorIndex(), dict[str, tuple[str, LabelSelector | None]]()
    for key, given_ in changes:
        if given_ is None:
            index.drop(key)
            there.pop(key, None)
        else:
            index.put(key, *given_)
            there[key] = given_

    assert index.matching(namespace, labels) == sorted(
        key
        for key, (space, selector) in there.items()
        if space == namespace and compile_selector(selector).matches(labels)
    )
    assert bool(index) is bool(there)
