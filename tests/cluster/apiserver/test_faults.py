"""The server fails as it is told to, and only so."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import pytest
from tests.cluster.apiserver.faces import Client, Content, Events, Face, pod, serving

from bayplan.cluster.apiserver import WatchFault, WatchSettings

PODS = "/api/v1/namespaces/default/pods"
BROKEN = (http.client.HTTPException, ConnectionError)


@pytest.fixture
def face() -> Iterator[Face]:
    with serving(watches=WatchSettings(bookmark_every=0.01)) as face:
        yield face


@pytest.fixture
def client(face: Face) -> Client:
    return Client(face.server.url)


def until_the_end(events: Events) -> Iterator[tuple[str, Content]]:
    """Yield what a watch tells until it ends, in whatever way."""
    while True:
        try:
            yield events.next()
        except (EOFError, ValueError, *BROKEN):
            return


def test_the_next_calls_of_a_sort_fail(face: Face, client: Client) -> None:
    face.server.faults.fail(2, verb="create", resource="pods", code=429, retry_after=7)
    for _ in range(2):
        answer = client.post(PODS, pod("a"))
        assert (answer.code, answer.headers["Retry-After"]) == (429, "7")
        assert answer.json["details"]["retryAfterSeconds"] == 7
    assert client.get(PODS).code == 200
    assert client.post(PODS, pod("a")).code == 201
    assert face.server.faults.happened == 2


def test_a_share_of_the_calls_fails_the_same_for_each_seed(face: Face, client: Client) -> None:
    def codes(seed: int) -> list[int]:
        face.server.faults = type(face.server.faults)(seed)
        face.server.faults.fail(None, code=500, share=0.5)
        return [client.get(PODS).code for _ in range(20)]

    first = codes(1)
    assert set(first) == {200, 500}
    assert codes(1) == first
    assert codes(2) != first


def test_a_connection_that_breaks_before_the_write_leaves_nothing(
    face: Face, client: Client
) -> None:
    face.server.faults.close(1, verb="create")
    with pytest.raises(BROKEN):
        client.post(PODS, pod("a"))
    assert client.names(PODS) == []


def test_a_connection_that_breaks_after_the_write_leaves_it(face: Face, client: Client) -> None:
    face.server.faults.close(1, verb="create", after=True)
    with pytest.raises(BROKEN):
        client.post(PODS, pod("a"))
    assert client.names(PODS) == ["a"]


def test_a_watch_is_dropped_every_few_events(face: Face, client: Client) -> None:
    face.server.faults.drop_watches_every = 2
    version = client.get(PODS).version
    with client.watch(PODS, resourceVersion=version) as events:
        for name in "abc":
            client.post(PODS, pod(name))
        assert events.some(2) == [("ADDED", "a"), ("ADDED", "b")]
        with pytest.raises((EOFError, *BROKEN)):
            events.next()


@pytest.mark.parametrize("fault", list(WatchFault))
def test_watches_end_in_every_way(face: Face, client: Client, fault: WatchFault) -> None:
    version = client.get(PODS).version
    with client.watch(PODS, resourceVersion=version, allowWatchBookmarks="true") as events:
        assert events.next()[0] == "BOOKMARK"
        assert face.do(lambda server: server.end_watches(fault)) == 1
        codes = [status["code"] for kind, status in until_the_end(events) if kind == "ERROR"]
    assert codes == ([410] if fault is WatchFault.EXPIRE else [])
    with client.watch(PODS, resourceVersion=version) as events:
        client.post(PODS, pod("a"))
        assert events.some(1) == [("ADDED", "a")]


def test_after_a_compaction_old_versions_are_gone(face: Face, client: Client) -> None:
    for name in "ab":
        client.post(PODS, pod(name))
    page = client.get(PODS, limit=1).json["metadata"]
    client.post(PODS, pod("c"))
    face.do(lambda server: server.compact())
    exact = {"resourceVersion": page["resourceVersion"], "resourceVersionMatch": "Exact"}
    assert client.get(PODS, **exact).code == 410
    stale = client.get(PODS, **{"limit": 1, "continue": page["continue"]})
    assert (stale.code, stale.json["reason"]) == (410, "Expired")
    assert client.names(PODS, resourceVersion=page["resourceVersion"]) == ["a", "b", "c"]


def test_a_server_that_was_away_has_kept_everything(face: Face, client: Client) -> None:
    version = client.post(PODS, pod("a")).version
    with client.watch(PODS, resourceVersion=version) as events:
        face.wait(face.server.stop())
        with pytest.raises((EOFError, *BROKEN)):
            events.next()
    with pytest.raises(ConnectionError):
        client.get(PODS)
    face.wait(face.server.start())
    assert client.names(PODS) == ["a"]
    with client.watch(PODS, resourceVersion=version) as events:
        client.post(PODS, pod("b"))
        assert events.some(1) == [("ADDED", "b")]


def test_a_future_version_belongs_to_another_cluster(client: Client) -> None:
    with client.watch(PODS, resourceVersion="999999") as events:
        assert events.code == 410
    assert client.get(PODS, resourceVersion="999999").code == 504


def test_a_failure_inside_is_an_answer(
    face: Face, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    face.server.cluster.records = None  # type: ignore[method-assign,assignment]
    answer = client.get(PODS)
    assert (answer.code, answer.json["reason"]) == (500, "InternalError")
    assert "Traceback" in caplog.text
