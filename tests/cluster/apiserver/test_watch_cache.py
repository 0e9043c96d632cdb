"""The watch cache: positions, versions that were dropped, and listeners."""

from __future__ import annotations

import pytest

from bayplan.cluster.api_errors import ApiError
from bayplan.cluster.apiserver.watch_cache import Change, ChangeLog, StoredObject
from bayplan.testing import make_pod


def changes(*versions: int, limit: int = 100) -> ChangeLog:
    log = ChangeLog(limit)
    for version in versions:
        log.append(Change("MODIFIED", StoredObject("default/p", make_pod("p"), {}, version), None))
    return log


def versions(found: list[Change]) -> list[int]:
    return [change.record.version for change in found]


def test_a_watch_resumes_after_the_version_that_it_saw() -> None:
    log = changes(3, 5, 9)
    assert versions(log.since(log.position_after(0), 10)) == [3, 5, 9]
    assert versions(log.since(log.position_after(5), 10)) == [9]
    assert versions(log.since(log.position_after(6), 10)) == [9]
    assert log.since(log.position_after(9), 10) == []
    assert versions(log.since(log.position_after(0), 2)) == [3, 5]
    assert log.last_version == 9


def test_old_changes_are_dropped_and_their_versions_expire() -> None:
    log = changes(*range(1, 41), limit=8)
    assert log.last_version == 40
    assert log.compacted > 20
    assert versions(log.since(log.position_after(log.compacted), 100))[-1] == 40
    with pytest.raises(ApiError) as refused:
        log.position_after(log.compacted - 1)
    assert refused.value.code == 410


def test_a_position_that_was_dropped_meanwhile_expires() -> None:
    log = changes(1, 2, 3)
    position = log.position_after(1)
    log.compact()
    with pytest.raises(ApiError) as refused:
        log.since(position, 10)
    assert refused.value.code == 410
    assert log.last_version == 0


def test_changes_are_undone_newest_first_and_the_future_is_refused() -> None:
    log = changes(1, 2, 3)
    assert versions(list(log.back(1, current=3))) == [3, 2]
    with pytest.raises(ApiError) as refused:
        log.back(4, current=3)
    assert refused.value.code == 504


def test_listeners_wake_until_they_leave() -> None:
    log = changes(1)
    event = log.listen()
    log.wake()
    assert event.is_set()
    event.clear()
    log.leave(event)
    log.wake()
    assert not event.is_set()
