"""Journals of earlier versions are read and written further."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.metering.journal import Journal
from bayplan.metering.summary import Summary

HERE = Path(__file__).parent
HOUR = 3_600_000
START = 1_790_000_000_000
GPU, MODEL = "nvidia.com/gpu", "NVIDIA-H100-80GB-HBM3"


@pytest.fixture(params=sorted(HERE.glob("journal-*.sql")), ids=lambda path: path.stem)
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Journal:
    """A journal as a released version wrote it: eight GPUs for two hours, four cores since then."""
    place = tmp_path / "usage.db"
    with sqlite3.connect(place) as database:
        database.executescript(request.param.read_text())
    database.close()
    return Journal(str(place))


def test_what_an_earlier_version_wrote_adds_up(journal: Journal) -> None:
    found = Summary(journal, START, START + 9 * HOUR).usage(["tenant", "resource", "model"])
    assert found == {
        ("red", GPU, MODEL): 8000 * 2 * HOUR,
        ("blue", "cpu", ""): 4000 * 2 * HOUR,
    }
    first, second = sorted(journal.records(START, START + HOUR * 9), key=lambda one: one.since)
    assert (first.pod, first.queue, first.labels) == ("ns/train-0", "kueue/q", {"team": "vision"})
    assert (second.namespace, second.until) == ("other", None)
    (offered,) = journal.capacity(START, START + HOUR)
    assert (offered.node, offered.amount) == ("n1", 8000)
    journal.close()


def test_a_journal_of_an_earlier_version_is_written_further(journal: Journal) -> None:
    journal.claim()
    (still,) = (one for one in journal.records(START, START + 9 * HOUR) if one.until is None)
    journal.append([replace(still, pod="other/b", pod_uid="u2")])
    assert len(list(journal.records(START + 2 * HOUR, START + 9 * HOUR))) == 2
    journal.close()
