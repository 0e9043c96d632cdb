"""Options for the reference's vectors: files with one case per line.

``pytest tests/conformance --allocator-vectors FILE --cel-vectors FILE --world-vectors FILE`` runs
any files of the format, and so do ``--queue-vectors FILE`` with those of queues,
``--fraction-vectors FILE`` with those of shares of GPUs, and ``--kind-vectors FILE`` with those of
kinds of workloads, and ``--koordinator-vectors FILE`` with those of Koordinator's CPU sets, loads
and reservations (each repeatable).
Without the options, the files beside the project are run, if there are any. The project's own
cases always run.
"""

from __future__ import annotations

from collections import Counter

import pytest
from _pytest.terminal import TerminalReporter


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--allocator-vectors", help="cases of the allocator, one JSON object a line")
    parser.addoption("--cel-vectors", help="cases of CEL selectors, one JSON object a line")
    parser.addoption("--world-vectors", help="decisions of kube-scheduler, one world a line")
    parser.addoption(
        "--queue-vectors",
        action="append",
        help="cases of queues of Volcano, Koordinator, KAI and Kueue; may be given several times",
    )
    parser.addoption(
        "--kind-vectors",
        action="append",
        help="cases of what kinds of workloads mean; may be given several times",
    )
    parser.addoption(
        "--koordinator-vectors",
        action="append",
        help="cases of Koordinator's CPU sets, loads and reservations; may be given several times",
    )
    parser.addoption(
        "--fraction-vectors",
        action="append",
        help="cases of shares of GPUs of HAMi, Koordinator and KAI; may be given several times",
    )


_SYSTEMS = {
    "test_given_files.py": "files",
    "test_hami_share_vectors.py": "HAMi, shares",
    "test_kai_queue_vectors.py": "KAI, tables",
    "test_kai_scenario_vectors.py": "KAI, scenarios",
    "test_kind_vectors.py": "kinds of workloads",
    "test_koordinator_device_vectors.py": "Koordinator, devices",
    "test_koordinator_quota_vectors.py": "Koordinator, quotas",
    "test_koordinator_vectors.py": "Koordinator, others",
    "test_kueue_vectors.py": "Kueue",
    "test_volcano_vectors.py": "Volcano",
}
_OUTCOMES = ("passed", "failed", "xfailed", "skipped")


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """Print how many cases pass, system by system, and for what reasons the others do not."""
    options = ("--queue-vectors", "--fraction-vectors", "--kind-vectors", "--koordinator-vectors")
    given = any(config.getoption(one) for one in options)
    named = given or any("conformance" in one for one in config.args)
    counts: dict[str, Counter[str]] = {}
    reasons: Counter[tuple[str, str, str]] = Counter()
    for outcome in _OUTCOMES:
        for report in terminalreporter.getreports(outcome):
            system = _SYSTEMS.get(report.nodeid.partition("::")[0].rpartition("/")[2])
            if system is not None:
                counts.setdefault(system, Counter())[outcome] += 1
                if outcome != "passed":
                    reasons[system, outcome, _reason(report)] += 1
    if not named or not counts:
        return
    terminalreporter.section("cases by system")
    terminalreporter.write_line(f"{'':22}{'passed':>8}{'failed':>8}{'differ':>8}{'not run':>9}")
    for system in sorted(counts):
        own = counts[system]
        terminalreporter.write_line(
            f"{system:22}{own['passed']:8}{own['failed']:8}{own['xfailed']:8}{own['skipped']:9}"
        )
    for (system, outcome, reason), count in sorted(reasons.items()):
        word = {"failed": "failed", "xfailed": "differs", "skipped": "not run"}[outcome]
        terminalreporter.write_line(f"{count:4} {system}, {word}: {reason}")


def _reason(report: pytest.TestReport) -> str:
    if report.outcome == "failed":
        return report.nodeid.partition("::")[2]
    given = str(getattr(report, "wasxfail", "")).partition(": ")[0]
    if not given and isinstance(report.longrepr, tuple):
        given = str(report.longrepr[2]).removeprefix("Skipped: ")
    return given
