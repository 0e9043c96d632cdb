"""The benchmark of the largest published runs plays all phases of both."""

from __future__ import annotations

import pytest

from bayplan.errors import InputError
from bayplan_benchmarks.mega import mega


def test_every_run_has_figures_and_preempts_what_it_has_to() -> None:
    result = mega.run(200, 0)
    runs = {"130k pods", "130k gangs", "130k racks", "65k pods", "65k gangs"}
    memory = result.figures["peakMemoryMiB"]
    assert isinstance(memory, float)
    assert memory > 0
    for name, figure in result.figures.items():
        if isinstance(figure, dict):
            assert figure.keys() == runs, name
    victims = result.figures["preemptedPods"]
    assert isinstance(victims, dict)
    # Two fifths of 40 in units of 40; gangs go as a whole.
    assert victims["130k pods"] == 40
    assert victims["130k gangs"] >= 40
    # The other run interrupts nearly all of the training; one node was free.
    assert victims["65k pods"] == 127


def test_the_number_of_pods_cannot_be_chosen() -> None:
    with pytest.raises(InputError, match="--pods"):
        mega.run(200, 10)
