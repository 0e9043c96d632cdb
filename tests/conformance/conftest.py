"""Where the vectors of the reference are: files of one case a line.

``pytest tests/conformance --allocator-vectors FILE --cel-vectors FILE`` runs any files of the
format; without the options those that lie beside the project are run, where there are any, and the
project's own cases in any case.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--allocator-vectors", help="cases of the allocator, one JSON object a line")
    parser.addoption("--cel-vectors", help="cases of CEL selectors, one JSON object a line")
