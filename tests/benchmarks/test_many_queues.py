"""The benchmark of many queues measures every system with queues that take pods."""

from __future__ import annotations

import pytest

from bayplan_benchmarks.many_queues import SYSTEMS, longest_steps, many_queues, queues_of


def test_each_system_and_shape_has_a_figure() -> None:
    result = many_queues.run(1, 4)
    cases = {f"{system}-{shape}" for system in SYSTEMS for shape in ("flat", "chain")}
    assert [set(figure) for figure in result.figures.values()] == [cases, cases]


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_is_measured_binds_the_pods_of_new_queues(system: str) -> None:
    assert longest_steps(system, 1, list(queues_of(system, 4, chain=False))).bound == 3
