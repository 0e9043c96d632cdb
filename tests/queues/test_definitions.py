"""Broken definitions of queues are set apart, alone; everything else goes on."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.api import ObjectMeta, VolcanoQueue
from bayplan.api.queue import Queue, QueueState, Share
from bayplan.api.queue_objects import VolcanoQueueSpec
from bayplan.dialects import volcano
from bayplan.queues.definitions import Translations, sound
from bayplan.queues.forest import MOST_LEVELS
from bayplan.queues.gate import gate
from bayplan.queues.notes import notes_on
from bayplan.queues.tree import QueueTree

GPU = "nvidia.com/gpu"


def problems(*queues: Queue) -> dict[str, str]:
    return {queue.name: queue.problem for queue in sound(queues) if queue.problem}


def with_share(field: str, share: Share) -> Queue:
    return replace(Queue("a"), **{field: share})  # type: ignore[arg-type]


def test_a_cycle_takes_out_its_queues_and_those_below() -> None:
    found = problems(
        Queue("a", "b"),
        Queue("b", "c"),
        Queue("c", "a"),
        Queue("d", "c"),
        Queue("e", "d"),
        Queue("f"),
    )
    text = "queues are their own ancestors: a -> b -> c -> a"
    assert found == {
        **dict.fromkeys("abc", text),
        **dict.fromkeys("de", f'its ancestor "c": {text}'),
    }


@pytest.mark.parametrize("names", [range(10_000), reversed(range(10_000))])
def test_queues_that_lie_too_deep_are_set_apart_one_by_one(names: Iterable[int]) -> None:
    chain = [Queue(f"q{at}", f"q{at - 1}" if at else "") for at in names]
    found = problems(*chain)
    assert set(found.values()) == {f"it lies below more than {MOST_LEVELS - 1} others"}
    assert len(found) == 10_000 - MOST_LEVELS
    tree = QueueTree(sound(chain))
    assert max(map(len, tree.paths)) == MOST_LEVELS
    assert not tree.queues[tree.row_of[f"q{MOST_LEVELS - 1}"]].problem


def test_a_large_cycle_is_told_in_short() -> None:
    found = problems(*(Queue(f"q{at}", f"q{(at + 1) % 10_000}") for at in range(10_000)))
    assert len(found) == 10_000
    (text,) = set(found.values())
    assert text == (
        "queues are their own ancestors: q0 -> q1 -> q2 -> q3 -> q4 -> ... (10000 in all) -> q0"
    )


def test_a_queue_may_be_its_own_parent() -> None:
    assert problems(Queue("a", "a")) == {"a": "queues are their own ancestors: a -> a"}


def test_a_missing_parent_takes_out_its_children_and_theirs() -> None:
    assert problems(Queue("c", "b"), Queue("b", "gone"), Queue("a")) == {
        "b": 'its parent "gone" does not exist',
        "c": 'its ancestor "b": its parent "gone" does not exist',
    }


def test_two_queues_of_one_name() -> None:
    pair = (Queue("a", source="ElasticQuota x/a"), Queue("a", source="ElasticQuota y/a"))
    assert problems(*pair, Queue("b")) == {
        "a": '2 queues have the name "a": ElasticQuota x/a and ElasticQuota y/a'
    }


@pytest.mark.parametrize("field", ["deserved", "guaranteed", "limit", "weight", "lent", "borrowed"])
@pytest.mark.parametrize("amount", [-1.0, math.nan])
def test_amounts_below_zero(field: str, amount: float) -> None:
    assert problems(with_share(field, Share({GPU: amount}))) == {
        "a": f"{field} of {GPU}: expected 0 or more, got {amount:g}"
    }
    assert problems(with_share(field, Share(other=amount))) == {
        "a": f"{field} of other resources: expected 0 or more, got {amount:g}"
    }


def test_a_broken_queue_has_no_share_and_is_safe_and_stays_where_it_counts() -> None:
    eight = Share({GPU: 8.0})
    good = Queue("top", deserved=eight)
    (_, bad) = sound([good, Queue("a", "top", deserved=eight, weight=Share(other=-1.0))])
    assert bad.parent == "top"
    assert not bad.reclaimable
    for share in (bad.deserved, bad.guaranteed, bad.limit, bad.weight, bad.lent, bad.borrowed):
        assert share == Share()


# Random definitions ----------------------------------------------------------------------------

NAMES = st.sampled_from("abcdefgh")
QUEUES = st.lists(
    st.builds(
        Queue,
        NAMES,
        st.one_of(st.just(""), NAMES, st.just("gone")),
        weight=st.sampled_from([Share(other=1.0)] * 5 + [Share(other=-1.0), Share(other=0.0)]),
        problem=st.sampled_from([None] * 9 + ["spec.weight: is odd"]),
    ),
    max_size=12,
)


def is_broken(queue: Queue, queues: list[Queue]) -> bool:
    """Tell the plain way whether a queue or what is above it is broken."""
    for _ in range(len(queues) + 1):
        if queue.problem or queue.weight.other < 0:
            return True
        if sum(one.name == queue.name for one in queues) > 1:
            return True
        if not queue.parent:
            return False
        above = [one for one in queues if one.name == queue.parent]
        if not above:
            return True
        queue = above[0]
    return True


@given(QUEUES)
def test_every_definition_makes_a_tree_and_only_what_is_broken_is_set_apart(
    queues: list[Queue],
) -> None:
    tree = QueueTree(sound(queues))
    assert sorted(tree.row_of) == sorted({queue.name for queue in queues})
    for queue in queues:
        made = tree.queues[tree.row_of[queue.name]]
        if is_broken(queue, queues):
            assert made.problem
            assert not made.reclaimable
            assert not any((made.deserved.other, made.limit.other, made.weight.other))
        else:
            assert made == queue


# Gates and notes -------------------------------------------------------------------------------


def test_why_a_queue_takes_no_jobs() -> None:
    queues = [
        Queue("parent"),
        Queue("open", "parent"),
        Queue("closed", state=QueueState.CLOSED),
        Queue("closing", state=QueueState.CLOSING),
        Queue("broken", "gone"),
    ]
    tree = QueueTree(sound(queues))
    texts = {name: gate(tree, "Queue", name) for name in (*tree.row_of, "other")}
    assert texts == {
        "open": None,
        "parent": 'Queue "parent" has child queues and takes no jobs itself',
        "closed": 'Queue "closed" is Closed and takes no jobs',
        "closing": 'Queue "closing" is Closing and takes no jobs',
        "broken": 'Queue "broken": its parent "gone" does not exist',
        "other": 'waiting for Queue "other", which does not exist',
    }
    assert gate(tree, "Queue", "parent", leaves_only=False) is None


def test_notes_on_children_that_have_more_than_their_parent() -> None:
    tree = QueueTree(
        [
            Queue("top", deserved=Share({GPU: 8.0, "cpu": 8000.0}), guaranteed=Share({GPU: 4.0})),
            Queue("a", "top", deserved=Share({GPU: 6.0, "cpu": 4000.0})),
            Queue("b", "top", deserved=Share({GPU: 6.0}), guaranteed=Share({GPU: 5.0})),
        ],
        ["cpu", GPU],
    )
    assert [list(notes_on(tree, row, {"cpu", GPU})) for row in range(3)] == [
        [
            f"its children are guaranteed 5 {GPU} together, more than its own 4",
            f"its children deserve 12 {GPU} together, more than its own 8",
        ],
        [],
        [],
    ]


def test_a_queue_that_pools_may_have_less_than_its_children() -> None:
    few = Share({GPU: 2.0})
    tree = QueueTree([Queue("top", pools=True), Queue("a", "top", deserved=few)], [GPU])
    assert not list(notes_on(tree, 0, {GPU}))


def test_notes_on_weights_and_unknown_resources() -> None:
    mistyped = Share({"nvidia.com/gpus": 8.0, "cpu": 1.0, "zero": 0.0})
    tree = QueueTree(
        [
            Queue("a", limit=mistyped),
            Queue("b", weight=Share()),
            Queue("c", weight=Share({GPU: 1.0})),
        ]
    )
    assert [list(notes_on(tree, row, {"cpu"})) for row in range(3)] == [
        ["it has a quota of nvidia.com/gpus, which no node offers"],
        ["its weight is 0, so it gets nothing of what is left over"],
        [],
    ]
    assert not list(notes_on(tree, 0, ()))


def test_an_object_that_is_as_it_was_is_not_read_again() -> None:
    read: list[str] = []

    def translate(one: VolcanoQueue) -> Queue:
        read.append(one.metadata.name)
        return volcano.queue_of(one)

    def made(name: str, weight: int = 1) -> VolcanoQueue:
        return VolcanoQueue(ObjectMeta(name=name), VolcanoQueueSpec(weight))

    translations, objects = Translations(translate), {name: made(name) for name in ("a", "b")}
    before = translations.of(objects)
    objects |= {"b": made("b", 2), "c": made("c")}
    after = translations.of(objects)
    assert read == ["a", "b", "b", "c"]
    assert after[0] is before[0]
    assert [queue.weight.of("cpu") for queue in after] == [1, 2, 1]
    assert [queue.name for queue in translations.of({"c": objects["c"]})] == ["c"]
