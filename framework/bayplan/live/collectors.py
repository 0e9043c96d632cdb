"""Counters and histograms that are cheap enough to be updated several times per pod.

prometheus-client takes a lock for each observation, which costs a few microseconds. All of this
runs in one thread and needs none. The exported text is the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

__all__ = ["LabeledCounter", "LabeledHistogram", "Labels"]

Labels = tuple[str, ...]


class LabeledCounter(Collector):
    """A counter with labels; ``name`` has no suffix ``_total``."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry
    ) -> None:
        self._family = (name, text, tuple(labels))
        self._values: dict[Labels, float] = {} if labels else {(): 0.0}
        registry.register(self)

    def add(self, labels: Labels, amount: float = 1.0) -> None:
        """Increase the counter of these label values."""
        self._values[labels] = self._values.get(labels, 0.0) + amount

    def discard(self, **labels: str) -> None:
        """Drop the counts of which labels have these values."""
        for values in _with(self._family[2], self._values, labels):
            del self._values[values]

    def describe(self) -> Iterable[CounterMetricFamily]:
        """Yield the counter without values."""
        name, text, labels = self._family
        yield CounterMetricFamily(name, text, labels=labels)

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Yield the counter's current values; nothing while there are none."""
        if not self._values:
            return
        name, text, labels = self._family
        family = CounterMetricFamily(name, text, labels=labels)
        for values, value in self._values.items():
            family.add_metric(values, value)
        yield family


class LabeledHistogram(Collector):
    """A histogram with labels; ``bounds`` are the upper bounds of its buckets, without +Inf."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._family = (name, text, tuple(labels))
        self._bounds = tuple(float(bound) for bound in bounds)
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}
        if not labels:
            self._row(())
        registry.register(self)

    def observe(self, labels: Labels, value: float) -> None:
        """Count a value in its bucket."""
        row = self._counts.get(labels) or self._row(labels)
        row[bisect_left(self._bounds, value)] += 1
        self._sums[labels] += value

    def discard(self, **labels: str) -> None:
        """Drop the values of which labels have these values."""
        for values in _with(self._family[2], self._counts, labels):
            del self._counts[values], self._sums[values]

    def _row(self, labels: Labels) -> list[int]:
        row = self._counts[labels] = [0] * (len(self._bounds) + 1)
        self._sums[labels] = 0.0
        return row

    def describe(self) -> Iterable[HistogramMetricFamily]:
        """Yield the histogram without values."""
        name, text, labels = self._family
        yield HistogramMetricFamily(name, text, labels=labels)

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """Yield the histogram's current values; nothing while there are none."""
        if not self._counts:
            return
        name, text, labels = self._family
        family = HistogramMetricFamily(name, text, labels=labels)
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        for values, row in self._counts.items():
            total, buckets = 0, []
            for upper, count in zip(names, row, strict=True):
                total += count
                buckets.append((upper, float(total)))
            family.add_metric(values, buckets, sum_value=self._sums[values])
        yield family


def _with(names: Labels, known: Iterable[Labels], wanted: Mapping[str, str]) -> list[Labels]:
    """Return the known values of labels among which are the wanted ones."""
    places = [(names.index(name), value) for name, value in wanted.items()]
    return [one for one in known if all(one[place] == value for place, value in places)]
