"""Label selectors of namespaces, found by the labels that they match."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bayplan.api.meta import LabelSelector
from bayplan.api.selectors import Selector, compile_selector

__all__ = ["SelectorIndex"]

_Mark = tuple[str, str, str]
"""A namespace and a label that all have that a selector matches; "" and "" for no such label."""


class SelectorIndex:
    """Keeps selectors by key; a search looks only at those that ask for a label that is there."""

    def __init__(self) -> None:
        self._marks: dict[str, _Mark] = {}
        self._marked: dict[_Mark, dict[str, Selector]] = {}

    def __bool__(self) -> bool:
        return bool(self._marks)

    def put(self, key: str, namespace: str, selector: LabelSelector | None) -> None:
        """Keep a selector, in place of any other with its key."""
        self.drop(key)
        labels = selector.match_labels if selector is not None else {}
        mark = self._marks[key] = (namespace, *min(labels.items(), default=("", "")))
        self._marked.setdefault(mark, {})[key] = compile_selector(selector)

    def drop(self, key: str) -> None:
        """Forget a selector, if there is one with this key."""
        mark = self._marks.pop(key, None)
        if mark is not None:
            marked = self._marked[mark]
            del marked[key]
            if not marked:
                del self._marked[mark]

    def matching(self, namespace: str, labels: Mapping[str, str]) -> list[str]:
        """Return the keys of the selectors that match, in order."""
        marks: Iterable[_Mark] = ((namespace, *label) for label in (("", ""), *labels.items()))
        return sorted(
            key
            for mark in marks
            for key, selector in self._marked.get(mark, {}).items()
            if selector.matches(labels)
        )
