"""Options for the reference's vectors: files with one case per line.

``pytest tests/conformance --allocator-vectors FILE --cel-vectors FILE --world-vectors FILE`` runs
any files of the format, and so does ``--queue-vectors FILE`` (repeatable) with those of queues.
Without the options, the files beside the project are run, if there are any. The project's own
cases always run.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--allocator-vectors", help="cases of the allocator, one JSON object a line")
    parser.addoption("--cel-vectors", help="cases of CEL selectors, one JSON object a line")
    parser.addoption("--world-vectors", help="decisions of kube-scheduler, one world a line")
    parser.addoption(
        "--queue-vectors",
        action="append",
        help="cases of queues of Volcano, Koordinator, KAI and Kueue; may be given several times",
    )
