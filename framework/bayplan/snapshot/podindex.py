"""Counts of pods by label, and of the affinity terms they hold, per node.

Topology spread and inter-pod affinity ask the same few questions for every pod: how many pods that
this selector selects are on each node, and which nodes hold pods with this term. Each question is a
column that is updated as pods come and go, so that an answer costs a few array operations, whatever
the number of pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from bayplan.api.selectors import Selector
from bayplan.snapshot.affinity import AffinityTerm
from bayplan.snapshot.pods import PodInfo
from bayplan.snapshot.row_changes import Rows, moved

__all__ = ["HeldTerm", "PodIndex", "PodQuery"]

CountColumn = npt.NDArray[np.int64]
LabelsId = tuple[str, frozenset[tuple[str, str]]]
_QUERY_LIMIT = 1024
_LABELS_LIMIT = 20_000
"""How many sets of labels are cached; every pod may have labels of its own."""


class PodQuery(msgspec.Struct, frozen=True):
    """Which pods to count. All ``terms`` have to match, when there are any.

    With ``namespace`` set, pods of that namespace that ``selector`` selects are counted, except
    terminating ones (as topology spread counts them).
    """

    namespace: str = ""
    selector: Selector | None = None
    terms: tuple[AffinityTerm, ...] = ()

    def matches(self, pod: PodInfo, namespace_labels: Mapping[str, str]) -> bool:
        """Tell whether the pod counts."""
        if self.selector is not None:
            return (
                pod.namespace == self.namespace
                and not pod.terminating
                and self.selector.matches(pod.labels)
            )
        return all(t.matches(pod.namespace, pod.labels, namespace_labels) for t in self.terms)


class HeldTerm(msgspec.Struct, frozen=True):
    """A term that placed pods have. ``kind`` is "anti", "affinity" or "preferred"."""

    kind: str
    term: AffinityTerm
    weight: int = 0


class PodIndex:
    """Count columns over the node rows; ``size`` is the number of rows.

    :param pods: returns the pods that are placed on rows, with their rows.
    """

    def __init__(self, pods: Callable[[], Iterable[tuple[PodInfo, int]]]) -> None:
        self.size = 0
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self._pods = pods
        self._queries: dict[PodQuery, CountColumn] = {}
        self._matching: dict[tuple[LabelsId, bool], tuple[CountColumn, ...]] = {}
        self._held: dict[HeldTerm, CountColumn] = {}
        self._holders: dict[HeldTerm, int] = {}
        self._held_matches: dict[LabelsId, tuple[HeldTerm, ...]] = {}

    def counts(self, query: PodQuery) -> CountColumn:
        """Return, per node row, how many placed pods the query matches. Do not write to it."""
        column = self._queries.get(query)
        if column is None:
            if len(self._queries) >= _QUERY_LIMIT:
                self._queries.clear()
            column = np.zeros(self.size, dtype=np.int64)
            for pod, row in self._pods():
                if query.matches(pod, self.namespace_labels(pod)):
                    column[row] += 1
            self._queries[query] = column
            self._matching.clear()
        return column

    @property
    def holds_terms(self) -> bool:
        """Whether a placed pod has an affinity or anti-affinity term."""
        return bool(self._held)

    def held_matching(self, pod: PodInfo) -> tuple[HeldTerm, ...]:
        """Return the terms of placed pods that select this pod, in a stable order."""
        if not self._held:
            return ()
        found = self._held_matches.get(pod.labels_id)
        if found is None:
            if len(self._held_matches) >= _LABELS_LIMIT:
                self._held_matches.clear()
            labels = self.namespace_labels(pod)
            found = tuple(
                held for held in self._held if held.term.matches(pod.namespace, pod.labels, labels)
            )
            self._held_matches[pod.labels_id] = found
        return found

    def held(self, held: HeldTerm) -> CountColumn:
        """Return, per node row, how many placed pods have the term. Do not write to it."""
        return self._held[held]

    def add(self, pod: PodInfo, row: int) -> None:
        """Count a pod that was placed on a row."""
        for column in self._columns_of(pod):
            column[row] += 1
        if pod.terms:
            for held in _held_by(pod):
                if held not in self._held:
                    self._held[held] = np.zeros(self.size, dtype=np.int64)
                    self._holders[held] = 0
                    self._held_matches.clear()
                self._held[held][row] += 1
                self._holders[held] += 1

    def remove(self, pod: PodInfo, row: int) -> None:
        """Remove a pod that left a row."""
        for column in self._columns_of(pod):
            column[row] -= 1
        if pod.terms:
            for held in _held_by(pod):
                self._held[held][row] -= 1
                self._holders[held] -= 1
                if not self._holders[held]:
                    del self._held[held], self._holders[held]
                    self._held_matches.clear()

    def renumber(self, origin: Rows) -> None:
        """Follow the rows to their new numbers.

        :param origin: for each row, its number before, -1 for a new one. No pod is on a row that
            goes, or on a new one.
        """
        self.size = len(origin)
        self._queries = {query: moved(column, origin) for query, column in self._queries.items()}
        self._held = {held: moved(column, origin) for held, column in self._held.items()}
        self._matching.clear()

    def set_namespaces(self, namespaces: Mapping[str, Mapping[str, str]]) -> None:
        """Set the labels of all namespaces, by name."""
        self.namespaces = dict(namespaces)
        # Which terms pods have stays the same; which pods they select does not.
        self._queries.clear()
        self._matching.clear()
        self._held_matches.clear()

    def namespace_labels(self, pod: PodInfo) -> Mapping[str, str]:
        """Return the labels of the pod's namespace, including the one with its name."""
        implied = {"kubernetes.io/metadata.name": pod.namespace}
        return {**implied, **self.namespaces.get(pod.namespace, {})}

    def _columns_of(self, pod: PodInfo) -> tuple[CountColumn, ...]:
        if not self._queries:
            return ()
        key = (pod.labels_id, pod.terminating)
        columns = self._matching.get(key)
        if columns is None:
            labels = self.namespace_labels(pod)
            columns = tuple(
                column for query, column in self._queries.items() if query.matches(pod, labels)
            )
            if len(self._matching) >= _LABELS_LIMIT:
                self._matching.clear()
            self._matching[key] = columns
        return columns


def _held_by(pod: PodInfo) -> Iterable[HeldTerm]:
    terms = pod.terms
    for term in terms.required_anti_affinity:
        yield HeldTerm("anti", term)
    for term in terms.required_affinity:
        yield HeldTerm("affinity", term)
    for term, weight in terms.preferred:
        yield HeldTerm("preferred", term, weight)
