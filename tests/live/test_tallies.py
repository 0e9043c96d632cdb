"""What is counted the quick way shows as what prometheus-client counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from bayplan.live.tallies import Count, Spread

BOUNDS = (0.001, 0.5, 1, 2.5)


def shown(registry: CollectorRegistry) -> list[str]:
    text = generate_latest(registry).decode()
    return [line for line in text.splitlines() if "_created" not in line]


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.floats(0, 5))))
def test_a_spread_shows_as_a_histogram(values: list[tuple[str, float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    spread = Spread("seconds", "How long.", ["kind"], BOUNDS, ours)
    histogram = Histogram("seconds", "How long.", ["kind"], buckets=BOUNDS, registry=theirs)
    for kind, value in values:
        spread.observe((kind,), value)
        histogram.labels(kind).observe(value)
    assert shown(ours) == shown(theirs)


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 9))))
def test_a_count_shows_as_a_counter(values: list[tuple[str, int]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    count = Count("pods", "How many.", ["kind"], ours)
    counter = Counter("pods", "How many.", ["kind"], registry=theirs)
    for kind, value in values:
        count.add((kind,), value)
        counter.labels(kind).inc(value)
    assert shown(ours) == shown(theirs)


def test_without_labels_both_are_there_from_the_start() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    Count("pods", "How many.", [], ours)
    Spread("seconds", "How long.", [], BOUNDS, ours)
    Counter("pods", "How many.", registry=theirs)
    Histogram("seconds", "How long.", buckets=BOUNDS, registry=theirs)
    assert shown(ours) == shown(theirs)
