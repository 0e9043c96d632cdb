"""What a page holds, read as its script reads it; and how to make one."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable, Iterable
from typing import Any

from bayplan.api import ApiObject
from bayplan.cli.report import Recording
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation

_DATA = re.compile(r'<script type="text/plain" id="data">([^<]*)</script>')


def data_of(page: str) -> dict[str, Any]:
    """Return the rows inside a page."""
    found = _DATA.search(page)
    assert found is not None
    return dict(json.loads(zlib.decompress(base64.b64decode(found[1]))))


def simulated(
    objects: Iterable[ApiObject],
    later: Iterable[tuple[float, ApiObject]] = (),
    act: Callable[[Simulation], None] = lambda simulation: None,
    until: float | None = None,
) -> tuple[Recording, Simulation]:
    """Run a simulation and record it."""
    simulation = Simulation(default_profiles(), until=until)
    recording = Recording("test")
    recording(simulation)
    simulation.create(objects)
    simulation.arrive(later)
    act(simulation)
    simulation.run()
    return recording, simulation


def shown(
    objects: Iterable[ApiObject],
    later: Iterable[tuple[float, ApiObject]] = (),
    until: float | None = None,
) -> dict[str, Any]:
    """Return the rows of the page of a simulation."""
    recording, simulation = simulated(objects, later, until=until)
    return data_of(recording.page(simulation))
