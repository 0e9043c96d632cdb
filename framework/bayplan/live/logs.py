"""Log formats: text for a console, or JSON lines."""

from __future__ import annotations

import datetime
import json
import logging
import sys
from typing import TextIO

__all__ = ["JsonLines", "set_up_logging"]

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object: ts, level, logger, msg, and the fields of ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line of JSON."""
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, object] = {
            "ts": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _OWN}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _Console(logging.Formatter):
    """Formats a record as time, level, message and the fields of ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        extra = {key: value for key, value in vars(record).items() if key not in _OWN}
        return " ".join([text, *(f"{key}={value}" for key, value in extra.items())])


def set_up_logging(form: str, stream: TextIO | None = None) -> None:
    """Send the logs of bayplan to standard error; ``form`` is console or json."""
    handler = logging.StreamHandler(stream or sys.stderr)
    plain = _Console("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%d %H:%M:%S")
    handler.setFormatter(JsonLines() if form == "json" else plain)
    logger = logging.getLogger("bayplan")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
