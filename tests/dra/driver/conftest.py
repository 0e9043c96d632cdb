"""What the tests of the driver share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from tests.dra.driver.driver_stage import DriverNode, short_folder, template


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Undo the logging that a test's command sets up, so that the next can capture logs."""
    logger = logging.getLogger("bayplan")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.fixture
def node() -> Iterator[DriverNode]:
    """A node with a driver, and templates for two GPUs with a NIC, and for one GPU."""
    with short_folder() as root:
        made = DriverNode(root)
        made.cluster.add(template("two", gpu=2, nic=1), template("one", gpu=1))
        yield made
        made.close()


@pytest.fixture
def impatient_node() -> Iterator[DriverNode]:
    """The same, with a driver that tries everything once only."""
    with short_folder() as root:
        made = DriverNode(root, patience_seconds=0.0)
        made.cluster.add(template("one", gpu=1))
        yield made
        made.close()


@pytest.fixture
def resyncing_node() -> Iterator[DriverNode]:
    """A node whose driver checks its slices all the time."""
    with short_folder() as root:
        made = DriverNode(root, resync_seconds=0.05)
        yield made
        made.close()
