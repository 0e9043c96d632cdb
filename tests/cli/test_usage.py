"""bayplan usage: what was used and what was idle, of a simulation or a journal."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayplan.cli import main
from bayplan.metering.journal import Journal
from bayplan.metering.record import UsageRecord

MANIFESTS = """
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {nvidia.com/gpu.product: H100}}
status: {allocatable: {cpu: "16", memory: 64Gi, nvidia.com/gpu: "8", pods: "110"}}
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: red, annotations: {bayplan.dev/duration: 1h}}
spec:
  containers:
  - {name: m, resources: {requests: {cpu: "2", memory: 8Gi}, limits: {nvidia.com/gpu: "4"}}}
---
apiVersion: v1
kind: Pod
metadata: {name: b, labels: {bayplan.dev/tenant: "=blue"}}
spec: {containers: [{name: m, resources: {limits: {nvidia.com/gpu: "2"}}}]}
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["bayplan", "usage", *arguments])
        status = 0
        try:
            main()
        except SystemExit as exc:
            status = int(exc.code or 0)
        out = capsys.readouterr()
        return status, out.out, out.err

    return call


@pytest.fixture
def manifests(tmp_path: Path) -> str:
    path = tmp_path / "pods.yaml"
    path.write_text(MANIFESTS)
    return str(path)


def by(rows: list[dict[str, Any]], name: str) -> dict[tuple[str, str], float]:
    return {(row[name] or row["state"], row["resource"]): row["hours"] for row in rows}


def test_a_simulation_tells_who_used_what(run: Run, manifests: str) -> None:
    status, out, err = run("-f", manifests, "--until", "2h", "-o", "json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["until"] == "2000-01-01T02:00:00Z"
    assert by(found["usage"], "tenant") == {
        ("=blue", "nvidia.com/gpu"): 4.0,
        ("red", "cpu"): 2.0,
        ("red", "memory"): 8.0,
        ("red", "nvidia.com/gpu"): 4.0,
        ("idle", "cpu"): 30.0,
        ("idle", "memory"): 120.0,
        ("idle", "nvidia.com/gpu"): 8.0,
    }
    assert {row["model"] for row in found["usage"]} == {"", "H100"}


def test_a_table_and_cells_that_are_no_formulas(run: Run, manifests: str) -> None:
    _, out, _ = run("-f", manifests, "--until", "2h", "--by", "job", "--since", "30m")
    assert "2000-01-01T01:30:00Z to 2000-01-01T02:00:00Z" in out
    assert "default/b" in out
    assert "red/a" not in out
    _, out, _ = run("-f", manifests, "--until", "2h", "--by", "model", "-o", "csv")
    assert out.splitlines()[0] == "resource,model,state,hours,unit,share"
    _, out, _ = run("-f", manifests, "--until", "2h", "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert rows[0] == {
        "tenant": "'=blue",
        "resource": "nvidia.com/gpu",
        "model": "H100",
        "state": "used",
        "hours": "4.000000",
        "unit": "device hours",
        "share": "0.250000",
    }


def test_a_journal_is_read_between_two_dates(run: Run, tmp_path: Path) -> None:
    place = str(tmp_path / "journal.db")
    journal = Journal(place)
    journal.claim()
    start = 1_767_225_600_000  # 2026-01-01
    record = UsageRecord(
        "red", "q", "", "ns", "ns/j", "ns/p", "uid", "n", "cpu", "", 1500, start, start + 7_200_000
    )
    journal.append([record])
    journal.close()
    window = ("--journal", place, "--since", "2026-01-01T01:00", "--to", "2026-01-02")
    _, out, _ = run(*window, "--by", "queue", "-o", "json")
    (row,) = json.loads(out)["usage"]
    assert (row["queue"], row["hours"], row["amountMilliseconds"]) == ("q", 1.5, "5400000000")
    _, out, _ = run("--journal", place, "--to", "2026-01-01", "-o", "json")
    assert json.loads(out)["usage"] == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "give either a journal with --journal or manifests with -f"),
        (("--journal", "none.db"), "none.db: there is no such journal"),
        (("--journal", "redis://x"), 'expected sqlite or postgresql, got "redis"'),
        (("-f", "{}", "--since", "soon"), "expected a duration such as 30d or a date"),
        (("-f", "{}", "--since", "2030-01-01"), "expected a time before the end"),
    ],
)
def test_input_that_cannot_be_used(
    run: Run, manifests: str, arguments: tuple[str, ...], text: str
) -> None:
    status, _, err = run(*(manifests if one == "{}" else one for one in arguments))
    assert status == 2
    assert text in err


def test_a_file_without_a_journal_is_named(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "empty.db"
    place.touch()
    status, _, err = run("--journal", str(place))
    assert status == 2
    assert err.endswith(f"{place}: holds no journal of usage\n")
