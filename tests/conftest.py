"""Options of the whole suite."""

import pytest
from hypothesis import settings

# The same examples each time, however slow the machine is.
settings.register_profile("bayplan", deadline=None, derandomize=True)
settings.load_profile("bayplan")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kubeconfig",
        metavar="FILE",
        help="run the API contract against this cluster instead of the embedded one",
    )
