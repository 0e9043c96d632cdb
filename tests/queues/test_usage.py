"""The journal of usage: what it keeps, and what queues get of it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.errors import InputError
from bayplan.queues.usage import Sample, UsageJournal

HOUR = 3600.0


def sample(at: float, capacity: float = 10.0, **held: float) -> Sample:
    return Sample(at, {name: {"gpu": amount} for name, amount in held.items()}, {"gpu": capacity})


def journal(path: Path | None = None, half_life: float | None = None) -> UsageJournal:
    return UsageJournal(path, 24 * HOUR, 60.0, half_life)


def test_usage_is_the_part_of_the_cluster_over_the_window() -> None:
    kept = journal()
    kept.add(sample(0, a=10))
    kept.add(sample(HOUR, a=5, b=5))
    assert kept.usage(HOUR) == {"a": {"gpu": 0.75}, "b": {"gpu": 0.25}}


def test_a_sample_counts_half_after_its_half_life() -> None:
    kept = journal(half_life=HOUR)
    kept.add(sample(0, a=10))
    kept.add(sample(HOUR, a=0, b=10))
    assert kept.usage(HOUR)["a"]["gpu"] == pytest.approx(0.5 / 1.5)
    assert kept.usage(HOUR)["b"]["gpu"] == pytest.approx(1 / 1.5)


def test_samples_leave_with_the_window() -> None:
    kept = journal()
    kept.add(sample(0, a=10))
    kept.add(sample(25 * HOUR, b=10))
    assert set(kept.usage(25 * HOUR)) == {"b"}


def test_a_restart_goes_on_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    journal(path).add(sample(0, a=10))
    again = journal(path)
    again.add(sample(HOUR, b=10))
    assert again.usage(HOUR) == journal(path).usage(HOUR) == {"a": {"gpu": 0.5}, "b": {"gpu": 0.5}}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@given(st.integers(min_value=0, max_value=400))
def test_a_journal_that_was_cut_anywhere_goes_on(cut: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "usage.jsonl"
        first = journal(path)
        for index in range(4):
            first.add(sample(index * 60.0, a=float(index)))
        content = path.read_bytes()[:cut]
        path.write_bytes(content)
        whole = content.count(b"\n")
        again = journal(path)
        again.add(sample(HOUR, b=10))
        # A line may be whole although its end is missing.
        assert len(journal(path)._samples) in (whole + 1, whole + 2)


def test_lines_that_are_no_samples_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    journal(path).add(sample(0, a=10))
    with path.open("a") as file:
        file.write('{"at": "noon"}\n{"at": 5, "held": {"a": {"gpu": -1}}, "capacity": {}}\n[]\n')
    assert journal(path).usage(0) == {"a": {"gpu": 1.0}}


def test_a_clock_that_was_set_back_begins_again() -> None:
    kept = journal()
    kept.add(sample(10 * HOUR, a=10))
    kept.add(sample(HOUR, b=10))
    assert kept.usage(HOUR) == {"b": {"gpu": 1.0}}
    assert kept.next_time() == HOUR + 60.0


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=str(tmp_path)):
        journal(tmp_path)
