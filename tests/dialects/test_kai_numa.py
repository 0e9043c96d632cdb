"""What a pod holds of NUMA nodes, as KAI's node agent wrote it on the pod."""

from __future__ import annotations

import pytest

from bayplan.dialects.kai.queues import numa_placement_of
from bayplan.testing import make_pod


def held(text: str) -> dict[int, dict[str, int]]:
    """Return what is read of an annotation."""
    pod = make_pod("p", annotations={"kai.scheduler/numa-placement-observed": text})
    return numa_placement_of(pod)


def test_each_numa_node_counts() -> None:
    text = '[{"zone": "node-0", "amount": {"cpu": "2"}}, {"zone": "node-1", "amount": {"x/y": 3}}]'
    assert held(text) == {0: {"cpu": 2000}, 1: {"x/y": 3}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{}",
        "[1]",
        "[" * 9_000,
        '[{"zone": "node-' + "1" * 5_000 + '"}]',
        '[{"zone": "node-one", "amount": {"cpu": "2"}}]',
        '[{"zone": "node-0", "amount": {"cpu": "much"}}]',
    ],
)
def test_what_cannot_be_read_holds_nothing(text: str) -> None:
    assert held(text) == {}


def test_nobody_holds_less_than_nothing() -> None:
    assert held('[{"zone": "node-0", "amount": {"cpu": "-2"}}]') == {0: {"cpu": 0}}
