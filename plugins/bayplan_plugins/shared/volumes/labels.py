"""Node rows by label, for the many volumes that each name one node or one zone."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from bayplan.api import LabelSelector
from bayplan.api.pod import NodeSelector
from bayplan.plugin.hookspecs import BoolColumn
from bayplan.snapshot import Snapshot
from bayplan_plugins.shared.node_selection import matches_selector

__all__ = ["LabelRows"]

Rows = npt.NDArray[np.intp]
_NONE: Rows = np.zeros(0, dtype=np.intp)


class LabelRows:
    """The node rows that selectors select; cached until a label or the set of nodes changes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._by_value: dict[str, dict[str, Rows]] = {}
        self._version = (-1, -1)

    @property
    def version(self) -> tuple[int, int]:
        """A value that changes whenever a result may change."""
        return self._snapshot.nodes.epoch, self._snapshot.nodes.label_version

    def selected(self, selector: NodeSelector | None) -> Rows:
        """Return the rows that a volume's node affinity allows; None allows all."""
        if selector is None:
            return np.arange(len(self._snapshot.nodes), dtype=np.intp)
        terms = selector.node_selector_terms
        if len(terms) == 1 and not terms[0].match_fields and len(terms[0].match_expressions) == 1:
            only = terms[0].match_expressions[0]
            if only.operator == "In":
                return self._in(only.key, only.values)
        return np.flatnonzero(matches_selector(selector, self._snapshot.view()))

    def labelled(self, selector: LabelSelector) -> Rows:
        """Return the rows that a label selector selects."""
        exact: list[tuple[str, tuple[str, ...]]]
        exact = [(key, (value,)) for key, value in selector.match_labels.items()]
        exact += [(e.key, e.values) for e in selector.match_expressions if e.operator == "In"]
        others = [e for e in selector.match_expressions if e.operator != "In"]
        if len(exact) == 1 and not others:
            return self._in(*exact[0])
        nodes = self._snapshot.view()
        mask = np.ones(len(nodes), dtype=np.bool_)
        for key, values in exact:
            mask &= nodes.label_in(key, values)
        for other in others:
            if other.operator == "NotIn":
                mask &= ~nodes.label_in(other.key, other.values)
            else:
                mask &= nodes.has_label(other.key) == (other.operator == "Exists")
        return np.flatnonzero(mask)

    def mask(self, rows: Rows) -> BoolColumn:
        """Return rows as a boolean column over all nodes."""
        column = np.zeros(len(self._snapshot.nodes), dtype=np.bool_)
        column[rows] = True
        return column

    def _in(self, key: str, values: Iterable[str]) -> Rows:
        if self._version != self.version:
            self._by_value.clear()
            self._version = self.version
        by_value = self._by_value.get(key)
        if by_value is None:
            column = self._snapshot.nodes.label(key)
            order = np.argsort(column.codes, kind="stable")
            starts = np.searchsorted(column.codes[order], np.arange(len(column.values) + 1))
            by_value = self._by_value[key] = {
                value: order[starts[code] : starts[code + 1]]
                for code, value in enumerate(column.values)
            }
        found = [by_value[value] for value in dict.fromkeys(values) if value in by_value]
        return np.sort(np.concatenate(found)) if found else _NONE
