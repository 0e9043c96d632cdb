"""The benchmark of owners places every pod in each of its three ways, and follows the owners."""

from __future__ import annotations

from bayplan_benchmarks.owners import owners


def test_pods_of_all_kinds_are_placed_owned_grouped_and_alone() -> None:
    result = owners.run(10, 200)
    assert result.figures["bound"] == 200
    costs = [value for name, value in result.figures.items() if name.endswith("PerPod")]
    assert len(costs) == 4
    assert all(isinstance(one, float) and one > 0 for one in costs)
