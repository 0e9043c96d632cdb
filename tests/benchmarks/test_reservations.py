"""The benchmark of reservations: each pod uses the one that is kept for it."""

from __future__ import annotations

from bayplan_benchmarks.reservations import reservations


def test_every_pod_uses_a_reservation() -> None:
    assert reservations.run is not None
    result = reservations.run(4, 16)

    assert result.input == {"nodes": 4, "pods": 16}
    assert result.figures["used"] == 16
