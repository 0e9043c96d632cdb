"""Our collectors export the same text as those of prometheus-client."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from bayplan.live.collectors import LabeledCounter, LabeledHistogram

BOUNDS = (0.001, 0.5, 1, 2.5)


def shown(registry: CollectorRegistry) -> list[str]:
    text = generate_latest(registry).decode()
    return [line for line in text.splitlines() if "_created" not in line]


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.floats(0, 5)), min_size=1))
def test_a_histogram_exports_what_prometheus_client_exports(
    values: list[tuple[str, float]],
) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    own = LabeledHistogram("seconds", "How long.", ["kind"], BOUNDS, ours)
    histogram = Histogram("seconds", "How long.", ["kind"], buckets=BOUNDS, registry=theirs)
    for kind, value in values:
        own.observe((kind,), value)
        histogram.labels(kind).observe(value)
    assert shown(ours) == shown(theirs)


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 9)), min_size=1))
def test_a_counter_exports_what_prometheus_client_exports(values: list[tuple[str, int]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    own = LabeledCounter("pods", "How many.", ["kind"], ours)
    counter = Counter("pods", "How many.", ["kind"], registry=theirs)
    for kind, value in values:
        own.add((kind,), value)
        counter.labels(kind).inc(value)
    assert shown(ours) == shown(theirs)


def test_collectors_without_labels_export_zero_at_once() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    LabeledCounter("pods", "How many.", [], ours)
    LabeledHistogram("seconds", "How long.", [], BOUNDS, ours)
    Counter("pods", "How many.", registry=theirs)
    Histogram("seconds", "How long.", buckets=BOUNDS, registry=theirs)
    assert shown(ours) == shown(theirs)


def test_collectors_without_series_are_not_named() -> None:
    registry = CollectorRegistry()
    counter = LabeledCounter("pods", "How many.", ["kind", "node"], registry)
    histogram = LabeledHistogram("seconds", "How long.", ["kind"], BOUNDS, registry)
    assert shown(registry) == []
    counter.add(("a", "n"))
    counter.add(("b", "n"))
    histogram.observe(("a",), 1.0)
    counter.discard(kind="b")
    assert [line for line in shown(registry) if line.startswith("pods_total")] == [
        'pods_total{kind="a",node="n"} 1.0'
    ]
    counter.discard(node="n")
    histogram.discard(kind="a")
    assert shown(registry) == []
