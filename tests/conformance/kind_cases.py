"""Cases of what kinds of workloads mean: the files of ``--kind-vectors``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.vectors import SHARED

Case = dict[str, Any]
FILES = ("grouper-kai", "grouper-volcano", "kueue-jobs", "kueue-webhooks")


class UnmodelledError(Exception):
    """bayplan has nothing that does this; the text says why."""


def _cases_in(path: Path) -> list[Case]:
    """Return the cases of a file.

    :raises pytest.UsageError: for a file without cases of this format.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        found = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as exc:
        raise pytest.UsageError(f"{path}: {exc}") from None
    if not found or not all(isinstance(one, dict) and "id" in one for one in found):
        raise pytest.UsageError(f"{path}: expected one case with an id on each line")
    return found


def kind_cases(config: pytest.Config, *prefixes: str) -> list[Any]:
    """Return the cases whose ids begin with one of some prefixes, as pytest parameters."""
    given = config.getoption("--kind-vectors", default=None)
    paths = [Path(one) for one in given or [SHARED / f"{name}.jsonl" for name in FILES]]
    found = [
        pytest.param(case, id=case["id"])
        for path in paths
        if given or path.exists()
        for case in _cases_in(path)
        if case["id"].startswith(prefixes)
    ]
    if found or given:
        return found
    reason = "the reference's vectors of kinds do not lie beside the project"
    return [pytest.param({}, id=prefixes[0], marks=pytest.mark.skip(reason=reason))]
