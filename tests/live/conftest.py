"""Apps of the scheduler in the process of the tests."""

from __future__ import annotations

import pytest

from bayplan.live import app


@pytest.fixture(autouse=True)
def _no_collection_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each app begins with a walk over the whole heap, which is that of all tests here."""
    monkeypatch.setattr(app, "collect_rarely", lambda: None)
