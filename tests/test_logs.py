"""Log lines as people and programs read them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from bayplan.logs import set_up_logging

log = logging.getLogger("bayplan.test")


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Leave bayplan's logger as it was."""
    logger = logging.getLogger("bayplan")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def logged(form: str, level: int | str = logging.INFO) -> list[str]:
    """Log a warning with an extra, a debug message and an exception; return the lines."""
    stream = io.StringIO()
    set_up_logging(form, level, stream)
    log.warning("claim %s is\nnot prepared", "c", extra={"node": "n"})
    log.debug("a detail")
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("it failed", extra={"claim": "uid"})
    return stream.getvalue().splitlines()


def test_json_lines_hold_the_extra_and_the_traceback() -> None:
    warning, failure = (json.loads(line) for line in logged("json"))
    assert warning.pop("ts").endswith("+00:00")
    assert warning == {
        "level": "warning",
        "logger": "bayplan.test",
        "msg": "claim c is\nnot prepared",
        "node": "n",
    }
    assert (failure["msg"], failure["claim"]) == ("it failed", "uid")
    assert failure["exception"].startswith("Traceback (most recent call last):")
    assert failure["exception"].endswith("ValueError: broken")


def test_a_console_line_holds_the_extra_with_the_traceback_below() -> None:
    warning, failure, *traceback = logged("console")
    assert warning.endswith(" WARNING claim c is not prepared node=n")
    assert failure.endswith(" ERROR   it failed claim=uid")
    assert traceback[0] == "Traceback (most recent call last):"
    assert traceback[-1] == "ValueError: broken"


def test_the_level_decides_what_is_logged() -> None:
    assert any("a detail" in line for line in logged("console", "DEBUG"))
    assert not any("a detail" in line for line in logged("console"))
