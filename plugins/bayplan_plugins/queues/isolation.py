"""One object that cannot be dealt with takes nothing from the others."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

__all__ = ["alone"]

_log = logging.getLogger(__name__)


@contextmanager
def alone(what: str) -> Iterator[None]:
    """Log what goes wrong inside, with its traceback and once, and go on with what comes next.

    :param what: what is done, for the log: ``status of Queue team-a``.
    """
    try:
        yield
    except Exception:
        _log_once(f"{what} failed, the others go on\n{traceback.format_exc()}")


@lru_cache(maxsize=256)
def _log_once(text: str) -> None:
    _log.error("%s", text)
