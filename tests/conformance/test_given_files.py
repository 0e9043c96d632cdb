"""Files of cases that are given have a reader for each case; those without one are told."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.conformance import koordinator_cases, koordinator_quota, test_hami_share_vectors
from tests.conformance.koordinator_device_cases import is_own as is_of_koordinators_devices

Case = Mapping[str, Any]


def _is_of_queues(case: Case) -> bool:
    system = case.get("system")
    if system == "koordinator":
        return case.get("kind") in koordinator_quota.RUNNERS
    return system in ("kueue", "volcano") or (system is None and ("op" in case or _is_kais(case)))


def _is_kais(case: Case) -> bool:
    return "system" not in case and "actions" in case


def _is_of_shares(case: Case) -> bool:
    own = dict(case)
    hamis = test_hami_share_vectors.is_own(own) if "source" in own else False
    return hamis or is_of_koordinators_devices(own) or _is_kais(case)


def _is_of_koordinators_rest(case: Case) -> bool:
    return case.get("kind") in koordinator_cases.RUNNERS


READERS: Mapping[str, Callable[[Case], bool]] = {
    "--queue-vectors": _is_of_queues,
    "--fraction-vectors": _is_of_shares,
    "--koordinator-vectors": _is_of_koordinators_rest,
}


def unread(path: Path, reads: Callable[[Case], bool]) -> Counter[str]:
    """Return how many cases of a file nobody reads, by what they say they are."""
    if path.suffix != ".jsonl":
        return Counter()
    lines = path.read_text(encoding="utf-8").splitlines()
    cases = [json.loads(line) for line in lines if line.strip()]
    return Counter(str(one.get("kind", "no kind")) for one in cases if not reads(one))


def _files(config: pytest.Config) -> Iterator[Any]:
    for option, reads in READERS.items():
        for name in config.getoption(option, default=None) or ():
            left = unread(Path(name), reads)
            told = ", ".join(f"{count} of the kind {kind}" for kind, count in left.items())
            reason = f"nobody reads these cases of {Path(name).name}: {told}"
            yield pytest.param(
                Path(name).name,
                id=f"{option.strip('-')}-{Path(name).name}",
                marks=[pytest.mark.skip(reason=reason)] if left else [],
            )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "given_file" in metafunc.fixturenames:
        metafunc.parametrize("given_file", list(_files(metafunc.config)) or ["no file is given"])


def test_each_case_of_a_given_file_has_a_reader(given_file: str) -> None:
    assert given_file


def test_cases_that_nobody_reads_are_counted_by_kind(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    cases = (
        {"system": "koordinator", "kind": "quota-runtime"},
        {"system": "koordinator", "kind": "colour"},
        {"kind": "colour"},
        {"kind": "fit", "source": "x"},
        {"op": "isOverLimit"},
    )
    file.write_text("\n".join(json.dumps(case) for case in cases), encoding="utf-8")
    assert unread(file, READERS["--queue-vectors"]) == {"colour": 2, "fit": 1}
    assert unread(file, READERS["--fraction-vectors"]) == {
        "colour": 2,
        "no kind": 1,
        "quota-runtime": 1,
    }
