"""When slices are published, and what an operator is told meanwhile."""

from __future__ import annotations

import logging

import pytest
from tests.dra.driver.driver_stage import (
    MACHINE,
    EmbeddedApi,
    eventually,
    make_driver,
    short_folder,
)

from bayplan.testing import Cluster, make_node
from bayplan_dra.driver.publish import loop


def test_a_kubelet_that_does_not_find_the_driver_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # It looks in its own folder, and only its own log has what is wrong with a socket there.
    monkeypatch.setattr(loop, "_REPORTED_AFTER_SECONDS", 0.0)
    with short_folder() as root, caplog.at_level(logging.WARNING, "bayplan.driver"):
        driver = make_driver(root, MACHINE, EmbeddedApi(Cluster([make_node("n")]).api))
        driver.start()
        eventually(lambda: caplog.text)
        assert driver.ready() == "not registered with the kubelet"
        driver.stop()
    assert f"is that folder mounted at {root / 'registry'}?" in caplog.text
    assert "107 bytes at most" in caplog.text
    assert caplog.text.count("has not registered") == 1
