"""Listeners of a snapshot: in order, and silent while they have nothing to follow."""

from __future__ import annotations

from bayplan.snapshot import PodInfo, Snapshot
from bayplan.testing import make_pod


def test_a_listener_that_pauses_misses_changes_and_keeps_its_place() -> None:
    snapshot, heard = Snapshot(), list[str]()
    names = ("first", "second", "third")
    followed = {
        name: snapshot.on_living(lambda pod, added, name=name: heard.append(f"{name} {pod.name}"))
        for name in names
    }
    followed["second"].listens = False
    snapshot.set_living(PodInfo(make_pod("a")))
    followed["second"].listens = True
    snapshot.set_living(PodInfo(make_pod("b")))
    assert heard == ["first a", "third a", "first b", "second b", "third b"]


def test_who_begins_to_listen_during_a_change_hears_of_the_next_one() -> None:
    snapshot, heard = Snapshot(), list[str]()
    late = snapshot.on_living(lambda pod, added: heard.append(pod.name))
    late.listens = False

    def begin(pod: PodInfo, added: bool) -> None:
        late.listens = True

    snapshot.on_living(begin)
    snapshot.set_living(PodInfo(make_pod("a")))
    assert heard == []
    snapshot.set_living(PodInfo(make_pod("b")))
    assert heard == ["b"]
