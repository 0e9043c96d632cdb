"""bayplan decides as kube-scheduler does, where that is not chance: nodes, messages and victims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.kube_worlds import Comparison, compared, table
from tests.paths import SHARED

from bayplan.profiles.loading import load_profiles

VECTORS = SHARED / "conformance" / "kube-scheduler.jsonl"
_SHOWN = 60


def test_decisions_are_those_of_kube_scheduler(pytestconfig: pytest.Config) -> None:
    given = pytestconfig.getoption("--world-vectors", default=None)
    path = Path(given) if given is not None else VECTORS
    if given is None and not path.exists():
        pytest.skip("the recorded decisions (kube-scheduler.jsonl) do not lie beside the project")
    worlds = _worlds(path)
    profiles = load_profiles(Path(__file__).with_name("profiles.yaml"))
    found = list(compared(worlds, profiles))
    assert found, f"{path} holds no decisions"
    print(f"\n{table(found)}")
    different = [one for one in found if not one.agrees and not one.excuse]
    assert not different, "\n".join(_shown(one) for one in different[:_SHOWN])


def _worlds(path: Path) -> list[Any]:
    """Return the worlds of a file, one a line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line]
    except (OSError, ValueError) as exc:
        pytest.fail(f"{path} is no file of worlds, one JSON object a line: {exc}", pytrace=False)


def _shown(one: Comparison) -> str:
    return f"{one.kind}: world {one.world}, pod {one.pod}\n  {one.recorded}\n  {one.found}"
