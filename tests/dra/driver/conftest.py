"""What the tests of the driver share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Undo the logging that a test's command sets up, so that the next can capture logs."""
    logger = logging.getLogger("bayplan")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before
