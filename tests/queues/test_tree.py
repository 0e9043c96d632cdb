"""The columns of a tree of queues."""

from __future__ import annotations

import numpy as np
import pytest

from bayplan.api.queue import UNLIMITED, Queue, Share
from bayplan.queues.tree import QueueTree

GPU = "nvidia.com/gpu"


def test_parents_come_before_their_children_and_contain_what_they_use() -> None:
    tree = QueueTree([Queue("c", "b"), Queue("b", "a"), Queue("a"), Queue("d", "a")], [GPU])
    assert [tree.name(row) for row in range(4)] == ["a", "b", "c", "d"]
    assert [tree.name(row) for row in tree.path(tree.row_of["c"])] == ["c", "b", "a"]
    tree.use(tree.row_of["c"], tree.vector({GPU: 2.0}), fixed=True)
    tree.use(tree.row_of["d"], tree.vector({GPU: 1.0}))
    tree.ask(tree.row_of["d"], tree.vector({GPU: 4.0}))
    assert tree.used[:, 0].tolist() == [3, 2, 2, 1]
    assert tree.fixed[:, 0].tolist() == [2, 2, 2, 0]
    assert tree.demand[:, 0].tolist() == [4, 0, 0, 4]


def test_a_new_resource_widens_all_columns_and_older_rows_still_count() -> None:
    tree = QueueTree([Queue("a", deserved=Share({"cpu": 1000.0}), weight=Share(other=2.0))], [GPU])
    old = tree.vector({GPU: 1.0})
    new = tree.vector({"cpu": 500.0})
    tree.use(0, old)
    tree.use(0, new)
    tree.use(0, old, -1)
    assert tree.resources == [GPU, "cpu"]
    assert tree.used.tolist() == [[0, 500]]
    assert tree.deserved.tolist() == [[0, 1000]]
    assert tree.limit.tolist() == [[UNLIMITED, UNLIMITED]]
    assert tree.weight.tolist() == [[2, 2]]
    assert tree.amounts(np.array([0.0, 500.0])) == {"cpu": 500.0}


def test_branches_below_the_lowest_common_ancestor() -> None:
    tree = QueueTree([Queue("a"), Queue("b", "a"), Queue("c", "b"), Queue("d", "a"), Queue("e")])
    row = tree.row_of
    assert tree.branches(row["c"], row["d"]) == (row["b"], row["d"])
    assert tree.branches(row["c"], row["e"]) == (row["a"], row["e"])
    assert tree.branches(row["c"], row["b"]) is None


@pytest.mark.parametrize(
    ("queues", "text"),
    [
        ([Queue("a"), Queue("a")], 'two queues have the name "a"'),
        ([Queue("a", "b")], 'queue "a" has the parent "b", which does not exist'),
        (
            [Queue("c", "a"), Queue("a", "b"), Queue("b", "a")],
            "queues are their own ancestors: a -> b -> a",
        ),
    ],
)
def test_what_is_no_tree_is_refused(queues: list[Queue], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        QueueTree(queues)
