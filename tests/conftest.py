"""Options of the whole suite."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kubeconfig",
        metavar="FILE",
        help="run the API contract against this cluster instead of the embedded one",
    )
