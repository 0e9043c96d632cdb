"""The benchmark of reclaim at scale."""

from __future__ import annotations

import pytest

from bayplan.errors import InputError
from bayplan_benchmarks.reclaim import reclaim


def test_all_systems_take_back_what_one_gang_needs() -> None:
    figures = reclaim.run(160, 0).figures
    evicted = figures["evictedPods"]
    assert evicted == {"kai": 40, "volcano": 40, "plain": 40}


@pytest.mark.parametrize(
    ("nodes", "pods", "expected"),
    [(160, 5, "every node gets a pod"), (100, 0, "134 nodes or more")],
)
def test_sizes_without_meaning_are_refused(nodes: int, pods: int, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        reclaim.run(nodes, pods)
