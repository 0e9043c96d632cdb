"""bayplan run with a journal: usage is recorded while it leads, across restarts and failures."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.live.stage import Stage, stage

from bayplan.api import Pod
from bayplan.errors import InputError
from bayplan.live import usage_writer
from bayplan.metering.journal import Batch, Journal
from bayplan.metering.record import UsageRecord
from bayplan.testing.builders import make_node, make_pod

END = 2**60


def records(place: Path) -> list[UsageRecord]:
    journal = Journal(str(place), create=False)
    found = [one for one in journal.records(0, END) if one.resource == "cpu"]
    journal.close()
    return sorted(found, key=lambda one: one.pod)


async def test_usage_goes_on_across_restarts(tmp_path: Path) -> None:
    place = tmp_path / "journal.db"

    async with stage() as made:
        made.create(make_node("n1", cpu="8"), make_pod("a", cpu="2"), make_pod("b", cpu="1"))
        app = await made.start(journal=Journal(str(place)))
        await made.settle()
        assert await made.stop(app) == 0
        begun = records(place)
        assert [(one.pod, one.amount, one.until) for one in begun] == [
            ("default/a", 2000, None),
            ("default/b", 1000, None),
        ]
        remove(made, "default/a")
        killed = await made.start(journal=Journal(str(place)))
        await made.settle()
        await made.kill(killed)
        app = await made.start(journal=Journal(str(place)))
        await made.settle()
        await made.stop(app)
        ended, running = records(place)
        assert ended.until is not None
        assert (ended.since, running) == (begun[0].since, begun[1])


async def test_what_comes_during_the_last_write_is_written_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, begun, ending = tmp_path / "journal.db", threading.Event(), threading.Event()
    write, registry = Journal.write, CollectorRegistry()

    def waiting() -> float:
        return registry.get_sample_value("bayplan_usage_waiting_records") or 0.0

    def slow(journal: Journal, batch: Batch) -> None:
        write(journal, batch)
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            ending.wait(5)

    monkeypatch.setattr(Journal, "write", slow)
    async with stage() as made:
        made.create(make_node("n1", cpu="8"))
        app = await made.start(journal=Journal(str(place)), registry=registry)
        await made.until(begun.is_set)
        under_way = waiting()
        made.create(make_pod("a", cpu="2"))
        await made.until(lambda: waiting() > under_way)
        # The answer to the write under way comes while the scheduler stops.
        threading.Timer(0.2, ending.set).start()
        assert await made.stop(app) == 0
    assert [(one.pod, one.amount) for one in records(place)] == [("default/a", 2000)]


def remove(made: Stage, key: str) -> None:
    made.cluster.delete(Pod, key, grace=0)
    made.cluster.settle()


async def test_what_begins_is_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that is gone before the next scheduler starts is charged all the same."""
    monkeypatch.setattr(usage_writer, "_EVERY", 86_400.0)
    place = tmp_path / "journal.db"
    async with stage() as made:
        made.create(make_node("n1", cpu="8"), make_pod("a", cpu="2"))
        killed = await made.start(journal=Journal(str(place)))
        await made.until(lambda: records(place))
        made.create(make_pod("b", cpu="1"))
        await made.until(lambda: len(records(place)) == 2)
        await made.kill(killed)
        for pod in ("default/a", "default/b"):
            remove(made, pod)
        app = await made.start(journal=Journal(str(place)))
        await made.until(lambda: all(one.until is not None for one in records(place)))
        await made.stop(app)
        assert [(one.pod, one.amount) for one in records(place)] == [
            ("default/a", 2000),
            ("default/b", 1000),
        ]
        assert made.cluster.clock.now < 86_400.0


def metric(registry: CollectorRegistry, name: str) -> float:
    found = registry.get_sample_value(f"bayplan_usage_{name}")
    assert found is not None
    return found


async def test_scheduling_goes_on_while_the_journal_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bayplan.metering")
    place = tmp_path / "journal.db"
    journal = Journal(str(place))
    write, failures = journal.write, [2]

    def failing(batch: Batch) -> Any:
        if batch.opened and failures[0]:
            failures[0] -= 1
            raise InputError("disk full", "journal.db")
        return write(batch)

    async with stage() as made:
        made.create(make_node("n1", cpu="8"), make_pod("a", cpu="2"))
        monkeypatch.setattr(journal, "write", failing)
        registry = CollectorRegistry()
        await made.start(journal=journal, registry=registry)
        await made.settle()
        assert made.placements() == {"default/a": "n1"}
        await made.until(lambda: metric(registry, "write_errors_total") == 1)
        assert metric(registry, "records_total") == 0
        assert metric(registry, "waiting_records") > 0
        await made.until(lambda: records(place))
        await made.until(lambda: metric(registry, "waiting_records") == 0)
        assert metric(registry, "write_errors_total") == 2
        assert metric(registry, "records_total") >= len(records(place))
        assert 0 <= metric(registry, "lag_seconds") < made.cluster.unix_time
        assert metric(registry, "last_reconcile_timestamp_seconds") > 0

    told = [one.getMessage() for one in caplog.records]
    assert told == [
        "usage is kept in memory until it can be written: journal.db: disk full",
        "usage is written again",
    ]
