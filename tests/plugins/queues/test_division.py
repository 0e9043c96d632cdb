"""The division of shares against the plain version."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.api.queue import UNLIMITED, Queue, Share
from bayplan.queues.tree import QueueTree
from bayplan_plugins.queues.division import Division

GPU = "nvidia.com/gpu"


@dataclass
class Plain:
    """One queue and one resource, as the plain version sees it."""

    quota: float
    weight: float
    priority: int
    requestable: float
    usage: float
    age: int
    fair: float = 0.0
    remainder: float = 0.0

    @property
    def missing(self) -> float:
        return max(0.0, self.requestable - self.fair)


def plain_division(total: float, k: float, queues: list[Plain]) -> None:
    """Divide one resource among siblings, queue by queue."""
    left = total
    for queue in queues:
        queue.fair = min(total if queue.quota == UNLIMITED else queue.quota, queue.requestable)
        left -= queue.fair
    for priority in sorted({queue.priority for queue in queues}, reverse=True):
        peers = [queue for queue in queues if queue.priority == priority]
        left = plain_rounds(left, k, peers)
        for queue in sorted(peers, key=lambda one: (-one.remainder, one.age)):
            if left > 0 and queue.remainder > 0:
                queue.fair += min(1.0, left)
                left -= min(1.0, left)


def plain_rounds(left: float, k: float, queues: list[Plain]) -> float:
    again = left > 0
    while again:
        again = False
        hungry = [queue for queue in queues if queue.missing > 0]
        weights = sum(queue.weight for queue in hungry)
        if not weights:
            break
        parts = [
            max(0.0, one.weight / weights * (1 + k) - k * one.usage) if one.weight else 0.0
            for one in hungry
        ]
        if not sum(parts):
            break
        pool = left
        for queue, own in zip(hungry, parts, strict=True):
            part, missing = pool * own / sum(parts), queue.missing
            if missing <= part:
                given, queue.remainder = missing, 0.0
            else:
                given = math.floor(part)
                queue.remainder = part - given or queue.remainder
            queue.fair += given
            left -= given
            again |= given > 0 and missing < part
        again &= left > 0
    return max(0.0, left)


amounts = st.integers(0, 40).map(float)


@st.composite
def families(draw: st.DrawFn) -> tuple[float, float, list[Queue], list[float], list[float]]:
    count = draw(st.integers(1, 8))
    queues = [
        Queue(
            f"q{index}",
            deserved=Share({GPU: draw(st.one_of(amounts, st.just(UNLIMITED)))}),
            limit=Share({GPU: draw(st.one_of(amounts, st.just(UNLIMITED)))}),
            weight=Share({GPU: draw(st.sampled_from([0.0, 1.0, 2.0, 3.0]))}),
            priority=draw(st.integers(0, 2)),
            created=draw(st.integers(0, 3)),
            uid=f"{index}",
        )
        for index in range(count)
    ]
    asked = draw(st.lists(amounts, min_size=count, max_size=count))
    usage = [
        draw(st.sampled_from([0.0, 0.125, 0.25])) if draw(st.booleans()) else 0.0 for _ in queues
    ]
    return draw(amounts), draw(st.sampled_from([0.0, 1.0, 2.0])), queues, asked, usage


@settings(max_examples=300, deadline=None)
@given(families())
def test_division_equals_the_plain_version(
    family: tuple[float, float, list[Queue], list[float], list[float]],
) -> None:
    total, k, queues, asked, usage = family
    tree = QueueTree(queues, [GPU])
    for queue, amount in zip(queues, asked, strict=True):
        tree.ask(tree.row_of[queue.name], np.array([amount]))
    past = np.zeros_like(tree.demand)
    past[[tree.row_of[queue.name] for queue in queues], 0] = usage
    order = sorted(queues, key=lambda queue: (queue.created, queue.uid))
    plain = [
        Plain(
            queue.deserved.of(GPU),
            queue.weight.of(GPU),
            queue.priority,
            min(queue.limit.of(GPU), asked[index]),
            usage[index],
            order.index(queue),
        )
        for index, queue in enumerate(queues)
    ]
    plain_division(total, k, plain)
    fair = Division(tree, k).fair_shares(np.array([total]), past)
    got = [fair[tree.row_of[queue.name], 0] for queue in queues]
    assert got == pytest.approx([one.fair for one in plain])


def test_children_divide_their_parents_share() -> None:
    tree = QueueTree(
        [
            Queue("a", deserved=Share({GPU: 6.0})),
            Queue("b", deserved=Share({GPU: 2.0})),
            Queue("a1", parent="a", weight=Share({GPU: 2.0})),
            Queue("a2", parent="a", weight=Share({GPU: 1.0})),
        ],
        [GPU],
    )
    for name, amount in (("a1", 10.0), ("a2", 10.0), ("b", 4.0)):
        tree.ask(tree.row_of[name], np.array([amount]))
    fair = Division(tree).fair_shares(np.array([9.0]))
    assert {queue.name: fair[row, 0] for row, queue in enumerate(tree.queues)} == {
        "a": 7.0,
        "b": 2.0,
        "a1": 5.0,
        "a2": 2.0,
    }
