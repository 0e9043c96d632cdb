"""However nodes and pods come and go, the node table is that of a snapshot made from what is left.

A reader that brings its own column up to date by what it learns of changes has the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from bayplan import PodInfo
from bayplan.api import LabelSelector, Node
from bayplan.api.selectors import compile_selector
from bayplan.plugin.hookspecs import IntColumn
from bayplan.snapshot import NodeTable, PodQuery, Snapshot
from bayplan.snapshot import row_changes as module
from bayplan.snapshot.podindex import HeldTerm
from bayplan.snapshot.row_changes import RowChanges, moved
from bayplan.testing import make_node, make_pod

NAMES = [f"n{number}" for number in (1, 2, 3, 9, 10, 11, 20, 100)]
QUERY = PodQuery("default", compile_selector(LabelSelector(match_labels={"app": "a"})))

_NAME = st.sampled_from(NAMES)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("node"), _NAME, st.integers(1, 3)),
        st.tuples(st.just("gone"), _NAME, st.just(0)),
        st.tuples(st.just("pod"), _NAME, st.integers(0, 3)),
        st.tuples(st.just("end"), st.just(""), st.integers(0, 9)),
        st.tuples(st.just("sync"), st.just(""), st.integers(1, 4)),
        st.tuples(st.just("look"), st.just(""), st.just(0)),
        st.tuples(st.just("trim"), st.just(""), st.just(0)),
        st.tuples(st.just("all"), st.just(""), st.just(0)),
    ),
    max_size=60,
)


def _node(name: str, number: int) -> Node:
    taints = ["t:NoSchedule"] if number == 3 else []
    return make_node(name, cpu=str(number), labels={"size": str(number)}, taints=taints)


def _pod(name: str, number: int) -> PodInfo:
    spread = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "size"}
            ]
        }
    }
    container = {
        "name": "main",
        "image": "busybox",
        "resources": {"requests": {"cpu": f"{number}00m"}},
        "ports": [{"containerPort": 80, "hostPort": 8000 + number}],
    }
    spec = {"containers": [container], **({"affinity": spread} if number > 1 else {})}
    return PodInfo(make_pod(name, labels={"app": "ab"[number % 2]}, spec=spec))


@dataclass
class Reader:
    """Keeps how many pods each row has."""

    table: NodeTable
    pods: IntColumn = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    seen: tuple[int, int] = (-1, 0)

    def look(self) -> None:
        table = self.table
        stale = table.changes.stale_since(*self.seen)
        self.seen = table.epoch, table.position
        if stale is None:
            self.pods = np.array([len(pods) for pods in table.pods], dtype=np.int64)
            return
        if stale.origin is not None:
            self.pods = moved(self.pods, stale.origin)
        for row in stale.rows:
            self.pods[row] = len(table.pods[row])
        assert self.pods.tolist() == [len(pods) for pods in table.pods]


@given(_STEPS)
@examples(300)
def test_the_table_is_that_of_what_is_left(steps: list[tuple[str, str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MOST_CHANGES", 4)
        patch.setattr(module, "_MOST_MOVES", 3)
        snapshot, placed = Snapshot(), dict[str, tuple[PodInfo, str]]()
        snapshot.index.counts(QUERY)
        nodes: dict[str, Node] = {}
        reader = Reader(snapshot.nodes)
        for count, (what, name, number) in enumerate(steps):
            if what == "node":
                nodes[name] = _node(name, number)
                snapshot.set_node(nodes[name])
            elif what == "gone":
                nodes.pop(name, None)
                snapshot.delete_node(name)
            elif what == "pod":
                pod = _pod(f"p{count}", number)
                placed[pod.key] = (pod, name)
                snapshot.add_pod(pod, name)
            elif what == "end" and placed:
                key = list(placed)[number % len(placed)]
                snapshot.remove_pod(key)
                del placed[key]
            elif what == "sync":
                snapshot.sync(number)
            elif what == "look":
                reader.look()
            elif what == "trim":
                snapshot.nodes.changes.trim(0)
            elif what == "all":
                snapshot.touch(None)
        assert snapshot.sync()
        reader.look()
        _same(snapshot, _anew(nodes, placed))


def _anew(nodes: dict[str, Node], placed: dict[str, tuple[PodInfo, str]]) -> Snapshot:
    fresh = Snapshot()
    for node in nodes.values():
        fresh.set_node(node)
    fresh.sync()
    for pod, name in placed.values():
        fresh.add_pod(pod, name)
    return fresh


def _same(one: Snapshot, other: Snapshot) -> None:
    ours, theirs = one.nodes, other.nodes
    assert ours.names == theirs.names
    assert ours.nodes == theirs.nodes
    assert ours.row_of == theirs.row_of
    assert [set(pods) for pods in ours.pods] == [set(pods) for pods in theirs.pods]
    for resource in ("cpu", "memory", "pods"):
        assert ours.allocatable(resource).tolist() == theirs.allocatable(resource).tolist()
        assert ours.used(resource).tolist() == theirs.used(resource).tolist()
        assert ours.scoring_used(resource).tolist() == theirs.scoring_used(resource).tolist()
    assert ours.unschedulable.tolist() == theirs.unschedulable.tolist()
    taints = [[table.taint_sets[code] for code in table.taint_codes] for table in (ours, theirs)]
    assert taints[0] == taints[1]
    assert ours.label("size").codes.tolist() == theirs.label("size").codes.tolist()
    assert ours.label("size").values == theirs.label("size").values
    for port in range(8000, 8004):
        in_use = [
            {ip: column.tolist() for ip, column in table.ports_in_use("TCP", port).items()}
            for table in (ours, theirs)
        ]
        assert _nonzero(in_use[0]) == _nonzero(in_use[1])
    assert one.index.counts(QUERY).tolist() == other.index.counts(QUERY).tolist()
    held = [_held(snapshot) for snapshot in (one, other)]
    assert held[0] == held[1]


def _nonzero(columns: dict[str, list[int]]) -> dict[str, list[int]]:
    return {ip: column for ip, column in columns.items() if any(column)}


def _held(snapshot: Snapshot) -> dict[HeldTerm, list[int]]:
    index = snapshot.index
    return {term: index.held(term).tolist() for term in index.held_matching(_pod("asks", 0))}


def test_what_was_forgotten_is_too_long_ago_to_say() -> None:
    changes = RowChanges()
    for row in range(200_001):
        changes.mark(row)
    changes.trim(rows=10)
    assert changes.since(0) is None
    assert changes.since(200_000) == [200_000]
    assert changes.since(changes.position) == []


def test_a_reader_that_slept_while_all_nodes_went_and_others_came_reads_all_again() -> None:
    changes = RowChanges()
    epoch, position = changes.epoch, changes.position
    changes.renumber(np.array([-1, -1], dtype=np.intp), 0)
    changes.renumber(np.array([], dtype=np.intp), 2)
    changes.renumber(np.array([-1], dtype=np.intp), 0)
    stale = changes.stale_since(epoch, position)
    assert stale is not None
    assert stale.origin is not None
    assert stale.origin.tolist() == [-1]
