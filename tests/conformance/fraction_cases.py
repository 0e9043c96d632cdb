"""Cases of shares of GPUs: those of one system out of all files that are given."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.vectors import SHARED

__all__ = ["fraction_cases"]

Case = dict[str, Any]


def fraction_cases(config: pytest.Config, beside: str, is_own: Callable[[Case], bool]) -> list[Any]:
    """Return the cases of one system as pytest parameters; a missing file is one skipped case.

    :param beside: the file beside the project that is read if no file is given.
    :param is_own: tells whether a case is one of the system's.
    """
    given = config.getoption("--fraction-vectors", default=None)
    files = [Path(name) for name in given] if given else [SHARED / beside]
    if not given and not files[0].exists():
        reason = f"the reference's vectors ({beside}) do not lie beside the project"
        return [pytest.param({}, id=beside, marks=pytest.mark.skip(reason=reason))]
    seen: Counter[str] = Counter()
    found = []
    for file in files:
        lines = file.read_text(encoding="utf-8").splitlines() if file.suffix == ".jsonl" else []
        for case in (json.loads(line) for line in lines if line.strip()):
            if not isinstance(case, dict) or not is_own(case):
                continue
            name = f"{case.get('kind', '')}-{case.get('name', '')}"
            seen[name] += 1
            again = f"-{seen[name]}" if seen[name] > 1 else ""
            found.append(pytest.param(case, id=f"{name}{again}"))
    return found
